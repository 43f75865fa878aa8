"""A store of the journal against a plain model of it: any order of writes, repeated writes, ends, effects, restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from support.journal_writes import ANSWER, CONVERSATION, an_effect, begin, finish, message, request_id

from callboard.actors.journal.journal_records import Change, EffectWrite, NewMessage, RequestEnd, Write
from callboard.actors.journal.journal_store import ChangeRefused, JournalReader, JournalWriter
from callboard.protocol.content import Message
from callboard.protocol.events import Event
from callboard.protocol.ids import MessageId, RequestId

NAMES: Final = ("a", "b", "c", "d")


@dataclass
class Kept:
    """What the journal should have of one request."""

    first: Write
    began: int
    history: tuple[Message, ...]
    events: list[tuple[Event, tuple[str, ...]]] = field(default_factory=list)
    messages: list[tuple[MessageId, Message]] = field(default_factory=list)
    outcomes: list[EffectWrite] = field(default_factory=list)
    end: RequestEnd | None = None
    takings_up: int = 0


class StoreMachine(RuleBasedStateMachine):
    """A subclass gives `fresh`: what makes writers of one new, empty storage, one after the other."""

    def fresh(self) -> Callable[[], JournalWriter]:
        raise NotImplementedError

    @initialize()
    def make(self) -> None:
        self.new_store = self.fresh()
        self.model: dict[RequestId, Kept] = {}
        self.conversation: list[NewMessage] = []
        self.written: list[Write] = []
        self.batch: list[Change] = []
        self.expected: list[bool] = []
        self.numbers = 0
        self.has_taken_up = True
        self.open()

    def open(self) -> None:
        self.store: JournalWriter = self.new_store()
        self.store.open()
        self.reader: JournalReader = self.store.reader()

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.shut()

    def shut(self) -> None:
        self.reader.close()
        self.store.close()

    # -- what goes into a batch

    def add(self, change: Change, *, is_written: bool = True) -> None:
        self.batch.append(change)
        self.expected.append(is_written)
        if is_written and isinstance(change, Write):
            self.written.append(change)

    @precondition(lambda self: len(self.model) < len(NAMES))
    @rule()
    def begins(self) -> None:
        name = NAMES[len(self.model)]
        history = tuple(each.message for each in self.conversation)
        parent = self.conversation[-1].message_id if self.conversation else None
        write = begin(name, at=float(len(self.model)), history=history, parent=parent)
        kept = self.model[write.request_id] = Kept(write, len(self.model), history)
        kept.events.append((write.events[0], write.led_to))
        self.add(write)

    @precondition(lambda self: self.open_ones)
    @rule(data=st.data(), count=st.integers(1, 3), message_count=st.integers(0, 2))
    def goes_on(self, data: st.DataObject, count: int, message_count: int) -> None:
        which = data.draw(st.sampled_from(self.open_ones))
        kept = self.model[which]
        events = (ANSWER,) * count
        led_to = (f"command {len(kept.events)}",)
        messages = tuple(self.next_message() for _ in range(message_count))
        number = len(kept.events) + 1
        self.add(Write(which, number, events, led_to, None, CONVERSATION, messages))
        kept.events += [(event, led_to if event_at == count else ()) for event_at, event in enumerate(events, 1)]
        kept.messages += [(each.message_id, each.message) for each in messages]
        kept.takings_up = 0

    def next_message(self) -> NewMessage:
        self.numbers += 1
        parent = self.conversation[-1].message_id if self.conversation else None
        text = f"message {self.numbers}"
        new = NewMessage(MessageId(f"m{self.numbers}"), parent, message(text, answer=bool(self.numbers % 2 == 0)))
        self.conversation.append(new)
        return new

    @precondition(lambda self: self.open_ones)
    @rule(data=st.data(), is_answered=st.booleans())
    def ends(self, data: st.DataObject, is_answered: bool) -> None:
        which = data.draw(st.sampled_from(self.open_ones))
        kept = self.model[which]
        end = RequestEnd(9.5, finish(which), ("a note",)) if is_answered else RequestEnd(9.5, None, failure="why")
        self.add(Write(which, len(kept.events) + 1, (), ends=end))
        kept.end = end

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def is_given_again(self, data: st.DataObject) -> None:
        self.batch.append(data.draw(st.sampled_from(self.written)))
        self.expected.append(True)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), call=st.sampled_from(["x", "y"]))
    def has_an_effect(self, data: st.DataObject, call: str) -> None:
        which = data.draw(st.sampled_from(sorted(self.model)))
        effect = an_effect(which, call=call)
        known = {each.tag: each for each in self.model[which].outcomes}
        if data.draw(st.booleans()):  # another run of the call
            effect = replace(effect, outcome=replace(effect.outcome, at=effect.outcome.at + 1.0))
        is_new = effect.tag not in known
        self.add(effect, is_written=is_new or known[effect.tag] == effect)
        if is_new:
            self.model[which].outcomes.append(effect)

    @rule()
    def an_unknown_request_ends(self) -> None:
        end = RequestEnd(1.0, None, failure="why")
        self.add(Write(request_id("absent"), 1, (), ends=end), is_written=False)

    @property
    def open_ones(self) -> list[RequestId]:
        return [which for which, kept in self.model.items() if kept.end is None]

    # -- what is done with it

    @precondition(lambda self: self.batch)
    @rule()
    def commits(self) -> None:
        batch, expected = self.batch, self.expected
        self.batch, self.expected = [], []
        refused = self.store.commit(batch)
        assert [each is None for each in refused] == expected
        assert all(each is None or isinstance(each, ChangeRefused) for each in refused)

    @precondition(lambda self: not self.batch)
    @rule(takes_up=st.booleans())
    def starts_again(self, takes_up: bool) -> None:
        if self.has_taken_up:
            assert self.store.take_up() == ()
        self.shut()
        self.open()
        self.has_taken_up = takes_up
        if takes_up:
            found = self.store.take_up()
            assert sorted(found) == sorted(self.open_ones)
            assert list(found) == sorted(found, key=lambda which: self.model[which].began)
            for which in found:
                self.model[which].takings_up += 1

    @precondition(lambda self: not self.batch)
    @invariant()
    def the_journal_has_what_the_model_has(self) -> None:
        if not hasattr(self, "store"):
            return
        assert list(self.reader.open_requests()) == self.open_ones
        for name in NAMES:
            kept, log = self.model.get(request_id(name)), self.reader.request(request_id(name))
            if kept is None or log is None:
                assert kept is None
                assert log is None
                continue
            assert log.damage == ""
            assert [(each.event, each.led_to) for each in log.records] == kept.events
            assert [each.number for each in log.records] == list(range(1, len(kept.events) + 1))
            assert log.begins == kept.first.begins
            assert list(log.messages) == kept.messages
            assert sorted(log.outcomes, key=repr) == sorted(kept.outcomes, key=repr)
            assert log.end == kept.end
            assert log.takings_up == kept.takings_up
        assert list(self.reader.set_aside()) == []

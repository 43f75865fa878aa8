"""One request of the play of recovery: its session and its writes, and beside them what its journal must have of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextvars import Context
from typing import Any, Protocol, cast

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.journal.journal_records import Beginning, Needs, RequestEnd, RequestLog
from callboard.actors.journal.outbox import Outbox
from callboard.actors.kernel import Down, ExitReason, Ref
from callboard.actors.kernel.reply import Reply as Confirmation
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Answer, Question
from callboard.actors.requests.write_ahead import SECOND_LOOK_SECONDS, WRITTEN_WITHIN_SECONDS, WriteAhead
from callboard.actors.running import StartedRequest
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.testing.told_truly import Told, error_of, failures_of, notes_of, replied_wrongly
from callboard.protocol.command_lines import led_to
from callboard.protocol.commands import CallModel, Command, Finish, RecordCompaction, RecordStep
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import CallboardError, OutcomeUnknown, ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    Event,
    ModelStreamed,
    RequestStarted,
    ToolCallDeferred,
    ToolCallEnd,
    shifted,
)
from callboard.protocol.ids import MessageId
from callboard.protocol.machine import Session

_DECIDES = (ToolCallEnd, ApprovalGranted, ApprovalDenied, ToolCallDeferred)


class Around(Protocol):
    """What the requests of a process share."""

    outbox: Outbox
    scheduler: SimulatedScheduler
    summaries: dict[str, Compacted]
    """What is left out of the prompts of each conversation, by the journal."""
    known: set[str]
    """The conversations that this process has written."""

    @property
    def has_room(self) -> bool: ...

    def now(self) -> float: ...

    def wall(self) -> float: ...

    def wrong(self, what: str) -> None: ...


class Address:
    """Where a session is told what became of its writes."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def tell_control(self, message: object) -> None:
        """As a Ref."""
        self.heard.append(message)


class Due(Struct, eq=False):
    """What the journal must have of a request."""

    events: list[Event] = field(default_factory=list)
    led_to: list[tuple[str, ...]] = field(default_factory=list)
    messages: list[tuple[MessageId, Message]] = field(default_factory=list)
    outcomes: list[Event] = field(default_factory=list)
    end: RequestEnd | None = None
    takings_up: int = 0
    has_begun: bool = False


class Wanted(Struct, eq=False):
    """What one handing over is to write."""

    talk: Talk
    number: int
    events: tuple[Event, ...]
    led_to: tuple[str, ...] = ()
    messages: tuple[tuple[MessageId, Message], ...] = ()
    compacted: Compacted | None = None
    end: RequestEnd | None = None
    is_heard: bool = True
    """Its session hears of it."""

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.number + len(self.events) - 1

    def apply(self) -> None:
        """It is durable."""
        due, new = self.talk.due, self.events[max(len(self.talk.due.events) - self.number + 1, 0) :]
        if len(new) == len(self.events):
            due.messages += self.messages
        due.has_begun |= bool(new)
        due.events += new
        due.led_to += [self.led_to if place == len(new) else () for place, _ in enumerate(new, 1)]
        if new or (not self.events and self.end is None):
            due.takings_up = 0
        if self.compacted is not None:
            self.talk.world.summaries[self.talk.conversation.id] = self.compacted
        due.end = due.end or self.end


class Held(Struct, eq=False):
    """An event that waits, and what it led to."""

    number: int
    event: Event
    given: tuple[Command, ...]
    since: float
    confirms: Confirmation[bool] | None = None


class Talk:
    """See the module. `script`: the events of the request, as a run without a journal has had them."""

    def __init__(
        self,
        world: Around,
        script: Sequence[Event],
        conversation: Conversation,
        needs: Needs,
        metadata: dict[str, str],
    ) -> None:
        started = script[0]
        assert isinstance(started, RequestStarted)
        self.world, self.script, self.needs, self.metadata = world, script, needs, metadata
        self.request_id = started.tag.request_id
        self.place = 0
        """In the script: what happens next."""
        self.counts: list[int] = []
        """How many events a journal has after each of the script."""
        self.delta = 0.0
        """The clock of the session is so far ahead of that of the script."""
        self.session: Any = Session() if needs.direct is None else DirectCall(needs.direct)
        self.conversation = conversation
        self.history_ids = conversation.ids
        self.due = Due()
        self.address = Address()
        self.held: list[Held] = []
        self.told: list[Told] = []
        self.steps: list[int] = []
        """How much had been told after each event of the script."""
        self.handed = self.named = 0
        """Events, and messages, that were handed over."""
        self.begins: Beginning | None = None
        self.is_over = False
        """Nothing more happens to it in this process."""
        self.opened: StartedRequest[object] | None = None
        question = Question(
            started.tag, started.history, started.user, started.options, started.at, Context(),
            metadata=metadata, compacted=started.compacted,
        )  # fmt: skip
        conversation.take(self.request_id)
        self.answer: Answer[Any] = Answer(conversation, started.tag, started.options.timeout_seconds)
        self.ahead = WriteAhead(question, conversation, world.outbox, needs)
        self.ahead.begin(self._ref)

    @property
    def started(self) -> RequestStarted:
        """Its first event, by the clock of the script."""
        started = self.script[0]
        assert isinstance(started, RequestStarted)
        return started

    @property
    def _ref(self) -> Ref[Any]:
        return cast("Ref[Any]", self.address)

    @property
    def has_more(self) -> bool:
        """Something is still to happen to it in this process."""
        return not self.is_over and self.place < len(self.script)

    def wrong(self, what: str) -> None:
        """Say it."""
        self.world.wrong(f"{self.request_id}: {what}")

    # -- it goes on

    def step(self) -> Wanted | None:
        """The next of its events. Returns what is to be written."""
        event = shifted(self.script[self.place], self.delta)
        journaled = self.session.to_journal(event)
        try:
            given = self.session.apply(event)
        except ProtocolError:  # a time that is not exact by another clock
            self.is_over = True
            return None
        number = self.handed + 1
        now = self.world.now()
        try:
            is_held = self.ahead.holds(event, journaled, given, now)
        except CallboardError as error:
            if self.world.has_room:
                self.wrong(f"there is room for its write, and it is refused: {error}")
            self.is_over = True
            self.handed += len(journaled)
            self.told += [event, *given]
            return self.give_up(f"overloaded {self.request_id}") if self.handed > len(journaled) else None
        if journaled and not self.world.has_room:
            self.wrong("more waits than may, and it is not refused")
        self.place += 1
        self.handed += len(journaled)
        self.counts.append(self.handed)
        self.told += [event, *given]
        self.steps.append(len(self.told))
        if is_held != bool(journaled or self.held):
            self.wrong(f"{type(event).__name__} {'waits' if is_held else 'does not wait'} for the journal")
        if is_held:
            self.held.append(Held(self.handed, event, given, now))
        else:
            self._act(event, given)
        return self._wanted(number, journaled, given) if journaled else None

    def _wanted(self, number: int, journaled: Sequence[Event], given: tuple[Command, ...]) -> Wanted:
        ahead = self.world.wall() - self.world.now()
        wanted = Wanted(self, number, tuple(shifted(each, ahead) for each in journaled), led_to(given))
        if isinstance(first := journaled[0], RequestStarted):
            parent = self.history_ids[-1] if self.history_ids else None
            model = first.options.model
            self.begins = Beginning(self.conversation.id, parent, first.at + ahead, model, self.needs, self.metadata)
            if first.compacted != Compacted():
                wanted.compacted = first.compacted
        for command in given:
            if isinstance(command, RecordStep):
                wanted.messages += self._named(command.messages)
            elif isinstance(command, RecordCompaction):
                wanted.compacted = command.compacted
            elif isinstance(command, Finish):
                wanted.end = self._end(command)
        return wanted

    def _named(self, added: tuple[Message, ...]) -> tuple[tuple[MessageId, Message], ...]:
        if not self.named and self.started.user.parts:
            added = (self.started.user, *added)
        first, self.named = self.named, self.named + len(added)
        return tuple(
            (MessageId(f"{self.request_id}/{number or 'user'}"), message) for number, message in enumerate(added, first)
        )

    def _end(self, finish: Finish | None, failure: str = "") -> RequestEnd:
        error: Any = error_of(self.told)
        told = self.told
        return RequestEnd(self.world.wall(), finish, notes_of(told), failures_of(told), error, failure)

    def give_up(self, why: str) -> Wanted | None:
        """Its session ends without a Finish."""
        waiting = [each.confirms for each in self.held if each.confirms is not None]
        has_ended = any(isinstance(command, Finish) for each in self.held for command in each.given)
        wanted = Wanted(self, self.handed + 1, (), end=self._end(None, why), is_heard=False)
        self.ahead.give_up(why)
        self.ahead.give_up("once more")  # says it once
        self.is_over = True
        for confirms in waiting:
            if not (confirms.done and isinstance(confirms._error, OutcomeUnknown)):
                self.wrong("who waits for its write is not told that it is unsure")
        return None if has_ended or not self.handed else wanted

    def goes_on(self) -> Wanted:
        """It was taken up, and waits."""
        self.ahead.goes_on()
        return Wanted(self, self.handed + 1, ())

    def confirm(self) -> None:
        """Somebody wants to know when the last of it is durable."""
        confirms = Confirmation[bool](self.world.scheduler.block_until)
        given = self.ahead.confirmation(confirms)
        if self.held:
            self.held[-1].confirms = confirms
            if given is not confirms or confirms.done:
                self.wrong("who asks for what waits is not told to wait")
        elif given is not True or not confirms.done:
            self.wrong("all of it is durable, and who asks is not told so")

    def look(self) -> None:
        """What others ask of what waits."""
        ahead, held, now = self.ahead, self.held, self.world.now()
        step = self.session.step
        tags = [*self.session.calls, *(each.event.tag for each in held)]
        oldest = held[0].since if held else None
        same = {
            "waits": (ahead.waits, bool(held)),
            "has begun": (ahead.has_begun, self.handed > 0),
            "holds its model call": (
                ahead.holds_model_call(step),
                any(isinstance(each, CallModel) and each.tag == step for one in held for each in one.given),
            ),
            "is behind": (
                [ahead.is_behind(tag) for tag in tags],
                [any(tag in (one.event.tag, *(each.tag for each in one.given)) for one in held) for tag in tags],
            ),
            "is decided": (
                [ahead.is_decided(tag) for tag in tags],
                [any(isinstance(one.event, _DECIDES) and one.event.tag == tag for one in held) for tag in tags],
            ),
        }  # fmt: skip
        if oldest is None or abs(now - oldest - WRITTEN_WITHIN_SECONDS) > SECOND_LOOK_SECONDS:
            same["is late"] = ahead.is_late(now), oldest is not None and now - oldest > WRITTEN_WITHIN_SECONDS
        for what, (found, due) in same.items():
            if found != due:
                self.wrong(f"{what}: {found}, where {due} was due")

    # -- what the journal says

    def durable(self, up_to: int) -> None:
        """It is written."""
        free = self.ahead.durable(up_to)
        due, self.held = [each for each in self.held if each.number <= up_to], self.held[:]
        self.held = [each for each in self.held if each.number > up_to]
        found = [(each.event, each.given, each.confirms) for each in free]
        if found != [(each.event, each.given, each.confirms) for each in due]:
            self.wrong(f"with {up_to} events durable {len(free)} may be acted on, not {len(due)}")
        for each in free:
            if each.confirms is not None:
                each.confirms.answer(True)
            self._act(each.event, each.given)
            if each.recorded is not None:
                each.recorded()
            if any(isinstance(command, RecordStep) for command in each.given):
                self.world.known.add(self.conversation.id)

    def _act(self, event: Event, given: tuple[Command, ...]) -> None:
        subscriber: Any = self.answer if self.opened is None else self.opened.subscriber
        subscriber(event)
        for command in given:
            if isinstance(command, RecordStep):
                asked = () if self.conversation.of_request or not self.started.user.parts else (self.started.user,)
                self.conversation.record((*asked, *command.messages), self.request_id)
            elif isinstance(command, RecordCompaction):
                self.conversation.record(command.compacted, self.request_id)
            subscriber(command)
            if isinstance(command, Finish):
                self._finished(command)

    def _finished(self, finish: Finish) -> None:
        self.is_over = True
        self.answer.session_ended(Down(self._ref, ExitReason.NORMAL))
        end: Any
        try:
            end = self.answer.future.result()
        except CallboardError as error:
            end = error
        messages = tuple(message for _, message in self.due.messages)
        for wrong in replied_wrongly(self.told, finish, messages, end):
            self.wrong(wrong)
        ids = (*self.history_ids, *(own for own, _ in self.due.messages))
        if self.conversation.ids != ids:
            self.wrong(f"the ids of its messages are {self.conversation.ids}")

    def failed(self) -> None:
        """Something of it was not written: it ends in this process."""
        self.ahead.close()
        self.ahead.give_up("it is said by others")
        self.is_over = True
        self.held.clear()

    # -- the next process

    def process_dies(self) -> None:
        """What the journal does not have did not happen."""
        durable = len(self.due.events)
        # What was streamed behind the last durable event comes again.
        self.place = next((n for n, count in enumerate(self.counts, 1) if count == durable), 0) if durable else 0
        del self.counts[self.place :], self.steps[self.place :]
        del self.told[self.steps[-1] if self.steps else 0 :]
        self.handed, self.named = durable, len(self.due.messages)
        self.held.clear()
        self.is_over = self.due.end is not None or not durable
        self.opened = None

    def taken_up(self, opened: StartedRequest[object], ahead_seconds: float) -> None:
        """The next process goes on with it. `ahead_seconds`: by how much its clock is ahead of the journal's times."""
        assert opened.rebuilt is not None
        self.opened, self.answer, self.conversation = opened, opened.answer, opened.answer.conversation
        self.session = opened.rebuilt.taken_up.session
        self.is_over = False
        self.delta = self.due.events[0].at + ahead_seconds - self.script[0].at
        self.address = Address()
        ahead = opened._write_ahead()
        assert ahead is not None
        self.ahead = ahead
        self.ahead.begin(self._ref)

    # -- compared

    def compare(self, log: RequestLog | None) -> Iterator[str]:
        """What the journal has of it, and is not to have, or the other way round."""
        due = self.due
        if log is None:
            if due.has_begun:
                yield "the journal has nothing of it"
            return
        if not due.has_begun:
            yield f"the journal has {log!r:.200}, and nothing was to be written"
            return
        numbers = [record.number for record in log.records]
        same = {
            "its events": ([record.event for record in log.records], due.events),
            "their numbers": (numbers, [*range(1, len(numbers) + 1)]),
            "the commands": ([record.led_to for record in log.records], due.led_to),
            "its messages": (list(log.messages), due.messages),
            "the ids of its history": (log.history_ids, self.history_ids),
            "its beginning": (log.begins, self.begins),
            "the outcomes": ([each.outcome for each in log.outcomes], due.outcomes),
            "how often it was taken up": (log.takings_up, due.takings_up),
            "its end": (_told(log.end), _told(due.end)),
        }
        for what, (found, expected) in same.items():
            if found != expected:
                yield f"{what}: the journal has {found!r:.300}, where {expected!r:.300} was due"


def _told(end: RequestEnd | None) -> RequestEnd | None:
    """Without when it was said that it failed."""
    if end is None or not end.failure:
        return end
    return replace(end, ended_at=0.0)


def without_streamed(events: Sequence[Event]) -> int:
    """How many events count as acted on."""
    return sum(not isinstance(each, ModelStreamed) for each in events)

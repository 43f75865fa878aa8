"""What every store of the journal must do, as tests: a class of tests of a store inherits from `StoreContract`.

Such a class has a fixture `new_store`: each call gives a store that is not open yet, of the same storage.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.journal_writes import (
    ANSWER,
    TAG,
    an_effect,
    begin,
    finished,
    message,
    request_id,
    started,
    tool_offer,
    writes_of,
)

from callboard.actors.journal.journal_records import (
    Change,
    EffectWrite,
    Needs,
    NewMessage,
    RequestEnd,
    Write,
    without_keys,
)
from callboard.actors.journal.journal_store import ChangeRefused, JournalReader, JournalWriter
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import ToolCall
from callboard.protocol.events import Event, RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, ToolName
from callboard.protocol.testing import Scenario, drive
from callboard.protocol.testing.strategies import scenarios

NewStore = Callable[[], JournalWriter]


def committed(store: JournalWriter, *batch: Change) -> Sequence[ChangeRefused | None]:
    return store.commit(batch)


def events_of(reader: JournalReader, which: RequestId) -> tuple[Event, ...]:
    log = reader.request(which)
    assert log is not None
    assert log.damage == ""
    assert [each.number for each in log.records] == list(range(1, len(log.records) + 1))
    return tuple(each.event for each in log.records)


class StoreContract:
    @pytest.fixture
    def store(self, new_store: NewStore) -> Iterable[JournalWriter]:
        store = new_store()
        store.open()
        yield store
        store.close()

    @pytest.fixture
    def reader(self, store: JournalWriter) -> Iterable[JournalReader]:
        reader = store.reader()
        yield reader
        reader.close()

    def test_nothing_is_there_at_first(self, store: JournalWriter, reader: JournalReader) -> None:
        assert reader.request(request_id("absent")) is None
        assert reader.open_requests() == ()
        assert list(reader.set_aside()) == []
        assert store.take_up() == ()
        assert store.may_act()

    @settings(
        deadline=None,
        max_examples=15,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(scenario=scenarios(3, 3, restarts=False), seed=st.integers(0, 2**32))
    def test_what_was_written_is_read_back(
        self, store: JournalWriter, reader: JournalReader, scenario: Scenario, seed: int
    ) -> None:
        which = request_id()
        events = [event for event in drive(scenario, seed).applied]
        batch = list(writes_of(which, events))
        assert store.commit(batch) == [None] * len(batch)
        # The driver's own events carry its own request id, which the store does not look into.
        log = reader.request(which)
        assert log is not None
        assert log.damage == ""
        kept = [
            replace(event, options=without_keys(event.options)) if isinstance(event, RequestStarted) else event
            for event in events
        ]
        assert [each.event for each in log.records] == kept, "all but the headers of its options, which are keys"
        assert [each.led_to for each in log.records] == [write.led_to for write in batch for _ in write.events]

    def test_all_that_a_request_begins_with_comes_back(self, store: JournalWriter, reader: JournalReader) -> None:
        needs = Needs(
            {"own": "digest"}, "Title", "o200k", True, ToolCall(CallId("c"), ToolName("t"), "{}"), ("x-team",)
        )
        first = begin("a", needs=needs, metadata={"user": "Ada \N{SNOWMAN}"})
        committed(store, first)
        log = reader.request(first.request_id)
        assert log is not None
        assert log.begins == first.begins
        assert log.end is None
        assert log.takings_up == 0
        assert reader.open_requests() == (first.request_id,)

    def test_history_and_tools_come_back_with_the_first_event(
        self, store: JournalWriter, reader: JournalReader
    ) -> None:
        tools = (tool_offer("one"), tool_offer("two"))
        question, answer = message("hello"), message("hi", answer=True)
        conversation = begin("a", tools=tools)
        earlier = (
            NewMessage(MessageId("m1"), None, question),
            NewMessage(MessageId("m2"), MessageId("m1"), answer),
        )
        committed(store, conversation)
        committed(store, finished("a", 2, messages=earlier))
        first = begin("b", history=(question, answer), parent=MessageId("m2"), tools=tools)
        committed(store, first)
        assert events_of(reader, first.request_id) == first.events
        log = reader.request(conversation.request_id)
        assert log is not None
        assert log.messages == ((MessageId("m1"), question), (MessageId("m2"), answer))

    def test_a_history_that_is_not_there_is_damage_and_not_a_shorter_history(
        self, store: JournalWriter, reader: JournalReader
    ) -> None:
        first = begin("a", history=(message("x"),), parent=MessageId("absent"))
        committed(store, first)
        log = reader.request(first.request_id)
        assert log is not None
        assert "'absent' of the conversation is missing" in log.damage
        assert log.records == ()

    def test_what_is_written_twice_is_there_once(self, store: JournalWriter, reader: JournalReader) -> None:
        first, second = begin("a"), Write(request_id("a"), 2, (ANSWER,), conversation_id="c")
        committed(store, first, second)
        assert committed(store, first, second, second) == [None, None, None]
        assert events_of(reader, first.request_id) == (*first.events, ANSWER)

    def test_an_ended_request_does_not_open_again(self, store: JournalWriter, reader: JournalReader) -> None:
        first, last = begin("a"), finished("a", 2)
        committed(store, first, last)
        committed(store, first)
        assert reader.open_requests() == ()
        log = reader.request(first.request_id)
        assert log is not None
        assert log.end == last.ends

    def test_another_event_under_the_same_number_is_refused_and_the_rest_is_written(
        self, store: JournalWriter, reader: JournalReader
    ) -> None:
        committed(store, begin("a"), Write(request_id("a"), 2, (ANSWER,)))
        other = Write(request_id("a"), 2, (started("a"),))
        refused = committed(store, begin("b"), other, Write(request_id("b"), 2, (ANSWER,)))
        assert [each is None for each in refused] == [True, False, True]
        assert events_of(reader, request_id("a"))[1] == ANSWER
        assert len(events_of(reader, request_id("b"))) == 2

    def test_an_end_comes_back_whole(self, store: JournalWriter, reader: JournalReader) -> None:
        last = finished("a", 2)
        failed = Write(request_id("b"), 2, (), ends=RequestEnd(3.5, None, failure="the tool 'x' is missing"))
        committed(store, begin("a"), begin("b"), last, failed)
        for each in (last, failed):
            log = reader.request(each.request_id)
            assert log is not None
            assert log.end == each.ends
        assert reader.open_requests() == ()

    def test_the_end_of_a_request_that_never_began_is_refused_and_its_id_is_free(
        self, store: JournalWriter, reader: JournalReader
    ) -> None:
        """A journal that fails at a request's first write says later that it has ended: it may be there, or not."""
        ended = RequestEnd(3.5, None, failure="the disk is full")
        unknown, here = (Write(request_id(name), 1, (), ends=ended) for name in ("unknown", "here"))
        refused = committed(store, unknown, begin("here"), here, begin("other"))
        assert [each is None for each in refused] == [False, True, True, True]
        assert reader.request(request_id("unknown")) is None
        assert reader.open_requests() == (request_id("other"),)
        committed(store, begin("unknown"), finished("unknown", 2))
        log = reader.request(request_id("unknown"))
        assert log is not None
        assert log.end == finished("unknown", 2).ends

    def test_open_requests_come_the_oldest_first(self, store: JournalWriter, reader: JournalReader) -> None:
        committed(store, begin("young", at=9.0), begin("old", at=1.0), begin("middle", at=5.0))
        assert reader.open_requests() == tuple(map(request_id, ("old", "middle", "young")))

    def test_ids_may_be_any_text(self, store: JournalWriter, reader: JournalReader) -> None:
        names = ["ä/\\u00e4", "\x00\ud800", "a'; --", "\\x00"]
        committed(store, *(begin(name, at=float(place)) for place, name in enumerate(names)))
        assert reader.open_requests() == tuple(map(request_id, names))
        for name in names:
            log = reader.request(request_id(name))
            assert log is not None
            assert log.damage == ""

    def test_what_was_done_to_a_conversation_is_kept(self, store: JournalWriter) -> None:
        committed(store, begin("a"))
        compacted = Write(request_id("a"), 2, (ANSWER,), conversation_id="c", compacted=Compacted(cleared=1))
        assert committed(store, compacted, compacted) == [None, None]

    # Taking up

    def test_what_an_earlier_process_left_open_is_taken_up_once(self, new_store: NewStore) -> None:
        first = new_store()
        first.open()
        committed(first, begin("a", at=1.0), begin("b", at=2.0), begin("ended"), finished("ended", 2))
        assert first.take_up() == ()
        first.close()
        second = new_store()
        second.open()
        reader = second.reader()
        try:
            assert second.take_up() == (request_id("a"), request_id("b"))
            assert second.take_up() == ()
            assert self._takings(reader, "a") == 1
        finally:
            reader.close()
            second.close()
        third = new_store()
        third.open()
        reader = third.reader()
        try:
            third.take_up()
            assert self._takings(reader, "a") == 2
            committed(third, Write(request_id("a"), 2, (ANSWER,)))
            assert self._takings(reader, "a") == 0
            assert self._takings(reader, "b") == 2
        finally:
            reader.close()
            third.close()

    @staticmethod
    def _takings(reader: JournalReader, name: str) -> int:
        log = reader.request(request_id(name))
        assert log is not None
        return log.takings_up

    # Effects

    def test_the_outcome_of_a_transaction_is_there_once(self, store: JournalWriter, reader: JournalReader) -> None:
        effect = an_effect("a")
        assert committed(store, begin("a"), effect) == [None, None]
        assert committed(store, effect) == [None], "given again, it is written once"
        again = EffectWrite(effect.tag, replace(effect.outcome, at=effect.outcome.at + 1.0), effect.statements)
        (refused,) = committed(store, again)
        assert isinstance(refused, ChangeRefused), "another run of the call"
        assert "has an outcome already" in str(refused)
        log = reader.request(effect.tag.request_id)
        assert log is not None
        assert log.outcomes == (EffectWrite(effect.tag, effect.outcome),)

    def test_an_outcome_is_of_its_call_however_long_the_id_is(
        self, store: JournalWriter, reader: JournalReader
    ) -> None:
        # Random, since a database may compress its keys.
        alphabet, chosen = string.ascii_letters + string.digits, random.Random(0)
        long = "".join(chosen.choices(alphabet, k=10_000))
        effects = [an_effect("a", call=long + end) for end in ("", "x")]
        assert committed(store, begin("a"), *effects) == [None, None, None]
        later = [replace(each, outcome=replace(each.outcome, at=99.0)) for each in effects]
        assert [isinstance(each, ChangeRefused) for each in committed(store, *later)] == [True, True]
        log = reader.request(request_id("a"))
        assert log is not None
        assert {each.tag.call_id for each in log.outcomes} == {long, f"{long}x"}

    def test_tags_are_kept(self, store: JournalWriter, reader: JournalReader) -> None:
        first = begin("a")
        committed(store, first)
        (event,) = events_of(reader, first.request_id)
        assert event.tag == TAG._replace(request_id=first.request_id)

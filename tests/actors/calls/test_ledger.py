"""The ledger alone: every call ends once, none is forgotten, no limit is passed, and each tool's calls go in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.examples import examples

from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import (
    MAX_GIVEN,
    TRANSITIONS,
    Call,
    CallReports,
    CallState,
    EndedCalls,
    Ending,
    Happening,
    Ledger,
    Outcome,
    Pool,
    WorkerState,
    may_go_elsewhere,
    may_go_on,
    not_begun,
)
from callboard.actors.journal.journal_records import EffectWrite, Statement
from callboard.actors.journal.outbox import CommitEffect, Outbox
from callboard.actors.journal.transactions import CallEffect
from callboard.actors.testing.whole_run import left_open
from callboard.protocol.commands import RunTool
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import Deferred, FailureCode, ToolContract, ToolFailure

TOOLS = {"a": 1, "b": 2, "c": 5}
PLACED = (CallState.RUNNING, CallState.ENDING, CallState.KILLED)
"""A worker has the call."""
CRASHED = ToolFailure(ToolName("a"), FailureCode.CRASHED, "gone")
SESSION: Any = object()
"""The ledger keeps addresses and never uses them."""


class Heard:
    """An address that keeps what it is sent."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def tell_control(self, message: object) -> None:
        self.heard.append(message)


def ends(call: Call, room: int, outcome: Outcome = '"x"', at: float = 1.0) -> ToolCallEnd | None:
    """At its worker, which has this room from then on."""
    if call.seat is not None:
        call.seat.take(room)
    return call.end(outcome, "", at)


def returned(call: Call, room: int) -> ToolCallEnd | None:
    """Its worker gives it back, and has this room from then on."""
    if call.seat is not None:
        call.seat.take(room)
    return call.end(CRASHED, "", 2.0, Happening.RETURNED)


def test_a_deferred_call_is_given_away_and_told_once() -> None:
    """Nothing of it is left here; a session that sends it once more hears the same."""
    ledger, heard = Ledger(), Heard()
    lane = ledger.lane(ToolName("a"), 1, Pool("p", 1, 1))
    seat = ledger.add_worker(lane.pool, SESSION)
    call = ledger.submit(run(1), lane, heard)  # type: ignore[arg-type]
    assert ledger.give(call, seat)
    reports = CallReports(seat, Heard(), lambda: 5.0)  # type: ignore[arg-type]
    assert reports.begin(call)
    reports.end(call, Deferred(60.0, "asked Ann"), "printed")
    reports.end(call, Deferred(60.0), "again")
    [_, told] = heard.heard
    assert told == ToolCallDeferred(run(1).tag, 5.0, 60.0, "asked Ann", "printed")
    assert not ledger.calls
    assert lane.running == 0
    assert not seat.calls
    assert call.ended.of(run(1).tag) == told


def test_a_call_that_was_stopped_before_it_could_be_deferred_has_ended() -> None:
    ledger, heard = Ledger(), Heard()
    lane = ledger.lane(ToolName("a"), 1, Pool("p", 1, 1))
    seat = ledger.add_worker(lane.pool, SESSION)
    call = ledger.submit(run(1), lane, heard)  # type: ignore[arg-type]
    ledger.give(call, seat)
    assert call.stop(Ending.TIMED_OUT)
    assert isinstance(call.end(Deferred(60.0), "", 5.0), ToolCallTimedOut)


def test_what_waits_moves_with_its_tool_and_what_runs_counts_on() -> None:
    ledger, contract = Ledger(), ToolContract(concurrency=1)
    old, new = ledger.pool("thread", 1, 4), ledger.pool("process", 1, 4)
    lane = ledger.lane(ToolName("a"), 1, old)
    calls = [ledger.submit(run(number), lane, Heard()) for number in range(3)]  # type: ignore[arg-type]
    seat = ledger.add_worker(old, SESSION)
    assert ledger.give(calls[0], seat)
    assert calls[0].end("late", "", 1.0, Happening.BEGUN) is None
    lane.move(new, contract)
    assert (old.waiting, list(new.waiting), new.next_call()) == ({}, [lane], None)
    calls[0].code_begins()
    assert lane.home is None, "it is open where no call of the tool comes any more"
    assert ledger.end_unwanted({"process"}) == []
    calls[0].end("done", "", 1.0)
    assert new.next_call() is calls[1]
    assert ledger.end_unwanted({"process"}) == [old]
    again = ledger.pool("thread", 1, 4)
    assert (old.name, again.name, again.is_wanted) == ("thread", "thread-2", True)
    for call in calls[1:]:
        call.end(CRASHED, "", 2.0)
    assert not new.waiting


def run(number: int, tool: str = "a") -> RunTool:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId(str(number)))
    return RunTool(tag, ToolName(tool), "{}", 30.0, f"effect-{number}")


class Book:
    """A ledger with one pool."""

    def __init__(self, room: int = 2, max_workers: int = 2) -> None:
        self.ledger: Ledger = Ledger()
        self.pool = Pool("pool", room, max_workers)
        self.workers = 0

    def submit(self, number: int, tool: str = "a", session: Any = SESSION) -> Call:
        lane = self.ledger.lane(ToolName(tool), TOOLS[tool], self.pool)
        return self.ledger.submit(run(number, tool), lane, session)

    def give(self) -> Call | None:
        """What the dispatcher does where there is room."""
        call = self.pool.next_call()
        if call is not None:
            if not self.pool.free:
                self.workers += 1
                name: Any = self.workers  # the ledger only compares addresses
                self.ledger.add_worker(self.pool, name)
            assert self.ledger.give(call, next(reversed(self.pool.free)))
        return call

    def lose(self, worker: int, outcome: Outcome = CRASHED, printed: str = "") -> list[ToolCallEnd]:
        """What the dispatcher does when a worker is gone."""
        calls = self.ledger.lose(self.ledger.seats[worker])  # type: ignore[index]
        ends = [call.end(outcome, printed, 2.0, Happening.LOST) for call in calls]
        return [end for end in ends if end is not None]

    def reports(self, worker: int, dispatcher: Any) -> CallReports:
        """Of one of its workers."""
        return CallReports(self.ledger.seats[worker], dispatcher, lambda: 1.0)  # type: ignore[index]

    def waiting(self, tool: str) -> list[Call]:
        """Those in the queue of a tool."""
        lane = self.ledger.lanes.get(ToolName(tool))
        return [call for _, call in lane.waiting] if lane is not None else []

    def running(self) -> Call:
        """One call that has begun."""
        call = self.submit(0)
        self.give()
        assert call.enter(Happening.BEGUN)
        return call


def test_the_table_names_every_happening_and_the_end_is_final() -> None:
    assert set(TRANSITIONS) == set(CallState)
    assert {happening for rows in TRANSITIONS.values() for happening in rows} == set(Happening)
    assert not TRANSITIONS[CallState.ENDED]
    assert all(rows[-1].state in CallState for each in TRANSITIONS.values() for rows in each.values())
    assert TRANSITIONS[CallState.RUNNING][Happening.LOST][0][:2] == (may_go_elsewhere, CallState.QUEUED)
    assert TRANSITIONS[CallState.RUNNING][Happening.RETURNED][0][:2] == (may_go_on, CallState.QUEUED)
    assert TRANSITIONS[CallState.RUNNING][Happening.BEGUN][0][:2] == (not_begun, CallState.RUNNING)


@pytest.mark.parametrize("state", list(CallState))
@pytest.mark.parametrize("happening", list(Happening))
def test_what_has_no_row_changes_nothing(state: CallState, happening: Happening) -> None:
    book = Book()
    call = book.submit(0)
    if state is not CallState.QUEUED:
        book.give()
    if state in (CallState.ENDING, CallState.KILLED):
        assert call.stop(Ending.CANCELLED)
    if state is CallState.KILLED:
        assert call.enter(Happening.KILLED)
    if state is CallState.ENDED:
        call.end('"x"', "", 1.0)
    assert call.state is state
    changed = call.enter(happening)
    assert changed == (happening in TRANSITIONS[state])
    assert changed or call.state is state


@pytest.mark.parametrize(
    ("why", "outcome", "kind"),
    [
        (None, '"x"', ToolCallCompleted),
        (None, CRASHED, ToolCallFailed),
        (None, Ending.CANCELLED, ToolCallCancelled),
        (Ending.TIMED_OUT, '"x"', ToolCallTimedOut),
        (Ending.TIMED_OUT, CRASHED, ToolCallTimedOut),
        (Ending.CANCELLED, '"x"', ToolCallCancelled),
        (Ending.CANCELLED, Ending.TIMED_OUT, ToolCallCancelled),
    ],
)
def test_how_a_call_ends(why: Ending | None, outcome: Any, kind: type[ToolCallEnd]) -> None:
    book = Book()
    call = book.running()
    if why is not None:
        assert call.stop(why)
        assert not call.stop(Ending.CANCELLED), "the first reason counts"
    event = call.end(outcome, "printed", 3.0)
    assert isinstance(event, kind)
    assert (event.at, event.output) == (3.0, "printed")
    assert call.end(outcome, "", 4.0) is None
    assert book.ledger.news.popleft() == (call, event)
    assert not left_open(book.ledger)


def test_a_call_begins_once_and_its_start_is_told_once() -> None:
    book, session, dispatcher = Book(), Heard(), Heard()
    call = book.submit(0, session=session)
    book.give()
    blocked = book.reports(1, dispatcher)
    assert blocked.begin(call)
    assert not call.enter(Happening.BEGUN)
    blocked.state(0)
    blocked.give_back(call, "its loop was blocked")
    assert call.state is CallState.QUEUED
    assert book.give() is call
    assert call.seat is not None
    assert call.seat.worker == 2, "the first one takes no calls any more"
    assert book.reports(2, dispatcher).begin(call)
    assert session.heard == [ToolCallStarted(call.run.tag, 1.0)]
    assert dispatcher.heard == [WorkerState(blocked.seat)] * 2


def test_the_dispatcher_is_told_once_of_calls_that_end_before_it_looks() -> None:
    book, dispatcher = Book(room=10), Heard()
    calls = [book.submit(number, "c", Heard()) for number in range(4)]
    while book.give() is not None:
        pass
    reports = book.reports(1, dispatcher)
    for call in calls[:3]:
        reports.end(call, '"x"')
    assert dispatcher.heard == [WorkerState(reports.seat)]
    assert [ended for ended, _ in book.ledger.news] == calls[:3]
    book.ledger.news.clear()
    reports.end(calls[3], '"x"')
    assert len(dispatcher.heard) == 2, "since it has looked"


def test_a_worker_that_is_lost_takes_no_call_whatever_it_says_afterwards() -> None:
    book = Book()
    call = book.running()
    reports = book.reports(1, Heard())
    assert len(book.lose(1)) == 1
    reports.state(2)
    reports.end(call, '"x"')
    assert not book.pool.free
    book.submit(1)
    book.give()
    assert list(book.ledger.seats) == [2]


def test_a_call_that_is_being_committed_is_neither_stopped_nor_lost_with_its_worker() -> None:
    book, dispatcher, session = Book(), Heard(), Heard()
    call = book.submit(0, session=session)
    effect = call.effect = CallEffect(call.run, outbox := Outbox("test", wall_clock=lambda: 1_000.0))
    book.give()
    reports = book.reports(1, dispatcher)
    assert reports.begin(call)
    effect.statements.execute("one", ("two",))
    reports.end(call, "paid", "printed")
    reports.end(call, "paid again")
    assert not call.stop(Ending.TIMED_OUT)
    assert book.lose(1) == []
    assert call.state is CallState.RUNNING
    tag = call.run.tag
    done = ToolCallCompleted(tag, 1_000.0, "paid", "printed")
    written = EffectWrite(tag, done, (Statement("one", ("two",)),))
    assert outbox.look(9) == (CommitEffect(written, reports.dispatcher),)
    assert call.end(*effect.settled(None), 3.0) == ToolCallCompleted(tag, 3.0, "paid", "printed")


def test_a_call_that_is_stopped_or_lost_commits_nothing_afterwards() -> None:
    for happens in (lambda call: call.stop(Ending.CANCELLED), lambda call: call.end(CRASHED, "", 2.0, Happening.LOST)):
        book = Book()
        call = book.submit(0, session=Heard())
        book.give()
        assert book.reports(1, Heard()).begin(call)
        call.effect = CallEffect(call.run, outbox := Outbox("test"))
        happens(call)
        book.reports(1, Heard()).end(call, "paid")
        assert call.state is CallState.ENDED
        assert outbox.look(9) == ()


def test_a_call_that_is_being_ended_does_not_begin_and_ends_when_it_is_given_back() -> None:
    book = Book()
    call = book.submit(0)
    book.give()
    assert call.stop(Ending.TIMED_OUT)
    assert not call.enter(Happening.BEGUN)
    assert isinstance(returned(call, 2), ToolCallTimedOut)


def test_a_call_goes_to_so_many_workers_and_no_more() -> None:
    book, session = Book(max_workers=100), Heard()
    call = book.submit(0, session=session)
    for number in range(1, MAX_GIVEN):
        assert book.give() is call
        assert book.lose(number) == []
    book.give()
    book.reports(MAX_GIVEN, Heard()).give_back(call, "no child could be made")
    (event,) = session.heard
    assert isinstance(event, ToolCallFailed)
    assert event.failure.code is FailureCode.OVERLOADED
    assert "no child could be made" in event.failure.message


def test_a_worker_without_resources_ends_its_calls_and_is_given_no_other() -> None:
    book, session = Book(max_workers=1), Heard()
    for number in range(3):
        book.submit(number, "b", session=session)
    book.give(), book.give()
    book.reports(1, Heard()).no_worker(OSError("no thread"))
    assert [(type(event), event.failure.code) for event in session.heard] == [
        (ToolCallFailed, FailureCode.OVERLOADED)
    ] * 2
    assert book.give() is None
    assert book.lose(1) == []
    assert book.give() is not None


def test_a_lost_worker_ends_what_had_begun_and_frees_the_rest() -> None:
    book = Book()
    began, waits = book.submit(0, "b"), book.submit(1, "b")
    book.give(), book.give()
    assert began.enter(Happening.BEGUN)
    assert book.lose(1, CRASHED, "printed") == [ToolCallFailed(began.run.tag, 2.0, CRASHED, "printed")]
    assert waits.state is CallState.QUEUED
    assert book.give() is waits


def test_a_call_that_waits_for_its_go_ahead_goes_elsewhere_when_its_worker_is_lost() -> None:
    book, session = Book(), Heard()
    held = book.submit(0, "b", session=session)
    held.go_ahead = GoAhead()
    book.give()
    assert book.reports(1, Heard()).begin(held)
    assert book.lose(1) == []
    assert book.give() is held
    reports = book.reports(2, Heard())
    assert reports.begin(held)
    assert [type(event) for event in session.heard] == [ToolCallStarted], "it is told once"
    held.go_ahead.give()
    assert len(book.lose(2)) == 1, "its code may have run"


def test_a_deadline_before_the_go_ahead_says_that_nothing_ran_and_nothing_of_the_tool() -> None:
    book, session = Book(), Heard()
    held = book.submit(0, "b", session=session)
    held.go_ahead = GoAhead()
    book.give()
    reports = book.reports(1, Heard())
    assert reports.begin(held)
    assert held.stop(Ending.TIMED_OUT)
    reports.end(held, Ending.CANCELLED)
    event = session.heard[-1]
    assert isinstance(event, ToolCallFailed)
    assert (event.failure.code, event.failure.retry_hint) == (
        FailureCode.TIMED_OUT,
        "It had no effect. Send it again later.",
    )
    held.go_ahead.give()  # too late
    assert not held.begun, "its tool's health is judged by what had begun"


def test_a_worker_without_room_gets_no_call() -> None:
    book = Book(room=1, max_workers=2)
    first, second, third = (book.submit(number, "c") for number in range(3))
    assert (book.give(), book.give(), book.give()) == (first, second, None)
    ends(first, 0)
    assert book.give() is None, "until the worker is gone"
    book.lose(1)
    assert book.give() is third


def test_the_oldest_call_of_the_tools_that_have_room_is_next() -> None:
    book = Book(room=10)
    calls = [book.submit(number, tool) for number, tool in enumerate("aabba")]
    assert [book.give() for _ in range(4)] == [calls[0], calls[2], calls[3], None]
    ends(calls[2], 10)
    ends(calls[0], 10)
    assert book.give() is calls[1]


def test_what_a_worker_gives_back_is_first_in_its_queue() -> None:
    book = Book(room=10)
    calls = [book.submit(number, "b") for number in range(4)]
    book.give(), book.give()
    returned(calls[1], 10)
    returned(calls[0], 10)
    assert book.waiting("b") == calls
    assert [book.give(), book.give()] == calls[:2]


def test_cancelled_calls_leave_nothing_in_the_queue() -> None:
    book = Book()
    book.running()
    waiting = [book.submit(number) for number in range(1, 1_000)]
    for call in waiting:
        call.end(Ending.CANCELLED, "", 1.0)
    assert not book.pool.waiting
    assert not waiting[0].lane.waiting


def test_outcomes_of_the_latest_step_are_remembered() -> None:
    ended = EndedCalls()

    def end(step: int, number: int) -> Tag:
        tag = run(number).tag._replace(step=step)
        ended.remember(ToolCallCompleted(tag, 1.0, "x"))
        return tag

    first, second = end(1, 0), end(1, 1)
    assert None not in (ended.of(first), ended.of(second))
    assert ended.of(first._replace(call_id=CallId("other"))) is None
    third = end(2, 0)
    late = end(1, 2)
    assert [ended.of(tag) is not None for tag in (first, second, third, late)] == [False, False, True, False]


class Anything(RuleBasedStateMachine):
    """Sessions, workers and a dispatcher that do anything in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.ledger = self.book.ledger
        self.calls: list[Call] = []
        self.events: list[Tag] = []
        self.begun: list[Tag] = []
        self.given: dict[str, list[int]] = {tool: [] for tool in TOOLS}
        self.now = 0.0

    def _heard(self, event: ToolCallEnd | None) -> None:
        if event is not None:
            self.events.append(event.tag)

    def _one(self, data: st.DataObject, *states: CallState) -> Call | None:
        calls = [call for call in self.calls if call.state in states]
        return data.draw(st.sampled_from(calls)) if calls else None

    @rule(tool=st.sampled_from(sorted(TOOLS)))
    def submit(self, tool: str) -> None:
        self.calls.append(self.book.submit(len(self.calls), tool))

    @rule()
    def give(self) -> None:
        call = self.book.give()
        if call is not None:
            waiting = self.book.waiting(call.run.name)
            assert all(call.sequence < other.sequence for other in waiting), "each tool's calls go in order"

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        call = self._one(data, *CallState)
        if call is not None and call.enter(Happening.BEGUN):
            assert call.state is CallState.RUNNING
            self.begun.append(call.run.tag)

    @rule(data=st.data(), outcome=st.sampled_from(['"x"', CRASHED, Ending.CANCELLED]), room=st.integers(0, 2))
    def end(self, data: st.DataObject, outcome: Any, room: int) -> None:
        call = self._one(data, *PLACED, CallState.ENDED)
        if call is not None:
            self._heard(ends(call, room, outcome, self.now))

    @rule(data=st.data(), why=st.sampled_from(list(Ending)))
    def stop(self, data: st.DataObject, why: Ending) -> None:
        call = self._one(data, *CallState)
        if call is not None and call.seat is None:
            self._heard(call.end(why, "", self.now))
        elif call is not None:
            call.stop(why)

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        call = self._one(data, *CallState)
        if call is not None and call.enter(Happening.KILLED):
            assert not call.enter(Happening.KILLED), "it is told once"

    @rule(data=st.data(), room=st.integers(0, 2))
    def give_back(self, data: st.DataObject, room: int) -> None:
        call = self._one(data, *PLACED)
        if call is not None and not call.begun:
            self._heard(returned(call, room))

    @precondition(lambda self: self.ledger.seats)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        worker: Any = data.draw(st.sampled_from(sorted(self.ledger.seats)))
        for event in self.book.lose(worker):
            self._heard(event)
        assert worker not in self.ledger.seats

    @rule(data=st.data(), room=st.integers(0, 2))
    def room(self, data: st.DataObject, room: int) -> None:
        if self.ledger.seats:
            self.ledger.seats[data.draw(st.sampled_from(sorted(self.ledger.seats)))].take(room)  # type: ignore[index]

    @invariant()
    def no_limit_is_passed(self) -> None:
        placed = [call for call in self.calls if call.state in PLACED]
        for tool, concurrency in TOOLS.items():
            assert sum(call.run.name == tool for call in placed) <= concurrency
        assert len(self.ledger.seats) == self.book.pool.workers <= self.book.pool.max_workers
        for seat in self.ledger.seats.values():
            assert sum(call.seat is seat for call in placed) <= self.book.pool.room

    @invariant()
    def each_ends_once_and_none_is_forgotten(self) -> None:
        assert len(self.events) == len(set(self.events))
        ended = {call.run.tag for call in self.calls if call.state is CallState.ENDED}
        assert ended == set(self.events)
        assert set(self.ledger.calls) == {call.run.tag for call in self.calls} - ended
        for call in self.calls:
            if call.state is CallState.QUEUED:
                assert call in self.book.waiting(call.run.name)

    @invariant()
    def none_begins_twice(self) -> None:
        assert len(self.begun) == len(set(self.begun))

    def teardown(self) -> None:
        """Whatever has happened, all that is left can run to its end, and then nothing is left open."""
        for seat in self.ledger.seats.values():
            seat.take(self.book.pool.room)
        for _ in range(3 * len(self.calls) + 3):
            while self.book.give() is not None:
                pass
            for call in self.calls:
                if call.state in PLACED:
                    self._heard(ends(call, self.book.pool.room))
        assert {call.run.tag for call in self.calls} == set(self.events)
        assert not left_open(self.ledger)


Anything.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
test_anything_in_any_order = Anything.TestCase


@given(st.lists(st.sampled_from(sorted(TOOLS)), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_as_many_run_as_may(tools: list[str], room: int, workers: int) -> None:
    book = Book(room, workers)
    for number, tool in enumerate(tools):
        book.submit(number, tool)
    given_out = 0
    while book.give() is not None:
        given_out += 1
    assert given_out == min(room * workers, sum(min(TOOLS[tool], tools.count(tool)) for tool in TOOLS))

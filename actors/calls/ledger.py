"""The ledger of calls: where each one is, what waits for what, and what became of those that ended.

    QUEUED --> RUNNING --> ENDED                a result, a failure, or its worker was lost
       |  ^      |  '--> ENDING --> ENDED       its deadline passed, or it was cancelled
       |  '------'                              given back, or its worker was lost, before its code ran
       '--> ENDED                               its deadline passed, it was cancelled or refused

A pure object without clock and messages. It outlives the dispatchers that use it, and workers write in it, by their
CallReports, that a call begins and ends; so after a crash of either it is known which calls ran. `TRANSITIONS` is the
machine: what has no row, or a guard that disagrees, changes nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from callboard.actors.kernel import Ref
from callboard.actors.tools.invoke import Result
from callboard.protocol.commands import RunTool
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure

#: Ended calls that are remembered. One is sent twice only around a restart, when at most those now open are.
MAX_ENDED_CALLS: Final = 4_096
#: The texts of their outcomes together: sixteen of the largest results.
MAX_ENDED_CHARS: Final = 16_000_000
#: Workers that a call is given to: one that five of them could not begin has something against it.
MAX_GIVEN: Final = 5

Worker: TypeAlias = Ref
"""The address of a worker; the ledger only compares it."""
CallEvent = ToolCallStarted | ToolCallEnd
"""What a session hears of one of its calls."""


class Ending(Enum):
    """Why a call is ended that has no result yet."""

    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


Outcome = Result | Ending
"""How a call ended: its result, the failure it ended with, or that it was ended (a worker that stops cancels)."""


class CallState(StrEnum):
    """Where a call is."""

    __hash__ = str.__hash__  # that of an Enum is eight times as slow

    QUEUED = "queued"
    """It waits for its tool's turn and for room in its pool."""
    RUNNING = "running"
    """A worker has it."""
    ENDING = "ending"
    """Its worker was told to end it."""
    ENDED = "ended"


class Happening(StrEnum):
    """What can happen to a call."""

    __hash__ = str.__hash__

    GIVEN = "given"
    """To a worker."""
    BEGUN = "begun"
    """Its tool's code runs from now on."""
    RETURNED = "returned"
    """Its worker gave it back: the code did not run."""
    STOPPED = "stopped"
    """Its deadline passed, or it was cancelled, while a worker had it."""
    KILLED = "killed"
    """The grace period was over."""
    LOST = "lost"
    """Its worker is gone."""
    ENDED = "ended"
    """It has an outcome."""


# -- who has room


@dataclass(slots=True, eq=False)
class Pool:
    """The workers of one kind, and the tools that need them."""

    name: str
    room: int
    """Of a new worker."""
    max_workers: int
    workers: int = 0
    free: dict[Seat, None] = field(default_factory=dict)
    """Those that take a call now; the last used is used next, since its caches are warm."""
    waiting: dict[Lane, None] = field(default_factory=dict)
    """The tools that have calls in the queue."""

    def next_call(self) -> Call | None:
        """Which call runs next: of the tools that have room, the one that has waited longest."""
        if not self.free and self.workers >= self.max_workers:
            return None
        heads = (lane.waiting[0] for lane in self.waiting if lane.running < lane.concurrency)
        first = min(heads, default=None)
        return first[1] if first is not None else None


@dataclass(slots=True, eq=False)
class Seat:
    """One worker."""

    worker: Worker
    pool: Pool
    room: int
    calls: dict[Call, None] = field(default_factory=dict)

    def take(self, room: int | None = None) -> None:
        """It takes so many calls at the same time from now on."""
        if room is not None:
            self.room = room
        if len(self.calls) < self.room:
            self.pool.free[self] = None
        else:
            self.pool.free.pop(self, None)


@dataclass(slots=True, eq=False)
class Lane:
    """The calls of one tool."""

    pool: Pool
    concurrency: int
    running: int = 0
    waiting: list[tuple[int, Call]] = field(default_factory=list)
    """In order of their sequence."""


@dataclass(slots=True, eq=False)
class Call:
    """One call: what was asked, and where it is. Its worker writes in it that it begins and ends."""

    ledger: Ledger
    sequence: int
    run: RunTool
    lane: Lane
    user_text: str
    reply_to: Ref[CallEvent]
    asker: Context | None
    """The context of whoever asked the request; the tool runs in a copy of it. None: in an empty one."""
    due: float
    """When the dispatcher looks at it next: its deadline, then the end of its grace period."""
    state: CallState = CallState.QUEUED
    seat: Seat | None = None
    """Its worker's."""
    begun: bool = False
    was_told: bool = False
    """The session has heard that it began."""
    why: Ending | None = None
    """It was stopped."""
    killed: bool = False
    given: int = 0
    """Workers that it was given to so far."""

    def begin(self) -> bool:
        """The tool's code runs from now on. False when it must not."""
        return self.ledger.enter(self, Happening.BEGUN)

    def started(self, now: float) -> ToolCallStarted | None:
        """What its session is to hear of that, or None when it has heard it before."""
        was_told, self.was_told = self.was_told, True
        return None if was_told else ToolCallStarted(self.run.tag, now)

    def give_back(self, why: str, now: float, room: int) -> ToolCallEnd | None:
        """The code did not run, and will not at this worker. An event where the call ends with that."""
        failure = ToolFailure(self.run.name, FailureCode.OVERLOADED, f"no worker could begin {self.run.name}: {why}")
        return self.end(failure, "", now, room, Happening.RETURNED)

    def end(
        self, outcome: Outcome, printed: str, now: float, room: int, how: Happening = Happening.ENDED
    ) -> ToolCallEnd | None:
        """It has ended: what its session is to hear, or None when it has ended before. `room` is the worker's."""
        if self.seat is not None:
            self.seat.take(room)
        return self.ledger.end(self, outcome, printed, now, how)


# -- the machine


def always(_: Call) -> bool:
    """Whatever the call is."""
    return True


def its_turn(call: Call) -> bool:
    """Its tool runs fewer calls than it may at the same time, and none has waited longer."""
    return call.lane.running < call.lane.concurrency and call.lane.waiting[0][1] is call


def not_begun(call: Call) -> bool:
    """Its code runs nowhere."""
    return not call.begun


def not_killed(call: Call) -> bool:
    """Its worker was not told before to end it at once."""
    return not call.killed


def may_go_on(call: Call) -> bool:
    """Not too many workers had it."""
    return call.given < MAX_GIVEN


def may_go_elsewhere(call: Call) -> bool:
    """It has not begun, and not too many workers had it."""
    return not call.begun and may_go_on(call)


class Row(NamedTuple):
    """Where a happening leads, if the guard agrees. The first such row decides."""

    guard: Callable[[Call], bool]
    state: CallState


_QUEUED, _RUNNING, _ENDING, _ENDED = CallState
_ENDS: Final = (Row(always, _ENDED),)
TRANSITIONS: Mapping[CallState, Mapping[Happening, tuple[Row, ...]]] = MappingProxyType(
    {
        _QUEUED: {
            Happening.GIVEN: (Row(its_turn, _RUNNING),),
            Happening.ENDED: _ENDS,
        },
        _RUNNING: {
            Happening.BEGUN: (Row(not_begun, _RUNNING),),
            Happening.RETURNED: (Row(may_go_on, _QUEUED), *_ENDS),
            Happening.LOST: (Row(may_go_elsewhere, _QUEUED), *_ENDS),
            Happening.STOPPED: (Row(always, _ENDING),),
            Happening.ENDED: _ENDS,
        },
        _ENDING: {
            Happening.KILLED: (Row(not_killed, _ENDING),),
            Happening.RETURNED: _ENDS,
            Happening.LOST: _ENDS,
            Happening.ENDED: _ENDS,
        },
        _ENDED: {},
    }
)


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.calls: dict[Tag, Call] = {}
        """All that have not ended."""
        self.pools: dict[str, Pool] = {}
        self.lanes: dict[ToolName, Lane] = {}
        self.seats: dict[Worker, Seat] = {}
        """All workers that are alive, as far as is known."""
        self.ended = EndedCalls()
        self.news: deque[tuple[Call, ToolCallEnd]] = deque()
        """Calls that have ended and that no dispatcher has looked at since."""
        self.names = itertools.count(1)
        """For workers: none has the name of another."""
        self._sequence = itertools.count()

    def pool(self, name: str, room: int, max_workers: int) -> Pool:
        """The pool of this name, made when it is first asked for."""
        return self.pools.setdefault(name, Pool(name, room, max_workers))

    def lane(self, tool: ToolName, pool: Pool, concurrency: int) -> Lane:
        """Where the calls of this tool wait; made when it is first asked for."""
        return self.lanes.setdefault(tool, Lane(pool, concurrency))

    def add_worker(self, pool: Pool, worker: Worker) -> Seat:
        """A worker that takes calls."""
        seat = self.seats[worker] = Seat(worker, pool, pool.room)
        pool.workers += 1
        pool.free[seat] = None
        return seat

    # -- the way of a call

    def submit(
        self, run: RunTool, lane: Lane, reply_to: Ref[CallEvent], user_text: str = "", asker: Context | None = None
    ) -> Call:
        """A new call, in the queue of its tool. Its tag must not be that of an open one."""
        call = Call(self, next(self._sequence), run, lane, user_text, reply_to, asker, run.deadline_at)
        self.calls[run.tag] = call
        self._wait(call)
        return call

    def give(self, call: Call, seat: Seat) -> bool:
        """The call is this worker's. False when it is not its turn."""
        if not self.enter(call, Happening.GIVEN):
            return False
        call.seat = seat
        call.given += 1
        seat.calls[call] = None
        seat.take(seat.room)
        return True

    def stop(self, call: Call, why: Ending) -> bool:
        """A worker is to end it, since its deadline has passed or it is cancelled. False when it was told before."""
        if not self.enter(call, Happening.STOPPED):
            return False
        call.why = why
        return True

    def lose(self, seat: Seat) -> tuple[Call, ...]:
        """A worker is gone: its calls, for each of which `end` is to be told that it is LOST."""
        del self.seats[seat.worker]
        seat.pool.workers -= 1
        seat.take(0)
        return tuple(seat.calls)

    def end(
        self, call: Call, outcome: Outcome, printed: str, now: float, how: Happening = Happening.ENDED
    ) -> ToolCallEnd | None:
        """Apply what happened: the event for its session, if the call has ended by it and had not before."""
        if not self.enter(call, how) or call.state is not CallState.ENDED:
            return None
        event = _event(call, outcome, printed, now)
        del self.calls[call.run.tag]
        self.ended.remember(call.reply_to, event)
        self.news.append((call, event))
        return event

    def enter(self, call: Call, happening: Happening) -> bool:
        """Change the state, as the table allows and no other way; False where it does not."""
        for guard, after in TRANSITIONS[call.state].get(happening, ()):
            if guard(call):
                self._move(call, happening, after)
                return True
        return False

    def _move(self, call: Call, happening: Happening, after: CallState) -> None:
        before, call.state = call.state, after
        if happening is Happening.BEGUN:
            call.begun = True
        elif happening is Happening.RETURNED:
            call.begun = False
        elif happening is Happening.KILLED:
            call.killed = True
        if before is CallState.QUEUED:
            self._wait_no_more(call)
        elif after is CallState.QUEUED or after is CallState.ENDED:
            self._leave(call)
        if happening is Happening.GIVEN:
            call.lane.running += 1
        elif after is CallState.QUEUED:
            self._wait(call)

    def _wait(self, call: Call) -> None:
        insort(call.lane.waiting, (call.sequence, call))
        call.lane.pool.waiting[call.lane] = None

    def _wait_no_more(self, call: Call) -> None:
        waiting = call.lane.waiting
        del waiting[bisect_left(waiting, (call.sequence,))]
        if not waiting:
            del call.lane.pool.waiting[call.lane]

    def _leave(self, call: Call) -> None:
        call.lane.running -= 1
        seat, call.seat = call.seat, None
        if seat is not None:
            del seat.calls[call]
            seat.take()


# -- what a worker writes in it


@dataclass(frozen=True, slots=True)
class WorkerState:
    """For the dispatcher: a call has ended or was given back, or the room has changed; and the answer to a Report."""

    worker: Worker
    room: int
    """Calls that it takes at the same time from now on, those that it runs included."""
    holds: tuple[ToolName, ...] = ()
    """The tool of each thread that a call still holds which has ended."""


class CallReports:
    """What a worker tells of its calls: the ledger first, then the session, then the dispatcher."""

    __slots__ = ("_dispatcher", "_now", "_worker", "holds", "room")

    def __init__(self, worker: Worker, dispatcher: Ref[WorkerState], room: int, now: Callable[[], float]) -> None:
        self._worker = worker
        self._dispatcher = dispatcher
        self._now = now
        self.room = room
        self.holds: tuple[ToolName, ...] = ()

    def begin(self, call: Call) -> bool:
        """Before the tool's code can run: tell the session, once. False: it must not run any more; forget it."""
        if not call.begin():
            self.end(call, Ending.CANCELLED)
            return False
        self._tell(call, call.started(self._now()))
        return True

    def end(self, call: Call, outcome: Outcome, printed: str = "") -> None:
        """The call has ended, begun or not; where it was stopped, `outcome` does not matter. Again: nothing."""
        self._tell(call, call.end(outcome, printed, self._now(), self.room))
        self.state()

    def give_back(self, call: Call, why: str) -> None:
        """The tool's code has not run here and will not: the call goes to another worker."""
        self._tell(call, call.give_back(why, self._now(), self.room))
        self.state()

    @staticmethod
    def _tell(call: Call, event: CallEvent | None) -> None:
        if event is not None:
            call.reply_to.tell_control(event)

    def state(self) -> None:
        """Tell the dispatcher the present `room` and `holds`."""
        self._dispatcher.tell_control(WorkerState(self._worker, self.room, self.holds))


class EndedCalls:
    """The outcomes of the calls that ended last, for a session that sends its call once more."""

    def __init__(self) -> None:
        self._events: dict[Tag, tuple[Ref[CallEvent], ToolCallEnd]] = {}
        self._chars = 0

    def remember(self, reply_to: Ref[CallEvent], event: ToolCallEnd) -> None:
        """Keep it, and forget the oldest where they are too many or too long."""
        self._forget(event.tag)
        self._events[event.tag] = (reply_to, event)
        self._chars += _chars(event)
        while len(self._events) > MAX_ENDED_CALLS or self._chars > MAX_ENDED_CHARS:
            self._forget(next(iter(self._events)))

    def of(self, tag: Tag, reply_to: Ref[CallEvent]) -> ToolCallEnd | None:
        """How the call of this session ended. A later request may have the same id, and another session."""
        whose, event = self._events.get(tag, (None, None))
        return event if whose is reply_to else None

    def _forget(self, tag: Tag) -> None:
        if (kept := self._events.pop(tag, None)) is not None:
            self._chars -= _chars(kept[1])


def _chars(event: ToolCallEnd) -> int:
    return len(event.output) + (len(event.content) if isinstance(event, ToolCallCompleted) else 0)


def _event(call: Call, outcome: Outcome, printed: str, now: float) -> ToolCallEnd:
    tag, why = call.run.tag, call.why or outcome
    if why is Ending.TIMED_OUT:
        return ToolCallTimedOut(tag, now, printed)
    if isinstance(why, Ending):
        return ToolCallCancelled(tag, now, printed)
    if isinstance(why, ToolFailure):
        return ToolCallFailed(tag, now, why, printed)
    return ToolCallCompleted(tag, now, why, printed)

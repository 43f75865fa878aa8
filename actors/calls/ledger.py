"""The ledger of calls: where each one is, what waits for what, and what became of those that ended.

    QUEUED --> RUNNING --> ENDED                a result, a failure, or its worker was lost
       |  ^      |  '--> ENDING --> ENDED       its deadline passed, or it was cancelled
       |  '------'                              given back, or its worker was lost, before its code ran
       '--> ENDED                               its deadline passed, it was cancelled or refused

A pure object without clock and messages. It outlives the dispatchers that use it, and workers write in it that a call
begins and ends; so after a crash of either it is known which calls ran. `TRANSITIONS` is the machine: what has no row,
or a guard that disagrees, changes nothing.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from callboard.actors.kernel import Ref
from callboard.actors.workers.messages import CallEvent, Ending, Outcome
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

Worker = TypeVar("Worker", bound=Hashable)


class CallState(StrEnum):
    """Where a call is."""

    QUEUED = "queued"
    """It waits for its tool's turn and for room in its pool."""
    RUNNING = "running"
    """A worker has it."""
    ENDING = "ending"
    """Its worker was told to end it."""
    ENDED = "ended"


class Happening(StrEnum):
    """What can happen to a call."""

    GIVEN = "given"
    """To a worker."""
    BEGUN = "begun"
    """Its tool's code runs from now on."""
    RETURNED = "returned"
    """Its worker gave it back: the code did not run."""
    STOPPED = "stopped"
    """Its deadline passed, or it was cancelled."""
    KILLED = "killed"
    """The grace period was over."""
    LOST = "lost"
    """Its worker is gone."""
    ENDED = "ended"
    """It has an outcome."""


@dataclass(slots=True, eq=False)
class Call(Generic[Worker]):
    """One call: what was asked, and where it is. Only its ledger changes it."""

    ledger: Ledger[Worker]
    sequence: int
    run: RunTool
    lane: Lane[Worker]
    user_text: str
    reply_to: Ref[CallEvent]
    asker: Context | None
    state: CallState = CallState.QUEUED
    worker: Worker | None = None
    begun: bool = False
    was_told: bool = False
    """The session has heard that it began."""
    why: Ending | None = None
    killed: bool = False
    given: int = 0
    """Workers that it was given to so far."""
    due: float = 0.0
    """When the dispatcher looks at it next: its deadline, then the end of its grace period."""

    @property
    def is_next(self) -> bool:
        """Is it this call's turn, as far as its tool is concerned?"""
        return self.lane.running < self.lane.concurrency and self.lane.head() is self

    # -- what its worker writes: messages.CallRecord

    def begin(self) -> bool:
        """The tool's code runs from now on. False when it must not."""
        return self.ledger.enter(self, Happening.BEGUN)

    def started(self, now: float) -> ToolCallStarted | None:
        """What its session is to hear of that, or None when it has heard it before."""
        was_told, self.was_told = self.was_told, True
        return None if was_told else ToolCallStarted(self.run.tag, now)

    def give_back(self, why: str, now: float, room: int) -> ToolCallEnd | None:
        """The code did not run, and will not there. An event where the call ends with that."""
        self.ledger.set_room(self.worker, room)
        failure = ToolFailure(self.run.name, FailureCode.OVERLOADED, f"no worker could begin {self.run.name}: {why}")
        return self.ledger.end(self, failure, "", now, Happening.RETURNED)

    def end(self, result: Outcome, printed: str, now: float, room: int) -> ToolCallEnd | None:
        """It has ended: what its session is to hear, or None when it has ended before."""
        self.ledger.set_room(self.worker, room)
        return self.ledger.end(self, result, printed, now)


# -- the machine


class Facts(Protocol):
    """What the guards look at."""

    begun: bool
    killed: bool
    given: int

    @property
    def is_next(self) -> bool: ...


def always(_: Facts) -> bool:
    """Whatever the call is."""
    return True


def its_turn(call: Facts) -> bool:
    """Its tool runs fewer calls than it may at the same time, and none has waited longer."""
    return call.is_next


def not_begun(call: Facts) -> bool:
    """Its code runs nowhere."""
    return not call.begun


def not_killed(call: Facts) -> bool:
    """Its worker was not told before to end it at once."""
    return not call.killed


def may_go_on(call: Facts) -> bool:
    """Not too many workers had it."""
    return call.given < MAX_GIVEN


def may_go_elsewhere(call: Facts) -> bool:
    """It has not begun, and not too many workers had it."""
    return not call.begun and call.given < MAX_GIVEN


class Row(NamedTuple):
    """Where a happening leads, if the guard agrees. The first such row decides."""

    guard: Callable[[Facts], bool]
    state: CallState


_QUEUED, _RUNNING, _ENDING, _ENDED = CallState
TRANSITIONS: Mapping[CallState, Mapping[Happening, tuple[Row, ...]]] = MappingProxyType(
    {
        _QUEUED: {
            Happening.GIVEN: (Row(its_turn, _RUNNING),),
            Happening.ENDED: (Row(always, _ENDED),),
        },
        _RUNNING: {
            Happening.BEGUN: (Row(not_begun, _RUNNING),),
            Happening.RETURNED: (Row(may_go_on, _QUEUED), Row(always, _ENDED)),
            Happening.LOST: (Row(may_go_elsewhere, _QUEUED), Row(always, _ENDED)),
            Happening.STOPPED: (Row(always, _ENDING),),
            Happening.ENDED: (Row(always, _ENDED),),
        },
        _ENDING: {
            Happening.KILLED: (Row(not_killed, _ENDING),),
            Happening.RETURNED: (Row(always, _ENDED),),
            Happening.LOST: (Row(always, _ENDED),),
            Happening.ENDED: (Row(always, _ENDED),),
        },
        _ENDED: {},
    }
)
#: States in which a call has a place with its tool and with a worker.
_PLACED: Final = frozenset({_RUNNING, _ENDING})


# -- who has room


@dataclass(slots=True, eq=False)
class Lane(Generic[Worker]):
    """The calls of one tool."""

    pool: Pool[Worker]
    concurrency: int
    running: int = 0
    waiting: int = 0
    heads: list[tuple[int, Call[Worker]]] = field(default_factory=list)
    """A heap of what waits. A call that has left it otherwise than by its turn is skipped when it comes up."""

    def head(self) -> Call[Worker] | None:
        """The call that has waited longest."""
        while self.heads and self.heads[0][1].state is not CallState.QUEUED:
            heapq.heappop(self.heads)
        return self.heads[0][1] if self.heads else None


@dataclass(slots=True, eq=False)
class Seat(Generic[Worker]):
    """One worker."""

    pool: Pool[Worker]
    room: int
    calls: dict[Call[Worker], None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Pool(Generic[Worker]):
    """The workers of one kind, and the tools that need them."""

    name: str
    room: int
    """Of a new worker."""
    max_workers: int
    per_call: bool
    workers: dict[Worker, Seat[Worker]] = field(default_factory=dict)
    free: dict[Worker, None] = field(default_factory=dict)
    """Those that take a call now; the last used is used next, since its caches are warm."""
    waiting: dict[Lane[Worker], None] = field(default_factory=dict)
    """The tools that have calls in the queue."""

    @property
    def has_room(self) -> bool:
        """A worker takes a call, or one more worker is allowed."""
        return bool(self.free) or len(self.workers) < self.max_workers


class Ledger(Generic[Worker]):
    """See the module. `Worker` is whatever names a worker: an address, or a number in tests."""

    def __init__(self) -> None:
        self.calls: dict[Tag, Call[Worker]] = {}
        """All that have not ended."""
        self.pools: dict[str, Pool[Worker]] = {}
        self.ended = EndedCalls()
        self.news: deque[tuple[Call[Worker], ToolCallEnd]] = deque()
        """Calls that have ended and that no dispatcher has looked at since."""
        self._lanes: dict[ToolName, Lane[Worker]] = {}
        self._seats: dict[Worker, Seat[Worker]] = {}
        self._sequence = 0
        self._names = 0

    # -- what is set up

    def pool(self, name: str, room: int, max_workers: int, *, per_call: bool) -> Pool[Worker]:
        """The pool of this name, made when it is first asked for."""
        if name not in self.pools:
            self.pools[name] = Pool(name, room, max_workers, per_call)
        return self.pools[name]

    def lane(self, tool: ToolName, pool: Pool[Worker], concurrency: int) -> Lane[Worker]:
        """Where the calls of this tool wait; made when it is first asked for."""
        if tool not in self._lanes:
            self._lanes[tool] = Lane(pool, concurrency)
        return self._lanes[tool]

    def add_worker(self, pool: Pool[Worker], worker: Worker) -> None:
        """A worker that takes calls."""
        self._seats[worker] = pool.workers[worker] = Seat(pool, pool.room)
        pool.free[worker] = None

    def set_room(self, worker: Worker | None, room: int) -> None:
        """A worker takes so many calls at the same time from now on. That of a single call never takes another."""
        seat = self._seats.get(worker) if worker is not None else None
        if worker is not None and seat is not None:
            seat.room = 0 if seat.pool.per_call else room
            self._look_at(worker, seat)

    def _look_at(self, worker: Worker, seat: Seat[Worker]) -> None:
        if len(seat.calls) < seat.room:
            seat.pool.free[worker] = None
        else:
            seat.pool.free.pop(worker, None)

    def pool_of(self, worker: Worker) -> Pool[Worker] | None:
        """The pool of a worker that is not gone."""
        seat = self._seats.get(worker)
        return seat.pool if seat is not None else None

    def new_name(self) -> str:
        """For a worker: no other of this ledger has had it."""
        self._names += 1
        return str(self._names)

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that are alive, as far as is known."""
        return tuple(self._seats)

    # -- the way of a call

    def submit(
        self,
        run: RunTool,
        lane: Lane[Worker],
        reply_to: Ref[CallEvent],
        user_text: str = "",
        asker: Context | None = None,
    ) -> Call[Worker]:
        """A new call, in the queue of its tool. Its tag must not be that of an open one."""
        self._sequence += 1
        call = Call(self, self._sequence, run, lane, user_text, reply_to, asker, due=run.deadline_at)
        self.calls[run.tag] = call
        self._wait(call)
        return call

    def next_call(self, pool: Pool[Worker]) -> Call[Worker] | None:
        """Which call of the pool runs next: of those whose tools have room, the one that has waited longest."""
        if not pool.waiting or not pool.has_room:
            return None
        found: Call[Worker] | None = None
        for lane in pool.waiting:
            head = lane.head() if lane.running < lane.concurrency else None
            if head is not None and (found is None or head.sequence < found.sequence):
                found = head
        return found

    def give(self, call: Call[Worker], worker: Worker) -> bool:
        """The call is this worker's."""
        if not self.enter(call, Happening.GIVEN):
            return False
        seat = self._seats[worker]
        call.worker = worker
        call.given += 1
        seat.calls[call] = None
        if seat.pool.per_call:
            seat.room = 0
        self._look_at(worker, seat)
        return True

    def stop(self, call: Call[Worker], why: Ending) -> bool:
        """A worker is to end it, since its deadline has passed or it is cancelled. False when it was told before."""
        if not self.enter(call, Happening.STOPPED):
            return False
        call.why = why
        return True

    def lost(
        self, worker: Worker, fate: Callable[[Call[Worker]], Outcome], printed: str, now: float
    ) -> list[tuple[Call[Worker], ToolCallEnd]]:
        """A worker is gone: the calls that end with it, by their `fate`. What had not begun mostly waits once more."""
        seat = self._seats.pop(worker, None)
        if seat is None:
            return []
        del seat.pool.workers[worker]
        seat.pool.free.pop(worker, None)
        ended = []
        for call in tuple(seat.calls):
            event = self.end(call, fate(call), printed, now, Happening.LOST)
            if event is not None:
                ended.append((call, event))
        return ended

    def end(
        self, call: Call[Worker], outcome: Outcome, printed: str, now: float, how: Happening = Happening.ENDED
    ) -> ToolCallEnd | None:
        """Apply what happened: the event for its session, if the call has ended by it and had not before."""
        if not self.enter(call, how) or call.state is not CallState.ENDED:
            return None
        event = _event(call, outcome, printed, now)
        del self.calls[call.run.tag]
        self.ended.remember(call.reply_to, event)
        self.news.append((call, event))
        return event

    def enter(self, call: Call[Worker], happening: Happening) -> bool:
        """Change the state, as the table allows and no other way; False where it does not."""
        for guard, state in TRANSITIONS[call.state].get(happening, ()):
            if guard(call):
                break
        else:
            return False
        before = call.state
        if happening is Happening.GIVEN:
            heapq.heappop(call.lane.heads)
        call.state = state
        call.begun = happening is Happening.BEGUN or (call.begun and happening is not Happening.RETURNED)
        call.killed = call.killed or happening is Happening.KILLED
        if before is CallState.QUEUED and state is not before:
            self._wait_no_more(call)
        if state in _PLACED and before not in _PLACED:
            call.lane.running += 1
        elif before in _PLACED and state not in _PLACED:
            self._leave(call)
            if state is CallState.QUEUED:
                self._wait(call)
        return True

    def left_open(self) -> list[str]:
        """Places that are taken, and calls that have not ended: nothing at rest."""
        taken = {f"worker {name} has {len(seat.calls)} calls": len(seat.calls) for name, seat in self._seats.items()}
        taken |= {f"tool {name} runs {lane.running} calls": lane.running for name, lane in self._lanes.items()}
        taken |= {f"tool {name} has {lane.waiting} calls waiting": lane.waiting for name, lane in self._lanes.items()}
        taken |= {f"call {tag} is {call.state.value}": 1 for tag, call in self.calls.items()}
        return [what for what, count in taken.items() if count]

    def waiting_for(self, tool: ToolName) -> list[Call[Worker]]:
        """The calls in the queue of a tool, the oldest first."""
        lane = self._lanes.get(tool)
        return [call for _, call in sorted(lane.heads) if call.state is CallState.QUEUED] if lane else []

    def _wait(self, call: Call[Worker]) -> None:
        heapq.heappush(call.lane.heads, (call.sequence, call))
        call.lane.waiting += 1
        call.lane.pool.waiting[call.lane] = None

    def _wait_no_more(self, call: Call[Worker]) -> None:
        lane = call.lane
        lane.waiting -= 1
        if not lane.waiting:
            lane.heads.clear()
            lane.pool.waiting.pop(lane, None)

    def _leave(self, call: Call[Worker]) -> None:
        call.lane.running -= 1
        worker, call.worker = call.worker, None
        seat = self._seats.get(worker) if worker is not None else None
        if worker is not None and seat is not None:
            seat.calls.pop(call, None)
            self._look_at(worker, seat)


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


def _event(call: Call[Worker], outcome: Outcome, printed: str, now: float) -> ToolCallEnd:
    tag, why = call.run.tag, call.why or outcome
    if why is Ending.TIMED_OUT:
        return ToolCallTimedOut(tag, now, printed)
    if isinstance(why, Ending):
        return ToolCallCancelled(tag, now, printed)
    if isinstance(why, ToolFailure):
        return ToolCallFailed(tag, now, why, printed)
    return ToolCallCompleted(tag, now, why, printed)

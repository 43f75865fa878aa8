"""The ledger of calls: where each one is, what waits for what, and what became of those that ended.

    QUEUED --> RUNNING --> ENDED                a result, a failure, or its worker was lost
       |  ^      |  '--> ENDING --> ENDED       its deadline passed, or it was cancelled
       |  |      |         '--> KILLED --> ENDED   and it did not end in its grace period
       |  '------'                              given back, or its worker was lost, before its code ran
       '--> ENDED                               its deadline passed, it was cancelled or refused

A pure object without clock and messages. It outlives the dispatchers that use it, and workers write in it, by their
CallReports, that a call begins and ends and what they have room for; so after a crash of either it is known which calls
ran. `TRANSITIONS` is the machine: what has no row, or a guard that disagrees, changes nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Container, Mapping
from contextvars import Context
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct, field

from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.registry import ToolKey
from callboard.actors.journal.outbox import EffectCommitted
from callboard.actors.journal.transactions import CallEffect
from callboard.actors.kernel import Ref
from callboard.actors.tools import Tool
from callboard.actors.tools.invoke import Result, text_of
from callboard.actors.tools.progress import CallProgress, ProgressMade, ProgressRelay
from callboard.protocol import events, step
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import Tag
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import Deferred, FailureCode, ToolContract, ToolFailure, after_effect

#: Workers that a call is given to: one that five of them could not begin has something against it.
MAX_GIVEN: Final = 5
#: For the model, of a call whose time was over before its tool's code could run.
_NOT_RUN_HINT: Final = "It had no effect. Send it again later."

LastEvent = events.ToolCallEnd | events.ToolCallDeferred
"""With it a call has left the ledger: ended, or given away to someone outside, of whom no one here knows."""
CallEvent = events.ToolCallStarted | LastEvent | ProgressMade
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
    """Its worker was asked to end it."""
    KILLED = "killed"
    """Its worker was asked to end it at once."""
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


class EndedCalls(Struct, eq=False):
    """How the calls of one session ended, for one that it sends once more: around a restart of the dispatcher.

    Those of one step are enough. The dispatcher takes what a session sends in its order, so when a call of the next
    step ends, it has taken all that was sent again of the one before. The session holds this, and it goes with it.
    """

    _step: int = 0
    _events: dict[Tag, LastEvent] = field(default_factory=dict)

    def remember(self, event: LastEvent) -> None:
        """Keep how a call has ended, and forget the calls of earlier steps."""
        step = event.tag.step
        if step > self._step:
            self._step = step
            self._events.clear()
        if step == self._step:
            self._events[event.tag] = event

    def of(self, tag: Tag) -> LastEvent | None:
        """How this call ended."""
        return self._events.get(tag)


# -- who has room


class Pool(Struct, eq=False):
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
    is_wanted: bool = True
    """Some tool needs it. Else it ends with its last call."""

    def next_call(self) -> Call | None:
        """Which call runs next: of the tools that have room, the one that has waited longest."""
        first: tuple[int, Call] | None = None
        if self.free or self.workers < self.max_workers:
            for lane in self.waiting:
                if lane.running < lane.concurrency and (first is None or lane.waiting[0] < first):
                    first = lane.waiting[0]
        return first[1] if first is not None else None

    def seat_for(self, call: Call) -> Seat | None:
        """The worker that is to have it: the one with what its tool has open, else the last used. None: a new one."""
        if (home := call.lane.home) is not None and home in self.free:
            return home
        others = (seat for seat in reversed(self.free) if seat is not call.left or self.workers >= self.max_workers)
        return next(others, None)


class Seat(Struct, eq=False):
    """One worker."""

    worker: Ref
    pool: Pool
    room: int
    """Calls that it takes at the same time, those that it runs included."""
    holds: tuple[ToolKey, ...] = ()
    """The tool of each thread that a call still holds which has ended."""
    calls: dict[Call, None] = field(default_factory=dict)
    is_lost: bool = False

    def take(self, room: int | None = None) -> None:
        """Its `room`, if given, or its calls have changed: does it take a call now?"""
        if room is not None:
            self.room = room
        if len(self.calls) < self.room and not self.is_lost:
            self.pool.free[self] = None
        else:
            self.pool.free.pop(self, None)


class Lane(Struct, eq=False):
    """The calls of one tool."""

    pool: Pool
    """Where its next call runs. Those that began under a former contract may run in another one."""
    concurrency: int
    key: ToolKey
    contract: ToolContract | None = None
    """By which it has these."""
    running: int = 0
    """Under former contracts, too: a tool that may run once at a time does so while it is replaced."""
    waiting: list[tuple[int, Call]] = field(default_factory=list)
    """In order of their sequence."""
    home: Seat | None = None
    """Of an async tool: the worker on whose loop its code has run, and may have something open."""

    def move(self, pool: Pool, contract: ToolContract) -> None:
        """The tool has another contract from now on, by which the calls that wait are run, too."""
        if self.waiting:
            del self.pool.waiting[self]
            pool.waiting[self] = None
        if pool is not self.pool:
            self.home = None
        self.pool, self.concurrency, self.contract = pool, contract.concurrency, contract


class Call(Struct, eq=False):
    """One call: what was asked, and where it is. Its worker writes in it that it begins and ends."""

    ledger: Ledger
    sequence: int
    run: RunTool
    lane: Lane
    user_text: str
    reply_to: Ref[CallEvent]
    asker: Context | None
    """The context in which the request was asked; the tool runs in a copy of it. None: in an empty one."""
    ended: EndedCalls
    """Of its session."""
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
    is_read_along: bool = False
    """Its progress is shown to someone."""
    go_ahead: GoAhead | None = None
    """Its tool's code waits for it, once it has begun; None: there is nothing to wait for."""
    effect: CallEffect | None = None
    """What it writes, where that is committed together with its outcome."""
    offered: ToolOffer | None = None
    """What its model was shown of the tool, where that may have changed since."""
    contract: ToolContract | None = None
    """Its tool's, when it was given to a worker."""
    pool: Pool | None = None
    """That of its last worker."""
    given: int = 0
    """Workers that it was given to so far."""
    left: Seat | None = None
    """A worker that could not begin it in time."""
    printed_bytes: int = 0
    """By its tool, as far as its worker could read it."""
    stopped_in: str = ""
    """The frames that its tool was in when it was stopped, as far as it had time to say."""
    _relay: ProgressRelay | None = None

    @property
    def may_have_run(self) -> bool:
        """A worker has begun it, and its tool's code does not wait for the go-ahead any more."""
        return self.begun and (self.go_ahead is None or self.go_ahead.is_given)

    def must_wait(self, tell: Callable[[], object]) -> bool:
        """Has its tool's code to wait for the go-ahead? Then `tell` is called when that is given."""
        if self.go_ahead is None:
            return False
        self.go_ahead.when_given(tell)
        return True

    def code_begins(self) -> None:
        """For a worker on whose loop tools may leave something open: the tool's further calls run there."""
        lane, home = self.lane, self.lane.home
        is_there = self.seat is not None and self.seat.pool is lane.pool
        if is_there and (home is None or home.is_lost or not home.room):
            lane.home = self.seat

    @property
    def relay(self) -> ProgressRelay:
        """By which its session hears of its progress."""
        if self._relay is None:
            self._relay = ProgressRelay(self.run.tag, self.reply_to.tell_control)
        return self._relay

    def report(self, progress: CallProgress) -> None:
        """For a tool that runs in this process: it has got so far."""
        self.relay.report(progress)

    def enter(self, happening: Happening) -> bool:
        """Change the state, as the table allows and no other way; False where it does not."""
        for guard, state, effect in TRANSITIONS[self.state].get(happening, ()):
            if guard is None or guard(self):
                self.state = state
                if effect is not None:
                    effect(self)
                return True
        return False

    def stop(self, why: Ending) -> bool:
        """A worker is to end it, since its deadline has passed or it is cancelled. False when it was asked before."""
        if not self.enter(Happening.STOPPED):
            return False
        self.why = why
        return True

    def end(self, outcome: Outcome, printed: str, now: float, how: Happening = Happening.ENDED) -> LastEvent | None:
        """Apply what happened: the event for its session, if the call has ended by it and had not before."""
        if not self.enter(how) or self.state is not CallState.ENDED:
            return None
        if self.why is not None and isinstance(outcome, ToolFailure):
            self.stopped_in = outcome.frames
        if self.effect is not None:
            self.effect.stop()  # a thread that its worker has lost may go on: it commits no more
        event, ledger = _event(self, outcome, printed, now), self.ledger
        self.begun = self.may_have_run  # what was held says nothing of its tool's health
        del ledger.calls[self.run.tag]
        self.ended.remember(event)
        ledger.news.append((self, event))
        return event

    def no_worker(self, error: BaseException) -> ToolFailure:
        """How it ends when the host has no resources for it. It has not begun."""
        why = f"no worker could be started for {self.run.name}: {text_of(error)}"
        return ToolFailure(self.run.name, FailureCode.OVERLOADED, why)

    # -- what rows of the table do

    def wait(self) -> None:
        """Into the queue of its tool; to its old place when it comes again."""
        insort(self.lane.waiting, (self.sequence, self))
        self.lane.pool.waiting[self.lane] = None

    def _wait_no_more(self) -> None:
        waiting = self.lane.waiting
        del waiting[bisect_left(waiting, (self.sequence,))]
        if not waiting:
            del self.lane.pool.waiting[self.lane]

    def _start(self) -> None:
        self._wait_no_more()
        self.lane.running += 1

    def _begin(self) -> None:
        self.begun = True

    def _leave(self) -> None:
        self.lane.running -= 1
        seat, self.seat = self.seat, None
        if seat is not None:
            del seat.calls[self]
            seat.take()

    def _leave_unbegun(self) -> None:
        self.begun = False
        self._leave()

    def _wait_again(self) -> None:
        self._leave_unbegun()
        self.wait()


# -- the machine


def its_turn(call: Call) -> bool:
    """Its tool runs fewer calls than it may at the same time, and none has waited longer."""
    return call.lane.running < call.lane.concurrency and call.lane.waiting[0][1] is call


def not_begun(call: Call) -> bool:
    """Its code runs nowhere."""
    return not call.begun


def may_go_on(call: Call) -> bool:
    """Not too many workers had it."""
    return call.given < MAX_GIVEN


def may_go_elsewhere(call: Call) -> bool:
    """Its code has not run, and not too many workers had it."""
    return not call.may_have_run and may_go_on(call)


def may_be_stopped(call: Call) -> bool:
    """It is not being committed. From now on it will not be."""
    return call.effect is None or call.effect.stop()


def is_committed_elsewhere(call: Call) -> bool:
    """Its worker has nothing more to do for it."""
    return call.effect is not None and call.effect.is_handed_over


class Row(NamedTuple):
    """Where a happening leads, and what it does, if the guard agrees (None: always). The first such row decides."""

    guard: Callable[[Call], bool] | None
    state: CallState
    effect: Callable[[Call], None] | None = None


_QUEUED, _RUNNING, _ENDING, _KILLED, _ENDED = CallState
_ENDS: Final = (Row(None, _ENDED, Call._leave),)
_ENDS_UNBEGUN: Final = Row(None, _ENDED, Call._leave_unbegun)
_ONLY_ENDS: Final = {Happening.RETURNED: (_ENDS_UNBEGUN,), Happening.LOST: _ENDS, Happening.ENDED: _ENDS}
TRANSITIONS: Mapping[CallState, Mapping[Happening, tuple[Row, ...]]] = MappingProxyType(
    {
        _QUEUED: {
            Happening.GIVEN: (Row(its_turn, _RUNNING, Call._start),),
            Happening.ENDED: (Row(None, _ENDED, Call._wait_no_more),),
        },
        _RUNNING: {
            Happening.BEGUN: (Row(not_begun, _RUNNING, Call._begin),),
            Happening.RETURNED: (Row(may_go_on, _QUEUED, Call._wait_again), _ENDS_UNBEGUN),
            Happening.LOST: (
                Row(may_go_elsewhere, _QUEUED, Call._wait_again),
                Row(is_committed_elsewhere, _RUNNING),
                *_ENDS,
            ),
            Happening.STOPPED: (Row(may_be_stopped, _ENDING),),
            Happening.ENDED: _ENDS,
        },
        _ENDING: {Happening.KILLED: (Row(None, _KILLED),), **_ONLY_ENDS},
        _KILLED: _ONLY_ENDS,
        _ENDED: {},
    }
)


class Ledger:
    """See the module."""

    def __init__(self) -> None:
        self.calls: dict[Tag, Call] = {}
        """All that have not ended."""
        self.pools: dict[str, Pool] = {}
        self.lanes: dict[ToolKey, Lane] = {}
        self.brought: dict[Ref[CallEvent], set[Tool]] = {}
        """By session, as long as it lives: the tools that its question has brought with it and that it has called."""
        self._owners: Counter[Tool] = Counter()
        """How many of these sessions have it."""
        self.seats: dict[Ref, Seat] = {}
        """All workers that are alive, as far as is known."""
        self.news: deque[tuple[Call, LastEvent]] = deque()
        """Calls that have ended and that no dispatcher has looked at since."""
        self.names = itertools.count(1)
        """For workers: none has the name of another."""
        self._pools_ended: Counter[str] = Counter()
        self._sequence = itertools.count()

    def pool(self, kind: str, room: int, max_workers: int) -> Pool:
        """The pool of this kind. One that takes the place of one that ends has another name: both may be there."""
        found = self.pools.get(kind)
        if found is None:
            ended = self._pools_ended[kind]
            found = self.pools[kind] = Pool(f"{kind}-{ended + 1}" if ended else kind, room, max_workers)
        found.is_wanted = True
        return found

    def end_unwanted(self, kinds: Container[str]) -> list[Pool]:
        """Tools need these kinds of pools: the others that no call is in, which are forgotten."""
        busy = {seat.pool for seat in self.seats.values() if seat.calls or seat.holds}
        ended = []
        for kind, pool in tuple(self.pools.items()):
            pool.is_wanted = kind in kinds
            if not (pool.is_wanted or pool.waiting or pool in busy):
                del self.pools[kind]
                self._pools_ended[kind] += 1
                ended.append(pool)
        return ended

    def lane(self, tool: ToolKey, concurrency: int, pool: Pool) -> Lane:
        """Where the calls of this tool wait; made at first."""
        return self.lanes.setdefault(tool, Lane(pool, concurrency, tool))

    def bring(self, tool: Tool, session: Ref[CallEvent]) -> bool:
        """This session calls a tool that its question has brought with it. True if none is known of the session yet."""
        tools = self.brought.get(session)
        is_new = tools is None
        if tools is None:
            tools = self.brought[session] = set()
        if tool not in tools:
            tools.add(tool)
            self._owners[tool] += 1
        return is_new

    def leave(self, session: Ref[CallEvent]) -> list[Tool]:
        """The session is gone: the tools that no other has, which are forgotten. Calls that are still being ended keep
        their lane."""
        left = []
        for tool in self.brought.pop(session, ()):
            self._owners[tool] -= 1
            if not self._owners[tool]:
                del self._owners[tool]
                self.lanes.pop(tool, None)
                left.append(tool)
        return left

    def add_worker(self, pool: Pool, worker: Ref) -> Seat:
        """A worker that takes calls."""
        seat = self.seats[worker] = Seat(worker, pool, pool.room)
        pool.workers += 1
        pool.free[seat] = None
        return seat

    def lose(self, seat: Seat) -> tuple[Call, ...]:
        """A worker is gone: its calls, each of which is to be ended as LOST."""
        del self.seats[seat.worker]
        seat.pool.workers -= 1
        seat.is_lost = True
        seat.take()
        return tuple(seat.calls)

    def submit(
        self,
        run: RunTool,
        lane: Lane,
        reply_to: Ref[CallEvent],
        user_text: str = "",
        asker: Context | None = None,
        ended: EndedCalls | None = None,
    ) -> Call:
        """A new call, in the queue of its tool. Its tag must not be that of an open one."""
        kept = ended or EndedCalls()
        call = Call(self, next(self._sequence), run, lane, user_text, reply_to, asker, kept, run.deadline_at)
        self.calls[run.tag] = call
        call.wait()
        return call

    def give(self, call: Call, seat: Seat) -> bool:
        """The call is this worker's. False when it is not its turn."""
        if not call.enter(Happening.GIVEN):
            return False
        call.seat, call.pool = seat, seat.pool
        call.given += 1
        seat.calls[call] = None
        seat.take()
        return True


def _event(call: Call, outcome: Outcome, printed: str, now: float) -> LastEvent:
    tag, why = call.run.tag, call.why or outcome
    if why is Ending.TIMED_OUT and call.begun and not call.may_have_run:
        return events.ToolCallFailed(tag, now, _held_too_long(call), printed)
    if why is Ending.TIMED_OUT and isinstance(outcome, ToolFailure) and outcome.code is FailureCode.TIMED_OUT:
        return events.ToolCallFailed(tag, now, outcome, printed)
    if why is Ending.TIMED_OUT:
        failure = step.failure(FailureCode.TIMED_OUT, call.run.name, "the deadline passed.")
        return events.ToolCallTimedOut(tag, now, printed, after_effect(failure, call.contract))
    if isinstance(why, Ending):
        failure = step.failure(FailureCode.CANCELLED, call.run.name, "it was stopped.")
        return events.ToolCallCancelled(tag, now, printed, failure)
    if isinstance(why, ToolFailure):
        failure = after_effect(why, call.contract) if call.may_have_run else why
        return events.ToolCallFailed(tag, now, failure, printed)
    if isinstance(why, Deferred):
        return events.ToolCallDeferred(tag, now, why.timeout_seconds, why.note, printed)
    return events.ToolCallCompleted(tag, now, why, printed)


def _held_too_long(call: Call) -> ToolFailure:
    why = "the call was not run: its deadline passed before the journal had written that it begins"
    return ToolFailure(call.run.name, FailureCode.TIMED_OUT, why, retry_hint=_NOT_RUN_HINT)


# -- what a worker writes in it


class WorkerState(Struct, frozen=True):
    """For the dispatcher: calls of this worker have ended or were given back, or its room or holds have changed."""

    seat: Seat


class CallReports(Struct, frozen=True):
    """What a worker tells of its calls: the ledger first, then the session, then the dispatcher."""

    seat: Seat
    """The worker's."""
    dispatcher: Ref[WorkerState | EffectCommitted]
    """Its address outlives a restart of it."""
    now: Callable[[], float]

    def begin(self, call: Call) -> bool:
        """Before the tool's code can run: tell the session, once. False: it must not run any more; forget it."""
        if not call.enter(Happening.BEGUN):
            self.end(call, Ending.CANCELLED)
            return False
        if not call.was_told:
            call.was_told = True
            call.reply_to.tell_control(events.ToolCallStarted(call.run.tag, self.now()))
        return True

    def end(self, call: Call, outcome: Outcome, printed: str = "", how: Happening = Happening.ENDED) -> None:
        """The call has ended, begun or not; where it was stopped, `outcome` does not matter. Again: nothing.

        One with the effect `transaction` ends when its outcome is committed, and the dispatcher hears of that.
        """
        if call.effect is not None and how is Happening.ENDED and not isinstance(outcome, Ending):
            finished = call.effect.finish(outcome, printed, self.dispatcher)
            if finished is None:
                return
            outcome = finished
        is_awaited = bool(call.ledger.news)  # then a dispatcher that has not looked yet is about to
        event = call.end(outcome, printed, self.now(), how)
        if event is not None:
            call.reply_to.tell_control(event)
        if event is None or not is_awaited:
            self.dispatcher.tell_control(WorkerState(self.seat))

    def no_worker(self, error: BaseException) -> None:
        """The host has no resources for this worker: no call of it has begun, and each ends. It takes no more."""
        self.seat.take(0)  # before the first one ends, which makes room for one that would be lost with this worker
        for call in tuple(self.seat.calls):
            self.end(call, call.no_worker(error))

    def give_back(self, call: Call, why: str) -> None:
        """The tool's code has not run here and will not: the call goes to another worker."""
        failure = ToolFailure(call.run.name, FailureCode.OVERLOADED, f"no worker could begin {call.run.name}: {why}")
        self.end(call, failure, how=Happening.RETURNED)

    def not_run(self, call: Call, why: str) -> None:
        """It was stopped, and the tool's code has not run: where its time is over, `why` is what became of it."""
        why = f"{call.run.name} was not run: {why}"
        failure = ToolFailure(call.run.name, FailureCode.TIMED_OUT, why, retry_hint=_NOT_RUN_HINT)
        self.end(call, failure, how=Happening.RETURNED)

    def state(self, room: int, holds: tuple[ToolKey, ...] = ()) -> None:
        """What the worker has room for and which tools hold its threads from now on."""
        self.seat.holds = holds
        self.seat.take(room)
        self.dispatcher.tell_control(WorkerState(self.seat))

"""Simulated workers: actors that take a worker's messages, in virtual time. Dispatcher and ledger are the real ones.

What a worker does with a call is the scenario's `ToolDoes`; what becomes of the worker itself is its `WorkerFate`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from msgspec import Struct, field

from callboard.actors.calls.ledger import CallReports, Ending, Outcome
from callboard.actors.kernel import Actor, Timer, handles
from callboard.actors.testing.faults import WorkerFate, WorkerFaults
from callboard.actors.testing.watched_calls import MAX_WORKERS, WatchedCalls
from callboard.actors.tools.invoke import Result
from callboard.actors.tools.progress import CallProgress
from callboard.actors.workers.messages import BeginCode, KillCall, RunCall, StopCall, ToWorker, WorkerKind, WorkerLost
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.testing.outside import LATE_SECONDS, STOP_SECONDS
from callboard.protocol.testing.scenario import PlannedCall, ToolDoes
from callboard.protocol.tools import Deferred, FailureCode, Isolation, ToolFailure

#: From the kill to the end of a process: some milliseconds, or most of the time after which it is given up.
KILL_SECONDS: Final = 1 / 128
SLOW_KILL_SECONDS: Final = 1.0
#: What vanished ends this long after it was killed, when no one waits for it any more: its process hung in the kernel.
GONE_SECONDS: Final = 10.0
#: An abandoned thread returns after this long, and takes calls again.
ABANDONED_SECONDS: Final = 10.0
#: Fates that show where a call is stopped.
_ONLY_IF_STOPPED: Final = (WorkerFate.IGNORES_INTERRUPT, WorkerFate.SLOW_TO_DIE)


class World(Protocol):
    """What simulated workers need of the run they belong to."""

    def plan_of(self, run: RunTool) -> PlannedCall:
        """What the scenario holds for this call."""

    def result_of(self, tag: Tag, plan: PlannedCall) -> str:
        """What the call returns."""

    def began(self, run: RunTool) -> None:
        """The tool's code runs."""

    def statement_of(self, run: RunTool, plan: PlannedCall) -> str:
        """What a call writes that is committed with its outcome."""

    def deferred(self, run: RunTool, plan: PlannedCall) -> None:
        """The tool's code has ended, and has left the result to someone outside."""

    def arrives(self, worker: SimulatedWorker) -> None:
        """A worker is there."""

    def leaves(self, worker: SimulatedWorker) -> None:
        """It is gone."""

    def reach(self, kind: str, what: str) -> None:
        """Count what becomes of a worker or a call."""

    @property
    def calls(self) -> WatchedCalls:
        """What hears of all that the workers are told and do."""


class Later(Struct, frozen=True):
    """A callback with a name for the trace."""

    name: str
    run: Callable[[], object]

    def __call__(self) -> None:
        self.run()

    def describe(self) -> str:
        """For traces."""
        return self.name


class Die(Struct, frozen=True):
    """The process, or whatever the worker runs calls in, dies with everything in it."""

    before: bool = False
    """Before its call could begin."""


class Planned(Struct, frozen=True):
    """What the plan has for a call at this time; nothing, where that call has ended meanwhile."""

    call: RunCall
    what: Callable[[], object]


class _Running(Struct, eq=False):
    call: RunCall
    timers: list[Timer] = field(default_factory=list)
    is_held: bool = False
    """It has begun for its session, and its code waits for the go-ahead."""


class SimulatedWorker(Actor[ToWorker | Die | Planned]):
    """See the module."""

    def __init__(
        self,
        world: World,
        faults: WorkerFaults,
        isolation: Isolation,
        reports: CallReports,
        pool: str,
    ) -> None:
        self._world = world
        self._faults = faults
        self._isolation = isolation
        self._reports = reports
        self._room = reports.seat.room
        self.pool = pool
        self._running: dict[Tag, _Running] = {}
        self._held: list[ToolName] = []

    def on_start(self) -> None:
        self._ready_at = self.now() + self._faults.start_seconds
        self._world.arrives(self)
        self.at_end(lambda: self._world.leaves(self))

    @property
    def is_busy(self) -> bool:
        """Does it run a call that something can be done about?"""
        return any(each.is_held or not self._vanishes(each.call) for each in self._running.values())

    @property
    def room_left(self) -> int:
        """Calls that it takes now."""
        return 0 if self._held else self._room - len(self._running)

    # -- what the dispatcher says

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        self._world.calls.taken(self, call.run)
        if self._held:
            self._gives_back(call, "planned: its thread is held")
        elif self.now() < self._ready_at:
            self._running[call.run.tag] = _Running(call)
            self._later(call, self._ready_at - self.now(), lambda: self._begin(call))
        else:
            self._running[call.run.tag] = _Running(call)
            self._begin(call)

    @handles(StopCall)
    def _stop_call(self, message: StopCall) -> None:
        """A process or task that listens ends within its grace period. A thread cannot be interrupted."""
        self._world.calls.held(self, message.tag)
        running = self._running.get(message.tag)
        if running is None:
            return
        if running.is_held:
            self._end(running.call, Ending.CANCELLED)
        elif self._isolation is Isolation.THREAD:
            self._abandon(running.call)
        elif self._listens(running.call):
            self._later(running.call, STOP_SECONDS, lambda: self._end(running.call, Ending.CANCELLED, "before the end"))

    @handles(KillCall)
    def _kill(self, message: KillCall) -> None:
        """A process is gone soon; a task is abandoned at once, with its loop."""
        self._world.calls.held(self, message.tag, kill=True)
        running = self._running.get(message.tag)
        if running is None:
            return
        if self._vanishes(running.call):
            gone = Later("a worker is gone at last", partial(self.ref.tell_control, Die()))
            self.system.scheduler.call_at(self.now() + GONE_SECONDS, gone)
        elif self._isolation is Isolation.PROCESS:
            slow = self._fate(running.call) is WorkerFate.SLOW_TO_DIE
            self._later(running.call, SLOW_KILL_SECONDS if slow else KILL_SECONDS, self._die)
        else:
            self._abandon(running.call)

    def on_stopping(self) -> bool:
        """What runs ends with it."""
        for running in list(self._running.values()):
            self._end(running.call, Ending.CANCELLED)
        return True

    # -- what the plan holds

    @handles(Planned)
    def _happen(self, planned: Planned) -> None:
        if planned.call.run.tag in self._running:
            planned.what()

    @handles(Die)
    def _die_now(self, death: Die) -> None:
        self._die(death.before)

    def _begin(self, call: RunCall) -> None:
        fate, plan = self._fate(call), self._plan(call)
        self._world.reach("tool", plan.does)
        if fate not in _ONLY_IF_STOPPED:
            self._world.reach("worker", fate)
        if fate is WorkerFate.NOT_SHIPPED:
            why = f"planned: {call.run.name} cannot be shipped"
            self._end(call, ToolFailure(call.run.name, FailureCode.CRASHED, why))
        elif fate is WorkerFate.NOT_STARTED or plan.does is ToolDoes.REFUSE:
            self._end(call, call.record.no_worker(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))))
        elif fate is WorkerFate.GIVES_BACK:
            self._gives_back(call, "planned")
        elif fate is WorkerFate.DIES_BEFORE:
            self._later(call, STOP_SECONDS / 2, lambda: self._die(before=True))
        elif not self._begins(call):
            self._forget(call)
        elif call.record.must_wait(partial(self.ref.tell_control, BeginCode(call.run.tag))):
            self._running[call.run.tag].is_held = True
        else:
            self._play(call)

    def _begins(self, call: RunCall) -> bool:
        may = self._reports.begin(call.record)
        self._world.calls.begins(call.run.tag, may=may)
        return may

    def _gives_back(self, call: RunCall, why: str) -> None:
        self._forget(call)
        self._world.calls.gives_back(call.run.tag)
        self._reports.give_back(call.record, why)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        running = self._running.get(message.tag)
        if running is not None and running.is_held:
            running.is_held = False
            self._play(running.call)

    def _play(self, call: RunCall) -> None:
        """The tool's code runs."""
        self._world.began(call.run)
        fate, plan = self._fate(call), self._plan(call)
        seconds = max(plan.seconds, STOP_SECONDS)
        if self._vanishes(call):
            return
        if fate is WorkerFate.DIES_DURING:
            self._later(call, seconds / 2, self._die)
        elif plan.does is ToolDoes.CRASH:
            self._later(call, seconds, self._die)
        elif plan.does in (ToolDoes.STOPPED, ToolDoes.WITHDRAWN):
            self._later(call, seconds, lambda: self._end(call, Ending.CANCELLED))
        elif plan.does in (ToolDoes.COMPLETE, ToolDoes.FAIL, ToolDoes.DEFER):
            self._say(call, "begun")
            self._later(call, seconds / 2, lambda: self._say(call, "half"))
            self._later(call, seconds, lambda: self._return(call, plan, fate))

    def _say(self, call: RunCall, message: str) -> None:
        """More often than a reader is shown it."""
        if call.context.is_read_along:
            for fraction in (0.0, 0.5, 1.0):
                call.record.report(CallProgress(message, fraction))

    def _return(self, call: RunCall, plan: PlannedCall, fate: WorkerFate) -> None:
        tag = call.run.tag
        result: Result = self._world.result_of(tag, plan)
        if plan.does is ToolDoes.FAIL:
            result = ToolFailure(call.run.name, FailureCode.TOOL_ERROR, f"planned: {plan.does}")
        elif plan.does is ToolDoes.DEFER:
            result = Deferred(plan.open_seconds)
            self._world.deferred(call.run, plan)
        if (effect := call.record.effect) is not None:
            effect.statements.execute(self._world.statement_of(call.run, plan))
        self._say(call, "all done")
        printed, reports = f"printed by {tag.call_id}", self._reports
        scheduler = self.system.scheduler
        if plan.doubled or fate is WorkerFate.REPORTS_TWICE:
            scheduler.call_at(
                self.now(), Later("worker reports again", lambda: reports.end(call.record, result, printed))
            )
        if plan.late:
            late = Later("worker reports late", lambda: reports.end(call.record, result, printed))
            scheduler.call_at(self.now() + LATE_SECONDS, late)
        self._end(call, result, printed)
        if fate is WorkerFate.DIES_AFTER:
            self._die()

    # -- ends

    def _end(self, call: RunCall, result: Outcome, printed: str = "") -> None:
        self._forget(call)
        if self._isolation is Isolation.PROCESS and isinstance(result, Ending):  # its process did not end by itself
            self._reports.seat.take(0)
            self.stop()
        self._reports_end(call, result, printed)

    def _reports_end(self, call: RunCall, result: Outcome, printed: str = "") -> None:
        self._world.calls.ends(call.run.tag, result, printed)
        self._reports.end(call.record, result, printed)

    def _abandon(self, call: RunCall) -> None:
        """The call ends; the thread, or the loop with the task on it, is held for a while."""
        if self._vanishes(call):
            return
        self._held.append(call.run.name)
        self._reports.state(0, tuple(self._held))
        self._forget(call)
        self._reports_end(call, Ending.CANCELLED)
        self.system.scheduler.call_at(self.now() + ABANDONED_SECONDS, Later("a thread returns", self._returned))

    def _returned(self) -> None:
        self._held.pop(0)
        self._reports.state(0 if self._held else self._room, tuple(self._held))

    def _die(self, before: bool = False) -> None:
        """With its calls: a process takes its own, a worker of tasks or threads all it has."""
        name = next(iter(self._running.values())).call.run.name if self._running else ToolName("-")
        why = "planned: before it began" if before else "the tool's process was killed by SIGKILL"
        self._world.calls.dies(self, "printed before the end")
        raise WorkerLost(ToolFailure(name, FailureCode.CRASHED, why), "printed before the end")

    def _forget(self, call: RunCall) -> None:
        running = self._running.pop(call.run.tag, None)
        for timer in running.timers if running is not None else ():
            timer.cancel()

    def _later(self, call: RunCall, seconds: float, what: Callable[[], object]) -> None:
        """For a call that runs: its end cancels it."""
        self._running[call.run.tag].timers.append(self.tell_after(seconds, Planned(call, what)))

    def _plan(self, call: RunCall) -> PlannedCall:
        return self._world.plan_of(call.run)

    def _fate(self, call: RunCall) -> WorkerFate:
        return self._faults.fate_of(call.run.tag)

    def _listens(self, call: RunCall) -> bool:
        fate = self._fate(call)
        if fate in _ONLY_IF_STOPPED:
            self._world.reach("worker", fate)
        return fate not in _ONLY_IF_STOPPED and not self._vanishes(call)

    def _vanishes(self, call: RunCall) -> bool:
        """Its worker says nothing more, whatever it is told, until it is gone at last."""
        return self._plan(call).does is ToolDoes.VANISH or self._fate(call) is WorkerFate.VANISHES


def simulated_kind(world: World, faults: WorkerFaults, isolation: Isolation) -> WorkerKind:
    """As the real kinds: a process a call, a loop that takes several, threads that take one after the other."""
    is_loop = isolation in (Isolation.TASK, Isolation.CALLER)
    room = faults.workers if is_loop else 1
    return WorkerKind(
        lambda reports, pool: SimulatedWorker(world, faults, isolation, reports, pool),
        room=room,
        max_workers=MAX_WORKERS if is_loop else faults.workers,
    )

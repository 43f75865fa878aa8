"""Simulated workers: what a ToolPool needs of its workers, in virtual time. The pool above them is the real one.

A worker is starting, ready, busy, or gone and being replaced. What it does with a call is the scenario's `ToolDoes`;
what becomes of the worker itself is its `WorkerFate`.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from callboard.actors.kernel import SimulatedScheduler, Timer
from callboard.actors.testing.faults import WorkerFate, WorkerFaults
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call, Ended, Held, Room
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.testing.outside import LATE_SECONDS, STOP_SECONDS
from callboard.protocol.testing.scenario import PlannedCall, ToolDoes
from callboard.protocol.tools import FailureCode, Isolation, ToolFailure

#: From the kill to the end of a process: some milliseconds, or all of the time after which a pool looks again.
KILL_SECONDS: Final = 1 / 128
SLOW_KILL_SECONDS: Final = 1.0
#: An abandoned thread returns after this long, and takes calls again.
ABANDONED_SECONDS: Final = 10.0


class World(Protocol):
    """What simulated workers need of the run they belong to."""

    scheduler: SimulatedScheduler

    def plan_of(self, run: RunTool) -> PlannedCall:
        """What the scenario holds for this call."""

    def result_of(self, tag: Tag) -> str:
        """What the call returns."""

    def began(self, run: RunTool) -> None:
        """The tool's code runs."""

    def stop_call(self, call: Call) -> None:
        """The dispatcher cancels it on its own account."""

    def tell_late(self, call: Call) -> None:
        """One more outcome of this call, long after its end."""


@dataclass(frozen=True, slots=True)
class Later:
    """A callback with a name for the trace."""

    name: str
    run: Callable[[], object]

    def __call__(self) -> None:
        self.run()

    def describe(self) -> str:
        """For traces."""
        return self.name


class SimulatedWorkers:
    """The workers of one incarnation of one pool."""

    def __init__(
        self, world: World, faults: WorkerFaults, isolation: Isolation, ended: Ended, room: Room, held: Held
    ) -> None:
        self._world = world
        self._faults = faults
        self._isolation = isolation
        self._ended = ended
        self._room = room
        self._held = held
        self._busy: dict[Call, list[Timer]] = {}
        self._holding: Counter[ToolName] = Counter()
        self._ready = 0
        self._is_closed = False
        for _ in range(faults.workers):
            self._start_worker()

    # -- what the pool asks

    def has_room(self) -> bool:
        """A worker is ready."""
        return self._ready > 0 and not self._is_closed

    def start(self, call: Call) -> None:
        """Give the call to a ready worker."""
        fate = self._faults.fate_of(call.run.tag)
        if fate is WorkerFate.NOT_SHIPPED:
            raise UsageError(f"planned: {call.run.name} cannot be shipped")
        if fate is WorkerFate.NOT_STARTED or self._world.plan_of(call.run).does is ToolDoes.REFUSE:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._ready -= 1
        self._busy[call] = []
        plan = self._world.plan_of(call.run)
        seconds = max(plan.seconds, STOP_SECONDS)
        if fate is WorkerFate.DIES_BEFORE:
            self._later(call, STOP_SECONDS / 2, "worker dies", lambda: self._die(call))
            return
        self._world.began(call.run)
        if fate is WorkerFate.DIES_DURING:
            self._later(call, seconds / 2, "worker dies", lambda: self._die(call))
        elif plan.does is ToolDoes.CRASH:
            self._later(call, seconds, "worker dies", lambda: self._die(call))
        elif plan.does in (ToolDoes.STOPPED, ToolDoes.WITHDRAWN):
            self._later(call, seconds, "call is withdrawn", lambda: self._world.stop_call(call))
        elif plan.does in (ToolDoes.COMPLETE, ToolDoes.FAIL):
            self._later(call, seconds, "tool returns", lambda: self._return(call, plan, fate))

    def interrupt(self, call: Call) -> None:
        """A process or task that listens ends within its grace period. A thread cannot be interrupted."""
        if self._isolation is Isolation.THREAD:
            self.kill(call)
        elif call in self._busy and self._listens(call):
            self._later(call, STOP_SECONDS, "tool is interrupted", lambda: self._leave(call, "interrupted"))

    def kill(self, call: Call) -> None:
        """A process is gone soon; a task or thread is abandoned at once, and its thread held for a while."""
        if call not in self._busy or self._world.plan_of(call.run).does is ToolDoes.VANISH:
            return
        if self._isolation is Isolation.PROCESS:
            slow = self._faults.fate_of(call.run.tag) is WorkerFate.SLOW_TO_DIE
            self._later(call, SLOW_KILL_SECONDS if slow else KILL_SECONDS, "worker is killed", lambda: self._die(call))
            return
        self._forget(call)
        self._count(call.run.name, 1)
        self._at(ABANDONED_SECONDS, f"{call.run.name} returns its thread", lambda: self._returned(call.run.name))
        self._ended(call, _crashed(call, "the tool was abandoned"), "")

    def close(self, closed: Callable[[], None]) -> None:
        """End everything; processes take a moment."""
        if self._is_closed:
            return
        self._is_closed = True
        for call in list(self._busy):
            self._forget(call)
        if self._isolation is Isolation.PROCESS:
            self._world.scheduler.call_at(self._world.scheduler.now() + KILL_SECONDS, Later("workers are gone", closed))
        else:
            closed()

    # -- what happens to them

    def lose_one(self) -> None:
        """A worker dies: the one that has been busy longest, else an idle one."""
        call = next((call for call in self._busy if self._world.plan_of(call.run).does is not ToolDoes.VANISH), None)
        if call is not None:
            self._die(call)
        elif self._ready:
            self._ready -= 1
            self._start_worker()

    def _start_worker(self) -> None:
        if self._faults.start_seconds:
            self._at(self._faults.start_seconds, "worker is ready", self._worker_ready)
        else:
            self._ready += 1

    def _worker_ready(self) -> None:
        self._ready += 1
        self._room()

    def _listens(self, call: Call) -> bool:
        deaf = (WorkerFate.IGNORES_INTERRUPT, WorkerFate.SLOW_TO_DIE)
        return (
            self._world.plan_of(call.run).does is not ToolDoes.VANISH and self._faults.fate_of(call.run.tag) not in deaf
        )

    def _return(self, call: Call, plan: PlannedCall, fate: WorkerFate) -> None:
        tag = call.run.tag
        result: Result = self._world.result_of(tag)
        if plan.does is ToolDoes.FAIL:
            result = ToolFailure(call.run.name, FailureCode.TOOL_ERROR, f"planned: {plan.does}")
        self._forget(call)
        if fate is WorkerFate.DIES_AFTER:
            self._start_worker()
        else:
            self._ready += 1
        printed = f"printed by {tag.call_id}"
        self._ended(call, result, printed)
        if plan.doubled or fate is WorkerFate.REPORTS_TWICE:
            self._at(0.0, "worker reports again", lambda: self._ended(call, result, printed))
        if plan.late:
            self._at(LATE_SECONDS, "worker reports late", lambda: self._ended(call, result, printed))
            self._at(LATE_SECONDS, "a late outcome", lambda: self._world.tell_late(call))

    def _die(self, call: Call) -> None:
        """With its call, which ends when the worker is gone."""
        self._leave(call, "the tool's process was killed by SIGKILL")

    def _leave(self, call: Call, why: str) -> None:
        if call in self._busy:
            self._forget(call)
            self._start_worker()
            self._ended(call, _crashed(call, why), "printed before the end")

    def _returned(self, name: ToolName) -> None:
        self._count(name, -1)
        self._worker_ready()

    def _count(self, name: ToolName, change: int) -> None:
        self._holding[name] += change
        self._held(name, self._holding[name])

    def _forget(self, call: Call) -> None:
        for timer in self._busy.pop(call):
            timer.cancel()

    def _later(self, call: Call, seconds: float, what: str, run: Callable[[], object]) -> None:
        """For a busy worker: the call's end cancels it."""
        self._busy[call].append(self._at(seconds, f"{call.run.name} {what}", run))

    def _at(self, seconds: float, what: str, run: Callable[[], object]) -> Timer:
        scheduler = self._world.scheduler
        return scheduler.call_at(scheduler.now() + seconds, Later(what, lambda: None if self._is_closed else run()))


def _crashed(call: Call, why: str) -> ToolFailure:
    return ToolFailure(call.run.name, FailureCode.CRASHED, why)

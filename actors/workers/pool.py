"""ToolPool: runs the calls of one kind (isolation and latency), each to exactly one outcome.

    StartCall --> waiting --> running --> ended            (result, failure, crash)
                     |           '--> ending --> ended     (deadline or StopCall: asked, after a grace period killed)
                     '--> ended                            (deadline or StopCall)

It decides when; how is the business of its workers (process.py, task.py, thread.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from callboard.actors.kernel import Actor, LoopScheduler, MailboxFull, Ref, Scheduler
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call, Ended, Ending, Held, Room, Workers
from callboard.actors.workers.process import ProcessOptions, ProcessWorkers
from callboard.actors.workers.task import TaskWorkers
from callboard.actors.workers.thread import ThreadWorkers
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import TOOL_GRACE_SECONDS
from callboard.protocol.tools import FailureCode, Isolation, ToolFailure

logger = logging.getLogger("callboard.tools")

#: Calls that wait for a worker; more are refused as overloaded. The dispatcher's own queues come before this one.
MAX_WAITING_CALLS: Final = 1_024


@dataclass(frozen=True, slots=True)
class StartCall:
    """Run it; ToolCallStarted and then one terminal event go to `reply_to`."""

    run: RunTool
    tool: Tool
    context: ToolContext
    reply_to: Ref
    has_begun: bool = False
    """It began for a dispatcher that has crashed since: go on if it is here, but do not begin it again."""


@dataclass(frozen=True, slots=True)
class StopCall:
    """Nobody wants the result any more: end the call. Its terminal event is ToolCallCancelled."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class _StopCallAgain:
    tag: Tag


@dataclass(frozen=True, slots=True)
class ThreadsHeld:
    """Calls of this tool that have ended, by their deadline or a cancel, hold so many threads of the pool by now."""

    name: ToolName
    count: int


@dataclass(frozen=True, slots=True)
class _DeadlinePassed:
    call: Call


@dataclass(frozen=True, slots=True)
class _GraceOver:
    call: Call


MakeWorkers = Callable[[Scheduler, Ended, Room, Held], Workers]


def make_workers(isolation: Isolation, options: ProcessOptions) -> MakeWorkers:
    """The real workers of this isolation: processes, tasks or threads, on the loop of a LoopScheduler."""
    table: Mapping[Isolation, Callable[[asyncio.AbstractEventLoop, Ended, Room, Held], Workers]] = {
        Isolation.PROCESS: lambda loop, ended, room, _held: ProcessWorkers(loop, ended, room, options),
        Isolation.TASK: TaskWorkers,
        Isolation.THREAD: ThreadWorkers,
    }

    def make(scheduler: Scheduler, ended: Ended, room: Room, held: Held) -> Workers:
        if not isinstance(scheduler, LoopScheduler):
            raise UsageError("a ToolPool starts real processes and tasks; it needs a LoopScheduler")
        return table[isolation](scheduler.loop, ended, room, held)

    return make


class ToolPool(Actor):
    """See the module. One per isolation and latency. `make` makes its workers; a simulation gives its own."""

    def __init__(
        self,
        isolation: Isolation,
        options: ProcessOptions | None = None,
        make: MakeWorkers | None = None,
        max_waiting_calls: int | None = None,
    ) -> None:
        self._make_workers = make or make_workers(isolation, options or ProcessOptions())
        self._max_waiting_calls = MAX_WAITING_CALLS if max_waiting_calls is None else max_waiting_calls
        self._workers: Workers | None = None
        self._waiting: deque[Call] = deque()
        self._calls: dict[Tag, Call] = {}
        """All that have not ended, those waiting included."""
        self._caller: Ref | None = None
        """Who sent the last call: there is one dispatcher, and it hears of threads that are held."""

    def on_start(self) -> None:
        make = self._make_workers
        workers = self._workers = make(self.system.scheduler, self._ended, self._start_next, self._held)
        # However this incarnation ends, its processes end with it: `on_stop` is not called for a crash or a kill.
        self.system.watch(self.ref, lambda _down: self._let_go(workers))

    def on_receive(self, message: Any) -> Any:
        return _HANDLERS[type(message)](self, message)

    def on_stopping(self) -> bool:
        """Put off until everything that ran is gone."""
        for call in list(self._calls.values()):
            call.ending = Ending.CANCELLED
            self._tell_outcome(call, "", "")
        self._waiting.clear()
        workers, self._workers = self._workers, None
        if workers is None:
            return True
        workers.close(self.stopped)
        return False

    def _let_go(self, workers: Workers) -> None:
        """This actor is dead. Those whose calls it had hear so by their own monitors; nobody is told by us any more."""
        self._workers = None
        self._calls.clear()
        self._waiting.clear()
        workers.close(lambda: None)

    @property
    def open_calls(self) -> int:
        """Calls that run or wait for a worker; 0 at rest."""
        return len(self._calls)

    # -- the way of one call --------------------------------------------------------------------------------------

    def _start_call(self, message: StartCall) -> None:
        run = message.run
        self._caller = message.reply_to
        if run.tag in self._calls:
            logger.warning("call is already running, sent twice: %s", run.tag)
            return
        call = Call(run, message.tool, message.context, message.reply_to)
        if message.has_begun and not message.tool.contract.idempotent:
            why = f"the pool that ran {run.name} was lost, and so was the dispatcher that knew of it"
            self._tell_outcome(call, ToolFailure(run.name, FailureCode.OUTCOME_UNKNOWN, why), "")
            return
        if run.deadline_at <= self.now():
            call.ending = Ending.TIMED_OUT
            self._tell_outcome(call, "", "")
            return
        if len(self._waiting) >= self._max_waiting_calls:
            why = f"{self._max_waiting_calls} calls wait for a worker"
            failure = ToolFailure(run.name, FailureCode.OVERLOADED, why)
            self._tell_outcome(call, failure, "")
            return
        self._calls[run.tag] = call
        call.timer = self.tell_at(run.deadline_at, _DeadlinePassed(call))
        self._waiting.append(call)
        self._start_next()

    def _start_next(self) -> None:
        while self._waiting and self._workers is not None and self._workers.has_room():
            call = self._waiting.popleft()
            try:
                self._workers.start(call)
            except UsageError as error:
                self._tell_outcome(call, ToolFailure(call.run.name, FailureCode.CRASHED, str(error)), "")
            except (OSError, RuntimeError) as error:  # no descriptor, process or thread left: this call's failure only
                why = f"no worker could be started for the tool: {error}"
                self._tell_outcome(call, ToolFailure(call.run.name, FailureCode.OVERLOADED, why), "")
            else:
                call.reply_to.tell_control(ToolCallStarted(call.run.tag, self.now()))

    def _stop_call(self, message: StopCall | _StopCallAgain) -> None:
        if (call := self._calls.get(message.tag)) is not None:
            self._end(call, Ending.CANCELLED)
        elif isinstance(message, StopCall):
            # On the control lane it may have overtaken its StartCall; behind that one it is tried once more.
            with contextlib.suppress(MailboxFull):
                self.ref.tell(_StopCallAgain(message.tag))

    def _deadline_passed(self, message: _DeadlinePassed) -> None:
        self._end(message.call, Ending.TIMED_OUT)

    def _end(self, call: Call, why: Ending) -> None:
        if call.ending is not None or self._calls.get(call.run.tag) is not call:
            return
        call.ending = why
        if call in self._waiting:
            self._waiting.remove(call)
            self._tell_outcome(call, "", "")
        elif self._workers is not None:
            if call.timer is not None:
                call.timer.cancel()
            call.timer = self.tell_after(TOOL_GRACE_SECONDS, _GraceOver(call))
            self._workers.interrupt(call)

    def _grace_over(self, message: _GraceOver) -> None:
        if self._calls.get(message.call.run.tag) is message.call and self._workers is not None:
            self._workers.kill(message.call)

    def _ended(self, call: Call, result: Result, output: str) -> None:
        if self._calls.get(call.run.tag) is call:
            self._tell_outcome(call, result, output)
        self._start_next()

    def _held(self, name: ToolName, count: int) -> None:
        if self._caller is not None:
            self._caller.tell_control(ThreadsHeld(name, count))

    def _tell_outcome(self, call: Call, result: Result, output: str) -> None:
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None  # it holds the call as the call holds it
        self._calls.pop(call.run.tag, None)
        # On the control lane, as the start: an outcome is never refused, and there are no more of them than calls.
        call.reply_to.tell_control(_outcome(call, result, output, self.now()))


def _outcome(call: Call, result: Result, output: str, now: float) -> ToolCallEnd:
    tag = call.run.tag
    if call.ending is Ending.TIMED_OUT:
        return ToolCallTimedOut(tag, now, output)
    if call.ending is Ending.CANCELLED:
        return ToolCallCancelled(tag, now, output)
    if isinstance(result, ToolFailure):
        return ToolCallFailed(tag, now, result, output)
    return ToolCallCompleted(tag, now, result, output)


_HANDLERS: Final[Mapping[type, Callable[[ToolPool, Any], Any]]] = {
    StartCall: ToolPool._start_call,
    StopCall: ToolPool._stop_call,
    _StopCallAgain: ToolPool._stop_call,
    _DeadlinePassed: ToolPool._deadline_passed,
    _GraceOver: ToolPool._grace_over,
}

"""CallerWorker: `async def` tools with isolation="caller", as tasks on the loop from which their question was asked.

They share that loop with the host's own code: they may use what the host has on it, and one that blocks it blocks the
host. A call is cancelled at its deadline and ends whether its task obeys or not. A task that goes on is counted against
its tool until it ends, as an abandoned thread is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.calls.ledger import CallReports, Ending
from callboard.actors.kernel import Actor, Ref, handles, logger_of
from callboard.actors.tools.context import asked_from, context_of
from callboard.actors.tools.invoke import Result
from callboard.actors.tools.resources import LoopResources
from callboard.actors.workers.call_stacks import ReadStack, frames_of_task
from callboard.actors.workers.messages import BeginCode, KillCall, RunCall, StopCall, ToWorker
from callboard.protocol.ids import Tag
from callboard.protocol.tools import FailureCode, ToolFailure

logger = logger_of("callboard.tools")

Loop = asyncio.AbstractEventLoop


_NO_LOOP: Final = (
    "it was asked where no event loop of yours runs (from sync code, over HTTP, or by an earlier process): "
    'say on which it runs with Runtime(loop=...), or give the tool isolation="task"'
)
_WAITS: Final = "the loop from which it was asked waits in a sync method of the runtime: use `await runtime.ask(...)`"
_BLOCKED: Final = "the event loop on which it was to run did not come to it: it is blocked, or does not run"
_CLOSED: Final = "the event loop on which it was to run is closed"
#: For the model.
_NOT_RUN_HINT: Final = "It had no effect. Use another tool, or go on without it."


def _post(loop: Loop, callback: Callable[[], object]) -> bool:
    try:
        loop.call_soon_threadsafe(callback, context=Context())
    except RuntimeError:
        return False
    return True


class _Job(Struct, eq=False):
    call: RunCall
    loop: Loop
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by who has decided whether its code begins."""
    task: asyncio.Task[Result] | None = None
    is_stopping: bool = False
    """It was cancelled: once, since a second time would interrupt what it does to clean up."""

    def take(self) -> bool:
        """Has its code not begun? Then it will not, but by the one that asks."""
        return self.turn.acquire(blocking=False)

    def post(self, callback: Callable[[], object]) -> bool:
        """Run on the loop; False where that is closed."""
        return _post(self.loop, callback)


class _Finished(Struct, frozen=True):
    job: _Job
    result: Result


class _Closed(Struct, frozen=True):
    """What tools kept open on this loop is closed."""

    loop: Loop


class CallerWorker(Actor[ToWorker | ReadStack | _Finished | _Closed]):
    """See the module. One runs all calls, on whichever loops."""

    def __init__(self, reports: CallReports, given: Loop | None) -> None:
        """`given`: on which all of them run; None: each where it was asked."""
        self._reports = reports
        self._given = given
        self._jobs: dict[Tag, _Job] = {}
        self._held: dict[Tag, RunCall] = {}
        """They wait for their go-ahead."""
        self._stuck: list[_Job] = []
        """Their calls have ended, and their tasks have not."""
        self._resources: dict[Loop, LoopResources] = {}
        self._is_stopping = False

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        if not self._reports.begin(call.record):
            return
        if call.record.must_wait(partial(self.ref.tell_control, BeginCode(call.run.tag))):
            self._held[call.run.tag] = call
        else:
            self._start(call)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        if (call := self._held.pop(message.tag, None)) is not None:
            self._start(call)

    def _start(self, call: RunCall) -> None:
        asked = asked_from(call.record.asker)
        loop = self._given or asked.loop
        if loop is None:
            self._refuse(call, _NO_LOOP)
        elif asked.is_waiting and asked.loop is loop:
            self._refuse(call, _WAITS)
        else:
            job = self._jobs[call.run.tag] = _Job(call, loop)
            resources = self._resources_of(loop)
            if not job.post(partial(_begin, job, resources, self.ref)):
                del self._jobs[call.run.tag]
                self._refuse(call, _CLOSED)

    def _refuse(self, call: RunCall, why: str) -> None:
        why = f"{call.run.name} was not run: {why}"
        failure = ToolFailure(call.run.name, FailureCode.TOOL_ERROR, why, retry_hint=_NOT_RUN_HINT)
        self._reports.end(call.record, failure)

    def _resources_of(self, loop: Loop) -> LoopResources:
        for closed in [each for each in self._resources if each.is_closed()]:
            del self._resources[closed]
        if (known := self._resources.get(loop)) is None:
            known = self._resources[loop] = LoopResources(
                loop, lambda keep: asyncio.Task(keep, loop=loop, context=Context())
            )
        return known

    @handles(StopCall)
    def _stop_call(self, message: StopCall) -> None:
        if (held := self._held.pop(message.tag, None)) is not None:
            self._reports.end(held.record, Ending.CANCELLED)
        if (job := self._jobs.get(message.tag)) is None:
            return
        if job.take():
            del self._jobs[message.tag]
            self._reports.not_run(job.call.record, _BLOCKED)
        elif not job.post(partial(_cancel, job)):
            del self._jobs[message.tag]
            self._reports.end(job.call.record, Ending.CANCELLED)

    @handles(KillCall)
    def _kill(self, message: KillCall) -> None:
        if (job := self._jobs.pop(message.tag, None)) is None:
            return
        self._stuck.append(job)
        logger.warning(
            "%s goes on, on the event loop of its caller, after its call was ended", job.call.run.name,
            extra=job.call.run.tag.shown(),
        )  # fmt: skip
        job.call.abandon()
        self._tell_holds()
        self._reports.end(job.call.record, Ending.CANCELLED)

    @handles(ReadStack)
    def _read_stack(self, message: ReadStack) -> None:
        job = self._jobs.get(message.tag)
        if job is None or job.task is None or job.task.done():
            message.refuse("the tool's code does not run now")
        else:
            message.tell(frames_of_task(job.task))

    @handles(_Finished)
    def _finished(self, message: _Finished) -> None:
        job = message.job
        if job in self._stuck:
            self._stuck.remove(job)
            self._tell_holds()
        elif self._jobs.get(job.call.run.tag) is job:
            del self._jobs[job.call.run.tag]
            self._reports.end(job.call.record, message.result)
        self._stop_if_done()

    @handles(_Closed)
    def _closed(self, message: _Closed) -> None:
        self._resources.pop(message.loop, None)
        self._stop_if_done()

    def on_stopping(self) -> bool:
        """Its calls end with it. It waits for their clean-up, at most as long as its supervisor does."""
        self._is_stopping = True
        for call in self._held.values():
            self._reports.end(call.record, Ending.CANCELLED)
        self._held.clear()
        for job in tuple(self._jobs.values()):
            self._reports.end(job.call.record, Ending.CANCELLED)
            if job.take() or not job.post(partial(_cancel, job)):
                del self._jobs[job.call.run.tag]
        for loop, resources in tuple(self._resources.items()):
            jobs = [job for job in self._jobs.values() if job.loop is loop]
            is_used = bool(jobs) or resources.are_open
            if not is_used or not _post(loop, partial(_close, loop, resources, jobs, self.ref)):
                del self._resources[loop]
        return self._is_done

    @property
    def _is_done(self) -> bool:
        return not self._jobs and not self._resources

    def _stop_if_done(self) -> None:
        if self._is_stopping and self._is_done:
            self.stopped()

    def _tell_holds(self) -> None:
        holds = tuple(job.call.record.lane.key for job in self._stuck)
        self._reports.state(self._reports.seat.pool.room, holds)


# -- on the loop


def _begin(job: _Job, resources: LoopResources, worker: Ref[_Finished]) -> None:
    if job.take():
        context = context_of(job.call.record.asker)
        job.task = asyncio.Task(_result(job.call, resources), loop=job.loop, context=context)
        job.task.add_done_callback(partial(_done, job, worker), context=Context())


async def _result(call: RunCall, resources: LoopResources) -> Result:
    try:
        invoker = call.tool.invoker
    except BaseException as error:  # noqa: BLE001 - a tool's types can break the making of its invoker
        return call.unusable(error)
    call = replace(call, context=call.context.keeping(resources.get))
    if (effect := call.record.effect) is None:
        return await invoker.call_async(call.run.arguments, call.context, call.record.report)
    return await call.call_async_within(effect, invoker)


_closing: Final[set[asyncio.Task[None]]] = set()
"""Loops hold their tasks weakly, and the worker may have ended before: it does not wait for a loop that is blocked."""


def _close(loop: Loop, resources: LoopResources, jobs: list[_Job], worker: Ref[_Closed]) -> None:
    closing = asyncio.Task(_close_after([job.task for job in jobs if job.task is not None], resources), loop=loop)
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    closing.add_done_callback(lambda _: worker.tell_control(_Closed(loop)))


async def _close_after(tasks: list[asyncio.Task[Result]], resources: LoopResources) -> None:
    if tasks:
        await asyncio.wait(tasks)
    await resources.close()


def _cancel(job: _Job) -> None:
    if job.task is not None and not job.is_stopping:
        job.is_stopping = True
        job.task.cancel()


def _done(job: _Job, worker: Ref[_Finished], task: asyncio.Task[Result]) -> None:
    name = job.call.run.name
    if not task.cancelled() and task.exception() is None:
        result = task.result()
    else:  # cancelled before its first step, or Ctrl-C
        why = f"{name} was cancelled by the program on whose event loop it ran"
        result = ToolFailure(name, FailureCode.INTERNAL_ERROR, why)
    worker.tell_control(_Finished(job, result))

"""TaskWorker: `async def` tools, on a loop of its own thread. Its calls share the loop, so a call costs microseconds.

What tools keep open (a session, a pool) belongs to the loop on which they made it. So a loop is kept as long as its
work is in time: a call that blocks it makes the others wait. One that has waited for half of its own time goes to
another loop, unless its tool has run here before and so may have something open here. A call that is past its deadline
and does not end when it is cancelled costs the worker its loop: what had not begun is given back and runs elsewhere at
once. Calls that had begun beside it go on where they are, to their result or their own deadline (I10); the worker ends
with the last of them. What one tool does to the loop does not reach the calls of others: its tasks can cancel only
their own, and the methods that change the loop for all (`FENCED`) do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, TypeVarTuple

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.calls.ledger import CallReports, Ending
from callboard.actors.kernel import Actor, Ref, Timer, handles, logger_of
from callboard.actors.kernel.scheduler import SteadyLoop
from callboard.actors.tools.context import context_of
from callboard.actors.tools.invoke import LOOP_ADVICE, Result, text_of
from callboard.actors.workers.call_stacks import ReadStack, frames_of_task, frames_of_thread
from callboard.actors.workers.messages import NO_RESOURCES, BeginCode, KillCall, RunCall, StopCall, ToWorker
from callboard.protocol.ids import Tag
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import TOOL_GRACE_SECONDS
from callboard.protocol.tools import FailureCode, ToolFailure

if TYPE_CHECKING:
    from callboard.actors.tools import resources
else:
    resources = lazy_module("callboard.actors.tools.resources")

logger = logger_of("callboard.tools")

#: Calls on one loop at a time, some 10 kB each: no number of them makes a second loop, on which a tool would not find
#: what it has open on the first.
MAX_TASKS: Final = 65_536
#: Loops of one pool, those given up included: each holds a thread.
MAX_LOOPS: Final = 64
#: A loop that has not come for its orders between two looks is blocked.
LOOK_SECONDS: Final = 0.25
#: Of a call's time, for which it waits for a blocked loop before it is put on another one: the rest is for its code.
WAITING_SHARE: Final = 0.5
#: For what tools keep open on a loop to be closed at its end. The runtime waits for a second of it when it stops.
CLOSE_SECONDS: Final = 5.0
#: Times that what is left on a loop at its end is cancelled: tasks may catch the first.
LAST_CANCELS: Final = 3
#: Methods of a loop by which one tool would take it from all. A call of them is logged and does nothing.
FENCED: Final = (
    "stop", "set_task_factory", "set_default_executor", "set_exception_handler", "shutdown_asyncgens",
    "shutdown_default_executor",
)  # fmt: skip

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


class CallEnded(BaseException):
    """Raised in an async tool that blocks its loop: its time is up."""


class Job(Struct, eq=False):
    """One call on a tool loop."""

    call: RunCall
    waits_until: float = 0.0
    """When it is put on another loop, if this one is blocked."""
    task: ToolTask[Result] | None = None
    is_stopping: bool = False
    """We have cancelled it."""
    is_cancelled_by_others: bool = False

    def failed(self) -> ToolFailure:
        """The result of a call whose task was cancelled from elsewhere than its own code."""
        name = self.call.run.name
        if self.is_cancelled_by_others and not self.is_stopping:
            return ToolFailure(name, FailureCode.INTERNAL_ERROR, f"{name} was cancelled by another tool on its loop")
        why = "the tool did not end when it was asked to, and was abandoned"
        return ToolFailure(name, FailureCode.CRASHED, why)


#: Whose code runs. A task, a callback or a timer has it from the task that made it.
_job_of_context: ContextVar[Job | None] = ContextVar("callboard_job", default=None)


class ToolTask(asyncio.Task[T]):
    """A task of a tool. Tasks of other calls on its loop cannot cancel it."""

    def __init__(
        self,
        coroutine: Coroutine[object, object, T],
        *,
        loop: asyncio.AbstractEventLoop,
        context: Context | None = None,
        **options: Any,
    ) -> None:
        # `options` are those of the running Python's own tasks: `eager_start` since 3.12, which 3.11 does not take.
        self._job = context.get(_job_of_context) if context is not None else _job_of_context.get()
        super().__init__(coroutine, loop=loop, context=context, **options)

    def cancel(self, msg: object | None = None) -> bool:
        """Cancel, unless the code of another call asks for it."""
        asking = _job_of_context.get()
        if self._job is not None and asking is not self._job and not self._job.is_stopping:
            if asking is not None:
                logger.warning("%s tried to cancel a task of %s", asking.call.run.name, self._job.call.run.name)
                return False
            self._job.is_cancelled_by_others = True  # from a thread, which has no such context
        return super().cancel(msg)

    @property
    def job(self) -> Job | None:
        """Whose task it is."""
        return self._job

    def forget_job(self) -> None:
        """It has ended. Its job holds it, and the two would wait for the garbage collector."""
        self._job = None


class _ResourceTask(asyncio.Task[None]):
    """What keeps a resource open for the tools of a loop: none of them can cancel it."""

    def cancel(self, msg: object | None = None) -> bool:
        """Cancel, unless the code of a call asks for it."""
        if (asking := _job_of_context.get()) is not None:
            logger.warning("%s tried to cancel a task that keeps a resource open", asking.call.run.name)
            return False
        return super().cancel(msg)


class SharedLoop(SteadyLoop):
    """What all async tools run on. A lock, an event or a future of asyncio's that other threads share with a tool wakes
    the tool from there: asyncio's own loops would not notice before something else wakes them."""

    is_of_host = False
    thread_id = 0
    """Of the thread that runs it; 0: none does yet."""
    _has_warned = False

    def call_soon(
        self, callback: Callable[[*Arguments], object], *args: *Arguments, context: Context | None = None
    ) -> asyncio.Handle:
        """Also from another thread."""
        if threading.get_ident() == self.thread_id or not self.thread_id:
            return super().call_soon(callback, *args, context=context)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "an asyncio object that an async tool waits for was used on the thread %r; %s",
                threading.current_thread().name,
                LOOP_ADVICE,
            )
        return self.call_soon_threadsafe(callback, *args, context=context)


class ToolLoop:
    """Starts its thread at once; given up, it ends with the last of its calls. Its methods are for the actor."""

    def __init__(self, worker: Ref[_Finished | _LoopGone], name: str) -> None:
        self._worker = worker
        self._loop = SharedLoop()
        self._stop: Callable[[], None] = self._loop.stop
        self._loop.set_exception_handler(self._struck)
        _fence(self._loop)
        self._resources: resources.LoopResources | None = None
        """What tools keep open here."""
        self._orders: deque[tuple[Job | None, bool]] = deque()
        """For the next wake-up: start this job, or cancel it. No job: is there a reason to go on? Each may be obeyed
        twice."""
        self._is_woken = False
        self._batches = 0
        self._jobs: set[Job] = set()
        self._unbegun: dict[Job, None] = {}
        """Those whose code has not begun. Two threads take from it, and each job is taken once."""
        self._begun = 0
        self._abandoned: set[Job] = set()
        """Cancelled, and did not end: the loop does not wait for them."""
        self._is_given_up = False
        self._is_stopping = False
        self._is_over = False
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            self._thread.start()
        except NO_RESOURCES:
            self._loop.close()
            raise

    @property
    def progress(self) -> tuple[int, int] | None:
        """If something waits for the loop, a value that changes as soon as it gets its turn; else None."""
        return (self._batches, self._begun) if self._is_woken or self._unbegun else None

    def start(self, job: Job) -> None:
        """Begin its code, once the loop is woken."""
        self._unbegun[job] = None
        self._orders.append((job, False))

    def cancel(self, job: Job | None) -> None:
        """Cancel it, at once. None: look whether there is a reason to go on."""
        self._orders.append((job, True))
        self.wake()

    def wake(self) -> None:
        """Make the loop look for its orders."""
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._obey_all)

    def frames(self, job: Job) -> str:
        """Where its code is; "" where it has not begun or has ended."""
        task = job.task
        if task is None or task.done():
            return ""
        if asyncio.current_task(self._loop) is task:
            return frames_of_thread(self._thread.ident)
        return frames_of_task(task)

    def take(self, job: Job) -> bool:
        """Has its code not begun? Then it will not begin here any more."""
        return self._unbegun.pop(job, job) is None

    def take_unbegun(self) -> list[Job]:
        """Jobs that have not begun and will not here, in the order in which they came."""
        return [job for job in tuple(self._unbegun) if self.take(job)]

    def unbegun(self) -> tuple[Job, ...]:
        """Jobs that have not begun."""
        return tuple(self._unbegun)

    def blocker(self) -> Job | None:
        """Whose code is on the thread at this moment, as far as that is known."""
        task = asyncio.current_task(self._loop)
        return task.job if isinstance(task, ToolTask) else None

    def give_up(self) -> None:
        """No call will come any more; end when there is none left."""
        self._is_given_up = True
        self.cancel(None)

    def end(self) -> None:
        """End now, with all that runs."""
        self._is_stopping = True
        self.cancel(None)

    def abandon(self, job: Job) -> None:
        """Do not wait for it. Raise CallEnded in its code, if that is what holds the thread at this moment."""
        self._abandoned.add(job)
        if job.task is not None and asyncio.current_task(self._loop) is job.task and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(CallEnded))

    # -- on the thread --------------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.thread_id = threading.get_ident()
        while not self._is_over:
            try:
                self._run_until_over()
            except BaseException as error:  # noqa: BLE001 - raised from another thread, as below
                logger.warning("an exception struck the thread of the async tools; it goes on: %s", text_of(error))
        for name in FENCED:
            vars(self._loop).pop(name, None)
        try:
            if self._resources is not None:  # what closes them may have tasks of its own
                self._cancel_all(is_of_call)
                self._close(self._resources)
            self._cancel_all()
        finally:
            self._loop.close()
            self._worker.tell_control(_LoopGone())

    def _run_until_over(self) -> None:
        while not self._is_over:  # a tool may raise through the loop
            try:
                self._loop.run_forever()
            except BaseException:
                logger.warning("an exception left the event loop of the async tools; it goes on", exc_info=True)
                self._go_on()

    def _struck(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context:  # a callback; of a task that nobody waits for it is told at any time, on any thread
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """An exception has left a callback, perhaps one of ours before it had done all: do what it has left out."""
        self._obey_all()
        for job in tuple(self._jobs):
            if job.task is not None and job.task.done():
                self._done(job, job.task)

    def _obey_all(self) -> None:
        self._is_woken = False  # before the first look: who sends after it will wake us again
        self._batches += 1
        while self._orders:
            self._obey(*self._orders[0])
            self._orders.popleft()

    def _obey(self, job: Job | None, is_cancelled: bool) -> None:
        if job is None:
            self._stop_if_done()
        elif is_cancelled and job.task is not None:
            job.is_stopping = True
            job.task.cancel()
        elif not is_cancelled and (job.task is not None or job in self._unbegun):
            if (task := job.task) is None:
                context = context_of(job.call.record.asker)
                context.run(_job_of_context.set, job)
                task = ToolTask(self._run(job), loop=self._loop, context=context)
            self._keep(job, task)

    def _keep(self, job: Job, task: ToolTask[Result]) -> None:
        """As its task, which tells of its end. Again: nothing."""
        job.task = task
        if job not in self._jobs:
            task.add_done_callback(partial(self._done, job), context=Context())
            self._jobs.add(job)

    async def _run(self, job: Job) -> Result:
        call, task = job.call, asyncio.current_task()
        if job.task is None and isinstance(task, ToolTask):  # an exception struck who had just made it
            self._keep(job, task)
        if job.task is not task or self._unbegun.pop(job, job) is job:
            return job.failed()  # it was taken away meanwhile, and runs elsewhere; or it was made twice
        self._begun += 1
        call.record.code_begins()
        try:
            invoker = call.tool.invoker
        except BaseException as error:  # noqa: BLE001 - a tool's types can break the making of its invoker
            return call.unusable(error)
        try:
            if call.tool.resource is not None:
                self._resources = self._resources or resources.LoopResources(self._loop, self._resource_task)
                call = replace(call, context=call.context.keeping(self._resources.get))
            if (effect := call.record.effect) is None:  # nearly all of them
                return await invoker.call_async(call.run.arguments, call.context, call.record.report)
            return await call.call_async_within(effect, invoker)
        finally:
            _job_of_context.set(None)  # this context is the task's: as in forget_job

    def _done(self, job: Job, task: asyncio.Task[Result]) -> None:
        self._unbegun.pop(job, None)
        if job.task is not None:
            job.task.forget_job()
        # Cancelled before its first step, or CallEnded struck in our own code: the tool's result is lost either way.
        lost = task.cancelled() or task.exception() is not None
        result = job.failed() if lost else task.result()
        if job.is_cancelled_by_others and not isinstance(result, str):
            result = job.failed()
        self._worker.tell_control(_Finished(job, result))
        self._jobs.discard(job)  # last: until then it is told once more after an exception in between
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._is_over and (self._is_stopping or (self._is_given_up and self._jobs <= self._abandoned)):
            self._is_over = True
            self._stop()

    def _resource_task(self, keep: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return _ResourceTask(keep, loop=self._loop, context=Context())

    def _close(self, kept: resources.LoopResources) -> None:
        try:
            self._loop.run_until_complete(asyncio.wait_for(kept.close(), CLOSE_SECONDS))
        except BaseException:
            logger.warning("what async tools kept open could not be closed", exc_info=True)

    def _cancel_all(self, which: Callable[[asyncio.Task[Any]], bool] = lambda _: True) -> None:
        for job in self._jobs:
            job.is_stopping = True
        for _ in range(LAST_CANCELS):
            tasks = [task for task in asyncio.all_tasks(self._loop) if which(task)]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            with contextlib.suppress(CallEnded, RuntimeError):  # RuntimeError: a tool has stopped the loop
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.05))
        for task in filter(which, asyncio.all_tasks(self._loop)):
            logger.warning("an async tool would not end, and is left where it is: %s", task.get_name())
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # just said


def is_of_call(task: asyncio.Task[Any]) -> bool:
    """Has the code of a call made it?"""
    return isinstance(task, ToolTask) and task.job is not None


def _fence(loop: asyncio.AbstractEventLoop) -> None:
    """Keep one tool from changing the loop of all."""

    def refuse(name: str, *_: object) -> asyncio.Future[None]:
        logger.warning("a tool called %s of the loop that all async tools share: ignored", name)
        done: asyncio.Future[None] = loop.create_future()
        done.set_result(None)
        return done  # since some of them are awaited

    loop.set_task_factory(lambda loop, coroutine, **given: ToolTask(coroutine, loop=loop, **given))
    for name in FENCED:
        setattr(loop, name, partial(refuse, name))


# -- the actor


class _Finished(Struct, frozen=True):
    job: Job
    result: Result


class _LoopGone(Struct, frozen=True):
    """The thread of the loop has ended."""


class _Wake(Struct, frozen=True):
    """The loop has orders."""


class _Look(Struct, frozen=True):
    """Time to see whether the loop gets on."""


class _Overdue(Struct, frozen=True):
    """The call has ended, and another one held the loop: has it been cancelled meanwhile, and has it obeyed?"""

    job: Job
    was_asked: bool = False
    """It had been cancelled already when this was last looked at."""


class TaskWorker(Actor[ToWorker | ReadStack | _Finished | _LoopGone | _Wake | _Look | _Overdue]):
    """See the module."""

    def __init__(self, reports: CallReports) -> None:
        self._reports = reports
        self._loop: ToolLoop | None = None
        self._jobs: dict[Tag, Job] = {}
        self._held: dict[Tag, RunCall] = {}
        """They wait for their go-ahead; the loop does not have them yet."""
        self._stuck: list[Job] = []
        """Their calls have ended, and they are still on the thread."""
        self._is_given_up = False
        self._is_stopping = False
        self._is_waking = False
        self._look: Timer | None = None
        self._seen_progress: tuple[int, int] | None = None

    @handles(RunCall)
    def _run(self, call: RunCall) -> None:
        if self._is_given_up:
            self._reports.give_back(call.record, "its loop is blocked")
            return
        try:
            loop = self._loop or self._new_loop()
        except NO_RESOURCES as error:
            self._reports.no_worker(error)
            self.stop()
            return
        if self._reports.begin(call.record):
            if call.record.must_wait(partial(self.ref.tell_control, BeginCode(call.run.tag))):
                self._held[call.run.tag] = call
            else:
                self._start(call, loop)

    @handles(BeginCode)
    def _begin_code(self, message: BeginCode) -> None:
        call = self._held.pop(message.tag, None)
        if call is not None and self._loop is not None:
            self._start(call, self._loop)

    def _start(self, call: RunCall, loop: ToolLoop) -> None:
        now = self.now()
        job = self._jobs[call.run.tag] = Job(call, now + WAITING_SHARE * (call.run.deadline_at - now))
        loop.start(job)
        if not self._is_waking:  # a wake-up costs a system call: calls that wait behind this one share it
            self._is_waking = True
            self.ref.tell_control(_Wake())
        if self._look is None:
            self._look = self.tell_after(LOOK_SECONDS, _Look())

    @handles(_Wake)
    def _wake(self, _: _Wake) -> None:
        self._is_waking = False
        if self._loop is not None:
            self._loop.wake()

    @handles(StopCall)
    def _stop_call(self, message: StopCall) -> None:
        if (held := self._held.pop(message.tag, None)) is not None:
            self._reports.end(held.record, Ending.CANCELLED)
        job = self._jobs.get(message.tag)
        if job is None or self._loop is None:
            return
        if self._loop.take(job):
            del self._jobs[message.tag]
            self._reports.give_back(job.call.record, "its loop was blocked")
        else:
            self._loop.cancel(job)

    @handles(KillCall)
    def _kill(self, message: KillCall) -> None:
        """End the call, and give the loop up: unless another call, whose time is not over, is what holds it."""
        job = self._jobs.pop(message.tag, None)
        if job is None or self._loop is None:
            return
        self._stuck.append(job)
        if self._is_held_by_another(job):
            self._tell_holds()
            self.tell_after(TOOL_GRACE_SECONDS, _Overdue(job))
        else:
            self._abandon(job)
        self._reports.end(job.call.record, Ending.CANCELLED)

    def _is_held_by_another(self, job: Job) -> bool:
        """Does a call that is in time keep the loop from cancelling this one?"""
        if job.is_stopping or self._is_given_up or self._loop is None:
            return False
        blocker = self._loop.blocker()
        return blocker is not None and blocker is not job and self.now() < blocker.call.run.deadline_at

    def _abandon(self, job: Job) -> None:
        if self._loop is not None:
            self._give_up()
            self._loop.abandon(job)
            self._loop.give_up()
            self._tell_holds()

    @handles(_Overdue)
    def _look_at_overdue(self, overdue: _Overdue) -> None:
        job = overdue.job
        if job not in self._stuck or self._is_given_up:
            return
        if overdue.was_asked or not (job.is_stopping or self._is_held_by_another(job)):
            self._abandon(job)
        else:
            self.tell_after(TOOL_GRACE_SECONDS, _Overdue(job, job.is_stopping))

    @handles(ReadStack)
    def _read_stack(self, message: ReadStack) -> None:
        job = self._jobs.get(message.tag)
        found = self._loop.frames(job) if job is not None and self._loop is not None else ""
        if found:
            message.tell(found)
        else:
            message.refuse("the tool's code does not run now")

    @handles(_Finished)
    def _finished(self, message: _Finished) -> None:
        job = message.job
        if job in self._stuck:
            self._stuck.remove(job)
            self._tell_holds()
        elif self._jobs.get(job.call.run.tag) is job:
            del self._jobs[job.call.run.tag]
            self._reports.end(job.call.record, message.result)

    @handles(_LoopGone)
    def _loop_gone(self, _: _LoopGone) -> None:
        """Its thread has ended, with all that it held."""
        self._loop = None
        if self._is_stopping:
            self.stopped()
        else:
            self.stop()

    @handles(_Look)
    def _look_at_loop(self, _: _Look) -> None:
        self._look = None
        if self._loop is None or self._is_given_up:
            return
        progress = self._loop.progress
        if progress is not None and progress == self._seen_progress:
            self._send_elsewhere(self._loop)
        self._seen_progress = progress
        if self._jobs:
            self._look = self.tell_after(LOOK_SECONDS, _Look())

    def _send_elsewhere(self, loop: ToolLoop) -> None:
        """Give back what has waited long enough for the loop, which is blocked."""
        now, seat = self.now(), self._reports.seat
        for job in loop.unbegun():
            record = job.call.record
            if now >= job.waits_until and record.lane.home is not seat and loop.take(job):
                del self._jobs[job.call.run.tag]
                record.left = seat
                self._reports.give_back(record, "its loop was blocked")

    def on_stopping(self) -> bool:
        """Its calls end with it. It waits for their clean-up, at most as long as its supervisor does."""
        self._is_stopping = True
        for call in (*self._held.values(), *(job.call for job in self._jobs.values())):
            self._reports.end(call.record, Ending.CANCELLED)
        self._held.clear()
        self._jobs.clear()
        if self._loop is None:
            return True
        self._loop.end()
        return False

    def _new_loop(self) -> ToolLoop:
        self._loop = loop = ToolLoop(self.ref, f"callboard-tools-{self.name.rpartition('/')[2]}")
        self.at_end(loop.end)
        return loop

    def _give_up(self) -> None:
        """Take no call any more, and give back those that have not begun."""
        if self._is_given_up or self._loop is None:
            return
        self._is_given_up = True
        self._tell_holds()
        for call in self._held.values():
            self._reports.give_back(call.record, "its loop was blocked")
        self._held.clear()
        for job in self._loop.take_unbegun():
            if self._jobs.get(job.call.run.tag) is job:
                del self._jobs[job.call.run.tag]
                self._reports.give_back(job.call.record, "its loop was blocked")
        self._loop.give_up()

    def _tell_holds(self) -> None:
        """What it takes from now on, and the tools of the calls that have ended and are on its thread still."""
        room = 0 if self._is_given_up else self._reports.seat.pool.room
        self._reports.state(room, tuple(job.call.record.lane.key for job in self._stuck))

"""A loop on a thread of its own, for `async def` tools; nothing else runs on it.

It can be given up: then it takes no new call, and its thread ends with the last of those it has. A tool that blocks it
in Python code is sent an exception; one that blocks it in C (`time.sleep`) keeps its thread until it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
from typing import Final

from callboard.actors.kernel.scheduler import new_event_loop
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call
from callboard.actors.workers.loop_queue import LoopQueue

logger = logging.getLogger("callboard.tools")

#: Times that what is left on a loop at its end is cancelled: tasks may catch the first.
LAST_CANCELS: Final = 3


class CallEnded(BaseException):
    """Raised in an async tool that blocks its loop: its time is up."""


class Job:
    """One call on a tool loop."""

    __slots__ = ("call", "given_up", "loop", "task")

    def __init__(self, call: Call, loop: ToolLoop) -> None:
        self.call = call
        self.loop = loop
        self.task: asyncio.Task[Result] | None = None
        self.given_up = False
        """It was cancelled and did not end: nobody waits for it, its loop the least."""


class ToolLoop:
    """Starts its thread at once. Its methods are for the control loop."""

    def __init__(self, results: LoopQueue[tuple[Job, Result]], gone: LoopQueue[ToolLoop], name: str) -> None:
        self._results = results
        self._gone = gone
        self._loop = new_event_loop()
        self._jobs: set[Job] = set()
        self._unbegun: dict[Job, None] = {}
        """Those whose task has not taken its first step. Two threads take from it, and each job is taken once."""
        self._begun = 0
        self._stopping = False
        self._over = False
        self.given_up = False
        self.orders: LoopQueue[Job | None] = LoopQueue(self._loop, self._obey)
        """A job the first time: start it. Again: cancel it. None: look whether there is a reason to go on."""
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def progress(self) -> tuple[int, int] | None:
        """If something waits for the loop, a value that changes as soon as it gets its turn; else None."""
        if self.orders.woken or self._unbegun:
            return self.orders.batches, self._begun
        return None

    def take_unbegun(self) -> list[Job]:
        """Jobs that have not begun and will not here."""
        jobs = []
        with contextlib.suppress(KeyError):
            while True:
                jobs.append(self._unbegun.popitem()[0])
        return jobs[::-1]

    def give_up(self) -> None:
        """No call will come any more; end when there is none left."""
        self.given_up = True
        self.orders.send(None)

    def end(self) -> None:
        """End now, whatever is running."""
        self._stopping = True
        self.give_up()

    def break_off(self, job: Job) -> None:
        """Raise CallEnded in the job's code, if that is what holds the thread at this moment."""
        if job.task is not None and asyncio.current_task(self._loop) is job.task and self._thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(CallEnded))

    # -- on the thread --------------------------------------------------------------------------------------------

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._over:  # a tool may stop the loop, or raise through it
            try:
                self._loop.run_forever()
            except BaseException:
                logger.warning("an exception left the event loop of the async tools; it goes on", exc_info=True)
        try:
            self._cancel_all()
        finally:
            self._loop.close()
            self._gone.send(self)

    def _obey(self, job: Job | None) -> None:
        if job is None:
            self._stop_if_done()
        elif job.task is not None:
            job.task.cancel()
        elif not job.given_up:
            job.task = self._loop.create_task(self._run(job))
            self._jobs.add(job)
            self._unbegun[job] = None
            job.task.add_done_callback(lambda task: self._done(job, task))

    async def _run(self, job: Job) -> Result:
        call = job.call
        if self._unbegun.pop(job, job) is job:
            return call.tool.invoker.lost()  # it was taken away meanwhile, and runs elsewhere
        self._begun += 1
        return await call.tool.invoker.call_async(call.run.arguments, call.context)

    def _done(self, job: Job, task: asyncio.Task[Result]) -> None:
        self._jobs.discard(job)
        self._unbegun.pop(job, None)
        # Cancelled before its first step, or CallEnded struck in our own code: the tool's result is lost either way.
        failed = task.cancelled() or task.exception() is not None
        if job.loop is self:
            self._results.send((job, job.call.tool.invoker.lost() if failed else task.result()))
        self._stop_if_done()

    def _stop_if_done(self) -> None:
        if not self._over and (self._stopping or (self.given_up and all(job.given_up for job in self._jobs))):
            self._over = True
            self._loop.stop()

    def _cancel_all(self) -> None:
        for _ in range(LAST_CANCELS):
            tasks = asyncio.all_tasks(self._loop)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            with contextlib.suppress(CallEnded, RuntimeError):  # RuntimeError: a tool has stopped the loop
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=0.05))
        for task in asyncio.all_tasks(self._loop):
            logger.warning("an async tool would not end, and is left where it stands: %r", task)
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # just said

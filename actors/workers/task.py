"""Task workers: `async def` tools, on a second loop that is kept for them.

Calls share one loop, so that an async call costs microseconds. A call that does not end when it is cancelled, or blocks
the loop, costs that loop: new calls and those not begun go to a fresh one at once. Calls that had begun beside it go on
where they are, to their result or their own deadline; they are not failed for a neighbour's fault (I10).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call, Ended, Held, Room
from callboard.actors.workers.loop_queue import LoopQueue
from callboard.actors.workers.task_loop import Job, ToolLoop
from callboard.protocol.ids import ToolName

#: Calls on the loop at a time: each some 10 kB; tools that wait for a network are what they are.
MAX_TASKS: Final = 1_024
#: A loop that has not come for its orders between two looks is blocked. No async tool may compute for that long.
LOOK_SECONDS: Final = 0.25
#: For loops to cancel what they run, when the pool stops; then they are left alone.
CLOSE_SECONDS: Final = 1.0


class TaskWorkers:
    """The loop in use, and those given up that still have calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended, _room: Room, held: Held) -> None:
        self._control = loop
        self._ended = ended
        self._held = held
        self._results: LoopQueue[tuple[Job, Result]] = LoopQueue(loop, self._finished)
        self._gone: LoopQueue[ToolLoop] = LoopQueue(loop, self._loop_gone)
        self._made = 0
        self._loops: set[ToolLoop] = set()
        self._running: dict[Call, Job] = {}
        self._stuck: set[Job] = set()
        """Given up, and still on the thread of its loop."""
        self._holding: Counter[ToolName] = Counter()
        self._look: asyncio.TimerHandle | None = None
        self._seen_progress: tuple[int, int] | None = None
        self._closed: Callable[[], None] | None = None
        self._current = self._new_loop()

    def has_room(self) -> bool:
        """The loop takes any number, within reason."""
        return len(self._running) < MAX_TASKS

    def start(self, call: Call) -> None:
        """Begin it on the loop."""
        job = self._running[call] = Job(call, self._current)
        self._current.orders.send(job)
        if self._look is None:
            self._look = self._control.call_later(LOOK_SECONDS, self._look_at_loop)

    def interrupt(self, call: Call) -> None:
        """Cancel its task."""
        if (job := self._running.get(call)) is not None:
            job.loop.orders.send(job)

    def kill(self, call: Call) -> None:
        """Give its loop up, and the call with it."""
        job = self._running.pop(call, None)
        if job is None:
            return
        job.given_up = True
        self._stuck.add(job)
        self._count(job, 1)
        self._give_up(job.loop)
        job.loop.break_off(job)
        self._ended(call, call.tool.invoker.lost(), "")

    def close(self, closed: Callable[[], None]) -> None:
        """Cancel everything; told at the latest after CLOSE_SECONDS, when blocked threads are left to themselves."""
        if self._closed is not None:
            return
        self._closed = closed
        self._running.clear()
        if self._look is not None:
            self._look.cancel()
        for loop in self._loops:
            loop.end()
        self._control.call_later(CLOSE_SECONDS, self._all_gone)

    def _new_loop(self) -> ToolLoop:
        self._made += 1
        self._seen_progress = None
        loop = ToolLoop(self._results, self._gone, f"callboard-tools-{self._made}")
        self._loops.add(loop)
        return loop

    def _give_up(self, loop: ToolLoop) -> None:
        if not loop.given_up:
            if loop is self._current:
                self._current = self._new_loop()
                for job in loop.take_unbegun():
                    job.task = None
                    self._move(job)
                for order in loop.orders.take_back():
                    self._move(order)
            loop.give_up()

    def _move(self, job: Job | None) -> None:
        """Begin elsewhere what had not begun; an order to cancel stays with the task that it is for."""
        if job is None:
            return
        if job.task is None and job.given_up:  # it never began, and holds nothing
            self._free(job)
            return
        if job.task is None:
            job.loop = self._current
        job.loop.orders.send(job)

    def _look_at_loop(self) -> None:
        self._look = None
        progress = self._current.progress
        if progress is not None and progress == self._seen_progress:
            self._give_up(self._current)
            progress = None
        self._seen_progress = progress
        if self._running:
            self._look = self._control.call_later(LOOK_SECONDS, self._look_at_loop)

    def _finished(self, ended: tuple[Job, Result]) -> None:
        job, result = ended
        self._free(job)
        if self._running.pop(job.call, None) is not None:
            self._ended(job.call, result, "")

    def _loop_gone(self, loop: ToolLoop) -> None:
        self._loops.discard(loop)
        for job in [job for job in self._stuck if job.loop is loop]:
            self._free(job)
        if not self._loops:
            self._all_gone()

    def _free(self, job: Job) -> None:
        if job in self._stuck:
            self._stuck.remove(job)
            self._count(job, -1)

    def _count(self, job: Job, change: int) -> None:
        name = job.call.tool.name
        self._holding[name] += change
        self._held(name, self._holding[name])

    def _all_gone(self) -> None:
        if self._closed is not None:
            closed, self._closed = self._closed, lambda: None
            closed()

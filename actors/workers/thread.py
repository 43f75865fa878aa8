"""Thread workers: for tools that need the host's own objects. A thread cannot be killed.

At its deadline the call ends and the thread is abandoned: it goes on until its code returns, which nobody hears. It is
counted per tool until then; the dispatcher withdraws a tool that collects them.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call, Ended, Held, Room
from callboard.actors.workers.loop_queue import LoopQueue
from callboard.protocol.ids import ToolName

#: Threads per pool, abandoned ones included.
MAX_THREADS: Final = 64


class WorkerThread:
    """Runs one call after the other."""

    __slots__ = ("_results", "calls")

    def __init__(self, results: LoopQueue[tuple[WorkerThread, Call, Result]], name: str) -> None:
        self._results = results
        self.calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        # A daemon, since a tool that never returns must not keep the process from ending.
        threading.Thread(target=self._main, name=name, daemon=True).start()

    def _main(self) -> None:
        while (call := self.calls.get()) is not None:
            self._results.send((self, call, call.tool.invoker.call(call.run.arguments, call.context)))


class ThreadWorkers:
    """Threads that run, that wait, and that are abandoned."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Ended, room: Room, held: Held) -> None:
        self._ended = ended
        self._room = room
        self._held = held
        self._results: LoopQueue[tuple[WorkerThread, Call, Result]] = LoopQueue(loop, self._finished)
        self._made = 0
        self._idle: list[WorkerThread] = []
        self._running: dict[Call, WorkerThread] = {}
        self._abandoned: dict[Call, WorkerThread] = {}
        self._holding: Counter[ToolName] = Counter()
        self._is_closed = False

    def has_room(self) -> bool:
        """A thread is idle, or one more is allowed."""
        return bool(self._idle) or len(self._running) + len(self._abandoned) < MAX_THREADS

    def start(self, call: Call) -> None:
        """Run it on an idle thread, else on a new one."""
        self._running[call] = thread = self._idle.pop() if self._idle else self._new_thread()
        thread.calls.put(call)

    def interrupt(self, call: Call) -> None:
        """Nothing can be asked of a thread, so there is no grace to wait for: abandon it."""
        self.kill(call)

    def kill(self, call: Call) -> None:
        """Abandon the thread."""
        if (thread := self._running.pop(call, None)) is not None:
            self._abandoned[call] = thread
            self._count(call.tool.name, 1)
            self._ended(call, call.tool.invoker.lost(), "")

    def close(self, closed: Callable[[], None]) -> None:
        """Idle threads end; others when their tool returns."""
        if not self._is_closed:
            self._is_closed = True
            for thread in (*self._idle, *self._running.values(), *self._abandoned.values()):
                thread.calls.put(None)
            self._idle.clear()
            self._running.clear()
            closed()

    def _new_thread(self) -> WorkerThread:
        self._made += 1
        return WorkerThread(self._results, f"callboard-tool-{self._made}")

    def _finished(self, finished: tuple[WorkerThread, Call, Result]) -> None:
        thread, call, result = finished
        if self._is_closed:
            return
        self._idle.append(thread)
        if self._running.pop(call, None) is not None:
            self._ended(call, result, "")
        elif self._abandoned.pop(call, None) is not None:
            self._count(call.tool.name, -1)
            self._room()

    def _count(self, name: ToolName, change: int) -> None:
        self._holding[name] += change
        self._held(name, self._holding[name])

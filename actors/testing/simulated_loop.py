"""asyncio in the virtual time of a simulation: for code that waits for its actors from outside."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from callboard.actors.kernel.system import ActorSystem
from callboard.actors.testing.simulation import SimulatedScheduler

Answered = TypeVar("Answered")
#: What an answer takes is some hundred things at most: what goes on longer never ends.
MOST_STEPS = 10_000


class SimulatedLoop(asyncio.BaseEventLoop):
    """Callbacks run in the order in which they came, each as one thing of the simulation, whose timers it has."""

    def __init__(self, simulation: SimulatedScheduler) -> None:
        super().__init__()
        self._simulation = simulation
        self._waiting: deque[asyncio.Handle] = deque()

    def time(self) -> float:
        """Virtual seconds."""
        return self._simulation.now()

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append(handle)
        self._simulation.call_soon(self._run_oldest)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # of a simulation's threads only one runs

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._simulation.call_at(when, lambda: None if handle.cancelled() else self.call_soon(handle._run))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is let run, and does nothing then."""

    def _run_oldest(self) -> None:
        handle = self._waiting.popleft()
        if handle.cancelled():
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)

    def end(self, system: ActorSystem) -> None:
        """Stop the actors of its simulation, let go of its threads, and close."""
        system.shutdown(5)
        self._simulation.run_until_idle()
        self._simulation.close()
        self.close()

    def outcome(self, coroutine: Coroutine[Any, Any, Answered]) -> Answered | Exception:
        """What it returns or raises, once the simulation has come so far."""
        task = self.create_task(coroutine)
        most = self._simulation.steps + MOST_STEPS
        while not task.done():
            if self._simulation.steps >= most or not self._simulation.step():
                task.cancel()
                return RuntimeError("it waits for what never comes")
        error = task.exception()
        if isinstance(error, Exception):
            return error
        return task.result()

"""How long one call of a model may take in all, and how long nothing may be heard of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import TypeVar

from callboard.providers.adapter import Timeouts

_T = TypeVar("_T")


class CallTimedOut(Exception):
    """The call has taken its total time, or nothing was heard for its idle time."""


class CallDeadline:
    """Both limits of a call, and one timer, which looks at the clock when the nearer of them can have passed.

    asyncio.timeout around each read would cost more than the read, and around the whole generator it would cancel the
    consumer at a moment when that is busy with something else.
    """

    def __init__(self, timeouts: Timeouts) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeouts = timeouts
        #: Not shortened: for what is done about an error once its body has been read.
        self.call_ends_at = self._ends_at = self._loop.time() + timeouts.total_seconds
        self._waits_since = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._passed = ""
        self._timer = self._loop.call_later(min(timeouts.total_seconds, timeouts.idle_seconds), self._look)

    async def run(self, awaited: Awaitable[_T]) -> _T:
        """The value of `awaited`, or CallTimedOut when its time is up first."""
        if self._passed:
            if isinstance(awaited, Coroutine):
                awaited.close()
            raise CallTimedOut(self._passed)
        self._waiting = asyncio.current_task()
        self._waits_since = self._loop.time()
        try:
            return await awaited
        except asyncio.CancelledError:
            # Ours, unless the task was cancelled from elsewhere too: then that is what happens.
            if self._passed and self._waiting is not None and self._waiting.uncancel() == 0:
                raise CallTimedOut(self._passed) from None
            raise
        finally:
            self._waiting = None

    def shorten(self, seconds: float) -> None:
        """End after so many seconds from now, if not sooner."""
        self._ends_at = min(self._ends_at, self._loop.time() + seconds)
        self._timer.cancel()
        self._look()

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now, limits = self._loop.time(), self._timeouts
        silent_at = (self._waits_since if self._waiting is not None else now) + limits.idle_seconds
        if now >= self._ends_at:
            self._passed = f"had not finished its answer after {limits.total_seconds:g} s"
        elif now >= silent_at:
            self._passed = f"sent nothing for {limits.idle_seconds:g} s"
        else:
            self._timer = self._loop.call_at(min(self._ends_at, silent_at), self._look)
            return
        if self._waiting is not None:
            self._waiting.cancel()

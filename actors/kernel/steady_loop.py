"""asyncio's own loop, but that an exception which another thread raises in it costs no callback.

`PyThreadState_SetAsyncExc`, by which libraries end what takes too long in another thread, strikes wherever that thread
is by then: as often as not in the loop itself, between two callbacks. asyncio has taken the next one off its list by
then, and whoever waits for it waits for good. Here one is noted before it is taken, and the note is struck out before
its code begins, with no instruction in between at which CPython looks for such an exception.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from selectors import BaseSelector, SelectorKey
from typing import Final

#: The loop looks at its selector at least once in this time, as asyncio's does.
_LONGEST_WAIT_SECONDS: Final = 24 * 3_600.0
#: Timers that were cancelled are taken out when there are so many, and they are half of all: as asyncio does.
_MANY_CANCELLED: Final = 100


class SteadyLoop(asyncio.SelectorEventLoop):
    """See the module."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int
    _selector: BaseSelector
    _clock_resolution: float
    _debug: bool
    _process_events: Callable[[list[tuple[SelectorKey, int]]], None]
    _taken: asyncio.Handle | None = None
    """Its code has not begun, and it may be on no list."""

    def _run_once(self) -> None:
        if self._debug:  # asyncio's way measures each callback
            super()._run_once()  # type: ignore[misc]
            return
        if self._taken is not None:
            self._put_back(self._taken)
        self._drop_cancelled()
        self._process_events(self._selector.select(self._wait_seconds()))
        self._take_timers()
        ready = self._ready
        for _ in range(len(ready)):
            handle = self._taken = ready[0]
            ready.popleft()
            if handle._cancelled:
                continue
            run, callback, arguments = handle._context.run, handle._callback, handle._args  # type: ignore[attr-defined]
            try:
                self._taken = None
                run(callback, *arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio's Handle does
                told = f"an exception escaped the callback {callback!r}"
                self.call_exception_handler({"message": told, "exception": error, "handle": handle})
        self._taken = None

    def _wait_seconds(self) -> float | None:
        if self._ready or self._stopping:  # type: ignore[attr-defined]
            return 0.0
        if not self._scheduled:
            return None
        return min(max(0.0, self._scheduled[0].when() - self.time()), _LONGEST_WAIT_SECONDS)

    def _take_timers(self) -> None:
        """Those that are due."""
        timers, due = self._scheduled, self.time() + self._clock_resolution
        while timers and timers[0].when() < due:
            handle = self._taken = timers[0]
            heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(handle)
            self._taken = None

    def _drop_cancelled(self) -> None:
        timers = self._scheduled
        if self._timer_cancelled_count > max(_MANY_CANCELLED, len(timers) // 2):
            for each in timers:
                each._scheduled = not each._cancelled  # type: ignore[attr-defined]
            kept = [each for each in timers if not each._cancelled]
            heapq.heapify(kept)
            self._scheduled, self._timer_cancelled_count = kept, 0
            return
        while timers and timers[0]._cancelled:
            timers[0]._scheduled = False  # type: ignore[attr-defined]
            heapq.heappop(timers)
            self._timer_cancelled_count -= 1

    def _put_back(self, handle: asyncio.Handle) -> None:
        self._taken = None
        if handle not in self._ready and not any(each is handle for each in self._scheduled):
            self._ready.appendleft(handle)

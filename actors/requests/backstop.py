"""The backstop behind an answer: its asker does not wait for one that cannot come, since actors or their loop are lost.

It is outside of the actors. While the time of a request runs, its session has to end it by its deadline. While the
request only waits for someone outside, which may take days, nothing has to happen: then the asker looks now and then
whether callboard's loop still runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from callboard.actors.kernel.scheduler import FROZEN_SECONDS

#: Behind the request's deadline: its session has then waited for the tools to be stopped, and the loop was busy once.
ANSWER_GRACE_SECONDS: Final = 5.0
#: Between two looks at the loop while a request only waits. 10,000 of them cost 170 callbacks a second.
LOOK_SECONDS: Final = 60.0
#: The loop has let so many looks pass: one may come at the moment in which a process that was stopped goes on.
LOST_AFTER: Final = 2

Post = Callable[[Callable[[], object]], object]
"""Runs something on callboard's loop; raises RuntimeError where that has ended."""


class Backstop:
    """When to look whether the request is lost. The session tells of its deadline, on its loop; the asker looks."""

    def __init__(self, timeout_seconds: float, post: Post | None = None) -> None:
        """The request has `timeout_seconds` from now. Without `post`, its loop is not looked at."""
        self._deadline_at: float | None = time.monotonic() + timeout_seconds
        self._post = post
        self._went_on_at = 0.0
        """When a look came late."""
        self._unanswered = 0
        """Looks since the loop has answered one."""

    def deadline_moved(self, at: float | None) -> None:
        """When the request must end, by the monotonic clock; None: it only waits."""
        self._deadline_at = at
        self._unanswered = 0

    @property
    def look_seconds(self) -> float:
        """From now to the next look."""
        deadline_at = self._deadline_at
        if deadline_at is None:
            return LOOK_SECONDS if self._unanswered < LOST_AFTER else ANSWER_GRACE_SECONDS
        return max(0.0, self._over_at(deadline_at) - time.monotonic())

    def is_lost(self) -> bool:
        """Look: nothing has ended the request so far. Was it to have ended, or does the loop not run any more?"""
        deadline_at = self._deadline_at
        if deadline_at is not None:
            late_seconds = (now := time.monotonic()) - self._over_at(deadline_at)
            if late_seconds > FROZEN_SECONDS:  # what would have ended the request was stopped, too
                self._went_on_at = now
            return 0.0 <= late_seconds <= FROZEN_SECONDS
        if self._post is None:
            return False
        if self._unanswered >= LOST_AFTER:
            return True
        self._unanswered += 1
        try:
            self._post(self._runs)
        except RuntimeError:
            return True
        return False

    def _over_at(self, deadline_at: float) -> float:
        return max(deadline_at, self._went_on_at) + ANSWER_GRACE_SECONDS

    def _runs(self) -> None:
        self._unanswered = 0


class Watch:
    """Looks from an asyncio loop, until it is cancelled."""

    def __init__(self, backstop: Backstop, lost: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._backstop = backstop
        self._lost = lost
        self._timer = self._loop.call_later(backstop.look_seconds, self._look)

    def _look(self) -> None:
        if self._backstop.is_lost():
            self._lost()
        else:
            self._timer = self._loop.call_later(self._backstop.look_seconds, self._look)

    def cancel(self) -> None:
        """Look no more."""
        self._timer.cancel()

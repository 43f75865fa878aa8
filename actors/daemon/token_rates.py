"""How many requests a minute each token may send."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from callboard.actors.daemon.api_errors import overloaded

#: A burst of as many requests as a token may send in this time is let through.
BURST_SECONDS: Final = 10.0


@dataclass(slots=True)
class TokenBucket:
    """What one token has left: it fills with time, up to a burst."""

    per_second: float
    room: float
    left: float = field(init=False)
    at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.left = self.room

    def take(self, now: float) -> float:
        """0 where there was one; else the seconds until there is."""
        self.left = min(self.room, self.left + (now - self.at) * self.per_second)
        self.at = now
        if self.left >= 1:
            self.left -= 1
            return 0.0
        return (1 - self.left) / self.per_second


class TokenRates:
    """Requests a minute of each token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        """One a token that exists: as many as there are tokens."""

    def check(self, key: str, per_minute: int, whose: str = "this token") -> None:
        """Take one. Raises ApiError, with how long to wait."""
        now = self._clock()
        bucket = self._buckets.get(key)
        if bucket is None or bucket.per_second != per_minute / 60:
            room = max(1.0, per_minute / 60 * BURST_SECONDS)
            bucket = self._buckets[key] = TokenBucket(per_minute / 60, room, now)
        if wait := bucket.take(now):
            raise overloaded(f"{whose} may send {per_minute} requests a minute", wait)

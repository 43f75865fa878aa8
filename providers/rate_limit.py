"""A token bucket for requests and tokens a minute, one per credential, shared by all its requests.

Pure: the clock is given, waiting is the caller's. What the provider reports in its headers corrects the buckets, so
that other users of the same key count too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from callboard.providers.retry import answered_at, retry_after_seconds, wait_seconds

_MINUTE: Final = 60.0

#: (limit, remaining, reset) headers, for requests and for tokens.
_REQUEST_HEADERS: Final = (
    ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    (
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
)
_TOKEN_HEADERS: Final = (
    ("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
)


@dataclass(slots=True)
class _Bucket:
    """Fills at `per_minute`, up to that much; None has no limit. A debt (a call that took more than was guessed) is a
    level below zero."""

    per_minute: float | None
    level: float
    filled_at: float
    blocked_until: float = 0.0

    def wait_seconds(self, amount: float, now: float) -> float:
        """Until `amount` can be taken. More than the bucket holds is let through when it is full."""
        self._fill(now)
        blocked = max(0.0, self.blocked_until - now)
        if self.per_minute is None:
            return blocked
        missing = min(amount, self.per_minute) - self.level
        return max(blocked, missing * _MINUTE / self.per_minute)

    def take(self, amount: float) -> None:
        if self.per_minute is not None:
            self.level -= amount

    def report(self, limit: float | None, remaining: float | None, reset_seconds: float | None, now: float) -> None:
        """What the provider says of its own bucket. It knows only what has reached it: it never raises ours."""
        self._fill(now)
        if self.per_minute is not None and remaining is not None:
            self.level = min(self.level, remaining)
        if remaining == 0 and reset_seconds:
            self.blocked_until = max(self.blocked_until, now + reset_seconds)
        if self.per_minute is not None and limit is not None and limit < self.per_minute:
            self.per_minute = max(limit, 1.0)

    def _fill(self, now: float) -> None:
        if self.per_minute is not None:
            gained = max(0.0, now - self.filled_at) * self.per_minute / _MINUTE
            self.level = min(self.per_minute, self.level + gained)
        self.filled_at = now


class RateLimiter:
    """The limits of one credential. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
    ) -> None:
        self._clock = clock
        now = clock()
        self._requests = _Bucket(requests_per_minute, requests_per_minute or 0.0, now)
        self._tokens = _Bucket(tokens_per_minute, tokens_per_minute or 0.0, now)

    @property
    def counts_tokens(self) -> bool:
        """Is there a limit of tokens? Otherwise nobody need guess how many a call takes."""
        return self._tokens.per_minute is not None

    def acquire(self, tokens: float = 0.0) -> float:
        """Take one request of about so many tokens: 0.0 when it may go now, else the seconds to wait before asking
        again; then nothing was taken."""
        now = self._clock()
        wait = max(self._requests.wait_seconds(1.0, now), self._tokens.wait_seconds(tokens, now))
        if wait <= 0.0:
            self._requests.take(1.0)
            self._tokens.take(tokens)
            return 0.0
        return wait

    def settle(self, guessed_tokens: float, used_tokens: float) -> None:
        """The call is over and took `used_tokens`: the difference is given back, or owed."""
        self._tokens.take(used_tokens - guessed_tokens)

    def on_headers(self, status: int, headers: Mapping[str, str]) -> None:
        """What an answer's headers (lower case names) say; a 429 closes the limiter for as long as it asks."""
        now, wall = self._clock(), answered_at(headers)
        for bucket, rows in ((self._requests, _REQUEST_HEADERS), (self._tokens, _TOKEN_HEADERS)):
            for limit, remaining, reset in rows:
                if remaining in headers:
                    seconds = wait_seconds(headers[reset], wall) if reset in headers else None
                    bucket.report(_number(headers.get(limit)), _number(headers[remaining]), seconds, now)
        if status == 429:
            asked = retry_after_seconds(headers, now=wall)
            self._requests.blocked_until = max(self._requests.blocked_until, now + (asked or 0.0))


class RateLimits:
    """One limiter for each credential. The key itself is not kept: its hash tells credentials apart."""

    def __init__(self, clock: Callable[[], float], limits: Mapping[str, tuple[float | None, float | None]]) -> None:
        """`limits`: (requests, tokens) a minute by provider name."""
        self._clock = clock
        self._limits = limits
        self._limiters: dict[tuple[str, int], RateLimiter] = {}

    def limiter(self, provider: str, api_key: str | None) -> RateLimiter:
        """The limiter that all users of this credential share."""
        place = (provider, hash(api_key))
        if place not in self._limiters:
            requests, tokens = self._limits.get(provider, (None, None))
            self._limiters[place] = RateLimiter(self._clock, requests, tokens)
        return self._limiters[place]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None

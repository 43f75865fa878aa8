"""A token bucket for requests and tokens a minute, one per credential, shared by all its requests.

Pure: the clock is given, waiting is the caller's. What the provider reports in its headers corrects the buckets, so
that other users of the same key count too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Final

from callboard.protocol.limits import MAX_RETRY_AFTER_SECONDS
from callboard.providers import retry

_MINUTE: Final = 60.0
#: Of an amount: after the time that was to be waited, sums of floats may lack so much. A wait for it would not end
#: where the clock is not finer.
_ROUNDING: Final = 1e-9
#: The longest that one answer can close a limiter, for all requests of a credential. Limits are per minute; a provider
#: that names a later time (or sends garbage) is asked again after this, and refuses that one call where it meant it.
MAX_BLOCK_SECONDS: Final = 300.0


class _Bucket:
    """Fills at `per_minute`, up to that much; None: no limit. Below zero is a debt: a call took more than guessed."""

    __slots__ = ("_blocked_until", "_configured", "_filled_at", "_level", "per_minute")

    def __init__(self, per_minute: float | None, now: float) -> None:
        self.per_minute = self._configured = per_minute
        self._level = per_minute or 0.0
        self._filled_at = now
        self._blocked_until = 0.0

    def wait_seconds(self, amount: float, now: float, chance: Callable[[], float]) -> float:
        """Until `amount` can be taken. More than the bucket holds is let through when it is full."""
        self._fill(now)
        blocked = 0.0
        if self._blocked_until > now:
            blocked = retry.spread(self._blocked_until - now, chance())
        if self.per_minute is None:
            return blocked
        missing = min(amount, self.per_minute) - self._level
        return max(blocked, missing * _MINUTE / self.per_minute) if missing > _ROUNDING else blocked

    def take(self, amount: float) -> None:
        if self.per_minute is not None:
            self._level -= amount

    def settle(self, more: float) -> None:
        """A call took `more` than was taken for it, or less. An answer with absurd usage owes one minute's amount."""
        if self.per_minute is not None:
            self._level = min(self.per_minute, self._level - min(more, self.per_minute))

    def block(self, seconds: float, now: float) -> None:
        """Let nothing through for so long, MAX_BLOCK_SECONDS at most."""
        self._blocked_until = max(self._blocked_until, now + min(seconds, MAX_BLOCK_SECONDS))

    def report(self, limit: float | None, remaining: float | None, reset_seconds: float | None, now: float) -> None:
        """What the provider says of its own bucket. It knows only what has reached it: it never raises ours.

        The last limit it named counts, so that a wrong one is forgotten with the next answer; one below 1 is none.
        """
        self._fill(now)
        if self._configured is not None and limit is not None and limit >= 1.0:
            self.per_minute = min(self._configured, limit)
        if self.per_minute is not None and remaining is not None:
            self._level = min(self._level, max(remaining, 0.0))
        if remaining == 0 and reset_seconds:
            self.block(reset_seconds, now)

    def _fill(self, now: float) -> None:
        if self.per_minute is not None:
            gained = max(0.0, now - self._filled_at) * self.per_minute / _MINUTE
            self._level = min(self.per_minute, self._level + gained)
        self._filled_at = now


class RateLimiter:
    """The limits of one credential. `clock` is monotonic, in seconds; `chance`, from [0, 1), spreads those who wait."""

    def __init__(
        self,
        clock: Callable[[], float],
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._clock = clock
        self._chance = chance
        now = clock()
        self._requests = _Bucket(requests_per_minute, now)
        self._tokens = _Bucket(tokens_per_minute, now)

    @property
    def counts_tokens(self) -> bool:
        """Is there a limit of tokens? Otherwise there is no need to guess how many a call takes."""
        return self._tokens.per_minute is not None

    def acquire(self, tokens: float = 0.0) -> float:
        """Take one request of about so many tokens and return 0.0, or take nothing and return the seconds to wait."""
        now = self._clock()
        wait = max(
            self._requests.wait_seconds(1.0, now, self._chance), self._tokens.wait_seconds(tokens, now, self._chance)
        )
        if wait > 0.0:
            return wait
        self._requests.take(1.0)
        self._tokens.take(tokens)
        return 0.0

    def settle(self, guessed_tokens: float, used_tokens: float) -> None:
        """The call is over and took `used_tokens`: the difference is given back, or owed."""
        self._tokens.settle(used_tokens - guessed_tokens)

    def on_headers(self, status: int, headers: Mapping[str, str]) -> None:
        """What an answer's headers (lower case names) say; a 429 closes the limiter for as long as it asks.

        One that asks for more than is ever waited for refuses its own call, and does not hold up the others.
        """
        now, wall = self._clock(), retry.answered_at(headers)
        for bucket, rows in ((self._requests, retry.REQUEST_LIMITS), (self._tokens, retry.TOKEN_LIMITS)):
            for names in rows:
                if names.remaining in headers:
                    seconds = retry.wait_seconds(headers[names.reset], wall) if names.reset in headers else None
                    limit = retry.finite_number(headers.get(names.limit, ""))
                    bucket.report(limit, retry.finite_number(headers[names.remaining]), seconds, now)
        if status == 429:
            seconds = retry.retry_after_seconds(headers, now=wall)
            if seconds is not None and seconds <= MAX_RETRY_AFTER_SECONDS:
                self._requests.block(seconds, now)


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

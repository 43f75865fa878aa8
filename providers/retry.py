"""Is a failed model call tried again, and after how long? A pure decision; waiting is the caller's.

The curve is tenacity's jittered exponential. What the provider asked for (Retry-After and its kin) is the least we
wait; where that is longer than the cap, no try can succeed in time and there is none.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tenacity import RetryCallState, Retrying, wait_exponential

from callboard.protocol.model import Error

#: Two tries cure nearly all passing faults; beyond four the provider is down, and a fallback is better.
DEFAULT_MAX_ATTEMPTS: Final = 4
DEFAULT_BASE_SECONDS: Final = 0.5
#: Longest pause between tries. Rate limits are per minute, so a wait of that length can still help.
DEFAULT_CAP_SECONDS: Final = 60.0
#: Waiting exactly as told makes all waiting requests come back in the same instant: up to a tenth is added.
_SPREAD: Final = 0.1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently."""

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    """Tries of one call, the first one included."""
    base_seconds: float = DEFAULT_BASE_SECONDS
    cap_seconds: float = DEFAULT_CAP_SECONDS
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """From [0, 1): the jitter. A simulation passes its own."""

    def delay_seconds(self, attempt: int, error: Error) -> float | None:
        """Seconds until the next try after try number `attempt` (the first is 1) ended in `error`; None: give up."""
        if attempt >= self.max_attempts or not error.retryable:
            return None
        asked = error.retry_after or 0.0
        if asked > self.cap_seconds:
            return None
        curve = self._curve_seconds(attempt)
        jittered = curve * (0.5 + 0.5 * self.chance())
        spread = asked * (1.0 + _SPREAD * self.chance())
        return min(max(jittered, spread), self.cap_seconds)

    def _curve_seconds(self, attempt: int) -> float:
        state = RetryCallState(Retrying(), None, (), {})
        state.attempt_number = attempt
        return wait_exponential(multiplier=self.base_seconds, max=self.cap_seconds)(state)

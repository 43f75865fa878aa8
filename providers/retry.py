"""Is a failed model call tried again, and after how long? A pure decision; waiting is the caller's.

The curve is tenacity's jittered exponential. What the provider asked for (Retry-After and its kin) is the least we
wait; where that is longer than the cap, no try can succeed in time and there is none.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

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


_UNIT_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|us|µs|ns|h|m|s))+")

#: (headers "remaining", "reset") of the limits that providers report. A reset says how long to wait only when
#: nothing remains.
LIMIT_HEADERS: Final = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
)

#: Epoch numbers above this are milliseconds (OpenRouter's X-RateLimit-Reset), not seconds.
_EPOCH_MILLISECONDS_FROM: Final = 1e11
#: A number above this is a point in time, not a time to wait.
_EPOCH_FROM: Final = 1e9


def duration_seconds(text: str) -> float | None:
    """A Go or protobuf duration ("12ms", "17.4s", "1m0s") or a bare number of seconds; None for anything else."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
    return _number(text)


def wait_seconds(text: str, now: datetime) -> float | None:
    """The wait that a header value means: a duration, seconds, an HTTP date, an RFC 3339 time or an epoch time."""
    value = duration_seconds(text)
    if value is None:
        moment = _moment(text)
        return None if moment is None else max(0.0, (moment - now).total_seconds())
    if value >= _EPOCH_FROM:
        value = (value / 1000 if value >= _EPOCH_MILLISECONDS_FROM else value) - now.timestamp()
    return max(0.0, value)


def retry_after_seconds(headers: Mapping[str, str], body: Any = None, now: datetime | None = None) -> float | None:
    """The wait which the answer asks for, None where it does not say. Header names are in lower case.

    `now` is what dates are compared with; None: the time at which the answer was given.
    """
    now = now or answered_at(headers)
    from_body = _retry_info(body)
    if from_body is not None:
        return from_body
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    if "retry-after" in headers:
        seconds = wait_seconds(headers["retry-after"], now)
        if seconds is not None:
            return seconds
    return _reset_of_exhausted(headers, now)


def answered_at(headers: Mapping[str, str]) -> datetime:
    """When the answer was given, by the provider's own clock: the one its reset times are meant by. Ours, where it has
    no date."""
    return _moment(headers.get("date", "")) or datetime.now(UTC)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """OpenAI's x-should-retry, where it is sent; it overrules the kind of the error."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())


def _reset_of_exhausted(headers: Mapping[str, str], now: datetime) -> float | None:
    waits = [
        wait_seconds(headers[reset], now)
        for remaining, reset in LIMIT_HEADERS
        if reset in headers and _number(headers.get(remaining, "")) == 0
    ]
    known = [wait for wait in waits if wait is not None]
    return max(known) if known else None


def _retry_info(body: Any) -> float | None:
    """Gemini puts google.rpc.RetryInfo into error.details; the delay stands nowhere else."""
    error = body.get("error") if isinstance(body, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict) and isinstance(delay := detail.get("retryDelay"), str):
            return duration_seconds(delay)
    return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _moment(text: str) -> datetime | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None

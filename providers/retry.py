"""Whether a failed model call is tried again, and when: tenacity decides, by what a provider asks for.

Waiting is the caller's. Of the waits that an answer names the most exact one counts: the body's RetryInfo,
`retry-after-ms`, `retry-after`, the reset times of the limits that are used up, then the words of its message.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Final, NamedTuple

from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.limits import MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error
from callboard.providers.json_values import Json, JsonObject

if TYPE_CHECKING:
    from email import utils as email_utils

    import tenacity
else:  # most programs see no model call fail
    email_utils = lazy_module("email.utils")
    tenacity = lazy_module("tenacity")

#: What is added to a wait at the most: as much again, of long ones 2 s or a tenth.
_SPREAD_SECONDS: Final = 2.0
_SPREAD_SHARE: Final = 0.1

_UNIT_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)")
_DURATION: Final = re.compile(f"(?:{_DURATION_PART.pattern})+")
#: A wait in words: "Please try again in 7m54.3s" (OpenAI, Groq: continue 10920; openai/codex reads it), "Please retry
#: after 4 seconds" (Azure: sample-app-aoai-chatGPT 406), "Please retry in 58.8s" (Gemini), "Please wait 54 seconds
#: before retrying" (GitHub Models), "try again in 4 days 20 hours" (codex 3257), "Your quota will reset after 3h5m".
_WORD_SECONDS: Final = {
    **dict.fromkeys(("ms", "msec", "millisecond"), 1e-3),
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("m", "min", "minute"), 60.0),
    **dict.fromkeys(("h", "hr", "hour"), 3_600.0),
    **dict.fromkeys(("d", "day"), 86_400.0),
}
_WORD_PART: Final = re.compile(
    rf"(\d{{1,15}}(?:\.\d{{1,15}})?) ?({'|'.join(sorted(_WORD_SECONDS, key=len, reverse=True))})s?(?![a-z])",
    re.IGNORECASE,
)
_WAIT: Final = re.compile(
    r"\b(?:(?:try|retry)(?: again| your request)?|retrying|resets?|available|wait)(?: again)?:? "
    r"(?:(?:in|after|for|at least):? )?(?:about |approximately |~ ?)?"
    rf"((?:{_WORD_PART.pattern}[, ]{{0,2}}(?:and )?){{1,5}})",
    re.IGNORECASE,
)
#: Epoch numbers above this are milliseconds (OpenRouter's X-RateLimit-Reset), not seconds.
_EPOCH_MILLISECONDS_FROM: Final = 1e11
#: A number above this may be a point in time. It is one if it lies near the time of the answer; else it is a time to
#: wait, however absurd.
_EPOCH_FROM: Final = 1e9
_EPOCH_NEAR_SECONDS: Final = 400 * 86_400.0


class LimitHeaders(NamedTuple):
    """Where a provider reports one of its limits. A reset says how long to wait only when nothing remains."""

    limit: str
    remaining: str
    reset: str


def _limit(pattern: str) -> LimitHeaders:
    return LimitHeaders(*(pattern.format(part) for part in LimitHeaders._fields))


REQUEST_LIMITS: Final = (_limit("x-ratelimit-{}-requests"), _limit("anthropic-ratelimit-requests-{}"))
TOKEN_LIMITS: Final = (_limit("x-ratelimit-{}-tokens"), _limit("anthropic-ratelimit-tokens-{}"))
_MORE_LIMITS: Final = ("x-ratelimit-{}", "anthropic-ratelimit-input-tokens-{}", "anthropic-ratelimit-output-tokens-{}")
_ALL_LIMITS: Final = (*REQUEST_LIMITS, *TOKEN_LIMITS, *map(_limit, _MORE_LIMITS))


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patiently a failed model call is tried again: a jittered exponential. How often, its step's budget says."""

    base_seconds: float = 0.5
    cap_seconds: float = MAX_RETRY_AFTER_SECONDS
    """The longest pause between tries, but for the spread; a provider that asks for a longer one is not tried again."""
    chance: Callable[[], float] = field(default=random.random, repr=False)
    """From [0, 1): the jitter. A simulation passes its own."""

    def tries(self, attempts: int, deadline_at: float, now: Callable[[], float]) -> Tries:
        """At most `attempts` tries of one call; none of them begins at `deadline_at` or later, by the clock `now`."""
        return Tries(self, attempts, deadline_at, now)

    def controller(self, attempts: int, deadline_at: float, now: Callable[[], float]) -> tenacity.Retrying:
        """What decides, for `Tries`."""
        half = tenacity.wait_exponential(self.base_seconds / 2, self.cap_seconds / 2)
        last = tenacity.stop_after_attempt(attempts)

        def wait(state: tenacity.RetryCallState) -> float:
            error = _error_of(state)
            if error.at_once:
                return 0.0
            told = spread(error.retry_after or 0.0, self.chance())
            # tenacity's own jitter draws from a generator that no simulation can replace.
            return max(min(half(state) + half(state) * self.chance(), self.cap_seconds), told)

        def stop(state: tenacity.RetryCallState) -> bool:
            return last(state) or now() + state.upcoming_sleep >= deadline_at

        return tenacity.Retrying(
            retry=tenacity.retry_if_result(_is_retryable) & tenacity.retry_if_not_result(self._asks_too_much),
            wait=wait,
            stop=stop,
            retry_error_callback=_error_of,
        )

    def _asks_too_much(self, error: Error) -> bool:
        return (error.retry_after or 0.0) > self.cap_seconds


class Tries:
    """The tries of one call. The caller makes them and waits; tenacity's controller says which comes next.

        tries.begin()                 # once before each try
        pause = tries.failed(error)   # seconds until the next one; None: give up

    What tenacity measures by the system's clock is for its statistics: no decision here looks at it.
    """

    # Nearly every call is whole at the first try, and tenacity's objects for it are 35: they are made when one fails.
    __slots__ = ("_attempts", "_deadline_at", "_has_begun", "_now", "_policy", "_state")

    def __init__(self, policy: RetryPolicy, attempts: int, deadline_at: float, now: Callable[[], float]) -> None:
        self._policy = policy
        self._attempts = attempts
        self._deadline_at = deadline_at
        self._now = now
        self._has_begun = False
        self._state: tenacity.RetryCallState | None = None

    def begin(self) -> None:
        """The next try begins. Raises RuntimeError where there is none to come."""
        state = self._state
        may_begin = (
            not self._has_begun if state is None else isinstance(state.retry_object.iter(state), tenacity.DoAttempt)
        )
        if not may_begin:
            raise RuntimeError("the try before has not ended, or there may be no other")
        self._has_begun = True

    def failed(self, error: Error) -> float | None:
        """The try has ended so: the seconds until the next one; None where there is none."""
        state = self._state = self._state or self._first()
        state.set_result(error)
        decided = state.retry_object.iter(state)
        if not isinstance(decided, tenacity.DoSleep):
            return None
        state.prepare_for_next_attempt()
        return float(decided)

    def _first(self) -> tenacity.RetryCallState:
        controller = self._policy.controller(self._attempts, self._deadline_at, self._now)
        controller.begin()
        return tenacity.RetryCallState(controller, None, (), {})


def _error_of(state: tenacity.RetryCallState) -> Error:
    assert state.outcome is not None
    error = state.outcome.result()
    assert isinstance(error, Error)
    return error


def _is_retryable(error: Error) -> bool:
    return error.retryable


def spread(seconds: float, chance: float) -> float:
    """A wait that others have been asked for too, by a `chance` from [0, 1): waiting exactly as long makes all of them
    come back in the same instant, to be refused together once more."""
    return seconds + chance * max(min(seconds, _SPREAD_SECONDS), seconds * _SPREAD_SHARE)


def duration_seconds(text: str) -> float | None:
    """A Go or protobuf duration ("12ms", "17.4s", "1m0s") or a bare number of seconds; None for anything else."""
    text = text.strip()
    if _DURATION.fullmatch(text):
        total = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(text))
        return total if isfinite(total) else None
    return finite_number(text)


def wait_seconds(text: str, now: datetime) -> float | None:
    """The wait that a header value means: a duration, seconds, an HTTP date, an RFC 3339 time or an epoch time."""
    value = duration_seconds(text)
    if value is None:
        moment = _moment(text)
        return None if moment is None else max(0.0, (moment - now).total_seconds())
    if value >= _EPOCH_FROM:
        until = (value / 1000 if value >= _EPOCH_MILLISECONDS_FROM else value) - now.timestamp()
        value = until if abs(until) < _EPOCH_NEAR_SECONDS else value
    return max(0.0, value)


def retry_after_seconds(headers: Mapping[str, str], body: Json = None, now: datetime | None = None) -> float | None:
    """The wait which the answer asks for, None where it does not say. Header names are in lower case; dates are
    compared with `now`, or else with the time at which the answer was given."""
    now = now or answered_at(headers)
    if (from_body := _retry_info(body)) is not None:
        return from_body
    if (milliseconds := finite_number(headers.get("retry-after-ms", ""))) is not None:
        return max(0.0, milliseconds / 1000)
    if (seconds := wait_seconds(headers.get("retry-after", ""), now)) is not None:
        return seconds
    waits = [
        wait_seconds(headers[names.reset], now)
        for names in _ALL_LIMITS
        if names.reset in headers and finite_number(headers.get(names.remaining, "")) == 0
    ]
    return max((wait for wait in waits if wait is not None), default=None)


def wait_in_words(message: str) -> float | None:
    """The wait in seconds that a message names; None where it names none."""
    found = _WAIT.search(message)
    if found is None:
        return None
    return sum(float(number) * _WORD_SECONDS[unit.lower()] for number, unit in _WORD_PART.findall(found[1]))


def answered_at(headers: Mapping[str, str]) -> datetime:
    """When the answer was given, by the provider's clock, as its reset times are; by ours where it has no date."""
    return _moment(headers.get("date", "")) or datetime.now(UTC)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """OpenAI's x-should-retry, where it is sent; it overrules the kind of the error."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").lower())


def finite_number(text: str) -> float | None:
    """The number that a header holds; None for anything else, and for NaN and the infinities."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _retry_info(body: Json) -> float | None:
    """Gemini puts google.rpc.RetryInfo into error.details; the delay is nowhere else."""
    error = body.get("error") if isinstance(body, dict) else None
    for detail in details_of(error):
        if isinstance(delay := detail.get("retryDelay"), str):
            wait = duration_seconds(delay)
            return None if wait is None else max(0.0, wait)
    return None


def details_of(error: Json) -> list[JsonObject]:
    """What Gemini's errors carry beside their message: google.rpc.RetryInfo, ErrorInfo and others."""
    details = error.get("details") if isinstance(error, dict) else None
    return [detail for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []


@lru_cache(maxsize=256)
def _moment(text: str) -> datetime | None:
    """A provider's `date` is another one once a second, and each takes 40 us to read."""
    for parse in (datetime.fromisoformat, email_utils.parsedate_to_datetime):
        try:
            moment = parse(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None

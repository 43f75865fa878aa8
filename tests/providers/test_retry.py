"""When a failed model call is tried again, and when it is given up."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace
from tenacity import Retrying

from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.model import Error
from callboard.providers.http_errors import make_error
from callboard.providers.retry import RetryPolicy, spread

BUSY = make_error(ErrorKind.OVERLOADED, "busy")
NEVER = float("inf")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pauses(policy: RetryPolicy, *errors: Error, attempts: int = 99, deadline_at: float = NEVER) -> list[float | None]:
    """What follows each of these errors in turn; the clock goes on by each pause."""
    clock, found = Clock(), []
    tries = policy.tries(attempts, deadline_at, clock)
    for error in errors:
        tries.begin()
        found.append(pause := tries.failed(error))
        if pause is None:
            break
        clock.now += pause
    return found


def test_pauses_grow_and_stay_below_the_cap() -> None:
    most = RetryPolicy(base_seconds=1, cap_seconds=8, chance=lambda: 1.0)
    assert pauses(most, *[BUSY] * 6) == [1, 2, 4, 8, 8, 8]
    least = RetryPolicy(base_seconds=1, cap_seconds=8, chance=lambda: 0.0)
    assert pauses(least, *[BUSY] * 4) == [0.5, 1, 2, 4]


@pytest.mark.parametrize(("after", "most"), [(20.0, 22.0), (30.0, 33.0), (60.0, 66.0), (1.0, 2.0)])
@pytest.mark.parametrize("chance", [0.0, 0.999])
def test_what_the_provider_asked_for_is_the_least_and_a_little_more_the_most(
    after: float, most: float, chance: float
) -> None:
    (pause,) = pauses(RetryPolicy(chance=lambda: chance), make_error(ErrorKind.RATE_LIMITED, "m", retry_after=after))
    assert pause is not None
    assert after <= pause <= most


def test_a_wait_past_the_cap_is_not_kept() -> None:
    assert pauses(RetryPolicy(), make_error(ErrorKind.RATE_LIMITED, "m", retry_after=61.0)) == [None]


def test_what_was_put_right_needs_no_pause_but_takes_a_try() -> None:
    stale = replace(make_error(ErrorKind.CONNECTION, "closed"), at_once=True)
    policy = RetryPolicy(base_seconds=1, chance=lambda: 1.0)
    assert pauses(policy, stale, BUSY, stale, attempts=3) == [0.0, 2.0, None]


def test_when_to_give_up() -> None:
    assert pauses(RetryPolicy(chance=lambda: 0.0), BUSY, BUSY, BUSY, attempts=3) == [0.25, 0.5, None]
    assert pauses(RetryPolicy(), BUSY, attempts=1) == [None]
    assert pauses(RetryPolicy(), make_error(ErrorKind.AUTHENTICATION, "no")) == [None]
    assert pauses(RetryPolicy(), make_error(ErrorKind.AUTHENTICATION, "no", retryable=True))[0] is not None


def test_no_try_begins_at_the_deadline_or_later() -> None:
    policy = RetryPolicy(base_seconds=1, chance=lambda: 1.0)
    assert pauses(policy, *[BUSY] * 9, deadline_at=7.01) == [1, 2, 4, None]
    assert pauses(policy, *[BUSY] * 9, deadline_at=7.0) == [1, 2, None]


def test_a_try_that_may_not_be_made_is_refused() -> None:
    tries = RetryPolicy().tries(1, NEVER, Clock())
    tries.begin()
    assert tries.failed(BUSY) is None
    with pytest.raises(RuntimeError, match="may be no other"):
        tries.begin()


@example(2, ErrorKind.RATE_LIMITED, 58.0, 0.5)  # told to wait nearly the cap, which the spread passes
@given(st.integers(1, 40), st.sampled_from(ErrorKind), st.none() | st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_tries_are_never_more_and_pauses_never_longer(
    attempts: int, kind: ErrorKind, retry_after: float | None, chance: float
) -> None:
    policy = RetryPolicy(chance=lambda: chance)
    error = make_error(kind, "m", retry_after=retry_after)
    found = pauses(policy, *[error] * (attempts + 9), attempts=attempts)
    assert len(found) <= attempts
    assert found[-1] is None, "it ends"
    for pause in found[:-1]:
        assert pause is not None
        assert kind in RETRYABLE_KINDS
        assert (retry_after or 0) <= pause <= spread(policy.cap_seconds, chance)


def test_tenacity_drives_the_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its controller is asked after each failed try and before each later one; a call that does not fail needs none."""
    seen: list[Retrying] = []
    asked = Retrying.iter

    def watched(self: Retrying, retry_state: object) -> object:
        seen.append(self)
        return asked(self, retry_state)  # type: ignore[arg-type]

    monkeypatch.setattr(Retrying, "iter", watched)
    RetryPolicy().tries(3, NEVER, Clock()).begin()
    assert not seen
    assert pauses(RetryPolicy(chance=lambda: 0.0), *[BUSY] * 3, attempts=3) == [0.25, 0.5, None]
    assert len(seen) == 5
    assert (seen[0].statistics["attempt_number"], seen[0].statistics["idle_for"]) == (3, 0.75)

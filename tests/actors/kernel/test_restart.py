"""The restart decision, a pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel.restart import (
    Backoff,
    Budget,
    ExitReason,
    History,
    Restart,
    wants_restart,
)

BACKOFF = Backoff(initial_seconds=1.0, maximum_seconds=4.0, jitter=0.5, reset_after_seconds=100.0)

gaps = st.lists(st.floats(0.001, 50), max_size=30)


@given(gaps, st.integers(0, 5), st.floats(0.1, 100))
def test_escalates_exactly_when_more_than_intensity_fail_within_the_period(
    between: list[float], intensity: int, period: float
) -> None:
    history, now, times = History(), 0.0, list[float]()
    for gap in between:
        now += gap
        times.append(now)
        history = history.after(now, Budget(intensity, period), BACKOFF)
        within = sum(now - at < period for at in times)
        assert (len(history.failures) > intensity) == (within > intensity)


@given(gaps, st.floats(0, 1, exclude_max=True))
def test_delays_double_up_to_the_maximum_and_begin_anew_after_a_healthy_time(
    between: list[float], chance: float
) -> None:
    backoff = Backoff(initial_seconds=1.0, maximum_seconds=4.0, jitter=0.5, reset_after_seconds=20.0)
    history, now, streak = History(), 0.0, 0
    last = None
    for gap in between:
        now += gap
        streak = 1 if last is None or now - last >= 20.0 else streak + 1
        last = now
        history = history.after(now, Budget(1000, 1.0), backoff)
        full = 0.0 if streak == 1 else min(4.0, 2.0 ** (streak - 2))
        assert backoff.delay_seconds(history.streak, chance) == pytest.approx(full * (1 - 0.5 * chance))


def test_delays_of_a_crash_loop() -> None:
    assert [BACKOFF.delay_seconds(n, 0.0) for n in range(1, 7)] == [0.0, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert BACKOFF.delay_seconds(10_000, 0.0) == 4.0


@pytest.mark.parametrize(
    ("restart", "reasons"),
    [
        (Restart.PERMANENT, {ExitReason.NORMAL, ExitReason.CRASHED, ExitReason.KILLED}),
        (Restart.TRANSIENT, {ExitReason.CRASHED, ExitReason.KILLED}),
        (Restart.TEMPORARY, set()),
    ],
)
def test_which_ends_call_for_a_restart(restart: Restart, reasons: set[ExitReason]) -> None:
    ends = set(ExitReason) - {ExitReason.NOT_ALIVE}
    assert {reason for reason in ends if wants_restart(restart, reason)} == reasons


def test_impossible_numbers_are_refused() -> None:
    for make in (
        lambda: Backoff(initial_seconds=2, maximum_seconds=1),
        lambda: Backoff(jitter=1.5),
        lambda: Backoff(reset_after_seconds=-1),
        lambda: Budget(-1, 1),
        lambda: Budget(1, 0),
    ):
        with pytest.raises(ValueError, match=r"got|cannot"):
            make()

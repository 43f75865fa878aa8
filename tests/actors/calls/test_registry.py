"""Withdrawal as a pure decision."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.calls.registry import (
    FAILURE_BUDGET,
    FAILURE_WINDOW_SECONDS,
    MAX_WITHDRAWN_SECONDS,
    WITHDRAWN_SECONDS,
    ToolHealth,
)


def test_the_budget_is_what_it_says() -> None:
    health = ToolHealth()
    assert not any(health.record_failure(0.0) for _ in range(FAILURE_BUDGET))
    assert health.record_failure(0.0)
    assert not health.is_offered(WITHDRAWN_SECONDS - 0.001)
    assert health.is_offered(WITHDRAWN_SECONDS)


def test_failures_outside_the_window_are_forgotten() -> None:
    health = ToolHealth()
    assert not any(health.record_failure(n * FAILURE_WINDOW_SECONDS / FAILURE_BUDGET) for n in range(100))


def test_success_does_not_wipe_out_failures_of_a_tool_in_good_standing() -> None:
    health = ToolHealth()
    for _ in range(FAILURE_BUDGET):
        health.record_failure(0.0)
        assert not health.record_success(0.0)
    assert health.record_failure(0.0)


def test_a_tool_that_serves_many_is_not_withdrawn_for_a_few() -> None:
    health = ToolHealth()
    for _ in range(100):
        assert not health.record_failure(0.0)
        for _ in range(20):
            health.record_success(0.0)
    assert [health.record_failure(0.0) for _ in range(FAILURE_BUDGET)].count(True) == 1, "as soon as it does break"


def test_the_pause_doubles_up_to_its_maximum_and_starts_anew_after_a_restore() -> None:
    health = ToolHealth()
    now = 0.0
    for _ in range(FAILURE_BUDGET + 1):
        health.record_failure(now)
    pauses = []
    for _ in range(8):
        assert health.withdrawn_until is not None
        pauses.append(health.withdrawn_until - now)
        now = health.withdrawn_until
        assert health.record_failure(now)
    assert pauses[:3] == [WITHDRAWN_SECONDS, 2 * WITHDRAWN_SECONDS, 4 * WITHDRAWN_SECONDS]
    assert max(pauses) == pauses[-1] == MAX_WITHDRAWN_SECONDS
    assert health.withdrawn_until is not None
    assert health.record_success(health.withdrawn_until)
    assert health.pause_seconds == WITHDRAWN_SECONDS


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 40)), max_size=80))
def test_a_withdrawn_tool_is_always_offered_again_in_time(steps: list[tuple[bool, float]]) -> None:
    health, now = ToolHealth(), 0.0
    for ok, pause in steps:
        now += pause
        was_offered = health.is_offered(now)
        changed = health.record_success(now) if ok else health.record_failure(now)
        if changed and not ok:
            assert was_offered
            assert not health.is_offered(now)
        assert len(health.failures) <= FAILURE_BUDGET + 1
        assert health.is_offered(now + MAX_WITHDRAWN_SECONDS)

"""Withdrawal as a pure decision, and what the policy makes of the tools."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.calls.registry import (
    FAILURE_BUDGET,
    FAILURE_WINDOW_SECONDS,
    MAX_HELD_THREADS,
    MAX_WITHDRAWN_SECONDS,
    WITHDRAWN_SECONDS,
    Registry,
    ToolHealth,
)
from callboard.actors.tools import tool
from callboard.protocol.ids import ToolName
from callboard.protocol.policy import TABLES, Policy, Trust
from callboard.protocol.tools import RETRY_HINTS, Decision, FailureCode, Risk, ToolContract


@tool(isolation="thread")
def bare(x: int = 0) -> int:
    return x


@tool(isolation="thread", risk="write")
def write(x: int = 0) -> int:
    return x


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


def broken(registry: Registry, name: ToolName) -> None:
    """As many failures as withdraw a tool."""
    while registry.judge(name, worked=False, now=0.0) is None:
        pass


def test_a_call_of_a_withdrawn_tool_is_told_for_how_long() -> None:
    registry = Registry([bare])
    broken(registry, bare.name)
    refused = registry.refusal(bare.name, 4.2)
    assert refused is not None
    assert refused.code is FailureCode.WITHDRAWN
    assert f"in {WITHDRAWN_SECONDS - 4:g} s." in refused.retry_hint, "rounded up, so that it is not too early"
    assert registry.refusal(bare.name, WITHDRAWN_SECONDS) is None


def test_where_it_is_not_known_how_long_a_tool_is_withdrawn_no_time_is_said() -> None:
    registry = Registry([bare])
    registry.hold("worker", (bare.name,) * MAX_HELD_THREADS, 0.0)
    refused = registry.refusal(bare.name, 1.0)
    assert refused is not None
    assert refused.retry_hint == RETRY_HINTS[FailureCode.WITHDRAWN]


@pytest.mark.parametrize(("tool_", "decision"), [(bare, Decision.ASK), (bare.owned, Decision.ALLOW)])
def test_an_undeclared_tool_is_asked_about_when_it_came_from_elsewhere(tool_: object, decision: Decision) -> None:
    assert isinstance(tool_, type(bare))
    (offer,) = Registry([tool_]).offers(0.0)
    assert (offer.contract.risk, offer.decision, offer.is_shown) == (Risk.UNDECLARED, decision, True)


def test_a_tool_whose_risk_has_no_row_is_denied_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A policy written before a tool was undeclared must not lose it without a trace."""
    with caplog.at_level(logging.WARNING, "callboard.tools"):
        registry = Registry([bare.owned, write.owned], Policy({Risk.WRITE: Decision.DENY}))
    (told,) = caplog.messages
    assert told == "tool bare is not offered: its risk is undeclared, which the policy has no row for"
    assert [offer.is_shown for offer in registry.offers(0.0)] == [False, False]


def test_a_policy_that_decides_by_itself_is_asked_before_a_missing_row_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class AllowsAll(Policy):
        def decide(self, contract: ToolContract) -> Decision:
            return Decision.ALLOW

    with caplog.at_level(logging.WARNING, "callboard.tools"):
        (offer,) = Registry([bare.owned], AllowsAll({})).offers(0.0)
    assert (offer.decision, caplog.messages) == (Decision.ALLOW, [])


def test_the_default_policy_has_a_row_for_every_risk() -> None:
    assert set(TABLES[Trust.BALANCED]) == set(Risk)


def test_threads_that_a_tool_holds_count_still_when_it_comes_back() -> None:
    """From whatever source; and once they have returned, it holds none."""
    registry = Registry()
    registry.replace("one", [bare])
    registry.hold("worker", (ToolName("bare"),) * MAX_HELD_THREADS, 0.0)
    registry.replace("one", [])
    registry.replace("other", [bare])
    assert registry.refusal(ToolName("bare"), 0.0) is not None
    registry.hold("worker", (), 1.0)
    assert registry.entries[ToolName("bare")].health.held_threads == 0
    assert registry.refusal(ToolName("bare"), 1.0) is None

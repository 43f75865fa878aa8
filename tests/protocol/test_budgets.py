"""What a step may cost, and what was spent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.budgets import Spending, Stop, allow_step
from callboard.protocol.commands import Outcome
from callboard.protocol.model import Sampling, Usage
from callboard.protocol.options import RequestOptions

OPTIONS = RequestOptions("sim/model")


def estimate() -> Usage:
    return Usage(7, 3)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 60), st.integers(1, 500))
def test_an_allowed_step_fits_the_token_budget(used: int, needs: int, last: int, budget: int) -> None:
    spent = Spending(counted=Usage(used), last_output_tokens=last)
    allowed = allow_step(replace(OPTIONS, token_budget=budget), spent, needs)
    if isinstance(allowed, int):
        assert used + needs + allowed <= budget
        assert allowed >= last
    else:
        assert isinstance(allowed, Stop)
        assert allowed.outcome is Outcome.TOKEN_LIMIT


def test_the_tightest_limit_of_the_answer_counts() -> None:
    options = replace(OPTIONS, sampling=Sampling(max_output_tokens=50), token_budget=100)
    assert allow_step(options, Spending(), 20) == 50
    assert allow_step(options, Spending(), 70) == 30
    assert allow_step(OPTIONS, Spending(), 10**9) is None


PRICED = replace(OPTIONS, input_price=0.01, output_price=0.02)


def test_a_step_that_would_pass_the_cost_budget_is_not_asked() -> None:
    options = replace(PRICED, cost_budget=1.0)
    assert allow_step(options, Spending(charged=0.4), 10) == 25
    stop = allow_step(options, Spending(charged=0.8), 10)
    assert isinstance(stop, Stop)
    assert stop.reason == "The next step costs about $0.4200; of the budget of $1.0000, $0.8000 are spent."


@pytest.mark.parametrize("prices", [{}, {"input_price": 0.1}, {"output_price": 0.1}])
def test_a_cost_budget_without_prices_allows_nothing(prices: dict[str, float]) -> None:
    stop = allow_step(replace(OPTIONS, cost_budget=1.0, **prices), Spending(), 10)
    assert isinstance(stop, Stop)
    assert stop.outcome is Outcome.COST_LIMIT


def test_an_unknown_cost_makes_the_sum_unknown_and_is_charged_by_the_prices() -> None:
    spent = Spending()
    assert not spent.add(Usage(10, 1), 0.5, estimate, PRICED)
    assert (spent.cost, spent.charged) == (0.5, 0.5)
    assert not spent.add(Usage(10, 5), None, estimate, PRICED)
    assert not spent.add(Usage(10, 1), 0.25, estimate, PRICED)
    assert (spent.cost, spent.charged) == (None, pytest.approx(0.95))
    free = Spending()
    assert not free.add(Usage(10, 5), None, estimate, OPTIONS)
    assert (free.cost, free.charged) == (None, 0.0), "without prices there is no budget"


def test_usage_is_estimated_where_a_provider_reports_none() -> None:
    spent = Spending()
    assert not spent.add(Usage(1, 1), 0.5, estimate, OPTIONS)
    assert spent.usage == Usage(1, 1)
    assert not spent.add(None, 0.0, estimate, OPTIONS)
    assert not spent.add(Usage(1, 1), 0.5, estimate, OPTIONS)
    assert (spent.usage, spent.counted, spent.total_tokens) == (None, Usage(9, 5), 14)
    assert (spent.cost, spent.last_output_tokens) == (1.0, 1)


def test_a_report_of_no_tokens_is_a_report_and_counts_as_estimated() -> None:
    spent = Spending()
    assert not spent.add(Usage(), 0.0, estimate, OPTIONS)
    assert (spent.usage, spent.counted) == (Usage(), Usage(7, 3))


def test_input_that_a_provider_leaves_out_is_estimated() -> None:
    """A prompt is never empty, but some servers report none for one that they hold in a cache."""
    spent = Spending()
    assert not spent.add(Usage(0, 2), None, estimate, PRICED)
    assert (spent.usage, spent.counted, spent.total_tokens) == (Usage(0, 2), Usage(7, 2), 9)
    assert (spent.cost, spent.charged, spent.last_output_tokens) == (None, pytest.approx(0.11), 2)


NAN = float("nan")
BAD_USAGES = (Usage(NAN), Usage(1, -1), Usage(10**9), Usage(1, 1, reasoning_tokens=NAN), Usage(1, 1, -3))  # type: ignore[arg-type]


@pytest.mark.parametrize("usage", BAD_USAGES, ids=str)
def test_a_usage_that_cannot_be_true_is_estimated_and_told(usage: Usage) -> None:
    spent = Spending()
    assert (
        spent.add(usage, 0.0, estimate, OPTIONS)
        == "The provider's usage of this step cannot be true; estimated instead."
    )
    assert (spent.usage, spent.counted) == (None, Usage(7, 3))


@pytest.mark.parametrize("cost", [NAN, float("inf"), -0.01, 1e5])
def test_a_cost_that_cannot_be_true_goes_by_the_prices_and_is_told(cost: float) -> None:
    spent, priced = Spending(), replace(OPTIONS, input_price=0.5, output_price=2.0)
    assert "cost" in spent.add(Usage(4, 1), cost, estimate, priced)
    assert (spent.cost, spent.charged) == (4.0, 4.0)
    assert "usage and cost" in spent.add(Usage(-1), cost, lambda: Usage(2, 1), OPTIONS)
    assert (spent.cost, spent.charged) == (None, 4.0), "without prices it is not known"
    assert (spent.usage, spent.counted) == (None, Usage(6, 2))


@given(st.builds(Usage, *[st.integers(0, 10**6)] * 5), st.floats(0, 1_000))
def test_a_plain_report_is_believed(usage: Usage, cost: float) -> None:
    spent = Spending()
    assert spent.add(usage, cost, estimate, OPTIONS) == ""
    assert (spent.cost, spent.charged) == (cost, cost)
    estimated = Usage() if usage.input_tokens else Usage(7) if usage.total_tokens else Usage(7, 3)
    assert (spent.usage, spent.counted) == (usage, usage + estimated if usage.total_tokens else estimated)

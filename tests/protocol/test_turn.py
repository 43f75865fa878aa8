"""Judging and tidying one turn; repeated calls; budgets; token estimates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.budgets import Allowance, Spending, Stop, allow_step
from callboard.protocol.commands import Outcome
from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    UserMessage,
    history_faults,
    is_json_object,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, Sampling, Usage
from callboard.protocol.options import RequestOptions
from callboard.protocol.prompt import IMAGE_TOKENS, estimate_tokens, message_tokens
from callboard.protocol.step import Repeats, Repetition, cancelled, failed_result
from callboard.protocol.testing.outside import respond
from callboard.protocol.testing.scenario import PlannedTurn
from callboard.protocol.testing.strategies import model_turns
from callboard.protocol.turn import Verdict, canonical_arguments, judge, tidy

OPTIONS = RequestOptions("sim/model")


@given(model_turns())
def test_a_tidied_turn_is_legal_once_its_calls_have_results(planned: PlannedTurn) -> None:
    turn = tidy(respond(planned, ModelRequest("m", ())))
    results = [failed_result(asked.call, cancelled(asked.call.name, "test")) for asked in turn.calls]
    if turn.message.parts:
        assert history_faults((turn.message, *results)) == []
    for asked in turn.calls:
        assert (asked.arguments is None) == (asked.call.arguments == "{}" and not asked.call.complete)
        assert asked.arguments is None or is_json_object(asked.received)


@given(model_turns(), st.booleans())
def test_every_turn_has_a_verdict_and_a_cut_one_is_not_asked_for_ever(planned: PlannedTurn, may_retry: bool) -> None:
    response = respond(planned, ModelRequest("m", ()))
    verdict, reason = judge(response, tidy(response), may_retry)
    assert may_retry or verdict is not Verdict.ASK_AGAIN
    assert reason or verdict not in (Verdict.FAIL, Verdict.ASK_AGAIN)


def test_tidy_keeps_thinking_and_signed_empty_texts() -> None:
    signed = Text("", Replay("gemini", {"signature": "s"}))
    thought = Thinking("hm", Replay("anthropic", {"signature": "t"}))
    assert tidy(ModelResponse((thought, Text(""), signed))).message.parts == (thought, signed)


def test_a_filtered_turn_asks_for_nothing() -> None:
    call = ToolCall(CallId("a"), ToolName("look"), "{}")
    assert tidy(ModelResponse((Text("x"), call), FinishReason.CONTENT_FILTER)).calls == ()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"b":1, "a":{"d":1,"c":2}}', '{"a":{"c":2,"d":1},"b":1}'),
        ("{}", "{}"),
        ("[]", None),
        ("", None),
        ('{"a":', None),
        ("null", None),
        ('{"a":"\ud800"}', None),
    ],
)
def test_canonical_arguments(text: str, canonical: str | None) -> None:
    assert canonical_arguments(text) == canonical


def test_a_lone_surrogate_in_a_failure_is_escaped() -> None:
    call = ToolCall(CallId("a"), ToolName("look"), "{}")
    assert "\\ud800" in failed_result(call, cancelled(ToolName("look"), "\ud800")).content


def test_repeats_are_counted_in_steps() -> None:
    a, b = (ToolName("look"), b"a"), (ToolName("look"), b"b")
    repeats = Repeats(3)
    assert repeats.next_step([a, a, b]) == [Repetition.NONE] * 3
    assert repeats.next_step([a]) == [Repetition.NONE]
    assert repeats.next_step([b, a]) == [Repetition.NONE, Repetition.TELL]
    assert repeats.next_step([a]) == [Repetition.STOP]
    assert Repeats(0).next_step([a]) == [Repetition.NONE], "0 is no limit"


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 60), st.integers(1, 500))
def test_an_allowed_step_fits_the_token_budget(used: int, needs: int, last: int, budget: int) -> None:
    spent = Spending(Usage(used), last_output_tokens=last)
    allowed = allow_step(replace(OPTIONS, token_budget=budget), spent, needs)
    if isinstance(allowed, Allowance):
        assert allowed.max_output_tokens is not None
        assert used + needs + allowed.max_output_tokens <= budget
        assert allowed.max_output_tokens >= last
    else:
        assert allowed.outcome is Outcome.TOKEN_LIMIT


def test_the_tightest_limit_of_the_answer_counts() -> None:
    options = replace(OPTIONS, sampling=Sampling(max_output_tokens=50), token_budget=100)
    assert allow_step(options, Spending(), 20) == Allowance(50)
    assert allow_step(options, Spending(), 70) == Allowance(30)
    assert allow_step(OPTIONS, Spending(), 10**9) == Allowance(None)


def test_a_cost_budget_without_prices_goes_by_the_last_step() -> None:
    options = replace(OPTIONS, cost_budget=1.0)
    assert allow_step(options, Spending(cost=0.4, last_cost=0.4), 10) == Allowance(None)
    stop = allow_step(options, Spending(cost=0.8, last_cost=0.4), 10)
    assert isinstance(stop, Stop)
    assert stop.reason == "The next step costs about $0.4000; of the budget of $1.0000, $0.8000 are spent."


def test_usage_is_estimated_where_a_provider_reports_none() -> None:
    spent = Spending()
    spent.add(ModelResponse((Text("x"),)), 0.0, Usage(7, 3))
    spent.add(ModelResponse((Text("x"),), usage=Usage(1, 1)), 0.5, Usage(7, 3))
    assert (spent.usage, spent.cost, spent.last_output_tokens) == (Usage(8, 4), 0.5, 1)


def test_token_estimates() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("x" * 32) == 10
    assert message_tokens(UserMessage((Image(url="http://localhost/x"),)), estimate_tokens) > IMAGE_TOKENS
    searched = AssistantMessage((ServerTool("search", Replay("anthropic", {"found": "x" * 400})),))
    assert message_tokens(searched, estimate_tokens) > 100
    assert message_tokens(SystemMessage("abc"), len) == 9

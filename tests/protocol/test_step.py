"""Judging and tidying one turn, loop detection, and the failures that a session reports."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import (
    Replay,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    history_faults,
    is_json_object,
    json_text,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse
from callboard.protocol.step import Repeats, TurnVerdict, canonical_arguments, failure, judge, tidy
from callboard.protocol.testing.outside import respond
from callboard.protocol.testing.scenario import PlannedTurn
from callboard.protocol.testing.strategies import model_turns
from callboard.protocol.tools import FailureCode


@given(model_turns())
def test_a_tidied_turn_is_legal_once_its_calls_have_results(planned: PlannedTurn) -> None:
    turn = tidy(respond(planned, ModelRequest("m", ())))
    results = [ToolMessage(call.call_id, call.name, "{}") for call in turn.calls]
    if turn.message.parts:
        assert history_faults((turn.message, *results)) == []
    for call, (name, arguments) in zip(turn.calls, turn.signatures, strict=True):
        assert name == call.name
        assert is_json_object(arguments) if call.complete else call.arguments == "{}"


@given(model_turns(), st.booleans())
def test_every_turn_has_a_verdict_and_a_cut_one_is_not_asked_for_ever(planned: PlannedTurn, may_retry: bool) -> None:
    response = respond(planned, ModelRequest("m", ()))
    verdict, reason = judge(response, tidy(response), may_retry)
    assert may_retry or verdict is not TurnVerdict.ASK_AGAIN
    assert reason or verdict not in (TurnVerdict.FAIL, TurnVerdict.ASK_AGAIN)


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
    assert "\\ud800" in json_text(failure(FailureCode.CANCELLED, ToolName("look"), "\ud800").to_wire())


def test_repeats_are_counted_in_steps() -> None:
    a, b = (ToolName("look"), "a"), (ToolName("look"), "b")
    repeats = Repeats(3)
    assert repeats.next_step([a, a, b]) == ([False] * 3, False), "asked twice in a step, it is not a repetition"
    assert repeats.next_step([a]) == ([False], False)
    assert repeats.next_step([b, a]) == ([False, True], False)
    assert repeats.next_step([a, b]) == ([True, False], True)
    assert repeats.next_step([]) == ([], False)
    assert repeats.next_step([a]) == ([False], False), "after a step without it, it is counted from 1 again"


@pytest.mark.parametrize(("limit", "told_at", "ends_at"), [(3, 3, 4), (2, 2, 3), (1, 2, 3), (0, None, None)])
def test_a_repetition_is_told_at_the_limit_and_ends_the_run_after_it(
    limit: int, told_at: int | None, ends_at: int | None
) -> None:
    repeats = Repeats(limit)
    steps = [(count, *repeats.next_step([(ToolName("look"), "a")])) for count in range(1, 9)]
    assert next((count for count, repeated, _ in steps if repeated == [True]), None) == told_at
    assert next((count for count, _, ends_run in steps if ends_run), None) == ends_at

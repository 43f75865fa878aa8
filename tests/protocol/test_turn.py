"""Judging and tidying one turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import (
    Replay,
    Text,
    Thinking,
    ToolCall,
    history_faults,
    is_json_object,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse
from callboard.protocol.step import cancelled, failed_result
from callboard.protocol.testing.outside import respond
from callboard.protocol.testing.scenario import PlannedTurn
from callboard.protocol.testing.strategies import model_turns
from callboard.protocol.turn import TurnVerdict, canonical_arguments, judge, tidy


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

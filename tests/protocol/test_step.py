"""Judging and tidying one turn, loop detection, and the failures that a session reports."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.content import (
    Replay,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    half_arguments,
    history_faults,
    is_json_object,
    json_text,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import MAX_REMEMBERED_CALLS
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse
from callboard.protocol.step import Repeats, TurnVerdict, canonical_arguments, digest, failure, judge, tidy
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
        assert is_json_object(arguments) if call.complete else call.arguments == half_arguments(arguments)


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


LIMIT = 3
Made = tuple[str, str]
"""Of a call: its arguments, and its result."""


def made(repeats: Repeats, *calls: Made) -> tuple[list[bool], bool]:
    """One step in which these calls are asked for; those that are not refused give their results."""
    keys = [digest("look", arguments) for arguments, _ in calls]
    refused, ends_run = repeats.next_step(keys)
    results = [None if no else result for no, (_, result) in zip(refused, calls, strict=True)]
    repeats.learn(zip(keys, results, strict=True))
    return refused, ends_run


def test_repeats_are_counted_in_steps() -> None:
    repeats = Repeats(LIMIT)
    assert made(repeats, ("a", "1"), ("a", "1"), ("b", "1")) == ([False] * 3, False), "asked twice, it counts once"
    assert made(repeats, ("a", "1")) == ([False], False)
    assert made(repeats, ("c", "1"), ("a", "1")) == ([False, False], False), "after news beside it, from 1 again"
    assert made(repeats, ("a", "1")) == ([False], False)
    assert made(repeats, ("a", "1"), ("b", "1")) == ([False, False], False)
    assert made(repeats, ("a", "1"), ("b", "1")) == ([True, False], False)
    assert made(repeats, ("b", "1"), ("a", "1")) == ([False, True], True)
    assert made(repeats) == ([], False)
    assert made(repeats, ("d", "1")) == ([False], False)
    assert made(repeats, ("a", "1")) == ([False], False), "after a step with news it is counted from 1 again"


@pytest.mark.parametrize(("limit", "told_at", "ends_at"), [(3, 4, 5), (2, 3, 4), (1, 3, 4), (0, None, None)])
def test_a_repetition_is_told_after_the_limit_and_ends_the_run_after_that(
    limit: int, told_at: int | None, ends_at: int | None
) -> None:
    repeats = Repeats(limit)
    steps = [(count, *made(repeats, ("a", "1"))) for count in range(1, 9)]
    assert next((count for count, refused, _ in steps if refused == [True]), None) == told_at
    assert next((count for count, _, ends_run in steps if ends_run), None) == ends_at


@pytest.mark.parametrize(
    ("results", "refused_at"),
    [
        ("1111", 4),
        ("1212121212", None),
        ("112211221122", None),
        ("1112", 4),
        ("2111", None),
        ("21111", 5),
        ("0123456789", None),
    ],
)
def test_only_equal_results_in_a_row_count(results: str, refused_at: int | None) -> None:
    repeats = Repeats(LIMIT)
    refused = [made(repeats, ("poll", result)) == ([True], False) for result in results]
    assert (refused.index(True) + 1 if any(refused) else None) == refused_at


def test_a_call_beside_one_that_brings_news_is_no_loop() -> None:
    """Two jobs are watched in one step, and one of them gets on; or new files are read beside the same question."""
    repeats = Repeats(LIMIT)
    for number in range(20):
        assert made(repeats, ("poll a", str(number)), ("poll b", "waiting")) == ([False, False], False)
    for number in range(20):
        assert made(repeats, ("poll b", "waiting"), (f"read {number}", "text")) == ([False, False], False)
    ends = [made(repeats, ("poll a", "19"), ("poll b", "waiting")) for _ in range(4)]
    assert [refused for refused, _ in ends] == [[False, False], [False, False], [False, True], [True, True]]
    assert [ends_run for _, ends_run in ends] == [False, False, False, True]


def test_a_digest_is_the_same_in_every_process_and_for_no_other_texts() -> None:
    assert digest("look", "{}").hex() == "f4fc4799a47c07473bb785450122f665"
    assert len({digest("look", "{}"), digest("look{}"), digest("look", "{}", ""), digest("loo", "k{}")}) == 4
    assert digest("\ud800") != digest("\udfff"), "what UTF-8 cannot hold is told apart too"


@pytest.mark.parametrize("period", [2, 3, 5])
def test_a_loop_over_several_calls_is_found(period: int) -> None:
    repeats = Repeats(LIMIT)
    steps = [made(repeats, (str(number % period), "1")) for number in range(32)]
    ends_at = next(number for number, (_, ends_run) in enumerate(steps, 1) if ends_run)
    assert ends_at <= period * (LIMIT + 2), "a few rounds, not as long as max_steps allows"


def test_a_call_made_again_after_something_changed_is_no_loop() -> None:
    """Tests that fail the same way after each edit."""
    repeats = Repeats(LIMIT)
    for edit in range(20):
        assert made(repeats, ("run the tests", "1 failed")) == ([False], False)
        assert made(repeats, (f"edit {edit}", "ok")) == ([False], False)


def test_asked_for_twice_in_a_step_a_call_has_given_both_results() -> None:
    repeats = Repeats(LIMIT)
    for number in range(10):
        assert made(repeats, ("poll", str(number)), ("poll", "same")) == ([False, False], False)
    assert made(repeats, ("poll", "same"), ("poll", "9")) == ([False, False], False), "the order does not matter"
    assert made(repeats, ("poll", "9"), ("poll", "same")) == ([False, False], False)
    assert made(repeats, ("poll", "9"), ("poll", "same")) == ([True, True], False)


def test_what_loop_detection_remembers_is_bounded() -> None:
    """Digests of the latest calls: neither their number nor the size of arguments and results adds up."""
    repeats = Repeats(LIMIT)
    for number in range(MAX_REMEMBERED_CALLS):
        made(repeats, (str(number), "x"))
    tracemalloc.start()
    try:
        for number in range(MAX_REMEMBERED_CALLS):
            made(repeats, (f"{number} {'a' * 100_000}", "r" * 100_000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < MAX_REMEMBERED_CALLS * 1_000
    for _ in range(LIMIT):
        made(repeats, ("latest", "x"))
    assert made(repeats, ("latest", "x")) == ([True], False)

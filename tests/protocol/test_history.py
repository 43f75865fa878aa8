"""Atoms, legality, and cutting a transcript."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
    split_atoms,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.prompt import (
    SHORTENED_RESULT_CHARS,
    Transcript,
    estimate_tokens,
    messages_tokens,
    shorten_result,
)
from callboard.protocol.testing.strategies import histories

LOOK = ToolName("look")


def turn(*ids: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tuple(ToolCall(CallId(name), LOOK, arguments) for name in ids))


def result(name: str, content: str = "1", tool: str = "look") -> ToolMessage:
    return ToolMessage(CallId(name), ToolName(tool), content)


@given(histories())
def test_drawn_histories_are_legal_and_atoms_put_together_are_the_history(history: tuple[Message, ...]) -> None:
    assert history_faults(history) == []
    atoms = split_atoms(history)
    assert tuple(message for atom in atoms for message in atom) == history
    assert all(history_faults(atom) == [] for atom in atoms)


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ((result("a"),), "follows no turn"),
        ((turn("a"),), "'a' has no result directly after its turn"),
        ((turn("a"), UserMessage.of("?"), result("a")), "'a' has no result directly after its turn"),
        ((turn("a"), SystemMessage("note"), result("a")), "'a' has no result directly after its turn"),
        ((turn("a", "b"), result("b"), result("a")), "the result in place 1 is of 'b'"),
        ((turn("a"), result("a", tool="other")), "the result in place 1 is of 'a' (other)"),
        ((turn("a"), result("a"), result("a")), "follows no turn"),
        ((turn("a", "a"), result("a"), result("a")), "share an id"),
        ((turn(""), result("")), "has no id"),
        ((turn("a", arguments="{"), result("a")), "not a JSON object"),
        ((AssistantMessage(()),), "without any part"),
    ],
)
def test_what_makes_a_history_illegal(history: tuple[Message, ...], fault: str) -> None:
    assert fault in "; ".join(history_faults(history))


def transcript(history: tuple[Message, ...], limit: int | None) -> Transcript:
    return Transcript("sys", history, UserMessage.of("go"), limit_tokens=limit, tools_tokens=0, count=estimate_tokens)


@settings(deadline=None)
@given(histories(), st.lists(st.integers(0, 3), max_size=4), st.integers(30, 800))
def test_a_cut_transcript_is_legal_and_within_its_limit(
    history: tuple[Message, ...], steps: list[int], limit: int
) -> None:
    shown = transcript(history, limit)
    for calls in steps:
        names = [f"s{index}" for index in range(calls)]
        shown.add_step(
            (turn(*names), *(result(name, "x" * 700) for name in names))
            if calls
            else (AssistantMessage((Text("hm"),)),)
        )
        fits = shown.fit()
        messages = shown.messages()
        assert history_faults(messages) == []
        assert messages_tokens(messages, estimate_tokens) == shown.tokens
        assert fits == (shown.tokens <= limit)
        assert UserMessage.of("go") in messages
        assert messages[0] == SystemMessage("sys")


def test_the_cheapest_loss_comes_first() -> None:
    old = (
        UserMessage.of("old"),
        turn("a"),
        result("a", "x" * 4_000),
        UserMessage.of("newer"),
        AssistantMessage((Text("yes"),)),
    )
    shown = transcript(old, 400)
    assert shown.fit()
    kept = shown.messages()
    assert [type(message) for message in kept[1:]] == [type(message) for message in (*old, UserMessage.of(""))]
    assert orjson.loads(kept[3].content)["characters_left_out"] == 4_000 - SHORTENED_RESULT_CHARS  # type: ignore[union-attr]
    shown = transcript(old, 60)
    assert shown.fit()
    assert shown.messages()[1] == UserMessage.of("newer"), "never an answer whose question is gone"


def test_the_last_step_and_the_question_stay() -> None:
    shown = transcript((), 150)
    shown.add_step((turn("a"), result("a", "x" * 3_000)))
    shown.add_step((turn("b"), result("b", "y" * 3_000)))
    assert not shown.fit(), "120 tokens of what must stay, and a shortened result of 150"
    assert [type(message).__name__ for message in shown.messages()] == [
        "SystemMessage", "UserMessage", "AssistantMessage", "ToolMessage",
    ]  # fmt: skip


def test_short_results_and_other_messages_are_not_shortened() -> None:
    for message in (result("a", "x" * 2 * SHORTENED_RESULT_CHARS), UserMessage.of("x" * 4_000)):
        assert shorten_result(message) is message

"""What the next model call is given and whether there is one; cutting a transcript; token estimates."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.protocol.budgets import Spending, Stop
from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.events import RequestStarted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import ModelRequest
from callboard.protocol.options import RequestOptions
from callboard.protocol.prompt import (
    IMAGE_TOKENS,
    SHORTENED_RESULT_CHARS,
    PromptBuilder,
    estimate_tokens,
    message_tokens,
    shorten_result,
    tools_tokens,
)
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.testing.strategies import histories
from callboard.protocol.tools import Decision

QUESTION = UserMessage.of("What is this?")
LOOK = ToolName("look")
TAG = Tag(RequestId("r"), MessageId("m"))


def turn(*ids: str, arguments: str = "{}") -> AssistantMessage:
    return AssistantMessage(tuple(ToolCall(CallId(name), LOOK, arguments) for name in ids))


def result(name: str, content: str = "1", tool: str = "look") -> ToolMessage:
    return ToolMessage(CallId(name), ToolName(tool), content)


def length(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(("missing", "kind"), [(0, ModelRequest), (1, Stop)])
def test_tools_that_are_no_longer_offered_take_no_room(missing: int, kind: type) -> None:
    room = message_tokens(QUESTION, length) - missing
    options = replace(RequestOptions("m"), context_tokens=room)
    asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
    assert isinstance(asking.next_request(again=False), Stop)
    asking.give_up_tools()
    assert isinstance(asking.next_request(again=False), kind)


def test_tools_that_are_offered_take_room() -> None:
    shown = [offer.definition for offer in STANDARD_TOOLS if offer.decision is not Decision.DENY]
    room = message_tokens(QUESTION, length) + tools_tokens(shown, length)
    for context_tokens, kind in ((room, ModelRequest), (room - 1, Stop)):
        options = replace(RequestOptions("m"), context_tokens=context_tokens)
        asking = PromptBuilder(RequestStarted(TAG, 0.0, (), QUESTION, options, STANDARD_TOOLS), Spending(), length)
        assert isinstance(asking.next_request(again=False), kind)


def transcript(history: tuple[Message, ...], limit: int | None) -> PromptBuilder:
    options = RequestOptions("m", system_prompt="sys", context_tokens=limit)
    return PromptBuilder(RequestStarted(TAG, 0.0, history, UserMessage.of("go"), options), Spending(), estimate_tokens)


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
        assert sum(message_tokens(message, estimate_tokens) for message in messages) == shown.tokens
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


def test_token_estimates() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("x" * 32) == 10
    assert message_tokens(UserMessage((Image(url="http://localhost/x"),)), estimate_tokens) > IMAGE_TOKENS
    searched = AssistantMessage((ServerTool("search", Replay("anthropic", {"found": "x" * 400})),))
    assert message_tokens(searched, estimate_tokens) > 100
    assert message_tokens(SystemMessage("abc"), len) == 9

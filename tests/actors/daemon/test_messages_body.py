"""Bodies of the Messages API: what our own adapter writes is read back, what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_wires import said, written_by

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.client_question import AnswerFormat
from callboard.actors.daemon.messages_body import count_question, messages_question
from callboard.protocol.content import (
    AssistantMessage,
    Document,
    Image,
    Message,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.model import Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import AnthropicOptions
from callboard.protocol.testing.strategies import histories, json_values
from callboard.providers.anthropic.messages_api import Anthropic

ADAPTER = Anthropic(api_key="k")
DOCUMENT = Document("application/pdf", "AAAA", name="a.pdf")
ASKED = UserMessage(
    (Text("What is this?"), Image("image/png", "AAAA"), Image(url="https://example.org/a.png"), DOCUMENT)
)


def body(**fields: Any) -> bytes:
    given_fields = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], **fields}
    return json.dumps({name: value for name, value in given_fields.items() if value is not None}).encode()


@given(histories())
def test_what_our_adapter_writes_is_read_back(history: tuple[Message, ...]) -> None:
    """The API has two roles that take turns: what is said is the same, in the same order."""
    written = tuple(each for each in history if not isinstance(each, SystemMessage))
    question = messages_question(written_by(ADAPTER, (*written, ASKED)))
    assert _turns(question.messages) == _turns((*written, ASKED))


def _turns(messages: tuple[Message, ...]) -> list[object]:
    """What was said, users' messages that follow each other as one: blank texts are not written, or in other words."""
    found: list[object] = []
    for each in said(messages):
        assert isinstance(each, tuple)
        if each[0] == "user":
            parts = tuple(part for part in each[1] if not (isinstance(part, str) and _is_filled(part)))
            last = found[-1] if found else None
            if isinstance(last, tuple) and last[0] == "user":
                found[-1] = ("user", (*last[1], *parts))
                continue
            each = ("user", parts)
        elif each[0] == "assistant":
            if not each[1].strip() and not each[2]:
                continue
            each = ("assistant", each[1].strip(), each[2])
        found.append(each)
    return [each for each in found if each != ("user", ())]


def _is_filled(text: str) -> bool:
    return not text.strip() or text in ("(empty message)", "(The beginning of this conversation was left out.)")


def test_thinking_comes_back_with_its_signature() -> None:
    thinking = Thinking("hm", Replay("anthropic", {"signature": "abc"}))
    hidden = Thinking("", Replay("anthropic", {"data": "xyz"}))
    turn = AssistantMessage((thinking, hidden, Text("yes")))
    written = written_by(ADAPTER, (UserMessage.of("a"), turn, ASKED))
    assert messages_question(written).messages[1] == turn


@given(st.dictionaries(st.sampled_from(("model", "messages", "tools", "system", "max_tokens")), json_values()))
def test_any_json_is_a_question_or_an_error_of_400(document: dict[str, Any]) -> None:
    try:
        messages_question(json.dumps(document).encode("utf-8", "replace"))
    except ApiError as error:
        found = error
    else:
        return
    assert found.status == 400
    assert found.message


def test_options_are_taken() -> None:
    question = messages_question(
        body(
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            stream=True,
            tools=[{"name": "f", "input_schema": {"type": "object"}}],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            temperature=0.5,
            top_p=0.9,
            top_k=3,
            stop_sequences=["x"],
            thinking={"type": "enabled", "budget_tokens": 9_000},
            metadata={"user_id": "ann"},
            output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        )
    )
    assert question.instructions == "Be brief."
    assert question.is_streamed
    assert question.options["sampling"] == Sampling(0.5, 0.9, 9, ("x",))
    assert question.options["tool_choice"] == ToolChoice(ToolChoiceMode.REQUIRED)
    assert question.options["parallel_tool_calls"] is False
    assert question.options["metadata"] == {"user_id": "ann"}
    assert question.output == AnswerFormat({"type": "object"})
    assert question.only_for["anthropic"]["provider_options"] == AnthropicOptions(thinking=9_000, top_k=3)
    assert question.only_for[""]["sampling"].reasoning_effort == "medium"


def test_results_with_pictures_and_words_behind_them() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "r"}, picture]}
    question = messages_question(
        body(
            messages=[
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [{**result, "is_error": True}, {"type": "text", "text": "and now?"}]},
            ]
        )
    )
    _, _, shown, asked = question.messages
    assert isinstance(shown, ToolMessage)
    assert (shown.name, shown.content, shown.is_error, len(shown.media)) == ("f", "r", True, 1)
    assert asked == UserMessage.of("and now?")


def test_tokens_are_counted_without_a_limit() -> None:
    assert count_question(body(max_tokens=None)).model == "m"


USER = {"role": "user", "content": "hello"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no limit": ({"max_tokens": None}, "max_tokens"),
    "a limit as text": ({"max_tokens": "9"}, "max_tokens"),
    "no messages": ({"messages": []}, "messages"),
    "an unknown role": ({"messages": [{"role": "system", "content": "x"}]}, "messages.0"),
    "an unknown block": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages.0.content.0"),
    "bytes that are no base64": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}
                    ],
                }
            ]
        },
        "messages.0.content.0.source.data",
    ),
    "a result without its call": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}]},
        "messages",
    ),
    "a call without its result": (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
                USER,
            ]
        },
        "messages",
    ),
    "an answer as the last message": ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages"),
    "a temperature that no model takes": ({"temperature": 1.5}, "temperature"),
    "a thread that the server would hold": ({"thread": {"type": "create"}}, "thread"),
    "an empty stop": ({"stop_sequences": [""]}, "stop_sequences"),
    "a tool without a schema": ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
    "a tool of the server's": ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
    "a choice without a name": ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    "thinking without a budget": ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    "an effort that is none": ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    "servers of the client's": ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    fields, param = WRONG[case]
    with pytest.raises(ApiError) as caught:
        messages_question(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)

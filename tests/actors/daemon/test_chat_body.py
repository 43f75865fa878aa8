"""Bodies of Chat Completions: what our own adapter writes is read back, what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.client_wires import said, written_by

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.chat_body import chat_question
from callboard.actors.daemon.client_question import AnswerFormat
from callboard.protocol.content import Audio, Document, Image, Message, SystemMessage, Text, UserMessage
from callboard.protocol.model import Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import OpenAIOptions
from callboard.protocol.testing.strategies import histories, json_values
from callboard.providers.openai.chat_api import OpenAIChat

ADAPTER = OpenAIChat(api_key="k")
ASKED = UserMessage((Text("What is this?"), Image("image/png", "AAAA"), Image(url="https://example.org/a.png")))
FILES = UserMessage((Text("And these?"), Document("application/pdf", "AAAA", name="a.pdf"), Audio("audio/wav", "AAAA")))


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}).encode()


@given(histories(), st.sampled_from((ASKED, FILES)))
def test_what_our_adapter_writes_is_read_back(history: tuple[Message, ...], asked: UserMessage) -> None:
    question = chat_question(written_by(ADAPTER, (*history, asked)))
    told = [SystemMessage(question.instructions)] if question.instructions is not None else []
    written = [each for each in (*history, asked) if not _is_silent(each)]
    assert said((*told, *question.messages)) == said(written)


def _is_silent(message: Message) -> bool:
    return isinstance(message, SystemMessage) and not message.text.strip()


@given(st.dictionaries(st.sampled_from(("model", "messages", "tools", "stop", "n", "stream")), json_values()))
def test_any_json_is_a_question_or_an_error_of_400(document: dict[str, Any]) -> None:
    try:
        chat_question(json.dumps(document).encode("utf-8", "replace"))
    except ApiError as error:
        found = error
    else:
        return
    assert found.status == 400
    assert found.message


@pytest.mark.parametrize(
    "data",
    [
        body(seed=None)[:-1] + b', "seed": ' + b"9" * 6_000 + b"}",
        body()[:-1] + b', "metadata": ' + b"[" * 500 + b"]" * 500 + b"}",
        body()[:-1] + b', "temperature": NaN}',
        body()[:-1] + b', "user": "\\ud800"}',
    ],
    ids=["a huge number", "deeply nested", "no number", "half a character"],
)
def test_json_that_few_parsers_survive_is_an_error(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        chat_question(data)
    assert caught.value.status == 400


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        chat_question(data)
    assert caught.value.status == 400


def test_options_are_taken() -> None:
    question = chat_question(
        body(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": "hello"},
            ],
            stream=True,
            stream_options={"include_usage": True},
            tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
            tool_choice={"type": "function", "function": {"name": "f"}},
            parallel_tool_calls=False,
            max_completion_tokens=7,
            temperature=0,
            top_p=0.5,
            stop="x",
            seed=3,
            reasoning_effort="low",
            metadata={"a": "b"},
            presence_penalty=1.5,
            user="ann",
            unknown_field={"is": "ignored"},
            n=1,
            logprobs=False,
        )
    )
    assert question.instructions == "Be brief."
    assert (question.is_streamed, question.includes_usage) == (True, True)
    assert [(tool.name, tool.strict) for tool in question.tools] == [("f", True)]
    options = question.options
    assert options["sampling"] == Sampling(0, 0.5, 7, ("x",), 3, "low")
    assert options["tool_choice"] == ToolChoice(ToolChoiceMode.NAMED, question.tools[0].name)
    assert options["parallel_tool_calls"] is False
    assert options["metadata"] == {"a": "b"}
    penalty = OpenAIOptions(presence_penalty=1.5)
    assert question.only_for[""]["provider_options"] == penalty
    assert question.only_for["openai"]["provider_options"] == OpenAIOptions(presence_penalty=1.5, user="ann")


def test_forms_of_an_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    given_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert chat_question(body(response_format=given_schema)).output == AnswerFormat(schema, "x")
    free = chat_question(body(response_format={"type": "json_object"})).output
    assert free == AnswerFormat({"type": "object"})
    assert chat_question(body(response_format={"type": "text"})).output is None


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}
OTHER = {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}


def test_results_are_put_into_the_order_of_their_calls() -> None:
    question = chat_question(
        body(
            messages=[
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": None, "tool_calls": [CALL, OTHER]},
                {"role": "tool", "tool_call_id": "b", "content": "second"},
                {"role": "tool", "tool_call_id": "a", "content": "first"},
                {"role": "system", "content": "Go on."},
            ]
        )
    )
    assert said(question.messages)[2:] == [
        ("assistant", "", [("a", "f", {}), ("b", "g", {})]),
        ("tool", "a", "f", "first", ()),
        ("tool", "b", "g", "second", ()),
    ]
    assert said(question.messages)[1] == ("system", "Go on.")


USER = {"role": "user", "content": "hello"}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model without a name": ({"model": ""}, "model"),
    "a number as the model": ({"model": 3}, "model"),
    "no messages": ({"messages": []}, "messages"),
    "an unknown role": ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0"),
    "content of a wrong type": ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content"),
    "an unknown part": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages.0.content.0"),
    "a picture by a path": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}]}]},
        "messages.0.content.0.image_url.url",
    ),
    "bytes that are no base64": (
        {
            "messages": [
                {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}]}
            ]
        },
        "messages.0.content.0.input_audio.data",
    ),
    "a result without its call": (
        {"messages": [USER, {"role": "tool", "tool_call_id": "a", "content": "x"}]},
        "messages",
    ),
    "a call without its result": ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}, USER]}, "messages"),
    "arguments that are no JSON": (
        {
            "messages": [
                USER,
                {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "x"},
            ]
        },
        "messages",
    ),
    "an empty turn": ({"messages": [USER, {"role": "assistant", "content": None}, USER]}, "messages"),
    "an answer as the last message": ({"messages": [USER, {"role": "assistant", "content": "x"}]}, "messages"),
    "a temperature as text": ({"temperature": "1"}, "temperature"),
    "a temperature that no model takes": ({"temperature": 3}, "temperature"),
    "no tokens at all": ({"max_tokens": 0}, "max_tokens"),
    "two answers": ({"n": 2}, "n"),
    "an empty stop": ({"stop": [""]}, "stop"),
    "a tool with a bad name": ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
    "a tool of another kind": ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    "a choice that is none": ({"tool_choice": "perhaps"}, "tool_choice"),
    "sound": ({"modalities": ["text", "audio"]}, "modalities"),
    **{f"the field {name}": ({name: value}, name) for name, value in {"logprobs": True, "functions": [{}]}.items()},
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(case: str) -> None:
    fields, param = WRONG[case]
    with pytest.raises(ApiError) as caught:
        chat_question(body(**fields))
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message or caught.value.message.startswith(("this history", "the last message"))

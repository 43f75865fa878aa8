"""OpenAI Responses: what is sent."""

from __future__ import annotations

from typing import Any

import pytest
from support.validators import responses as violations
from support.wire import body, header

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.tools import ToolDefinition
from callboard.providers.openai.responses_api import OpenAIResponses

ADAPTER = OpenAIResponses(api_key="secret-key")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
ROME = '{"city": "Rome"}'


def call(call_id: str, arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName("lookup"), arguments, **more)


def result(call_id: str, content: str = "{}", *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(CallId(call_id), ToolName("lookup"), content, is_error)


def test_the_address_and_the_headers() -> None:
    wire = ADAPTER.encode(ModelRequest("gpt-x", (UserMessage.of("Hi"),)))
    assert (wire.method, wire.url) == ("POST", "https://api.openai.com/v1/responses")
    assert header(wire.headers, "authorization") == "Bearer secret-key"


def test_claim_s1_calls_are_replayed_as_items() -> None:
    sent = body(
        ADAPTER,
        SystemMessage("Be brief."),
        UserMessage((Text("Look"), Image("image/png", "aWcK"), Image(url="https://example.org/a.png"))),
        AssistantMessage(
            (
                Thinking("Hmm", Replay("openai-responses", REASONING)),
                Text("Looking.", Replay("openai-responses", {"phase": "commentary"})),
                call("call_1", ROME),
                call("call_2"),
            )
        ),
        result("call_1", '{"ok": true}'),
        result("call_2", '{"ok": false}', is_error=True),
        SystemMessage("Careful now."),
        model="gpt-5",
        tools=(LOOKUP,),
    )
    assert violations(sent) == []
    assert (sent["instructions"], sent["store"]) == ("Be brief.", False)
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["input"] == [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": "data:image/png;base64,aWcK", "detail": "auto"},
                {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"},
            ],
        },
        REASONING,
        {"type": "message", "role": "assistant", "content": "Looking.", "phase": "commentary"},
        {"type": "function_call", "call_id": "call_1", "name": "lookup", "arguments": ROME},
        {"type": "function_call", "call_id": "call_2", "name": "lookup", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"ok": true}'},
        {"type": "function_call_output", "call_id": "call_2", "output": '{"ok": false}'},
        {"type": "message", "role": "system", "content": "Careful now."},
    ]


def test_reasoning_goes_back_only_whole_and_to_its_own() -> None:
    history = (
        UserMessage.of("Hi"),
        AssistantMessage(
            (
                Thinking("no content", Replay("openai-responses", {"type": "reasoning", "id": "rs_9", "summary": []})),
                Thinking("foreign", Replay("anthropic", {"signature": "s"})),
                Text("Yes"),
                Thinking("cut off before its item", Replay("openai-responses", REASONING)),
            )
        ),
        UserMessage.of("And?"),
    )
    for model in ("gpt-5", "gpt-4o"):
        assert [item["type"] for item in body(ADAPTER, *history, model=model)["input"]] == ["message"] * 3
    own = (UserMessage.of("Hi"), AssistantMessage((Thinking("", Replay("openai-responses", REASONING)), Text("Yes"))))
    assert REASONING in body(ADAPTER, *own, model="o3")["input"]
    # A model that does not reason refuses it, and another server cannot read it.
    assert REASONING not in body(ADAPTER, *own, model="gpt-4o")["input"]
    assert REASONING not in body(OpenAIResponses(name="copilot"), *own, model="gpt-5")["input"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ToolChoice(), "auto"),
        (ToolChoice(ToolChoiceMode.NONE), "none"),
        (ToolChoice(ToolChoiceMode.REQUIRED), "required"),
        (ToolChoice(ToolChoiceMode.NAMED, ToolName("lookup")), {"type": "function", "name": "lookup"}),
    ],
)
def test_tool_choice(choice: ToolChoice, expected: Any) -> None:
    sent = body(ADAPTER, tools=(LOOKUP,), tool_choice=choice, parallel_tool_calls=False)
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == (expected, False)
    assert sent["tools"][0]["strict"] is False


def test_sampling_the_answer_schema_and_options() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_output_tokens=99, reasoning_effort="low")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    sent = body(ADAPTER, sampling=sampling, response_schema=schema, provider_options=(ExtraFields({"store": True}),))
    assert (sent["temperature"], sent["top_p"], sent["max_output_tokens"]) == (0.5, 0.9, 99)
    assert sent["reasoning"] == {"effort": "low"}
    assert sent["store"] is True
    assert sent["text"]["format"] == {
        "type": "json_schema",
        "name": "answer",
        "schema": {**schema, "required": ["n"], "additionalProperties": False},
        "strict": True,
    }


def test_stop_sequences_are_refused_and_a_seed_is_noted() -> None:
    with pytest.raises(UsageError, match="stop"):
        body(ADAPTER, sampling=Sampling(stop=("END",)))
    assert "seed" in ADAPTER.encode(ModelRequest("m", (UserMessage.of("Hi"),), sampling=Sampling(seed=1))).notes[0]


def test_quirk_48_ids_are_unique_through_the_history() -> None:
    turn = AssistantMessage((call("list_dir:0"),))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, result("list_dir:0"), turn, result("list_dir:0"))
    assert violations(sent) == []
    # The first keeps its own: a colon is legal here.
    assert sent["input"][1]["call_id"] == "list_dir:0"


def test_quirk_09_a_call_without_arguments_goes_back_as_an_empty_object() -> None:
    sent = body(ADAPTER, UserMessage.of("Hi"), AssistantMessage((call("c"),)), result("c"))
    assert sent["input"][1]["arguments"] == "{}"

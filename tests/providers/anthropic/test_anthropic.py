"""Anthropic Messages: what is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.validators import anthropic as violations
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
from callboard.protocol.model import ModelRequest, PromptCache, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic

ADAPTER = Anthropic(api_key="secret-key")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})


def call(call_id: str, name: str = "lookup", arguments: str = "{}", **more: Any) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, **more)


def result(call_id: str, content: str = "{}", *, is_error: bool = False) -> ToolMessage:
    return ToolMessage(CallId(call_id), ToolName("lookup"), content, is_error)


def test_the_address_and_the_headers() -> None:
    wire = ADAPTER.encode(ModelRequest("claude-x", (UserMessage.of("Hi"),)))
    assert (wire.method, wire.url) == ("POST", "https://api.anthropic.com/v1/messages")
    assert header(wire.headers, "x-api-key") == "secret-key"
    assert header(wire.headers, "anthropic-version") == "2023-06-01"
    assert "secret-key" not in repr(wire)


@pytest.mark.parametrize("base_url", ["http://localhost:8080", "http://localhost:8080/", "http://localhost:8080/v1"])
def test_an_address_of_ones_own(base_url: str) -> None:
    wire = Anthropic(base_url=base_url).encode(ModelRequest("m", (UserMessage.of("Hi"),)))
    assert wire.url == "http://localhost:8080/v1/messages"
    with pytest.raises(UsageError, match="http://"):
        Anthropic(base_url="localhost:8080")


def test_an_oauth_token_goes_as_bearer_and_betas_are_listed() -> None:
    anthropic = Anthropic(api_key="t", bearer=True, headers={"anthropic-beta": "a,b"})
    wire = anthropic.encode(ModelRequest("c", (UserMessage.of("Hi"),)))
    assert header(wire.headers, "authorization") == "Bearer t"
    assert header(wire.headers, "x-api-key") is None
    assert header(wire.headers, "anthropic-beta") == "a,b"


def test_a_whole_tool_turn() -> None:
    sent = body(
        ADAPTER,
        SystemMessage("Be brief."),
        UserMessage((Text("Look"), Image("image/png", "aWcK"), Image(url="https://example.org/a.png"))),
        AssistantMessage(
            (
                Thinking("Hmm", Replay("anthropic", {"signature": "c2ln"})),
                Thinking("", Replay("anthropic", {"data": "cmVk"})),
                Text("Looking."),
                call("toolu_1", arguments='{"city": "Rome"}'),
                call("toolu_2"),
            )
        ),
        result("toolu_1", '{"ok": true}'),
        result("toolu_2", '{"ok": false}', is_error=True),
        SystemMessage("Careful now."),
        tools=(LOOKUP,),
        prompt_cache=PromptCache.OFF,
    )
    assert violations(sent) == []
    assert sent["system"] == "Be brief."
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aWcK"}},
                {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hmm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "cmVk"},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "toolu_1", "name": "lookup", "input": {"city": "Rome"}},
                {"type": "tool_use", "id": "toolu_2", "name": "lookup", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"ok": true}'},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": '{"ok": false}', "is_error": True},
                {"type": "text", "text": "<system>\nCareful now.\n</system>"},
            ],
        },
    ]


def test_foreign_signatures_are_left_out_and_unsigned_thinking_too() -> None:
    turn = AssistantMessage(
        (
            Thinking("g", Replay("gemini", {"thoughtSignature": "x"})),
            Thinking("cut off"),
            Text("Yes", Replay("gemini", {"thoughtSignature": "y"})),
        )
    )
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, UserMessage.of("And?"))
    assert sent["messages"][1]["content"] == [{"type": "text", "text": "Yes"}]


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (ToolChoice(), None, {"type": "auto"}),
        (ToolChoice(), False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice(ToolChoiceMode.REQUIRED), True, {"type": "any", "disable_parallel_tool_use": False}),
        (ToolChoice(ToolChoiceMode.NONE), False, {"type": "none"}),
        (ToolChoice(ToolChoiceMode.NAMED, ToolName("lookup")), None, {"type": "tool", "name": "lookup"}),
    ],
)
def test_tool_choice(choice: ToolChoice, parallel: bool | None, expected: dict[str, Any]) -> None:
    assert body(ADAPTER, tools=(LOOKUP,), tool_choice=choice, parallel_tool_calls=parallel)["tool_choice"] == expected


def test_sampling_and_options() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_output_tokens=99, stop=("END",))
    sent = body(
        ADAPTER, sampling=sampling, stream=False, provider_options=(ExtraFields({"metadata": {"user_id": "u"}}),)
    )
    assert (sent["temperature"], sent["top_p"], sent["max_tokens"]) == (0.5, 0.9, 99)
    assert sent["stop_sequences"] == ["END"]
    assert sent["metadata"] == {"user_id": "u"}
    assert "stream" not in sent


def test_a_model_that_takes_no_sampling_gets_none_and_that_is_noted() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9)
    for model in ("claude-opus-4-7", "claude-opus-4.8", "claude-sonnet-5-5", "claude-fable-5"):
        wire = ADAPTER.encode(ModelRequest(model, (UserMessage.of("Hi"),), sampling=sampling))
        assert len(wire.notes) == 2
        assert not {"temperature", "top_p"} & set(json.loads(wire.body))
    for model in ("claude-opus-4-20250514", "claude-3-5-haiku-20241022"):
        assert body(ADAPTER, model=model, sampling=sampling)["top_p"] == 0.9
    for model in ("claude-opus-4-1", "claude-sonnet-4-5", "claude-haiku-4-5@20251001", "claude-opus-4.6"):
        wire = ADAPTER.encode(ModelRequest(model, (UserMessage.of("Hi"),), sampling=sampling))
        assert wire.notes == (f"top_p: {model} takes none beside temperature; left out",)
        assert json.loads(wire.body)["temperature"] == 0.5
        assert body(ADAPTER, model=model, sampling=Sampling(top_p=0.9))["top_p"] == 0.9


def test_effort_is_a_budget_or_adaptive_by_model() -> None:
    effort = Sampling(reasoning_effort="medium")
    budget = body(ADAPTER, model="claude-sonnet-4-5-20250929", sampling=effort)
    assert budget["thinking"] == {"type": "enabled", "budget_tokens": 8192}
    assert budget["max_tokens"] > 8192
    assert body(ADAPTER, model="claude-opus-4-20250514", sampling=effort)["thinking"]["type"] == "enabled"
    adaptive = body(ADAPTER, model="claude-opus-4-6", sampling=effort)
    assert adaptive["thinking"] == {"type": "adaptive"}
    assert adaptive["output_config"] == {"effort": "medium"}


def test_effort_and_an_answer_schema_share_output_config() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    wire = ADAPTER.encode(
        ModelRequest(
            "claude-opus-4-6",
            (UserMessage.of("Hi"),),
            response_schema=schema,
            sampling=Sampling(reasoning_effort="low"),
        )
    )
    config = json.loads(wire.body)["output_config"]
    assert config["effort"] == "low"
    assert config["format"]["schema"]["additionalProperties"] is False
    assert wire.notes == ("response_schema: /properties/n: minimum: anthropic structured output has no such keyword",)


def test_thinking_is_left_out_of_a_tool_loop_that_another_model_began() -> None:
    history = (UserMessage.of("Hi"), AssistantMessage((call("c1"),)), result("c1"))
    wire = ADAPTER.encode(ModelRequest("claude-sonnet-4-5", history, sampling=Sampling(reasoning_effort="low")))
    assert "thinking" not in json.loads(wire.body)
    assert wire.notes[0].startswith("reasoning_effort: left out")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sampling": Sampling(reasoning_effort="low", temperature=0.3)}, "temperature"),
        ({"sampling": Sampling(reasoning_effort="low", max_output_tokens=500)}, "max_output_tokens"),
        ({"sampling": Sampling(reasoning_effort="enormous")}, "reasoning_effort"),
        ({"sampling": Sampling(reasoning_effort="low"), "tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}, "forced"),
    ],
)
def test_what_the_api_cannot_do_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        body(ADAPTER, tools=(LOOKUP,), model="claude-sonnet-4-5", **fields)


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(UsageError, match="JSON"):
        body(ADAPTER, UserMessage.of("\ud800"))


def test_a_trimmed_history_begins_with_the_user_all_the_same() -> None:
    sent = body(ADAPTER, AssistantMessage((call("c1"),)), result("c1"))
    assert violations(sent) == []


def test_long_integers_keep_their_digits() -> None:
    big = '{"n": 123456789012345678901234567890}'
    wire = ADAPTER.encode(
        ModelRequest("c", (UserMessage.of("Hi"), AssistantMessage((call("c1", arguments=big),)), result("c1")))
    )
    assert b"123456789012345678901234567890" in wire.body


def test_quirk_48_ids_that_repeat_or_are_illegal_are_rewritten_in_call_and_result() -> None:
    turn = AssistantMessage((call("list_dir:0"),))
    sent = body(ADAPTER, UserMessage.of("Hi"), turn, result("list_dir:0"), turn, result("list_dir:0"))
    assert violations(sent) == []
    ids = [b["id"] for m in sent["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(set(ids)) == 2

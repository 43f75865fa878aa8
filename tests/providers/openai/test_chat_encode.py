"""Requests in the words of Chat Completions, its servers and OpenRouter."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from support.wire import answer, body, sse

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    Replay,
    ServerTool,
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
from callboard.providers.adapter import Adapter
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.chat_fields import is_strict
from callboard.providers.openrouter import OpenRouter, ProviderPreferences, SendPreferences
from callboard.providers.provider_registry import adapter_for

OPENAI = OpenAIChat(api_key="sk-key")
USER = UserMessage.of("Hi")
TOOL = ToolDefinition(ToolName("look"), "Looks.", {"type": "object", "properties": {"x": {"type": "integer"}}})
CLOSED = {"type": "object", "properties": {}, "additionalProperties": False, "required": []}
A, LOOK = CallId("a"), ToolName("look")
CALL = ToolCall(A, LOOK, '{"x": 1}')
RESULT = ToolMessage(A, LOOK, "seen")


def test_a_plain_request() -> None:
    wire = OPENAI.encode(ModelRequest("gpt-4o", (SystemMessage("Be kind."), USER)))
    assert (wire.method, wire.url) == ("POST", "https://api.openai.com/v1/chat/completions")
    assert wire.headers["authorization"] == "Bearer sk-key"
    assert "sk-key" not in repr(wire)
    assert body(OPENAI, SystemMessage("Be kind."), USER, model="gpt-4o") == {
        "model": "gpt-4o",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_everything_at_once() -> None:
    sent = body(
        OPENAI,
        USER,
        tools=(TOOL, ToolDefinition(ToolName("strictly"), "S", CLOSED, strict=True)),
        tool_choice=ToolChoice(ToolChoiceMode.NAMED, LOOK),
        parallel_tool_calls=False,
        response_schema={"type": "object", "properties": {}, "additionalProperties": False},
        sampling=Sampling(0.5, 0.9, 100, ("END",), 7, "low"),
        stream=False,
        provider_options=(ExtraFields({"store": False, "temperature": 1}),),
    )
    assert sent.pop("messages")
    assert sent.pop("model")
    assert sent == {
        "tools": [
            {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": TOOL.parameters}},
            {
                "type": "function",
                "function": {
                    "name": "strictly",
                    "description": "S",
                    "parameters": CLOSED,
                    "strict": True,
                },
            },
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "answer",
                "schema": {"type": "object", "properties": {}, "additionalProperties": False, "required": []},
                "strict": True,
            },
        },
        "temperature": 1,
        "top_p": 0.9,
        "max_completion_tokens": 100,
        "stop": ["END"],
        "seed": 7,
        "reasoning_effort": "low",
        "store": False,
    }


@pytest.mark.parametrize(
    ("mode", "sent"),
    [(ToolChoiceMode.AUTO, None), (ToolChoiceMode.NONE, "none"), (ToolChoiceMode.REQUIRED, "required")],
)
def test_tool_choice(mode: ToolChoiceMode, sent: str | None) -> None:
    assert body(OPENAI, USER, tools=(TOOL,), tool_choice=ToolChoice(mode)).get("tool_choice") == sent


def test_a_turn_with_calls_and_its_results() -> None:
    turn = AssistantMessage((Thinking("hm"), Text("So: "), CALL))
    assert body(OPENAI, USER, turn, RESULT)["messages"][1:] == [
        {
            "role": "assistant",
            "content": "So: ",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
    ]
    assert body(OPENAI, USER, AssistantMessage((CALL,)), RESULT)["messages"][1]["content"] is None
    assert body(OPENAI, USER, AssistantMessage((Thinking("hm"),)))["messages"][1] == {
        "role": "assistant",
        "content": "",
    }


def test_images() -> None:
    parts = (Text("What?"), Image("image/png", "aGk="), Image(url="https://x/y.png"))
    assert body(OPENAI, UserMessage(parts))["messages"][0]["content"] == [
        {"type": "text", "text": "What?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
    ]
    with pytest.raises(UsageError, match="media_type"):
        body(OPENAI, UserMessage((Image(data_base64="aGk="),)))


def test_an_incomplete_call_goes_back_as_an_object_that_shows_it() -> None:
    cut = ToolCall(A, LOOK, '{"x": ', complete=False)
    sent = body(OPENAI, USER, AssistantMessage((cut,)), RESULT)["messages"][1]["tool_calls"][0]["function"]
    assert sent["arguments"] == '{"incomplete_arguments":"{\\"x\\": "}'


def test_foreign_data_is_left_out() -> None:
    foreign = Replay("anthropic", {"signature": "s"})
    turn = AssistantMessage((Thinking("hm", foreign), ServerTool("web_search", foreign), Text("a", foreign)))
    assert body(OPENAI, USER, turn)["messages"][1] == {"role": "assistant", "content": "a"}


def test_a_server_that_wants_its_reasoning_back_gets_its_own_only() -> None:
    deepseek = adapter_for("deepseek", api_key="k")
    stream = sse([{"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
                  {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}])  # fmt: skip
    turn = answer(deepseek, stream).message
    assert body(deepseek, USER, turn)["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert body(adapter_for("moonshot"), USER, turn)["messages"][1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ((), "no messages"),
        ((USER, AssistantMessage((CALL,))), "'a' has no result"),
        ((USER, AssistantMessage((CALL,)), USER, RESULT), "'a' has no result"),
        ((USER, AssistantMessage((CALL,)), SystemMessage("note"), RESULT), "'a' has no result"),
        ((USER, RESULT), "did not ask for"),
        ((USER, AssistantMessage((CALL,)), RESULT, RESULT), "did not ask for"),
        ((USER, AssistantMessage((CALL, CALL)), RESULT), "same id"),
    ],
)
def test_an_illegal_history_is_the_callers_fault(messages: tuple[Message, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        OPENAI.encode(ModelRequest("m", messages))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": ""}, "names no model"),
        ({"tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}, "no tool is offered"),
        ({"tools": (TOOL,), "tool_choice": ToolChoice(ToolChoiceMode.NAMED, ToolName("x"))}, "not offered"),
        ({"tools": (TOOL, TOOL)}, "same name"),
    ],
)
def test_a_request_that_cannot_be_asked_says_why(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        body(OPENAI, USER, **fields)


def test_a_server_without_an_address_asks_for_one() -> None:
    with pytest.raises(UsageError, match="give its base_url"):
        adapter_for("openai-compatible").encode(ModelRequest("m", (USER,)))
    with pytest.raises(UsageError, match="must start with http"):
        adapter_for("openai-compatible", base_url="localhost:8000")
    wire = adapter_for("openai-compatible", base_url="http://localhost:8000/v1/").encode(ModelRequest("m", (USER,)))
    assert wire.url == "http://localhost:8000/v1/chat/completions"
    assert "authorization" not in wire.headers


def test_servers_differ_by_their_line_in_the_table() -> None:
    capped = Sampling(max_output_tokens=9)
    assert body(adapter_for("groq"), USER, sampling=capped)["max_tokens"] == 9
    assert "stream_options" not in body(adapter_for("mistral"), USER)
    seeded = body(adapter_for("mistral"), USER, sampling=Sampling(seed=7))
    assert (seeded["random_seed"], "seed" in seeded) == (7, False)


def test_openrouter_preferences_go_along_with_tools() -> None:
    preferences = ProviderPreferences(
        order=("a",), only=("a", "b"), ignore=("c",), max_price={"prompt": 1.0}, allow_fallbacks=False, sort="price"
    )
    router = OpenRouter(preferences=preferences)
    assert body(router, USER, tools=(TOOL,))["provider"] == {
        "order": ["a"],
        "only": ["a", "b"],
        "ignore": ["c"],
        "max_price": {"prompt": 1.0},
        "allow_fallbacks": False,
        "sort": "price",
        "require_parameters": True,
    }
    assert "provider" not in body(router, USER)
    assert body(OpenRouter(), USER, tools=(TOOL,))["provider"] == {"require_parameters": True}
    always = OpenRouter(preferences=ProviderPreferences(send=SendPreferences.ALWAYS))
    assert "provider" in body(always, USER)
    never = OpenRouter(preferences=ProviderPreferences(send=SendPreferences.NEVER))
    assert "provider" not in body(never, USER, tools=(TOOL,))


def test_openrouter_says_who_calls_and_how_hard_to_think() -> None:
    router = OpenRouter(api_key="k", headers={"http-referer": "https://app.example", "x-title": "App"})
    headers = router.encode(ModelRequest("m", (USER,))).headers
    assert (headers["http-referer"], headers["x-title"]) == ("https://app.example", "App")
    sent = body(router, USER, sampling=Sampling(reasoning_effort="high"))
    assert (sent["reasoning"], sent["usage"]) == ({"effort": "high"}, {"include": True})
    assert "reasoning_effort" not in sent


def test_openrouter_gets_its_reasoning_details_back_unmodified() -> None:
    def delta(**fields: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {"content": "", **fields}, "finish_reason": None}]}

    def thought(**fields: Any) -> dict[str, Any]:
        return delta(reasoning=fields.get("text"), reasoning_details=[{"type": "reasoning.text", "index": 0} | fields])

    encrypted = {"type": "reasoning.encrypted", "data": "ZW5j", "id": "rs_1", "index": 1}
    function = {"name": "look", "arguments": "{}"}
    stream = sse(
        [
            thought(text="I th"),
            thought(text="ink", format="anthropic-claude-v1"),
            thought(signature="c2ln"),
            delta(reasoning_details=[encrypted]),
            delta(tool_calls=[{"index": 0, "id": "a", "function": function}]),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        ],
        done=True,
    )
    router = OpenRouter()
    turn = answer(router, stream)
    assert turn.thinking == "I think"
    assert len(turn.parts) == 2
    sent = body(router, USER, turn.message, RESULT)["messages"][1]
    signed = {"type": "reasoning.text", "index": 0, "text": "I think", "signature": "c2ln"}
    signed["format"] = "anthropic-claude-v1"
    assert sent["reasoning_details"] == [signed, encrypted]
    assert "reasoning_details" not in body(OPENAI, USER, turn.message, RESULT)["messages"][1]


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, False),
        ({"type": "object", "properties": {}}, False),
        ({"type": "array", "items": {"type": "object", "properties": {}}}, False),
        ({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": False}]}, True),
        ({"$defs": {"x": {"type": "object"}}}, False),
        ({"type": "string"}, True),
    ],
)
def test_which_schemas_are_strict(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict


def test_think_tags_are_told_apart_only_where_asked() -> None:
    text = "<think>\nhm <b></thi nk></think>\n\nYes <think>"
    chunks = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in text]
    stream = sse(chunks, done=True)
    plain = answer(OPENAI, stream)
    assert (plain.thinking, plain.text) == ("", text)
    asking: Adapter = OpenAIChat(base_url="http://x", dialect=replace(OPENAI.dialect, think_tags=True))
    told = answer(asking, stream)
    assert (told.thinking, told.text) == ("\nhm <b></thi nk>", "Yes <think>")
    for other in ("<thin", "no tags", " <thought>", "<think>never closed</thi"):
        found = answer(asking, sse([{"choices": [{"index": 0, "delta": {"content": c}}]} for c in other], done=True))
        assert found.thinking + found.text == other.removeprefix("<think>")

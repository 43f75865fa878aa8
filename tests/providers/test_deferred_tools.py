"""Deferred tools at providers that search for tools themselves, and at all others.

Bodies and answers: platform.claude.com, "Tool search tool"; developers.openai.com, "Tool search".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.protocol.content import AssistantMessage, Message, ServerTool, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, ModelResponse, PromptCache
from callboard.protocol.tools import ToolDefinition, ToolSearch
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import COPILOT_MESSAGES, VERTEX_MESSAGES
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import ResponseBuilder

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, *, deferred: bool = False) -> ToolDefinition:
    return ToolDefinition(ToolName(name), f"What {name} does.", CITY, deferred=deferred)


DEFERRED = (tool("get_weather", deferred=True), tool("get_forecast", deferred=True), tool("send_mail", deferred=True))
SEARCH = ToolSearch(ToolName("tool_search"), DEFERRED)


def request(model: str, *found: str, messages: tuple[Message, ...] = (), **more: Any) -> ModelRequest:
    """As a session asks: what was found stands last."""
    tools = (tool("clock"), tool("tool_search"), *map(tool, found))
    return ModelRequest(model, (UserMessage.of("go"), *messages), tools, tool_search=SEARCH, **more)


def sent(adapter: Adapter, asked: ModelRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(adapter.encode(asked).body)
    return found


def names(tools: list[dict[str, Any]], *, deferred: bool) -> list[str]:
    return [each.get("name") or each["type"] for each in tools if bool(each.get("defer_loading")) is deferred]


CLAUDE, GPT = Anthropic(api_key="k"), OpenAIResponses(api_key="k")
ANTHROPIC_SEARCH = "tool_search_tool_bm25"


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5",
        "claude-opus-4-5-20251101",
        "claude-haiku-4-5",
        "claude-opus-4.7",
        "claude-sonnet-5",
        "claude-fable-5",
        "claude-opus-5-20261001",
        "claude-mythos-5-1",
    ],
)
def test_claude_searches_itself(model: str) -> None:
    body = sent(CLAUDE, request(model))
    assert names(body["tools"], deferred=False) == ["clock", ANTHROPIC_SEARCH]
    assert names(body["tools"], deferred=True) == ["get_weather", "get_forecast", "send_mail"]
    assert body["tools"][-1]["type"] == "tool_search_tool_bm25_20251119"
    assert "anthropic-beta" not in CLAUDE.encode(request(model)).headers


@pytest.mark.parametrize(
    "model",
    [
        "gpt-5.4",
        "gpt-5.4-mini",
        "gpt-5.4-2026-03-05",
        "gpt-5.5",
        "gpt-5.6-sol",
        "gpt-5.10",
        "gpt-6-astra",
        "gpt-6.1-sol",
    ],
)
def test_gpt_searches_itself(model: str) -> None:
    body = sent(GPT, request(model))
    assert names(body["tools"], deferred=False) == ["clock", "tool_search"]
    assert body["tools"][-1] == {"type": "tool_search"}
    assert names(body["tools"], deferred=True) == ["get_weather", "get_forecast", "send_mail"]


OTHERS: Mapping[str, tuple[Adapter, str]] = {
    "an older Claude": (CLAUDE, "claude-opus-4-1-20250805"),
    "Claude 4.0": (CLAUDE, "claude-sonnet-4-20250514"),
    "Claude 3.7": (CLAUDE, "claude-3-7-sonnet-20250219"),
    "Claude at Vertex": (Anthropic(api_key="k", dialect=VERTEX_MESSAGES), "claude-sonnet-4-5"),
    "Claude behind Copilot": (Anthropic(api_key="k", dialect=COPILOT_MESSAGES), "claude-sonnet-4-5"),
    "Claude behind a gateway": (Anthropic(api_key="k", base_url="https://gateway.example"), "claude-sonnet-4-5"),
    "an older GPT": (GPT, "gpt-5.2"),
    "gpt-5.3-codex": (GPT, "gpt-5.3-codex"),
    "gpt-5.4-nano": (GPT, "gpt-5.4-nano"),  # "Tool 'tool_search' is not supported with gpt-5.4-nano."
    "gpt-4.1": (GPT, "gpt-4.1"),
    "o3": (GPT, "o3"),
    "Responses elsewhere": (OpenAIResponses(api_key="k", base_url="https://api.x.ai/v1"), "gpt-5.4"),
    "Chat Completions": (OpenAIChat(api_key="k"), "gpt-5.4"),
    "Gemini": (Gemini(api_key="k"), "gemini-3-pro"),
    "Bedrock Converse": (Bedrock(region="eu-west-1"), "anthropic.claude-sonnet-4-5"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_elsewhere_our_own_search_is_offered_and_what_was_found(which: str) -> None:
    adapter, model = OTHERS[which]
    body = adapter.encode(request(model, "get_forecast")).body
    assert b"defer" not in body
    for name in (b"clock", b"tool_search", b"get_forecast"):
        assert b'"name":"' + name + b'"' in body.replace(b'"name": "', b'"name":"'), name
    assert b"get_weather" not in body


@pytest.mark.parametrize(("adapter", "model"), [(CLAUDE, "claude-opus-5"), (GPT, "gpt-6.1-sol")])
def test_what_our_search_or_another_provider_has_found_is_shown_openly(adapter: Adapter, model: str) -> None:
    body = sent(adapter, request(model, "get_forecast"))
    assert names(body["tools"], deferred=False)[:2] == ["clock", "get_forecast"]
    assert names(body["tools"], deferred=True) == ["get_weather", "send_mail"]


@pytest.mark.parametrize(("adapter", "model"), [(CLAUDE, "claude-opus-5"), (GPT, "gpt-6.1-sol")])
def test_without_deferred_tools_nothing_is_searched_for(adapter: Adapter, model: str) -> None:
    plain = ModelRequest(model, (UserMessage.of("go"),), (tool("clock"), tool("get_weather", deferred=True)))
    assert names(sent(adapter, plain)["tools"], deferred=False) == ["clock", "get_weather"]


def test_the_mark_of_the_cache_is_on_no_deferred_tool() -> None:
    body = sent(CLAUDE, request("claude-opus-5", prompt_cache=PromptCache.ONE_HOUR))
    assert [each["name"] for each in body["tools"] if "cache_control" in each] == [ANTHROPIC_SEARCH]


# What the providers answer.

#: platform.claude.com, "Tool search tool", "Response format".
ANTHROPIC_BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": "I'll search for tools to help with the weather information."},
    {"type": "server_tool_use", "id": "srvtoolu_01", "name": ANTHROPIC_SEARCH, "input": {"query": "weather"}},
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_01",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [
                {"type": "tool_reference", "tool_name": "get_weather"},
                {"type": "tool_reference", "tool_name": "get_forecast"},
            ],
        },
    },
    {"type": "tool_use", "id": "toolu_01", "name": "get_weather", "input": {"city": "Oslo"}},
]
#: developers.openai.com, "Tool search", and a recorded turn (Oaklight/llm-rosetta #394).
OPENAI_ITEMS: list[dict[str, Any]] = [
    {"type": "tool_search_call", "id": "tsc_1", "execution": "server", "call_id": None, "status": "completed"}
    | {"arguments": {"paths": ["get_weather"]}},
    {"type": "tool_search_output", "id": "tso_1", "execution": "server", "call_id": None, "status": "completed"}
    | {
        "tools": [
            {"type": "function", "name": "get_weather", "defer_loading": True, "parameters": CITY, "strict": False},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "get_forecast"}]},
        ]
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_weather", "namespace": "get_weather"}
    | {"arguments": '{"city":"Oslo"}', "status": "completed"},
]


def anthropic_stream() -> bytes:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5", "content": []}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {**start, "usage": {"input_tokens": 9}}}]
    for place, block in enumerate(ANTHROPIC_BLOCKS):
        begun = {**block, "input": {}} if "input" in block else {**block, "text": ""} if "text" in block else block
        events.append({"type": "content_block_start", "index": place, "content_block": begun})
        if "input" in block:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], separators=(",", ":"))}
            events.append({"type": "content_block_delta", "index": place, "delta": delta})
        elif "text" in block:
            delta = {"type": "text_delta", "text": block["text"]}
            events.append({"type": "content_block_delta", "index": place, "delta": delta})
        events.append({"type": "content_block_stop", "index": place})
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)


def openai_stream() -> bytes:
    begun = {"id": "resp_1", "model": "gpt-6.1-sol", "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for place, item in enumerate(OPENAI_ITEMS):
        first = {**item, "arguments": ""} if item["type"] == "function_call" else item
        events.append({"type": "response.output_item.added", "output_index": place, "item": first})
        events.append({"type": "response.output_item.done", "output_index": place, "item": item})
    done = {**begun, "status": "completed", "output": OPENAI_ITEMS}
    events.append({"type": "response.completed", "response": done})
    return b"".join(f"data: {json.dumps(each)}\n\n".encode() for each in events)


def whole(adapter: Adapter) -> bytes:
    if adapter is CLAUDE:
        head = {"type": "message", "id": "msg_1", "model": "claude-opus-5", "usage": {"input_tokens": 9}}
        return json.dumps({**head, "content": ANTHROPIC_BLOCKS, "stop_reason": "tool_use"}).encode()
    return json.dumps({"id": "resp_1", "model": "gpt-6.1-sol", "status": "completed", "output": OPENAI_ITEMS}).encode()


def answered(adapter: Adapter, body: bytes, *, streaming: bool, size: int = 0) -> ModelResponse:
    decoder, builder = adapter.decoder(200, {}, streaming), ResponseBuilder()
    for start in range(0, len(body), size or len(body)):
        builder.feed(decoder.feed(body[start : start + (size or len(body))]))
    builder.feed(decoder.finish())
    return builder.response()


#: What both have found.
FOUND = ("get_weather", "get_forecast")
STREAMS = {"claude-opus-5": (CLAUDE, anthropic_stream()), "gpt-6.1-sol": (GPT, openai_stream())}


@pytest.mark.parametrize("model", STREAMS)
def test_an_answer_that_has_searched_is_read_streamed_in_pieces_and_whole_alike(model: str) -> None:
    adapter, stream = STREAMS[model]
    answer = answered(adapter, stream, streaming=True)
    assert answer.error is None
    assert [part.found for part in answer.parts if isinstance(part, ServerTool)] == [
        (),
        ("get_weather", "get_forecast"),
    ]
    assert [(call.name, call.complete) for call in answer.tool_calls] == [("get_weather", True)]
    assert answered(adapter, stream, streaming=True, size=7).parts == answer.parts
    assert answered(adapter, whole(adapter), streaming=False).parts == answer.parts


def turn(model: str) -> tuple[Message, ...]:
    adapter, stream = STREAMS[model]
    message = answered(adapter, stream, streaming=True).message
    (call,) = message.tool_calls
    return message, ToolMessage(call.call_id, call.name, "sunny")


def written(body: dict[str, Any]) -> list[dict[str, Any]]:
    if "input" in body:
        return [item for item in body["input"] if item["type"] != "message"]
    return [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]


@pytest.mark.parametrize("model", STREAMS)
def test_a_search_goes_back_as_it_came_and_what_it_has_loaded_stays_deferred(model: str) -> None:
    adapter, _ = STREAMS[model]
    body = sent(adapter, request(model, "get_weather", "get_forecast", messages=turn(model)))
    assert names(body["tools"], deferred=True) == ["get_weather", "get_forecast", "send_mail"]
    assert body["tools"] == sent(adapter, request(model))["tools"], "the same in each step: a cache keeps them"
    kept = written(body)
    if adapter is CLAUDE:
        assert [block for block in kept if block["type"] in ("server_tool_use", "tool_search_tool_result")] == (
            ANTHROPIC_BLOCKS[1:3]
        )
    else:
        assert kept[:2] == OPENAI_ITEMS[:2]
        assert kept[2]["namespace"] == "get_weather"  # "Missing namespace for function_call 'get_weather'"


@pytest.mark.parametrize("model", STREAMS)
def test_elsewhere_a_search_is_left_out_with_a_note_and_what_it_found_is_offered(model: str) -> None:
    others = [(CLAUDE, "claude-opus-5"), (GPT, "gpt-6.1-sol"), (GPT, "gpt-5.2"), (OpenAIChat(api_key="k"), "gpt-5.4")]
    for adapter, other in others:
        if other == model:
            continue
        encoded = adapter.encode(request(other, "get_weather", "get_forecast", messages=turn(model)))
        assert b"srvtoolu" not in encoded.body
        assert b"tsc_1" not in encoded.body
        assert any("left out" in note for note in encoded.notes)
        tools = json.loads(encoded.body)["tools"]
        assert {*FOUND} <= {(each.get("function") or each).get("name") for each in tools}
        assert not any(
            each.get("defer_loading") for each in tools if each.get("name") in ("get_weather", "get_forecast")
        )


def test_references_to_tools_that_are_gone_are_taken_out_of_a_result() -> None:
    asked = request("claude-opus-5", "get_weather", messages=turn("claude-opus-5"))
    left = replace(asked, tool_search=ToolSearch(SEARCH.name, DEFERRED[:1]))
    (result,) = (block for block in written(sent(CLAUDE, left)) if block["type"] == "tool_search_tool_result")
    assert result["content"]["tool_references"] == [{"type": "tool_reference", "tool_name": "get_weather"}]


def test_without_deferred_tools_an_old_search_goes_with_its_result() -> None:
    asked = replace(request("claude-opus-5", messages=turn("claude-opus-5")), tool_search=None)
    kinds = {block["type"] for block in written(sent(CLAUDE, asked))}
    assert kinds == {"text", "tool_use", "tool_result"}


@pytest.mark.parametrize(
    "content",
    [
        {"type": "tool_search_tool_result_error", "error_code": "unavailable"},
        {"type": "tool_search_tool_search_result", "tool_references": []},
        {"type": "tool_search_tool_search_result", "tool_references": None},
        {"type": "tool_search_tool_search_result", "tool_references": [7, {}, {"tool_name": 7}]},
        {},
        [],
        None,
    ],
)
def test_a_search_that_found_nothing_finds_nothing(content: Any) -> None:
    blocks = [ANTHROPIC_BLOCKS[1], {**ANTHROPIC_BLOCKS[2], "content": content}, {"type": "text", "text": "So."}]
    document = {"type": "message", "id": "m", "model": "claude-opus-5", "content": blocks, "stop_reason": "end_turn"}
    answer = answered(CLAUDE, json.dumps({**document, "usage": {}}).encode(), streaming=False)
    assert (answer.error, answer.text) == (None, "So.")
    assert [part.found for part in answer.parts if isinstance(part, ServerTool)] == [(), ()]
    CLAUDE.encode(request("claude-opus-5", messages=(answer.message, UserMessage.of("and?"))))


def test_calls_of_our_search_go_to_a_provider_that_searches_itself_as_any_call() -> None:
    asked = ToolCall(CallId("s"), ToolName("tool_search"), '{"query":"weather"}')
    history = (AssistantMessage((asked,)), ToolMessage(CallId("s"), ToolName("tool_search"), '{"tools":[]}'))
    for adapter, model in ((CLAUDE, "claude-opus-5"), (GPT, "gpt-6.1-sol")):
        body = sent(adapter, request(model, "get_weather", messages=(*history, AssistantMessage((Text("So."),)))))
        assert any(each.get("name") == "tool_search" for each in written(body))
        assert names(body["tools"], deferred=False)[:2] == ["clock", "get_weather"]

"""Anthropic Messages: tools that the provider runs: offered, shown, billed, and sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wire import answer, body, events, header, sse

from callboard.protocol.content import (
    AssistantMessage,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, PromptCache, ServerToolEvent
from callboard.protocol.server_tools import (
    CodeExecution,
    FileSearch,
    ImageGeneration,
    RemoteMcp,
    ServerToolOffer,
    WebFetch,
    WebSearch,
)
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic

ADAPTER = Anthropic(api_key="k")
ASK = UserMessage.of("Hi")


def offered(*offers: ServerToolOffer, **fields: Any) -> dict[str, Any]:
    return body(ADAPTER, server_tools=offers, prompt_cache=PromptCache.OFF, **fields)


def test_web_search_and_fetch() -> None:
    search = WebSearch(3, ("example.org",), country="FR", city="Paris", timezone="Europe/Paris")
    sent = offered(search, WebFetch(blocked_domains=("example.com",)))
    assert sent["tools"] == [
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "max_uses": 3,
            "allowed_domains": ["example.org"],
            "user_location": {
                "type": "approximate",
                "country": "FR",
                "city": "Paris",
                "timezone": "Europe/Paris",
            },
        },
        {"type": "web_fetch_20250910", "name": "web_fetch", "blocked_domains": ["example.com"]},
    ]
    assert sent["tool_choice"] == {"type": "auto"}


def test_code_execution_gets_its_files_with_the_first_message() -> None:
    request = ModelRequest("claude-x", (ASK,), server_tools=(CodeExecution(("file_1", "file_2")),))
    wire = ADAPTER.encode(request)
    sent = json.loads(wire.body)
    assert [tool["name"] for tool in sent["tools"]] == ["code_execution"]
    uploads = [block["file_id"] for block in sent["messages"][0]["content"] if block["type"] == "container_upload"]
    assert uploads == ["file_1", "file_2"]
    assert header(wire.headers, "anthropic-beta") == "files-api-2025-04-14"
    assert ADAPTER.encode(ModelRequest("claude-x", (ASK,), server_tools=(CodeExecution(),))).notes == ()


def test_an_mcp_server_with_some_of_its_tools() -> None:
    mcp = RemoteMcp("docs", "https://example.org/mcp", "secret-token", ("find", "read"), {"x-team": "a"})
    wire = ADAPTER.encode(ModelRequest("claude-x", (ASK,), server_tools=(mcp,)))
    sent = json.loads(wire.body)
    assert sent["mcp_servers"] == [
        {"type": "url", "name": "docs", "url": "https://example.org/mcp", "authorization_token": "secret-token"}
    ]
    (toolset,) = sent["tools"]
    toolset.pop("cache_control")
    assert toolset == {
        "type": "mcp_toolset",
        "mcp_server_name": "docs",
        "default_config": {"enabled": False},
        "configs": {"find": {"enabled": True}, "read": {"enabled": True}},
    }
    assert header(wire.headers, "anthropic-beta") == "mcp-client-2025-11-20"
    assert [note for note in wire.notes if "headers" in note]
    assert "secret-token" not in repr(wire) + repr(mcp)


@pytest.mark.parametrize(
    ("offer", "says"),
    [
        (
            FileSearch(("vs_1",)),
            "no FileSearch of its own on this API; it has: WebSearch, WebFetch, CodeExecution, RemoteMcp",
        ),
        (ImageGeneration(), "no ImageGeneration"),
        (WebSearch(allowed_domains=("a.org",), blocked_domains=("b.org",)), "not both"),
    ],
    ids=["file search", "pictures", "both lists"],
)
def test_what_the_api_has_not_is_refused_by_its_name(offer: ServerToolOffer, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        offered(offer)


def test_two_tools_of_one_name_are_refused() -> None:
    mine = ToolDefinition(ToolName("web_search"), "Searches.")
    with pytest.raises(UsageError, match="'web_search'"):
        offered(WebSearch(), tools=(mine,))


# What comes back.

SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "grass"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://example.org",
            "title": "Green",
            "encrypted_content": "ENC",
            "page_age": None,
        }
    ],
}
FAILED = {
    "type": "web_fetch_tool_result",
    "tool_use_id": "srvtoolu_2",
    "content": {"type": "web_fetch_tool_result_error", "error_code": "url_not_accessible"},
}
RAN = {
    "type": "bash_code_execution_tool_result",
    "tool_use_id": "srvtoolu_3",
    "content": {
        "type": "bash_code_execution_result",
        "stdout": "3\n",
        "stderr": "",
        "return_code": 0,
        "content": [{"type": "bash_code_execution_output", "file_id": "file_9"}],
    },
}
ASKED_MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "find", "server_name": "docs", "input": {}}
TOLD_MCP = {
    "type": "mcp_tool_result",
    "tool_use_id": "mcptoolu_1",
    "is_error": False,
    "content": [{"type": "text", "text": "two pages"}],
}


def whole(*blocks: dict[str, Any], reason: str = "end_turn", **more: Any) -> bytes:
    document = {"type": "message", "id": "m", "model": "claude-x", "content": list(blocks), "stop_reason": reason}
    return json.dumps({**document, **more}).encode()


def turn_of(*blocks: dict[str, Any], **how: Any) -> ModelResponse:
    return answer(ADAPTER, whole(*blocks, **how), streaming=False)


@pytest.mark.parametrize(
    ("block", "name", "call_id", "text"),
    [
        (SEARCH, "web_search", "srvtoolu_1", "grass"),
        (FOUND, "web_search", "srvtoolu_1", "Green https://example.org"),
        (FAILED, "web_fetch", "srvtoolu_2", "url_not_accessible"),
        (RAN, "bash_code_execution", "srvtoolu_3", "3\nfile_9"),
        (ASKED_MCP, "find", "mcptoolu_1", ""),
        (TOLD_MCP, "mcp", "mcptoolu_1", "two pages"),
        ({"type": "compaction", "content": "So far."}, "compaction", "", "So far."),
        ({"type": "brand_new", "x": {"y": [1]}}, "brand_new", "", ""),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
def test_what_is_shown_of_a_block(block: dict[str, Any], name: str, call_id: str, text: str) -> None:
    (shown,) = turn_of(block).parts
    assert shown == ServerTool(block["type"], Replay("anthropic", block), name, call_id, text)


def test_what_is_shown_is_short() -> None:
    said = {**TOLD_MCP, "content": [{"type": "text", "text": "x" * 9_000}]}
    (shown,) = turn_of(said).parts
    assert isinstance(shown, ServerTool)
    assert len(shown.text) == 2_000
    assert shown.replay.data == said


def test_searches_are_counted_for_the_bill() -> None:
    usage = {"input_tokens": 9, "output_tokens": 5, "server_tool_use": {"web_search_requests": 2}}
    turn = turn_of(SEARCH, FOUND, {"type": "text", "text": "Green."}, usage=usage)
    assert turn.usage is not None
    assert turn.usage.web_searches == 2


def sent_back(*messages: Any, **fields: Any) -> tuple[list[Any], tuple[str, ...], dict[str, Any]]:
    """(blocks of the model's turns, notes, body)."""
    wire = ADAPTER.encode(ModelRequest("claude-x", messages, **fields))
    sent = json.loads(wire.body)
    turns = [message["content"] for message in sent["messages"] if message["role"] == "assistant"]
    return [block for turn in turns for block in turn], wire.notes, sent


def test_calls_and_results_go_back_as_they_came_in_their_order() -> None:
    said = {"type": "text", "text": "Green."}
    turn = turn_of(SEARCH, FOUND, said, ASKED_MCP, TOLD_MCP)
    blocks, notes, _ = sent_back(ASK, turn.message, UserMessage.of("More"))
    assert (blocks, notes) == ([SEARCH, FOUND, said, ASKED_MCP, TOLD_MCP], ())


def test_a_call_whose_result_never_came_does_not_spoil_the_history() -> None:
    """400: "`web_search` tool use with id .. was found without a corresponding `web_search_tool_result` block"."""
    turn = turn_of({"type": "text", "text": "I look."}, SEARCH, reason="max_tokens")
    blocks, notes, _ = sent_back(ASK, turn.message, UserMessage.of("And?"))
    assert [block["type"] for block in blocks] == ["text"]
    assert [note for note in notes if note.startswith("server_tool_use")]
    orphan = AssistantMessage((ServerTool("web_search_tool_result", Replay("anthropic", FOUND)), Text("Green.")))
    blocks, notes, _ = sent_back(ASK, orphan, UserMessage.of("And?"))
    assert [block["type"] for block in blocks] == ["text"]
    assert [note for note in notes if note.startswith("web_search_tool_result")]


def test_a_paused_turn_goes_back_as_it_is_and_its_result_may_come_in_the_next_one() -> None:
    turn = turn_of(SEARCH, reason="pause_turn")
    assert turn.finish_reason is FinishReason.PAUSE
    blocks, notes, _ = sent_back(ASK, turn.message)
    assert (blocks, notes) == ([SEARCH], ())
    later = turn_of(FOUND, {"type": "text", "text": "Green."})
    blocks, notes, _ = sent_back(ASK, turn.message, later.message, UserMessage.of("More"))
    assert ([block["type"] for block in blocks], notes) == (["server_tool_use", "web_search_tool_result", "text"], ())


CODE = {"type": "server_tool_use", "id": "srvtoolu_7", "name": "code_execution", "input": {"code": "await f()"}}
CALLED = {
    "type": "tool_use",
    "id": "toolu_1",
    "name": "f",
    "input": {},
    "caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_7"},
}


def test_programs_that_wait_for_our_tools_go_on_in_their_sandbox() -> None:
    """400: "container_id is required when there are pending tool uses generated by code execution with tools"."""
    turn = turn_of(CODE, CALLED, reason="tool_use", container={"id": "container_1", "expires_at": "2026-11-22"})
    result = ToolMessage(CallId("toolu_1"), ToolName("f"), "3")
    blocks, notes, sent = sent_back(ASK, turn.message, result)
    assert (blocks, notes) == ([CODE, CALLED], ())
    assert sent["container"] == "container_1"
    # A note of ours among the results changes nothing, the person's next question does.
    assert sent_back(ASK, turn.message, result, SystemMessage("Be brief."))[2]["container"] == "container_1"
    blocks, notes, sent = sent_back(ASK, turn.message, result, UserMessage.of("Stop."))
    assert "container" not in sent
    assert [block["type"] for block in blocks] == ["tool_use"]
    assert notes


def test_a_sandbox_is_named_only_while_a_program_waits() -> None:
    done = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_7", "content": {"stdout": "3"}}
    turn = turn_of(CODE, done, reason="end_turn", container={"id": "container_1"})
    assert [part.kind for part in turn.parts if isinstance(part, ServerTool)] == [CODE["type"], done["type"]]


@pytest.mark.parametrize("stop", [True, False], ids=["ended", "not ended"])
def test_quirk_64_half_an_input_is_shown_and_stays_here(stop: bool) -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": {**SEARCH, "input": {}}}
    half = {"type": "input_json_delta", "partial_json": '{"query": "gra'}
    documents = [
        {"type": "message_start", "message": {"id": "m"}},
        start,
        {"type": "content_block_delta", "index": 0, "delta": half},
        *([{"type": "content_block_stop", "index": 0}] if stop else []),
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    turn = answer(ADAPTER, sse(documents))
    assert (turn.error, turn.finish_reason, turn.tool_calls) == (None, FinishReason.LENGTH, ())
    (shown,) = turn.parts
    assert isinstance(shown, ServerTool)
    assert (shown.name, shown.text) == ("web_search", '{"query": "gra')
    blocks, notes, _ = sent_back(ASK, turn.message)
    assert blocks == []
    assert notes


@pytest.mark.parametrize("piece", ["", "{}"])
def test_quirk_64_a_server_call_without_input(piece: str) -> None:
    start = {"type": "content_block_start", "index": 0, "content_block": ASKED_MCP}
    delta = {"type": "input_json_delta", "partial_json": piece}
    end = {"type": "message_delta", "delta": {"stop_reason": "pause_turn"}}
    documents = [
        start,
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        end,
        {"type": "message_stop"},
    ]
    shown = [event for event in events(ADAPTER, sse(documents)) if isinstance(event, ServerToolEvent)]
    assert [event.replay.data for event in shown] == [ASKED_MCP]


def test_a_hop_to_another_model_goes_back_in_its_place() -> None:
    """ "When you send the assistant turn back, keep this block in its original position" (BetaFallbackBlockParam)."""
    hop = {"type": "fallback", "from": {"model": "claude-a"}, "to": {"model": "claude-b"}, "trigger": None}
    said = [{"type": "text", "text": text} for text in ("One.", "Two.")]
    blocks, _, _ = sent_back(ASK, turn_of(said[0], hop, said[1]).message, UserMessage.of("More"))
    assert blocks == [said[0], hop, said[1]]


def test_a_compaction_is_billed_beside_the_answer() -> None:
    """ "A `compaction` entry's tokens are not included in the top-level `usage` fields" (BetaUsage.iterations)."""
    entry = {"type": "compaction", "input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 30}
    message = {"type": "message", "input_tokens": 7, "output_tokens": 3}
    usage = {"input_tokens": 7, "output_tokens": 3, "iterations": [entry, message]}
    turn = turn_of({"type": "text", "text": "Hi"}, usage=usage)
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens, turn.usage.cached_tokens) == (137, 23, 30)

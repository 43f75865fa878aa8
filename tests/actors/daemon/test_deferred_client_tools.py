"""Clients of the daemon that defer tools, in the words of both APIs (platform.claude.com, "Tool search tool";
developers.openai.com, "Tool search"; Codex and Claude Code send them)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.messages_body import messages_question
from callboard.actors.daemon.responses_body import read_responses_body, tools_in
from callboard.actors.daemon.responses_input import messages_of
from callboard.protocol.content import AssistantMessage, ServerTool, ToolMessage

SCHEMA = {"type": "object", "properties": {}}
MESSAGES_TOOLS: list[dict[str, Any]] = [
    {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    {"name": "clock", "input_schema": SCHEMA},
    {"name": "mail", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "weather", "input_schema": SCHEMA, "defer_loading": True},
    {"name": "stock", "input_schema": SCHEMA, "defer_loading": False},
]
#: An answer of Anthropic's own search, sent back.
SEARCHED: list[dict[str, Any]] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "weather"}},
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "weather"}],
        },
    },
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
]


def messages(*said: dict[str, Any], tools: list[dict[str, Any]] = MESSAGES_TOOLS) -> bytes:
    asked = [{"role": "user", "content": "go"}, *said]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": asked, "tools": tools}).encode()


def responses(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "go", **fields}).encode()


@pytest.mark.parametrize("kind", ["regex_20251119", "regex", "bm25_20251119", "bm25"])
def test_the_tools_of_a_messages_request_are_deferred_and_its_search_is_ours(kind: str) -> None:
    search = {"type": f"tool_search_tool_{kind}", "name": "tool_search_tool_x"}
    tools = messages_question(messages(tools=[search, *MESSAGES_TOOLS[1:]])).tools
    assert [(each.name, each.deferred) for each in tools] == [
        ("clock", False),
        ("mail", True),
        ("weather", True),
        ("stock", False),
    ]


def test_a_search_of_the_provider_comes_back_as_it_was() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    question = messages_question(
        messages({"role": "assistant", "content": SEARCHED}, {"role": "user", "content": [result]})
    )
    turn = question.messages[1]
    assert isinstance(turn, AssistantMessage)
    blocks = [part for part in turn.parts if isinstance(part, ServerTool)]
    assert [dict(part.replay.data) for part in blocks] == SEARCHED[:2]
    assert [part.found for part in blocks] == [(), ("weather",)]


def test_what_a_search_of_the_clients_own_has_found_is_shown_behind_the_others() -> None:
    """Claude Code answers its own ToolSearch with `tool_reference` blocks."""
    asked = {"type": "tool_use", "id": "toolu_1", "name": "ToolSearch", "input": {"query": "weather"}}
    references = [{"type": "tool_reference", "tool_name": name} for name in ("weather", "mail", "gone")]
    found = {"type": "tool_result", "tool_use_id": "toolu_1", "content": references}
    question = messages_question(
        messages({"role": "assistant", "content": [asked]}, {"role": "user", "content": [found]})
    )
    assert [(each.name, each.deferred) for each in question.tools] == [
        ("clock", False),
        ("stock", False),
        ("weather", False),
        ("mail", False),
    ]
    (result,) = (each for each in question.messages if isinstance(each, ToolMessage))
    assert result.content.splitlines()[0] == "The tool weather can be called now."


RESPONSES_TOOLS: list[dict[str, Any]] = [
    {"type": "tool_search"},
    {"type": "function", "name": "clock", "parameters": SCHEMA},
    {"type": "function", "name": "mail", "parameters": SCHEMA, "defer_loading": True},
]


@pytest.mark.parametrize("search", [{}, {"execution": "server"}, {"execution": None}])
def test_the_tools_of_a_responses_request_are_deferred(search: dict[str, Any]) -> None:
    tools = [{**RESPONSES_TOOLS[0], **search}, *RESPONSES_TOOLS[1:]]
    read = read_responses_body(responses(tools=tools))
    assert [(each.name, each.deferred) for each in tools_in(read)] == [("clock", False), ("mail", True)]


def test_searched_items_of_a_responses_request_come_back_as_they_were() -> None:
    items: list[dict[str, object]] = [
        {"type": "message", "role": "user", "content": "go"},
        {"type": "tool_search_call", "id": "tsc_1", "call_id": None, "arguments": {"paths": ["mail"]}},
        {"type": "tool_search_output", "id": "tso_1", "call_id": None, "tools": [{"type": "function", "name": "mail"}]},
        {"type": "function_call", "call_id": "c", "name": "mail", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sent"},
    ]
    _, turn, result = messages_of(items)
    assert isinstance(turn, AssistantMessage)
    assert isinstance(result, ToolMessage)
    blocks = [part for part in turn.parts if isinstance(part, ServerTool)]
    assert [dict(part.replay.data) for part in blocks] == items[1:3]
    assert blocks[1].found == ("mail",)


WRONG: dict[str, tuple[bytes, str]] = {
    "a search that the client makes": (
        responses(tools=[{"type": "tool_search", "execution": "client", "parameters": {}}]),
        "tools.0.execution",
    ),
    "a namespace": (responses(tools=[{"type": "namespace", "name": "n", "tools": []}]), "tools.0.type"),
    "a mark that is none": (
        responses(tools=[{"type": "function", "name": "f", "defer_loading": "often"}]),
        "tools.0.defer_loading",
    ),
    "a mark of the Messages API that is none": (
        messages(tools=[{"name": "f", "input_schema": SCHEMA, "defer_loading": 7}]),
        "tools.0.defer_loading",
    ),
    "a search without a name": (messages(tools=[{"type": "tool_search_tool_bm25"}]), "tools.0"),
    "another tool of the server's": (
        messages(
            {"role": "assistant", "content": [{**SEARCHED[0], "name": "web_search"}]}, {"role": "user", "content": "x"}
        ),
        "messages.1.content.0.name",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_taken_is_refused_by_its_field(case: str) -> None:
    body, param = WRONG[case]
    with pytest.raises(ApiError) as refused:
        (messages_question if b'"messages"' in body else read_responses_body)(body)
    assert refused.value.status == 400
    assert (refused.value.param or "").startswith(param)

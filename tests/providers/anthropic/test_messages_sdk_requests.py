"""What is sent for each feature of Messages is valid by the official SDK's own types, stable or beta."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from support.examples import examples
from support.histories import histories
from support.sdk_types import Lazy, check_typed
from support.wire import header

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Citation,
    Document,
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
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, PromptCache, Sampling
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import CodeExecution, RemoteMcp, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS

anthropic_types = Lazy("anthropic.types")
STABLE = "anthropic.types.message_create_params.MessageCreateParamsStreaming"
BETA = "anthropic.types.beta.message_create_params.MessageCreateParamsStreaming"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolDefinition(ToolName("lookup"), "Looks up.", SCHEMA, strict=True),)
ASK = UserMessage.of("Hi")


def check(half: str, *messages: Message, adapter: Anthropic | None = None, **fields: Any) -> dict[str, Any]:
    wire = (adapter or Anthropic(api_key="k")).encode(
        ModelRequest(fields.pop("model", "claude-x"), messages or (ASK,), **fields)
    )
    sent: dict[str, Any] = json.loads(wire.body)
    check_typed(sent, half)
    betas = (header(wire.headers, "anthropic-beta") or "").split(",")
    known = typing.get_args(typing.get_args(anthropic_types.AnthropicBetaParam)[1])
    assert all(beta in known for beta in betas if beta)
    return sent


def used(block: dict[str, Any]) -> ServerTool:
    return ServerTool(block["type"], Replay("anthropic", block))


SEARCHED = (
    used({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}),
    used(
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "e"}],
        }
    ),
)
PAGE = {
    "type": "web_search_result_location",
    "cited_text": "c",
    "url": "https://example.org",
    "title": "t",
    "encrypted_index": "e",
}
FEATURES: dict[str, tuple[str, tuple[Message, ...], dict[str, Any]]] = {
    "marks for an hour": (STABLE, (SystemMessage("Be brief."), ASK), {"prompt_cache": PromptCache.ONE_HOUR}),
    "no marks": (STABLE, (SystemMessage("Be brief."), ASK), {"prompt_cache": PromptCache.OFF}),
    "a picture by its bytes": (STABLE, (UserMessage((Image("image/webp", "aWcK"),)),), {}),
    "a picture by its url": (STABLE, (UserMessage((Image(url="https://example.org/a.png"),)),), {}),
    "a picture by its file": (STABLE, (UserMessage((Image(file_id="file_1"),)),), {}),
    "a PDF by its bytes": (
        STABLE,
        (UserMessage((Document("application/pdf", "aWcK", name="A", citations=True),)),),
        {},
    ),
    "a PDF by its url": (STABLE, (UserMessage((Document(url="https://example.org/a.pdf"),)),), {}),
    "a PDF by its file": (STABLE, (UserMessage((Document(file_id="file_1"),)),), {}),
    "a text": (STABLE, (UserMessage((Document(text="A page", name="Page"),)),), {}),
    "media in a result": (
        STABLE,
        (
            ASK,
            AssistantMessage((ToolCall(CallId("t"), ToolName("lookup"), "{}"),)),
            ToolMessage(
                CallId("t"),
                ToolName("lookup"),
                "Look",
                is_error=True,
                media=(Image("image/png", "aWcK"), Document(text="A page"), Audio("audio/wav", "aWcK")),
            ),
        ),
        {"tools": TOOLS},
    ),
    "search and fetch": (
        STABLE,
        (ASK,),
        {"server_tools": (WebSearch(2, ("a.org",), city="Rome"), WebFetch(3, blocked_domains=("b.org",)))},
    ),
    "programs with files": (STABLE, (ASK,), {"server_tools": (CodeExecution(("file_1",)),), "tools": TOOLS}),
    "an MCP server": (
        BETA,
        (ASK,),
        {"server_tools": (RemoteMcp("docs", "https://example.org/mcp", "token", ("find",)),)},
    ),
    "a search goes back": (
        STABLE,
        (
            ASK,
            AssistantMessage(
                (
                    Thinking("Hm", Replay("anthropic", {"signature": "s"})),
                    Thinking("", Replay("anthropic", {"data": "d"})),
                    *SEARCHED,
                    Text("Green.", None, (Citation(raw=PAGE),)),
                )
            ),
            UserMessage.of("More"),
        ),
        {"server_tools": (WebSearch(),)},
    ),
    "an MCP call goes back": (
        BETA,
        (
            ASK,
            AssistantMessage(
                (
                    used({"type": "mcp_tool_use", "id": "m1", "name": "find", "server_name": "docs", "input": {}}),
                    used({"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": []}),
                )
            ),
            UserMessage.of("More"),
        ),
        {},
    ),
    "a compaction goes back": (
        BETA,
        (
            ASK,
            AssistantMessage((used({"type": "compaction", "content": "So far.", "encrypted_content": None}),)),
            UserMessage.of("More"),
        ),
        {},
    ),
    "a sandbox that waits": (
        STABLE,
        (
            ASK,
            AssistantMessage(
                (
                    used(
                        {
                            "type": "server_tool_use",
                            "id": "srvtoolu_1",
                            "name": "code_execution",
                            "input": {"code": "1"},
                        }
                    ),
                    used({"type": "container", "id": "container_1"}),
                )
            ),
        ),
        {"server_tools": (CodeExecution(),)},
    ),
    "a tier": (STABLE, (ASK,), {"service_tier": "standard_only"}),
    "effort, shown, with an answer's schema": (
        STABLE,
        (ASK,),
        {"model": "claude-opus-4-8", "sampling": Sampling(reasoning_effort="max"), "response_schema": SCHEMA},
    ),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_is_valid(feature: str) -> None:
    half, messages, fields = FEATURES[feature]
    check(half, *messages, **fields)


@pytest.mark.parametrize("name", MESSAGES_SERVERS)
def test_every_dialect_sends_what_the_types_allow(name: str) -> None:
    adapter = Anthropic(api_key="k", dialect=MESSAGES_SERVERS[name])
    turn = AssistantMessage((Thinking("Hm"), ToolCall(CallId("t"), ToolName("lookup"), "{}")))
    result = ToolMessage(CallId("t"), ToolName("lookup"), "Look", media=(Image("image/png", "aWcK"),))
    check(STABLE, ASK, turn, result, adapter=adapter, tools=TOOLS, response_schema=SCHEMA, model="other")


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.sampled_from(list(PromptCache)), st.sampled_from(sorted(MESSAGES_SERVERS)))
def test_any_history_is_valid_in_any_dialect(messages: tuple[Message, ...], cache: PromptCache, name: str) -> None:
    if not MESSAGES_SERVERS[name].media:
        messages = tuple(UserMessage.of("Hi") if isinstance(each, UserMessage) else each for each in messages)
    adapter = Anthropic(api_key="k", dialect=MESSAGES_SERVERS[name])
    check(STABLE, *messages, adapter=adapter, tools=TOOLS, prompt_cache=cache)


def test_the_types_do_refuse() -> None:
    """That the check checks: a wrong type deep in a block is found."""
    with pytest.raises(ValidationError):
        check(
            STABLE,
            provider_options=(
                ExtraFields({"messages": [{"role": "user", "content": [{"type": "document", "source": 7}]}]}),
            ),
        )

"""Gemini: tools of the provider's beside ours, and structured output beside tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.validators import gemini as violations
from support.wire import body

from callboard.protocol.content import SystemMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest
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
from callboard.providers.gemini.gemini_api import Gemini

ADAPTER = Gemini()
VERTEX = Gemini(project="p")
LOOKUP = ToolDefinition(ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}})
SHOWN = {"includeServerSideToolInvocations": True}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def encoded(*offers: ServerToolOffer, adapter: Gemini = ADAPTER, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    name = fields.pop("model", "gemini-3-pro")
    sent = adapter.encode(ModelRequest(name, (UserMessage.of("Hi"),), server_tools=offers, **fields))
    decoded = json.loads(sent.body)
    assert violations(decoded) == []
    return decoded, list(sent.notes)


@pytest.mark.parametrize(
    ("offer", "expected"),
    [
        (WebSearch(), {"googleSearch": {}}),
        (WebFetch(), {"urlContext": {}}),
        (CodeExecution(), {"codeExecution": {}}),
        (
            FileSearch(("store", "fileSearchStores/other"), 5),
            {"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/store", "fileSearchStores/other"], "topK": 5}},
        ),
        (FileSearch(("s",)), {"fileSearch": {"fileSearchStoreNames": ["fileSearchStores/s"]}}),
        (
            RemoteMcp("m", "https://example.org/mcp", "token", headers={"x-a": "1"}),
            {
                "mcpServers": [
                    {
                        "name": "m",
                        "streamableHttpTransport": {
                            "url": "https://example.org/mcp",
                            "headers": {"x-a": "1", "Authorization": "Bearer token"},
                        },
                    }
                ]
            },
        ),
        (
            RemoteMcp("m", "https://example.org/mcp"),
            {"mcpServers": [{"name": "m", "streamableHttpTransport": {"url": "https://example.org/mcp"}}]},
        ),
    ],
)
def test_each_server_tool(offer: ServerToolOffer, expected: dict[str, Any]) -> None:
    sent, notes = encoded(offer)
    assert (sent["tools"], sent["toolConfig"], notes) == ([expected], SHOWN, [])
    sent, notes = encoded(offer, model="gemini-2.5-pro")
    assert (sent["tools"], "toolConfig" in sent, notes) == ([expected], False, [])


def test_server_tools_beside_ours() -> None:
    sent, _ = encoded(WebSearch(), CodeExecution(), tools=(LOOKUP,))
    assert [list(tool) for tool in sent["tools"]] == [["functionDeclarations"], ["googleSearch"], ["codeExecution"]]
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}, **SHOWN}
    # Vertex AI takes both, and has no such flag.
    sent, _ = encoded(WebSearch(), tools=(LOOKUP,), adapter=VERTEX)
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "AUTO"}}


@pytest.mark.parametrize("adapter", [ADAPTER, VERTEX], ids=["gemini", "vertex"])
@pytest.mark.parametrize("model", ["gemini-2.5-flash", "models/gemini-2.0-flash"])
def test_older_models_take_only_one_kind_of_tools(model: str, adapter: Gemini) -> None:
    with pytest.raises(UsageError, match=r"gemini-2.*not both"):
        encoded(WebSearch(), tools=(LOOKUP,), model=model, adapter=adapter)


def test_without_tools_of_ours_there_is_no_calling_config() -> None:
    """400 "Function calling config is set without function_declarations" (claude-code-router #1207)."""
    sent, _ = encoded(WebSearch())
    assert "functionCallingConfig" not in sent["toolConfig"]


@pytest.mark.parametrize(
    ("offer", "adapter", "words"),
    [
        (ImageGeneration(), ADAPTER, "ImageGeneration.*WebSearch.*images_out"),
        (FileSearch(("s",)), VERTEX, "has no FileSearch.*it has: WebSearch, WebFetch, CodeExecution"),
        (RemoteMcp("m", "https://example.org"), VERTEX, "has no RemoteMcp"),
        (WebSearch(allowed_domains=("example.org",)), ADAPTER, "allowed_domains"),
        (WebSearch(allowed_domains=("example.org",)), VERTEX, "allowed_domains"),
        (WebSearch(blocked_domains=("example.org",)), ADAPTER, "blocked_domains"),
        (WebFetch(allowed_domains=("example.org",)), ADAPTER, "allowed_domains"),
        (WebFetch(blocked_domains=("example.org",)), VERTEX, "blocked_domains"),
        (CodeExecution(("file",)), ADAPTER, "file_ids"),
        (RemoteMcp("m", "https://example.org", "secret-token", allowed_tools=("a",)), ADAPTER, "allowed_tools"),
    ],
)
def test_a_tool_or_a_limit_that_there_is_not_is_refused(offer: ServerToolOffer, adapter: Gemini, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        encoded(offer, adapter=adapter)
    assert "secret-token" not in str(refused.value)


def test_domains_that_a_search_leaves_out() -> None:
    sent, _ = encoded(WebSearch(blocked_domains=("example.org",)), adapter=VERTEX)
    assert sent["tools"] == [{"googleSearch": {"excludeDomains": ["example.org"]}}]


def test_options_of_a_search_that_there_are_not_are_noted() -> None:
    offer = WebSearch(max_uses=3, country="DE", city="Bonn", region="NRW", timezone="Europe/Berlin")
    sent, notes = encoded(offer, WebFetch(max_uses=1))
    assert sent["tools"] == [{"googleSearch": {}}, {"urlContext": {}}]
    assert [note.split(":")[0] for note in notes] == [
        *(f"WebSearch.{name}" for name in ("max_uses", "country", "city", "region", "timezone")),
        "WebFetch.max_uses",
    ]


# Structured output.


def test_a_schema_beside_tools() -> None:
    sent, notes = encoded(tools=(LOOKUP,), response_schema=SCHEMA)
    assert sent["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert notes == []


@pytest.mark.parametrize(
    "tools", [{"tools": (LOOKUP,)}, {"server_tools": (WebSearch(),)}], ids=["ours", "the provider's"]
)
def test_older_models_are_told_the_schema_in_words_beside_tools(tools: dict[str, Any]) -> None:
    """400 "Function calling with a response mime type: 'application/json' is unsupported" (python-genai #867)."""
    messages = (SystemMessage("Be brief."), UserMessage.of("Hi"))
    request = ModelRequest("gemini-2.5-pro", messages, response_schema=SCHEMA, **tools)
    sent = ADAPTER.encode(request)
    decoded = json.loads(sent.body)
    assert "generationConfig" not in decoded
    (part,) = decoded["systemInstruction"]["parts"]
    assert part["text"].startswith("Be brief.")
    assert part["text"].endswith(json.dumps(SCHEMA, separators=(",", ":")))
    assert any(note.startswith("response_schema:") for note in sent.notes)
    # Alone, the schema is the API's.
    config = body(ADAPTER, *messages, model="gemini-2.5-pro", response_schema=SCHEMA)["generationConfig"]
    assert config["responseJsonSchema"] == SCHEMA

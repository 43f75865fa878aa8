"""Our tools as the SDK's own client sees them, in both revisions, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ElicitRequestFormParams, ElicitResult, TextContent

from callboard.actors.calls.registry import offer_of
from callboard.actors.mcp.tool_server import ResultForm, shown_tool
from callboard.actors.tools import tool
from callboard.protocol.policy import Policy
from callboard.protocol.tools import Effect

from .conftest import PATIENCE_SECONDS, Served, is_held, until

MODES = ("legacy", "2026-07-28")


@asynccontextmanager
async def client(served: Served, mode: str, **more: Any) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=served.headers, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(served.url, http_client=http), mode=mode, **more) as connected,
    ):
        yield connected


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def failure(result: CallToolResult) -> dict[str, Any]:
    assert result.is_error
    found: dict[str, Any] = json.loads(text(result))
    return found


def answers(*content: dict[str, Any] | str) -> Callable[..., Any]:
    """A client's user: what he answers to each question in turn; a text is an action without content."""
    left = iter(content)

    async def answer(context: object, params: ElicitRequestFormParams) -> ElicitResult:
        given = next(left)
        if isinstance(given, str):
            return ElicitResult(action=given)  # type: ignore[arg-type]
        return ElicitResult(action="accept", content=given)

    return answer


@pytest.mark.parametrize("effect", Effect)
def test_only_a_tool_that_may_be_repeated_is_shown_as_idempotent(effect: Effect) -> None:
    """To MCP that means: called again with the same arguments, it has no further effect."""

    @tool(effect=effect)
    def pay(amount: int) -> str:
        return "paid"

    shown = shown_tool(offer_of(pay, Policy()), ResultForm())
    assert shown.annotations is not None
    assert shown.annotations.idempotent_hint is (effect is Effect.REPEAT)


@pytest.mark.parametrize("mode", MODES)
async def test_tools_are_shown_with_what_they_take_return_and_risk(served: Served, mode: str) -> None:
    async with client(served, mode) as connected:
        tools = {tool.name: tool for tool in (await connected.list_tools()).tools}
    assert {"add", "write", "read_file", "request_code_context"} <= tools.keys()
    add, write = tools["add"], tools["write"]
    assert add.description == "Add two numbers."
    assert add.input_schema["required"] == ["a"]
    assert add.output_schema is not None
    assert add.output_schema["properties"] == {"total": {"title": "Total", "type": "integer"}}
    assert add.annotations is not None
    assert (add.annotations.read_only_hint, add.annotations.idempotent_hint) == (True, True)
    assert write.annotations is not None
    assert (write.annotations.read_only_hint, write.annotations.destructive_hint) == (False, True)
    assert tools["words"].output_schema is None  # a list: the older revisions take objects only


@pytest.mark.parametrize("mode", MODES)
async def test_results_are_text_and_where_they_are_objects_structured(served: Served, mode: str) -> None:
    async with client(served, mode) as connected:
        added = await connected.call_tool("add", {"a": 1})
        listed = await connected.call_tool("words", {"count": 2})
        read = await connected.call_tool("read_file", {"path": "a.txt"})
    assert (text(added), added.structured_content, added.is_error) == ('{"total":3}', {"total": 3}, False)
    assert (text(listed), listed.structured_content) == ('["word","word"]', None)
    assert "hello" in text(read)


@pytest.mark.parametrize("mode", MODES)
async def test_what_has_aliases_and_bytes_is_as_the_schemas_say(served: Served, mode: str) -> None:
    """The SDK's client checks each result against the schema, and refuses what does not fit."""
    doe = {"familyName": "Doe", "photo": "//4=", "size": 40.0}
    async with client(served, mode) as connected:
        schemas = {each.name: each for each in (await connected.list_tools()).tools}
        given = await connected.call_tool("person", {"familyName": "Roe", "photo": "AP8"})
        left_out = await connected.call_tool("person", {"photo": None})
        coloured = await connected.call_tool("coloured", {"person": {"familyName": "red"}})
        listed = await connected.call_tool("listed", {"person": {"familyName": "Doe", "shoeSize": 40}})
        tree = await connected.call_tool("tree", {"depth": 1})
        wrong = failure(await connected.call_tool("person", {"photo": "?"}))
    assert schemas["person"].input_schema["properties"]["familyName"]["default"] == "Doe"
    assert schemas["person"].input_schema["properties"]["photo"]["contentEncoding"] == "base64"
    assert schemas["person"].output_schema is not None
    assert schemas["person"].output_schema["properties"]["photo"]["contentEncoding"] == "base64"
    assert given.structured_content == {"familyName": "Roe", "photo": "AP8=", "size": 40.0}
    assert left_out.structured_content == {"familyName": "Doe", "photo": "", "size": 40.0}
    assert coloured.structured_content == {"ofHair": "red"}
    assert listed.structured_content == {"rawBytes": "//4=", "people": [doe]}
    leaf = {"childNodes": [], "nodeCount": 1}
    assert tree.structured_content == {"childNodes": [leaf], "nodeCount": 2}
    assert wrong["field"] == "photo"
    assert "base64" in wrong["message"]


@pytest.mark.parametrize("mode", MODES)
async def test_failures_are_results_that_say_what_to_do(served: Served, mode: str) -> None:
    async with client(served, mode) as connected:
        wrong = failure(await connected.call_tool("add", {"a": "x", "more": 1}))
        crashed = failure(await connected.call_tool("crash", {}))
        with pytest.raises(MCPError, match="no tool named 'nothing'") as unknown:
            await connected.call_tool("nothing", {})
    assert (wrong["ok"], wrong["code"], wrong["field"]) == (False, "invalid_arguments", "a")
    assert crashed["code"] == "crashed"
    assert crashed["retry_hint"]
    assert unknown.value.code == -32602


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("answer", "is_written"),
    [({"decision": "allow"}, True), ({"decision": "deny"}, False), ({"decision": "?"}, False), ("decline", False)],
    ids=["allow", "deny", "no decision", "decline"],
)
async def test_what_the_policy_asks_about_is_asked_of_the_clients_user(
    served: Served, mode: str, answer: dict[str, Any] | str, is_written: bool
) -> None:
    target = served.workspace / "file.txt"
    target.unlink(missing_ok=True)
    async with client(served, mode, elicitation_callback=answers(answer)) as connected:
        result = await connected.call_tool("write", {"path": str(target)})
    assert target.exists() is is_written
    assert result.is_error is not is_written
    if not is_written:
        assert failure(result)["code"] == "denied"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_cannot_ask_its_user_is_told_that_such_calls_are_denied(served: Served, mode: str) -> None:
    async with client(served, mode) as connected:
        denied = failure(await connected.call_tool("write", {"path": "/nowhere"}))
    assert denied["code"] == "denied"
    assert "this MCP client cannot ask one (it has no elicitation)" in denied["message"]


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_may_ask_the_clients_user(served: Served, mode: str) -> None:
    async with client(served, mode, elicitation_callback=answers({"name": "Ann"}, "cancel")) as connected:
        assert text(await connected.call_tool("greet", {})) == "Hello Ann"
        assert failure(await connected.call_tool("greet", {}))["message"] == "no name was given"


async def test_a_tool_that_asks_is_told_where_the_client_cannot(served: Served) -> None:
    async with client(served, "legacy") as connected:
        assert "it has no elicitation" in failure(await connected.call_tool("greet", {}))["message"]
    async with client(served, "2026-07-28") as connected:
        with pytest.raises(MCPError) as missing:
            await connected.call_tool("greet", {})
    assert (missing.value.code, missing.value.data) == (-32021, {"requiredCapabilities": {"elicitation": {}}})


@pytest.mark.parametrize("mode", MODES)
async def test_progress_is_told_and_only_ever_grows(served: Served, mode: str) -> None:
    heard: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with client(served, mode) as connected:
        await connected.call_tool("steps", {"fractions": [0.0, 0.5, 0.5, 0.2, None]}, progress_callback=hear)
    amounts = [amount for amount, _, _ in heard]
    assert all(before < after for before, after in itertools.pairwise(amounts)), heard
    assert heard[0] == (0.0, 100.0, "step 0")
    assert heard[-1][1:] == (None, "step 4")


@pytest.mark.parametrize("mode", MODES)
async def test_what_a_client_cancels_is_ended(served: Served, mode: str, tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    async with client(served, mode) as connected:
        calling = asyncio.ensure_future(connected.call_tool("hold", {"marker": str(marker)}))
        await until(lambda: is_held(marker))
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await until(lambda: not is_held(marker))


async def test_a_client_of_the_new_revision_that_vanishes_ends_its_call(served: Served, tmp_path: Path) -> None:
    marker, address = tmp_path / "pid", urlsplit(served.url)
    connection = http.client.HTTPConnection(address.netloc)
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "hold", "arguments": {"marker": str(marker)}, "_meta": meta}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    headers = {
        **served.headers,
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "hold",
    }
    connection.request("POST", address.path, body, headers)
    await until(lambda: is_held(marker))
    connection.close()
    await until(lambda: not is_held(marker))


#: At the same time, of one client; CALLBOARD_DEEP=1 makes it as many as the client has connections.
CALLS = 100 if os.environ.get("CALLBOARD_DEEP") else 30


@pytest.mark.repeats
@pytest.mark.parametrize("mode", MODES)
async def test_many_calls_at_the_same_time(served: Served, mode: str) -> None:
    async with client(served, mode) as connected:
        results = await asyncio.gather(*(connected.call_tool("add", {"a": number}) for number in range(CALLS)))
    assert [result.structured_content for result in results] == [{"total": number + 2} for number in range(CALLS)]


# -- HTTP itself


def post(served: Served, body: bytes | str, headers: dict[str, str]) -> tuple[int, str]:
    address = urlsplit(served.url)
    connection = http.client.HTTPConnection(address.netloc, timeout=PATIENCE_SECONDS)
    try:
        base = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        connection.request("POST", address.path, body, {**base, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read(2_000).decode()
    finally:
        connection.close()


INITIALIZE = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
)


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer wrong", "Basic {}", "bearer {}", "Bearer {}x"])
def test_without_the_token_nothing_is_answered(served: Served, given: str) -> None:
    status, said = post(served, INITIALIZE, {"Authorization": given.format(served.token)} if given else {})
    assert (status, said) == (401, "This server needs a bearer token.")


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Host", "evil.example", 421),
        ("Host", "127.0.0.1.evil.example:80", 421),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1:1234", 200),
        ("Content-Type", "text/plain", 400),
        ("Accept", "text/html", 406),
    ],
)
def test_requests_that_a_web_page_could_send_are_refused(served: Served, header: str, value: str, status: int) -> None:
    assert post(served, INITIALIZE, {**served.headers, header: value})[0] == status


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"x" * (4 * 1024 * 1024 + 1), 413), (b"\xff\xfe{", 400), (b"[]", 400), (b"[" * 100_000, 400), (b"{}", 400)],
    ids=["too large", "not UTF-8", "a batch", "deep", "no message"],
)
def test_bodies_that_are_no_message_get_one_answer(served: Served, body: bytes, status: int) -> None:
    assert post(served, body, served.headers)[0] == status
    assert post(served, INITIALIZE, served.headers)[0] == 200

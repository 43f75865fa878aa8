"""What servers send that is not as the protocol has it, piece by piece; over both transports, with real processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callboard import McpServer, Runtime, Settings
from callboard.actors.mcp import server_connection
from callboard.actors.mcp.judged_streams import judge
from callboard.actors.mcp.remote_values import ServerState, ServerStatus
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.tools import FailureCode

from .conftest import is_settled, until

PROGRAM = str(Path(__file__).parents[2] / "support" / "mcp_told_server.py")
PATIENCE_SECONDS = 30.0
OBJECT = {"type": "object"}
TRANSPORTS = ("stdio", "http")
METHODS = {
    each.replace("/", "_"): each
    for each in ("tools/list", "tools/call", "resources/list", "resources/read", "prompts/list", "prompts/get")
}


def tool(name: object, **more: object) -> dict[str, object]:
    return {"name": name, "inputSchema": OBJECT, **more}


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


@asynccontextmanager
async def told(transport: str, file: Path, **methods: Mapping[str, object]) -> AsyncIterator[Runtime]:
    """A runtime with a server that answers so: by method, with "_" for "/"; `unknown_session` as it is."""
    file.write_text(json.dumps({METHODS.get(name, name): each for name, each in methods.items()}))  # noqa: ASYNC240
    arguments = (PROGRAM, str(file))
    if transport == "stdio":
        async with runtime_of(McpServer(command=sys.executable, args=arguments, tools={"*": "read"})) as runtime:
            yield runtime
        return
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, "http", stdout=pipe)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = int(await process.stdout.readline())
        async with runtime_of(McpServer(url=f"http://127.0.0.1:{port}/mcp", tools={"*": "read"})) as runtime:
            yield runtime
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def runtime_of(server: McpServer) -> AsyncIterator[Runtime]:
    async with Runtime(Settings(mcp_servers={"told": server})) as runtime:
        await until(lambda: is_settled(status(runtime)))
        yield runtime


def status(runtime: Runtime) -> ServerStatus:
    return runtime.mcp("told").status


def names(runtime: Runtime) -> set[str]:
    """Of the server's own tools; the two for its resources are ours."""
    return {each.remote_name for each in runtime._wiring.servers.tools if each.remote_name}


# -- tools -------------------------------------------------------------------------------------------------------------

#: Kinds of tools that the schema of the protocol refuses (`Tool` in schema.ts of 2025-11-25), by the name under which
#: it is told, with a part of the reason.
MALFORMED: dict[str, tuple[object, str, str]] = {
    "no name": ({"inputSchema": OBJECT}, "tools[1]", "name: Field required"),
    "name is a number": (tool(7), "tools[1]", "name: Input should be a valid string, not 7"),
    "name is null": (tool(None), "tools[1]", "name: "),
    "name is empty": (tool(""), "tools[1]", "name: it is empty"),
    "no inputSchema": ({"name": "bad"}, "bad", "inputSchema: Field required"),
    "inputSchema is null": ({"name": "bad", "inputSchema": None}, "bad", "inputSchema: "),
    "inputSchema is a list": ({"name": "bad", "inputSchema": []}, "bad", "inputSchema: "),
    "inputSchema is a text": ({"name": "bad", "inputSchema": "{}"}, "bad", "inputSchema: "),
    "inputSchema of another type": (
        {"name": "bad", "inputSchema": {"type": "string"}}, "bad", "inputSchema.type: Input should be 'object'",
    ),
    "inputSchema without a type": ({"name": "bad", "inputSchema": {}}, "bad", "inputSchema.type: Field required"),
    "properties are a list": (tool("bad", inputSchema={**OBJECT, "properties": []}), "bad", "inputSchema.properties: "),
    "a property is a number": (
        tool("bad", inputSchema={**OBJECT, "properties": {"a": 3}}), "bad", "inputSchema.properties.a",
    ),
    "required is a text": (tool("bad", inputSchema={**OBJECT, "required": "a"}), "bad", "inputSchema.required: "),
    "description is a number": (tool("bad", description=5), "bad", "description: "),
    "description is a list": (tool("bad", description=["a"]), "bad", "description: "),
    "title is an object": (tool("bad", title={}), "bad", "title: "),
    "annotations are a text": (tool("bad", annotations="read"), "bad", "annotations: "),
    "a hint is no yes or no": (
        tool("bad", annotations={"readOnlyHint": "perhaps"}), "bad", "annotations.readOnlyHint: ",
    ),
    "outputSchema is a text": (tool("bad", outputSchema="object"), "bad", "outputSchema: "),
    "outputSchema of another type": (tool("bad", outputSchema={"type": "array"}), "bad", "outputSchema.type: "),
    "_meta is a list": (tool("bad", _meta=[]), "bad", "_meta: "),
    "icons are a text": (tool("bad", icons="a.png"), "bad", "icons: "),
    "an icon without src": (tool("bad", icons=[{"mimeType": "image/png"}]), "bad", "icons.0.src: "),
    "null": (None, "tools[1]", "Input should be"),
    "a list": ([], "tools[1]", "Input should be"),
    "a text": ("bad", "tools[1]", "Input should be"),
    "a number of 100 bits": (tool("bad", inputSchema={**OBJECT, "maxProperties": 2**100}), "bad", "cannot be read"),
    "arguments that no provider takes": (
        tool("bad", inputSchema={**OBJECT, "properties": {"a b": {}}, "required": ["a b"]}), "bad", "'a b'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_each_malformed_tool_is_left_out_by_name_and_reason_and_hides_no_other(
    transport: str, tmp_path: Path
) -> None:
    call = {"good": {"result": {"content": [text("good")]}}}
    expected: dict[str, str] = {}
    listed: list[object] = [tool("good")]
    for number, (malformed, name, why) in enumerate(MALFORMED.values(), 1):
        if name == "bad":
            assert isinstance(malformed, dict)
            malformed = {**malformed, "name": f"bad{number}"}
        listed.append(malformed)
        expected[f"bad{number}" if name == "bad" else f"tools[{number}]"] = why
    page = {"result": {"tools": [*listed, tool("also_good", unknown={"a": 1})]}}
    async with told(transport, tmp_path / "told", tools_list={"": page}, tools_call=call) as runtime:
        now = status(runtime)
        assert names(runtime) == {"good", "also_good"}
        assert now.left_out.keys() == expected.keys()
        for name, why in expected.items():
            assert why in now.left_out[name], name
        assert (await runtime.call_tool("told_good")).content == "good"
        assert (now.state, now.connections, now.reason) == (ServerState.READY, 1, "")


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_tool_alone_is_judged_as_among_others(kind: str) -> None:
    malformed, name, why = MALFORMED[kind]
    result: dict[str, object] = {"tools": [tool("good"), malformed, tool("also_good")]}
    left_out = judge("tools/list", "2025-11-25", result)
    kept = result["tools"]
    assert isinstance(kept, list)
    assert (kept[0], kept[-1]) == (tool("good"), tool("also_good"))
    if left_out:  # else the schema allows it, and it is found later that nobody can take it
        assert list(left_out) == [name]
        assert why in left_out[name]
        assert len(kept) == 2


def test_since_2026_a_header_that_may_not_be_sent_is_told_as_the_reason() -> None:
    """The SDK drops such a tool by itself, and tells nobody."""
    wrong = tool("bad", inputSchema={**OBJECT, "properties": {"a": {"type": "object", "x-mcp-header": "A"}}})
    more = {"ttlMs": 1, "cacheScope": "private", "resultType": "complete"}
    result: dict[str, object] = {"tools": [wrong, tool("good")], **more}
    assert "x-mcp-header" in judge("tools/list", "2026-07-28", result)["bad"]
    assert result["tools"] == [tool("good")]


async def test_what_is_odd_and_allowed_is_offered(tmp_path: Path) -> None:
    long, dotted = "x" * 200, "admin.tools.list"  # SEP-986 says 128 and no more; names are made fit for providers
    tools = [
        tool(long), tool(dotted), tool("unknown", unknown=1), tool("no_words", description=None),
        tool("hints", annotations={"readOnlyHint": True, "mine": []}),
        tool("half_a_pair", description="cut \ud83d"),  # an emoji cut in the middle, as JavaScript's slice does
    ]  # fmt: skip
    async with told("stdio", tmp_path / "told", tools_list={"": {"result": {"tools": tools}}}) as runtime:
        assert names(runtime) == {long, dotted, "unknown", "no_words", "hints", "half_a_pair"}
        assert status(runtime).left_out == {}


async def test_of_two_tools_of_one_name_the_first_is_offered(tmp_path: Path) -> None:
    tools = [tool("same", description="first"), tool("same", description="second"), tool("other")]
    async with told("stdio", tmp_path / "told", tools_list={"": {"result": {"tools": tools}}}) as runtime:
        assert names(runtime) == {"same", "other"}
        assert "more than once" in status(runtime).left_out["same"]
        assert [each.description for each in runtime.mcp("told").tools if each.name == "same"] == ["first"]


# -- lists -------------------------------------------------------------------------------------------------------------


def page(*tools: object, **more: object) -> dict[str, object]:
    return {"result": {"tools": list(tools), **more}}


ENDLESS = {
    "": page(tool("t0"), nextCursor="1"),
    **{str(n): page(tool(f"t{n}"), nextCursor=str(n + 1)) for n in range(1, 99)},
}
PAGES: dict[str, tuple[dict[str, object], set[str], str, str]] = {
    "a page that is an error": (
        {"": page(tool("a"), nextCursor="b"), "b": {"error": {"code": -32603, "message": "no database"}}},
        {"a"}, "further pages", "page 2 could not be read: no database (code -32603)",
    ),
    "a page whose tools are no list": (
        {"": page(tool("a"), nextCursor="b"), "b": {"result": {"tools": {"b": {}}}}}, {"a"}, "further pages", "page 2",
    ),
    "a page without tools": (
        {"": page(tool("a"), nextCursor="b"), "b": {"result": {}}}, {"a"}, "further pages", "page 2",
    ),
    "a cursor that repeats": (
        {"": page(tool("a"), nextCursor="b"), "b": page(tool("b"), nextCursor="b")}, {"a", "b"}, "further pages", "'b'",
    ),
    "a cursor that is a number": ({"": page(tool("a"), nextCursor=5)}, {"a"}, "further pages", "not 5"),
    "a malformed tool on the second page": (
        {"": page(tool("a"), nextCursor="b"), "b": page(None, tool("b"))}, {"a", "b"}, "page 2: tools[0]", "not None",
    ),
    "_meta that is a text": ({"": page(tool("a"), _meta="x")}, {"a"}, "_meta", "not 'x'"),
    "64 pages and more": (ENDLESS, {f"t{n}" for n in range(64)}, "further pages", "only the first 64 pages"),
    "600 tools": ({"": page(*(tool(f"t{n}") for n in range(600)))}, {f"t{n}" for n in range(512)}, "t512", "first 512"),
    "512 tools and a next page": (
        {"": page(*(tool(f"t{n}") for n in range(512)), nextCursor="b")}, {f"t{n}" for n in range(512)},
        "further pages", "only the first 512",
    ),
    "no list at all": ({"": {"result": {"tools": "none"}}}, set(), "tools/list", "tools: "),
    "an error for a list": ({"": {"error": {"code": -32000, "message": "not yet"}}}, set(), "tools/list", "not yet"),
}  # fmt: skip


@pytest.mark.parametrize("kind", PAGES)
async def test_of_a_list_the_tools_so_far_are_offered(kind: str, tmp_path: Path) -> None:
    pages, offered, name, why = PAGES[kind]
    async with told("stdio", tmp_path / "told", tools_list=pages) as runtime:
        now = status(runtime)
        assert names(runtime) == offered
        assert why in now.left_out[name]
        assert (now.state, now.connections) == (ServerState.READY, 1)


async def test_what_is_left_out_is_bounded(tmp_path: Path) -> None:
    pages = {
        "": page(*(tool(f"t{n}") for n in range(1_500))),
    }
    async with told("stdio", tmp_path / "told", tools_list=pages) as runtime:
        left_out = status(runtime).left_out
        assert (len(left_out), "476 more" in left_out) == (513, True)
    pages = {"": page(*({"name": f"n{n}"} for n in range(2_000)), tool("last"))}
    async with told("stdio", tmp_path / "told", tools_list=pages) as runtime:
        assert "1,489 more" in status(runtime).left_out


def test_an_answer_with_much_in_it_is_judged_within_a_bound() -> None:
    blocks: list[object] = [text("first"), *[{"type": "hologram"}] * 100_000]
    result: dict[str, object] = {"content": blocks}
    assert "99,488 more" in judge("tools/call", "2025-11-25", result)
    kept = result["content"]
    assert isinstance(kept, list)
    assert len(kept) == 514
    assert "a block of content was left out: they are not looked at" in str(kept[-1])
    result = {"content": [*[text("x")] * 5_000, None, text("last")]}
    assert list(judge("tools/call", "2025-11-25", result)) == ["content[5000]"]


async def test_an_empty_cursor_ends_a_list(tmp_path: Path) -> None:
    async with told("stdio", tmp_path / "told", tools_list={"": page(tool("a"), nextCursor="")}) as runtime:
        assert (names(runtime), status(runtime).left_out) == ({"a"}, {})


async def test_a_page_that_does_not_come_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "LIST_SECONDS", 0.3)
    monkeypatch.setattr(server_connection, "MIN_TTL_SECONDS", 0.05)
    monkeypatch.setattr(server_connection, "RELIST_SECONDS", 0.05)
    file = tmp_path / "told"
    first = page(tool("a"), nextCursor="b")
    async with told("stdio", file, tools_list={"": first, "b": "hang"}) as runtime:
        assert names(runtime) == {"a"}
        assert "took more than 0.3 s" in status(runtime).left_out["further pages"]
        monkeypatch.setattr(server_connection, "LIST_SECONDS", PATIENCE_SECONDS)
        whole = {"tools/list": {"": first, "b": page(tool("b"))}}
        (tmp_path / "new").write_text(json.dumps(whole))
        (tmp_path / "new").rename(file)  # whole at once, as the server reads it at each request
        await until(lambda: names(runtime) == {"a", "b"})
        assert status(runtime).left_out == {}
        assert status(runtime).connections == 1


async def test_malformed_resources_and_prompts_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    resources = [{"uri": "a://b", "name": "b"}, {"uri": "a://c"}, None, {"name": "d"}, {"uri": "a://e", "name": 5}]
    prompts = [{"name": "p", "arguments": []}, {"name": "q", "arguments": {}}, {"arguments": []}, 4]
    contents = [{"uri": "a://b", "text": "inside"}, {"uri": "a://b", "text": 5}, None]
    messages = [
        {"role": "user", "content": text("hi")}, {"role": "user", "content": {"type": "hologram"}},
        {"role": "robot", "content": text("x")},
    ]  # fmt: skip
    methods = {
        "tools_list": {"": page()},
        "resources_list": {"": {"result": {"resources": resources}}},
        "prompts_list": {"": {"result": {"prompts": prompts}}},
        "resources_read": {"a://b": {"result": {"contents": contents}}},
        "prompts_get": {"p": {"result": {"messages": messages}}},
    }
    async with told("stdio", tmp_path / "told", **methods) as runtime:
        handle = runtime.mcp("told")
        assert [each["uri"] for each in await handle.resources()] == ["a://b"]
        assert [each["name"] for each in await handle.prompts()] == ["p"]
        assert "inside" in str(await handle.read_resource("a://b"))
        assert "a part of the contents was left out: " in str(await handle.read_resource("a://b"))
        shown = await handle.prompt("p")
        assert shown[0] == messages[0]
        assert "'hologram' is not known" in str(shown[1])
        assert "role: " in str(shown[2])
    assert "resources/list: 4 left out: a://c: name: Field required" in caplog.text


# -- results -----------------------------------------------------------------------------------------------------------

BLOCKS: dict[str, tuple[object, str]] = {
    "an unknown type": ({"type": "hologram", "data": "x"}, "its type 'hologram' is not known"),
    "a type of OpenAI's": ({"type": "input_text", "text": "x"}, "its type 'input_text' is not known"),
    "no type": ({"text": "x"}, "its type None is not known"),
    "a text without text": ({"type": "text"}, "text: Field required"),
    "a text that is null": ({"type": "text", "text": None}, "text: Input should be a valid string, not None"),
    "a text that is an object": ({"type": "text", "text": {"a": 1}}, "text: Input should be a valid string"),
    "a picture without its kind": ({"type": "image", "data": "AAAA"}, "mimeType: Field required"),
    "a sound whose data is a number": ({"type": "audio", "data": 5, "mimeType": "audio/wav"}, "data: "),
    "a resource without contents": ({"type": "resource"}, "resource: Field required"),
    "a resource with neither text nor blob": (
        {"type": "resource", "resource": {"uri": "a://b"}},
        "text: Field required",
    ),
    "a link without a name": ({"type": "resource_link", "uri": "a://b"}, "name: Field required"),
    "null": (None, "not None"),
    "a text in place of a block": ("done", "not 'done'"),
    "a list": ([], "not []"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_malformed_block_is_left_out_with_a_note_and_the_rest_stands(transport: str, tmp_path: Path) -> None:
    calls = {
        f"t{n}": {"result": {"content": [text("before"), block, text("after")]}}
        for n, (block, _) in enumerate(BLOCKS.values())
    }
    pages = {"": page(*map(tool, calls))}
    async with told(transport, tmp_path / "told", tools_list=pages, tools_call=calls) as runtime:
        for n, (kind, (_, why)) in enumerate(BLOCKS.items()):
            result = await runtime.call_tool(f"told_t{n}")
            before, note, after = result.content.split("\n")
            assert (result.failure, before, after) == (None, "before", "after"), kind
            assert note.startswith("[a block of content was left out: "), kind
            assert why in note, kind


async def test_what_a_block_says_outlives_what_is_wrong_beside_it(tmp_path: Path) -> None:
    said = {**text("kept"), "annotations": {"priority": 7, "audience": "all"}, "_meta": []}
    failed = {"content": [text("it broke"), {"type": "hologram"}], "isError": True}
    structured = {"content": [{"type": "hologram"}], "structuredContent": {"n": 1}}
    calls = {"said": {"result": {"content": [said]}}, "failed": {"result": failed}, "both": {"result": structured}}
    pages = {"": page(*map(tool, calls))}
    async with told("stdio", tmp_path / "told", tools_list=pages, tools_call=calls) as runtime:
        assert (await runtime.call_tool("told_said")).content == "kept"
        assert '{"n":1}' in (await runtime.call_tool("told_both")).content
        result = await runtime.call_tool("told_failed")
        assert result.failure is not None
        assert result.failure.code is FailureCode.TOOL_ERROR
        assert "it broke" in result.failure.message


# -- errors ------------------------------------------------------------------------------------------------------------

#: Of JSON-RPC 2.0 (section 5.1), of MCP, of SDKs (the TypeScript SDK answers -32000 and -32001 itself), of servers, and
#: those that callboard and the SDK use among themselves.
CODES = (
    -32000, -32001, -32002, -32042, -32050, -32099, -32600, -32601, -32602, -32603, -32700, -31001, -31002, -1, 0, 1,
    404, 500, 100_000,
)  # fmt: skip
WORDS = ("Connection closed", "Session terminated", "no such city", "SSE stream ended without a response", "")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_error_of_the_servers_is_a_failed_result_whatever_its_code(transport: str, tmp_path: Path) -> None:
    errors: dict[str, dict[str, object]] = {
        f"c{n}": {"code": code, "message": WORDS[n % len(WORDS)]} for n, code in enumerate(CODES)
    }
    errors["data"] = {"code": -32000, "message": "no", "data": {"field": "city", "got": None}}
    calls = {name: {"error": error} for name, error in errors.items()}
    if transport == "http":
        calls |= {f"{name}_sent": {"error": error, "events": True} for name, error in errors.items()}
        calls |= {f"{name}_400": {"error": error, "status": 400} for name, error in errors.items()}
    pages = {"": page(*map(tool, calls))}
    async with told(transport, tmp_path / "told", tools_list=pages, tools_call=calls) as runtime:
        for name, told_so in calls.items():
            result = await runtime.call_tool(f"told_{name}")
            error = told_so["error"]
            assert isinstance(error, dict)
            assert result.failure is not None
            assert result.failure.code is FailureCode.TOOL_ERROR, (name, result.content)
            assert f"(code {error['code']}" in result.failure.message
            assert error["message"] in result.failure.message
        assert '"field":"city"' in (await runtime.call_tool("told_data")).content.replace("\\", "")
        assert status(runtime).connections == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_tool_that_answers_with_errors_is_not_withdrawn(transport: str, tmp_path: Path) -> None:
    calls = {"t": {"error": {"code": -32000, "message": "Connection closed"}}}
    async with told(transport, tmp_path / "told", tools_list={"": page(tool("t"))}, tools_call=calls) as runtime:
        for _ in range(12):
            result = await runtime.call_tool("told_t")
            assert result.failure is not None
            assert result.failure.code is FailureCode.TOOL_ERROR
        assert "told_t" in {each.definition.name for each in runtime.offered()}


ODD_ERRORS: dict[str, tuple[object, str]] = {
    "no message": ({"code": -32000}, "without a word (code -32000)"),
    "a message that is an object": ({"code": -32000, "message": {"why": "x"}}, '"why":"x"'),
    "a code that is a text": ({"code": "EFAIL", "message": "no"}, "no (code 0)"),
    "no code": ({"message": "no"}, "no (code 0)"),
    "a text": ("broken", "broken (code 0)"),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_error_that_is_written_oddly_is_still_the_servers(transport: str, tmp_path: Path) -> None:
    calls: dict[str, dict[str, object]] = {
        f"t{n}": {"error": error} for n, (error, _) in enumerate(ODD_ERRORS.values())
    }
    if transport == "http":
        calls |= {f"{name}_sent": {**told_so, "events": True} for name, told_so in calls.items()}
    cut = {"result": {"content": [text("an emoji that is cut: \ud83d")]}}
    calls |= {"cut": cut, "cut_sent": {**cut, "events": True}}
    async with told(
        transport, tmp_path / "told", tools_list={"": page(*map(tool, calls))}, tools_call=calls
    ) as runtime:
        for n, (kind, (_, words)) in enumerate(ODD_ERRORS.items()):
            for name in {f"t{n}", f"t{n}_sent"} & calls.keys():
                result = await runtime.call_tool(f"told_{name}")
                assert result.failure is not None
                assert result.failure.code is FailureCode.TOOL_ERROR, (kind, result.content)
                assert words in result.failure.message.replace("\\", ""), kind
        for name in ("cut", "cut_sent"):
            assert (await runtime.call_tool(f"told_{name}")).content == "an emoji that is cut: ?"


async def test_a_stream_that_ends_without_an_answer_is_a_lost_connection(tmp_path: Path) -> None:
    calls = {"t": {"events": True}}
    async with told("http", tmp_path / "told", tools_list={"": page(tool("t"))}, tools_call=calls) as runtime:
        result = await runtime.call_tool("told_t")
        assert result.failure is not None
        assert result.failure.code is FailureCode.OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    "gone",
    [
        # The TypeScript SDK (streamableHttp.ts, validateSession), the Python SDK (streamable_http_manager.py), a proxy.
        {"error": {"code": -32001, "message": "Session not found"}, "status": 404},
        {"error": {"code": -32600, "message": "Session not found"}, "status": 404},
        {"error": {"code": -32000, "message": "Connection closed"}, "status": 404},
        {"status": 404},
    ],
    ids=["typescript", "python", "another", "no error"],
)
async def test_a_session_that_is_gone_is_made_again_in_whatever_words(gone: dict[str, object], tmp_path: Path) -> None:
    """By the status (2025-11-25, "Session Management"): 404 to a request with a session."""
    done = {"result": {"content": [text("done")]}}
    methods = {"tools_list": {"": page(tool("t"), tool("forget"))}, "tools_call": {"t": done, "forget": done}}
    async with told("http", tmp_path / "told", unknown_session=gone, **methods) as runtime:
        await runtime.call_tool("told_forget")
        assert (await runtime.call_tool("told_t")).content == "done"
        assert status(runtime).connections == 2


async def test_a_method_that_is_not_there_is_no_session_that_is_gone(tmp_path: Path) -> None:
    missing = {"error": {"code": -32601, "message": "Method not found"}, "status": 404}
    methods = {"tools_list": {"": page(tool("t"))}, "resources_list": {"": missing}}
    async with told("http", tmp_path / "told", **methods) as runtime:
        with pytest.raises(RuntimeFailure, match=r"Method not found \(code -32601\)"):
            await runtime.mcp("told").resources()
        assert status(runtime).connections == 1

"""`callboard mcp` over pipes: nothing but messages on stdout, an end when stdin ends, and bad clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import TextContent

from callboard.protocol.content import json_text

from .conftest import PATIENCE_SECONDS, command, environment, is_held, until


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@asynccontextmanager
async def connected(workspace: Path, mode: str, log: Path) -> AsyncIterator[Client]:
    program, *arguments = command(workspace)
    parameters = StdioServerParameters(command=program, args=arguments, env=environment(workspace.parent))
    with log.open("w") as errors:
        async with Client(stdio_client(parameters, errlog=errors), mode=mode) as client:
            yield client


@contextmanager
def server(workspace: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        command(workspace), stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment(workspace.parent)
    )
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        for stream in (running.stdin, running.stdout):
            if stream is not None:
                stream.close()


def say(running: subprocess.Popen[bytes], message: dict[str, Any] | bytes) -> None:
    assert running.stdin is not None
    running.stdin.write(message if isinstance(message, bytes) else json_text(message).encode() + b"\n")
    running.stdin.flush()


def hear(running: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
    """The answer to this request. All that comes before it must be messages, too."""
    assert running.stdout is not None
    for line in running.stdout:
        message: dict[str, Any] = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        if message.get("id") == number:
            return message
    raise AssertionError("stdout ended")


def request(number: int, method: str, **params: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def initialize(running: subprocess.Popen[bytes]) -> None:
    client = {"name": "test", "version": "1"}
    say(running, request(0, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client))
    assert hear(running, 0)["result"]["capabilities"]["tools"] == {"listChanged": True}
    say(running, {"jsonrpc": "2.0", "method": "notifications/initialized"})


def call(number: int, name: str, **arguments: object) -> dict[str, Any]:
    return request(number, "tools/call", name=name, arguments=arguments)


@pytest.mark.repeats
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_finds_calls_and_ends_it(workspace: Path, mode: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with connected(workspace, mode, log) as client:
        assert client.protocol_version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[mode]
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert {"add", "read_file"} <= set(tools)
        (block,) = (await client.call_tool("noisy", {})).content
        assert isinstance(block, TextContent)
        assert block.text == "quiet"
        results = await asyncio.gather(*(client.call_tool("add", {"a": number}) for number in range(CALLS)))
    assert [result.structured_content for result in results] == [{"total": number + 2} for number in range(CALLS)]
    said = log.read_text()
    assert "printed while the file is loaded" in said
    assert "printed by a task" in said
    assert "written to the descriptor" in said


#: At the same time; CALLBOARD_DEEP=1 makes it a thousand.
CALLS = 1_000 if os.environ.get("CALLBOARD_DEEP") else 50


def test_garbage_and_half_messages_cost_no_one_else_anything(workspace: Path) -> None:
    with server(workspace) as running:
        say(running, b"\x00\xff not JSON at all\n\n{}\n[]\n" + b"[" * 5_000 + b"\n")
        say(running, b'{"jsonrpc":"2.0","id":"x","method":"no/such"}\n')
        initialize(running)
        whole = json_text(call(1, "add", a=1)).encode() + b"\n"
        say(running, whole[:20])
        say(running, whole[20:])
        assert hear(running, 1)["result"]["structuredContent"] == {"total": 3}
        say(running, request(2, "tools/call", name=7))
        assert hear(running, 2)["error"]["code"] == -32602
        say(running, whole[: len(whole) // 2])  # and the client is gone
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(PATIENCE_SECONDS) == 0


async def test_the_end_of_stdin_ends_calls_and_the_server(workspace: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with server(workspace) as running:
        initialize(running)
        say(running, call(1, "hold", marker=str(marker)))
        await until(lambda: is_held(marker))
        assert running.stdin is not None
        running.stdin.close()
        assert await asyncio.to_thread(running.wait, PATIENCE_SECONDS) == 0
        await until(lambda: not is_held(marker))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_nothing_is_left_of_a_killed_server(workspace: Path, tmp_path: Path, number: signal.Signals) -> None:
    marker = tmp_path / "marker"
    with server(workspace) as running:
        initialize(running)
        say(running, call(1, "hold", marker=str(marker)))
        await until(lambda: is_held(marker))
        running.send_signal(number)
        assert await asyncio.to_thread(running.wait, PATIENCE_SECONDS) == -number
        await until(lambda: not is_held(marker))


def test_a_client_is_told_when_a_tool_is_withdrawn(workspace: Path) -> None:
    with server(workspace) as running:
        initialize(running)
        for number in range(1, 7):  # one more than a tool may crash
            say(running, call(number, "crash"))
            assert hear(running, number)["result"]["isError"]
        assert running.stdout is not None
        told = [json.loads(line) for line in iter_until(running, "notifications/tools/list_changed")]
        assert told[-1]["method"] == "notifications/tools/list_changed"
        say(running, request(8, "tools/list"))
        names = [tool["name"] for tool in hear(running, 8)["result"]["tools"]]
        assert "crash" not in names
        assert "add" in names


def iter_until(running: subprocess.Popen[bytes], text: str) -> Iterator[str]:
    assert running.stdout is not None
    for line in running.stdout:
        yield line.decode()
        if text in line.decode():
            return

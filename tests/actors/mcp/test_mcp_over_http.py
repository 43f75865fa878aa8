"""MCP servers over streamable HTTP: one made by hand, which breaks the connection, and one of the SDK's."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from callboard import McpServer, Runtime, Settings
from callboard.actors.mcp import server_actor, server_connection
from callboard.actors.mcp.remote_values import ServerState
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.tools import FailureCode, Risk

from .conftest import until

SUPPORT = Path(__file__).parents[2] / "support"
PATIENCE_SECONDS = 30.0


@asynccontextmanager
async def http_server(port: int = 0) -> AsyncIterator[int]:
    """The one made by hand; it is killed at the end."""
    program = str(SUPPORT / "mcp_http_server.py")
    process = await asyncio.create_subprocess_exec(sys.executable, program, str(port), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def settings_for(port: int) -> Settings:
    server = McpServer(url=f"http://127.0.0.1:{port}/mcp", tools={"*": Risk.READ}, timeout=20.0)
    return Settings(mcp_servers={"web": server}, tool_failure_budget=None)


def is_refused(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


LIES = {
    "half": FailureCode.INVALID_RESULT,
    "huge": FailureCode.INVALID_RESULT,
    "no_json": FailureCode.INVALID_RESULT,
    "wrong_type": FailureCode.TOOL_ERROR,
    "redirect": FailureCode.TOOL_ERROR,
    "error": FailureCode.TOOL_ERROR,
    "empty": FailureCode.TOOL_ERROR,
    "events": FailureCode.OUTCOME_UNKNOWN,
}


async def test_a_lie_over_http_is_one_failed_result_and_the_next_call_works() -> None:
    async with http_server() as port, Runtime(settings_for(port)) as runtime:
        assert runtime.mcp_servers()[0].revision == "2025-11-25"
        for name, code in LIES.items():
            result = await runtime.call_tool(f"web_{name}")
            assert result.failure is not None, name
            assert result.failure.code is code, (name, result.content)
            assert (await runtime.call_tool("web_echo")).content == "echo", name
        assert "not followed" in (await runtime.call_tool("web_redirect")).content


async def test_a_call_is_sent_again_where_the_session_is_gone() -> None:
    """404 says that the server has not looked at it: it was restarted, and knows no session."""
    async with http_server() as port, Runtime(settings_for(port)) as runtime:
        assert (await runtime.call_tool("web_gone")).content == "echo"
        assert runtime.mcp_servers()[0].connections == 2


async def test_a_server_that_dies_is_one_failed_result_and_the_host_is_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the SDK the task that entered the client is cancelled then, which here is no task of the host's."""
    monkeypatch.setattr(server_actor, "BACKOFF", server_actor.Backoff(0.05, 0.1))
    monkeypatch.setattr(server_actor.server_spec, "__defaults__", (server_actor.Budget(10_000, 60.0),))
    async with http_server() as port, Runtime(settings_for(port)) as runtime:
        died = await runtime.call_tool("web_die")
        assert died.failure is not None
        assert died.failure.code is FailureCode.OUTCOME_UNKNOWN
        await until(lambda: is_refused(port))  # a process that ends closes its connections before its port
        calling = asyncio.ensure_future(runtime.call_tool("web_echo"))  # never sent: it waits for the next connection
        await until(lambda: runtime.mcp_servers()[0].state is ServerState.STARTING)
        async with http_server(port):
            assert (await calling).content == "echo"
            pid = int((await runtime.call_tool("web_pid")).content)
            os.kill(pid, signal.SIGKILL)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


async def test_a_server_that_is_not_there_is_a_call_that_was_not_run() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Runtime(settings_for(taken.getsockname()[1])) as runtime:
            status = runtime.mcp("web").status
            assert "cannot be reached" in status.reason
            assert status.tools == ()


async def test_changes_are_heard_by_listening_and_by_the_time_for_which_a_list_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2026-07-28: the one by `subscriptions/listen`, the other by `ttlMs`, without a word of the server's."""
    arguments = (str(SUPPORT / "mcp_demo_server.py"),)

    async def has(name: str, **env: str) -> None:
        server = McpServer(command=sys.executable, args=arguments, tools={"*": Risk.READ}, env=env)
        async with Runtime(Settings(mcp_servers={"demo": server})) as runtime:
            assert runtime.mcp("demo").status.revision == "2026-07-28"
            adds = {"announced": "demo_announce", "quiet": "demo_add_quietly"}[name]
            assert (await runtime.call_tool(adds)).ok
            await until(lambda: f"demo_{name}" in runtime.mcp("demo").status.tools)
            await until(lambda: f"demo_{name}" in {each.definition.name for each in runtime.tools()})
            assert (await runtime.call_tool(f"demo_{name}", {"a": 1, "b": 2})).content == "3"

    await has("announced")
    monkeypatch.setattr(server_connection, "MIN_TTL_SECONDS", 0.05)
    await has("quiet", DEMO_TTL_MS="1")


async def test_resources_and_prompts_of_a_server_of_the_sdk() -> None:
    """2026-07-28, over the pipes of a process."""
    server = McpServer(command=sys.executable, args=(str(SUPPORT / "mcp_demo_server.py"),), tools={"*": Risk.READ})
    async with Runtime(Settings(mcp_servers={"demo": server})) as runtime:
        demo = runtime.mcp("demo")
        assert demo.status.revision == "2026-07-28"
        assert [each["uri"] for each in await demo.resources()] == ["demo://notes"]
        assert (await demo.read_resource("demo://notes"))[0]["text"] == "remember the milk"
        assert [each["name"] for each in await demo.prompts()] == ["greet"]
        message = (await demo.prompt("greet", {"name": "Ada"}))[0]
        assert message["content"] == {"type": "text", "text": "Say hello to Ada"}
        with pytest.raises(RuntimeFailure, match="MCP server demo"):
            await demo.read_resource("demo://none")
        assert (await runtime.call_tool("demo_add", {"a": 1, "b": 2})).content == "3"
        read = await runtime.call_tool("demo_read_resource", {"uri": "demo://notes"})
        assert read.content == "[resource demo://notes]\nremember the milk"
        assert "demo://notes" in (await runtime.call_tool("demo_list_resources")).content

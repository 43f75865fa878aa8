"""An MCP server of the SDK's, for tests, in a process of its own: `python mcp_demo_server.py [PORT]`."""

from __future__ import annotations

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("demo", version="1.0")


class Choice(BaseModel):
    """What a person is asked for."""

    color: str = "blue"


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def pid() -> str:
    """The process of the server."""
    return str(os.getpid())


@server.tool()
def variable(name: str) -> str:
    """What a variable of the environment holds."""
    return os.environ.get(name, "not set")


@server.tool()
def die() -> str:
    """Ends the server in the middle of the call."""
    os._exit(3)


@server.tool()
def fail() -> str:
    """Raises."""
    raise ValueError("it is broken")


@server.tool()
async def slow(context: Context) -> str:
    """Tells how far it is, and never ends."""
    await context.report_progress(1, 4, "a quarter")
    await asyncio.sleep(3_600)
    return "never"


@server.tool()
async def ask(context: Context) -> str:
    """Asks a person for a color."""
    answer = await context.elicit("Which color?", Choice)
    return f"{answer.action}: {answer.data.color if answer.action == 'accept' else 'none'}"


@server.tool()
async def grow(context: Context) -> str:
    """Offers one more tool from now on."""
    server.add_tool(add, name="added", description="Came later.")
    await context.session.send_tool_list_changed()
    return "there is one more"


@server.tool()
async def announce(context: Context) -> str:
    """Offers one more tool from now on, and tells those who listen (2026-07-28)."""
    server.add_tool(add, name="announced", description="Came later.")
    await context.notify_tools_changed()
    return "there is one more"


@server.tool()
def add_quietly() -> str:
    """Offers one more tool from now on, and tells it to no one."""
    server.add_tool(add, name="quiet", description="Came later.")
    return "there is one more"


@server.resource("demo://notes")
def notes() -> str:
    """Some notes."""
    return "remember the milk"


@server.prompt()
def greet(name: str) -> str:
    """A greeting."""
    return f"Say hello to {name}"


def lists_with_ttl(milliseconds: int) -> None:
    """The list of tools is to be read again after so long."""
    low = server._lowlevel_server
    found = low.get_request_handler("tools/list")
    assert found is not None

    async def listed(*given: object) -> object:
        result = await found.handler(*given)
        return result.model_copy(update={"ttl_ms": milliseconds})

    low.add_request_handler("tools/list", found.params_type, listed)


if __name__ == "__main__":
    if ttl := os.environ.get("DEMO_TTL_MS"):
        lists_with_ttl(int(ttl))
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")

"""MCP servers that an editor gives to a session: they are reached as those of the settings are.

The editor's user has set them up there, but what their tools can do is not declared, so the policy asks about them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from acp import schema

from callboard import McpServer, UsageError

EditorServer = schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio


def servers_of(given: Iterable[EditorServer], folder: Path) -> dict[str, McpServer]:
    """By the names of which their tools are made. Those with a command work in this folder. Raises UsageError."""
    found: dict[str, McpServer] = {}
    for each in given:
        name = re.sub(r"[^a-zA-Z0-9_-]+", "_", each.name)[:24] or "server"
        if name in found:
            raise UsageError(f"mcpServers: two of them are called {name!r}")
        try:
            found[name] = _server(each, folder)
        except UsageError as error:
            raise UsageError(f"mcpServers: {name}: {error}") from None
    return found


def _server(given: EditorServer, folder: Path) -> McpServer:
    match given:
        case schema.McpServerStdio():
            environment = {each.name: each.value for each in given.env}
            return McpServer(command=given.command, args=tuple(given.args), env=environment, cwd=folder)
        case schema.HttpMcpServer():
            return McpServer(url=given.url, headers={each.name: each.value for each in given.headers})
    raise UsageError("only servers with a command or with streamable HTTP can be reached")

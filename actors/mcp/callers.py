"""`caller()`: the MCP client that has called a tool of ours.

Without the SDK, which takes a second to load (`mcp_caller` has it): files of tools import this, and they are loaded in
the processes of their other tools, too.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from callboard.protocol.errors import ToolError

if TYPE_CHECKING:
    from callboard.actors.mcp.mcp_caller import McpCaller

CALLER: Final[ContextVar[McpCaller | None]] = ContextVar("callboard_mcp_caller", default=None)


def caller() -> McpCaller:
    """The MCP client of the call that runs. Raises ToolError where none has called, as in an ordinary request."""
    found = CALLER.get()
    if found is None:
        raise ToolError("this tool asks the MCP client that has called it, and none has: it runs by `callboard mcp`")
    return found

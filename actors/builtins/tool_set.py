"""All built-in tools of a workspace."""

from __future__ import annotations

from callboard.actors.builtins.files import list_dir_tool, read_file_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.tools import Tool


def builtin_tools(workspace: Workspace) -> tuple[Tool, ...]:
    """Those that callboard ships, for this workspace."""
    return read_file_tool(workspace), list_dir_tool(workspace)

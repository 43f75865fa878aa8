"""The built-in tools over the code index. They need the extra `index`, so they are imported with it."""

from __future__ import annotations

from callboard.actors.builtins.code_lookup import code_item_edges_tool, code_item_lookup_tool
from callboard.actors.builtins.find_references import find_references_tool
from callboard.actors.builtins.overview import codebase_overview_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.index.rag import CodeSearch
from callboard.actors.tools import Tool


def code_tools(search: CodeSearch, workspace: Workspace) -> tuple[Tool, ...]:
    """All of them, for the index of this workspace."""
    return (
        code_item_lookup_tool(search),
        code_item_edges_tool(search),
        find_references_tool(search, workspace),
        codebase_overview_tool(search, workspace),
    )

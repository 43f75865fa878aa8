"""All built-in tools of a workspace."""

from __future__ import annotations

import dataclasses
from typing import Final

from msgspec.structs import replace

from callboard.actors.builtins.listing import find_files_tool, list_dir_tool
from callboard.actors.builtins.reading import file_metadata_tool, read_file_tool, read_files_tool
from callboard.actors.builtins.run_command import run_command_tool
from callboard.actors.builtins.text_search import search_text_tool
from callboard.actors.builtins.todo_list import todo_tool
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.tools import Tool
from callboard.protocol.tools import Risk

#: In the order in which models are shown them.
_FACTORIES: Final = (
    file_metadata_tool,
    read_file_tool,
    read_files_tool,
    list_dir_tool,
    find_files_tool,
    search_text_tool,
    run_command_tool,
)

#: Those that a runtime with a workspace adds when it starts: they need the index, or a running actor.
ADDED_AT_START: Final = (
    "code_item_lookup",
    "code_item_edges",
    "find_references",
    "codebase_overview",
    "apply_code_edit",
    "apply_patch",
    "create_file",
    "delete_file",
    "rename_file",
    "start_job",
    "jobs",
)


def builtin_tools(workspace: Workspace) -> tuple[Tool, ...]:
    """Those that callboard ships, for this workspace."""
    return tuple(_bounded(tool, workspace) for tool in (*(make(workspace) for make in _FACTORIES), todo_tool()))


def _bounded(tool: Tool, workspace: Workspace) -> Tool:
    """Confined to the workspace, also in a runtime that has another one, or none.

    `Workspace` refuses what is outside and what is secret, where a tool reads: such a call need not be judged.
    """
    is_bounded = tool.contract.risk is Risk.READ
    folders = workspace.folders if is_bounded else (workspace.root,)
    return dataclasses.replace(
        tool, contract=replace(tool.contract, paths=tuple(map(str, folders)), is_bounded=is_bounded)
    )

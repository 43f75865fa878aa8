"""The tools that callboard ships, as a program may offer them itself."""

from __future__ import annotations

from pathlib import Path

from callboard.actors.builtins import Workspace, builtin_tools
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings


async def test_they_work_in_a_runtime_without_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("remember the milk\n")
    async with Runtime(Settings(confine="auto"), builtin_tools(Workspace.at(tmp_path))) as runtime:
        read = await runtime.call_tool("read_file", {"path": "note.txt"})
        found = await runtime.call_tool("search_text", {"query": "milk"})
    assert "remember the milk" in read.content
    assert "note.txt" in found.content

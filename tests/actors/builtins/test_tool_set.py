"""The tools that callboard ships, as a program may offer them itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard import UsageError
from callboard.actors.builtins import Workspace, builtin_tools
from callboard.actors.builtins.tool_set import ADDED_AT_START
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.actors.tools.schema import is_ours
from callboard.actors.tools.shipping import unpack
from callboard.protocol.compaction import Compaction
from callboard.protocol.tools import Isolation
from callboard.providers.local.offline import CONTEXT_TOOL


async def test_they_work_in_a_runtime_without_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("remember the milk\n")
    async with Runtime(Settings(confine="auto"), builtin_tools(Workspace.at(tmp_path))) as runtime:
        read = await runtime.call_tool("read_file", {"path": "note.txt"})
        found = await runtime.call_tool("search_text", {"query": "milk"})
    assert "remember the milk" in read.content
    assert "note.txt" in found.content


@pytest.mark.parametrize("name", ADDED_AT_START)
def test_a_name_that_the_start_adds_is_refused_when_the_runtime_is_made(tmp_path: Path, name: str) -> None:
    @tool(name=name)
    def own() -> str:
        """Return a word."""
        return "own"

    with pytest.raises(UsageError, match=f"two tools are called '{name}'"):
        Runtime(Settings(workspace=tmp_path), [own])
    Runtime(Settings(), [own])


#: All that a workspace, an `ask_user` callback and a compaction bring.
OURS = (
    "read_file", "read_files", "list_dir", "find_files", "search_text", "get_file_metadata", "run_command", "todo",
    "request_code_context", "ask_user", "read_earlier_messages", *ADDED_AT_START,
)  # fmt: skip


async def test_a_tool_with_the_name_of_one_of_ours_is_refused_and_told_so(tmp_path: Path) -> None:
    """Rules, prompts and saved answers go by the name, so a tool of the user's does not take its place."""
    work = tmp_path / "work"
    work.mkdir()
    settings = Settings(
        model="scripted/x",
        workspace=work,
        state_dir=tmp_path / "state",
        index_dir=tmp_path / "index",
        compaction=Compaction(),
    )
    async with Runtime(settings, ask_user=lambda _: None) as runtime:
        assert {offer.definition.name for offer in runtime.tools()} == set(OURS)
        for name in OURS:
            own = tool(name=name, isolation="thread")(word)
            said = rf"'{name}': yours, and one of callboard's own.*rename yours with @tool\(name=\"my_{name}\"\)"
            with pytest.raises(UsageError, match=said):
                Runtime(settings, [own], ask_user=lambda _: None)
            with pytest.raises(UsageError, match=said):
                await runtime.ask("hi", tools=[own])
            await runtime.ask("hi", tools=[tool(name=f"my_{name}", isolation="thread")(word)])


def word() -> str:
    """Return a word."""
    return "own"


async def test_what_is_not_checked_of_our_own_tools_holds_of_all_of_them(tmp_path: Path) -> None:
    """Their results can be written as JSON, and those of processes can be shipped."""
    work = tmp_path / "work"
    work.mkdir()
    settings = Settings(workspace=work, state_dir=tmp_path / "state", index_dir=tmp_path / "index")
    async with Runtime(settings, ask_user=lambda _: None) as runtime:
        tools = [*runtime._wiring.given_tools, *runtime._wiring.code_tools]
    assert {CONTEXT_TOOL, "run_command", "ask_user", *ADDED_AT_START} <= {each.name for each in tools}
    for each in tools:
        assert is_ours(each.function), each.name
        assert each.signature.result.core_schema, each.name
        if each.contract.isolation is Isolation.PROCESS:
            assert unpack(each.packed).name == each.name


async def test_the_names_that_the_start_adds_are_all_of_them(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    settings = Settings(workspace=work, state_dir=tmp_path / "state", index_dir=tmp_path / "index")
    async with Runtime(settings) as runtime:
        added = {each.name for each in runtime._wiring.code_tools}
    assert added - {CONTEXT_TOOL} == set(ADDED_AT_START)

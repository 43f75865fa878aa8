"""Several workspaces: code is searched in all of them, files are read in all of them, and only the first is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callboard import Policy, Rule, Runtime, Settings
from callboard.actors.index import CodeIndex
from callboard.actors.policy.paths import Paths
from callboard.protocol.errors import UsageError
from callboard.protocol.policy import AccessKind, Location


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "shop", tmp_path / "shop-api"
    for folder, name in ((first, "order_taxi"), (second, "hail_conveyance")):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / f"{name}.py").write_text(f"def {name}():\n    return shared_helper()\n")
    (second / ".env").write_text("KEY=abc\n")
    (second / "way_out").symlink_to("/etc")
    return first, second


@asynccontextmanager
async def running(folders: tuple[Path, Path]) -> AsyncIterator[Runtime]:
    first, second = folders
    policy = Policy(rules=[Rule("create_file", decision="allow"), Rule("run_command", decision="allow")])
    settings = Settings(workspace=first, more_workspaces=(second,), policy=policy, auto_confirm_edits=True)
    async with Runtime(settings) as started:
        yield started


async def call(runtime: Runtime, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result = await runtime.call_tool(tool, arguments)
    found: dict[str, Any] = json.loads(result.content)
    return found


async def test_what_reads_reads_in_all_folders(folders: tuple[Path, Path]) -> None:
    async with running(folders) as runtime:
        _, second = folders
        file = second / "src" / "hail_conveyance.py"
        assert "hail_conveyance" in json.dumps(await call(runtime, "read_file", path=str(file)))
        assert "hail_conveyance.py" in json.dumps(await call(runtime, "list_dir", path=str(second / "src")))
        assert "hail_conveyance.py" in json.dumps(await call(runtime, "find_files", name="*.py", path=str(second)))
        assert "hail_conveyance" in json.dumps(
            await call(runtime, "search_text", query="shared_helper", path=str(second))
        )
        overview = await call(runtime, "codebase_overview", path=str(second))
        assert overview["files"] == 1


async def test_code_is_found_in_all_folders(folders: tuple[Path, Path]) -> None:
    async with running(folders) as runtime:
        first, second = folders
        context = json.dumps(await call(runtime, "request_code_context", queries=["hail conveyance", "order taxi"]))
        assert str(first / "src" / "order_taxi.py") in context
        assert str(second / "src" / "hail_conveyance.py") in context
        assert (await call(runtime, "code_item_lookup", name="hail_conveyance"))["exists"]
        used = json.dumps(await call(runtime, "find_references", name="shared_helper"))
        assert str(first) in used
        assert str(second) in used
        used = json.dumps(await call(runtime, "find_references", name="shared_helper", path=str(second)))
        assert str(first / "src") not in used
        assert str(second) in used


async def test_secrets_and_ways_out_are_refused_in_each(folders: tuple[Path, Path]) -> None:
    _, second = folders
    (second.parent / "outside.txt").write_text("not yours")
    async with running(folders) as runtime:
        for place in (".env", "way_out/passwd", "../outside.txt", "src/../../outside.txt"):
            result = await runtime.call_tool("read_file", {"path": f"{second}/{place}"})
            assert not result.ok, place
            assert not [told for told in ("not yours", "root:", "abc") if told in result.content], place


async def test_a_relative_path_is_of_the_first(folders: tuple[Path, Path]) -> None:
    async with running(folders) as runtime:
        assert (await call(runtime, "read_file", path="src/hail_conveyance.py"))["exists"] is False
        assert (await call(runtime, "read_file", path="src/order_taxi.py"))["exists"] is True


async def test_nothing_is_written_in_the_others(folders: tuple[Path, Path]) -> None:
    async with running(folders) as runtime:
        first, second = folders
        result = await runtime.call_tool("create_file", {"path": str(second / "new.py"), "content": "x = 1\n"})
        assert not result.ok
        assert "outside the workspace" in result.content
        assert not (second / "new.py").exists()
        assert (await runtime.call_tool("create_file", {"path": "new.py", "content": "x = 1\n"})).ok
        assert (first / "new.py").read_text() == "x = 1\n"


async def test_a_command_cannot_write_there_where_it_is_confined(folders: tuple[Path, Path]) -> None:
    async with running(folders) as runtime:
        _, second = folders
        (confinement,) = [each.confinement for each in runtime.tools() if each.definition.name == "run_command"]
        if str(folders[0]) not in confinement:
            pytest.skip(f"commands are not confined here: {confinement}")
        await runtime.call_tool("run_command", {"command": f"echo x > {second}/new.txt"})
        assert not (second / "new.txt").exists()


def test_a_policy_counts_them_as_inside_for_reading_alone(folders: tuple[Path, Path]) -> None:
    first, second = folders
    paths = Paths(first, read_only=(second,))

    def where(kind: AccessKind, path: Path) -> set[Location]:
        return {touch.place for touch in paths.touches(kind, str(path))}

    assert where(AccessKind.READ, second / "src") == {Location.INSIDE}
    assert where(AccessKind.WRITE, second / "src") == {Location.OUTSIDE}
    assert where(AccessKind.READ, second.parent) == {Location.OUTSIDE}
    assert where(AccessKind.READ, second / "way_out" / "passwd") == {Location.OUTSIDE}
    assert [touch.refused for touch in paths.touches(AccessKind.READ, str(second / ".env"))] != [""]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["missing"], "there is no folder"),
        (["shop/src/order_taxi.py"], "is not a folder"),
        (["shop"], "are one folder, or one is inside the other"),
        (["shop/src"], "are one folder, or one is inside the other"),
        (["."], "are one folder, or one is inside the other"),
        (["shop-api", "shop-api"], "are one folder, or one is inside the other"),
    ],
)
def test_folders_that_cannot_be(folders: tuple[Path, Path], more: list[str], why: str) -> None:
    first, _ = folders
    with pytest.raises(UsageError, match=why):
        Settings(workspace=first, more_workspaces=tuple(first.parent / each for each in more))


def test_they_come_besides_a_workspace(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALLBOARD_WORKSPACE", raising=False)
    with pytest.raises(UsageError, match="name the first folder as workspace"):
        Settings(more_workspaces=(folders[1],))


def test_a_configuration_file_names_them_from_its_own_folder(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = folders
    file = first.parent / "config.toml"
    file.write_text('[default]\nworkspace = "shop"\nmore_workspaces = ["shop-api"]\n')
    monkeypatch.setenv("CALLBOARD_CONFIG_DIR", str(first.parent))
    monkeypatch.delenv("CALLBOARD_WORKSPACE", raising=False)
    settings = Settings.from_file()
    assert (settings.workspace, settings.more_workspaces) == (first, (second,))


def test_the_index_of_several_is_not_that_of_the_first_alone(folders: tuple[Path, Path]) -> None:
    first, _ = folders
    with CodeIndex.open(first) as alone, CodeIndex.open(folders) as both:
        assert alone.refresh().files == 1
        assert both.refresh().files == 2
        assert alone.refresh().removed == 0
        assert [hit.name for hit in alone.search("hail conveyance", 3) if "hail" in hit.name] == []
    with CodeIndex.open(folders[::-1]) as turned:
        assert turned.refresh().files == 2


def callboard(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_STATE_HOME": str(home)}
    command = [sys.executable, "-m", "callboard.actors.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def test_the_command_line_takes_several(folders: tuple[Path, Path], tmp_path: Path) -> None:
    first, second = map(str, folders)
    home = tmp_path / "home"
    home.mkdir()
    indexed = callboard("index", first, second, home=home)
    assert indexed.returncode == 0, indexed.stderr
    assert "2 files indexed" in indexed.stdout
    two = "--workspace", first, "--workspace", second
    asked = callboard("ask", "Where is a conveyance hailed?", *two, "--json", home=home)
    assert asked.returncode == 0, asked.stderr
    assert f"{second}/src/hail_conveyance.py" in [each["file"] for each in json.loads(asked.stdout)["sources"]]
    wrong = callboard("ask", "Where?", "--workspace", first, "--workspace", f"{first}/src", home=home)
    assert wrong.returncode != 0
    assert "one is inside the other" in wrong.stderr

"""Hard links: a confined command gives no other name to a secret file, nor to one outside of the workspace, and what
has such a name already is asked about before it is read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support.file_tools import built_in

from callboard import Runtime, Settings
from callboard.actors.policy.paths import Paths
from callboard.actors.processes.confinement import kernel_support
from callboard.protocol.errors import ToolError
from callboard.protocol.policy import AccessKind, Location

pytestmark = pytest.mark.skipif(bool(kernel_support().lacks), reason=f"this kernel has {kernel_support()}")

LINES = [
    "ln .env shown.txt",
    "ln -f inner/.env shown.txt",
    "cp -l .env shown.txt",
    "ln .ssh/id_rsa shown.txt",
    "cp -al .ssh shown",
    "mv .env shown.txt",
    "mv inner renamed && cat renamed/.env && ln renamed/.env shown.txt",
    "python3 -c \"import os; os.link('.env', 'shown.txt')\"",
    "python3 -c \"import os; os.rename('.ssh', 'shown')\"",
    "ln ../outside/file shown.txt",
    "cp -l ../outside/file shown.txt",
    "python3 -c \"import os; os.link('../outside/file', 'shown.txt')\"",
    "ln ordinary.txt ../outside/made && echo secret > ../outside/made",
]


def test_a_confined_command_makes_no_hard_link_of_a_secret_or_of_a_file_outside(tmp_path: Path) -> None:
    root, outside = tmp_path / "work", tmp_path / "outside"
    for folder in (root / "inner", root / ".ssh", outside):
        folder.mkdir(parents=True)
    files = [root / ".env", root / "inner/.env", root / ".ssh/id_rsa", outside / "file"]
    for each in files:
        each.write_text("a secret")
    (root / "ordinary.txt").write_text("ordinary")

    async def run() -> list[str]:
        settings = Settings(workspace=root, state_dir=tmp_path / "state")
        async with Runtime(settings, approve=lambda question: True) as runtime:
            return [str((await runtime.call_tool("run_command", {"command": line})).data) for line in LINES]

    told = asyncio.run(run())
    assert not [line for line, output in zip(LINES, told, strict=True) if "a secret" in output]
    there = [each for each in root.rglob("*") if each.is_file() and each.name != ".env" and ".ssh" not in each.parts]
    assert not [each for each in there if each.read_bytes() == b"a secret"]
    assert {each.stat().st_nlink for each in files if each.exists()} == {1}
    assert os.listdir(outside) == ["file"]


@pytest.mark.parametrize(
    "line",
    [
        "cat linked.txt",
        "cat way/linked.txt",
        "cd inner && head -5 ../linked.txt",
        "grep -n a ./inner/../linked.txt",
        "sort < linked.txt",
    ],
)
@pytest.mark.parametrize("of", ["work/.env", "outside/file"])
def test_a_command_that_reads_a_file_with_another_name_is_asked_about(tmp_path: Path, line: str, of: str) -> None:
    root = tmp_path / "work"
    for folder in (root / "inner", tmp_path / "outside"):
        folder.mkdir(parents=True)
    (tmp_path / of).write_text("a secret\n")
    (root / "way").symlink_to(".")
    os.link(tmp_path / of, root / "linked.txt")
    asked = []

    async def run() -> bool:
        settings = Settings(workspace=root, state_dir=tmp_path / "state")
        async with Runtime(settings, approve=lambda question: asked.append(question) or False) as runtime:
            return (await runtime.call_tool("run_command", {"command": line})).ok

    assert not asyncio.run(run())
    assert len(asked) == 1


@pytest.mark.parametrize("path", ["plain.txt", "node_modules/a/index.js", ".venv/lib/site-packages/a.py", "inner"])
def test_what_packages_are_linked_from_and_plain_files_and_folders_are_not_asked_about(
    tmp_path: Path, path: str
) -> None:
    place = tmp_path / "work" / path
    place.parent.mkdir(parents=True)
    if path == "inner":
        place.mkdir()
    else:
        place.write_text("text")
    if len(place.relative_to(tmp_path).parts) > 2:
        os.link(place, tmp_path / "in_a_store")
    (touch,) = Paths(tmp_path / "work").touches(AccessKind.READ, path)
    assert (touch.place, touch.unclear) == (Location.INSIDE, "")


def test_what_read_file_shows_of_one_is_masked_and_no_private_key(tmp_path: Path) -> None:
    root = tmp_path / "work"
    root.mkdir()
    (root / ".env").write_text("API_KEY=sk-proj-4f8Kq2ZtW9xLmN3vB7yRcD1s\n")
    (root / "id_rsa").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r\n")
    os.link(root / ".env", root / "env.txt")
    os.link(root / "id_rsa", root / "key.txt")
    read_file = built_in(root)["read_file"]
    shown = read_file(path="env.txt")
    assert "4f8Kq2Zt" not in str(shown)
    with pytest.raises(ToolError, match="not shown"):
        read_file(path="key.txt")

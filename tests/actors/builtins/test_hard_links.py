"""Hard links: a confined command gives no other name to a secret file, nor to one outside of the workspace."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from callboard import Runtime, Settings
from callboard.actors.processes.confinement import kernel_support

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

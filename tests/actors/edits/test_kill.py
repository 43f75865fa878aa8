"""kill -9 while an edit of five files is applied: all files are old or all are new, and the proposal says which.

CALLBOARD_KILLS=all kills at every step and at 200 random moments; the suite at some of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "support" / "killed_edits.py"
IS_WHOLE = os.environ.get("CALLBOARD_KILLS") == "all"


def run(folder: Path, *arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, str(PROGRAM), str(folder / "desk"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(kills: list[dict[str, object]]) -> None:
    for each in kills:
        assert not each["torn"], each
        assert (each["state"], each["files"]) in {("pending", "old"), ("applied", "new")}, each
        assert each["in_the_end"], each
        assert each["folders"] == ["deep"], each


@pytest.mark.timeout(600)
def test_killed_at_every_step(tmp_path: Path) -> None:
    *kills, end = run(tmp_path, "steps", *(("1", "1") if IS_WHOLE else ("7", "41")))
    check(kills)
    assert isinstance(end["ended_before"], int)
    assert end["ended_before"] > 300  # else the lines were not counted
    assert {each["files"] for each in kills} == {"old", "new"}


@pytest.mark.timeout(600)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    kills = run(tmp_path, "moments", "14", "200" if IS_WHOLE else "8")
    check(kills)

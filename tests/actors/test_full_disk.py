"""A journal on a disk that is full, or read-only, or whose quota is used up: a real one, of 2 MB, in a mount namespace.

Requests that cannot be written end with one clear error, nothing is damaged, and it goes on when there is room again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "small_disk.py"
UNSHARE = ("unshare", "--map-root-user", "--mount")


@cache
def can_mount() -> bool:
    """Do the kernel and the machine's owner let a user mount a file system of its own?"""
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def found(folder: Path, way: str) -> dict[str, Any]:
    if way != "limit" and not can_mount():
        pytest.skip("no mount namespaces here: the way with a limit of the process takes its place")
    before = () if way == "limit" else UNSHARE
    command = [*before, sys.executable, str(PROGRAM), str(folder), way]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


@pytest.mark.parametrize(
    ("way", "why", "advice"), [("full", "SQLITE_FULL", "make room"), ("limit", "SQLITE_IOERR_WRITE", "sound disk")]
)
def test_requests_end_with_one_clear_error_and_it_goes_on_when_there_is_room(
    tmp_path: Path, way: str, why: str, advice: str
) -> None:
    said = found(tmp_path, way)
    assert said["before"] == "done"
    assert len(said["meanwhile"]) == 6
    assert said["caught"].startswith("OutcomeUnknown: "), (
        "it had begun: until its end is written, a start goes on with it"
    )
    for error in (said["caught"], *said["meanwhile"]):
        assert error.startswith("RuntimeFailure: ") == (error != said["caught"])
        assert error.count("could not be written") == 1
        assert f"{tmp_path}/journal.sqlite" in error
        assert why in error
        assert advice in error
        assert error.endswith(" <- JournalFailed <- OperationalError")
    assert said["after"] == "done"


@pytest.mark.parametrize("way", ["full", "limit"])
def test_nothing_is_damaged_nothing_ran_that_was_not_written_and_what_failed_is_marked(
    tmp_path: Path, way: str
) -> None:
    said = found(tmp_path, way)
    assert said["effects"] == ["note after", "note before"]  # none of those that could not be written
    assert said["again"] == "done"
    assert said["end of before"] == "answered"
    assert "cannot be read or written" in said["end of caught"]
    assert (said["damage of before"], said["damage of caught"], said["set aside"]) == ("", "", [])
    assert said["open"] == []


def test_a_read_only_disk_is_a_clear_error_at_the_start_and_leaves_nothing_running(tmp_path: Path) -> None:
    said = found(tmp_path, "read_only")
    assert said["meanwhile"].startswith("UsageError: ")
    assert f"{tmp_path}/journal.sqlite" in said["meanwhile"]
    assert "ead-only" in said["meanwhile"]
    assert said["meanwhile"].endswith(" <- OSError")
    assert said["threads"] == []
    assert (said["before"], said["after"], said["end of before"]) == ("done", "done", "answered")

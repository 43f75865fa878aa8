"""A disk that is full, fails, or is read-only: the error says so, nothing is damaged, and it goes on later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "full_disks.py"
NAMESPACE = ("unshare", "-rm")


def can_mount(folder: Path) -> bool:
    """Some machines do not let a user have a mount namespace."""
    mount = [*NAMESPACE, "mount", "-t", "tmpfs", "none", str(folder)]
    try:
        return subprocess.run(mount, capture_output=True, timeout=20).returncode == 0
    except FileNotFoundError:
        return False


def test_a_small_disk_that_is_full_and_read_only(tmp_path: Path) -> None:
    if not can_mount(tmp_path):
        pytest.skip("needs a mount namespace (unshare -rm)")
    done(*NAMESPACE, sys.executable, str(PROGRAM), "tmpfs", str(tmp_path))


def test_a_disk_that_refuses_writes_at_any_place(tmp_path: Path) -> None:
    done(sys.executable, str(PROGRAM), "limit", str(tmp_path))


def done(*command: str) -> None:
    run = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.endswith("ok\n")

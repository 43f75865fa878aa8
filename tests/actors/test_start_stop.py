"""Starts and stops in each way in which hosts do it: no thread, task, descriptor or child process is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "start_stop.py"
#: What is left behind each time is seen after two.
CYCLES = 20 if os.environ.get("CALLBOARD_DEEP") else 2
WAYS = """
    sync again in-asyncio new-loops threads across-threads foreign-loop process-tools hung-tools open-streams http index
    dropped failed-starts
""".split()  # noqa: SIM905 - to be read as a list
#: Each of these takes seconds: of the deep stage.
DEAR = {"hung-tools", "open-streams", "http", "index", "dropped"}
PLAYED = [way for way in WAYS if os.environ.get("CALLBOARD_DEEP") or way not in DEAR]


@pytest.mark.timeout(180)  # a cycle with child processes takes up to a second on a busy machine
@pytest.mark.parametrize("way", PLAYED)
@pytest.mark.repeats
def test_nothing_is_left_behind(way: str) -> None:
    command = [sys.executable, str(SCRIPT), "--run", way, "--cycles", str(CYCLES)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert (seen["left"], seen["unraised"], ran.stderr) == ({}, [], "")


def test_the_ways_are_those_of_the_benchmark() -> None:
    told = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True, check=True).stdout
    assert all(way in told for way in WAYS)
    assert told.count(",", told.index("{"), told.index("}")) + 1 == len(WAYS)


def test_what_is_left_behind_is_seen() -> None:
    """The counting itself: a thread, a descriptor, a child process and a zombie of each cycle."""
    program = """
import os, subprocess, sys, threading
sys.path.insert(0, {folder!r})
import start_stop
held = []
def leaky(cycles):
    for _ in range(cycles):
        thread = threading.Thread(target=threading.Event().wait, name="left", daemon=True)
        thread.start()
        held.append((open("/dev/null"), subprocess.Popen(["sleep", "60"]), os.fork() or os._exit(0)))
start_stop.WAYS["leaky"] = leaky
start_stop.PATIENCE_SECONDS = 0.5
left = start_stop.run("leaky", 2)["left"]
for _, child, _ in held:
    child.kill()
print(left)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program.format(folder=str(SCRIPT.parent))]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    leaks = ("'thread left': 2", "'descriptor /dev/null': 2", "'child sleep': 2", "'child python")
    assert [leak for leak in leaks if leak not in ran.stdout] == [], (ran.stdout, ran.stderr)

"""benchmarks/sessions.py: each of its ways runs, with callboard and the bare loop, and the docs show its figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "sessions.py"


def rows(*options: str) -> dict[str, list[str]]:
    """What it prints, by the contender: the numbers of its row."""
    command = [sys.executable, str(SCRIPT), *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    found = re.findall(r"^ *(bare|callboard(?: [a-z]+)?) +([\d. ]+)$", ran.stdout, re.M)
    return {name: numbers.split() for name, numbers in found}


@pytest.mark.timeout(120)
@pytest.mark.deep
def test_callboard_in_its_ways_beside_the_bare_loop() -> None:
    """Each session is checked for the right answer by the run itself."""
    small = ("--sessions", "10", "--concurrency", "5", "--events-per-second", "500")
    seen = rows(*small, "--streaming", "--output", "--spans", "--journal")
    assert list(seen) == [
        "bare",
        "callboard",
        "callboard streaming",
        "callboard output",
        "callboard spans",
        "callboard journal",
    ]
    assert [len(numbers) for numbers in seen.values()] == [6] * 6


@pytest.mark.timeout(120)
@pytest.mark.deep
def test_with_faults_every_session_of_callboard_ends_and_some_of_the_bare_loop_fail() -> None:
    seen = rows("--faults", "--fault-sessions", "60", "--concurrency", "30")
    sessions, right, error, wrong, hung = map(int, seen["callboard"][:5])
    assert (sessions, right + error, wrong, hung) == (60, 60, 0, 0)
    assert int(seen["bare"][2]) > error
    assert int(seen["callboard"][6]) > 120  # requests: some were asked again


@pytest.mark.deep
def test_slow_sessions_at_once() -> None:
    command = [sys.executable, str(SCRIPT), "--paced", "20", "--events-per-second", "500"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert re.search(r"20 sessions at once, 500 events a second each: 20 right, 0 not; RSS \d+ MB", ran.stdout), ran


@pytest.mark.parametrize("name", ["sessions", "sessions_faults"])
def test_the_docs_show_the_figures_that_were_saved(name: str) -> None:
    saved = json.loads((ROOT / "docs" / "images" / f"{name}.json").read_text())
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    table = page.partition(f"<!-- table: {name}.json -->\n")[2].partition("<!-- end of the table -->")[0]
    assert table.count("\n") == len(saved) + 2
    for row in saved:
        figures = f"{row['cpu_ms']:.2f}" if name == "sessions" else f"{row['longest_s']:.1f}"
        assert re.search(rf"^\| {re.escape(row['name'])} \|.* {figures} \|", table, re.M), row["name"]
    picture = ElementTree.parse(ROOT / "docs" / "images" / f"{name}.svg")
    shown = {element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {row["name"] for row in saved} <= shown

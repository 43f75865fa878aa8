"""benchmarks/compared.py: what a cell says of what was seen, what is seen of a process that misbehaves, callboard's own
column, and the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from compared import ADAPTERS, ROWS, Seen, anchor, cell, insert, table, watch  # noqa: E402
from support.shared_double import shared_double  # noqa: E402

PAGE = ROOT / "docs" / "compared.md"
#: A question that was asked at 1.0, whose tool began at 1.1, and another beside it.
FINE = {
    "asked": 1.0,
    "started": [1.1],
    "ended": 3.2,
    "outcome": "done",
    "beside": [(0.8, 1.2, "done"), (1.2, 1.6, "done")],
    "until": 9.0,
}
DIED = {"ended": None, "outcome": "", "beside": [(0.8, None, "")]}


@pytest.mark.parametrize(
    ("otherwise", "said"),
    [
        ({}, "✓"),
        ({"ended": 6.0}, "answered at 4.9 s"),
        ({"ended": 7.1, "outcome": "TimeoutError: no"}, "run fails at 6.0 s"),
        ({"ended": None}, "call has no end in 8 s"),
        ({"started": [1.1] * 10}, "✓"),
        ({"started": [1.1] * 11}, "run ends after 11 calls"),
        ({"sent": 8_400_000}, "model sent 8 MB"),
        ({"beside": [(0.8, 11.2, "done")]}, "others wait 10.4 s"),
        ({"beside": [(0.8, None, "")]}, "others wait 8.2 s"),
        ({"beside": [(0.8, 1.2, "ValueError: no")]}, "others fail"),
        ({"beside": [(0.1, 0.9, "ValueError: before anything was asked")]}, "✓"),
        ({"runs_on": True}, "tool runs on"),
        ({"left": 1}, "1 process left"),
        ({"left": 2, "printed": 8_000_000}, "2 processes left, prints 8 MB"),
        ({"grown": 900_000_000}, "grown by 900 MB"),
        ({**DIED, "status": -11}, "all lost, exit 139"),
        ({**DIED, "status": 3, "left": 1}, "all lost, exit 3, 1 process left"),
        ({"status": 3}, "exit 3"),
        ({"ended": None, "outcome": "", "status": 3}, "call lost; exit 3"),
    ],
)
def test_a_cell_says_what_was_seen(otherwise: dict[str, object], said: str) -> None:
    assert str(cell(Seen(**{**FINE, **otherwise}))) == said  # type: ignore[arg-type]


#: What plays a framework here: it is ready, is asked something, and then does what stands for `...`.
STAND_IN = """
import fcntl, json, os, signal, subprocess, sys, time
folder = sys.argv[3]
def note(what, number=0, detail=""):
    with open(folder + "/log", "a") as log:
        log.write(json.dumps({"at": time.monotonic(), "what": what, "number": number, "detail": detail}) + "\\n")
def looked():
    while not os.path.exists(folder + "/looked"):
        time.sleep(0.01)
note("ready", detail="0")
note("ping", 1)
note("asked")
note("pong", 1, "done")
...
note("ended", detail="done")
note("settled")
looked()
"""
LEAVES = "command = [sys.executable, '-c', 'import time; time.sleep(60)', 'compared-left-behind', folder]"


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("", "✓"),
        ("note('ping', 2)\nos.kill(os.getpid(), signal.SIGSEGV)", "all lost, exit 139"),
        ("note('ping', 2)\nos._exit(3)", "all lost, exit 3"),
        (f"{LEAVES}\nsubprocess.Popen(command, start_new_session=True)", "1 process left"),
        ("lock = open(folder + '/running', 'w'); fcntl.flock(lock, fcntl.LOCK_SH)", "tool runs on"),
        ("sys.stdout.write('x' * 8_000_000)", "prints 8 MB"),
        ("eaten = b'x' * 280_000_000", "grown by ... MB"),
    ],
)
def test_what_a_process_does_is_seen(does: str, said: str, tmp_path: Path) -> None:
    program = tmp_path / "stand_in.py"
    program.write_text(STAND_IN.replace("\n...\n", f"\n{does}\n"))
    with shared_double() as double:
        found = str(cell(watch(sys.executable, "stand-in", ROWS["exits"], double, program)))
    assert re.fullmatch(said.replace("...", r"\d+"), found), found


def test_one_that_does_not_begin_is_no_row(tmp_path: Path) -> None:
    program = tmp_path / "stand_in.py"
    program.write_text("raise RuntimeError('it is not installed')")
    with shared_double() as double, pytest.raises(SystemExit, match="it is not installed"):
        watch(sys.executable, "stand-in", ROWS["exits"], double, program)


#: What does not go well under callboard, as docs/compared.md tells.
FALLS_SHORT = {"blocks": "tool runs on", "ignores_cancellation": "tool runs on"}


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_callboard_goes_on_in_every_case() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "compared.py"), "--only", "callboard"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert ran.returncode == 0, ran.stderr
    for key, row in ROWS.items():
        (told,) = re.findall(rf"^\| \[{re.escape(row.heading)}\]\(.+?\) \| (.+) \|$", ran.stdout, re.M)
        # A blocked loop is noticed when the call's deadline has passed: its other calls wait for that.
        told = re.sub(r"^others wait [23]\.\d s; ", "", told) if key == "blocks" else told
        assert told == FALLS_SHORT.get(key, "✓"), (key, ran.stdout)


def test_the_page_has_a_cell_for_each_case_of_each_framework() -> None:
    page = PAGE.read_text()
    assert re.search(r"^20\d\d-\d\d-\d\d, Python 3\.\d+\.\d+: callboard \d.+; pydantic-ai-slim \d", page, re.M)
    assert f"\n| | {' | '.join(ADAPTERS)} |\n" in page
    for row in ROWS.values():
        (line,) = re.findall(rf"^\| \[{re.escape(row.heading)}\]\(#{anchor(row.heading)}\) \| (.+) \|$", page, re.M)
        cells = line.split(" | ")
        assert len(cells) == len(ADAPTERS)
        assert all(cells)
        assert re.search(rf"^### {re.escape(row.heading)}$", page, re.M)


def test_a_table_goes_between_the_markers() -> None:
    fine = cell(Seen(**FINE))  # type: ignore[arg-type]
    made = table({"callboard": dict.fromkeys(ROWS, fine)}, {"callboard": "callboard 0.1.0"})
    assert f"| all well, of {len(ROWS)} | {len(ROWS)} |" in made
    page = "before\n<!-- generated: table -->\nold\n<!-- end -->\nafter\n"
    assert insert(page, made) == f"before\n<!-- generated: table -->\n{made}<!-- end -->\nafter\n"

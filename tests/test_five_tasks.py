"""benchmarks/five_tasks.py: the programs are right, ours are no longer than the shortest of the others, and the page
shows what there is. The others' programs: `-m runtimes` (extra `runtimes`)."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from five_tasks import ALL_TASKS, LIBRARIES, WIDTH, length, lengths, what_is_wrong, written  # noqa: E402
from support.shared_double import shared_double  # noqa: E402

PAGE = ROOT / "docs" / "five_tasks.md"
OTHERS = [name for name in LIBRARIES if name != "callboard"]


@pytest.mark.parametrize("task", ALL_TASKS)
def test_our_program_does_the_task(task: str) -> None:
    with shared_double() as double:
        assert what_is_wrong(double, LIBRARIES["callboard"], ALL_TASKS[task]) == ""


@pytest.mark.runtimes
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("task", ALL_TASKS)
def test_their_program_does_the_task(task: str, name: str) -> None:
    with shared_double() as double:
        assert what_is_wrong(double, LIBRARIES[name], ALL_TASKS[task]) == ""


def test_ours_is_no_longer_than_the_shortest_of_the_others() -> None:
    for task, row in lengths().items():
        assert row["callboard"] <= min(row[name] for name in OTHERS), task


@pytest.mark.parametrize("task", ALL_TASKS)
def test_ours_fits_on_narrow_lines_too(task: str) -> None:
    source = LIBRARIES["callboard"].program(task).read_text()
    assert length(source, 88) == length(source)


@pytest.mark.parametrize("name", OTHERS)
def test_an_agent_that_is_used_once_is_made_where_it_is_used(name: str) -> None:
    """As in ours, where the line has room for it: a line more would count against the others."""
    for task in ALL_TASKS:
        source = LIBRARIES[name].program(task).read_text()
        made = re.search(r"^(\w+) = (.+)$", source, re.M)
        if made is None or len(re.findall(rf"\b{made[1]}\b", source)) != 2:
            continue
        (used,) = (line for line in source.splitlines() if made[1] in line and line != made[0])
        assert len(used.replace(made[1], made[2])) > WIDTH, (name, task)


def test_the_page_shows_what_there_is() -> None:
    assert written(PAGE.read_text()) == PAGE.read_text(), "python benchmarks/five_tasks.py --page docs/five_tasks.md"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import os\n\n\nprint(os.sep)\n", 1),
        ("from os import (\n    sep,  # of folders\n    linesep,\n)\n# one\n\nprint(sep)  # two\n", 1),
        ('def say():\n    """Say it."""\n    return 1\n\n\nprint(say())\n', 4),
        ("a=1;b=2\nif a: print(b)\n", 4),
        ("print(" + ", ".join(f'"{letter * 20}"' for letter in "abcde") + ")\n", 7),
    ],
    ids=["imports", "imports-of-several-lines", "docstrings-count", "formatted", "wide"],
)
def test_the_rule_for_lengths(source: str, lines: int) -> None:
    assert length(source, 88) == lines


def test_a_program_that_is_wrong_is_found(tmp_path: Path) -> None:
    task = ALL_TASKS["ask"]
    wrong = {
        "ended with status 1": "raise SystemExit(1)",
        "printed 'In Bergen.": "print('In Bergen.')",
        "sent 0 requests": "print('In Oslo.')",
    }
    for said, source in wrong.items():
        (tmp_path / "ask.py").write_text(source)
        library = replace(LIBRARIES["callboard"], folder=tmp_path)
        with shared_double() as double:
            assert said in what_is_wrong(double, library, task)

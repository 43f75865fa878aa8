"""The table: its cells and notes, its place in the page, and the page as it was written last."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from callboard.actors.testing.runtimes.adapter import NotPromised
from callboard.actors.testing.runtimes.harness import RUNTIMES, Harness
from callboard.actors.testing.runtimes.table import Survey, insert, render, story, survey
from callboard.protocol.testing.observation import AskedCall, AskedTurn, Conversation, Played, Seen, What
from callboard.protocol.testing.observed import NOT_OBSERVED, OBSERVED

PAGE = Path(__file__).resolve().parents[4] / "docs" / "other_runtimes.md"
FIRST, SECOND, THIRD, FOURTH = (rule.name for rule in OBSERVED[:4])


def cells(table: str, rule: str) -> list[str]:
    (line,) = [line for line in table.splitlines() if line.startswith(f"| {rule} |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_a_cell_says_how_many_kept_or_broke_it_and_what_is_not_promised() -> None:
    disclaimer = NotPromised((SECOND[:20], THIRD), "it is not said", "https://example.org/tools")
    looked = defaultdict(int, {FIRST: 3, THIRD: 5})
    mine = Survey("mine", "mine 1.0", (), looked, defaultdict(list, {THIRD: [(9, 2), (4, 7)]}))
    theirs = Survey("theirs", "theirs 2.0", (disclaimer,), looked, defaultdict(list, {THIRD: [(9, 2)]}))
    table = render([mine, theirs], 10)
    assert cells(table, FIRST)[0] == "3"
    assert cells(table, FOURTH) == ["-", "-"]
    assert cells(table, THIRD) == ["**2/5** (7)", "1/5 (2) [1]"]
    assert "- [1] it is not said ([page](https://example.org/tools))" in table
    assert "10 conversations each" in table
    assert "mine 1.0, theirs 2.0" in table
    assert all(rule in table for rule in NOT_OBSERVED)


def test_a_survey_counts_what_a_seed_shows_twice(driver: Harness) -> None:
    found = survey(driver, "bare-loop", [0])
    assert found.looked["I2 valid history: calls and results"] == 1
    assert all(seed == 0 for breaches in found.broken.values() for _, seed in breaches)
    assert set(found.broken) <= set(found.looked)
    assert all(found.disclaimer(rule.name) for rule in OBSERVED)


def test_the_table_goes_between_the_markers() -> None:
    page = "before\n<!-- generated: table -->\nold\n<!-- end -->\nafter\n"
    assert insert(page, "new \\1\n") == "before\n<!-- generated: table -->\nnew \\1\n<!-- end -->\nafter\n"


def test_the_page_has_a_row_for_every_rule_and_a_column_for_every_runtime() -> None:
    """In shape only: what a machine saw is not what another will see, but a new rule needs a new run."""
    page = PAGE.read_text()
    for rule in OBSERVED:
        for cell in cells(page, rule.name):
            assert re.fullmatch(
                r"-|\d+|\*\*\d+/\d+\*\* \(\d+\)|\d+/\d+ \(\d+\) \[\d+\]",
                cell,
            ), (rule.name, cell)
    (header,) = [line for line in page.splitlines() if line.startswith("| rule |")]
    assert header == f"| rule | {' | '.join(RUNTIMES)} |"


def test_a_story_tells_what_was_planned_seen_and_broken() -> None:
    turn = AskedTurn((AskedCall(1, "look", "call_1", seconds=0.5),))
    seen = (
        Seen(1.0, What.QUESTION, 1),
        Seen(1.5, What.ASKED, 1, 0, "whole", ()),
        Seen(20.0, What.REPLY, 1, detail="no"),
    )
    told = story(Played(Conversation((turn,)), seen))
    assert 'call 1 look {"call":1,"does":"returns","seconds":0.5} id call_1' in told
    assert "    0.500 asked 1 step 0 whole" in told
    assert "I5 bounded: a run ends by its deadline: BROKEN: it took 19.0 s" in told


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--runtime", "bare-loop", "--seed", "0"], 0, "I2 valid history: calls and results: "),
        (["--runtime", "crewai"], 2, "invalid choice"),
    ],
)
def test_the_command(tmp_path: Path, arguments: list[str], status: int, told: str) -> None:
    command = [sys.executable, "-m", "callboard.actors.testing.runtimes", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert ran.returncode == status, ran.stderr
    assert told in ran.stdout + ran.stderr

"""benchmarks/damages.py: 24 damages of it (CALLBOARD_DEEP: 480), and its judge finds what it is there to find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "damages.py"

import damages  # noqa: E402 - benchmarks/ is on the path

TIMES = 20 if os.environ.get("CALLBOARD_DEEP") else 1
KNOWN = {name: damages.answer(name) for name in ("q0001x", "q0002x")}
JOURNAL = damages.Journal(b"", b"", b"", b"", answered={"q0001x"}, charged=set(KNOWN))
GOOD = damages.Ending(started=KNOWN, after_repair=KNOWN)


@pytest.mark.timeout(120 * TIMES)
@pytest.mark.deep
def test_of_24_damages_none_loses_in_silence_and_each_has_a_way_out() -> None:
    sizes = ("--damages", str(24 * TIMES), "--hosts", "4", "--seed", "5")
    command = [sys.executable, str(SCRIPT), *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110 * TIMES, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = dict(re.findall(r"^(.+?): (\d[\d,]*)", ran.stdout, re.M))
    assert [figures[name] for name in damages.FAULTS] == ["0"] * len(damages.FAULTS)
    assert int(figures["undamaged answered"].replace(",", "")) > 100


# -- the judge


@pytest.mark.parametrize(
    ("ending", "kinds"),
    [
        (GOOD, []),
        (replace(GOOD, started={**KNOWN, "q0002x": "error: records of it may be lost"}, verified="x"), []),
        (replace(GOOD, started={**KNOWN, "q0001x": "unknown: no such request"}, aside=["the log"], verified="x"), []),
        (replace(GOOD, started={**KNOWN, "q0001x": "unknown: no such request"}, verified="x"), ["silent losses"]),
        (replace(GOOD, after_repair={**KNOWN, "q0001x": "another answer"}, verified="x"), ["silent losses"]),
        (replace(GOOD, started={**KNOWN, "q0001x": "unknown: x"}, aside=["the log"]), ["silent in verify"]),
        (replace(GOOD, started={}, refused="it is damaged"), ["without a way out"]),
        (replace(GOOD, after_repair={}, repaired="repair it"), ["without a way out"]),
        (replace(GOOD, charged=["q0002x"]), ["charged twice"]),
        (replace(GOOD, charged=["q0099x"]), []),
    ],
)
def test_the_judge_finds_what_it_is_there_to_find(ending: damages.Ending, kinds: list[str]) -> None:
    assert [kind for kind, _ in damages.found_faults(JOURNAL, ending)] == kinds
    verdict = damages.Verdict(Counter({"undamaged answered": 1, "undamaged answered saved": 1, **Counter(kinds)}))
    assert damages.is_good(verdict) == (not kinds)


def test_a_damaged_page_damages_the_requests_on_it_where_it_is_the_one_that_is_read() -> None:
    """A page of the file that the log has a newer one of is not read; nor are frames behind the last commit."""
    frame = damages.FRAME

    def page(name: str) -> bytes:
        return name.encode().ljust(damages.PAGE, b".")

    def framed(number: int, commit: int, name: str) -> bytes:
        return number.to_bytes(4, "big") + commit.to_bytes(4, "big") + b"saltsalt" + bytes(8) + page(name)

    main = page("q0001x") + page("q0002x") + page("q0003x")
    frames = (framed(2, 0, "q0004x"), framed(2, 3, "q0005x"), framed(3, 0, "q0006x"))
    log = bytes(16) + b"saltsalt" + bytes(8) + b"".join(frames)
    journal = damages.Journal(main, log, b"", b"")

    def damaged(hit: str, at: int) -> set[str]:
        return damages.damaged_requests(journal, damages.Damage("", main, log, hit, [(at, at + 1)]))

    assert [damaged("main", at * damages.PAGE) for at in range(3)] == [{"q0001x"}, set(), {"q0003x"}]
    assert [damaged("log", damages.HEADER + at * frame) for at in range(3)] == [set(), {"q0005x"}, set()]

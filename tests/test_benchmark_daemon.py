"""benchmarks/daemon_*.py in small sizes: they run, and say that what they look at is right."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

from daemon_soak import Sample, judge  # noqa: E402 - benchmarks/ is on the path from here on

RUNS = (
    ("daemon_load.py", "--streams", "20"),
    ("daemon_load.py", "--followers", "50", "--idle-seconds", "1"),
    ("daemon_kills.py", "--kills", "2", "--requests", "6"),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("run", RUNS, ids=" ".join)
@pytest.mark.deep
def test_it_runs_and_finds_no_fault(run: tuple[str, ...]) -> None:
    program, *sizes = run
    command = [sys.executable, str(BENCHMARKS / program), *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.timeout(120)
@pytest.mark.deep
def test_a_short_soak_answers_all() -> None:
    """Not judged for growth: in six seconds all is still warming up."""
    command = [sys.executable, str(BENCHMARKS / "daemon_soak.py"), "--minutes", "0.1", "--per-second", "5"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "requests that were not answered in full: none" in ran.stdout, ran.stdout + ran.stderr


def test_the_soak_sees_what_grows_and_what_was_not_answered() -> None:
    steady = [Sample(each, 100.0, 10, 50, 40.0) for each in range(90)]
    assert judge(steady, {"200": 90})
    assert not judge(steady, {"200": 90, "TimeoutError": 1})
    for name in ("memory_mb", "threads", "descriptors"):
        growing = [replace(each, **{name: 50.0 + each.seconds}) for each in steady]
        assert not judge(growing, {}), name

"""What each test costs, measured: `python .ci/measure_tests.py` writes tests/costs.tsv anew, by which tests/conftest.py
marks the dearest tests as slow, and hands out files the dearest first.

Run on an idle machine, some 40 minutes: each test by itself. The cost is the mean of its CPU, all processors counted,
since most of it is in processes that tests start and that may outlive them, and of the time that it takes: a test that
waits keeps a worker from the next one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COSTS = ROOT / "tests" / "costs.tsv"
#: Cheaper ones are not written down, and are all alike.
LEAST_SECONDS = 0.15
_TICKS = os.sysconf("SC_CLK_TCK")
_costs: defaultdict[str, list[float]] = defaultdict(list)


def busy_seconds() -> float:
    """All processors since the machine has started, without what they waited (proc(5), /proc/stat)."""
    with open("/proc/stat") as first:
        user, nice, system, _idle, _iowait, *others = map(int, first.readline().split()[1:9])
    return (user + nice + system + sum(others)) / _TICKS


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measures a test with its fixtures."""
    busy, begun = busy_seconds(), time.monotonic()
    try:
        return (yield)
    finally:
        cost = (busy_seconds() - busy + time.monotonic() - begun) / 2
        _costs[item.nodeid.partition("[")[0]].append(cost)


def pytest_sessionfinish() -> None:
    """Writes the means of each test function."""
    means = {name: sum(found) / len(found) for name, found in _costs.items()}
    COSTS.write_text("".join(f"{means[name]:.2f}\t{name}\n" for name in sorted(means) if means[name] >= LEAST_SECONDS))


if __name__ == "__main__":
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / '.ci'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "measure_tests", *sys.argv[1:]]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)

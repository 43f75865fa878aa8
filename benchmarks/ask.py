"""How long a question takes from the command line: process start, imports, a look at every file, search, answer.

    python benchmarks/ask.py [FOLDER ...]

Copies the folders (default: of the packages installed here, the largest ones) to a scratch place, indexes them, and
asks in fresh processes. Side by side: an interpreter that only starts, and one that only imports the runtime. On a busy
machine look at the CPU column; the goal is under one second of wall clock on an idle one (issue 2).
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

QUESTION = "how is the session cookie set?"
RUNS = 7
ENOUGH_BYTES = 25_000_000
ASK = [sys.executable, "-m", "callboard.actors.cli", "ask", QUESTION]


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tree"
        for source in map(Path, sys.argv[1:] or largest_packages()):
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__", "*.so*"))
        started = time.perf_counter()
        index = [sys.executable, "-m", "callboard.actors.cli", "index", str(folder)]
        said = subprocess.run(index, check=True, capture_output=True, text=True).stdout.strip()
        print(f"first index: {time.perf_counter() - started:.1f} s ({said})\n")
        rows = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import callboard.actors.runtime": [sys.executable, "-c", "import callboard.actors.runtime"],
            "callboard ask, warm index": [*ASK, "--workspace", str(folder)],
        }
        print(f"{'':34}{'wall, median':>14}{'best':>9}{'CPU':>9}")
        for name, command in rows.items():
            walls, cpu = measure(command)
            print(f"{name:34}{statistics.median(walls):12.2f} s{min(walls):7.2f} s{cpu:7.2f} s")


def measure(command: list[str]) -> tuple[list[float], float]:
    """Wall clock seconds of each run after a first one that warms the page cache, and the mean CPU seconds."""
    subprocess.run(command, check=True, capture_output=True)
    before = children_cpu_seconds()
    walls = []
    for _ in range(RUNS):
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        walls.append(time.perf_counter() - started)
    return walls, (children_cpu_seconds() - before) / RUNS


def children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def largest_packages() -> list[str]:
    """Installed packages by the size of their Python source, the largest first, until it is enough."""
    sizes: dict[str, int] = {}
    for folder in Path(sysconfig.get_path("purelib")).iterdir():
        if folder.is_dir() and not folder.name.endswith(("-info", "__pycache__")):
            sizes[str(folder)] = sum(file.stat().st_size for file in folder.rglob("*.py"))
    chosen: list[str] = []
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        if sum(sizes[each] for each in chosen) < ENOUGH_BYTES:
            chosen.append(path)
    return chosen


if __name__ == "__main__":
    main()

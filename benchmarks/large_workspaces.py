"""What grows with the number of files: the walk, a refresh without changes, the first index, memory.

    python benchmarks/large_workspaces.py [--files 10000 30000 100000]

Each tree is made of small Python files of two functions, 50 to a folder. docs/large_workspaces.md says what it means.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from callboard.actors.index import CodeIndex
from callboard.actors.index.walk import Walk

FILES_A_FOLDER = 50
BODY = '''"""Part {number} of a large workspace."""


def read_{number}(path, encoding):
    """Read what part {number} has written."""
    with open(path, encoding=encoding) as stream:
        return [line.strip() for line in stream if line.startswith("{number}")]


def write_{number}(path, rows):
    """Write the rows of part {number}, one a line."""
    with open(path, "w") as stream:
        stream.writelines(f"{number} {{row}}\\n" for row in rows)
'''
MEMORY = """
import sys
from callboard.actors.index import CodeIndex
with CodeIndex.open(sys.argv[1], sys.argv[2], embedder=None) as index:
    index.refresh()
    for n in range(20): index.search(f"where is part {n} written as rows", 20)
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024)
"""


def make_tree(folder: Path, files: int) -> None:
    for number in range(files):
        parent = folder / f"d{number // (FILES_A_FOLDER * FILES_A_FOLDER)}" / f"e{number // FILES_A_FOLDER}"
        if number % FILES_A_FOLDER == 0:
            parent.mkdir(parents=True)
        (parent / f"part_{number}.py").write_text(BODY.format(number=number))


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(folder: Path, files: int) -> None:
    work, store = folder / "work", folder / "store"
    make_tree(work, files)
    walk = min(timed(lambda: list(Walk(str(work), ""))) for _ in range(3))
    with CodeIndex.open(work, store, embedder=None) as index:
        before = child_cpu_seconds()
        first = timed(index.refresh)
        cpu = child_cpu_seconds() - before
        again = min(timed(index.refresh) for _ in range(3))
        one = work / "d0" / "e0" / "part_0.py"
        one.write_text(BODY.format(number="zero"))
        changed = timed(lambda: index.refresh(paths=[str(one)]))
    command = [sys.executable, "-c", MEMORY, str(work), str(store)]
    memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    print(f"{files:9,} files: walk {walk:.2f} s, refresh without changes {again:.2f} s, ", end="")
    print(f"one file {changed * 1e3:.0f} ms, first index {first:.1f} s ({cpu:.1f} s of CPU), ", end="")
    print(f"{memory} MB in a reader, {disk / 1e6:,.0f} MB on disk", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    for files in parser.parse_args().files:
        folder = Path(tempfile.mkdtemp(prefix="callboard-large-"))
        try:
            measure(folder, files)
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()

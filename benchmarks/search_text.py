"""How long search_text takes on a tree of 20,000 files: ours with ripgrep, ours alone, ripgrep alone, side by side.

    python benchmarks/search_text.py [--files 20000] [--rounds 7]

The tree is made of the Python files of this environment's installed packages, cut to 40 kB and under other names if
they are too few. Plain ripgrep prints all lines that it finds, with their numbers, into a pipe. The contenders take
turns, and the first round, which warms the disk cache, does not count. Where ripgrep is not installed, ours alone is
measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from callboard.actors.builtins import Workspace
from callboard.actors.builtins.ripgrep import find_ripgrep
from callboard.actors.builtins.search_pattern import pattern_of
from callboard.actors.builtins.text_search import Search, search_files, search_text_tool
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.events import ToolCallCompleted

MAX_BYTES = 40_000
#: What is searched: as a person would say it, the text, whether it is a regular expression, and case is ignored.
QUERIES = (
    ("a rare word", "planted_here_only", False, False),
    ("a word that is nowhere", "planted_nowhere_at_all", False, False),
    ("a frequent word", "self", False, False),
    ("a rare word, any case", "PLANTED_here_ONLY", False, True),
    ("a regex with a rare word", r"def planted_\w+\(", True, False),
    ("a regex with a frequent word", r"import \w+_\w+_\w+$", True, False),
    ("a regex without a word", r"[A-Z]{9}\d{5}", True, False),
)


def sources() -> Iterator[bytes]:
    packages = Path(sysconfig.get_paths()["purelib"])
    found = sorted(path for path in packages.rglob("*.py") if path.stat().st_size > 200)
    return (path.read_bytes()[:MAX_BYTES] for path in itertools.cycle(found))


def make_tree(folder: Path, count: int) -> int:
    """Returns the bytes."""
    size = 0
    for number, content in enumerate(itertools.islice(sources(), count)):
        if number % (count // 4) == count // 8:
            content += b"\ndef planted_here_only(x):\n    return x\n"
        place = folder / f"package{number // 500}" / f"part{number // 25 % 20}" / f"module{number}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        size += len(content)
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    return size


def timed_ms(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1_000


def contenders(folder: Path, stage: ToolStage, query: tuple[str, str, bool, bool]) -> dict[str, Callable[[], object]]:
    _, text, is_regex, ignores_case = query
    workspace = Workspace.at(folder)
    tool = search_text_tool(workspace)
    search = Search(pattern_of(text, is_regex=is_regex, ignores_case=ignores_case), limit=50)
    program = find_ripgrep(folder)

    def ours(find: Callable[[Path], str | None]) -> object:
        return search_files(workspace, ".", search, time.monotonic() + 60, find)

    def called() -> None:
        outcome = stage.call(tool, query=text, regex=is_regex, ignore_case=ignores_case)
        assert isinstance(outcome, ToolCallCompleted), outcome

    found: dict[str, Callable[[], object]] = {"ours alone": lambda: ours(lambda _: None), "a call of the tool": called}
    if program is not None:
        assert ours(find_ripgrep) == ours(lambda _: None)
        options = ["-n", *([] if is_regex else ["-F"]), *(["-i"] if ignores_case else [])]
        command = [program, "--no-config", *options, "-e", text, str(folder)]
        found["ripgrep"] = lambda: subprocess.run(command, capture_output=True, check=False)
        found["ours with ripgrep"] = lambda: ours(find_ripgrep)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ToolStage() as stage:
        folder = Path(os.path.realpath(name))
        size = make_tree(folder, given.files)
        print(f"{given.files:,} files, {size / 1e6:,.0f} MB; milliseconds, median of {given.rounds}")
        names = ("ripgrep", "ours with ripgrep", "ours alone", "a call of the tool")
        print(f"| query | {' | '.join(names)} | with / ripgrep | alone / ripgrep |\n|{'---|' * 7}")
        for query in QUERIES:
            runs = contenders(folder, stage, query)
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(given.rounds + 1):
                for name, run in runs.items():
                    times[name].append(timed_ms(run))
            median = {name: statistics.median(each[1:]) for name, each in times.items()}
            plain = median.get("ripgrep", float("nan"))
            ratios = [median.get(name, float("nan")) / plain for name in ("ours with ripgrep", "ours alone")]
            cells = [*(f"{median.get(name, float('nan')):.0f}" for name in names), *(f"{each:.2f}" for each in ratios)]
            print(f"| {query[0]} `{query[1]}` | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

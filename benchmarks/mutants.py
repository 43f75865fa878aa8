"""Mutation testing: small faults, one at a time, in the files that decide; does a test that runs the line object?

    python benchmarks/mutants.py --count 300 --seed 1            # a sample, the same for the same seed and sources
    python benchmarks/mutants.py --files 'actors/kernel/*.py'    # of these files only
    python benchmarks/mutants.py --only 1a2b3c4d                 # one mutant, with what its tests said
    python benchmarks/mutants.py --against kit --files 'protocol/*.py'   # only what the testing kit plays
    python benchmarks/mutants.py --list --only 1a2b3c4d          # show, run nothing

Each mutant runs in a copy of the tree, against the tests that run its line (see mutation/covering.py), until one fails
or 60 s are over: a test that has run for half of them is in a loop without end, which counts as killed. Results are
kept in .mutants/ by the texts of the mutant and its test files, so a run that was stopped goes on where it was. Exits 1
if fewer than 90% were killed. Linux; needs the extra `dev`. docs/mutants.md has a recorded run.

Why not a library. mutmut 3 changes functions only, none in a class with `@dataclass`, and no table; it finds a module
by its path, which `package_dir` maps elsewhere. cosmic-ray and poodle run one command for each mutant, with all
its tests; mutatest needs coverage before version 6. None takes a row out of a table, or an argument out of a call.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from mutation.covering import PYTEST, Covering
from mutation.kit import NOT_THE_MUTANT
from mutation.operators import Mutant, mutants
from mutation.tree import Ran, Tree

ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = ROOT / ".mutants"
#: The files that decide what happens to a request.
FILES: Final = (
    "protocol/*.py", "actors/calls/dispatcher.py", "actors/models/llm_manager.py", "actors/requests/request_session.py",
    "actors/index/store.py",
    "actors/kernel/*.py", "actors/workers/*.py", "actors/processes/*.py",
    "providers/*/*_api.py", "providers/base_decoder.py", "providers/response_builder.py",
)  # fmt: skip
KIT: Final = str(ROOT / "benchmarks" / "mutation" / "kit.py")
#: Of one mutant against its tests; of CPU time against the kit.
LIMITS_SECONDS: Final = {"tests": 60.0, "kit": 20.0}
#: At the limit, a test that began longer ago than this is taken to have met a loop without end: none takes that long.
#: Else the machine was slow, and the mutant counts as one that survived.
HUNG_SECONDS: Final = 30.0
KILLED_SHARE: Final = 0.9
#: Exit statuses of pytest: all passed; there is no test. Any other: a test failed, or could not even be imported.
_STATUS: Final = {None: "timed out", 0: "survived", 5: "survived"}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mutant; `by` is the test that failed, or what the kit said."""

    status: str
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Task:
    """One mutant, its file's whole text, and the tests it meets, in groups one after the other (None: the kit)."""

    mutant: Mutant
    text: str
    tests: tuple[tuple[str, ...], ...] | None
    key: str


def run(tree: Tree, task: Task, seconds: float) -> tuple[Result, str]:
    """The result, and what was printed."""
    if task.tests is not None and not any(task.tests):
        return Result("survived", "no test runs the line", 0.0), ""
    began = time.monotonic()
    with tree.changed(task.mutant.path, task.text) as file:
        module = "callboard." + task.mutant.path.removesuffix(".py").replace("/", ".")
        if task.tests is None:
            ran = tree.run((KIT, module, str(file), str(seconds)), wall_seconds(seconds), {})
        else:
            orders = {"module": module, "file": str(file), "text": task.text}
            ran = _run_tests(tree, orders, [group for group in task.tests if group], began + seconds)
    if ran.status == NOT_THE_MUTANT:
        raise RuntimeError(f"mutant {task.mutant.id} was not what ran:\n{ran.output[-2_000:]}")
    status, taken = _STATUS.get(ran.status, "killed"), round(time.monotonic() - began, 1)
    return Result(status, _by(ran.output, task), taken), ran.output


def wall_seconds(cpu_seconds: float) -> float:
    """After which the kit is taken to wait for ever; where it uses CPU without end, its own limit ends it."""
    return 15 * cpu_seconds + 120


def _run_tests(tree: Tree, orders: dict[str, str], groups: Sequence[Sequence[str]], until: float) -> Ran:
    """Group after group, until a test fails: the mirrored tests find most, and only their file is imported."""
    file, running = tree.folder / "orders.json", tree.folder / "running"
    running.write_text(str(time.monotonic()))
    for group in groups:
        file.write_text(json.dumps({**orders, "tests": group, "running": str(running)}))
        files = sorted({test.split("::")[0] for test in group})
        left = max(1.0, until - time.monotonic())
        ran = tree.run((*PYTEST, "-x", *files), left, {"MUTANTS_ORDERS": str(file)})
        if ran.status not in (0, 5):  # 5: the tests of this group are no more
            break
    if ran.status is None and time.monotonic() - float(running.read_text()) < HUNG_SECONDS:
        return Ran(0, "the time was over before all its tests had run")
    return ran


def _by(output: str, task: Task) -> str:
    """The test that failed; else what was printed last."""
    failed = _failed(output, [test for group in task.tests or () for test in group])
    return next(iter(failed), (output.strip().splitlines() or [""])[-1][:200])


def _failed(output: str, tests: Iterable[str]) -> set[str]:
    lines = {line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))}
    return {test for test in tests if f"FAILED {test}" in lines or f"ERROR {test}" in lines}


def proves_nothing(tree: Tree, results: Sequence[tuple[Task, Result]]) -> set[str]:
    """Of the tests that killed, those that fail without a mutant too."""
    named = {test for task, _ in results for group in task.tests or () for test in group}
    tests = sorted({result.by for _, result in results if result.status == "killed"} & named)
    if not tests:
        return set()
    file = tree.folder / "actors" / "__init__.py"
    orders = {"module": "callboard.actors", "file": str(file), "text": file.read_text()}
    (tree.folder / "orders.json").write_text(
        json.dumps({**orders, "tests": tests, "running": str(tree.folder / "running")})
    )
    files = sorted({test.split("::")[0] for test in tests})
    ran = tree.run((*PYTEST, *files), 3_600.0, {"MUTANTS_ORDERS": str(tree.folder / "orders.json")})
    return _failed(ran.output, tests)


def faults_of_kit(tree: Tree, seconds: float = 3.0) -> str:
    """What the kit says of a tree without a mutant; "" as it must be."""
    file = tree.folder / "protocol" / "machine.py"
    ran = tree.run((KIT, "callboard.protocol.machine", str(file), str(seconds)), wall_seconds(seconds), {})
    return "" if ran.status == 0 else (ran.output.strip().splitlines() or [f"status {ran.status}"])[-1]


def candidates(root: Path, patterns: Sequence[str]) -> dict[str, list[Mutant]]:
    """All mutants of the files that match; the kit of protocol/testing is no part of the product."""
    paths = (
        str(file.relative_to(root))
        for layer in ("protocol", "providers", "actors")
        for file in (root / layer).rglob("*.py")
    )
    matching = sorted(path for path in paths if any(_matches(path, pattern) for pattern in patterns))
    found = {path: mutants(path, (root / path).read_text()) for path in matching if not path.endswith("__init__.py")}
    return {path: of_file for path, of_file in found.items() if of_file}


def _matches(path: str, pattern: str) -> bool:
    """As a shell does: a star stays within a folder."""
    return path.count("/") == pattern.count("/") and fnmatch.fnmatchcase(path, pattern)


def sample(found: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """`count` mutants: a file's share grows with the root of how many it has, so that short files have theirs.

    Within a file they are drawn by operator in turn, so that the many constants do not crowd out the rest.
    """
    chance = random.Random(seed)
    queues = {path: _in_turn(of_file, chance) for path, of_file in found.items()}
    weights = {path: len(of_file) ** 0.5 for path, of_file in found.items()}
    total = sum(weights.values())
    shares = {path: count * weight / total for path, weight in weights.items()}
    chosen = {path: queues[path][: int(share)] for path, share in shares.items()}
    by_rest = sorted(found, key=lambda path: (int(shares[path]) - shares[path], path))
    while (missing := count - sum(map(len, chosen.values()))) > 0:
        more = [path for path in by_rest if len(chosen[path]) < len(queues[path])][:missing]
        if not more:
            break
        for path in more:
            chosen[path] = queues[path][: len(chosen[path]) + 1]
    return [mutant for path in sorted(chosen) for mutant in chosen[path]]


def _in_turn(of_file: Iterable[Mutant], chance: random.Random) -> list[Mutant]:
    by_operator: dict[str, list[Mutant]] = {}
    for mutant in of_file:
        by_operator.setdefault(mutant.operator, []).append(mutant)
    for group in by_operator.values():
        chance.shuffle(group)
    order = sorted(by_operator)
    chance.shuffle(order)
    drawn: list[Mutant] = []
    while any(by_operator.values()):
        drawn += [by_operator[operator].pop() for operator in order if by_operator[operator]]
    return drawn


def _task(mutant: Mutant, root: Path, covering: Covering | None) -> Task:
    text = mutant.apply((root / mutant.path).read_text())
    tests = None if covering is None else tuple(map(tuple, covering.tests_of(mutant)))
    named = [test for group in tests or () for test in group]
    kit = (
        Path(KIT),
        *(file for layer in ("protocol", "actors") for file in sorted((root / layer / "testing").glob("*.py"))),
    )
    files = list(kit) if tests is None else []
    files += sorted({root / test.split("::")[0] for test in named})
    texts = [text, *(file.read_text() for file in files), *named]
    return Task(mutant, text, tests, hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24])


def run_all(tasks: Sequence[Task], trees: Sequence[Tree], seconds: float) -> Iterator[tuple[Task, Result, str]]:
    """Results in the order of the tasks, as they come; known ones from the cache. One worker for each tree."""
    cache = CACHE / "results.json"
    known = json.loads(cache.read_text()) if cache.exists() else {}
    free: SimpleQueue[Tree] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def run_somewhere(task: Task) -> tuple[Result, str]:
        tree = free.get()
        try:
            return run(tree, task, seconds)
        finally:
            free.put(tree)

    with ThreadPoolExecutor(len(trees)) as pool:
        started = {task.key: pool.submit(run_somewhere, task) for task in tasks if task.key not in known}
        for task in tasks:
            output = ""
            if task.key in started:
                result, output = started[task.key].result()
                known[task.key] = (result.status, result.by, result.seconds)
                cache.write_text(json.dumps(known, indent=0))
            yield task, Result(*known[task.key]), output


def _described(mutant: Mutant, root: Path) -> str:
    change = mutant.diff((root / mutant.path).read_text())
    return f"{mutant.id} {mutant.path}:{mutant.lines[0]} {mutant.operator}: {change}"


def report(results: Sequence[tuple[Task, Result]], root: Path) -> bool:
    """Print the figures of each file and the survivors; whether enough were killed."""
    by_file: dict[str, Counter[str]] = {}
    for task, result in results:
        by_file.setdefault(task.mutant.path, Counter())[result.status] += 1
    print(f"\n{'file':40} {'killed':>7} {'timed out':>10} {'survived':>9}")
    for path, counts in [*by_file.items(), ("all", sum(by_file.values(), Counter()))]:
        print(f"{path:40} {counts['killed']:7} {counts['timed out']:10} {counts['survived']:9}")
    survivors = [(task.mutant, result) for task, result in results if result.status == "survived"]
    share = 1 - len(survivors) / len(results)
    print(f"\n{share:.1%} of {len(results)} killed" + (", survivors:" if survivors else ""))
    for mutant, result in survivors:
        print(_described(mutant, root), f"({result.by})" if result.by.startswith(("no test", "the time")) else "")
    return share >= KILLED_SHARE


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (1)")
    parser.add_argument("--files", nargs="+", default=FILES, metavar="GLOB", help="files to change, from the root on")
    parser.add_argument("--only", nargs="+", default=(), metavar="ID", help="these mutants and no others")
    parser.add_argument("--against", choices=("tests", "kit"), default="tests", help="what is to find them (tests)")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="for one mutant (60; against the kit 20, of CPU time)"
    )
    parser.add_argument("--workers", type=int, default=1, help="how many run at the same time (1)")
    parser.add_argument("--list", action="store_true", help="name the mutants, run nothing")
    return parser.parse_args()


def main() -> int:
    """Choose, run, report."""
    arguments = _arguments()
    found = candidates(ROOT, arguments.files)
    chosen = sample(found, arguments.count, arguments.seed)
    if arguments.only:
        chosen = [mutant for of_file in found.values() for mutant in of_file if mutant.id in arguments.only]
    if not chosen:
        print("no mutant: --files matches no source file, or --only names none of theirs", file=sys.stderr)
        return 2
    print(f"{len(chosen)} of {sum(map(len, found.values())):,} mutants in {len(found)} files", flush=True)
    if arguments.list:
        for mutant in chosen:
            print(_described(mutant, ROOT))
        return 0
    CACHE.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        trees = [stack.enter_context(contextlib.closing(Tree(ROOT))) for _ in range(arguments.workers)]
        covering = Covering(CACHE, trees[0]) if arguments.against == "tests" else None
        if covering is None and (fault := faults_of_kit(trees[0])):
            print(f"the kit fails without a mutant, so it would find any: {fault}", file=sys.stderr)
            return 2
        tasks = [_task(mutant, trees[0].folder, covering) for mutant in chosen]
        limit = arguments.limit or LIMITS_SECONDS[arguments.against]
        results = _results(tasks, trees, limit, shown=bool(arguments.only))
        return 0 if report(results, trees[0].folder) else 1


def _results(tasks: list[Task], trees: Sequence[Tree], seconds: float, shown: bool) -> list[tuple[Task, Result]]:
    """Run all; then again, without them, those that a test has killed which fails without the mutant too."""
    proved: dict[str, tuple[Task, Result]] = {}
    while tasks:
        results = []
        for task, result, output in run_all(tasks, trees, seconds):
            results.append((task, result))
            if shown:
                print(output)
            where = f"{task.mutant.id} {task.mutant.path}:{task.mutant.lines[0]}"
            print(f"{len(results):4} {result.status:9} {result.seconds:5.1f} s  {where}  {result.by}", flush=True)
        wrong = proves_nothing(trees[0], results)
        if wrong:
            print("these fail without a mutant too, and are left out:", *sorted(wrong), sep="\n    ", flush=True)
        proved.update({task.mutant.id: (task, result) for task, result in results})
        tasks = [_without(task, wrong) for task, result in results if result.by in wrong]
    return list(proved.values())


def _without(task: Task, tests: set[str]) -> Task:
    left = tuple(tuple(test for test in group if test not in tests) for group in task.tests or ())
    digest = hashlib.sha256("\0".join((task.key, *sorted(tests))).encode())
    return replace(task, tests=left, key=digest.hexdigest()[:24])


if __name__ == "__main__":
    sys.exit(main())

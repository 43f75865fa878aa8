"""Which tests run which line, recorded once with coverage.py, and which of them a mutant is to meet.

The recording is kept in a folder. Files of tests that are new or changed are recorded again by themselves; when a
source file has changed, its line numbers have too, and everything is recorded again. (Not for protocol/testing, which
is no part of the product: its lines are not looked up.) Remove the folder to begin afresh.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from coverage import CoverageData

from mutation.operators import Mutant
from mutation.tree import LAYERS, Tree

#: Recorded seconds of the tests that one mutant meets: they pass within the limit of 60 s on a machine with other work.
MAX_RECORDED_SECONDS: Final = 15.0
#: What runs in the processes of tools is not recorded; these are its tests.
_IN_CHILDREN: Final = {
    f"actors/processes/{name}.py": "tests/actors/workers/test_process.py::"
    for name in ("child", "fork_server", "init", "keeper", "linux", "process_state")
}
#: For the recording itself; the suite takes some minutes.
_RECORDING_SECONDS: Final = 3_600.0


class Covering:
    """The recording of one state of the sources and tests."""

    def __init__(self, folder: Path, tree: Tree) -> None:
        self._folder = folder
        self._tree = tree
        folder.mkdir(parents=True, exist_ok=True)
        self._state = _read(folder / "state.json")
        self._bring_up_to_date()
        seconds: dict[str, float | None] = _read(folder / "tests.json")
        self._seconds = {test: taken for test, taken in seconds.items() if taken is not None}
        self._data = CoverageData(str(folder / "coverage"))
        self._data.read()
        self._names = _Names(tree.folder)

    def _bring_up_to_date(self) -> None:
        sources = _digests(self._tree.folder, LAYERS)
        sources = {name: digest for name, digest in sources.items() if not name.startswith("protocol/testing/")}
        tests = _digests(self._tree.folder, ("tests",))
        if sources != self._state.get("sources"):
            (self._folder / "coverage").unlink(missing_ok=True)
            self._state = {"tests": {}, "root": str(self._tree.folder)}
            _write(self._folder / "tests.json", {})
        changed = {name for name, digest in tests.items() if self._state["tests"].get(name) != digest}
        files = sorted(name for name in changed if Path(name).name.startswith("test_"))
        if files:
            print(f"recording which lines {len(files)} files of tests run (once; some minutes)", flush=True)
            self._record(files)
        for test, taken in _read(self._folder / "tests.json").items():
            if taken is None:  # it kills nothing; next time it may pass
                tests.pop(test.split("::")[0], None)
        _write(self._folder / "state.json", {"sources": sources, "tests": tests, "root": self._state["root"]})

    def _record(self, files: list[str]) -> None:
        fresh = self._folder / "fresh"
        fresh.mkdir(exist_ok=True)
        (fresh / "coverage").unlink(missing_ok=True)
        orders = self._folder / "orders.json"
        _write(orders, {"record": str(fresh)})
        arguments = (*PYTEST, "--continue-on-collection-errors", *files)
        ran = self._tree.run(arguments, _RECORDING_SECONDS, {"MUTANTS_ORDERS": str(orders)})
        if ran.status not in (0, 1):
            raise SystemExit(f"the tests could not be recorded:\n{ran.output[-2_000:]}")
        print(ran.output.strip().splitlines()[-1], flush=True)
        recorded, data = CoverageData(str(fresh / "coverage")), CoverageData(str(self._folder / "coverage"))
        recorded.read()
        data.read()
        data.update(recorded, map_path=lambda path: path.replace(str(self._tree.folder), self._state["root"], 1))
        data.write()
        seconds = _read(self._folder / "tests.json")
        kept = {test: taken for test, taken in seconds.items() if test.split("::")[0] not in files}
        _write(self._folder / "tests.json", kept | _read(fresh / "tests.json"))

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Those that run the mutant's lines, within the budget: of the mirrored folder, and the others.

        The mirrored file's are always among them and come first, then the fast ones. A line that only an import runs
        (a table, a default) has the tests of all functions that use its name, and of all files of tests that do.
        """
        found = self._running(mutant.path, range(mutant.lines[0], mutant.lines[1] + 1))
        found = found or self._running(mutant.path, range(mutant.statement[0], mutant.statement[1] + 1))
        source = Path(mutant.path)
        folder = f"tests/{source.parent}/test_"
        file = _IN_CHILDREN.get(mutant.path, f"{folder}{source.stem}.py::")
        if not found:
            names = self._names.bound_at(mutant.path, mutant.statement[0])
            for path, lines in self._names.users(names):
                found |= self._running(path, lines)
            files = self._names.test_files(names)
            found |= {test for test in self._seconds if test.split("::")[0] in files}
        found |= {test for test in self._seconds if test.startswith(file)}  # they may run it in a process of their own
        found = found or {test for test in self._seconds if test.startswith(folder)}
        order = sorted(
            found,
            key=lambda test: (not test.startswith(file), not test.startswith(folder), self._seconds[test], test),
        )
        chosen = self._affordable(order)
        return [test for test in chosen if test.startswith(folder)], [
            test for test in chosen if not test.startswith(folder)
        ]

    def _running(self, path: str, lines: Iterable[int]) -> set[str]:
        contexts = self._data.contexts_by_lineno(f"{self._state['root']}/{path}")
        return {test for line in lines for test in contexts.get(line, ()) if test in self._seconds}

    def _affordable(self, tests: Iterable[str]) -> list[str]:
        chosen: list[str] = []
        spent = 0.0
        for test in tests:
            spent += self._seconds[test]
            if not chosen or spent <= MAX_RECORDED_SECONDS:
                chosen.append(test)
            else:
                spent -= self._seconds[test]  # a fast one may still be among the others
        return chosen


PYTEST: Final = (
    "-m", "pytest", "-p", "no:cacheprovider", "-p", "mutation.plugin", "--hypothesis-seed=0", "-q", "--tb=line",
)  # fmt: skip


class _Names:
    """Who uses a name that a module's top level binds: functions, also by way of further names of top levels."""

    def __init__(self, root: Path) -> None:
        self._bodies: list[tuple[str, ast.stmt, set[str]]] = []
        self._top: dict[str, list[tuple[ast.stmt, set[str]]]] = {}
        for layer in LAYERS:
            for file in sorted((root / layer).rglob("*.py")):
                self._add(str(file.relative_to(root)), ast.parse(file.read_text()))
        files = sorted((root / "tests").rglob("test_*.py"))
        self._tests = {str(file.relative_to(root)): _mentioned(ast.parse(file.read_text())) for file in files}

    def _add(self, path: str, tree: ast.Module) -> None:
        self._top[path] = [(statement, _bound(statement)) for statement in tree.body]
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        self._bodies += [(path, function, _mentioned(function)) for function in functions]
        plain = [
            node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        ]
        self._bodies += [(path, statement, _mentioned(statement)) for statement in plain]

    def bound_at(self, path: str, line: int) -> set[str]:
        """What the top-level statement at this line binds, and what further top-level statements make of that."""
        wanted = {name for top, names in self._top[path] if _holds(top, line) for name in names}
        wanted |= {name for top, _ in self._top[path] if _holds(top, line) for name in _bound_inside(top, line)}
        while True:
            more = {
                name
                for _, statement, names in self._bodies
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and names & wanted
                for name in _bound(statement)
            }
            if more <= wanted:
                return wanted
            wanted |= more

    def test_files(self, wanted: set[str]) -> set[str]:
        """The files of tests that use one of these names."""
        return {file for file, names in self._tests.items() if names & wanted}

    def users(self, wanted: set[str]) -> Iterator[tuple[str, range]]:
        """The lines of the functions that use one of these names."""
        for user, node, names in self._bodies:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and names & wanted:
                yield user, range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _bound_inside(top: ast.stmt, line: int) -> set[str]:
    """In a class: the field or method at the line."""
    inside = top.body if isinstance(top, ast.ClassDef) else []
    return {name for statement in inside if _holds(statement, line) for name in _bound(statement)}


def _mentioned(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _digests(root: Path, folders: Iterable[str]) -> dict[str, str]:
    files = (file for folder in folders for file in sorted((root / folder).rglob("*.py")))
    return {str(file.relative_to(root)): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files}


def _read(file: Path) -> dict:
    return json.loads(file.read_text()) if file.exists() else {}


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=0))

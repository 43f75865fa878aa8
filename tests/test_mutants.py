"""benchmarks/mutants.py: every operator gives valid, different code, and a fault that no test finds is reported."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

from mutants import FILES, ROOT, Task, faults_of_kit, run, sample  # noqa: E402
from mutation.covering import _IN_CHILDREN  # noqa: E402
from mutation.operators import OPERATORS, Mutant, mutants  # noqa: E402
from mutation.tree import Tree  # noqa: E402
from planted_faults import product_faults  # noqa: E402

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the tree ends left processes with Linux's system calls"
)


def test_each_pattern_has_files_and_so_has_each_that_the_page_shows() -> None:
    page = (ROOT / "docs" / "mutants.md").read_text()
    shown = re.findall(r"--files '([^']+)'", page)
    assert shown
    assert [pattern for pattern in (*FILES, *shown) if not any(ROOT.glob(pattern))] == []
    assert [path for path in _IN_CHILDREN if not (ROOT / path).exists()] == []


#: One line at least for each operator; characters of several bytes before some of them.
SAMPLE = '''"""Not a statement to change."""

import logging

_log = logging.getLogger("é")
Alias = tuple[int, str]
LIMIT: int = 3
ROWS = {"é": (1, 2), "b": (2,), **{"c": (3,)}}
__slots__ = ("a", "b")


def grow(items: list[int], by: int = 1, *, name: str = "x") -> list[int]:
    """Nor this."""
    total = 0
    for item in items:
        if item < 0 and not name:
            continue
        if total > LIMIT or (item == LIMIT and by):
            break
        total += item * by
    _log.warning("grown to %s", total)
    try:
        items.sort(key=abs)
    except ValueError as error:
        raise RuntimeError("cannot sort") from error
    assert total, "é"
    return [min(total, max(items)), *(x for x in items if not x), divmod(total, by)[0]]


def __repr__() -> str:
    return "grow" + str(LIMIT)
'''


def found(text: str) -> set[str]:
    """The changed text of each mutant, with what it replaces."""
    return {f"{mutant.before} -> {mutant.after}" for mutant in mutants("sample.py", text)}


def test_every_operator_gives_valid_and_different_code() -> None:
    every = mutants("sample.py", SAMPLE)
    for mutant in every:
        assert ast.dump(ast.parse(mutant.apply(SAMPLE))) != ast.dump(ast.parse(SAMPLE)), mutant
    assert {mutant.operator for mutant in every} == set(OPERATORS)
    assert len({mutant.id for mutant in every}) == len(every)


@pytest.mark.parametrize(
    "expected",
    [
        "item < 0 -> item <= 0",
        "item < 0 -> item >= 0",
        "not name -> name",
        "1 -> 2",
        '"é": (1, 2),  -> ',
        "(2,) -> ()",
        "total += item * by -> total -= item * by",
        "item * by -> item // by",
        "break -> continue",
        "item == LIMIT and by -> (item == LIMIT or by)",
        "ValueError -> ()",
        "min -> max",
        "divmod(total, by) -> divmod(by, total)",
        "key=abs -> ",
        "items.sort(key=abs) -> pass",
    ],
)
def test_what_a_mutant_can_be(expected: str) -> None:
    assert expected in found(SAMPLE)


def test_what_decides_nothing_is_left_alone() -> None:
    lines = SAMPLE.splitlines()
    changed = {lines[mutant.lines[0] - 1] for mutant in mutants("sample.py", SAMPLE)}
    for word in ("Alias", "LIMIT: int", "__slots__", "_log.warning", "assert", "Nor this", "Not a statement", '"grow"'):
        assert not [line for line in changed if word in line], word


def test_an_operand_keeps_its_parentheses() -> None:
    (mutant,) = (mutant for mutant in mutants("x.py", "y = not (a or b) and c\n") if mutant.operator == "negate")
    assert mutant.apply("y = not (a or b) and c\n") == "y = (a or b) and c\n"


def test_an_id_does_not_depend_on_the_lines_above() -> None:
    below = mutants("sample.py", "# a line more\n" + SAMPLE)
    assert [mutant.id for mutant in below] == [mutant.id for mutant in mutants("sample.py", SAMPLE)]


def test_a_sample_is_the_same_for_the_same_seed_and_has_every_file() -> None:
    files = {"long.py": mutants("long.py", SAMPLE * 3), "short.py": mutants("short.py", "LIMIT = 1\n")}
    drawn = sample(files, 20, seed=1)
    assert drawn == sample(files, 20, seed=1) != sample(files, 20, seed=2)
    assert len(drawn) == len(set(drawn)) == 20
    assert {mutant.path for mutant in drawn} == {"long.py", "short.py"}
    assert len(sample(files, 10_000, seed=1)) == sum(map(len, files.values()))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tree with one module, and a test that looks at one side of its border only."""
    files = {
        "protocol/border.py": "LIMIT = 3\n\n\ndef inside(x: int) -> bool:\n    return x < LIMIT\n",
        "protocol/__init__.py": "",
        "actors/__init__.py": "",
        "actors/testing/__init__.py": "",
        "actors/testing/pytest_plugin.py": "",  # pytest loads it wherever callboard is installed
        "tests/test_border.py": "from callboard.protocol.border import inside\n\n\n"
        "def test_inside():\n    assert inside(2)\n    assert not inside(4)\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


@pytest.mark.deep
@pytest.mark.parametrize(("after", "status"), [("x <= LIMIT", "survived"), ("x >= LIMIT", "killed")])
def test_a_fault_that_no_test_finds_survives(project: Path, after: str, status: str) -> None:
    text = (project / "protocol/border.py").read_text()
    (mutant,) = (mutant for mutant in mutants("protocol/border.py", text) if mutant.after == after)
    result = run_one(project, mutant, text)
    assert (result, (project / "protocol/border.py").read_text()) == (status, text)


def run_one(project: Path, mutant: Mutant, text: str) -> str:
    tree = Tree(project)
    try:
        task = Task(mutant, mutant.apply(text), (("tests/test_border.py::test_inside",),), "")
        return run(tree, task, seconds=60)[0].status
    finally:
        tree.close()


def test_the_kit_finds_a_mutant_and_nothing_where_there_is_none() -> None:
    root = BENCHMARKS.parent
    text = (root / "protocol/machine.py").read_text()
    (mutant,) = (each for each in mutants("protocol/machine.py", text) if each.after == "call.facts.runs -= 1")
    with closing(Tree(root)) as tree:
        assert faults_of_kit(tree, seconds=0.1) == ""
        found, output = run(tree, Task(mutant, mutant.apply(text), None, ""), seconds=60)
        assert (found.status, output.startswith("session ")) == ("killed", True), output
        (tree.folder / "protocol/testing/generator.py").write_text("import nowhere\n")
        assert "nowhere" in faults_of_kit(tree, seconds=0.1)


def test_each_fault_planted_in_the_product_can_be_planted() -> None:
    for fault in product_faults():
        text = fault.planted((BENCHMARKS.parent / fault.file).read_text())
        compile(text, fault.file, "exec")

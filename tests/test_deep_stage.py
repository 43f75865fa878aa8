""".ci/deep.py: a part of the deep stage is due when a file that it depends on has changed since it passed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("deep", ROOT / ".ci" / "deep.py")
assert _spec is not None
assert _spec.loader is not None
deep = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(deep)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.py", "b.py", "folder/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(deep, "ROOT", tmp_path)
    monkeypatch.setattr(deep, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(deep, "PARTS", {"content": ("*.py",), "names": ("names: folder/*", "names: *.py")})
    return tmp_path


def test_a_part_is_due_until_it_has_passed_and_after_a_change(tree: Path) -> None:
    assert deep.due() == ["content", "names"]
    deep.passed("names")
    assert deep.due() == ["content"]
    deep.passed("content")
    assert deep.due() == []
    (tree / "a.py").write_text("other")
    assert deep.due() == ["content"]
    (tree / "a.py").write_text("a.py")
    assert deep.due() == []
    (tree / "folder/new").touch()
    assert deep.due() == ["names"]
    (tree / "b.py").rename(tree / "d.py")
    assert deep.due() == ["content", "names"]


def test_a_pattern_without_a_file_is_a_fault_of_the_table(tree: Path) -> None:
    (tree / "folder/c.txt").unlink()
    with pytest.raises(AssertionError, match="names depends on names: folder/"):
        deep.due()


def test_the_table_has_a_row_for_each_part_that_runs_and_files_in_each() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert sorted(re.findall(r"^ *deep (\w+) ", script, re.M)) == sorted(deep.PARTS)
    assert all(deep.fingerprint(part) for part in deep.PARTS)


def test_every_test_of_the_deep_stage_is_of_a_part_that_depends_on_it() -> None:
    marked = [
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^[^#\n]*mark\.deep\b", path.read_text(), re.M)
    ]
    run = re.findall(r"^deep .* -m deep (.+)$", (ROOT / ".ci" / "run").read_text(), re.M)
    patterns = [word for line in run for word in line.split() if not word.startswith("-")]
    places = {path for pattern in patterns for found in ROOT.glob(pattern) for path in (found, *found.rglob("*.py"))}
    assert [path for path in marked if path != Path(__file__) and path not in places] == []
    of_parts = {path for patterns in deep.PARTS.values() for each in patterns for path in ROOT.glob(each)}
    assert [path for path in marked if path != Path(__file__) and path not in of_parts] == []

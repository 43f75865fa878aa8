"""Property tests on a machine where they never ran, or where nothing can be written; and the same examples again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SEEN = """
from pathlib import Path
from hypothesis import given, strategies as st

@given(st.text(), st.integers())
def test_any(text, number):
    with Path(__file__).with_name("log").open("a", encoding="utf-8") as log:
        log.write(f"{text!a} {number}\\n")
"""
FAILING = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_small(number):
    assert number < 1000
"""


def run_tests(folder: Path, *arguments: str, storage: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`storage` is where Hypothesis keeps its tables and examples, in place of .hypothesis in the repository."""
    shutil.copy(REPOSITORY / "tests" / "conftest.py", folder)
    settings = ["-c", str(REPOSITORY / "setup.cfg"), "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, *arguments, str(folder)]
    environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(storage or folder / "storage")}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)


def examples(folder: Path, *arguments: str) -> list[str]:
    """What Hypothesis drew in one run."""
    folder.mkdir()
    (folder / "test_it.py").write_text(SEEN)
    run = run_tests(folder, *arguments)
    assert run.returncode == 0, run.stdout + run.stderr
    return (folder / "log").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("storage", ["cold", "unwritable"])
def test_property_tests_need_no_folder_of_hypothesis(tmp_path: Path, storage: str) -> None:
    (tmp_path / "test_it.py").write_text(SEEN)
    (tmp_path / "unwritable").write_text("a file in the place of the folder")
    run = run_tests(tmp_path, storage=tmp_path / storage)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_failure_is_found_again_by_its_seed_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    (tmp_path / "unwritable").write_text("a file in the place of the folder")
    for _ in range(2):
        run = run_tests(tmp_path, "--hypothesis-profile=fresh", "--hypothesis-seed=7", storage=tmp_path / "unwritable")
        assert run.returncode == 1, run.stdout + run.stderr
        assert "number=1000" in run.stdout
        assert "1 failed" in run.stdout


def test_ci_draws_the_same_examples_each_time_and_a_fresh_run_those_of_its_seed(tmp_path: Path) -> None:
    ci = examples(tmp_path / "ci", "--hypothesis-profile=ci")
    assert examples(tmp_path / "ci-again", "--hypothesis-profile=ci") == ci
    fresh = examples(tmp_path / "fresh", "--hypothesis-profile=fresh", "--hypothesis-seed=7")
    assert examples(tmp_path / "same-seed", "--hypothesis-profile=fresh", "--hypothesis-seed=7") == fresh
    other = examples(tmp_path / "other-seed", "--hypothesis-profile=fresh", "--hypothesis-seed=8")
    assert len({str(drawn) for drawn in (ci, fresh, other)}) == 3

"""Property tests on a machine where they never ran, or where nothing can be written; the same examples by a seed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Up to four runs of pytest in one test, on a machine that may be busy.
pytestmark = [pytest.mark.deep, pytest.mark.timeout(150)]
REPOSITORY = Path(__file__).resolve().parents[1]
#: Texts need the tables of Unicode, which take seconds to make.
TEXTS = """
from hypothesis import given, strategies as st

@given(st.text())
def test_any(text):
    assert isinstance(text, str)
"""
SEEN = """
from pathlib import Path
from hypothesis import given, strategies as st

@given(st.binary(), st.integers())
def test_any(data, number):
    with Path(__file__).with_name("log").open("a", encoding="utf-8") as log:
        log.write(f"{data} {number}\\n")
"""
FAILING = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_small(number):
    assert number < 1000
"""


def run_tests(folder: Path, *arguments: str, storage: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`storage` is where Hypothesis keeps its tables and examples, in place of .hypothesis in the repository."""
    (folder / "support").mkdir(exist_ok=True)
    for path in ("conftest.py", "support/zygote.py"):
        shutil.copy(REPOSITORY / "tests" / path, folder / path)
    settings = ["-c", str(REPOSITORY / "setup.cfg"), "--rootdir", str(folder)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, *arguments, str(folder)]
    environment = {**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": str(storage or folder / "storage")}
    return subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment)


def examples(folder: Path, *arguments: str, storage: Path | None = None, fails: bool = False) -> list[str]:
    """What Hypothesis drew in one run, beside a test that fails if `fails`."""
    folder.mkdir()
    (folder / "test_it.py").write_text(SEEN)
    if fails:
        (folder / "test_failing.py").write_text(FAILING)
    run = run_tests(folder, *arguments, storage=storage)
    assert run.returncode == fails, run.stdout + run.stderr
    if fails:
        assert "number=1000" in run.stdout
        assert "1 failed, 1 passed" in run.stdout
    return (folder / "log").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("storage", ["cold", "unwritable"])
def test_property_tests_need_no_folder_of_hypothesis(tmp_path: Path, storage: str) -> None:
    (tmp_path / "test_it.py").write_text(TEXTS)
    (tmp_path / "unwritable").write_text("a file in the place of the folder")
    run = run_tests(tmp_path, storage=tmp_path / storage)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_fresh_run_has_the_examples_and_the_failures_of_its_seed_where_nothing_can_be_written(
    tmp_path: Path,
) -> None:
    unwritable = tmp_path / "unwritable"
    unwritable.write_text("a file in the place of the folder")
    fresh, same_seed, other_seed = (
        examples(
            tmp_path / name, "--hypothesis-profile=fresh", f"--hypothesis-seed={seed}", storage=unwritable, fails=True
        )
        for name, seed in (("fresh", 7), ("same-seed", 7), ("other-seed", 8))
    )
    assert same_seed == fresh
    assert other_seed != fresh

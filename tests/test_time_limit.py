"""A test that hangs is ended, and it is clear which one it was and what each thread was doing.

Each case is a run of pytest of its own, with this project's settings and tests/conftest.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
HEADER = """
import ctypes, threading, pytest

def lock_twice(library):
    mutex = ctypes.create_string_buffer(64)  # all zeros is PTHREAD_MUTEX_INITIALIZER
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def be_stuck():
    threading.Event().wait()
"""


def run_tests(folder: Path, tests: str, *, backstop_seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    (folder / "support").mkdir(exist_ok=True)
    for path in ("conftest.py", "support/zygote.py"):
        shutil.copy(REPOSITORY / "tests" / path, folder / path)
    (folder / "test_it.py").write_text(HEADER + tests)
    settings = [
        "-c",
        str(REPOSITORY / "setup.cfg"),
        "--rootdir",
        str(folder),
        "-o",
        f"backstop_seconds={backstop_seconds}",
    ]
    # Unbuffered: what ends the process writes nothing out.
    command = [sys.executable, "-u", "-m", "pytest", "-v", "-rA", "-p", "no:cacheprovider", *settings, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_every_test_has_a_limit(pytestconfig: pytest.Config) -> None:
    assert float(pytestconfig.getini("timeout")) == 60.0


def test_a_test_that_hangs_fails_with_all_stacks_and_the_next_one_runs(tmp_path: Path) -> None:
    run = run_tests(
        tmp_path,
        """
@pytest.mark.timeout(0.2)
def test_that_waits_for_a_thread():
    thread = threading.Thread(target=be_stuck, name="waits-for-good", daemon=True)
    thread.start()
    thread.join()

def test_behind_it(): pass
""",
    )
    summary = run.stdout.partition("short test summary info")[2]  # above, the stacks may tear a line apart
    assert re.findall(r"^(\w+) \S+::(\w+)", summary, re.MULTILINE) == [
        ("PASSED", "test_behind_it"),
        ("FAILED", "test_that_waits_for_a_thread"),
    ], run.stdout
    assert "Stack of waits-for-good" in run.stdout
    assert "in be_stuck" in run.stdout
    assert "thread.join()" in run.stdout
    assert run.returncode == 1


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"])
def test_a_test_that_hangs_in_c_ends_the_run_with_all_stacks(tmp_path: Path, library: str) -> None:
    """`PyDLL` calls C with the interpreter's lock held: no Python code can run in any thread."""
    run = run_tests(
        tmp_path,
        f"""
@pytest.mark.timeout(0.2)
def test_that_is_stuck_in_c():
    threading.Thread(target=be_stuck, daemon=True).start()
    lock_twice(ctypes.{library}(None))
""",
        backstop_seconds=0.5,
    )
    assert "test_that_is_stuck_in_c" in run.stdout
    assert "Timeout (0:00:00.7" in run.stderr
    assert "in test_that_is_stuck_in_c" in run.stderr
    assert "in be_stuck" in run.stderr
    assert run.returncode == 1


def test_cleaning_up_that_hangs_after_a_failed_test_ends_the_run(tmp_path: Path) -> None:
    run = run_tests(
        tmp_path,
        """
@pytest.fixture
def room():
    yield
    be_stuck()

@pytest.mark.timeout(0.2)
def test_in_a_room(room): raise ValueError("failed")
""",
        backstop_seconds=0.5,
    )
    assert "test_in_a_room" in run.stdout
    assert "in room" in run.stderr
    assert run.returncode == 1


def test_cleaning_up_that_hangs_after_an_error_of_pytest_itself_ends_the_run(tmp_path: Path) -> None:
    """Which a time limit becomes that is raised in the midst of it."""
    run = run_tests(
        tmp_path,
        """
class Late:
    def pytest_runtest_logreport(self, report):
        raise ValueError("in the midst of pytest")

@pytest.fixture
def room(pytestconfig):
    pytestconfig.pluginmanager.register(Late())
    yield
    be_stuck()

@pytest.mark.timeout(3)  # pytest is to come so far, on a busy machine too
def test_in_a_room(room): pass
""",
        backstop_seconds=0.5,
    )
    assert "INTERNALERROR" in run.stdout
    assert "in room" in run.stderr
    assert run.returncode == 1


def test_a_thread_left_behind_does_not_hold_the_process(tmp_path: Path) -> None:
    leaves_one = "def test_that_leaves_one(): threading.Thread(target=be_stuck).start()\n"
    run = run_tests(tmp_path, leaves_one, backstop_seconds=0.5)
    assert "1 passed" in run.stdout
    assert "in be_stuck" in run.stderr
    assert run.returncode == 1


def test_a_test_within_its_limit_is_left_alone(tmp_path: Path) -> None:
    run = run_tests(
        tmp_path,
        """
@pytest.mark.timeout(30)
def test_that_ends(): pass

@pytest.mark.timeout(0)
def test_without_a_limit(): pass
""",
    )
    assert "2 passed" in run.stdout
    assert (run.returncode, run.stderr) == (0, "")


def test_a_property_has_the_time_to_make_its_failing_example_smaller(tmp_path: Path) -> None:
    run = run_tests(
        tmp_path,
        """
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

@given(st.none())
def test_property(nothing): pass

@pytest.mark.timeout(20)
@given(st.none())
def test_property_with_a_limit(nothing): pass

class Machine(RuleBasedStateMachine):
    @rule()
    def step(self): pass

TestMachine = Machine.TestCase

def test_others(request):
    limits = {item.name: item.get_closest_marker("timeout") for item in request.session.items}
    assert {name: limit and limit.args for name, limit in limits.items()} == {
        "test_property": (400,), "test_property_with_a_limit": (20,), "runTest": (400,), "test_others": None
    }
""",
    )
    assert "4 passed" in run.stdout, run.stdout

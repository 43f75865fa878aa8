"""Helpers: processes of our own code that answer over their pipes, within a deadline or not at all."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.helpers import deaf, half_an_answer, no_word, reverse

from callboard.actors.processes.spawning import Helper

LARGE = 3_000_000


@pytest.fixture
def helpers() -> Iterator[list[Helper]]:
    made: list[Helper] = []
    yield made
    for helper in made:
        helper.close()


@pytest.mark.parametrize("size", [0, 1, LARGE])
def test_an_answer_arrives_whole(helpers: list[Helper], size: int) -> None:
    helper = Helper(reverse, quiet=True)
    helpers.append(helper)
    question = os.urandom(size)
    assert helper.ask(question, 30) == question[::-1]
    assert helper.ask(b"abc", 30) == b"cba"


@pytest.mark.parametrize(
    ("main", "size", "error"),
    [
        (half_an_answer, 1, TimeoutError),
        (deaf, LARGE, TimeoutError),
        (no_word, 1, EOFError),
        (no_word, LARGE, EOFError),
    ],
)
def test_without_an_answer_the_deadline_holds(
    helpers: list[Helper], main: object, size: int, error: type[Exception]
) -> None:
    helper = Helper(main)  # type: ignore[arg-type]
    helpers.append(helper)
    with pytest.raises(error):
        helper.ask(b"x" * size, 2.0 if error is TimeoutError else 30.0)


def test_a_helper_ends_when_its_caller_closes_its_end() -> None:
    helper = Helper(reverse, quiet=True)
    assert helper.leave(30) == 0
    assert helper.close() == 0


def test_a_helper_that_is_dropped_leaves_no_process_behind() -> None:
    """As by an actor that was killed. (What is left to the collector is a warning, which fails the test.)"""
    helper = Helper(deaf, quiet=True)
    process = helper._process.pid
    del helper
    gc.collect()
    with pytest.raises(ChildProcessError):
        os.waitpid(process, os.WNOHANG)


def test_closing_ends_a_helper_that_hangs() -> None:
    helper = Helper(deaf)
    assert helper.close() == -signal.SIGKILL
    assert helper.close() == -signal.SIGKILL


FROZEN = """
import sys
sys.frozen = True  # as freezers set it
from callboard.actors.processes.spawning import Helper, freeze_support, interpreter, why_not
"""


def run_frozen(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FROZEN + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_frozen_program_that_does_not_expect_children_starts_none() -> None:
    """It would start itself, which would start itself."""
    ran = run_frozen("print(why_not())\ninterpreter('print(1)')")
    assert "need `callboard.freeze_support()` as the first statement of its main module; or give the tool" in ran.stdout
    assert "OSError: [Errno 8] child processes of a frozen program need `callboard.freeze_support()`" in ran.stderr


def test_a_frozen_program_is_started_again_for_its_children() -> None:
    code = (
        "freeze_support()\nprint(why_not() == '', interpreter('print(1)')[:2] == [sys.executable, '--callboard-child'])"
    )
    assert run_frozen(code).stdout == "True True\n"


def test_in_the_child_of_a_frozen_program_only_the_code_runs() -> None:
    code = "import sys\nprint(__name__, sys.argv[1:])"
    ran = run_frozen("freeze_support()\nprint('the program itself')", "--callboard-child", code)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "__main__ []\n", "")


def test_freeze_support_does_nothing_elsewhere() -> None:
    code = "from callboard import freeze_support\nfreeze_support()\nprint('the program itself')"
    ran = subprocess.run(
        [sys.executable, "-c", code, "--callboard-child", "print(1)"], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "the program itself\n"

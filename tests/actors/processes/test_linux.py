"""What is asked of the kernel."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard.actors.processes.linux import children, kill_each
from callboard.actors.processes.spawning import interpreter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's own files")


@pytest.fixture
def child() -> Iterator[int]:
    sleeper = subprocess.Popen(["sleep", "1000"], env={**os.environ, "A_MARK": "of its own"})
    yield sleeper.pid
    sleeper.kill()
    sleeper.wait()


def test_children_are_found_also_where_the_kernel_does_not_list_them(
    child: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_open: Callable[..., Any] = open

    def without_children(path: str, *rest: Any) -> Any:
        if path.endswith("/children"):
            raise FileNotFoundError(path)
        return plain_open(path, *rest)

    listed = children()
    monkeypatch.setattr(builtins, "open", without_children)
    assert child in listed
    assert children() >= listed, "those of other threads too"


def test_processes_are_killed_each_and_those_that_have_ended_do_not_matter(child: int) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert kill_each([child, gone.pid]) == set()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_root_without_capabilities_has_none() -> None:
    """In a process of its own, which cannot take them back."""
    code = (
        "from callboard.actors.processes.linux import capabilities, keep_capabilities\n"
        "inheritable, permitted, effective = capabilities()\n"
        "keep_capabilities((0, 0, 0))\n"
        "print(capabilities())"
    )
    assert subprocess.check_output(interpreter(code), text=True).strip() == "(0, 0, 0)"


def test_a_process_that_may_only_signal_its_own() -> None:
    code = (
        "import os, signal\n"
        "from callboard.actors.processes.linux import signal_only_own\n"
        "print(signal_only_own())\n"
        "try:\n    os.kill(os.getppid(), 0)\n"
        "except PermissionError:\n    print('refused')\n"
        "child = os.fork()\n"
        "if child == 0:\n    signal.pause()\n"
        "os.kill(child, signal.SIGKILL)\n"
        "print(os.waitpid(child, 0)[1])"
    )
    can, *rest = subprocess.check_output(interpreter(code), text=True).split()
    if can == "False":
        pytest.skip("this kernel cannot keep a process from signalling others")
    assert rest == ["refused", "9"]

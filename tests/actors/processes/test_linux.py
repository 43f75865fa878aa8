"""What is asked of the kernel."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard.actors.processes.linux import children, marked

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


def test_processes_are_found_by_a_mark_in_their_environment(child: int) -> None:
    assert marked("A_MARK=of its own") == {child}
    assert marked("A_MARK=of") == frozenset()

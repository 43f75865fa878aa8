"""The processes that are started beside a loop, which may be closed before they have started."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.conditions import wait_until

from callboard.actors.processes import init, launch
from callboard.actors.processes.launch import Heard, InitProcess, KeeperEnded
from callboard.actors.processes.spawning import interpreter
from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.chaos.beside import MARK, marked_processes
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool


class Slow:
    """In place of `subprocess.Popen`: it starts when it may."""

    def __init__(self) -> None:
        self.began, self.may_start = threading.Event(), threading.Event()
        self.started: list[subprocess.Popen[bytes]] = []
        self._start = subprocess.Popen.__init__

    def init(self, process: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        self.began.set()
        self.may_start.wait(20)
        self._start(process, *arguments, **options)
        self.started.append(process)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow()
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *given, **options: made.init(*given, **options))
    yield made
    made.may_start.set()


def launching() -> threading.Thread:
    (found,) = (each for each in threading.enumerate() if each.name == "callboard-launch")
    return found


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "open"])
def test_a_process_whose_loop_is_closed_before_it_has_started_is_waited_for(slow: Slow, is_closed: bool) -> None:
    posted: list[Heard | KeeperEnded] = []
    loop = asyncio.new_event_loop()
    made = InitProcess(loop, 1, 1 << 30, {}, False, posted.append)
    thread = launching()
    assert slow.began.wait(20)
    if is_closed:  # the runtime has stopped it; else the loop has ended before it could
        made.close()
    loop.close()
    slow.may_start.set()
    if not is_closed:
        made._connection._ours.close()  # as at the end of the process
    thread.join(20)
    assert not thread.is_alive()
    (process,) = slow.started
    assert process.returncode is not None
    assert posted == []


@tool
def rest() -> None:
    pass


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_stop_does_not_wait_for_processes_that_are_being_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """They would hear of it when they have loaded all that tools need; here, never. Nothing is left of them."""
    mark, hang = f"loading-{os.getpid()}", "__import__('signal').pause()\n"

    def hangs(code: str) -> list[str]:
        before, main, after = code.partition(f"from {init.__name__} ")
        return interpreter(hang + code if where == "before" else before + hang + main + after)

    monkeypatch.setattr(launch, "interpreter", hangs)
    monkeypatch.setattr(launch, "CLOSE_SECONDS", 3_600)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ToolStage(ProcessOptions(environment={MARK: mark})) as stage:
        stage.start(rest, "{}", 30)
        wait_until(lambda: list(tmp_path.iterdir()) if where == "after" else marked_processes(mark))
    assert marked_processes(mark) == []
    assert not list(tmp_path.iterdir())


def test_without_a_thread_nothing_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    loop = asyncio.new_event_loop()
    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no thread for callboard-launch: this host can start no more") as raised:
        InitProcess(loop, 1, 1 << 30, {}, False, [].append)
    assert raised.value.errno == errno.EAGAIN
    assert sorted(os.listdir("/proc/self/fd")) == before
    loop.close()

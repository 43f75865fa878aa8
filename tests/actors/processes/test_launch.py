"""The processes that are started beside a loop, which may be closed before they have started."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from callboard.actors.processes.launch import Heard, InitProcess, KeeperEnded


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

"""With `reuse=True`: what of a call's changes is put back before the next, and when its process is not used again."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.actors.processes.supply import ProcessOptions
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.protocol.events import ToolCallCompleted


@pytest.fixture
def stage() -> Iterator[ToolStage]:
    with ToolStage(ProcessOptions(max_children=1, namespaces=False)) as stage:
        yield stage


def state() -> list[object]:
    return [
        os.getcwd(),
        dict(os.environ),
        os.umask(0o077),
        list(sys.path),
        sys.getrecursionlimit(),
        [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        threading.active_count(),
        sys.gettrace() is None,
        signal.getitimer(signal.ITIMER_REAL)[0] > 0,
    ]


def change_everything() -> None:
    os.chdir("/")
    os.environ["LEFT"] = "over"
    del os.environ["PATH"]
    os.umask(0)
    sys.path.clear()
    sys.setrecursionlimit(99)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.alarm(60)
    sys.settrace(lambda *_: None)


#: What a call may do after it has looked around.
HARMS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "changes everything": change_everything,
    "closes its output": lambda: sys.stdout.close(),
    "redirects its output": lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 1),
    "leaves a thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
}


@tool(reuse=True)
def work(harm: str) -> list[object]:
    sys.stdout.write("looked\n")
    found = [os.getpid(), state()]
    HARMS[harm]()
    return found


def worked(stage: ToolStage, harm: str = "nothing") -> tuple[int, object]:
    """The process that it ran in, and what it found there."""
    event = stage.call(work, harm=harm)
    assert isinstance(event, ToolCallCompleted), event
    assert event.output == "looked\n"
    process, found = json.loads(event.content)
    return process, found


def test_what_a_call_changes_is_put_back_and_its_process_used_again(stage: ToolStage) -> None:
    before = worked(stage)
    assert worked(stage, "changes everything") == before
    assert worked(stage) == before


def test_a_host_whose_folder_is_gone_has_tools_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(reuse=True)
    def pid() -> int:
        return os.getpid()

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with ToolStage() as stage:
        first, second = stage.call(pid), stage.call(pid)
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(second, ToolCallCompleted)
    assert first.content == second.content


@pytest.mark.parametrize("harm", ["closes its output", "redirects its output"])
def test_without_its_output_a_process_is_replaced(stage: ToolStage, harm: str) -> None:
    process, _ = worked(stage, harm)
    assert worked(stage)[0] != process


def test_a_thread_that_a_call_has_left_ends_with_it(stage: ToolStage) -> None:
    process, _ = worked(stage, "leaves a thread")
    assert not Path(f"/proc/{process}").exists(), "gone before the result is told"
    assert worked(stage)[0] != process

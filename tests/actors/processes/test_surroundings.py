"""A tool leaves nothing behind for the next one in its process, whatever it has changed or started."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.process import ProcessOptions
from callboard.protocol.events import ToolCallCompleted


@pytest.fixture
def stage() -> Iterator[ToolStage]:
    with ToolStage(ProcessOptions(max_children=1)) as stage:
        yield stage


@tool
def look() -> list[object]:
    sys.stdout.write("looked\n")
    return [
        os.getcwd(),
        dict(os.environ),
        os.umask(0o077),
        sys.path,
        sys.getrecursionlimit(),
        [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        threading.active_count(),
        sys.gettrace() is None,
        signal.getitimer(signal.ITIMER_REAL),
    ]


@tool
def pid() -> int:
    return os.getpid()


@tool
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


@tool
def close_output() -> None:
    sys.stdout.close()


@tool
def redirect_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@tool
def leave_a_thread() -> int:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return os.getpid()


def result_of(stage: ToolStage, wanted: Tool) -> str:
    event = stage.call(wanted)
    assert isinstance(event, ToolCallCompleted), event
    return event.content


def test_what_a_tool_changes_is_put_back_and_its_process_used_again(stage: ToolStage) -> None:
    before, process = result_of(stage, look), result_of(stage, pid)
    assert result_of(stage, change_everything) == "null"
    assert (result_of(stage, look), result_of(stage, pid)) == (before, process)


def test_a_host_whose_folder_is_gone_has_tools_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with ToolStage() as stage:
        assert result_of(stage, pid) == result_of(stage, pid)


@pytest.mark.parametrize("harm", [close_output, redirect_output])
def test_without_its_output_a_process_is_replaced(stage: ToolStage, harm: Tool) -> None:
    process = result_of(stage, pid)
    assert result_of(stage, harm) == "null"
    event = stage.call(look)
    assert event.output == "looked\n"
    assert result_of(stage, pid) != process


def test_a_thread_that_a_tool_has_left_ends_with_its_call(stage: ToolStage) -> None:
    process = result_of(stage, leave_a_thread)
    assert not Path(f"/proc/{process}").exists(), "gone before anybody is told the result"
    assert result_of(stage, pid) != process

"""Thread workers: for the host's own objects. What cannot be killed is abandoned and counted."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest

from callboard.actors.tools import tool
from callboard.actors.worker.stage import ToolStage
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.tools import FailureCode


@pytest.fixture
def stage() -> Iterator[ToolStage]:
    with ToolStage() as stage:
        yield stage


def test_a_tool_reaches_objects_of_the_host(stage: ToolStage) -> None:
    seen: list[str] = []

    @tool(isolation="thread")
    def remember(word: str) -> int:
        seen.append(word)
        return len(seen)

    first, second = stage.call(remember, word="a"), stage.call(remember, word="b")
    assert isinstance(first, ToolCallCompleted)
    assert isinstance(second, ToolCallCompleted)
    assert (first.content, second.content, seen) == ("1", "2", ["a", "b"])


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("no")])
def test_whatever_it_raises_is_one_failure(stage: ToolStage, error: BaseException) -> None:
    @tool(isolation="thread")
    def die() -> None:
        raise error

    event = stage.call(die)
    assert isinstance(event, ToolCallFailed)
    expected = FailureCode.CRASHED if isinstance(error, SystemExit) else FailureCode.TOOL_ERROR
    assert event.failure.code is expected


def test_at_its_deadline_the_call_ends_and_the_thread_is_counted_until_it_returns(stage: ToolStage) -> None:
    release = threading.Event()

    @tool(isolation="thread")
    def hang() -> None:
        release.wait(20)

    @tool(isolation="thread")
    def brief() -> int:
        return 1

    timed_out = stage.start(hang, "{}", timeout_seconds=0.1)
    cancelled = stage.start(hang, "{}", timeout_seconds=30)
    stage.stop(cancelled)
    assert isinstance(cancelled.wait(), ToolCallCancelled)
    assert isinstance(timed_out.wait(), ToolCallTimedOut)
    assert stage.held_threads == {"hang": 2}
    release.set()
    deadline = time.monotonic() + 5
    while stage.held_threads[hang.name] and time.monotonic() < deadline:
        assert isinstance(stage.call(brief), ToolCallCompleted)
    assert stage.held_threads == {"hang": 0}
    assert len(timed_out.events) == len(cancelled.events) == 2


def test_an_abandoned_thread_that_returns_makes_room(stage: ToolStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["callboard.actors.worker.thread"], "MAX_THREADS", 1)
    release = threading.Event()

    @tool(isolation="thread")
    def hang() -> bool:
        return release.wait(20)

    assert isinstance(stage.start(hang, "{}", timeout_seconds=0.05).wait(), ToolCallTimedOut)
    waiting = stage.start(hang, "{}", timeout_seconds=10)
    release.set()
    assert isinstance(waiting.wait(), ToolCallCompleted)

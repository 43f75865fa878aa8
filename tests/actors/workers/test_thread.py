"""Thread workers: for the host's own objects. What cannot be killed is abandoned and counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from support.patience import timed_out_while_hanging

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.actors.workers.kinds import THREADS
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.tools import FailureCode

Until = Callable[[Callable[[], bool]], None]


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


def test_at_its_deadline_the_call_ends_and_the_thread_is_counted_until_it_returns(
    stage: ToolStage, until: Until
) -> None:
    release, hanging = threading.Event(), threading.Semaphore(0)

    @tool(isolation="thread")
    def hang() -> None:
        hanging.release()
        release.wait(20)

    cancelled = stage.start(hang, "{}", timeout_seconds=30)
    assert hanging.acquire(timeout=20)
    stage.stop(cancelled)
    assert isinstance(cancelled.wait(), ToolCallCancelled)
    timed_out = timed_out_while_hanging(
        lambda seconds: stage.start(hang, "{}", seconds), lambda _: hanging.acquire(blocking=False)
    )
    assert stage.held_threads == {"hang": 2}
    release.set()
    until(lambda: stage.held_threads == {"hang": 0})
    assert len(timed_out.events) == len(cancelled.events) == 2


def test_an_abandoned_thread_that_returns_makes_room() -> None:
    release = threading.Event()

    @tool(isolation="thread")
    def hang() -> bool:
        return release.wait(20)

    with ToolStage(kind=lambda _: replace(THREADS, max_workers=1)) as stage:
        assert isinstance(stage.start(hang, "{}", timeout_seconds=0.05).wait(), ToolCallTimedOut)
        waiting = stage.start(hang, "{}", timeout_seconds=10)
        release.set()
        assert isinstance(waiting.wait(), ToolCallCompleted)

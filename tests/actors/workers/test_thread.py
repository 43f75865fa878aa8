"""Thread workers: for the host's own objects. What cannot be killed is abandoned and counted."""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType

import pytest
from msgspec.structs import replace
from support.patience import timed_out_while_hanging
from support.strikes import Late, Strike

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import tool
from callboard.actors.workers import thread
from callboard.actors.workers.kinds import THREADS
from callboard.actors.workers.messages import RunCall
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.tools import FailureCode

Until = Callable[[Callable[[], bool]], None]


def of_worker(frame: FrameType) -> bool:
    """Not of the kernel's mailboxes (tests/actors/kernel/ is for them)."""
    return "/workers/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename


BETWEEN_CALLS = (of_worker, lambda frame: frame.f_code.co_name == "_result")
MANY_POINTS = 5
"""There are more of them."""


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


# -- exceptions that come when their call is over


@pytest.fixture
def stage_of_one() -> Iterator[ToolStage]:
    with ToolStage(kind=lambda _: replace(THREADS, max_workers=1)) as stage:
        yield stage


def test_an_exception_that_comes_between_two_calls_costs_neither(stage_of_one: ToolStage) -> None:
    """At each point at which CPython looks for one: from the end of a call's code to the begin of the next one's."""
    strike = Strike(0, *BETWEEN_CALLS)

    @tool(isolation="thread")
    def over() -> str:
        strike.arm()
        return "over"

    @tool(isolation="thread")
    def innocent() -> str:
        sys.settrace(None)
        return "innocent"

    found = []
    for at in itertools.count():
        strike = Strike(at, *BETWEEN_CALLS)
        events = [stage_of_one.call(over), stage_of_one.call(innocent)]
        if not strike.has_struck:
            break
        if not isinstance(events[1], ToolCallCompleted):
            found.append((strike.where, events))
    assert not found
    assert at > MANY_POINTS


def test_one_that_really_comes_from_another_thread_costs_no_innocent(stage_of_one: ToolStage, until: Until) -> None:
    @tool(isolation="thread")
    def identify() -> int:
        return threading.get_ident()

    events = []
    for _ in range(20):
        event = stage_of_one.call(identify)
        assert isinstance(event, ToolCallCompleted)
        ident = int(event.content)
        until(partial(waits, ident))
        raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Late))
        assert raised == 1, "the thread is there"
        events.append(event)
    assert len({event.content for event in events}) == 1, "one thread has survived them all"


def test_a_thread_that_has_died_is_replaced(stage_of_one: ToolStage, until: Until) -> None:
    threads: list[threading.Thread] = []

    @tool(isolation="thread")
    def leave() -> str:
        threads.append(threading.current_thread())
        return "left"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread._Thread, "run", lambda self: self._take(self._desk, *wait_for_order(self._desk)))
        assert isinstance(stage_of_one.call(leave), ToolCallCompleted)
    until(lambda: not threads[0].is_alive())
    assert isinstance(stage_of_one.call(leave), ToolCallCompleted)
    assert threads[0] is not threads[1]


def waits(ident: int) -> bool:
    return sys._current_frames()[ident].f_code.co_name == "wait"


def wait_for_order(desk: thread._Desk) -> tuple[int, RunCall]:
    while desk.order is None:
        desk.wait()
    return desk.order

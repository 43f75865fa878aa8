"""When an asker looks whether its request is lost, with a clock and a loop that the test holds."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from callboard.actors.kernel.scheduler import FROZEN_SECONDS
from callboard.actors.requests.backstop import ANSWER_GRACE_SECONDS, LOOK_SECONDS, LOST_AFTER, Backstop


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_while_the_time_runs_it_is_lost_some_seconds_after_the_deadline(clock: Clock) -> None:
    backstop = Backstop(10.0)
    assert backstop.look_seconds == 10.0 + ANSWER_GRACE_SECONDS
    clock.now += 10.0 + ANSWER_GRACE_SECONDS - 0.1
    assert not backstop.is_lost()
    clock.now += 0.1
    assert backstop.is_lost()


def test_a_process_that_was_stopped_beyond_the_deadline_has_a_moment_when_it_goes_on(clock: Clock) -> None:
    backstop = Backstop(10.0)
    for _ in range(2):
        clock.now += backstop.look_seconds + FROZEN_SECONDS + 3.0
        assert not backstop.is_lost()
        assert backstop.look_seconds == pytest.approx(ANSWER_GRACE_SECONDS)
    clock.now += backstop.look_seconds
    assert backstop.is_lost()


def test_it_follows_a_deadline_that_moves(clock: Clock) -> None:
    backstop = Backstop(10.0)
    backstop.deadline_moved(clock.now + 50.0)
    clock.now += 20.0
    assert not backstop.is_lost()
    assert backstop.look_seconds == pytest.approx(30.0 + ANSWER_GRACE_SECONDS)
    clock.now += 30.0 + ANSWER_GRACE_SECONDS
    assert backstop.is_lost()


def test_while_it_only_waits_it_may_take_days_as_long_as_the_loop_answers(clock: Clock) -> None:
    backstop = Backstop(10.0, lambda answer: answer())
    backstop.deadline_moved(None)
    for _ in range(10_000):
        assert backstop.look_seconds == LOOK_SECONDS
        clock.now += LOOK_SECONDS
        assert not backstop.is_lost()


def test_a_loop_that_nobody_can_look_at_is_not_lost(clock: Clock) -> None:
    backstop = Backstop(10.0)
    backstop.deadline_moved(None)
    for _ in range(LOST_AFTER + 2):
        assert backstop.look_seconds == LOOK_SECONDS
        assert not backstop.is_lost()


def test_a_loop_that_answers_no_look_is_lost(clock: Clock) -> None:
    asked: list[Callable[[], object]] = []
    backstop = Backstop(10.0, asked.append)
    backstop.deadline_moved(None)
    assert [backstop.is_lost() for _ in range(LOST_AFTER)] == [False] * LOST_AFTER
    assert backstop.look_seconds == ANSWER_GRACE_SECONDS, "a process that was stopped and goes on has a moment"
    asked[-1]()
    assert not backstop.is_lost()
    assert [backstop.is_lost() for _ in range(LOST_AFTER)] == [False, True]


def test_a_loop_that_has_ended_is_lost(clock: Clock) -> None:
    def closed(_: Callable[[], object]) -> None:
        raise RuntimeError("Event loop is closed")

    backstop = Backstop(10.0, closed)
    backstop.deadline_moved(None)
    assert backstop.is_lost()

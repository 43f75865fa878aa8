"""Time in which the process was stopped: what lies ready comes before timers, and those of `lived` time wait longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel.scheduler import FROZEN_SECONDS, READ_SECONDS, FrozenTime, LoopTimer


class Clock:
    """A time, and what of it the processor worked for us."""

    def __init__(self) -> None:
        self.at = 100.0
        self.used = 1.0

    def pass_by(self, seconds: float, used: float = 0.0) -> None:
        self.at += seconds
        self.used += used


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def frozen(clock: Clock) -> FrozenTime:
    return FrozenTime(lambda: clock.at, lambda: clock.used)


@pytest.mark.parametrize(
    ("passes", "used", "gap"),
    [
        (4.0, 0.0, 4.0),
        (FROZEN_SECONDS, 0.0, FROZEN_SECONDS),
        (3.0, 1.0, 2.0),
        (0.05, 0.01, 0.0),
        (FROZEN_SECONDS - 0.01, 0.0, 0.0),  # a busy machine
        (4.0, 3.9, 0.0),  # code that holds the GIL
        (4.0, 8.0, 0.0),  # two threads of it
    ],
)
def test_a_gap_is_time_in_which_the_process_had_no_processor(
    clock: Clock, frozen: FrozenTime, passes: float, used: float, gap: float
) -> None:
    frozen.look()
    set_at = clock.at
    clock.pass_by(passes, used)
    assert frozen.since(set_at) == pytest.approx(gap)
    assert frozen.since(set_at) == pytest.approx(gap), "asked again, it is the same gap"
    assert frozen.since(clock.at) == 0.0, "what is set now has lost nothing"


def test_before_anyone_looks_and_when_nobody_does_any_more_there_are_no_gaps(clock: Clock, frozen: FrozenTime) -> None:
    clock.pass_by(10.0)
    assert frozen.since(0.0) == 0.0
    frozen.look()
    frozen.forget()
    clock.pass_by(10.0)
    assert frozen.since(0.0) == 0.0
    frozen.look()
    assert frozen.since(0.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 2)), max_size=30))
def test_each_gap_is_counted_once_and_only_as_far_as_it_lies_behind(steps: list[tuple[float, float]]) -> None:
    clock = Clock()
    frozen = FrozenTime(lambda: clock.at, lambda: clock.used)
    frozen.look()
    set_at, expected = [clock.at], [0.0]
    for passes, used in steps:
        clock.pass_by(passes, min(used, passes))
        gap = passes - min(used, passes)
        gap = gap if frozen.look() else 0.0
        expected = [each + gap for each in expected]
        set_at.append(clock.at)
        expected.append(0.0)
    for at, seconds in zip(set_at, expected, strict=True):
        assert frozen.since(at) == pytest.approx(seconds, abs=1e-6)


class FakeScheduler:
    """As much of a LoopScheduler as a timer needs."""

    timer_context = None

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.frozen = FrozenTime(lambda: clock.at, lambda: clock.used)
        self.frozen.look()
        self.frozen_since = self.frozen.since
        self.loop: Any = self
        self.armed: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self.clock.at

    def call_later(self, seconds: float, fire: Callable[[], None], *, context: object) -> asyncio.TimerHandle | None:
        self.armed.append((seconds, fire))
        return None

    def guarded(self, run: Callable[[], object]) -> None:
        run()

    def next(self) -> float:
        """Let the time of the armed timer come; how long that takes."""
        seconds, fire = self.armed.pop()
        self.clock.pass_by(seconds, seconds)
        fire()
        return seconds


def timer(scheduler: FakeScheduler, seconds: float, *, lived: bool) -> list[float]:
    """When it ran."""
    ran: list[float] = []
    set_at = scheduler.clock.at
    LoopTimer(scheduler, set_at + seconds, lambda: ran.append(scheduler.clock.at), lived, set_at).arm()  # type: ignore[arg-type]
    return ran


def test_a_timer_of_lived_time_is_put_off_by_the_gap_and_by_each_later_one(clock: Clock) -> None:
    scheduler = FakeScheduler(clock)
    ran = timer(scheduler, 2.0, lived=True)
    clock.pass_by(1.0, 1.0)
    scheduler.frozen.look()
    clock.pass_by(4.0)  # stopped from 101 to 105
    scheduler.armed[0] = (0.0, scheduler.armed[0][1])
    scheduler.next()
    assert not ran
    assert scheduler.armed[0][0] == pytest.approx(1.0), "it had one second left"
    clock.pass_by(8.0)
    scheduler.armed[0] = (0.0, scheduler.armed[0][1])
    scheduler.next()
    assert not ran
    assert scheduler.next() == pytest.approx(1.0)
    assert ran == [pytest.approx(114.0)]


def test_any_other_timer_lets_what_lies_ready_come_first(clock: Clock) -> None:
    scheduler = FakeScheduler(clock)
    ran = timer(scheduler, 2.0, lived=False)
    clock.pass_by(6.0)
    scheduler.armed[0] = (0.0, scheduler.armed[0][1])
    scheduler.next()
    assert not ran
    assert scheduler.next() == pytest.approx(READ_SECONDS)
    assert ran == [pytest.approx(106.0 + READ_SECONDS)]


@pytest.mark.parametrize("lived", [True, False])
def test_without_a_gap_a_timer_runs_when_it_is_due(clock: Clock, lived: bool) -> None:
    scheduler = FakeScheduler(clock)
    ran = timer(scheduler, 2.0, lived=lived)
    scheduler.next()
    assert ran == [102.0]

"""Schedules: what PCT promises, that a replay is the same run, and the fewest deviations that still fail."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel import Actor, ActorSystem, Ref
from callboard.actors.testing.schedules import pct, replay, smallest
from callboard.actors.testing.simulation import Schedule, SimulatedScheduler, fifo, uniform


class Counted(Actor):
    """Sends itself what is left of its count."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.label = name
        self.log = log

    def on_receive(self, message: Any) -> None:
        self.log.append(self.label)
        if message > 1:
            self.ref.tell(message - 1)


def ran(schedule: Schedule, count: int = 5) -> tuple[list[str], SimulatedScheduler]:
    simulation = SimulatedScheduler(schedule)
    system = ActorSystem(simulation)
    log: list[str] = []
    for name in "abc":
        system.spawn(lambda name=name: Counted(name, log), name).tell(count)  # type: ignore[misc]
    simulation.run_until_idle()
    return log, simulation


def test_fifo_takes_turns() -> None:
    log, simulation = ran(fifo)
    assert log == list("abc" * 5)
    assert simulation.deviations == []


def test_pct_of_depth_one_runs_each_actor_as_far_as_it_goes() -> None:
    orders = {"".join(ran(pct(seed, 1))[0]) for seed in range(60)}
    assert orders == {a * 5 + b * 5 + c * 5 for a in "abc" for b in "abc" for c in "abc" if len({a, b, c}) == 3}


def test_each_further_depth_of_pct_is_one_more_change_of_actor() -> None:
    for depth in (1, 2, 3, 4):
        for seed in range(60):
            log, _ = ran(pct(seed, depth, steps=18))
            switches = sum(one != other for one, other in pairwise(log))
            assert switches <= 2 + (depth - 1)


def test_pct_finds_what_needs_one_late_change_at_least_as_often_as_promised_and_uniform_choice_hardly_can() -> None:
    """The fault: b's first message comes after a's 14th and before its 15th."""
    runs, count, actors = 1_500, 15, 3
    steps = actors * (count + 1)

    def is_hit(schedule: Schedule) -> bool:
        log, _ = ran(schedule, count)
        return log[: log.index("b")].count("a") == count - 1

    assert sum(is_hit(pct(seed, 2, steps)) for seed in range(runs)) >= runs / (actors * steps)
    assert sum(is_hit(uniform(seed)) for seed in range(runs)) <= 1


@pytest.mark.parametrize(("depth", "steps"), [(0, 10), (2, 0)])
def test_pct_needs_a_depth_and_steps(depth: int, steps: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        pct(1, depth, steps)


@given(st.integers(0, 1000), st.booleans())
def test_the_deviations_from_fifo_are_the_whole_schedule(seed: int, is_pct: bool) -> None:
    log, simulation = ran(pct(seed, 3, 18) if is_pct else uniform(seed))
    again, replayed = ran(replay((deviation.step, deviation.index) for deviation in simulation.deviations))
    assert again == log
    assert replayed.trace == simulation.trace
    assert replayed.deviations == simulation.deviations


def test_a_deviation_that_no_longer_fits_is_ignored() -> None:
    assert ran(replay([(4, 99)]))[0] == ran(fifo)[0]


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60), max_size=4))
def test_the_smallest_of_what_fails_is_exactly_what_it_needs(noise: set[int], needed: set[int]) -> None:
    def fails(items: Sequence[int]) -> bool:
        return needed <= set(items)

    found, runs = smallest(sorted(noise | needed), fails)
    assert set(found) == needed
    assert runs <= 400


def test_a_clock_that_jumps_makes_timers_due_without_running_them_in_between() -> None:
    simulation = SimulatedScheduler(fifo)
    seen: list[tuple[str, float]] = []

    def note(what: str) -> None:
        seen.append((what, simulation.now()))

    simulation.call_at(1.0, lambda: note("before"))
    simulation.call_at(2.0, lambda: simulation.jump(60.0))
    simulation.call_at(10.0, lambda: note("meanwhile"))
    simulation.call_at(30.0, lambda: note("meanwhile, later"))
    simulation.call_at(63.0, lambda: note("after"))
    simulation.run_until_idle()
    assert seen == [("before", 1.0), ("meanwhile", 62.0), ("meanwhile, later", 62.0), ("after", 63.0)]
    with pytest.raises(ValueError, match="never goes back"):
        simulation.jump(-1.0)


def test_monitors_of_one_actor_fire_in_the_order_in_which_they_were_set() -> None:
    simulation = SimulatedScheduler(fifo)
    system = ActorSystem(simulation)
    order: list[int] = []
    target: Ref = system.spawn(Actor, "target")
    simulation.run_until_idle()
    for number in range(50):
        system.watch(target, lambda _, number=number: order.append(number))  # type: ignore[misc]
    target.stop()
    simulation.run_until_idle()
    assert order == list(range(50))

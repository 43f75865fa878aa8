"""How many runs it takes to find an ordering fault, by uniform random choice and by PCT.

    python benchmarks/schedules.py           # 20 searches a fault and schedule, each of at most 2,000 runs

Eight small actor systems, each with one planted fault that shows only in some orders; FIFO shows none of them. For each
schedule: the median number of runs until the fault shows, and how many of the searches found it. `steps` is how long a
run is, `bound` the mean number of runs that PCT promises for a fault of this depth: n * steps ** (depth - 1).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from callboard.actors.kernel import Actor, ActorSystem, Ref
from callboard.actors.testing.schedules import pct
from callboard.actors.testing.simulation import Schedule, SimulatedScheduler, fifo, uniform

SEARCHES, MOST_RUNS = 20, 2_000


class Store(Actor):
    """A value that is read and written by messages."""

    def __init__(self) -> None:
        self.value = 0

    def on_receive(self, message: Any) -> None:
        kind, *rest = message
        if kind == "read":
            rest[0].tell(("value", self.value))
        else:
            self.value = rest[0]


class Adder(Actor):
    """Adds one, `times` times: it reads, then writes what it read plus one. Two of them lose updates."""

    def __init__(self, store: Ref, times: int) -> None:
        self.store, self.left = store, times

    def on_receive(self, message: Any) -> None:
        if message != "go":
            self.store.tell(("write", message[1] + 1))
            self.left -= 1
        if self.left:
            self.store.tell(("read", self.ref))


class Chain(Actor):
    """Passes a number on to itself `hops` times, then says "done" to the target."""

    def __init__(self, target: Ref, hops: int, done: Any) -> None:
        self.target, self.hops, self.done = target, hops, done

    def on_receive(self, message: Any) -> None:
        if message == self.hops:
            self.target.tell(self.done)
        else:
            self.ref.tell(message + 1)


class Log(Actor):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_receive(self, message: Any) -> None:
        self.heard.append(message)


class World:
    """One run of one system."""

    def __init__(self, schedule: Schedule) -> None:
        self.simulation = SimulatedScheduler(schedule)
        self.system = ActorSystem(self.simulation)
        self.names = 0

    def actor(self, actor: Actor) -> Ref:
        self.names += 1
        return self.system.spawn(lambda: actor, f"a{self.names}")

    def run(self) -> None:
        self.simulation.run_until_idle()


def lost_update(world: World, times: int) -> bool:
    """Two adders; the first has to be stopped between its read and its write, and go on after the other is done."""
    store = Store()
    ref = world.actor(store)
    # FIFO is right: the second begins long after the first has ended.
    adder, late = world.actor(Adder(ref, times)), world.actor(Adder(ref, times))
    starter = world.actor(Chain(late, 4 * times + 4, "go"))
    adder.tell("go")
    starter.tell(0)
    world.run()
    return store.value < 2 * times


def half_lost(world: World) -> bool:
    """Three of six updates are lost: the order has to change at its beginning and at its end."""
    store = Store()
    ref = world.actor(store)
    adder, late = world.actor(Adder(ref, 3)), world.actor(Adder(ref, 3))
    starter = world.actor(Chain(late, 16, "go"))
    adder.tell("go")
    starter.tell(0)
    world.run()
    return store.value <= 3


def late_stop(world: World, hops: int) -> bool:
    """A short chain says "stop", a long one "data": data behind the stop is lost. FIFO lets the data come first."""
    log = Log()
    ref = world.actor(log)
    world.actor(Chain(ref, hops // 2, "data")).tell(0)
    world.actor(Chain(ref, hops, "stop")).tell(0)
    world.run()
    return log.heard == ["stop", "data"]


def sandwiched(world: World, hops: int) -> bool:
    """One chain's end has to come between the two ends of another: two orderings."""
    log = Log()
    ref = world.actor(log)
    second = world.actor(Chain(ref, hops, "second"))
    world.actor(Chain(Fork.at(world, ref, second), hops, "first")).tell(0)
    world.actor(Chain(ref, 4 * hops, "between")).tell(0)
    world.run()
    return log.heard == ["first", "between", "second"]


class Fork(Actor):
    """Hands a message to one, and 0 to another."""

    def __init__(self, one: Ref, other: Ref) -> None:
        self.one, self.other = one, other

    @classmethod
    def at(cls, world: World, one: Ref, other: Ref) -> Ref:
        return world.actor(cls(one, other))

    def on_receive(self, message: Any) -> None:
        self.one.tell(message)
        self.other.tell(0)


def starved(world: World) -> bool:
    """A watcher looks once, before any of five workers has got through its first of eight messages."""
    log = Log()
    ref = world.actor(log)
    for number in range(5):
        world.actor(Chain(ref, 8, number)).tell(0)
    world.actor(Chain(ref, 30, "looked")).tell(0)
    world.run()
    return log.heard[0] == "looked"


def reversed_ends(world: World) -> bool:
    """Five chains of growing length end in reverse."""
    log = Log()
    ref = world.actor(log)
    for number in range(5):
        world.actor(Chain(ref, 4 + 2 * number, number)).tell(0)
    world.run()
    return log.heard == [4, 3, 2, 1, 0]


@dataclass(frozen=True)
class Planted:
    """One fault: how a system shows it, and what PCT needs for it."""

    name: str
    depth: int
    shows: Callable[[World], bool]


FAULTS = (
    Planted("an update lost, one each", 2, lambda world: lost_update(world, 1)),
    Planted("an update lost, four each", 2, lambda world: lost_update(world, 4)),
    Planted("three of six updates lost", 3, half_lost),
    Planted("stop overtakes data, 6 hops", 1, lambda world: late_stop(world, 6)),
    Planted("stop overtakes data, 24 hops", 1, lambda world: late_stop(world, 24)),
    Planted("one end between two, 6 hops", 2, lambda world: sandwiched(world, 6)),
    Planted("looks before any has ended", 1, starved),
    Planted("five end in reverse", 4, reversed_ends),
)


def runs_until_found(fault: Planted, schedule: Callable[[int], Schedule], search: int) -> int | None:
    """None when it was not found in MOST_RUNS."""
    for number in range(MOST_RUNS):
        if fault.shows(World(schedule(search * MOST_RUNS + number))):
            return number + 1
    return None


def main(searches: int) -> int:
    """One line a fault."""
    print(f"{'fault':30} depth actors steps    bound   uniform       PCT d=1       PCT d=2       PCT d=3")
    for fault in FAULTS:
        first = World(fifo)
        if fault.shows(first):
            print(f"{fault.name}: FIFO shows it, so it measures nothing")
            return 1
        steps, actors = first.simulation.steps, first.names
        bound = actors * steps ** (fault.depth - 1)
        schedules = [uniform, *(partial(pct, depth=depth, steps=steps) for depth in (1, 2, 3))]
        cells = [cell(fault, schedule, searches) for schedule in schedules]
        print(f"{fault.name:30} {fault.depth:5} {actors:6} {steps:5} {bound:8,}" + "".join(f"{c:>14}" for c in cells))
    return 0


def cell(fault: Planted, schedule: Callable[[int], Schedule], searches: int) -> str:
    """Median runs of the searches that found it, and how many did."""
    if runs_until_found(fault, schedule, 0) is None:  # hopeless: one search is enough to know
        return f"> {MOST_RUNS:,}"
    found = [runs for search in range(searches) if (runs := runs_until_found(fault, schedule, search)) is not None]
    return f"{statistics.median(found):g} ({len(found)}/{searches})"


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SEARCHES))

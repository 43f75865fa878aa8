"""Schedules: which of the things that are ready runs next in a simulation.

FIFO is what the real loop does. The others deviate from it, and a `Deviation` says where: the deviations alone play a
run again (`replay`), and the fewest of them that still make it fail explain it (`smallest`).
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from .scheduler import Run

__all__ = ["Deviation", "Schedule", "fifo", "label", "owner", "pct", "replay", "smallest", "uniform"]

#: Given the number of the step and what is ready (two or more, the oldest first): the index of the one to run.
Schedule = Callable[[int, Sequence[Run]], int]

#: Steps within which `pct` changes priorities unless told otherwise: half of the seeded simulated runs have fewer.
PCT_STEPS: Final = 200

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Deviation:
    """One choice that FIFO would not have made."""

    step: int
    """Things that had run before, from 0."""
    index: int
    """Which of those that were ready ran: 1 is the second oldest."""
    at_seconds: float = 0.0
    ran: str = ""
    instead_of: str = ""

    def __str__(self) -> str:
        return f"{self.at_seconds:9.3f}    step {self.step}: {self.ran}, ahead of {self.instead_of}"


def fifo(_step: int, _options: Sequence[Run]) -> int:
    """The one that has been ready longest."""
    return 0


def uniform(seed: int) -> Schedule:
    """Each with the same probability."""
    choose = random.Random(seed).randrange
    return lambda _, options: choose(len(options))


def replay(deviations: Iterable[tuple[int, int]]) -> Schedule:
    """FIFO but for these (step, index). One that no longer fits, since an earlier one was left out, is ignored."""
    chosen = dict(deviations)

    def choose(step: int, options: Sequence[Run]) -> int:
        index = chosen.get(step, 0)
        return index if index < len(options) else 0

    return choose


def pct(seed: int, depth: int, steps: int = PCT_STEPS) -> Schedule:
    """Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010).

    Each actor gets a random priority when it is first ready, and the ready one with the highest priority runs. At
    `depth` - 1 random steps the one that would run falls below all others. A fault that needs `depth` orderings among
    n actors is found by one run with probability of at least 1 / (n * steps ** (depth - 1)), where `steps` is no less
    than the length of the run; uniform choice has no such bound. Raises ValueError for a depth or steps below 1.
    """
    if depth < 1 or steps < 1:
        raise ValueError(f"pct needs a depth and steps of at least 1, got depth {depth} and {steps} steps")
    rng = random.Random(f"pct {seed} {depth}")
    priorities: defaultdict[object, float] = defaultdict(lambda: depth + rng.random())
    changes = sorted(rng.randrange(steps) for _ in range(depth - 1))
    lowest = iter(range(depth - 1, 0, -1))

    def choose(step: int, options: Sequence[Run]) -> int:
        ranked = [priorities[owner(run)] for run in options]
        while changes and changes[0] <= step:
            changes.pop(0)
            top = ranked.index(max(ranked))
            fallen = priorities[owner(options[top])] = next(lowest)
            ranked = [fallen if owner(run) == owner(options[top]) else ranked[at] for at, run in enumerate(options)]
        return ranked.index(max(ranked))

    return choose


def smallest(
    items: Sequence[Item], fails: Callable[[Sequence[Item]], bool], most_runs: int = 400
) -> tuple[Sequence[Item], int]:
    """Delta debugging (Zeller, Hildebrandt 2002): fewest items that still fail, and how many runs that took.

    `items` as they are fail. No single item of the answer can be left out, unless `most_runs` were too few to tell.
    """
    parts, runs = 2, 0
    if items and fails(()):
        return (), 1
    while len(items) > 1 and runs < most_runs:
        size = -(-len(items) // parts)
        for start in range(0, len(items), size):
            rest = (*items[:start], *items[start + size :])
            runs += 1
            if fails(rest):
                items, parts = rest, max(parts - 1, 2)
                break
            if runs >= most_runs:
                return items, runs
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return items, runs


def owner(run: Run) -> object:
    """Whose turn this is: the actor's name, or what says best which callback it is. Equal in equal runs."""
    target = getattr(run, "__self__", run)
    return getattr(target, "name", None) or label(run)


def label(run: Run) -> str:
    """One thing that ran, for the trace: never an id or an address, which differ from run to run."""
    describe = getattr(getattr(run, "__self__", run), "describe", None)
    if describe is not None:
        return str(describe())
    return str(getattr(run, "__qualname__", type(run).__name__))

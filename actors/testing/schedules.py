"""Schedules that look for faults: which of the things that are ready runs next in a simulation.

FIFO is what the real loop does. These deviate from it: the deviations alone play a run again (`replay`), and the fewest
of them that still make it fail explain it (`smallest`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from callboard.actors.kernel.scheduler import Run
from callboard.actors.testing.simulation import Schedule, owner

#: Steps within which `pct` changes priorities unless told otherwise: half of the seeded simulated runs have fewer.
PCT_STEPS = 200

Item = TypeVar("Item")


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

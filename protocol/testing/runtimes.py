"""A check for whole runtimes: whatever plays a scenario and writes down what its session took and gave."""

from __future__ import annotations

from collections.abc import Callable

from callboard.protocol.testing import seeded
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import shrink
from callboard.protocol.testing.trace import Trace

Runtime = Callable[[Scenario, int], Trace]
"""Plays a scenario with a seed, whatever it is made of, and writes down what its session took and gave."""


def simulate(runtime: Runtime = drive, *, conversations: int = 200, first_seed: int = 0) -> None:
    """Play many scenarios on a runtime; the first broken rule is shrunk and told as a story.

    Also holds it to determinism: the same scenario and seed, played again, give the same trace, byte for byte.
    """
    for seed in range(first_seed, first_seed + conversations):
        scenario = seeded.scenario(seed)
        trace = runtime(scenario, seed)
        if violations(trace):
            raise AssertionError(_story(runtime, scenario, seed))
        if seed % 10 == first_seed % 10:
            assert runtime(scenario, seed).to_bytes() == trace.to_bytes(), (
                f"seed {seed} gave another trace when played again"
            )


def _story(runtime: Runtime, scenario: Scenario, seed: int) -> str:
    smallest = shrink(scenario, lambda simpler: bool(violations(runtime(simpler, seed))))
    trace = runtime(smallest, seed)
    found = "\n".join(map(str, violations(trace)))
    return f"{found}\n{trace.story()}\nplay it again with {smallest!r}, seed {seed}"

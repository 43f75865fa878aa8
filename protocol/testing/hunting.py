"""Hunts a planted fault through the seeded scenarios, and shrinks the first that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from callboard.protocol.testing.invariants import Violation, violations
from callboard.protocol.testing.replay import Token
from callboard.protocol.testing.runtimes import Runtime
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import follow, shrink_path
from callboard.protocol.testing.trace import Trace


@dataclass(frozen=True, slots=True)
class Found:
    """The shortest story that shows a fault."""

    token: Token
    trace: Trace
    violations: tuple[Violation, ...]
    runs: int
    """Scenarios played, those of shrinking included."""


def find(
    play: Runtime,
    *,
    invariant: str = "",
    max_scenarios: int = 5_000,
    shorten: bool = True,
    go_on: Callable[[], bool] = lambda: True,
) -> Found | None:
    """Play the scenarios of seeds 0, 1, 2 ... until one breaks `invariant` ("": any rule), and shrink that one.

    None when `max_scenarios` of them did not show it, or `go_on` said that time is up.
    """
    runs = 0

    def broken(scenario: Scenario, seed: int) -> set[str]:
        nonlocal runs
        runs += 1
        return {violation.invariant for violation in violations(play(scenario, seed))}

    for seed in range(max_scenarios):
        if not go_on():
            return None
        rules = broken(Token(seed).scenario, seed)
        if invariant in rules or (rules and not invariant):
            break
    else:
        return None
    wanted = {invariant} if invariant else rules
    scenario = Token(seed).scenario
    path = shrink_path(scenario, lambda simpler: go_on() and bool(wanted & broken(simpler, seed))) if shorten else ()
    trace = play(follow(scenario, path), seed)
    return Found(Token(seed, path), trace, tuple(violations(trace)), runs)

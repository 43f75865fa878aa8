"""Hunts a planted fault through the seeded scenarios, and shrinks the first that shows it."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.testing.invariants import EXCEPTION, INVARIANTS, Violation, violations
from callboard.protocol.testing.replay import Token
from callboard.protocol.testing.runtimes import Runtime
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.shrinking import Path, follow, shrink_path
from callboard.protocol.testing.trace import Trace

#: A story of so many steps can be read at a glance.
SHORT_STEPS: Final = 12
#: Seeds that are shrunk in the hope of a short one.
ATTEMPTS: Final = 8


class Found(Struct, frozen=True):
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
    first_seed: int = 0,
    shorten: bool = True,
    short_steps: int = SHORT_STEPS,
    go_on: Callable[[], bool] = lambda: True,
) -> Found | None:
    """Play the scenarios of seeds 0, 1, 2 ... (from `first_seed` on) until one breaks `invariant` ("": any rule), and
    shrink that one.

    A story that stays longer than `short_steps` is looked for in further seeds, up to `ATTEMPTS` of them. None when
    `max_scenarios` did not show the fault, or `go_on` said that time is up.
    """
    hunt = _Hunt(play, go_on)
    looked_at = {invariant} if invariant else {EXCEPTION, *INVARIANTS}
    best: Found | None = None
    attempts = 0
    for seed in range(first_seed, first_seed + max_scenarios):
        if not go_on():
            break
        if rules := hunt.broken(Token(seed).scenario, seed, looked_at):
            attempts += 1
            found = hunt.shrink(seed, rules) if shorten else hunt.found(seed, ())
            if best is None or found.trace.steps < best.trace.steps:
                best = found
            if not shorten or best.trace.steps <= short_steps or attempts == ATTEMPTS:
                break
    return replace(best, runs=hunt.runs) if best else None


class _Hunt:
    """One fault, and how many scenarios were played on it."""

    def __init__(self, play: Runtime, go_on: Callable[[], bool]) -> None:
        self.runs = 0
        self._play = play
        self._go_on = go_on

    def broken(self, scenario: Scenario, seed: int, rules: Set[str]) -> Set[str]:
        """Those of these rules that this scenario breaks."""
        self.runs += 1
        looked_at = [name for name in INVARIANTS if name in rules]
        return {violation.invariant for violation in violations(self._play(scenario, seed), looked_at)} & rules

    def shrink(self, seed: int, wanted: Set[str]) -> Found:
        """The shortest way to break one of these rules from the scenario of this seed."""
        path = shrink_path(
            Token(seed).scenario, lambda simpler: self._go_on() and bool(self.broken(simpler, seed, wanted))
        )
        return self.found(seed, path)

    def found(self, seed: int, path: Path) -> Found:
        """The story at the end of this path."""
        trace = self._play(follow(Token(seed).scenario, path), seed)
        return Found(Token(seed, path), trace, tuple(violations(trace)), self.runs)

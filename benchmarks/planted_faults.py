"""Plants each fault, and prints how soon the kit finds it and how short its story is after shrinking.

    python benchmarks/planted_faults.py                    # our own, each by the rule it breaks
    python benchmarks/planted_faults.py --independent      # those of an author who did not know the rules, by any rule
    python benchmarks/planted_faults.py replay             # those whose name has the word, with their stories

Exits 1 when fewer than 95 in 100 are found within 60 s in at most 12 steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial

from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.hunting import find
from callboard.protocol.testing.independent_faults import INDEPENDENT_FAULTS
from callboard.protocol.testing.mutation import Mutation, mutated
from callboard.protocol.testing.planted import FAULTS, Fault
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace

MAX_STEPS = 12
MAX_SECONDS = 60.0
WANTED = 0.95


def faults(independent: bool) -> Iterator[Fault]:
    """The faults to hunt; those of the independent author name no rule."""
    if not independent:
        yield from FAULTS
        return
    for mutation in INDEPENDENT_FAULTS:
        yield Fault(mutation.__name__, "", partial(_play, mutation))


def _play(mutation: type[Mutation], scenario: Scenario, seed: int) -> Trace:
    return drive(scenario, seed, mutated(mutation))


def _in_time(began: float) -> bool:
    return time.perf_counter() - began < MAX_SECONDS


def main() -> int:
    """Hunt them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--independent", action="store_true")
    asked = parser.parse_args()
    chosen = [fault for fault in faults(asked.independent) if asked.word.lower() in fault.name.lower()]
    good = 0
    print(f"{'fault':64} {'found by':22} {'seconds':>8} {'runs':>6} {'steps':>6}")
    for fault in chosen:
        began = time.perf_counter()
        found = find(fault.play, invariant=fault.invariant, go_on=partial(_in_time, began))
        seconds = time.perf_counter() - began
        steps = found.trace.steps if found else 0
        kept = found is not None and steps <= MAX_STEPS and seconds <= MAX_SECONDS
        good += kept
        rule = (fault.invariant or found.violations[0].invariant) if found else "-"
        runs = found.runs if found else 0
        print(f"{fault.name:64} {rule:22} {seconds:8.1f} {runs:6} {steps:6}{'' if kept else '   MISSED'}")
        if asked.word and found:
            print(found.trace.story(), *found.violations, found.token.line, sep="\n")
    print(f"{good} of {len(chosen)} found within {MAX_SECONDS:g} s in at most {MAX_STEPS} steps")
    return 0 if good >= WANTED * len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Plants each fault, and prints how soon the kit finds it and how short the story is after shrinking.

python benchmarks/planted_faults.py           # all; exits 1 if one is not found, or its story has over ten steps
python benchmarks/planted_faults.py replay    # those whose name has the word, with their stories
"""

from __future__ import annotations

import sys
import time

from callboard.protocol.testing.planted import FAULTS, find

MAX_STEPS = 10
MAX_SECONDS = 60.0


def main(word: str) -> int:
    """Hunt every fault whose name has `word` in it."""
    missed = 0
    print(f"{'fault':42} {'invariant':18} {'seconds':>8} {'runs':>6} {'steps':>6}")
    for fault in (fault for fault in FAULTS if word in fault.name):
        began = time.perf_counter()
        found = find(fault)
        seconds = time.perf_counter() - began
        steps = found.trace.steps if found else 0
        good = found is not None and steps <= MAX_STEPS and seconds <= MAX_SECONDS
        missed += not good
        runs = found.runs if found else 0
        print(f"{fault.name:42} {fault.invariant:18} {seconds:8.1f} {runs:6} {steps:6}{'' if good else '   MISSED'}")
        if word and found:
            print(found.trace.story(), *found.messages, sep="\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))

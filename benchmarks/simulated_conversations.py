"""Many simulated conversations with every kind of fault, each checked against all rules.

    python benchmarks/simulated_conversations.py            # 2,000, in well under a minute
    python benchmarks/simulated_conversations.py 100000     # the deep run
    python benchmarks/simulated_conversations.py 1000 5000  # those of the seeds from 5,000 on

Prints how many messages were played and what became of the requests; exits 1 with the story of the first violation.
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from callboard.protocol.commands import RecordStep
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.replay import Token
from callboard.protocol.testing.story import Story


def main(count: int = 2_000, first: int = 0) -> int:
    """Play `count` scenarios, of the seeds from `first` on."""
    outcomes: Counter[str] = Counter()
    messages = calls = steps = refused = 0
    began = time.perf_counter()
    for seed in range(first, first + count):
        trace = drive(scenario(seed), seed)
        found = violations(trace)
        if found:
            print(trace.story(), *found, Token(seed).line, sep="\n")
            return 1
        story = Story.of(trace)
        end = story.finish()
        outcomes[end[1].outcome if end else "none"] += 1
        messages += trace.sent
        refused += sum(entry.verb == "refused" for entry in trace.entries)
        calls += len(story.results())
        steps += len(story.given(RecordStep))
    seconds = time.perf_counter() - began
    print(f"{count:,} conversations in {seconds:.1f} s ({count / seconds:,.0f} a second), no violation of I1 to I27")
    print(f"{messages:,} messages, {refused:,} of them dead letters; {calls:,} calls in {steps:,} steps")
    print("outcomes: " + ", ".join(f"{name} {number:,}" for name, number in outcomes.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

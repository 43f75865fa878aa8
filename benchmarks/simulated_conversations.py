"""Many simulated conversations with every kind of fault, each checked against all rules.

    python benchmarks/simulated_conversations.py            # 2,000, in well under a minute
    python benchmarks/simulated_conversations.py 100000     # the deep run
    python benchmarks/simulated_conversations.py 1000 5000  # those of the seeds from 5,000 on

Prints how many seeds a second of CPU are drawn, played and judged, how many messages were played, and what became of
the requests; exits 1 with the story of the first violation.
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
    drawing = playing = judging = 0.0
    for seed in range(first, first + count):
        began = time.process_time()
        planned = scenario(seed)
        drawn = time.process_time()
        trace = drive(planned, seed)
        played = time.process_time()
        found = violations(trace)
        drawing, playing = drawing + drawn - began, playing + played - drawn
        judging += time.process_time() - played
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
    seconds = drawing + playing + judging
    print(f"{count:,} conversations in {seconds:.1f} s of CPU: {count / seconds:,.0f} a second; no rule is broken")
    parts = (("drawn", drawing), ("played", playing), ("judged", judging))
    print("of one part alone, a second: " + ", ".join(f"{count / spent:,.0f} {part}" for part, spent in parts))
    print(f"{messages:,} messages, {refused:,} of them dead letters; {calls:,} calls in {steps:,} steps")
    print("outcomes: " + ", ".join(f"{name} {number:,}" for name, number in outcomes.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

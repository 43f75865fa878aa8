"""Many conversations under the real actors in virtual time: model, tools, people and the actors themselves fail.

    python benchmarks/rehearsals.py            # 2,000, as issue 3 asks in under 60 s
    python benchmarks/rehearsals.py 100000     # the deep run

Each is checked against I1 to I12, against conservation over the whole tree, and for calls that ran twice. Exits 1 with
the story of the first violation; the last line is a digest of all traces, the same on each run.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections import Counter

from callboard.actors.rehearsal import Rehearsal, seeded_faults
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.seeded import scenario
from callboard.protocol.testing.story import Story


def main(count: int) -> int:
    """Play the conversations of seeds 0 to count - 1."""
    logging.disable(logging.CRITICAL)  # crashes are what this is about
    outcomes: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    digest = hashlib.sha256()
    began = time.perf_counter()
    for seed in range(count):
        rehearsal = Rehearsal(scenario(seed), seed, seeded_faults(seed))
        trace = rehearsal.play()
        found = [*violations(trace), *faults_of_the_whole(rehearsal)]
        if found:
            print(trace.story(), *found, sep="\n")
            return 1
        digest.update(trace.to_bytes())
        end = Story.of(trace).finish()
        outcomes[end[1].outcome if end else "none"] += 1
        statistics = rehearsal.system.statistics()
        totals.update(
            messages=statistics.sent,
            dead=statistics.dead_lettered,
            restarts=statistics.restarts,
            runs=rehearsal.runs.total(),
        )
    seconds = time.perf_counter() - began
    print(f"{count:,} conversations in {seconds:.1f} s ({count / seconds:,.0f} a second), no violation of I1 to I12")
    print(
        f"{totals['messages']:,} messages, {totals['dead']:,} of them dead letters; {totals['restarts']:,} actors "
        f"restarted; {totals['runs']:,} tool calls run"
    )
    print("outcomes: " + ", ".join(f"{name} {number:,}" for name, number in outcomes.most_common()))
    print(f"traces: sha256 {digest.hexdigest()}")
    return 0


def faults_of_the_whole(rehearsal: Rehearsal) -> list[str]:
    """What no single session can see."""
    statistics = rehearsal.system.statistics()
    idempotent = {offer.definition.name for offer in rehearsal.scenario.tools if offer.contract.idempotent}
    found = [
        f"{tag} ran {runs} times"
        for tag, runs in rehearsal.runs.items()
        if runs > 1 and rehearsal.plans.of_call[tag].tool not in idempotent
    ]
    if statistics.unaccounted or statistics.queued:
        found.append(f"I9: at rest {statistics}")
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000))

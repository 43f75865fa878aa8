"""Many conversations under the real actors in virtual time, up to four side by side; everything around them fails.

    python benchmarks/simulated_actors.py            # 2,000
    python benchmarks/simulated_actors.py 10000      # the deep run

Model, tools, workers, stores, clocks and the actors themselves fail as the seeds say; every other run is scheduled by
PCT. Each is checked against all rules, conservation over the whole tree, and calls that ran twice. Exits 1 with the
report of the first failure. Prints how many runs a second of CPU were played and judged; the last line is a digest of
all traces, the same on each run.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import sys
import time
from collections import Counter

from callboard.actors.testing.simulated_run import check, outcomes, token_of


def main(conversations: int) -> int:
    """Play the runs of seeds 0 and on, until that many conversations have been played."""
    logging.disable(logging.CRITICAL)  # crashes are what this is about
    ended: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    digest = hashlib.sha256()
    spent = 0.0
    for seed in itertools.count():
        if ended.total() >= conversations:
            break
        began = time.process_time()
        try:
            run = check(token_of(seed))
        except AssertionError as failure:
            print(failure)
            return 1
        spent += time.process_time() - began
        for trace in run.traces:
            digest.update(trace.to_bytes())
        ended += outcomes([run])
        statistics = run.system.statistics()
        totals.update(
            runs=1,
            messages=statistics.sent,
            dead=statistics.dead_lettered,
            restarts=statistics.restarts,
            calls=run.world.runs.total(),
            jumps=len(run.world.jumps),
            deviations=len(run.scheduler.deviations),
        )
    print(
        f"{ended.total():,} conversations in {totals['runs']:,} runs, {spent:.1f} s of CPU: "
        f"{totals['runs'] / spent:,.0f} runs a second; no rule is broken"
    )
    print(
        f"{totals['messages']:,} messages, {totals['dead']:,} of them dead letters; {totals['restarts']:,} actors "
        f"restarted; {totals['calls']:,} tool calls run; {totals['jumps']:,} jumps of the clock; "
        f"{totals['deviations']:,} deviations from FIFO"
    )
    print("ended: " + ", ".join(f"{name} {number:,}" for name, number in ended.most_common()))
    print(f"traces: sha256 {digest.hexdigest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000))

"""What seeded simulated runs have reached: fates of workers, crashes and deaths and what was open then, and the rest.

A rule that holds in runs in which nothing happens proves nothing. The worlds of runs count what happens in them
(`World.reach`); here is what there is to be counted, so that what no run reaches shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from callboard.actors.calls.approvals import ApprovalKind
from callboard.actors.testing.faults import CRASHABLE, MOMENTS, RequestFate, WorkerFate
from callboard.actors.testing.simulated_run import SimulatedRun, check, token_of
from callboard.protocol.commands import NoteKind, Outcome
from callboard.protocol.testing.scenario import OutsideDoes, PersonDoes, ToolDoes

#: Their runs are counted for the docs, and must reach every row. Behind the first come those that reach what a run in
#: several hundred does.
RUN_SEEDS: Final = (
    *(*range(200), 207, 223, 239, 263, 300, 301, 302, 306, 325, 333, 334, 356, 382, 446, 665, 704, 982, 990, 1038),
)

#: What is counted, by kind.
ROWS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "worker": tuple(fate.value for fate in WorkerFate),
        "tool": tuple(does.value for does in ToolDoes),
        "transaction": ("written", "refused"),
        "outside": tuple(does.value for does in OutsideDoes),
        "person": tuple(does.value for does in PersonDoes),
        "answer": tuple(kind.value for kind in ApprovalKind),
        "request to a model": ("as its turn says", *(fate.value for fate in RequestFate)),
        "model note": tuple(kind.value for kind in (NoteKind.RETRY, NoteKind.FALLBACK, NoteKind.RATE_LIMIT)),
        "crash": tuple(CRASHABLE),
        "crash at": MOMENTS,
        "death at": ("a step", *MOMENTS),
        "open at a death": (
            "a model call",
            "a summary",
            "a running call",
            "a deferred call",
            "a question",
            "an unwritten event",
            "nothing but its end",
        ),
        "journal": (
            "recovery",
            "crash before a commit",
            "crash after a commit",
            "sync fails",
            "full",
            "read-only",
        ),
        "world": ("worker dies", "jump", "flood", "store refuses", "store is slow", "the root gives up", "direct call"),
        "end": (*(outcome.value for outcome in Outcome), "lost"),
    }
)


class RunReach:
    """Counts over any number of played runs: in how many of them each row was reached."""

    def __init__(self, runs: Iterable[SimulatedRun] = ()) -> None:
        self.runs = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        for run in runs:
            self.add(run)

    def add(self, run: SimulatedRun) -> None:
        """Count one more run, which has been played."""
        self.runs += 1
        self.counts.update(dict.fromkeys(run.reached(), 1))

    def lines(self) -> list[str]:
        """In how many runs each row was reached, as tables of reStructuredText."""
        lines = ["", f"In {self.runs:,} simulated runs on the real actors:", ""]
        for kind, names in ROWS.items():
            lines += [f".. csv-table:: {kind} (runs)", ""]
            lines += [f'   "{name.replace("_", " ")}", {self.counts[kind, name]}' for name in names] + [""]
        return lines

    def missed(self) -> list[str]:
        """The rows that no run has reached."""
        return [
            f"{kind}: {name} is reached by none of {self.runs} runs"
            for kind, names in ROWS.items()
            for name in names
            if not self.counts[kind, name]
        ]


def seeded_reach(seeds: Iterable[int] = RUN_SEEDS) -> RunReach:
    """What the runs of these seeds reach. Raises AssertionError with the report of one that is not in order."""
    return RunReach(check(token_of(seed)) for seed in seeds)

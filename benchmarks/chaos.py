"""All cases of the chaos suite, each beside 49 healthy requests: what holds at which level, and what it takes.

    python benchmarks/chaos.py [--cases PATTERN ...] [--neighbours 49] [--json FILE]

The suite of tests runs a selection; this runs every case, the crash walk for real included: some hundred runtimes. The
status is 1 if a case falls short of what docs/supervision.md says.
"""

from __future__ import annotations

import argparse
import resource
import sys
from collections import Counter
from pathlib import Path

from callboard.actors.testing import chaos
from callboard.actors.testing.chaos import Level, Report, Status


def by_level(report: Report) -> str:
    """A line a level."""
    rows = [f"{'level':<10}{'cases':>7}{'held':>7}{'short':>7}{'skipped':>9}"]
    for level in Level:
        counts = Counter(result.status for result in report.results if result.case.level is level)
        shown = (counts[Status.HELD], counts[Status.FELL_SHORT], counts[Status.SKIPPED])
        if total := sum(shown):
            rows.append(f"{level:<10}{total:>7}{shown[0]:>7}{shown[1]:>7}{shown[2]:>9}")
    return "\n".join(rows)


def told(result: chaos.Result) -> None:
    sys.stderr.write(f"{result.status:<11}{result.seconds:>7.2f} s  {result.case.name}\n")


def main(patterns: list[str], neighbours: int, file: Path | None) -> int:
    report = chaos.run(chaos.chosen(patterns), neighbours=neighbours, told=told)
    print(report.text())
    print(f"\n{by_level(report)}")
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime)
    print(f"CPU: {cpu[0]:.0f} s of the host, {cpu[1]:.0f} s of its children; peak {own.ru_maxrss / 1024:.0f} MB")
    if file is not None:
        file.write_text(report.to_json())
    return 1 if report.fell_short else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", nargs="+", default=[], metavar="PATTERN")
    parser.add_argument("--neighbours", type=int, default=chaos.NEIGHBOURS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    sys.exit(main(asked.cases, asked.neighbours, asked.json))

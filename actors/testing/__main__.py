"""The kit on the command line.

python -m callboard.actors.testing replay 2.17/4.0     # a conversation that a failure named, with its story
python -m callboard.actors.testing reach 1000          # how often seeds 0 to 999 reach each row of the tables
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from callboard.protocol.errors import UsageError
from callboard.protocol.testing import drive, replay, violations
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.invariants import rules_table
from callboard.protocol.testing.reach import FIXED_SEEDS, Reach


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 all is well, 1 a rule was broken or a floor not met, 2 usage error."""
    parser = argparse.ArgumentParser(prog="python -m callboard.actors.testing", description="The testing kit.")
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("replay", help="play a conversation again, on the bare session")
    again.add_argument("token", help="what a failure printed, for example 2.17/4.0")
    reached = commands.add_parser("reach", help="how often the seeds reach each row of the tables")
    reached.add_argument("seeds", nargs="?", type=int, default=FIXED_SEEDS)
    docs = commands.add_parser("docs", help="write the rules, and what is reached, into a page")
    docs.add_argument("page", type=Path)
    asked = parser.parse_args(arguments)
    if asked.command == "replay":
        return _replay(asked.token)
    return _reach(asked.seeds) if asked.command == "reach" else _docs(asked.page)


def _replay(token: str) -> int:
    try:
        trace = replay(token)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    found = violations(trace)
    told = list(map(str, found)) or ["no rule is broken here; play it on your own runtime: testing.replay"]
    lines = [trace.story(), *told]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found else 0


def _reach(seeds: int) -> int:
    reach = Reach(drive(scenario(seed), seed) for seed in range(seeds))
    short = reach.short()
    told = ["", "Below their floor:", *short] if short else []
    sys.stdout.write("\n".join([reach.report(), *told]) + "\n")
    return 1 if short else 0


_BLOCK = re.compile(r"(<!-- written: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str, reach: Reach) -> str:
    """The page with the rules, and what was reached, as they are now."""
    blocks = {"rules": rules_table(), "reach": f"{reach.report()}\n"}
    return _BLOCK.sub(lambda block: block[1] + blocks[block[2]] + block[3], page)


def _docs(page: Path) -> int:
    reach = Reach(drive(scenario(seed), seed) for seed in range(FIXED_SEEDS))
    page.write_text(render(page.read_text(encoding="utf-8"), reach), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

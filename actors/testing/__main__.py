"""The kit on the command line.

python -m callboard.actors.testing replay 9.17/4.0     # a conversation that a failure named, with its story
python -m callboard.actors.testing reach 1000          # how often seeds 0 to 999 reach each row of the tables
python -m callboard.actors.testing plays kernel        # a room beside a small model of it
python -m callboard.actors.testing chaos --cases 'die/*' --tools my.tools:lookup   # lets things go wrong
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from callboard.actors.testing import (
    chaos,
    played_calls,
    played_edits,
    played_index,
    played_kernel,
    played_models,
    played_recovery,
    played_requests,
    played_workers,
)
from callboard.actors.testing.chaos.table import contained_table
from callboard.actors.testing.run_reach import seeded_reach
from callboard.actors.tools import Tool
from callboard.protocol.errors import UsageError
from callboard.protocol.testing import drive, replay, violations
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.invariants import rules_list
from callboard.protocol.testing.reach import FIXED_SEEDS, Reach


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 all is well, 1 a rule was broken or a floor not met, 2 usage error."""
    parser = argparse.ArgumentParser(prog="python -m callboard.actors.testing", description="The testing kit.")
    commands = parser.add_subparsers(dest="command", required=True)
    again = commands.add_parser("replay", help="play a conversation again, on the bare session")
    again.add_argument("token", help="what a failure printed, for example 9.17/4.0")
    reached = commands.add_parser("reach", help="how often the seeds reach each row of the tables")
    reached.add_argument("seeds", nargs="?", type=int, default=FIXED_SEEDS)
    plays = commands.add_parser("plays", help="play a room beside a small model of it")
    plays.add_argument("room", nargs="?", choices=tuple(PLAYS), help="all unless it is given")
    plays.add_argument("--seeds", type=int, default=100, help="how many")
    plays.add_argument("--first", type=int, default=0, metavar="SEED")
    docs = commands.add_parser("docs", help="write the rules, and what is reached, into a page")
    docs.add_argument("page", type=Path)
    wild = commands.add_parser("chaos", help="let everything go wrong beside healthy requests")
    wild.add_argument("--cases", action="append", metavar="PATTERN", help="'die/*', '*/task'; may be repeated")
    wild.add_argument("--tools", action="append", default=[], metavar="MODULE:TOOL", help="a tool of your own")
    wild.add_argument("--neighbours", type=int, default=chaos.NEIGHBOURS, help="healthy requests beside each case")
    wild.add_argument("--list", action="store_true", help="name the cases and how each may end, and run none")
    wild.add_argument("--json", action="store_true", help="the report as JSON")
    asked = parser.parse_args(arguments)
    run: Mapping[str, Callable[[], int]] = {
        "replay": lambda: _replay(asked.token),
        "reach": lambda: _reach(asked.seeds),
        "plays": lambda: _plays(asked.room, range(asked.first, asked.first + asked.seeds)),
        "docs": lambda: _docs(asked.page),
        "chaos": lambda: _chaos(asked),
    }
    return run[asked.command]()


def _chaos(asked: argparse.Namespace) -> int:
    try:
        cases = chaos.chosen(asked.cases or ())
        if asked.list:
            sys.stdout.write("".join(f"{case.name:<48} {case.what}: {' or '.join(case.expected)}\n" for case in cases))
            return 0
        report = chaos.run(cases, tools=map(_tool, asked.tools), neighbours=asked.neighbours, told=_progress)
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write((report.to_json() if asked.json else report.text()) + "\n")
    return 1 if report.fell_short else 0


def _progress(result: chaos.Result) -> None:
    sys.stderr.write(f"{result.status:<11} {result.case.name}\n")


def _tool(name: str) -> Tool:
    """The tool called "module:name". Raises UsageError."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"there is no tool {name!r}: {error}; write it as module:name") from error
    if not isinstance(found, Tool):
        raise UsageError(f"{name!r} is no tool; decorate the function with @tool")
    return found


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
    reach, played = Reach(drive(scenario(seed), seed) for seed in range(seeds)), seeded_reach(range(seeds))
    short = [*reach.short(), *played.missed()]
    told = ["", "Below their floor:", *short] if short else []
    sys.stdout.write("\n".join([reach.report(), "", *played.lines(), *told]) + "\n")
    return 1 if short else 0


#: Each says what is not as promised; the same for the same seed.
PLAYS: Final[Mapping[str, Callable[[int], list[str]]]] = {
    "kernel": played_kernel.play,
    "models": played_models.play,
    "calls": played_calls.play,
    "workers": played_workers.play,
    "edits": played_edits.play,
    "index": played_index.play,
    "recovery": played_recovery.play,
    "requests": played_requests.play,
}


def _plays(only: str | None, seeds: range) -> int:
    logging.disable(logging.CRITICAL)  # crashes are what is played, and each is logged
    try:
        return _play(only, seeds)
    finally:
        logging.disable(logging.NOTSET)


def _play(only: str | None, seeds: range) -> int:
    for room in PLAYS if only is None else [only]:
        for seed in seeds:
            if found := PLAYS[room](seed):
                again = f"play it again: python -m callboard.actors.testing plays {room} --first {seed} --seeds 1"
                sys.stdout.write("\n".join([f"{room}, seed {seed}:", *found, again]) + "\n")
                return 1
        sys.stdout.write(f"{room}: {len(seeds)} plays, all as promised\n")
    return 0


_BLOCK = re.compile(r"((?:<!--|\.\.) written: (\w+)(?: -->)?\n).*?((?:<!--|\.\.) end)", re.DOTALL)


@cache
def _fixed_seeds() -> Reach:
    return Reach(drive(scenario(seed), seed) for seed in range(FIXED_SEEDS))


_BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "rules": rules_list,
    "reach": lambda: f"{_fixed_seeds().summary()}\n",
    "events": lambda: "".join(f"{line}\n" for line in _fixed_seeds().matrix()),
    "members": lambda: "".join(f"{line}\n" for line in _fixed_seeds().lists()),
    "runs": lambda: "".join(f"{line}\n" for line in seeded_reach().lines()),
    "contained": contained_table,
}


def render(page: str) -> str:
    """The page, with each block that is written by a table as that table is now."""
    return _BLOCK.sub(lambda block: block[1] + _BLOCKS[block[2]]() + block[3], page)


def _docs(page: Path) -> int:
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

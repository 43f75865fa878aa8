"""`callboard index`: index a workspace and say what was found. No runtime and no model is needed for it."""

from __future__ import annotations

import argparse
import sys

from callboard.actors.cli.progress import IndexProgress
from callboard.actors.index import CodeIndex, RefreshSummary


def run(options: argparse.Namespace) -> None:
    """Not a coroutine: on a loop that it holds, Ctrl-C would wait for its end."""
    with CodeIndex.open(options.workspace) as code, IndexProgress() as progress:
        summary = code.refresh(progress)
    sys.stdout.write(sentence(summary) + "\n")


def sentence(summary: RefreshSummary) -> str:
    """What a refresh did, for a person."""
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.skipped.items()))
    parts = [
        f"{_count(summary.indexed, 'file')} indexed, {summary.unchanged:,} unchanged, {summary.removed:,} removed",
        f"{_count(summary.symbols, 'symbol')} in {_count(summary.files, 'file')}",
        f"skipped: {skipped}" if skipped else "",
        summary.note,
    ]
    return "; ".join(filter(None, parts))


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"

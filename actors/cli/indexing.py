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
        f"{summary.indexed:,} files indexed, {summary.unchanged:,} unchanged, {summary.removed:,} removed",
        f"{summary.symbols:,} symbols in {summary.files:,} files",
        f"skipped: {skipped}" if skipped else "",
        summary.note,
    ]
    return "; ".join(filter(None, parts))

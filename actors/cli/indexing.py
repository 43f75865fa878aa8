"""`callboard index`: index a workspace and say what was found. It needs no runtime and no model.

The progress bar shows itself only when there is something to wait for; `ask` has the same one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.terminal import print_line, printable, shows_colour, shows_motion
from callboard.actors.index import CodeIndex, Progress, RefreshSummary

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Not a coroutine: on a loop that it holds, Ctrl-C would wait for its end."""
    settings = settings_of(options)
    where = settings.workspace or Path(), settings.index_dir
    with CodeIndex.open(*where, secrets=settings.secret_rules) as code, IndexProgress() as progress:
        summary = code.refresh(progress)
    print_line(printable(sentence(summary)))


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
    return f"{number:,} {what}{'' if number == 1 else 's'}"


class IndexProgress:
    """Give it to `refresh` as the progress callback; use it as a context manager. Without a terminal it is silent."""

    def __init__(self) -> None:
        self._bar: Bar | None = None

    def __call__(self, state: Progress) -> None:
        """Called from the indexing thread."""
        if self._bar is None:
            self._bar = _bar()
            self._bar.add_task("")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=state.done_files, total=state.total_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Bar:
    """rich is imported here: 60 ms that a question on a warm index does not pay."""
    from rich import progress  # noqa: PLC0415 - the extra `cli`
    from rich.console import Console  # noqa: PLC0415

    counted = progress.TextColumn("{task.completed:,.0f} of {task.total:,.0f} files")
    columns = (progress.TextColumn("indexing"), progress.BarColumn(), counted, progress.TimeElapsedColumn())
    console = Console(stderr=True, color_system="auto" if shows_colour(sys.stderr) else None)
    return progress.Progress(*columns, console=console, transient=True, disable=not shows_motion(sys.stderr))

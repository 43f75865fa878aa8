"""`callboard index`: index a workspace and say what was found. It needs no runtime and no model.

With `--vectors` it goes on until all code can be found by meaning too; what was made when it is ended is kept. Without,
a runtime makes them in the background. With `--watch` it goes on as files change (index_watching.py). The progress bar
shows itself only when there is something to wait for; `ask` has the same one.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Self

from callboard.actors.cli.arguments import settings_of
from callboard.actors.cli.columns import counted, print_wrapped
from callboard.actors.cli.index_watching import IndexWatching
from callboard.actors.cli.terminal import printable, shows_colour, shows_motion
from callboard.actors.index import CodeIndex, Progress, RefreshSummary
from callboard.actors.index.vector_making import VectorState
from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


#: For all vectors of a workspace: a million tiles at 200 a second take an hour and a half.
VECTORS_SECONDS = 6 * 3_600.0
#: What the progress bar says: until questions are answered as well as they will be, nearly, and after that.
MAKING, MAKING_REST = "making vectors", "ready, making the other vectors"


def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Not a coroutine: on a loop that it holds, Ctrl-C would wait for its end."""
    settings = settings_of(options)
    with CodeIndex.open(settings.workspaces, settings.index_dir, secrets=settings.secret_rules) as code:
        with IndexProgress() as progress:
            summary = code.refresh(progress)
        vectors = None
        if options.vectors:
            with IndexProgress(MAKING, "tiles") as making:
                vectors = code.settle(VECTORS_SECONDS, making.show_vectors)
        print_wrapped(printable(sentence(summary, vectors)))
        if vectors is not None and vectors.missing:
            raise UsageError(f"not all code can be found by meaning: {vectors}; run it again to go on")
        if options.watch:
            IndexWatching(code, with_vectors=options.vectors).run()


def sentence(summary: RefreshSummary, vectors: VectorState | None = None) -> str:
    """What a refresh did, for a person; and how many vectors there are, where they were asked for."""
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(summary.skipped.items()))
    parts = [
        f"{counted(summary.indexed, 'file')} indexed, {summary.unchanged:,} unchanged, {summary.removed:,} removed",
        f"{counted(summary.symbols, 'symbol')} in {counted(summary.files, 'file')}",
        f"skipped: {skipped}" if skipped else "",
        summary.note,
        "" if vectors is None else (str(vectors) if vectors.total else vectors.note),
    ]
    return "; ".join(filter(None, parts))


class IndexProgress:
    """Give it to `refresh` as the progress callback; use it as a context manager. Without a terminal it is silent."""

    def __init__(self, doing: str = "indexing", unit: str = "files") -> None:
        self._bar: Bar | None = None
        self._doing, self._unit = doing, unit

    def __call__(self, state: Progress) -> None:
        """Called from the indexing thread."""
        self._show(state.done_files, state.total_files)

    def show_vectors(self, state: VectorState) -> None:
        """Give it to `settle`."""
        self._doing = MAKING if state.first else MAKING_REST
        self._show(state.made, state.total - state.left)

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = _bar(self._unit)
            self._bar.add_task(self._doing)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], description=self._doing, completed=done, total=total)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(what: str) -> Bar:
    """rich is imported here: 60 ms that a question on a warm index does not pay."""
    from rich import progress  # noqa: PLC0415 - the extra `cli`
    from rich.console import Console  # noqa: PLC0415

    done = progress.TextColumn(f"{{task.completed:,.0f}} of {{task.total:,.0f}} {what}")
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), done, progress.TimeElapsedColumn())
    console = Console(stderr=True, color_system="auto" if shows_colour(sys.stderr) else None)
    return progress.Progress(*columns, console=console, transient=True, disable=not shows_motion(sys.stderr))

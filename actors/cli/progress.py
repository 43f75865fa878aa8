"""The progress bar of indexing; it shows itself only when there is something to wait for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from callboard.actors.index import Progress as IndexState


class IndexProgress:
    """Give it to `refresh` as the progress callback; use it as a context manager. Without a terminal it is silent."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, state: IndexState) -> None:
        """Called from the indexing thread."""
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=state.total_files)
        if self._task is not None:
            self._bar.update(self._task, completed=state.done_files, total=state.total_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar() -> Progress:
    """rich is imported here: 60 ms that a question on a warm index does not pay."""
    from rich.console import Console  # noqa: PLC0415 - the extra `cli`
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("indexing"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} files"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())

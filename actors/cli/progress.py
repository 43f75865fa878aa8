"""The progress bar of indexing; it shows itself only when there is something to wait for."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from callboard.actors.index import Progress as IndexState


class IndexProgress:
    """Give it to `refresh` as the progress callback; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("indexing"),
            BarColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} files"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None

    def __call__(self, state: IndexState) -> None:
        """Called from the indexing thread."""
        if self._task is None:
            self._bar.start()
            self._task = self._bar.add_task("", total=state.total_files)
        self._bar.update(self._task, completed=state.done_files, total=state.total_files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

"""`callboard index --watch`: go on indexing as files change, until Ctrl-C or SIGTERM.

A full disk, a workspace that is moved away, another process that writes the index: each is said once and tried again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

from callboard.actors.cli.columns import counted
from callboard.actors.cli.terminal import print_line, printable
from callboard.actors.index import CodeIndex, RefreshSummary
from callboard.actors.index.watch import batches, folders_of
from callboard.protocol.errors import UsageError

#: More changes than this, as of a git checkout, cost more one by one than a look at all files.
MANY: Final = 500
#: After a failure, and while a workspace is gone, it is tried again so often.
RETRY_SECONDS: Final = 2.0
#: Vectors are made in stretches of this, between looks at what has changed.
VECTOR_SECONDS: Final = 0.5


class IndexWatching:
    """See the module."""

    def __init__(self, index: CodeIndex, *, with_vectors: bool) -> None:
        self._index = index
        self._with_vectors = with_vectors
        self._stop = threading.Event()
        self._said = ""
        """The last trouble, until it is over."""

    def run(self) -> None:
        """Raises UsageError: the extra `watch` is not installed."""
        signal.signal(signal.SIGTERM, lambda *_: self._stop.set())
        try:
            while not self._stop.is_set():
                self._while_there()
        except KeyboardInterrupt:
            return

    def _while_there(self) -> None:
        """Until a workspace is gone or is another folder; then until it is back."""
        is_due = True  # what changed before the watching began
        for batch in batches(self._index, self._stop):
            if batch or is_due:
                is_due = not self._refreshed(None if is_due or _needs_a_look_at_all(batch) else batch)
            elif self._with_vectors:
                self._make_vectors()
        while folders_of(self._index) is None and not self._stop.is_set():
            self._say(f"{' or '.join(self._index.roots)} is gone; waiting for it")
            self._stop.wait(RETRY_SECONDS)

    def _refreshed(self, paths: Sequence[str] | None) -> bool:
        """Whether what has changed is in the index now."""
        start = time.perf_counter()
        try:
            summary = self._index.refresh(paths=paths)
        except UsageError as error:
            self._say(f"{error}; trying again")
            self._stop.wait(RETRY_SECONDS)
            return False
        looked_at = summary.indexed + summary.unchanged + summary.removed
        if summary.note and not looked_at:  # another process writes the index
            self._say(f"{summary.note}; trying again")
            return False
        self._said = ""
        if line := _line(summary, time.perf_counter() - start):
            print_line(printable(line))
        return True

    def _make_vectors(self) -> None:
        state = self._index.make_vectors(VECTOR_SECONDS)
        if state.note:
            self._say(state.note)

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            sys.stderr.write(printable(f"callboard: {trouble}") + "\n")
            sys.stderr.flush()


def _needs_a_look_at_all(batch: Sequence[str]) -> bool:
    """Of a folder that was moved no more is told than its name, and of one that is gone not even that it was one."""
    return len(batch) > MANY or not all(map(os.path.isfile, batch))


def _line(summary: RefreshSummary, seconds: float) -> str:
    """What was done, for a person; empty where nothing was."""
    done = {"indexed": summary.indexed, "removed": summary.removed}
    counts = [f"{counted(count, 'file')} {what}" for what, count in done.items() if count]
    parts = [f"{' and '.join(counts)} in {seconds * 1e3:,.0f} ms" if counts else "", summary.note]
    return "; ".join(filter(None, parts))

"""The file through which a job's output reaches the runtime: a ring of its last megabyte, and how much there was.

The runtime makes and opens the file before the job begins, so that it reads this file and no other one, whatever the
job's command does with the name. The job removes the name as soon as it has opened it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from pathlib import Path
from typing import Final, Self

from callboard.actors.opened_folders import OpenedFolders
from callboard.protocol.errors import ToolError

#: Of the output, what can still be read.
RING_BYTES: Final = 1_048_576
#: At the beginning of the file: how many bytes were written in all.
_TOTAL: Final = struct.Struct("<Q")
#: Begins the name of the file, in the workspace itself: what is below `.callboard` a confined job does not see.
PREFIX: Final = ".callboard-job-"


class SpoolWriter:
    """The job's side."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        with OpenedFolders(os.path.dirname(path)) as workspace:
            self._file = workspace.open(path, os.O_WRONLY)
            workspace.remove(path)
        self._total = 0

    def add(self, data: bytes) -> None:
        """Write some more, over what is oldest."""
        begin = max(0, len(data) - RING_BYTES)
        at = (self._total + begin) % RING_BYTES
        rest = data[begin:]
        until_end = RING_BYTES - at
        os.pwrite(self._file, rest[:until_end], _TOTAL.size + at)
        if len(rest) > until_end:
            os.pwrite(self._file, rest[until_end:], _TOTAL.size)
        self._total += len(data)
        os.pwrite(self._file, _TOTAL.pack(self._total), 0)


class Spool:
    """The runtime's side."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    @classmethod
    def make(cls, root: Path) -> Self:
        """In the workspace `root`. Raises ToolError where nothing can be written there."""
        path = root / f"{PREFIX}{secrets.token_hex(8)}"
        try:
            with OpenedFolders(root) as workspace:
                file = workspace.open(str(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise ToolError(f"no job can be started: {root} cannot be written: {error.strerror}") from error
        return cls(path, file)

    def total(self) -> int:
        """How many bytes the job has printed so far."""
        head = os.pread(self._file, _TOTAL.size, 0)
        return int(_TOTAL.unpack(head)[0]) if len(head) == _TOTAL.size else 0

    def read(self, since: int) -> tuple[int, bytes]:
        """What was printed from byte `since` on, as far as it is still there, and which byte it begins with."""
        total = self.total()
        ring = os.pread(self._file, RING_BYTES, _TOTAL.size)
        begin = max(since, self.total() - RING_BYTES, 0)  # what was written meanwhile has gone over the oldest
        if begin >= total:
            return total, b""
        at, end = begin % RING_BYTES, total % RING_BYTES
        return begin, ring[at:end] if at < end else ring[at:] + ring[:end]

    def close(self) -> None:
        """Let go of the file, and remove it where the job never began."""
        os.close(self._file)
        with contextlib.suppress(OSError), OpenedFolders(self.path.parent) as workspace:
            workspace.remove(str(self.path))

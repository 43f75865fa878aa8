"""The folder of an index: who may write it, which version it is, and that it is ours.

index.json      format version; if it is missing beside other files, the folder is not an index
truth.sqlite    files, symbols, chunks, edges
lexical/        tantivy, rebuilt from the sources when it does not match truth.sqlite
vectors.sqlite  embeddings by content hash; only a cache
writer.lock     held by the one process that writes
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callboard.protocol.errors import UsageError

#: Raised by one whenever a stored form or the way of cutting and naming changes; an older index is rebuilt.
FORMAT_VERSION = 4
MARKER = "index.json"
OUR_NAMES = frozenset(
    {MARKER, "truth.sqlite", "truth.sqlite-wal", "truth.sqlite-shm", "lexical", "writer.lock",
     "vectors.sqlite", "vectors.sqlite-wal", "vectors.sqlite-shm"}
)  # fmt: skip
#: In a workspace, where the index is by default.
OUR_FOLDER = ".callboard"
#: An index says what is in files that others may not be allowed to read.
FOLDER_MODE, FILE_MODE = 0o700, 0o600
#: How often a waiting writer looks at the lock.
LOCK_POLL_SECONDS = 0.05


class BrokenIndexError(UsageError):
    """The index's files are not what we wrote. `CodeIndex.open` builds it again; only time is lost."""


class IndexBusyError(UsageError):
    """Another process is writing this index. It can still be searched."""


class Layout:
    """The folder of one index, and where each part of it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.truth = folder / "truth.sqlite"
        self.lexical = folder / "lexical"
        self.vectors = folder / "vectors.sqlite"
        self.lock = folder / "writer.lock"

    def prepare(self) -> str:
        """Make or check the folder. Returns why an index that was there has to be rebuilt; usually nothing.

        Raises:
            UsageError: the folder cannot be made, or holds something that is not an index of ours.
        """
        try:
            _make_private(self.folder)
            names = {entry.name for entry in self.folder.iterdir()}
            if names and MARKER not in names and not names <= OUR_NAMES:
                raise UsageError(
                    f"{self.folder} is not empty and not a callboard index; name another folder (the setting index_dir)"
                )
            self.close_to_others()
            if reason := self._reason_to_rebuild():
                with self.write_lock(wait_seconds=10):
                    self.clear()
            return reason
        except OSError as error:
            raise UsageError(
                f"cannot use {self.folder} for the index: {error.strerror or error}; name another folder for it"
            ) from error

    def close_to_others(self) -> None:
        """What is in an index is told to its owner only, also where an older version or a copy has left it open.

        The files are made before SQLite opens them: those that it adds get the mode of its database.
        """
        self.lexical.mkdir(mode=FOLDER_MODE, exist_ok=True)
        for file in (self.truth, self.vectors, self.lock):
            os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
        outer = (self.folder.parent,) if self.folder.parent.name == OUR_FOLDER else ()
        for place in (*outer, self.folder, *self.folder.iterdir(), *self.lexical.iterdir()):
            _close_to_others(place)

    def _reason_to_rebuild(self) -> str:
        try:
            version = json.loads((self.folder / MARKER).read_bytes())["callboard_index"]
        except FileNotFoundError:
            if self.truth.exists() and self.truth.stat().st_size:
                return "the index was not finished being made"
            self._write_marker()
            return ""
        except (OSError, ValueError, KeyError, TypeError):
            return "the index's marker file is broken"
        if version != FORMAT_VERSION:
            return f"the index has version {version}, this callboard writes version {FORMAT_VERSION}"
        return ""

    def _write_marker(self) -> None:
        temporary = self.folder / f"{MARKER}.{os.getpid()}"
        temporary.write_text(json.dumps({"callboard_index": FORMAT_VERSION}))
        temporary.chmod(FILE_MODE)
        temporary.replace(self.folder / MARKER)
        parent_ignore = self.folder.parent / ".gitignore"
        if self.folder.parent.name == OUR_FOLDER and not parent_ignore.exists():
            parent_ignore.write_text("*\n")

    def clear(self) -> None:
        """Delete our files and start with an empty index; only under the write lock."""
        for name in OUR_NAMES - {"writer.lock", MARKER}:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self._write_marker()

    @contextmanager
    def write_lock(self, wait_seconds: float) -> Iterator[None]:
        """Hold the right to write; the kernel gives it back when the process dies, however it dies.

        Raises:
            IndexBusyError: another process held it for `wait_seconds`.
        """
        with self.lock.open("a+") as stream:
            deadline = time.monotonic() + wait_seconds
            while not _try_lock(stream.fileno()):
                if time.monotonic() >= deadline:
                    stream.seek(0)
                    owner = stream.read(20).strip() or "unknown"
                    raise IndexBusyError(
                        f"process {owner} is writing the index in {self.folder}; try again when it is done"
                    )
                time.sleep(LOCK_POLL_SECONDS)
            stream.truncate(0)
            stream.write(str(os.getpid()))
            stream.flush()
            try:
                yield
            finally:
                self.close_to_others()
                fcntl.flock(stream.fileno(), fcntl.LOCK_UN)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_private(folder: Path) -> None:
    """Make the folder and those above it that are missing, none of them open to others at any time."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=FOLDER_MODE, exist_ok=True)


def _close_to_others(place: Path) -> None:
    """Raises UsageError where that cannot be done: the place belongs to another user."""
    try:
        status = place.lstat()
        wanted = FOLDER_MODE if stat.S_ISDIR(status.st_mode) else FILE_MODE
        if stat.S_IMODE(status.st_mode) & ~wanted and not stat.S_ISLNK(status.st_mode):
            place.chmod(wanted)
    except FileNotFoundError:
        return  # a file of another process that writes the index
    except PermissionError:
        raise UsageError(
            f"{place} belongs to another user, who could read the index; name another folder for it"
        ) from None

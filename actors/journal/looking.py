"""How a journal file is opened by one who may change nothing: not the file, not its log, not the log's index.

SQLite changes files that it is only to read: it deletes the log of an empty file, makes a log and an index where there
are none, and writes the index anew behind a process that was killed ("Write-Ahead Logging", "Read-Only Databases").
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from callboard.actors.journal.file_lock import cannot_use
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.journal.sqlite_database import SqliteDatabase
from callboard.actors.journal.wal_frames import PAGE_BYTES, WAL_HEADER_BYTES, is_log_header
from callboard.protocol.errors import UsageError

#: A copy is of one moment: it is made again where a process wrote meanwhile.
_TRIES: Final = 3

Stamp = tuple[tuple[int, int, int] | None, ...]


def looked_at(path: Path) -> SqliteDatabase:
    """A connection that reads, beside another process that writes too; this one has not the file open.

    Raises JournalFailed, UsageError.

    Of a file without a log that counts, SQLite is told that nobody changes it; where somebody does so all the same,
    what looks damaged is told as that (`SqliteDatabase`). With a log and its index, it reads beside whoever has it, and
    reads the log for itself where nobody has. Else it reads a copy, whose names are gone before the first answer.
    """
    try:
        path = path.resolve()
        log, index, journal = (_beside(path, ending) for ending in ("-wal", "-shm", "-journal"))
        has_log = _counts(log)
        if not has_log and not _size(path):
            raise UsageError(
                f"{path} is empty, and not a journal: a runtime that starts makes one of it; if it was one, put a copy "
                "of that in its place"
            )
        if _size(journal) or (has_log and not (index.is_file() and _size(path))):
            return _copied(path)
        if has_log:
            return SqliteDatabase(path, uri=f"{_uri(path)}&readonly_shm=1")
        was = stamp(path)
        return SqliteDatabase(path, uri=f"{_uri(path)}&immutable=1", is_changed=lambda: stamp(path) != was)
    except OSError as error:
        raise cannot_look(path, error) from error


def cannot_look(path: Path, error: OSError) -> UsageError | JournalFailed:
    """Why a journal cannot be looked at, as the error to raise."""
    if isinstance(error, PermissionError):
        return UsageError(f"the journal {path} cannot be read: {error.strerror}: look at its owner and mode")
    return cannot_use(path, error)


def stamp(path: Path) -> Stamp:
    """What is another one when the file or its log was written to."""
    return tuple(map(_stamp, (path, _beside(path, "-wal"))))


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _counts(log: Path) -> bool:
    """Would SQLite read it?

    One that is its header alone, as a process leaves it that is killed between its first two writes, has nothing in it.
    A connection that may not mend the index tries for 10 s, and gives up with SQLITE_PROTOCOL: in SQLite 3.40,
    walIndexRecover takes such a log for none, and walBeginShmUnreliable takes it for one that was begun meanwhile.
    """
    if _size(log) <= WAL_HEADER_BYTES:
        return False
    with log.open("rb") as file:
        return is_log_header(file.read(WAL_HEADER_BYTES))


def _uri(path: Path, mode: str = "ro") -> str:
    return f"file:{quote(str(path))}?mode={mode}"


def _copied(path: Path) -> SqliteDatabase:
    """Of a copy in a folder of its own, that only this user can read."""
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="callboard-look-") as folder:
            was, copy = stamp(path), Path(folder, "journal")
            _copy(path, copy)
            if stamp(path) != was:
                continue
            database = SqliteDatabase(path, uri=_uri(copy, "rw"))
            try:
                database.query("SELECT 1 FROM sqlite_master")  # now all of its files are open
            except BaseException:
                database.close()
                raise
            return database
    raise JournalFailed(f"the journal {path} is being written by another process: look again")


def _copy(path: Path, copy: Path) -> None:
    files = [(path, copy), *((_beside(path, each), _beside(copy, each)) for each in ("-wal", "-journal"))]
    needed = sum(_size(each) for each, _ in files)
    if shutil.disk_usage(copy.parent).free <= needed:
        raise JournalFailed(
            f"the journal {path} is copied to be looked at, and {copy.parent} has no room for {needed:,} bytes: "
            "make room, or name another folder with TMPDIR"
        )
    for each, to in files:
        if _size(each):
            shutil.copyfile(each, to)
    if not _size(copy):
        copy.write_bytes(bytes(PAGE_BYTES))  # SQLite would delete the log of an empty file

"""Are the files of an open journal still those that this process opened? And what to do when they are not.

A file that is removed or replaced while it is open can be written on without an error, and nobody reads it ever again.
SQLite does not look. A look costs four calls of stat.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.journal.encoding import column
from callboard.actors.journal.file_lock import FILE_MODE, FileLock, LastWritten, lock_path, this_boot
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import Change, Write
from callboard.actors.journal.salvage import IDLE_SECONDS, damaged_path, sync_folder
from callboard.actors.journal.sqlite_database import APPLICATION_ID
from callboard.actors.journal.tables import EVENTS, OPEN, SET_ASIDE
from callboard.actors.journal.wal_frames import PAGE_BYTES

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
#: For the id of the journal, which is in one of its first pages, unless a VACUUM has moved it.
_PIECE_BYTES: Final = 256 * 1024
#: In the header: how often the file was changed, and how many pages it has.
_CHANGES_AT: Final = 24
_PAGES_AT: Final = 28


class Left(Enum):
    """What of a journal that is not ours any more is to be done, so that nothing is lost and nothing of others is
    touched."""

    CLOSED = "closed"
    """Closed as usual: its files are whole, and where they were."""
    IN_FILE = "in file"
    """Its log is written into it, which is ours; what is beside it is not removed."""
    AS_IT_IS = "as it is"
    """Nothing can be done."""
    ASIDE = "aside"
    """What this process has of it is kept under another name."""


class FilesChanged(Struct, frozen=True):
    """That something else has changed the files."""

    what: str
    """As the end of a sentence that begins with the journal."""
    left: Left
    lost_since: float | None = None
    """By the wall clock: what was written from then on may be lost. None: since the last look."""


class OwnFiles:
    """Of a journal that is open, and stays so for as long as this is used."""

    def __init__(self, lock: FileLock, journal_id: str, durability: str) -> None:
        """`journal_id`: a word that is in its file, and in no other."""
        self._durability = durability
        self._lock, self._path = lock, lock.path
        self._id = journal_id.encode()
        self._log = lock.files["-wal"]
        self._names = {ending: lock.path.with_name(lock.path.name + ending) for ending in ("", "-wal", "-shm")}
        self._names["lock"] = lock_path(lock.path)
        found = {each: _stat(name) for each, name in self._names.items()}
        self._were = {each: seen for each, seen in found.items() if seen is not None}
        self._log_bytes = self._log_size()

    def log_may_shrink(self) -> None:
        """We are about to write otherwise than by a commit of changes: SQLite may begin the log anew, or empty it."""
        self._log_bytes = 0

    def committed(self, batch: Sequence[Change], refused: Sequence[object]) -> None:
        """Note how long the log is now, since SQLite may have begun it anew, and shortened it; and what was written
        last. At each commit, which takes some 5 us: what the last note does not tell of may be lost unseen."""
        self._log_bytes = self._log_size()
        for change, why in zip(reversed(batch), reversed(refused), strict=True):
            if why is None and isinstance(change, Write) and change.events:
                last = column(change.request_id), change.number + len(change.events) - 1
                self._lock.note(LastWritten(*last, self._durability, this_boot(), _content(self._lock.files[""])))
                return

    def is_log_shorter(self) -> bool:
        """Than after our last commit? What is written now would leave a hole in it."""
        return self._log_size() < self._log_bytes

    def _log_size(self) -> int:
        return os.lseek(self._log, 0, os.SEEK_END)  # a fifth of what fstat takes

    def change(self) -> FilesChanged | None:
        """Since the last look; None when all is as we have left it. Raises OSError."""
        now = {each: _stat(name) for each, name in self._names.items()}
        for each, was in self._were.items():
            if (seen := now[each]) is None or not os.path.samestat(seen, was):
                return self._gone(each, is_there=seen is not None)
        main = now[""]
        assert main is not None
        if main.st_nlink > 1:
            return FilesChanged(f"was given {main.st_nlink} names (hard links)", Left.CLOSED)
        is_changed = _state(main) != _state(self._were[""])
        if is_changed and (what := self._overwritten(main)):
            return FilesChanged(what, Left.ASIDE)
        # A checkpoint of another connection can have emptied it into the file.
        if self.is_log_shorter() and (self._log_size() or not is_changed):
            what = "has lost a part of its log: it was truncated by another program"
            return FilesChanged(what, Left.ASIDE, main.st_mtime)
        self._were[""] = main
        self._log_bytes = self._log_size()
        return None

    def _gone(self, which: str, *, is_there: bool) -> FilesChanged:
        what = "replaced by another file" if is_there else "removed, or given another name"
        if which == "lock":
            return FilesChanged(
                f"may be another process's too: its lock file {self._names[which]} was {what}", Left.CLOSED
            )
        if not self._path.parent.is_dir():
            return FilesChanged(f"was removed or moved with its folder {self._path.parent}", Left.AS_IT_IS)
        if which:
            return FilesChanged(f"has lost its log: {self._names[which]} was {what}", Left.IN_FILE)
        return FilesChanged(f"was {what}", Left.ASIDE)

    def _overwritten(self, main: os.stat_result) -> str:
        """Our own checkpoints change the file too, and those of others that use SQLite: what is it now?"""
        header = os.pread(self._lock.files[""], _HEADER_BYTES, 0)
        # Where SQLite has given room back to the disk, perhaps long after it was told to, the header says so.
        pages = int.from_bytes(header[_PAGES_AT : _PAGES_AT + 4], "big")
        if main.st_size < self._were[""].st_size and not 0 < pages * PAGE_BYTES <= main.st_size:
            return "was truncated by another program"
        is_journal = header.startswith(_MAGIC) and int.from_bytes(header[68:72], "big") == APPLICATION_ID
        return "" if is_journal and self._has_id() else "was overwritten by another program"

    def _has_id(self) -> bool:
        file, place, before = self._lock.files[""], 0, b""
        while piece := os.pread(file, _PIECE_BYTES, place):
            if self._id in before + piece:
                return True
            before, place = piece[-len(self._id) :], place + len(piece)
        return False

    def keep_aside(self, now: float) -> Path:
        """Where what this process has of the journal is from now on: a copy of the file, with the log beside it.

        What is ours of a log beside a file that is not is taken away: SQLite would take the two for one journal.
        Raises OSError.
        """
        aside = damaged_path(self._path, now)
        self._copy("", aside)
        log = aside.with_name(f"{aside.name}-wal")
        if self._is_at_its_place("-wal"):
            self._names["-wal"].replace(log)
        else:
            self._copy("-wal", log)
        if self._is_at_its_place("-shm"):
            self._names["-shm"].unlink()
        sync_folder(aside)
        return aside

    def _is_at_its_place(self, each: str) -> bool:
        seen = _stat(self._names[each])
        return seen is not None and os.path.samestat(seen, self._were[each])

    def _copy(self, ending: str, to: Path) -> None:
        descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        # Not of the descriptor that is held: to close one ends the locks of the connection, which is needed still.
        with open(descriptor, "wb") as copy, open(self._lock.files[ending], "rb", closefd=False) as file:
            file.seek(0)
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())


def _stat(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return path.stat(follow_symlinks=False)
    return None


def _state(seen: os.stat_result) -> tuple[int, int, int]:
    return seen.st_ino, seen.st_size, seen.st_mtime_ns


# -- what the process before has left


def is_as_left(path: Path, left: LastWritten | None) -> bool:
    """Is it what the process before had in its file, as it was then? So a log that is missing is missed."""
    if left is None or not left.request_id:
        return False
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return _content(file.fileno()) == left.file
    return False


def _content(file: int) -> tuple[int, int]:
    """Which state of the file it is: SQLite counts them (https://www.sqlite.org/fileformat2.html, 1.3.7)."""
    return os.fstat(file).st_size, int.from_bytes(os.pread(file, 4, _CHANGES_AT), "big")


def lost_end(database: JournalDatabase, left: LastWritten | None) -> str:
    """Is what the process before had written last not in the journal? In words; "" when it is, or nothing is known.

    With `durability="process"` a power cut may have taken it, which is as promised.
    """
    if left is None or not left.request_id or database.query(_IS_THERE, (left.request_id, left.number)):
        return ""
    if left.durability == "process" and (not left.boot or left.boot != this_boot()):
        return ""
    return f"event {left.number} of request {left.request_id}, the last that was written, is not in it"


def end_looked_for(
    database: JournalDatabase, lock: FileLock, now: float, *, as_left: bool, log_is_there: bool
) -> list[str]:
    """A note where the end of what the process before has written is not there. Raises JournalFailed.

    `as_left`: as `is_as_left`, before the file was opened; else an older copy was put in its place, perhaps, and that
    is no damage. What `salvage` has just now said of the request is not said again.
    """
    left, why = lock.left, lost_end(database, lock.left)
    if left is None or not why or database.query(_IS_TOLD, (left.request_id, now)):
        return []
    if not as_left:
        return [f"{lock.path} is not the journal that the process before left, or an older copy of it: {why}"]
    why = f"{LOG_IS_SHORT}: {why}"
    idle_seconds = IDLE_SECONDS if left.durability == "process" and log_is_there else math.inf
    database.begin()
    try:
        count = _set_aside_end(database, why, now, idle_seconds)
        database.commit()
    except BaseException:
        database.rollback()
        raise
    return [f"{lock.path}: {why}; the {count} requests that had not ended are not gone on with"]


def _set_aside_end(database: JournalDatabase, why: str, now: float, idle_seconds: float) -> int:
    """Within the transaction that runs: nobody goes on with an open request of which an event may be missing, since its
    calls would be run again. One that had waited for longer at the end of what is there is gone on with. How many there
    are."""
    found = [str(request_id) for (request_id,) in database.query(_AT_WORK, (idle_seconds,))]
    rows = [
        SET_ASIDE.row(now, f"request {each}", f"records of it may be lost: {why}", each, "", None) for each in found
    ]
    end = SET_ASIDE.row(now, "the end of the journal's log", why, None, "", None)
    database.execute_many(SET_ASIDE.insert, [*rows, end])
    return len(found)


LOG_IS_SHORT: Final = "its log is missing, or shorter than it was"
_IS_THERE: Final = f"SELECT 1 FROM {EVENTS.name} WHERE request_id = ? AND number = ?"
_IS_TOLD: Final = f"SELECT 1 FROM {SET_ASIDE.name} WHERE request_id = ? AND found_at = ?"
_AT_WORK: Final = (
    f"SELECT request_id FROM {OPEN} o WHERE coalesce((SELECT max(written_at) FROM {EVENTS.name} e"
    f" WHERE e.request_id = o.request_id) >= (SELECT max(written_at) FROM {EVENTS.name}) - ?, 1)"
)

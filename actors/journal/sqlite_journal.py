"""The journal in a SQLite file: one process writes it, any thread of it reads; a file of a dead process can be merged.

`path` may have `{pid}` in it: then each process has a file of its own, and takes over those that dead ones have left.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from callboard.actors.journal.file_lock import FileLock, cannot_use, holder, lock_path
from callboard.actors.journal.journal_database import JournalDatabase
from callboard.actors.journal.journal_records import Change, OpenReport
from callboard.actors.journal.journal_store import ChangeRefused, Idle, JournalFailed, JournalGone, JournalReader
from callboard.actors.journal.looking import looked_at
from callboard.actors.journal.own_files import FilesChanged, Left, OwnFiles
from callboard.actors.journal.salvage import other_format, remove_database
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.sql_writer import SqlWriter
from callboard.actors.journal.sqlite_database import APPLICATION_ID, Durability, JournalDamaged, SqliteDatabase
from callboard.actors.journal.sqlite_file import (
    PID_MARK,
    format_of,
    header_fault,
    merge_files_of_dead,
    moved_aside,
    prepared,
    real_path,
)
from callboard.actors.journal.tables import FORMAT, META, SET_ASIDE
from callboard.protocol.errors import CallboardError, UsageError, said
from callboard.protocol.ids import RequestId

R = TypeVar("R")

#: Free pages that are given back to the disk at once: 1 MB, some milliseconds.
_PAGES_AT_ONCE: Final = 256
_SIZES: Final = ("page_count", "freelist_count", "page_size")
#: Between two looks at our files, and so what may be answered at the most after they have gone. A look costs 20 us.
LOOK_SECONDS: Final = 1.0
_JOURNAL_ID: Final = f"SELECT value FROM {META.name} WHERE name = 'journal'"
_WHAT_IS_LEFT: Final = {
    Left.CLOSED: "nothing of it is lost; leave its files to callboard",
    Left.IN_FILE: "nothing of it is lost, since its log was written into it now; leave its files to callboard",
    Left.AS_IT_IS: "{doubt}, unless it was moved with all that was in it: put the folder back",
}
#: Connections that cannot be closed without harm to the files of others: they last as long as the process.
_KEPT: Final[list[SqliteDatabase]] = []


class SqliteJournal:
    """`JournalWriter` for a file. Its methods are called from one thread, but for `reader`."""

    is_shared: Final = False

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "power",
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = str(path)
        self._durability: Durability = durability
        self._wall_clock, self._clock = wall_clock, clock
        self.path = Path(self._given)
        self._lock: FileLock | None = None
        self._database: SqliteDatabase | None = None
        self._writer: SqlWriter | None = None
        self._files: OwnFiles | None = None
        self._look_at = 0.0
        self._looked_at = 0.0
        """When all was ours, by the wall clock."""
        self._gone = ""

    def open(self) -> OpenReport:
        if PID_MARK in str(Path(self._given).parent):
            raise UsageError(f"the journal {self._given}: write {PID_MARK} in the name of the file, not of a folder")
        self.path = real_path(self._given.replace(PID_MARK, str(os.getpid())))
        self._lock = FileLock.taken(self.path)
        if self._lock is None:
            raise UsageError(
                f"the journal {self.path} is in use by {holder(self.path)}: end it, choose another path, write "
                f"{PID_MARK} in the path for a file of each process, or use PostgreSQL"
            )
        try:
            now = self._wall_clock()
            notes = self._open(now)
        except UsageError:
            self._lock.give_up()
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        return OpenReport(tuple(notes), self._set_aside_at(now))

    def _set_aside_at(self, now: float) -> int:
        ((count,),) = self._file().query(f"SELECT COUNT(*) FROM {SET_ASIDE.name} WHERE found_at = ?", (now,))
        assert isinstance(count, int)
        return count

    def _open(self, now: float) -> list[str]:
        assert self._lock is not None
        self._database, notes = prepared(self._lock, self._durability, now)
        if PID_MARK in self._given:
            notes += merge_files_of_dead(self._given, self.path, self._database, self._durability, now)
        self._look_after_files()
        self._writer = SqlWriter(self._database, uuid.uuid4().hex, wall_clock=self._wall_clock)
        return notes

    def _look_after_files(self) -> None:
        assert self._lock is not None
        assert self._database is not None
        ((journal_id,),) = self._database.query(_JOURNAL_ID)
        if not self._lock.hold_files():
            raise UsageError(f"the journal {self.path} is in use by another process: end it, or choose another path")
        self._files = OwnFiles(self._lock, str(journal_id), self._durability)
        self._set_looked()

    def _set_looked(self) -> None:
        self._look_at, self._looked_at = self._clock() + LOOK_SECONDS, self._wall_clock()

    def commit(self, batch: Sequence[Change]) -> Sequence[ChangeRefused | None]:
        writer, files = self._opened(), self._files
        assert files is not None
        if files.is_log_shorter():
            self._look()
        try:
            refused = writer.commit(batch)
        except JournalFailed:
            self._look()  # that is why, perhaps
            raise
        files.committed(batch, refused)
        if self._clock() >= self._look_at:
            self._look()
        return refused

    def _look(self) -> None:
        """Raises JournalGone where our files are not ours any more: they are left as is best for all."""
        files = self._files
        if files is None:
            return
        try:
            change = files.change()
        except OSError as error:
            raise cannot_use(self.path, error) from error
        if change is None:
            self._set_looked()
            return
        told = f"the journal {self.path} {change.what}, while this process had it open (after {_utc(self._looked_at)})"
        self._gone = f"{told}: {self._left(change, files)}"
        self.close()
        raise JournalGone(self._gone)

    def _left(self, change: FilesChanged, files: OwnFiles) -> str:
        """Save what can be saved. What became of it, and what to do."""
        assert self._database is not None
        since = _utc(self._looked_at if change.lost_since is None else change.lost_since)
        doubt = f"what was answered since {since} may be missing in it"
        try:
            if change.left is Left.IN_FILE:
                self._database.checkpoint()
            elif change.left is Left.ASIDE:
                aside = files.keep_aside(self._wall_clock())
                return f"{doubt}; what this process had of it is {aside} now: put that in its place, with its -wal"
        except (OSError, CallboardError) as error:
            return f"{doubt}, since what this process had of it could not be kept: {said(error)}"
        return _WHAT_IS_LEFT[change.left].format(doubt=doubt)

    def take_up(self, idle: Idle | None = None) -> tuple[RequestId, ...]:
        return self._writer_after_look().take_up()

    def forget_takings(self, request_ids: Sequence[RequestId]) -> None:
        self._writer_after_look().forget_takings(request_ids)

    def renew(self) -> float | None:
        self._opened()
        self._look()
        return LOOK_SECONDS

    def may_act(self) -> bool:
        return True

    def reader(self) -> JournalReader:
        return SqliteReader(self.path)

    # -- cleaning up: see `retention.CleansUp`

    def change(self, run: Callable[[JournalDatabase], R]) -> R:
        writer = self._writer_after_look()
        if self._lock is not None:
            self._lock.forget()  # what was written last may be deleted now
        return writer.change(run)

    def give_back(self) -> None:
        self._writer_after_look()
        self._file().query(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})")

    def vacuum(self) -> None:
        self._writer_after_look()
        self._file().query("VACUUM")
        self.forget()

    def forget(self) -> str:
        """What was deleted is zeros in the database (secure_delete); the WAL, which has it still, is cut to nothing."""
        self._writer_after_look()
        ((is_busy, *_),) = self._file().query("PRAGMA wal_checkpoint(TRUNCATE)")
        left = []
        if is_busy:
            left.append(f"{self.path} is being read: what was deleted leaves its WAL with the next checkpoint")
        if copies := moved_aside(self._given, self.path):
            left.append(
                f"what was moved aside may hold it still, and is yours to delete: {', '.join(map(str, copies))}"
            )
        return "; ".join(left)

    def _writer_after_look(self) -> SqlWriter:
        """For what may make our log smaller: what another has done is not taken for that."""
        writer = self._opened()
        self._look()
        if self._files is not None:
            self._files.log_may_shrink()
        return writer

    def size_bytes(self) -> int:
        pages, free, each = (self._file().query(f"PRAGMA {name}")[0][0] for name in _SIZES)
        assert isinstance(pages, int)
        assert isinstance(free, int)
        assert isinstance(each, int)
        return (pages - free) * each

    def _file(self) -> SqliteDatabase:
        self._opened()
        assert self._database is not None
        return self._database

    def close(self) -> None:
        self._writer = None
        try:
            if not self._gone:
                self._look()  # it closes what is not ours, and says so
        finally:
            database, self._database = self._database, None
            lock, self._lock = self._lock, None
            self._files = None
            if lock is not None:
                if database is not None:
                    self._close_database(database, lock)
                lock.release()

    def _close_database(self, database: SqliteDatabase, lock: FileLock) -> None:
        if not self._gone:
            # A log that cannot be emptied, as the disk is full or a reader is at it, is read by the next process.
            with contextlib.suppress(JournalFailed):
                database.checkpoint()
            with contextlib.suppress(OSError):
                lock.forget()  # closed: what is missing in it from now on, its owner has taken out
        elif not lock.keeps_closing_harmless():
            _KEPT.append(database)
            return
        database.close()

    def _opened(self) -> SqlWriter:
        if self._gone:
            raise JournalGone(self._gone)
        if self._writer is None:
            raise JournalFailed(f"the journal {self.path} is not open")
        return self._writer


class SqliteReader(SqlReader):
    """`JournalReader` for a file."""

    def __init__(self, path: Path, file: SqliteDatabase | None = None) -> None:
        """Of the journal of this process, or of one that `file` reads."""
        self._file = file or SqliteDatabase(path, reads_only=True)
        super().__init__(self._file)

    @classmethod
    def looking(cls, path: Path) -> SqliteReader:
        """Of any journal file, of which nothing is changed. Raises UsageError for the file of another program, and for
        a format that this callboard does not read; JournalFailed where it cannot be read, JournalDamaged among them."""
        is_ours = FileLock.is_of_this_process(path.resolve())
        try:
            reader = cls(path, None if is_ours else looked_at(path))
        except JournalDamaged:
            if not is_ours:
                header_fault(path)
            raise
        try:
            reader._check(is_ours=is_ours)
        except BaseException:
            reader.close()
            raise
        return reader

    @property
    def database(self) -> SqliteDatabase:
        return self._file

    def _check(self, *, is_ours: bool) -> None:
        """`is_ours`: this process has it open, and may not open and close its file in any other way."""
        path = self._file.path
        try:
            if not is_ours and self._file.query("PRAGMA application_id") != [(APPLICATION_ID,)]:
                if why := header_fault(path):
                    raise JournalDamaged(path, why)
                raise UsageError(f"{path} is an empty database, not a journal: a runtime that starts makes one of it")
            found = format_of(self._file)
        except JournalDamaged:
            if not is_ours:
                header_fault(path)
            raise
        if found != str(FORMAT):
            raise other_format(path, found)

    def close(self) -> None:
        self._file.close()


def _utc(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def remove_journal(path: Path) -> None:
    """All files of one that no process has open."""
    remove_database(path)
    lock_path(path).unlink(missing_ok=True)

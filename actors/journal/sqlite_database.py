"""SQLite for the journal: one connection, with its settings, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal
from urllib.parse import quote

from callboard.actors import sqlite_log
from callboard.actors.journal.journal_database import StatementRefused
from callboard.actors.journal.journal_store import JournalFailed, JournalUnsure
from callboard.actors.journal.tables import FORMAT, Row, schema

Durability = Literal["power", "process"]
#: https://www.sqlite.org/pragma.html#pragma_synchronous: in WAL mode FULL syncs the WAL at each commit, NORMAL only at
#: checkpoints: what is committed survives the end of the process, but may be rolled back by a power cut.
_SYNCHRONOUS: Final[dict[Durability, str]] = {"power": "FULL", "process": "NORMAL"}
#: The WAL is copied into the database when it has so many pages (16 MB), and cut to this size then. SQLite's own 1,000
#: pages cost a sixth of all time: pages of indexes that are written in each commit are copied four times as often.
_CHECKPOINT_PAGES: Final = 4_000
_WAL_LIMIT_BYTES: Final = 24 * 1024 * 1024
#: Of SQLite's virtual machine, between two looks at the clock: some 0.1 ms.
_LOOK_INSTRUCTIONS: Final = 10_000
#: "cb" and 16 bits of our own: https://www.sqlite.org/pragma.html#pragma_application_id
APPLICATION_ID: Final = 0x6362_4A31
#: All tables and indexes of the journal begin so; other names are those of tools.
OWN_PREFIX: Final = "callboard_"
_NOT_FOR_TOOLS: Final = frozenset(
    {
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_SAVEPOINT,
        sqlite3.SQLITE_ATTACH,
        sqlite3.SQLITE_DETACH,
        sqlite3.SQLITE_PRAGMA,
    }
)
#: The table is the second thing that these name (https://www.sqlite.org/c3ref/c_alter_table.html).
_ABOUT_TABLE_SECOND: Final = frozenset(
    {
        sqlite3.SQLITE_ALTER_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_INDEX,
        sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
        sqlite3.SQLITE_CREATE_TRIGGER,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_TEMP_INDEX,
        sqlite3.SQLITE_DROP_TEMP_TRIGGER,
        sqlite3.SQLITE_DROP_TRIGGER,
    }
)

#: By the primary result code (https://www.sqlite.org/rescode.html): what to do.
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: "the disk, or its quota, is full: make room, or move the journal",
    sqlite3.SQLITE_IOERR: (
        "the disk reports an error, or a quota is used up: look at the system log, and move the journal to a sound disk"
    ),
    sqlite3.SQLITE_READONLY: "the file or its folder cannot be written: make it writable, or move the journal",
    sqlite3.SQLITE_CANTOPEN: "a file of it cannot be opened: look at the folder, its mode and the number of open files",
    sqlite3.SQLITE_PERM: "a file of it may not be opened: look at its owner and mode",
    sqlite3.SQLITE_BUSY: "another program holds a lock on it: end that program",
    sqlite3.SQLITE_LOCKED: "another program holds a lock on it: end that program",
    sqlite3.SQLITE_PROTOCOL: "another program holds a lock on it: end that program",
    sqlite3.SQLITE_NOMEM: "there is no memory left",
}
_REPAIR: Final = "a new start, or `callboard journal repair`, saves what is sound"
#: Here SQLite does not say what the system has said.
_OF_FILE_SYSTEM: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN})
_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY: Final = 0xFF
_MOST_FAULTS: Final = 3
_SCHEMA_NOW: Final = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name LIKE ?"


class JournalDamaged(JournalFailed):
    """The file was found damaged: what is sound in it can be saved. `why` is what is wrong, in a few words."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the journal {path} is damaged ({why}): {_REPAIR}")
        self.why = why


class SqliteDatabase:
    """One connection to the file. `JournalDatabase` says what its methods do."""

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability = "power",
        reads_only: bool = False,
        uri: str = "",
        is_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        """`uri`: what is read, and no more than that, in place of the path. `is_changed`: has somebody written to a
        file that is read as one that nobody writes to?"""
        self.path = path
        self._told = _Told(path, is_changed)
        self._durability: Durability = durability
        self._reads_only = reads_only or bool(uri)
        self._uri = uri or f"file:{quote(str(path))}?mode={'ro' if reads_only else 'rw'}"
        self._begin = "BEGIN" if self._reads_only else "BEGIN IMMEDIATE"
        self._connection = self._connected()
        #: Could a transaction not be rolled back? Then the connection is made again before it is used again.
        self._is_stuck = False

    def _connected(self) -> sqlite3.Connection:
        with self._told:
            connection = sqlite3.connect(
                self._uri,
                uri=True,
                timeout=sqlite_log.BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,  # a reader may be handed from thread to thread
                cached_statements=256,
            )
        try:
            with self._told:
                self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        if self._reads_only:
            connection.execute("PRAGMA query_only = ON")
            return
        # Of a new file, and before anything else writes to it: what is free can be given back in small steps.
        # Not of another: where the first frame of its log is damaged, this would write over that log.
        if self.path.stat().st_size == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        if sqlite_log.switch_on(connection.execute) != "wal":
            raise JournalFailed(f"{self.path}: this file system has no shared memory for SQLite; use a local disk")
        for name, value in (
            ("synchronous", _SYNCHRONOUS[self._durability]),
            ("wal_autocheckpoint", _CHECKPOINT_PAGES),
            ("journal_size_limit", _WAL_LIMIT_BYTES),
            # What is deleted is overwritten with zeros: a deleted conversation cannot be read from the file.
            ("secure_delete", "ON"),
            ("fullfsync", "ON"),  # macOS: fsync alone leaves the data in the drive's cache
        ):
            connection.execute(f"PRAGMA {name} = {value}").fetchall()

    def begin(self) -> None:
        if self._is_stuck:
            self._connection.close()
            self._connection = self._connected()
            self._is_stuck = False
        with self._told:
            self._connection.execute(self._begin)

    def commit(self) -> None:
        try:
            with self._told:
                self._connection.execute("COMMIT")
        except JournalFailed as error:
            if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_FSYNC:
                raise JournalUnsure(str(error)) from error.__cause__  # all of it was written, and may be on the disk
            raise

    def rollback(self) -> None:
        # After some errors, such as a full disk, SQLite has rolled back itself:
        # https://www.sqlite.org/lang_transaction.html
        if not self._connection.in_transaction:
            return
        try:
            self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._is_stuck = True

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> int:
        with self._told:
            return self._connection.execute(sql, tuple(parameters)).rowcount

    def execute_many(self, sql: str, rows: Sequence[Row]) -> int:
        with self._told:
            return self._connection.executemany(sql, rows).rowcount

    def execute_for_tool(self, sql: str, parameters: Sequence[object], until: float) -> None:
        connection = self._connection
        connection.set_authorizer(_may_tool)
        connection.set_progress_handler(lambda: time.monotonic() > until, _LOOK_INSTRUCTIONS)
        try:
            with self._told:
                for _ in connection.execute(sql, tuple(parameters)):
                    pass
        except StatementRefused as error:
            if getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                error = StatementRefused("the call's statements take too long, and all requests wait for them")
            # INSERT OR ROLLBACK, a trigger that raises so, and an interrupt end the transaction of the whole batch.
            error.ended_transaction = not connection.in_transaction
            raise error from error.__cause__
        finally:
            connection.set_progress_handler(None, 0)
            connection.set_authorizer(None)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        with self._told:
            return self._connection.execute(sql, tuple(parameters)).fetchall()

    def each(self, sql: str) -> Iterator[tuple[object, ...]]:
        """Row by row: those before a damaged page are given out."""
        with self._told:
            yield from self._connection.execute(sql)

    def checkpoint(self) -> None:
        """Empty the log into the database; what was deleted is gone from it then. Readers may keep it from that."""
        with self._told:
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def frames(self) -> int:
        """How many pages of the log SQLite takes for sound."""
        (_, frames, _), *_ = self.query("PRAGMA wal_checkpoint(PASSIVE)")
        return frames if isinstance(frames, int) else 0

    def fault(self) -> str:
        """What is wrong with the pages of the file, or with what its indexes say of its tables; "" when nothing is."""
        try:
            said = [str(row[0]) for row in self.query(f"PRAGMA integrity_check({_MOST_FAULTS})")]
        except (JournalDamaged, StatementRefused) as error:
            return str(error.__cause__ or error)
        return "" if said == ["ok"] else " ".join("; ".join(said).split())

    def schema_fault(self) -> str:
        """Where its tables are not those of this format; "" when they are."""
        made = {str(row[0]) for row in self.query(_SCHEMA_NOW, (f"{OWN_PREFIX}%",))}
        wrong = [statement for statement in schema({}) if statement not in made]
        return f"its schema differs: {wrong[0]:.60}..." if wrong else ""

    def close(self) -> None:
        self._connection.close()


def make_tables(database: SqliteDatabase) -> None:
    """Make an empty journal of the file, within a transaction; its format is written with the tables."""
    for statement in (
        *schema({}),
        f"PRAGMA application_id = {APPLICATION_ID}",
        f"PRAGMA user_version = {FORMAT}",
    ):
        database.execute(statement)


def _may_tool(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    """Called by SQLite for each part of a statement that a tool has given (sqlite3_set_authorizer)."""
    if action in _NOT_FOR_TOOLS or (first or "").lower().startswith(OWN_PREFIX):
        return sqlite3.SQLITE_DENY
    if action in _ABOUT_TABLE_SECOND and (second or "").lower().startswith(OWN_PREFIX):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _advice_by_look(path: Path) -> str:
    """What can be seen of the place where the journal is; "" when that says nothing."""
    try:
        is_read_only = os.statvfs(path.parent).f_flag & os.ST_RDONLY
    except OSError as error:
        return f"its folder cannot be used ({error.strerror}): put it back, or move the journal"
    if is_read_only:
        return "its file system is read-only now: look at the system log, make it writable, or move the journal"
    return ""


class _Told:
    """A context in which SQLite's errors become those of `JournalDatabase`. A class, and one for each connection: a
    generator costs 1 us at each of some seven statements of a commit."""

    __slots__ = ("_is_changed", "_path")

    def __init__(self, path: Path, is_changed: Callable[[], bool]) -> None:
        self._path, self._is_changed = path, is_changed

    def __enter__(self) -> None:
        return

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if not isinstance(error, sqlite3.Error | OverflowError | UnicodeError):
            return
        code = getattr(error, "sqlite_errorcode", None)
        primary = code & _PRIMARY if isinstance(code, int) else None
        if isinstance(error, UnicodeDecodeError):  # what SQLite says of the damage holds a name that is damaged
            primary = sqlite3.SQLITE_CORRUPT
        if self._is_changed():
            raise JournalFailed(f"the journal {self._path} was written to while it was read: look again") from error
        if primary in _DAMAGED:
            raise JournalDamaged(self._path, str(error)) from error
        if primary not in _ADVICE:
            raise StatementRefused(f"the database refuses the statement: {error}") from error
        name = getattr(error, "sqlite_errorname", "")
        advice = (primary in _OF_FILE_SYSTEM and _advice_by_look(self._path)) or _ADVICE[primary]
        told = f"the journal {self._path} cannot be read or written ({name}: {error}): {advice}"
        raise JournalFailed(told) from error

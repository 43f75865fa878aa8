"""SQLite files whose damage is noticed: each page carries a checksum that is compared whenever the page is read.

The checksums are SQLite's own extension `cksumvfs`, which comes with apsw; Python's sqlite3 has neither it nor, in many
builds, the means to load it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw
import apsw.sqlite_extra

from callboard.actors import sqlite_log
from callboard.actors.index.disk import write_error
from callboard.protocol.errors import UsageError

#: Bytes at the end of each page that hold its checksum.
CHECKSUM_BYTES = 8
#: Input and output errors that say that the file does not hold what was written.
_DAMAGE = frozenset({apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS, apsw.SQLITE_IOERR_SHORT_READ})


class BrokenIndexError(UsageError):
    """The index's files are not what we wrote. `CodeIndex` builds it again; only time is lost."""


#: The name that SQLite's extension gives to the VFS with checksums.
_CHECKED = "cksmvfs"
_loading = threading.Lock()


def _file_system() -> str:
    """The name of the VFS with checksums. Loading it makes it the default of all connections; that is undone.

    One thread loads it, for the default is the whole process's: of two that load at once, one would take the other's
    default for what was there before.
    """
    with _loading:
        if _CHECKED not in apsw.vfs_names():
            default = apsw.vfs_names()[0]
            with contextlib.closing(apsw.Connection(":memory:")) as connection:
                apsw.sqlite_extra.load(connection, "cksumvfs")
            apsw.set_default_vfs(default)
    return _CHECKED


class Database:
    """One connection. Use `reading` or `transaction` around everything: SQLite's errors become ours there."""

    def __init__(self, path: Path, schema: str, *, synchronous: str = "NORMAL") -> None:
        """Open or make the file. Where SQLite cannot make its side files (disk full, read-only), read what is there.

        Raises:
            BrokenIndexError: the file is not what we wrote.
            UsageError: it can be neither written nor read.
        """
        self.path = path
        self.is_read_only = False
        with self.reading():
            try:
                self.connection = _connect(path, schema, synchronous)
            except (apsw.CantOpenError, apsw.ReadOnlyError, apsw.FullError, apsw.IOError) as error:
                if not self._can_be_read_alone(error):
                    raise
                self.connection = _connect_read_only(path)
                self.is_read_only = True

    def _can_be_read_alone(self, error: apsw.Error) -> bool:
        """Whether the file holds all that was committed, and cannot be read only because the disk takes no more."""
        log = self.path.with_name(f"{self.path.name}-wal")
        if _code_of(error) in _DAMAGE or not self.path.exists() or not self.path.stat().st_size:
            return False
        return not log.exists() or log.stat().st_size == 0

    def close(self) -> None:
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; a full disk or a kill leaves what was there before."""
        with self.reading():
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around queries: SQLite's errors become ours."""
        try:
            yield
        except apsw.Error as error:
            raise _told(self.path, error) from error


def _connect(path: Path, schema: str, synchronous: str) -> apsw.Connection:
    with contextlib.suppress(OSError):  # SQLite has words for it
        # Made here, readable by its owner only: SQLite's side files get the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(path), vfs=_file_system())
    try:
        connection.set_busy_timeout(int(sqlite_log.BUSY_SECONDS * 1000))
        if path.stat().st_size == 0:
            connection.reserve_bytes("main", CHECKSUM_BYTES)
        sqlite_log.switch_on(connection.execute)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA cache_size=-32000")
        connection.execute(schema).fetchall()
        _check_reserve(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_read_only(path: Path) -> apsw.Connection:
    """`immutable`: without locks and side files. Only where no other process can write."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(f"file:{quote(str(path))}?immutable=1", flags=flags, vfs=_file_system())
    _check_reserve(connection)
    return connection


def _check_reserve(connection: apsw.Connection) -> None:
    """Without room for them in the header, checksums are not looked at."""
    if connection.reserve_bytes("main", -1) != CHECKSUM_BYTES:
        raise apsw.CorruptError("the pages have no checksums")


def _code_of(error: apsw.Error) -> int:
    """SQLite's extended result code; 0 for an error of apsw's own, which has none."""
    return int(getattr(error, "extendedresult", 0))


def _told(path: Path, error: apsw.Error) -> UsageError:
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return UsageError(f"the index {path} is in use by another process; try again")
    unwritable = isinstance(error, apsw.FullError | apsw.ReadOnlyError | apsw.CantOpenError | apsw.IOError)
    if unwritable and _code_of(error) not in _DAMAGE:
        return write_error(path.parent, error)
    return BrokenIndexError(f"the index {path} is damaged: {error}")

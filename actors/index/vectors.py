"""Vectors by content hash, one byte a number, in a file of their own: only a cache, shared by processes and deleted at
will. What is damaged is thrown away and made again; what cannot be written is made again the next time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from callboard.actors.index.database import BrokenIndexError, Database
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.index")

#: Vectors of texts no longer in any file are kept until the cache has this many rows; then the oldest go.
MAX_ROWS = 400_000
#: Rows of an answer: so many vectors are in memory twice for a moment.
READ_ROWS = 4_096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL,
  PRIMARY KEY (model, digest));
"""


class VectorCache:
    """Safe between threads. See the module."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._has_warned = False
        self._database = self._opened()

    def added_since(self, model: str, mark: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """Digests and vectors of a model that were put in after `mark` (0: all), some thousand at a time, and the next
        mark: the same one when there are no more. What is read may be of an older text."""
        sql = "SELECT rowid, digest, vector FROM vectors WHERE rowid > ? AND model = ? ORDER BY rowid LIMIT ?"
        rows = self._rows(sql, (mark, model, READ_ROWS))
        found = [(key, vector) for _, key, vector in rows if isinstance(key, bytes) and isinstance(vector, bytes)]
        return found, int(str(rows[-1][0])) if rows else mark

    def last_mark(self) -> int:
        """Grows with each vector that is put in, by any process; smaller than before when the file was made again."""
        rows = self._rows("SELECT ifnull(max(rowid), 0) FROM vectors", ())
        return int(str(rows[0][0])) if rows else 0

    def get(self, model: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are there, by digest; of some thousand at a time."""
        sql = f"SELECT digest, vector FROM vectors WHERE model = ? AND digest IN ({','.join('?' * len(digests))})"
        rows = self._rows(sql, (model, *digests))
        return {key: vector for key, vector in rows if isinstance(key, bytes) and isinstance(vector, bytes)}

    def known(self, model: str, digests: Sequence[bytes]) -> set[bytes]:
        """Which of these have a vector."""
        found: set[bytes] = set()
        for first in range(0, len(digests), READ_ROWS):
            some = digests[first : first + READ_ROWS]
            sql = f"SELECT digest FROM vectors WHERE model = ? AND digest IN ({','.join('?' * len(some))})"
            found.update(row[0] for row in self._rows(sql, (model, *some)) if isinstance(row[0], bytes))
        return found

    def count(self, model: str) -> int:
        """How many vectors of a model there are."""
        rows = self._rows("SELECT count(*) FROM vectors WHERE model = ?", (model,))
        return int(str(rows[0][0])) if rows else 0

    def forget(self, model: str) -> None:
        """Its vectors are of no use any more."""
        self._rows("DELETE FROM vectors WHERE model = ?", (model,))

    def _rows(self, sql: str, parameters: Sequence[object]) -> list[tuple[object, ...]]:
        with self._lock:
            if (database := self._database) is None:
                return []
            try:
                with database.reading():
                    return database.connection.execute(sql, tuple(parameters)).fetchall()
            except BrokenIndexError as broken:
                self._throw_away(database, broken)
                return []

    def put(self, model: str, vectors: Mapping[bytes, bytes]) -> bool:
        """Keep these, where the disk has room for them; that it has none is logged once, and False."""
        rows = [(model, digest, vector) for digest, vector in vectors.items()]
        with self._lock:
            if (database := self._database) is None:
                return False
            try:
                with database.transaction():
                    database.connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?,?,?)", rows)
                    oldest = "rowid <= (SELECT max(rowid) FROM vectors) - ?"
                    database.connection.execute(f"DELETE FROM vectors WHERE {oldest}", (MAX_ROWS,))
            except BrokenIndexError as broken:
                self._throw_away(database, broken)
                return False
            except UsageError as error:
                self._warn(error)
                return False
        return True

    def close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                database.close()

    def _opened(self) -> Database | None:
        """None: there is no room for it."""
        try:
            try:
                return self._open()
            except BrokenIndexError as broken:
                logger.warning("%s; it is made again", broken)
                self._delete()
                return self._open()
        except UsageError as error:
            self._warn(error)
            return None

    def _open(self) -> Database:
        # A lost cache entry is computed again: no need to wait for the disk.
        return Database(self._path, _SCHEMA, synchronous="OFF")

    def _throw_away(self, database: Database, broken: BrokenIndexError) -> None:
        logger.warning("%s; it is made again", broken)
        database.close()
        self._delete()
        self._database = self._opened()

    def _delete(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

    def _warn(self, error: UsageError) -> None:
        if not self._has_warned:
            logger.warning("vectors of code are not kept: %s", error)
        self._has_warned = True

"""Vectors by content hash, half precision, in a file of their own: only a cache, shared by processes and deleted at
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

    def get(self, model: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are there, by digest."""
        marks = ",".join("?" * len(digests))
        sql = f"SELECT digest, vector FROM vectors WHERE model = ? AND digest IN ({marks})"
        with self._lock:
            if (database := self._database) is None:
                return {}
            try:
                with database.reading():
                    rows = database.connection.execute(sql, (model, *digests)).fetchall()
            except BrokenIndexError as broken:
                self._throw_away(database, broken)
                return {}
        return {key: vector for key, vector in rows if isinstance(key, bytes) and isinstance(vector, bytes)}

    def put(self, model: str, vectors: Mapping[bytes, bytes]) -> None:
        """Keep these, where the disk has room for them; that it has none is logged once."""
        rows = [(model, digest, vector) for digest, vector in vectors.items()]
        with self._lock:
            if (database := self._database) is None:
                return
            try:
                with database.transaction():
                    database.connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?,?,?)", rows)
                    oldest = "rowid <= (SELECT max(rowid) FROM vectors) - ?"
                    database.connection.execute(f"DELETE FROM vectors WHERE {oldest}", (MAX_ROWS,))
            except BrokenIndexError as broken:
                self._throw_away(database, broken)
            except UsageError as error:
                self._warn(error)

    def close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()

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

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
        """Raises UsageError when the file can be neither written nor read."""
        self._path = path
        self._lock = threading.Lock()
        self._database = self._opened()
        self._has_warned = False

    def get(self, model: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """The vectors that are there, by digest."""
        marks = ",".join("?" * len(digests))
        sql = f"SELECT digest, vector FROM vectors WHERE model = ? AND digest IN ({marks})"
        with self._lock:
            try:
                with self._database.reading():
                    rows = self._database.connection.execute(sql, (model, *digests)).fetchall()
            except BrokenIndexError as broken:
                self._throw_away(broken)
                return {}
        return {key: vector for key, vector in rows if isinstance(key, bytes) and isinstance(vector, bytes)}

    def put(self, model: str, vectors: Mapping[bytes, bytes]) -> None:
        """Keep these, where the disk has room for them; that it has none is logged once."""
        rows = [(model, digest, vector) for digest, vector in vectors.items()]
        with self._lock:
            try:
                with self._database.transaction():
                    connection = self._database.connection
                    connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?,?,?)", rows)
                    connection.execute(
                        "DELETE FROM vectors WHERE rowid <= (SELECT max(rowid) FROM vectors) - ?", (MAX_ROWS,)
                    )
            except BrokenIndexError as broken:
                self._throw_away(broken)
            except UsageError as error:
                if not self._has_warned:
                    logger.warning("vectors of code are not kept: %s", error)
                self._has_warned = True

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _opened(self) -> Database:
        try:
            return self._open()
        except BrokenIndexError as broken:
            logger.warning("%s; it is made again", broken)
            self._delete()
            return self._open()

    def _open(self) -> Database:
        # A lost cache entry is computed again: no need to wait for the disk.
        return Database(self._path, _SCHEMA, synchronous="OFF")

    def _throw_away(self, broken: BrokenIndexError) -> None:
        logger.warning("%s; it is made again", broken)
        self._database.close()
        self._delete()
        self._database = self._open()

    def _delete(self) -> None:
        for ending in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + ending).unlink(missing_ok=True)

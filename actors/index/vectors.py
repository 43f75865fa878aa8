"""Vectors by content hash, in a file of their own: only a cache, shared by processes, deleted at will."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from callboard.protocol.errors import UsageError

#: Vectors of texts no longer in any file are kept until the cache has this many rows; then the oldest go.
MAX_ROWS = 400_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL,
  PRIMARY KEY (model, digest));
"""


class VectorCache:
    """Half-precision vectors as bytes. Safe between threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(path, timeout=2.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            # A lost cache entry is computed again: no need to wait for the disk.
            self._db.execute("PRAGMA synchronous=OFF")
            self._db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise UsageError(f"the vector cache {path} cannot be used: {error}; delete it") from error

    def get(self, model: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        marks = ",".join("?" * len(digests))
        sql = f"SELECT digest, vector FROM vectors WHERE model = ? AND digest IN ({marks})"
        with self._lock:
            return dict(self._db.execute(sql, (model, *digests)).fetchall())

    def put(self, model: str, vectors: Mapping[bytes, bytes]) -> None:
        rows = [(model, digest, vector) for digest, vector in vectors.items()]
        with self._lock:
            self._db.executemany("INSERT OR REPLACE INTO vectors VALUES (?,?,?)", rows)
            self._trim()

    def _trim(self) -> None:
        last = self._db.execute("SELECT max(rowid) FROM vectors").fetchone()[0] or 0
        if last > MAX_ROWS:
            self._db.execute("DELETE FROM vectors WHERE rowid <= ?", (last - MAX_ROWS,))

    def close(self) -> None:
        with self._lock:
            self._db.close()

"""The dense rerank: the best lexical hits are embedded when first asked for, behind a deadline.

When the deadline passes, what is not embedded yet keeps its lexical order, and embedding continues in the
background: the same question asked again finds its vectors.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from callboard.actors.index import ranking
from callboard.actors.index.dense import Embedder, EmbedderFactory
from callboard.protocol.errors import CallboardError, UsageError

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

#: Hits that are reranked.
DEPTH = 50
#: Fewer vectors than this say too little about the order.
MIN_VECTORS = 8
#: How much the dense score counts (.5 to .6 did best: docs/retrieval.md).
DENSE_WEIGHT = 0.55
#: A cold question waits this long for its vectors, a warm one a few milliseconds. A question from the command line has
#: a second for everything.
DEADLINE_SECONDS = 0.4
#: Questions remembered.
MAX_QUERIES = 256
#: Vectors of texts no longer in any file are kept until the cache has this many rows; then the oldest go.
MAX_ROWS = 400_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS vectors (model TEXT NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL,
  PRIMARY KEY (model, digest));
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """What is embedded for a hit; `digest` names it in the cache."""

    digest: bytes
    read: Callable[[], str]


class VectorCache:
    """Vectors by content hash, half precision, in a file of their own: only a cache, shared by processes and deleted at
    will. Safe between threads."""

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


class Reranker:
    """One background thread, one embedder, one cache. An embedder's failure is kept in `last_error`, never raised."""

    def __init__(
        self, embedder: EmbedderFactory, cache: VectorCache, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self._make_embedder = embedder
        self._cache = cache
        self._deadline_seconds = deadline_seconds
        self._embedder: Embedder | None = None
        self._queries: dict[str, Vectors] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="index-embed")
        self._closing = threading.Event()
        self._turn = 0
        self.last_error = ""

    def load_ahead(self) -> None:
        """Load the model now, in the background, and not when the first question waits for it."""
        self._pool.submit(self._loaded)

    def rerank(self, query: str, texts: Sequence[Passage], scores: Sequence[float]) -> list[float]:
        """New scores for the hits, best lexical first; the old ones as far as there are no vectors in time."""
        depth = min(DEPTH, len(texts))
        if depth < 2:
            return list(scores)
        ready: list[float] = []
        self._turn += 1
        job = self._pool.submit(self._similarities, query, texts[:depth], self._turn, ready)
        self._wait(job)
        known = list(ready)
        if len(known) < min(MIN_VECTORS, depth):
            return list(scores)
        return _fused(scores, known)

    def _wait(self, job: Future[None]) -> None:
        try:
            job.result(timeout=self._deadline_seconds)
        except FutureTimeout:
            return
        except CallboardError as error:
            self.last_error = str(error)
        except Exception as error:  # noqa: BLE001  an embedder is foreign code; the lexical order is the answer then
            self.last_error = f"{type(error).__name__}: {error}"

    def _similarities(self, query: str, texts: Sequence[Passage], turn: int, ready: list[float]) -> None:
        """Fill `ready` from the front, so that what is there in time is the best part."""
        embedder = self._loaded()
        if query not in self._queries:
            if len(self._queries) >= MAX_QUERIES:
                self._queries.clear()
            self._queries[query] = embedder.embed([query])[0]
        wanted = self._queries[query]
        known = self._cached(embedder, texts)
        for first in range(0, len(texts), embedder.batch_size):
            if self._closing.is_set() or turn != self._turn:
                # The result is no longer wanted: a later question has come.
                return
            batch = texts[first : first + embedder.batch_size]
            self._embed_missing(embedder, batch, known)
            ready.extend(float(known[text.digest] @ wanted) for text in batch)

    def _loaded(self) -> Embedder:
        if self._embedder is None:
            self._embedder = self._make_embedder()
        return self._embedder

    def _cached(self, embedder: Embedder, texts: Sequence[Passage]) -> dict[bytes, Vectors]:
        import numpy  # noqa: PLC0415  optional extra

        found = self._cache.get(embedder.model, [text.digest for text in texts])
        return {key: numpy.frombuffer(value, numpy.float16).astype(numpy.float32) for key, value in found.items()}

    def _embed_missing(self, embedder: Embedder, batch: Sequence[Passage], known: dict[bytes, Vectors]) -> None:
        missing = {text.digest: text for text in batch if text.digest not in known}
        if not missing:
            return
        vectors = embedder.embed([text.read() for text in missing.values()])
        new = dict(zip(missing, vectors, strict=True))
        known.update(new)
        self._cache.put(embedder.model, {key: vector.astype("float16").tobytes() for key, vector in new.items()})

    def close(self) -> None:
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._cache.close()


def _fused(scores: Sequence[float], dense: Sequence[float]) -> list[float]:
    """The reranked head keeps its place before the tail: its scores stay in the range they had."""
    head = list(scores[: len(dense)])
    low, high = min(head), max(head)
    mixed = ranking.fuse(head, dense, DENSE_WEIGHT)
    return [low + (high - low) * each for each in mixed] + list(scores[len(dense) :])

"""Vectors of all tiles of an index, made ahead of questions: the likeliest first, a stretch of time at a call.

What is made is kept by content (vectors.py), so a kill loses one batch, and a text that was seen before costs nothing.
Of the processes that share an index, one makes them; it holds a lock that the kernel releases when it dies.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from functools import cache
from typing import Final, NamedTuple

from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.layout import Layout
from callboard.actors.index.nearest import packed
from callboard.actors.index.parsing import read_now
from callboard.actors.index.ranking import worth
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.vectors import VectorCache
from callboard.protocol.errors import UsageError, said

#: Tiles whose texts are read and embedded together; those of like length side by side, since the model pads to the
#: longest. Half a second of work.
GROUP: Final = 128
#: Where an index is larger than its cache of vectors can be, the unlikeliest tiles stay without one.
MAX_TILES: Final = 380_000
BUSY_ELSEWHERE: Final = "another process is making them"


class VectorState(NamedTuple):
    """How many tiles an index has, how many of them have no vector yet, and why, if none are being made; and how many
    stay without one, since there are more than MAX_TILES."""

    total: int
    missing: int
    note: str = ""
    left: int = 0

    @property
    def made(self) -> int:
        """How many have a vector."""
        return self.total - self.missing - self.left

    def __str__(self) -> str:
        if self.made == self.total:
            return f"all {self.total:,} tiles have vectors"
        limit = f"{self.left:,}, the unlikeliest, get none" if self.left else ""
        note = "; ".join(filter(None, (self.note, limit)))
        return f"{self.made:,} of {self.total:,} tiles have vectors{note and f': {note}'}"


class VectorMaker:
    """Makes the vectors of one index. Not for several threads at once."""

    def __init__(self, layout: Layout, model: EmbeddingModel, vectors: VectorCache) -> None:
        self._layout = layout
        self._model = model
        self._vectors = vectors
        self._embedder: Embedder | None = None
        self._is_given_up = False
        self._version: object = None
        self._pending: list[int] = []
        """Chunk ids, the likeliest last."""
        self._total = self._known = self._left = 0
        """Tiles; those of their texts that had a vector: fewer, when the cache was damaged or is of no use; and the
        tiles that stay without."""

    def make(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> VectorState:
        """Work for about so long, at least one group, and say how far it is. An embedder that fails is let go, and the
        note says why; the next call tries again. Raises what the store raises."""
        until = clock() + seconds
        with self._right_to_make() as is_ours, closing(SqliteStore(self._layout.truth)) as store, store.reading():
            self._look_for_changes(store, again=not is_ours)
            if self._pending and not is_ours:
                return self._state(BUSY_ELSEWHERE)
            try:
                while self._pending and clock() < until:
                    self._make_group(store)
            except BrokenIndexError:
                raise
            except Exception as error:  # noqa: BLE001  of any embedder: a library's, an API's
                self.close()
                return self._state(said(error))
        if not self._pending:
            self.close()
        return self._state()

    def _state(self, note: str = "") -> VectorState:
        return VectorState(self._total, len(self._pending), note, self._left)

    def close(self) -> None:
        """Let go of the model; where vectors are missing, the next call loads it again."""
        embedder, self._embedder = self._embedder, None
        if embedder is not None:
            embedder.close()

    def give_up(self) -> None:
        """From any thread, for good: the call of `make` under way ends soon. Who made them closes the model."""
        self._is_given_up = True
        embedder = self._embedder
        if embedder is not None:
            embedder.give_up()

    def _look_for_changes(self, store: SqliteStore, *, again: bool) -> None:
        version = self._layout.marker(), store.content_version()
        are_there = self._vectors.count(self._model.name) >= self._known
        if version == self._version and are_there and not again:
            return
        digests, worths = dict[int, bytes](), dict[int, float]()
        for tile in store.passages():
            digests[tile.chunk], worths[tile.chunk] = tile.digest, worth(tile)
        known = self._vectors.known(self._model.name, list(digests.values()))
        missing = sorted((tile for tile, digest in digests.items() if digest not in known), key=worths.__getitem__)
        self._left = max(0, len(missing) - max(0, MAX_TILES - len(known)))  # more would put out what is there
        self._pending = missing[self._left :]
        self._total, self._known, self._version = len(digests), len(known), version

    def _make_group(self, store: SqliteStore) -> None:
        self._raise_if_given_up()
        if self._embedder is None:
            self._embedder = self._model.load_bulk()
        content = cache(read_now)
        texts = {tile.digest: tile.text(content(tile.path)) for tile in store.passages_of(self._pending[-GROUP:])}
        in_order = sorted(texts, key=lambda digest: len(texts[digest]))
        for first in range(0, len(in_order), self._embedder.batch_size):
            self._raise_if_given_up()
            some = in_order[first : first + self._embedder.batch_size]
            vectors = self._embedder.embed([texts[digest] for digest in some])
            if not self._vectors.put(self._model.name, dict(zip(some, map(packed, vectors), strict=True))):
                raise UsageError(f"they cannot be kept in {self._layout.vectors}")
        del self._pending[-GROUP:]

    def _raise_if_given_up(self) -> None:
        if self._is_given_up:
            raise CancelledError("the making of vectors was given up")

    @contextmanager
    def _right_to_make(self) -> Iterator[bool]:
        """Whether no other process makes them; the kernel gives the lock back when this one dies."""
        try:
            descriptor = os.open(
                self._layout.vectors_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError:  # a disk that takes nothing: that is said where a vector is to be kept
            yield True
            return
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_ours = True
            except BlockingIOError:
                is_ours = False
            yield is_ours
        finally:
            os.close(descriptor)

"""Vectors of all tiles of an index, made ahead of questions: the likeliest first, a stretch of time at a call.

First come the tiles that the words of a question have found, then a quarter of the code, the likeliest, and all prose:
with these an order is as good as with all (docs/retrieval.md). Who makes the others gives way to everything else.

What is made is kept by content (vectors.py), so a kill loses one batch, and a text that was seen before costs nothing.
Of the processes that share an index, one makes them; it holds a lock that the kernel releases when it dies.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import closing, contextmanager
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

from callboard.actors.index import languages
from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.layout import Layout
from callboard.actors.index.nearest import packed
from callboard.actors.index.parsing import read_now
from callboard.actors.index.ranking import worth
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.vectors import VectorCache
from callboard.protocol.errors import ProviderError, UsageError, said

#: Tiles whose texts are read and embedded together: half a second of work.
GROUP: Final = 128
#: Where an index is larger than its cache of vectors can be, the unlikeliest tiles stay without one.
MAX_TILES: Final = 380_000
#: Questions that are heard between two groups, and tiles that are remembered to have been asked for.
MAX_HEARD: Final = 32
MAX_ASKED_FOR: Final = 1_000
#: The share of the tiles of code that are made first.
FIRST_SHARE: Final = 0.25
BUSY_ELSEWHERE: Final = "another process is making them"


class VectorState(NamedTuple):
    """How many tiles an index has, how many of them have no vector yet, and why, if none are being made; how many stay
    without one, since there are more than MAX_TILES; and how many of the missing ones are made before it is ready."""

    total: int
    missing: int
    note: str = ""
    left: int = 0
    first: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether questions find by meaning as well as they ever will, or nearly: the rest can wait."""
        return not self.first

    @property
    def made(self) -> int:
        """How many have a vector."""
        return self.total - self.missing - self.left

    def __str__(self) -> str:
        if not self.total:
            return self.note or "there is nothing that could have a vector"
        if self.made == self.total:
            return f"all {self.total:,} tiles have vectors"
        limit = f"{self.left:,}, the unlikeliest, get none" if self.left else ""
        note = "; ".join(filter(None, (self.note, limit)))
        counts = f"{self.made:,} of {self.total:,} tiles have vectors"
        if self.first:
            counts += f", it is ready after {self.first:,} more"
        elif self.missing and not self.note:
            counts = f"ready: {counts}, the likeliest; the rest is made beside other work"
        return f"{counts}{note and f': {note}'}"


class VectorMaker:
    """Makes the vectors of one index. Not for several threads at once."""

    def __init__(self, layout: Layout, model: EmbeddingModel, vectors: VectorCache) -> None:
        self._layout = layout
        self._model = model
        self._vectors = vectors
        self._embedder: Embedder | None = None
        self._is_given_up = False
        self._version: tuple[bytes, object] | None = None
        """The marker of the index that was looked at, and which version of it."""
        self._mark = 0
        """Of the cache: the vectors before it are known here."""
        self._texts: dict[int, bytes] | None = None
        """The digests of what is pending, while another process makes it."""
        self._pending: list[int] = []
        """Chunk ids, the likeliest last."""
        self._urgent = 0
        """How many of these, the last, somebody may be waiting for."""
        self._first: set[int] = set()
        """Those of them without which it is not ready."""
        self._total = self._known = self._left = 0
        """Tiles; those of their texts that had a vector: fewer, when the cache was damaged or is of no use; and the
        tiles that stay without."""
        self._refusal, self._refused_until = "", -math.inf
        """What a server said that wants to be left alone for a while, and until when by the clock."""
        self._gave_way = False
        """Whether the embedder takes only time that nobody else wants."""
        self._heard: deque[tuple[bytes, Sequence[int]]] = deque(maxlen=MAX_HEARD)
        self._asked_for: dict[int, None] = {}
        """Chunk ids, those of the last question first."""

    def make_first(self, generation: bytes, tiles: Sequence[int]) -> None:
        """From any thread: a question's words have found these, the best first, in the index of this marker. Those that
        have no vector get it before all others."""
        self._heard.append((generation, tiles))

    def make(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> VectorState:
        """Work for about so long, at least one group, and say how far it is. An embedder that fails is let go, and the
        note says why; the next call tries again, or the first one after the wait that a server has named. Raises what
        the store raises."""
        with self._right_to_make() as is_ours, closing(SqliteStore(self._layout.truth)) as store, store.reading():
            self._look_for_changes(store, is_ours)
            self._hear()
            if self._pending and not is_ours:
                return self._state(BUSY_ELSEWHERE)
            begun = clock()  # not while it was looked for changes: each call makes some
            if self._pending and begun < self._refused_until:
                return self._state(self._refusal)
            try:
                while self._pending and clock() < begun + seconds:
                    self._hear()
                    self._make_group(store)
            except BrokenIndexError:
                raise
            except Exception as error:  # noqa: BLE001  of any embedder: a library's, an API's
                self.close()
                self._refusal = said(error)
                if isinstance(error, ProviderError) and error.retry_after_seconds is not None:
                    self._refused_until = clock() + error.retry_after_seconds
                return self._state(self._refusal)
            finally:
                self._mark, self._texts = self._vectors.last_mark(), None  # all since were made here
        if not self._pending:
            self.close()
        return self._state()

    def _state(self, note: str = "") -> VectorState:
        return VectorState(self._total, len(self._pending), note, self._left, len(self._first))

    def close(self) -> None:
        """Let go of the model; where vectors are missing, the next call loads it again."""
        embedder, self._embedder, self._gave_way = self._embedder, None, False
        if embedder is not None:
            embedder.close()

    def give_up(self) -> None:
        """From any thread, for good: the call of `make` under way ends soon. Who made them closes the model."""
        self._is_given_up = True
        embedder = self._embedder
        if embedder is not None:
            embedder.give_up()

    def _look_for_changes(self, store: SqliteStore, is_ours: bool) -> None:
        version, mark = (self._layout.marker(), store.content_version()), self._vectors.last_mark()
        are_there = mark >= self._mark and self._vectors.count(self._model.name) >= self._known
        if version == self._version and are_there and (mark == self._mark or self._texts is not None):
            if self._texts is not None:
                self._leave_out_made(self._texts)
            return
        digests, worths, prose = dict[int, bytes](), dict[int, float](), set[int]()
        for tile in store.passages():
            digests[tile.chunk], worths[tile.chunk] = tile.digest, worth(tile)
            if not languages.by_name(tile.language).is_code:
                prose.add(tile.chunk)
        known = self._vectors.known(self._model.name, list(digests.values()))
        code = sorted(worths.keys() - prose, key=worths.__getitem__, reverse=True)
        first = prose.union(code[: math.ceil(FIRST_SHARE * len(code))])
        missing = (tile for tile, digest in digests.items() if digest not in known)
        in_order = sorted(missing, key=lambda tile: (tile in first, worths[tile]))
        self._left = max(0, len(in_order) - max(0, MAX_TILES - len(known)))  # more would put out what is there
        self._pending = in_order[self._left :]
        self._first = first.intersection(self._pending)
        self._urgent = len(self._first)
        if self._version is not None and self._version[0] != version[0]:  # built again: its ids begin anew
            self._asked_for.clear()
        self._put_first(list(self._asked_for))
        self._texts = None if is_ours else {tile: digests[tile] for tile in self._pending}
        self._total, self._known, self._version, self._mark = len(digests), len(known), version, mark

    def _leave_out_made(self, texts: dict[int, bytes]) -> None:
        """What another process has made since: for that, not all tiles are read again."""
        made = set[bytes]()
        while (page := self._vectors.added_since(self._model.name, self._mark))[0]:
            found, self._mark = page
            made.update(digest for digest, _ in found)
        if not made:
            return
        gone = {tile for tile, digest in texts.items() if digest in made}
        self._urgent -= sum(tile in gone for tile in self._pending[len(self._pending) - self._urgent :])
        self._pending = [tile for tile in self._pending if tile not in gone]
        self._first -= gone
        for tile in gone:
            del texts[tile]

    def _hear(self) -> None:
        while self._heard:
            generation, tiles = self._heard.popleft()
            if self._version is not None and generation == self._version[0]:
                self._asked_for = dict.fromkeys(islice((*tiles, *self._asked_for), MAX_ASKED_FOR))
                self._put_first(tiles)

    def _put_first(self, tiles: Sequence[int]) -> None:
        """Those of them that are pending, the best of all at the end."""
        pending = set(self._pending)
        chosen = dict.fromkeys(tile for tile in reversed(tiles) if tile in pending)
        rest = len(self._pending) - self._urgent
        self._urgent += sum(tile in chosen for tile in islice(self._pending, rest))
        self._pending = [*(tile for tile in self._pending if tile not in chosen), *chosen]

    def _make_group(self, store: SqliteStore) -> None:
        self._raise_if_given_up()
        embedder = self._embedder_for(urgent=self._urgent > 0)
        content = cache(read_now)
        texts = {tile.digest: tile.text(content(tile.path)) for tile in store.passages_of(self._pending[-GROUP:])}
        keys = list(texts)
        for start in range(0, len(keys), embedder.batch_size):
            self._raise_if_given_up()
            some = keys[start : start + embedder.batch_size]
            vectors = embedder.embed([texts[digest] for digest in some])
            if not self._vectors.put(self._model.name, dict(zip(some, map(packed, vectors), strict=True))):
                raise UsageError(f"they cannot be kept in {self._layout.vectors}")
        self._first.difference_update(self._pending[-GROUP:])
        self._urgent = max(0, self._urgent - GROUP)
        del self._pending[-GROUP:]

    def _embedder_for(self, *, urgent: bool) -> Embedder:
        if urgent and self._gave_way:
            self.close()  # a priority that was given up is not had again
        if self._embedder is None:
            self._embedder = self._model.load_bulk()
        if not urgent and not self._gave_way:
            self._embedder.give_way()
            self._gave_way = True
        return self._embedder

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

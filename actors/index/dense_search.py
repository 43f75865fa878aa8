"""The dense side of a question: its vector, and those of the tiles, both ready before it comes.

One background thread loads the model, turns questions into vectors and keeps the tiles' vectors in memory up to date. A
question never waits for loading: what is not there yet is left to the words.
"""

from __future__ import annotations

import contextlib
import math
import threading
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callboard.actors.index import languages
from callboard.actors.index.dense import Embedder, EmbeddingModel, normalized
from callboard.actors.index.layout import Layout
from callboard.actors.index.nearest import NearTiles, Similarities, TileVector
from callboard.actors.index.ranking import worth
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.tokens import query_words
from callboard.actors.index.vectors import VectorCache
from callboard.protocol.errors import said

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

#: A question waits this long for its vector: 10 ms by the local model, 100 to 300 by an API.
DEADLINE_SECONDS: Final = 0.4
#: Questions remembered.
MAX_QUESTIONS: Final = 256
#: Tiles whose vectors are read at a time: 1.6 MB of them.
READ_TILES: Final = 4_096
#: Why a question was answered by words alone.
_BY_WORDS: Final = "ranked by words alone, not by meaning: "
STILL_LOADED: Final = f"{_BY_WORDS}the embedding model is being loaded"
TOO_LATE: Final = f"{_BY_WORDS}the question's vector was not made in time"
FAILED: Final = f"{_BY_WORDS}the embedding model failed"


class Nearby(NamedTuple):
    """What is near some questions."""

    generation: bytes
    """The marker of the index: in another one the same ids are other tiles."""
    near: dict[str, Similarities]
    missed: str
    """Why that is not known of all of them, although there are vectors; else empty."""


class DenseSearch:
    """See the module. An embedder's failure is kept in `last_error`, never raised."""

    def __init__(
        self,
        layout: Layout,
        model: EmbeddingModel,
        vectors: VectorCache,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        self.last_error = ""
        self._layout = layout
        self._model = model
        self._vectors = vectors
        self._deadline_seconds = deadline_seconds
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="index-meaning")
        self._closing = threading.Event()
        self._preparing: Future[None] | None = None
        # Written by the background thread alone.
        self._embedder: Embedder | None = None
        self._has_failed = False
        """What questions need could not be brought into memory, the last time."""
        self._questions: dict[str, Vectors] = {}
        self._tiles: NearTiles | None = None
        self._generation = b""
        self._version: tuple[int, int, bytes] | None = None
        """Of the store, when its tiles were taken into memory."""
        self._mark = 0
        self._without: dict[bytes, list[tuple[int, int]]] = {}
        """Tiles that have no vector yet, with their files, by the digest of their texts."""
        self._worths: Sequence[float] = ()
        """Of the tiles as they were read, the likeliest first; prose is before all code (vector_making.py)."""
        self._reached = 0.0
        """How far down these as many reach as have vectors."""

    def load_ahead(self) -> None:
        """Load the model and the vectors that there are now, in the background, and not when a question comes. Where
        there are no vectors yet, neither is of use, and nothing is loaded."""
        if self._preparing is None or self._preparing.done():
            self._preparing = self._pool.submit(self._prepare)
            self._preparing.add_done_callback(self._note_failure)

    def loaded(self, seconds: float) -> None:
        """Wait until all that there is is in memory, at most so long."""
        self.load_ahead()
        if not self._vectors.count(self._model.name):
            return
        with contextlib.suppress(TimeoutError, CancelledError):
            self._pool.submit(self._update).exception(seconds)

    def near(self, questions: Sequence[str]) -> Nearby:
        """What is near each question, as far as that can be told in time."""
        generation = self._generation
        told = {question: self.similarities(question) for question in questions}
        near = {question: each for question, each in told.items() if isinstance(each, Similarities)}
        missed = dict.fromkeys(each for each in told.values() if isinstance(each, str) and each)
        return Nearby(generation, near, "; ".join(missed))

    def similarities(self, question: str) -> Similarities | str:
        """How near each tile is to a question; or why that cannot be told: empty while no tile has a vector."""
        if self._embedder is None or self._tiles is None:
            self.load_ahead()
            if not self._vectors.count(self._model.name):
                return ""
            return FAILED if self._has_failed else STILL_LOADED
        tiles = self._tiles
        job = self._pool.submit(self._vector_of, question)
        job.add_done_callback(self._note_failure)
        self.load_ahead()  # other tiles or vectors than those in memory: this question does not wait for them
        try:
            failure = job.exception(self._deadline_seconds)
        except (TimeoutError, CancelledError):
            return TOO_LATE
        if failure is not None:
            return FAILED
        return tiles.similarities(job.result(), self._reached) if tiles.fits(job.result()) else ""

    def without_vector(self, tiles: Iterable[int]) -> list[int]:
        """Those of them that have none in memory."""
        known = self._tiles
        return [tile for tile in tiles if known is None or tile not in known]

    def _note_failure(self, job: Future[Any]) -> None:
        if not job.cancelled() and (failure := job.exception()) is not None:
            self.last_error = said(failure)

    def _prepare(self) -> None:
        """Load the model, once there are vectors, and take in what has changed. It is kept only where both succeed."""
        if self._embedder is None and not self._vectors.count(self._model.name):
            return
        try:
            with contextlib.ExitStack() as at_failure:
                embedder = self._embedder
                if embedder is None:
                    embedder = self._model.load()
                    at_failure.callback(embedder.close)
                self._update()
                at_failure.pop_all()
        except BaseException:
            self._has_failed = True
            raise
        self._embedder, self._has_failed = embedder, False

    def _vector_of(self, question: str) -> Vectors:
        assert self._embedder is not None
        if question not in self._questions:
            if len(self._questions) >= MAX_QUESTIONS:
                self._questions.clear()
            self._questions[question] = vector = _vector(self._embedder, question)
            if self._tiles is not None and not self._tiles.fits(vector):
                # The server gives a model of this name other vectors now: all are made again.
                self._vectors.forget(self._model.name)
                self._tiles, self._version, self._without = NearTiles.empty(), None, {}
        return self._questions[question]

    def _update(self) -> None:
        """Take in what has changed: tiles of the store, then vectors that were made since."""
        generation = self._layout.marker()
        if generation != self._generation:  # built again: its ids begin anew
            self._tiles, self._version, self._mark, self._without, self._worths = None, None, 0, {}, ()
        tiles = self._tiles or NearTiles.empty()
        if self._version is None:
            self._mark = self._vectors.last_mark()  # those before it are read with their tiles
        with closing(SqliteStore(self._layout.truth)) as store, store.reading():
            version = store.content_version()
            if version != self._version:
                tiles = self._with_new_tiles(tiles, store)
        tiles = self._with_new_vectors(tiles)
        tiles.ready()
        self._reached = _reached(self._worths, len(tiles), version[1])
        self._tiles = tiles
        self._generation, self._version = generation, version

    def _with_new_tiles(self, tiles: NearTiles, store: SqliteStore) -> NearTiles:
        if tiles:
            tiles = tiles.changed(tiles.ids() - store.chunk_ids(), {})
        fresh = iter(store.passages(self._version[0] if self._version else 0))
        worths = list(self._worths) if self._version else []
        while read := list(islice(fresh, READ_TILES)):
            worths += (worth(tile) if languages.by_name(tile.language).is_code else math.inf for tile in read)
            some = [(tile.chunk, tile.meant_with, tile.digest) for tile in read]
            known = self._vectors.get(self._model.name, [digest for _, _, digest in some])
            added = {chunk: TileVector(file, known[digest]) for chunk, file, digest in some if digest in known}
            tiles = tiles.changed((), added)
            for chunk, file, digest in some:
                if digest not in known:
                    self._without.setdefault(digest, []).append((chunk, file))
        self._worths = array("d", sorted(worths, reverse=True))
        return tiles

    def _with_new_vectors(self, tiles: NearTiles) -> NearTiles:
        last = self._vectors.last_mark()
        mark = self._mark if last >= self._mark else 0  # the cache was damaged and made again
        while mark < last and not self._closing.is_set():
            found, mark = self._vectors.added_since(self._model.name, mark)
            added = {
                chunk: TileVector(file, vector)
                for digest, vector in found
                for chunk, file in self._without.pop(digest, ())
            }
            tiles = tiles.changed((), added)
            if not found:
                break
        self._mark = last
        return tiles

    def close(self) -> None:
        """Wait for what the background thread is doing."""
        self._closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._embedder is not None:
            self._embedder.close()


def _reached(worths: Sequence[float], made: int, tiles: int) -> float:
    """The least worth of those that have vectors, if the likeliest had them: which others have one, because a question
    found them, does not matter. As a share, since `worths` may hold some of tiles that are gone."""
    if not (worths and made and tiles):
        return math.inf
    return worths[min(len(worths), math.ceil(len(worths) * made / tiles)) - 1]


def _vector(embedder: Embedder, question: str) -> Vectors:
    """Between the question and its words alone, which are nearer to how tiles are written (passages.py): MRR +.01."""
    both = embedder.embed([question, " ".join(query_words(question))])
    vector: Vectors = normalized(both.sum(axis=0, keepdims=True))[0]
    return vector

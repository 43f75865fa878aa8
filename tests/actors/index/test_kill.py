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
#: Refreshes with batches so small that a kill falls between many commits.
CHILD = """
import sys, json; sys.path[:] = json.loads(sys.argv[1])
from callboard.actors.index import refresh, CodeIndex
refresh.BATCH_BYTES = 2_000
refresh.SMALL_FILES = 10**6
with CodeIndex.open(sys.argv[2], sys.argv[3], embedder=None) as index:
    index.refresh(lambda progress: print(progress.done_files, flush=True))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"m{number}.py").write_text(f"def handler_{number}():\n    return shared_word({number})\n")
    return folder


def rows(index: CodeIndex) -> list[tuple[object, ...]]:
    return [(s.path, s.canonical_path, s.ordinal, s.start_byte, s.digest) for s in index.symbols(limit=10_000)]


def killed_after(done_files: int, workspace: Path, store: Path) -> None:
    command = [sys.executable, "-c", CHILD, json.dumps(sys.path), str(workspace), str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= done_files:
                break
        process.send_signal(signal.SIGKILL)
        process.wait(30)


@pytest.mark.parametrize("done_files", [1, 37, 119])
def test_a_killed_refresh_is_resumed_without_loss_or_duplicates(
    workspace: Path, tmp_path: Path, done_files: int
) -> None:
    store = tmp_path / "store"
    killed_after(done_files, workspace, store)
    with CodeIndex.open(workspace, store, embedder=None) as index:
        summary = index.refresh()
        hits = index.search("shared word", 2 * FILES)
        assert summary.files == FILES
        assert summary.note == ""
        assert len(hits) == len({hit.path for hit in hits}) == FILES
        with CodeIndex.open(workspace, tmp_path / "fresh", embedder=None) as fresh:
            fresh.refresh()
            assert rows(index) == rows(fresh)


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

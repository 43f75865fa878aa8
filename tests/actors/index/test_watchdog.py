"""The child process that indexes a large change: when it is lost or hangs, it is ended and reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from callboard.actors.index import CodeIndex, refresh
from callboard.protocol.errors import UsageError

Until = Callable[[Callable[[], bool]], None]
#: More than are indexed in the calling process.
FILES = refresh.SMALL_FILES + 56


@pytest.fixture
def index(tmp_path: Path) -> Iterator[CodeIndex]:
    folder = tmp_path / "work"
    folder.mkdir()
    for number in range(FILES):
        (folder / f"m{number}.py").write_text(f"def handler_{number}(): ...\n")
    with CodeIndex.open(folder, tmp_path / "store", embedder=None) as index:
        yield index


def indexing_children() -> list[int]:
    """The processes of ours that index, as the kernel has them."""
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in read(task / "children").split()]
    module = b"callboard.actors.index.refresh"
    return [int(pid) for pid in children if module in read(Path("/proc") / pid.decode() / "cmdline")]


def read(path: Path) -> bytes:
    """Of /proc: a thread or a process may end between being listed and being looked at."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.mark.parametrize("harm", [signal.SIGSTOP, signal.SIGKILL])
def test_an_indexing_process_that_hangs_or_dies_is_ended_and_reported(
    index: CodeIndex, harm: signal.Signals, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, ThreadPoolExecutor(1) as threads:
        if harm is signal.SIGSTOP:
            patch.setattr(refresh, "SILENCE_SECONDS", 1.0)
        refreshing = threads.submit(index.refresh)
        until(lambda: bool(indexing_children()) or refreshing.done())
        children = indexing_children()
        for pid in children:
            os.kill(pid, harm)
        try:
            with pytest.raises(UsageError, match=r"ended early \(status -9\).*index again"):
                refreshing.result(timeout=20)
        finally:
            for pid in indexing_children():
                os.kill(pid, signal.SIGKILL)
    assert children
    assert not indexing_children(), "it has been waited for"
    summary = index.refresh()
    assert (summary.files, summary.note) == (FILES, "")
    assert index.search("handler_7", 1)[0].name == "handler_7"

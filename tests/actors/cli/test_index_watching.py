"""`callboard index --watch`, as a process of its own over real files."""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.mounted_disk import mounted_disk, needs_mount

from callboard.actors.index import CodeIndex

SECONDS = 50.0


class Watched:
    """The running command, with its lines as they come."""

    def __init__(self, callboard: Any, *arguments: str) -> None:
        self.callboard = callboard
        self.process: subprocess.Popen[bytes] = callboard.start("index", "--watch", *arguments)
        self.lines: queue.Queue[str] = queue.Queue()
        self.seen: list[str] = []
        streams = (self.process.stdout, self.process.stderr)
        self._readers = [threading.Thread(target=self._read, args=(stream,)) for stream in streams]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                self.lines.put(line.decode())

    def until(self, said: str) -> str:
        """The next line that holds this."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{said!r} was not said, but {self.seen}") from None
            self.seen.append(line)
            if said in line:
                return line

    def end(self, by: int) -> tuple[int, str]:
        """Its status, and all that it had said."""
        os.kill(self.process.pid, by)
        status = self.process.wait(SECONDS)
        self.close()
        while not self.lines.empty():
            self.seen.append(self.lines.get())
        return status, "".join(self.seen)

    def close(self) -> None:
        """Kill it, if it runs still."""
        self.process.kill()
        self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)


@pytest.fixture
def watched(callboard: Any) -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def start(*arguments: str) -> Watched:
        started.append(Watched(callboard, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.close()


def found(workspace: Path, name: str) -> bool:
    with CodeIndex.open(workspace, workspace / ".callboard" / "index", embedder=None) as index:
        return any(symbol.name == name for symbol in index.symbols(name=name))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_changes_are_indexed_as_they_come_and_a_signal_ends_it(watched: Any, work: Path, by: int) -> None:
    (work / "a.py").write_text("def alpha(): pass\n")
    running = watched(str(work))
    running.until("1 file indexed")
    (work / "b.py").write_text("def beta(): pass\n")
    assert "1 file indexed in " in running.until("ms")
    (work / "b.py").unlink()
    assert "1 file removed in " in running.until("ms")
    status, said = running.end(by)
    assert status == 0
    assert "Traceback" not in said
    assert found(work, "alpha")
    assert not found(work, "beta")


def test_a_folder_that_is_moved_within_takes_its_files_along(watched: Any, work: Path) -> None:
    (work / "old").mkdir()
    for number in range(3):
        (work / "old" / f"m{number}.py").write_text(f"def f{number}(): pass\n")
    running = watched(str(work))
    running.until("3 files indexed")
    (work / "old").rename(work / "new")
    running.until("3 files indexed and 3 files removed in")
    assert running.end(signal.SIGTERM)[0] == 0


def test_a_checkout_of_many_files_is_few_refreshes(watched: Any, work: Path) -> None:
    (work / "a.py").write_text("def alpha(): pass\n")
    running = watched(str(work))
    running.until("1 file indexed")
    for number in range(3_000):
        (work / f"m{number}.py").write_text(f"def f{number}(): pass\n")
    (work / "last.py").write_text("def omega(): pass\n")
    deadline = time.monotonic() + SECONDS
    while not found(work, "omega"):
        running.until("indexed in")
        assert time.monotonic() < deadline
    status, said = running.end(signal.SIGTERM)
    assert status == 0
    assert said.count(" ms") < 30


def test_a_workspace_that_goes_and_comes_back_is_waited_for(watched: Any, work: Path, tmp_path: Path) -> None:
    (work / "a.py").write_text("def alpha(): pass\n")
    running = watched(str(work))
    running.until("1 file indexed")
    work.rename(tmp_path / "elsewhere")
    running.until("is gone")
    (tmp_path / "elsewhere" / "b.py").write_text("def beta(): pass\n")
    (tmp_path / "elsewhere").rename(work)
    running.until("1 file indexed in")
    assert found(work, "beta")
    assert running.end(signal.SIGTERM)[0] == 0


def test_another_process_that_writes_is_said_and_waited_for(watched: Any, work: Path) -> None:
    (work / "a.py").write_text("def alpha(): pass\n")
    running = watched(str(work))
    running.until("1 file indexed")
    lock = work / ".callboard" / "index" / "writer.lock"
    with lock.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (work / "b.py").write_text("def beta(): pass\n")
        running.until("trying again")
    running.until("1 file indexed in")
    assert running.end(signal.SIGTERM)[0] == 0


@needs_mount
def test_a_full_disk_is_said_once_and_tried_until_there_is_room(watched: Any, work: Path) -> None:
    with mounted_disk(work / ".callboard") as disk:
        (work / "a.py").write_text("def alpha(): pass\n")
        running = watched(str(work))
        running.until("1 file indexed")
        disk.fill()
        (work / "b.py").write_text("def beta(): pass\n" * 20_000)
        assert "no space is left on the device" in running.until("trying again")
        (work / "c.py").write_text("def gamma(): pass\n")
        assert found(work, "alpha")
        disk.empty()
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk.folder)], check=True)
        running.until("2 files indexed in")
        assert found(work, "gamma")
        status, said = running.end(signal.SIGTERM)
    assert status == 0
    assert said.count("no space is left") == 1


def test_an_index_that_is_deleted_meanwhile_is_built_again(watched: Any, work: Path) -> None:
    (work / "a.py").write_text("def alpha(): pass\n")
    running = watched(str(work))
    running.until("1 file indexed")
    for file in (work / ".callboard" / "index").glob("*.sqlite*"):
        file.write_bytes(b"damaged")
    (work / "b.py").write_text("def beta(): pass\n")
    running.until("2 files indexed")
    assert running.end(signal.SIGTERM)[0] == 0
    assert found(work, "beta")


def test_without_the_extra_it_says_what_to_install(callboard: Any) -> None:
    (callboard.workspace / "watchfiles.py").write_text("raise ImportError('not here')\n")
    callboard.environment["PYTHONPATH"] = f"{callboard.workspace}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    ran = callboard.run("index", "--watch")
    assert ran.status == 2
    assert "watch" in ran.sentence
    assert "pip install" in ran.sentence

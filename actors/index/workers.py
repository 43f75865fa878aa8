"""Parsing on all cores: child processes that read file lists and answer with parsed files.

Plain pipes instead of multiprocessing: a worker whose parent was killed reads end-of-file and goes; nothing imports the
host's `__main__` again; a grammar that crashes or hangs costs one file.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import IO

from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileStat, Outcome, Skipped
from callboard.protocol.errors import UsageError

Job = tuple[FileStat, bytes]
"""A file and the digest it had; empty if it is new."""

#: One message to a worker: large enough that pipes do not matter, small enough to share out evenly.
JOB_BYTES = 400_000
JOB_FILES = 100
#: A batch takes well under a second; beyond this a grammar is in an endless loop.
ANSWER_SECONDS = 60.0
_HEADER = struct.Struct("<Q")

_BOOTSTRAP = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]);"
    "import importlib; importlib.import_module(sys.argv[2]).main()"
)


def spawn(module: str) -> subprocess.Popen[bytes]:
    """Start `module.main()` in a fresh interpreter with this one's import path; speaks over stdin and stdout."""
    command = [sys.executable, "-c", _BOOTSTRAP, json.dumps(sys.path), module]
    # A process group of its own: Ctrl-C in a terminal is for the caller, who ends its children.
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)


def send(stream: IO[bytes], value: object) -> None:
    """Write one value; `receive` reads it at the other end."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_HEADER.pack(len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> object:
    """The next value. Raises EOFError when the other side has closed."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise EOFError
    data = stream.read(_HEADER.unpack(header)[0])
    return pickle.loads(data)  # both ends are our own code over a private pipe


def standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Input and output of a child of ours. Ctrl-C is its caller's to handle: it ends when its input does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    return incoming, outgoing


def main() -> None:
    """The worker: answers each list of jobs with a list of outcomes until its input ends."""
    incoming, outgoing = standard_streams()
    while True:
        try:
            jobs = receive(incoming)
        except EOFError:
            return
        assert isinstance(jobs, list)
        answer_caller(outgoing, _parsed(jobs))


def _parsed(jobs: list[Job]) -> list[Outcome] | UsageError:
    try:
        return [parse_file(file, known) for file, known in jobs]
    except UsageError as error:
        return error


def answer_caller(outgoing: IO[bytes], value: object) -> None:
    """Send; if the caller no longer reads, end this process at once."""
    try:
        send(outgoing, value)
    except BrokenPipeError:
        os._exit(1)


class _Worker:
    """One child process, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self._process = spawn(__name__)

    def parse(self, jobs: list[Job]) -> list[Outcome]:
        try:
            return self._ask(jobs)
        except (EOFError, BrokenPipeError, TimeoutError):
            self.close()
            self._process = spawn(__name__)
        if len(jobs) == 1:
            return [Skipped(jobs[0][0], "parser_crashed")]
        return [outcome for job in jobs for outcome in self.parse([job])]

    def _ask(self, jobs: list[Job]) -> list[Outcome]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        send(stdin, jobs)
        ready, _, _ = select.select([stdout], [], [], ANSWER_SECONDS)
        if not ready:
            raise TimeoutError
        answer = receive(stdout)
        if isinstance(answer, UsageError):
            raise answer
        assert isinstance(answer, list)
        return answer

    def close(self) -> None:
        process = self._process
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                _close_quietly(stream)


def _close_quietly(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was buffered for a dead worker is of no use to anyone


def parse_parallel(jobs: Iterable[Job], worker_count: int) -> Iterator[tuple[FileStat, Outcome]]:
    """Outcomes in the order they become ready. Closing the generator ends the workers."""
    waiting: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
    done: queue.Queue[list[tuple[FileStat, Outcome]] | BaseException | None] = queue.Queue(maxsize=8)
    stop = threading.Event()
    batches = list(_batches(jobs))
    for batch in (*batches, *[None] * worker_count):
        waiting.put(batch)
    threads = [
        threading.Thread(target=_drive, args=(waiting, done, stop), name="index-parser", daemon=True)
        for _ in range(worker_count)
    ]
    for thread in threads:
        thread.start()
    running = worker_count
    try:
        while running:
            answer = done.get()
            if answer is None:
                running -= 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                yield from answer
    finally:
        stop.set()
        deadline = time.monotonic() + ANSWER_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            try:
                done.get(timeout=0.05)
            except queue.Empty:
                continue


def _drive(
    waiting: queue.SimpleQueue[list[Job] | None],
    done: queue.Queue[list[tuple[FileStat, Outcome]] | BaseException | None],
    stop: threading.Event,
) -> None:
    worker = _Worker()
    try:
        while not stop.is_set() and (jobs := waiting.get()) is not None:
            outcomes = worker.parse(jobs)
            done.put([(job[0], outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
        done.put(None)
    except BaseException as error:  # noqa: BLE001  handed to the consumer, which raises it
        done.put(error)
    finally:
        worker.close()


def _batches(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    batch: list[Job] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += job[0].size_bytes
        if size >= JOB_BYTES or len(batch) >= JOB_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

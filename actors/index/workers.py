"""Parsing on all cores: child processes that read file lists and answer with parsed files.

A grammar that crashes or hangs costs one file.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Iterable, Iterator

from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileOutcome, FileStat, Skipped
from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.errors import UsageError

ParseJob = tuple[FileStat, bytes]
"""A file and the digest it had; empty if it is new."""

#: One message to a worker: large enough that pipes do not matter, small enough to share out evenly.
JOB_BYTES = 400_000
JOB_FILES = 100
#: A batch takes well under a second; beyond this a grammar is in an endless loop.
ANSWER_SECONDS = 60.0


def main() -> None:
    """The worker: answers each list of jobs with a list of outcomes until its input ends."""
    Caller().serve(lambda jobs: pickle.dumps(_parsed(pickle.loads(jobs))))  # both ends are our own code


def _parsed(jobs: list[ParseJob]) -> list[FileOutcome] | UsageError:
    try:
        return [parse_file(file, known) for file, known in jobs]
    except UsageError as error:
        return error


class _Worker:
    """One child process, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self._helper = Helper(main)

    def parse(self, jobs: list[ParseJob]) -> list[FileOutcome]:
        try:
            answer: list[FileOutcome] | UsageError = pickle.loads(self._helper.ask(pickle.dumps(jobs), ANSWER_SECONDS))
        except (EOFError, TimeoutError):
            self.close()
            self._helper = Helper(main)
        else:
            if isinstance(answer, UsageError):
                raise answer
            return answer
        if len(jobs) == 1:
            return [Skipped(jobs[0][0], "parser_crashed")]
        return [outcome for job in jobs for outcome in self.parse([job])]

    def close(self) -> None:
        self._helper.close()


def parse_parallel(jobs: Iterable[ParseJob], worker_count: int) -> Iterator[tuple[FileStat, FileOutcome]]:
    """Outcomes in the order they become ready. Closing the generator ends the workers."""
    waiting: queue.SimpleQueue[list[ParseJob] | None] = queue.SimpleQueue()
    done: queue.Queue[list[tuple[FileStat, FileOutcome]] | BaseException | None] = queue.Queue(maxsize=8)
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
    waiting: queue.SimpleQueue[list[ParseJob] | None],
    done: queue.Queue[list[tuple[FileStat, FileOutcome]] | BaseException | None],
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


def _batches(jobs: Iterable[ParseJob]) -> Iterator[list[ParseJob]]:
    batch: list[ParseJob] = []
    size = 0
    for job in jobs:
        batch.append(job)
        size += job[0].size_bytes
        if size >= JOB_BYTES or len(batch) >= JOB_FILES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch

"""Parsing on all cores: child processes that read file lists and answer with parsed files.

A grammar that crashes or hangs costs one file.
"""

from __future__ import annotations

import pickle
import queue
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait

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
#: Batches under way or ready beyond those of the workers: enough that none waits, few enough to hold in memory.
READY_BATCHES = 8


def main() -> None:
    """The worker: answers each list of jobs with a list of outcomes until its input ends."""
    Caller().serve(_answer)


def _answer(jobs: bytes) -> bytes:
    try:
        return pickle.dumps([parse_file(*job) for job in pickle.loads(jobs)])  # both ends are our own code
    except UsageError as error:
        return pickle.dumps(error)


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
    workers: list[_Worker] = []
    idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def parse(batch: list[ParseJob]) -> list[tuple[FileStat, FileOutcome]]:
        worker = idle.get()
        try:
            return [(job[0], outcome) for job, outcome in zip(batch, worker.parse(batch), strict=True)]
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(worker_count, thread_name_prefix="index-parser")
    running: set[Future[list[tuple[FileStat, FileOutcome]]]] = set()
    try:
        for _ in range(worker_count):
            workers.append(_Worker())
            idle.put(workers[-1])
        for batch in _batches(jobs):
            running.add(pool.submit(parse, batch))
            if len(running) >= worker_count + READY_BATCHES:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    yield from each.result()
        for each in as_completed(running):
            yield from each.result()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in workers:
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

"""A file: read, judged, parsed, cut, in the caller; many files in child processes on all cores, where a grammar that
crashes or hangs costs one of them.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import stat
import time
import unicodedata
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from typing import TypeVar

from callboard.actors.index import grammars, languages
from callboard.actors.index.chunks import chunks
from callboard.actors.index.encodings import SourceText, has_wide_mark, source_of
from callboard.actors.index.languages import Language
from callboard.actors.index.notebooks import NOTEBOOK, NotebookText, notebook_of
from callboard.actors.index.records import Chunk, FileOutcome, FileStat, ParsedFile, Skipped, Symbol, Unchanged, digest
from callboard.actors.index.symbols import Lines, grammar_of, outline
from callboard.actors.index.walk import most_bytes, why_unread
from callboard.actors.opened_folders import open_plain
from callboard.actors.processes.spawning import Caller, Helper
from callboard.actors.secret_files import is_key_file

#: git's own test for binary files looks at as much.
BINARY_SNIFF_BYTES = 8_000
#: Mean line length above which a file is minified or data; hand-written code stays below 80.
MAX_MEAN_LINE_BYTES = 250
#: Shorter files are indexed without a look at their lines.
MIN_MINIFIED_BYTES = 4_000
#: Text without a grammar is indexed up to here: beyond it is a log, a dump or a corpus.
MAX_TEXT_BYTES = 400_000
#: One message to a worker: large enough that pipes do not matter, small enough to share out evenly.
JOB_BYTES = 400_000
JOB_FILES = 100
#: A batch takes well under a second; beyond this a grammar is in an endless loop.
ANSWER_SECONDS = 60.0
#: Batches under way or ready beyond those of the workers: enough that none waits, few enough to hold in memory.
READY_BATCHES = 8

Spanned = TypeVar("Spanned", Symbol, Chunk)
ParseJob = tuple[FileStat, bytes]
"""A file and the digest it had; empty if it is new."""


def parse_file(file: FileStat, known_digest: bytes = b"") -> FileOutcome:
    """Read and parse a file. Never raises for what the file holds or for its going away."""
    read_at_ns = time.time_ns()
    try:
        content, status = _read(file.path)
    except OSError as error:
        return Skipped(file, why_unread(error))
    if b"\0" in content[:BINARY_SNIFF_BYTES] and not has_wide_mark(content):
        return Skipped(file, "binary")
    source, language = _text_of(file.path, content)
    if reason := _unwanted_content(file.path, source, language):
        return Skipped(file, reason)
    seen = FileStat(file.path, file.root, len(content), status.st_mtime_ns)
    if known_digest and digest(content) == known_digest:
        return Unchanged(seen, read_at_ns)
    try:
        return parse_content(seen, source, language, read_at_ns)
    except Exception:  # noqa: BLE001  one file that trips the parser must not end the indexing of all others
        return Skipped(seen, "parser_failed")


def parse_content(file: FileStat, source: SourceText | NotebookText, language: Language, read_at_ns: int) -> ParsedFile:
    """Symbols, chunks and edges of a file whose content is at hand."""
    relative = os.path.relpath(file.path, file.root)
    lines = Lines(source.utf8)
    package = os.path.basename(file.root) if os.path.exists(f"{file.root}/__init__.py") else ""
    module = unicodedata.normalize("NFC", languages.module_path(relative, language, package))
    cells = source.cells if isinstance(source, NotebookText) else ()
    parsed = outline(source.utf8, language, module, lines, cells)
    cut = chunks(source.utf8, parsed, relative, lines)
    symbols = parsed.symbols
    if source.utf8 is not source.content:
        symbols, cut = _placed(source, symbols, cut)
    hashed = digest(source.content)
    lacks_grammar = bool(language.query) and grammar_of(language) is None
    return ParsedFile(
        file, language.name, hashed, symbols, cut, parsed.edges, read_at_ns, source.encoding, lacks_grammar
    )


def _placed(
    source: SourceText | NotebookText, symbols: tuple[Symbol, ...], cut: tuple[Chunk, ...]
) -> tuple[tuple[Symbol, ...], tuple[Chunk, ...]]:
    """Their spans in the bytes of the file itself, and their lines where those are others than of its text."""
    spans = [(each.start_byte, each.end_byte) for each in symbols] + [(each.start_byte, each.end_byte) for each in cut]
    places = source.places(offset for span in spans for offset in span)

    lines = Lines(source.content) if isinstance(source, NotebookText) else None

    def placed(each: Spanned) -> Spanned:
        start, end = places[each.start_byte], places[each.end_byte]
        first, last = lines.of_span(start, end) if lines is not None else (each.start_line, each.end_line)
        hashed = digest(source.content[start:end])
        return each._replace(start_byte=start, end_byte=end, digest=hashed, start_line=first, end_line=last)

    return tuple(map(placed, symbols)), tuple(map(placed, cut))


def _read(path: str) -> tuple[bytes, os.stat_result]:
    """The content, never more than a byte above what it may have: the file may have grown since it was seen.

    It, or a folder above it, may also have become a link out of the workspace, or it a pipe.
    """
    descriptor = open_plain(path)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        return stream.read(most_bytes(path) + 1), status


def _text_of(path: str, content: bytes) -> tuple[SourceText | NotebookText, Language]:
    source = source_of(content)
    language = languages.language_of(path, source.utf8)
    if language.name != NOTEBOOK:
        return source, language
    notebook = notebook_of(content)
    return (source, languages.TEXT) if notebook is None else (notebook, language)


def _unwanted_content(path: str, source: SourceText | NotebookText, language: Language) -> str:
    is_too_long = len(source.content) > most_bytes(path)
    if is_too_long or (not language.is_code and len(source.utf8) > MAX_TEXT_BYTES):
        return "too_long"
    if is_key_file(source.utf8):
        return "secret"
    mean_line = len(source.utf8) / (source.utf8.count(b"\n") + 1)
    if len(source.utf8) > MIN_MINIFIED_BYTES and mean_line > MAX_MEAN_LINE_BYTES:
        return "minified"
    return ""


def read_now(path: str) -> bytes:
    """A file of the index as it is now; empty if it no longer exists, or it or one of its folders is now a link.

    Paths in the index are resolved ones, so a path that resolves to another leads out of what was indexed.
    """
    try:
        return _read(path)[0] if os.path.realpath(path) == path else b""
    except OSError:
        return b""


def main() -> None:
    """The worker: answers each list of jobs with a list of outcomes until its input ends."""
    logging.disable()  # the log is the caller's, who gets the warnings with the answers
    Caller().serve(_answer)


def _answer(jobs: bytes) -> bytes:
    outcomes = [parse_file(*job) for job in pickle.loads(jobs)]  # both ends are our own code
    return pickle.dumps((outcomes, grammars.warnings()))


class _Worker:
    """One child process, replaced when it dies or hangs."""

    def __init__(self) -> None:
        self.helper = Helper(main)

    def parse(self, jobs: list[ParseJob]) -> list[FileOutcome]:
        try:
            answer: tuple[list[FileOutcome], list[str]]
            answer = pickle.loads(self.helper.ask(pickle.dumps(jobs), ANSWER_SECONDS))
        except (EOFError, TimeoutError):
            self.helper.close()
            self.helper = Helper(main)
        else:
            outcomes, warnings = answer
            for each in warnings:
                grammars.say_once(each)
            return outcomes
        if len(jobs) == 1:
            return [Skipped(jobs[0][0], "parser_crashed")]
        return [outcome for job in jobs for outcome in self.parse([job])]


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
            worker.helper.close()


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

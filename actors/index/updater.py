"""Brings store and lexical index up to date, batch by batch: a kill at any moment loses at most one batch of work.

Order of a batch: SQLite commits rows together with a note of what the lexical index does not have yet (`lexical_todo`);
tantivy commits; the note is erased. After a kill in between, its files are deleted from both and read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from callboard.actors.index.lexical import LexicalIndex, LexicalWriter
from callboard.actors.index.records import FileOutcome, FileStat, ParsedFile, Skipped, Unchanged
from callboard.actors.index.scan import RefreshPlan
from callboard.actors.index.store import SqliteStore

#: Source bytes in one batch: about a second of work for two parsers, a few thousand chunks.
BATCH_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a refresh is. `path` is the file last finished."""

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int
    path: str


@dataclass(frozen=True, slots=True)
class RefreshSummary:
    """What a refresh did. `files`, `symbols`, `chunks` count the whole index; `note` is for a person, often empty."""

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    symbols: int = 0
    chunks: int = 0
    note: str = ""


ProgressCallback = Callable[[Progress], None]


def repair(store: SqliteStore, lexical: LexicalIndex, writer: LexicalWriter) -> tuple[bool, str]:
    """Make both sides agree after a kill. Returns whether files must be read again, and why if it is all."""
    unfinished = store.lexical_todo()
    if unfinished:
        with store.transaction():
            store.forget_files(unfinished)
        for file in unfinished:
            writer.delete_file(file)
        writer.commit()
        store.lexical_done()
    if lexical.document_count == store.count("chunks"):
        return bool(unfinished), ""
    writer.clear()
    writer.commit()
    with store.transaction():
        store.clear()
    return True, "the lexical index did not match its store and is built again"


@dataclass(slots=True)
class Updater:
    """Applies a plan. Use under the write lock."""

    store: SqliteStore
    writer: LexicalWriter
    plan: RefreshPlan
    progress: ProgressCallback | None = None
    indexed: int = 0
    unchanged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    _removed: int = 0
    _done_files: int = 0
    _done_bytes: int = 0
    _parsed: list[ParsedFile] = field(default_factory=list)
    _judged: list[Skipped] = field(default_factory=list)
    _batch_bytes: int = 0

    def run(self, outcomes: Iterable[tuple[FileStat, FileOutcome]]) -> RefreshSummary:
        """Take in what the parsers say about the plan's changed files, in any order."""
        gone = list(self.plan.gone)
        self._removed = len(gone)
        for file, outcome in outcomes:
            self._take(file, outcome)
            if self._batch_bytes >= BATCH_BYTES:
                self._flush(gone)
                gone = []
        if gone or self._parsed or self._judged:
            self._flush(gone)
        return RefreshSummary(
            indexed=self.indexed,
            unchanged=self.plan.unchanged + self.unchanged,
            removed=self._removed,
            skipped=dict(self.plan.skipped + self.skipped),
            files=self.store.count("files"),
            symbols=self.store.count("symbols"),
            chunks=self.store.count("chunks"),
        )

    def _take(self, file: FileStat, outcome: FileOutcome) -> None:
        match outcome:
            case ParsedFile():
                self._parsed.append(outcome)
                self.indexed += 1
            case Unchanged():
                self.store.touch(outcome.stat, outcome.read_at_ns)
                self.unchanged += 1
            case Skipped():
                self._judged.append(outcome)
                self.skipped[outcome.reason] += 1
        self._batch_bytes += file.size_bytes
        self._done_files += 1
        self._done_bytes += file.size_bytes
        if self.progress is not None:
            plan = self.plan
            self.progress(Progress(self._done_files, len(plan.changed), self._done_bytes, plan.total_bytes, file.path))

    def _flush(self, gone: list[int]) -> None:
        known = self.plan.known
        replaced = [file.stat.path for file in self._parsed] + [each.stat.path for each in self._judged]
        dropped = gone + [known[path].id for path in replaced if path in known]
        with self.store.transaction():
            ids = self.store.replace(dropped, self._parsed)
            self.store.remember_skipped((each.stat, each.reason) for each in self._judged if _is_verdict(each))
            self.store.forget_skipped(file.stat.path for file in self._parsed)
        for file in dropped:
            self.writer.delete_file(file)
        for parsed in self._parsed:
            file_id, chunk_ids = ids[parsed.stat.path]
            terms = (chunk.terms for chunk in parsed.chunks)
            self.writer.add_file(file_id, zip(chunk_ids, terms, strict=True))
        self.writer.commit()
        self.store.lexical_done()
        self._parsed, self._judged, self._batch_bytes = [], [], 0


def _is_verdict(skipped: Skipped) -> bool:
    """Whether the content was judged; what could not be read is tried again next time."""
    return skipped.reason not in ("no_permission", "vanished")

"""A refresh: small changes here and now, large ones in a child process that may be killed at any moment.

What has changed is found by one walk, stat only; nothing is read. Then store and lexical index are brought up to date
batch by batch: SQLite commits rows together with a note of what the lexical index does not have yet (`lexical_todo`);
tantivy commits; the note is erased. After a kill in between, its files are deleted from both and read again: at most
one batch of work is lost.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from callboard.actors.index import workers
from callboard.actors.index.layout import Layout
from callboard.actors.index.lexical import LARGE_HEAP_BYTES, SMALL_HEAP_BYTES, LexicalIndex, LexicalWriter
from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileOutcome, FileStat, ParsedFile, Skipped, Unchanged
from callboard.actors.index.store import KnownFile, SqliteStore
from callboard.actors.index.walk import Walk
from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.errors import UsageError

#: Up to here a change is indexed in the calling process: about half a second of parsing, less than starting a child.
SMALL_FILES = 64
SMALL_BYTES = 1_000_000
#: Two parsers keep two cores busy; more processes gain little before the single writer is the limit.
MAX_PARSERS = 4
#: An indexing process reports every percent of its files; if it reports nothing for this long, it hangs.
SILENCE_SECONDS = 300.0
#: A file written this shortly before it was read may be written again with the same time stamp (kernel ticks are up to
#: 10 ms, FAT rounds to 2 s): its times prove nothing and it is hashed again, as git does with "racily clean" entries.
RACY_NS = 2_000_000_000
#: Source bytes in one batch: about a second of work for two parsers, a few thousand chunks.
BATCH_BYTES = 6_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a refresh; sent to the child process unchanged."""

    roots: tuple[str, ...]
    folder: str
    paths: tuple[str, ...] | None = None
    wait_seconds: float = 5.0


def refresh(
    request: Request, store: SqliteStore, lexical: LexicalIndex, progress: ProgressCallback | None
) -> RefreshSummary:
    """Bring the index up to date.

    Raises:
        IndexBusyError: another process is writing it.
        UsageError: it cannot be written, or the indexing process was lost.
    """
    layout = Layout(Path(request.folder))
    with layout.write_lock(request.wait_seconds):
        unfinished = bool(store.lexical_todo()) or lexical.document_count != store.count("chunks")
        plan = _plan(request, store)
        if not unfinished and not plan.changed and not plan.gone:
            return replace(RefreshSummary.of(store), unchanged=plan.unchanged, skipped=dict(plan.skipped))
        if not unfinished and len(plan.changed) <= SMALL_FILES and plan.total_bytes <= SMALL_BYTES:
            with lexical.writer(SMALL_HEAP_BYTES) as writer:
                return Updater(store, writer, plan, progress).run((job[0], parse_file(*job)) for job in _jobs(plan))
    return _refresh_in_child(request, progress)


def _plan(request: Request, store: SqliteStore) -> RefreshPlan:
    if request.paths is not None:
        plan = scan_paths(request.roots, request.folder, store, request.paths)
        if plan is not None:
            return plan
    return scan_all(request.roots, request.folder, store)


def _jobs(plan: RefreshPlan) -> Iterator[workers.ParseJob]:
    for file in plan.changed:
        known = plan.known.get(file.path)
        yield file, known.digest if known else b""


def _refresh_in_child(request: Request, progress: ProgressCallback | None) -> RefreshSummary:
    helper = Helper(main)
    try:
        helper.tell(pickle.dumps(request), SILENCE_SECONDS)
        while True:
            answer: object = pickle.loads(helper.hear(SILENCE_SECONDS))  # both ends are our own code
            if isinstance(answer, RefreshSummary):
                return answer
            if isinstance(answer, UsageError):
                raise answer
            if isinstance(answer, Progress) and progress is not None:
                progress(answer)
    except (EOFError, TimeoutError) as error:
        why = f"the indexing process ended early (status {helper.close()})"
        raise UsageError(f"{why}; what it had finished is kept, index again") from error
    finally:
        helper.close()


def main() -> None:
    """The indexing process: one request in, progress and a summary out. Ends when its caller does."""
    caller = Caller()
    try:
        request: Request = pickle.loads(caller.hear())
    except EOFError:  # the caller has gone before it asked, by Ctrl-C for one
        return
    threading.Thread(target=_exit_with_caller, args=(caller,), daemon=True).start()
    caller.tell(pickle.dumps(_outcome(request, _Reporter(caller))))


def _outcome(request: Request, report: ProgressCallback) -> RefreshSummary | UsageError:
    try:
        return _refresh_all(request, report)
    except UsageError as error:
        return error
    except OSError as error:
        return UsageError(f"indexing failed: {error}")


def _exit_with_caller(caller: Caller) -> None:
    caller.wait_for_end()
    os._exit(1)


class _Reporter:
    """Sends progress, at most one message a percent: a pipe and a bar need no more."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._next_percent = 0

    def __call__(self, progress: Progress) -> None:
        percent = 100 * progress.done_files // max(1, progress.total_files)
        if percent >= self._next_percent:
            self._next_percent = percent + 1
            self._caller.tell(pickle.dumps(progress))


def _refresh_all(request: Request, report: ProgressCallback) -> RefreshSummary:
    layout = Layout(Path(request.folder))
    with layout.write_lock(request.wait_seconds):
        store, lexical = SqliteStore(layout.truth), LexicalIndex(layout.lexical)
        try:
            with lexical.writer(LARGE_HEAP_BYTES) as writer:
                unfinished, note = repair(store, lexical, writer)
                plan = _plan(replace(request, paths=None) if unfinished else request, store)
                outcomes = workers.parse_parallel(_jobs(plan), _parser_count(plan))
                summary = Updater(store, writer, plan, report).run(outcomes)
            return replace(summary, note=note)
        finally:
            store.close()


def _parser_count(plan: RefreshPlan) -> int:
    cores = len(os.sched_getaffinity(0))
    return max(1, min(MAX_PARSERS, cores, 1 + plan.total_bytes // SMALL_BYTES))


def roots_of(workspace: str | Path | Sequence[str | Path]) -> tuple[str, ...]:
    """The folders an index spans, resolved, without those inside another one.

    Raises:
        UsageError: one is not a folder, or none was given.
    """
    given = [workspace] if isinstance(workspace, str | Path) else list(workspace)
    roots = []
    for each in given:
        path = Path(each).expanduser()
        if not path.is_dir():
            what = "is not a folder" if path.exists() else "does not exist"
            raise UsageError(f"workspace {path} {what}; name the folder of the code to search")
        roots.append(str(path.resolve()))
    if not roots:
        raise UsageError("no workspace was given; name at least one folder of code")
    unique = list(dict.fromkeys(roots))
    return tuple(root for root in unique if not any(Path(root).is_relative_to(o) for o in unique if o != root))


@dataclass(slots=True)
class RefreshPlan:
    """`changed` must be read; `gone` are ids of files to delete."""

    changed: list[FileStat] = field(default_factory=list)
    known: dict[str, KnownFile] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    unchanged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.changed)


def scan_all(roots: Sequence[str], store_dir: str, store: SqliteStore) -> RefreshPlan:
    """Compare the whole workspace with the store."""
    plan = RefreshPlan(known=store.known_files())
    judged = store.known_skipped()
    seen: set[str] = set()
    for root in roots:
        walk = Walk(root, store_dir)
        for file in walk:
            if file.path not in seen:
                seen.add(file.path)
                _sort(plan, file, judged.get(file.path))
        plan.skipped.update(walk.skipped)
    plan.gone = [known.id for path, known in plan.known.items() if path not in seen]
    stale = [path for path in judged if path not in seen]
    if stale:
        store.forget_skipped(stale)
    return plan


def scan_paths(roots: Sequence[str], store_dir: str, store: SqliteStore, paths: Sequence[str]) -> RefreshPlan | None:
    """Compare a few files, as a watcher names them; None if only a full scan can tell: one is a folder, or was one, or
    says which files belong to the workspace."""
    plan = RefreshPlan(known=store.known_files(paths))
    for path in dict.fromkeys(paths):
        root = next((root for root in roots if path.startswith(root.rstrip("/") + "/")), None)
        if root is None:
            continue
        known = plan.known.get(path)
        if path.endswith("/.gitignore") or os.path.isdir(path) or (known is None and not os.path.lexists(path)):
            return None
        file = Walk(root, store_dir).find(path)
        if file is not None:
            _sort(plan, file, None)
        elif known is not None:
            plan.gone.append(known.id)
    return plan


def _sort(plan: RefreshPlan, file: FileStat, judged: tuple[int, int, str] | None) -> None:
    known = plan.known.get(file.path)
    if judged is not None and judged[:2] == (file.size_bytes, file.mtime_ns):
        plan.skipped[judged[2]] += 1
    elif known is not None and _is_same(file, known):
        plan.unchanged += 1
    else:
        plan.changed.append(file)


def _is_same(file: FileStat, known: KnownFile) -> bool:
    same_stat = (file.size_bytes, file.mtime_ns) == (known.size_bytes, known.mtime_ns)
    return same_stat and file.mtime_ns < known.read_at_ns - RACY_NS


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

    @classmethod
    def of(cls, store: SqliteStore, note: str = "") -> Self:
        """The summary of a refresh that did nothing."""
        return cls(files=store.count("files"), symbols=store.count("symbols"), chunks=store.count("chunks"), note=note)


ProgressCallback = Callable[[Progress], None]


def repair(store: SqliteStore, lexical: LexicalIndex, writer: LexicalWriter) -> tuple[bool, str]:
    """Make both sides agree after a kill. Returns whether files must be read again, and why if it is all."""
    unfinished = store.lexical_todo()
    if unfinished:
        with store.transaction():
            store.replace(unfinished, ())  # the next refresh reads them again
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
    _done_files: int = 0
    _done_bytes: int = 0
    _parsed: list[ParsedFile] = field(default_factory=list)
    _judged: list[Skipped] = field(default_factory=list)
    _batch_bytes: int = 0

    def run(self, outcomes: Iterable[tuple[FileStat, FileOutcome]]) -> RefreshSummary:
        """Take in what the parsers say about the plan's changed files, in any order."""
        gone = list(self.plan.gone)
        for file, outcome in outcomes:
            self._take(file, outcome)
            if self._batch_bytes >= BATCH_BYTES:
                self._flush(gone)
                gone = []
        if gone or self._parsed or self._judged:
            self._flush(gone)
        return replace(
            RefreshSummary.of(self.store),
            indexed=self.indexed,
            unchanged=self.plan.unchanged + self.unchanged,
            removed=len(self.plan.gone),
            skipped=dict(self.plan.skipped + self.skipped),
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

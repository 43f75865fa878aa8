"""A refresh: small changes here and now, large ones in a child process that may be killed at any moment.

What has changed is found by one walk, stat only; nothing is read. Then store and lexical index are brought up to date
batch by batch, about one a second: SQLite commits rows together with a note of what the lexical index does not have yet
(`lexical_todo`); tantivy commits; the note is erased. At the end the store keeps the fingerprint of the lexical index.
After a kill there is none: the files of the note, and those of which the two do not hold the same number of chunks, are
deleted from both and read again. So at most one batch of work is lost.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Self

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.index import languages
from callboard.actors.index.disk import write_error
from callboard.actors.index.layout import Layout
from callboard.actors.index.lexical import LARGE_HEAP_BYTES, SMALL_HEAP_BYTES, LexicalIndex, LexicalWriter
from callboard.actors.index.parsing import ParseJob, parse_file, parse_parallel
from callboard.actors.index.records import FileOutcome, FileStat, ParsedFile, Skipped, Unchanged
from callboard.actors.index.store import COMPLETE, LEXICAL, TOTAL_FILES, KnownFile, SqliteStore
from callboard.actors.index.symbols import grammar_of
from callboard.actors.index.walk import Walk
from callboard.actors.processes.spawning import Caller, Helper
from callboard.actors.secret_files import IGNORE_FILE, NO_RULES, SecretRules
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
#: Reasons that do not depend on what a file holds.
NOT_READ = frozenset({"no_permission", "vanished"})
#: Files that say which other files belong to the workspace: all are looked at again.
SAYS_WHICH_FILES = frozenset({".gitignore", IGNORE_FILE})
#: Source bytes in one batch: about a second of work for two parsers, a few thousand chunks.
BATCH_BYTES = 6_000_000
#: A batch is committed after this long, however small it is: what a kill costs. Longer where committing is slow, so
#: that it takes at most a tenth of the time.
BATCH_SECONDS = 1.0
MOST_COMMITTING = 0.1


class Request(Struct, frozen=True):
    """The arguments of a refresh; sent to the child process unchanged."""

    roots: tuple[str, ...]
    layout: Layout
    marker: bytes
    """Of the index that is open (layout.py): no other one is written."""
    paths: tuple[str, ...] | None = None
    wait_seconds: float = 5.0
    secrets: SecretRules = NO_RULES


def refresh(
    request: Request, store: SqliteStore, lexical: LexicalIndex, progress: ProgressCallback | None
) -> RefreshSummary:
    """Bring the index up to date. While another process writes it, `progress` hears how far that one is.

    Raises:
        IndexBusyError: another process is still writing it after `request.wait_seconds`.
        IndexReplacedError: it has been built again meanwhile.
        BrokenIndexError: it is damaged.
        UsageError: it cannot be written, or the indexing process was lost.
    """
    with request.layout.write_lock(request.wait_seconds, partial(_tell_state, store, progress)):
        request.layout.check_still(request.marker)
        agrees = _agrees(store, lexical)
        plan = _plan(request, store)
        if agrees and not plan.changed and not plan.gone and (store.state().is_complete or not plan.is_whole):
            return replace(RefreshSummary.of(store), unchanged=plan.unchanged, skipped=dict(plan.skipped))
        if agrees and len(plan.changed) <= SMALL_FILES and plan.total_bytes <= SMALL_BYTES:
            outcomes = ((job[0], parse_file(*job)) for job in _jobs(plan))
            return _write_all(plan, outcomes, store, lexical, SMALL_HEAP_BYTES, progress)
    return _refresh_in_child(request, progress)


def _tell_state(store: SqliteStore, progress: ProgressCallback | None) -> None:
    if progress is not None:
        with store.reading():
            state = store.state()
        if not state.is_complete:
            progress(Progress(state.done_files, state.total_files, 0, 0, ""))


def _agrees(store: SqliteStore, lexical: LexicalIndex) -> bool:
    """Whether the lexical index holds exactly what the store holds."""
    if fingerprint := store.lexical_fingerprint():
        return fingerprint == lexical.fingerprint()
    return not lexical.document_count and not store.count("files") and not store.lexical_todo()


def _plan(request: Request, store: SqliteStore) -> RefreshPlan:
    def walks() -> list[Walk]:  # each counts what it leaves out
        return [Walk(root, str(request.layout.folder), request.secrets) for root in request.roots]

    plan = _scan_paths(walks(), store, request.paths) if request.paths is not None else None
    return plan or _scan_all(walks(), store)


def _jobs(plan: RefreshPlan) -> Iterator[ParseJob]:
    for file in plan.changed:
        known = plan.known.get(file.path)
        yield file, known.digest if known else b""


def _refresh_in_child(request: Request, progress: ProgressCallback | None) -> RefreshSummary:
    helper = Helper(main)
    try:
        # It waits in silence for a writer that was quicker: less long than would look as if it hung.
        request = replace(request, wait_seconds=min(request.wait_seconds, SILENCE_SECONDS / 2))
        helper.tell(pickle.dumps(request), SILENCE_SECONDS)
        while True:
            # Both ends are our own code.
            answer: Progress | RefreshSummary | UsageError = pickle.loads(helper.hear(SILENCE_SECONDS))
            if isinstance(answer, RefreshSummary):
                return answer
            if isinstance(answer, UsageError):
                raise answer
            if progress is not None:
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
    try:
        answer: RefreshSummary | UsageError = _refresh_all(request, _reporting(caller))
    except UsageError as error:
        answer = error
    except OSError as error:
        answer = write_error(request.layout.folder, error)
    caller.tell(pickle.dumps(answer))


def _exit_with_caller(caller: Caller) -> None:
    caller.wait_for_end()
    os._exit(1)


def _reporting(caller: Caller) -> ProgressCallback:
    """Sends progress, at most one message a percent: a pipe and a bar need no more."""
    told = -1

    def report(progress: Progress) -> None:
        nonlocal told
        percent = 100 * progress.done_files // max(1, progress.total_files)
        if percent > told:
            told = percent
            caller.tell(pickle.dumps(progress))

    return report


def _refresh_all(request: Request, report: ProgressCallback) -> RefreshSummary:
    layout = request.layout
    with closing(SqliteStore(layout.truth)) as store:
        with store.reading(), layout.write_lock(request.wait_seconds, partial(_tell_state, store, report)):
            layout.check_still(request.marker)
            lexical = LexicalIndex(layout.lexical)
            agrees, note = _agrees(store, lexical), ""
            if not agrees:
                note = _repair(store, lexical)
            plan = _plan(request if agrees else replace(request, paths=None), store)
            parsers = min(MAX_PARSERS, len(os.sched_getaffinity(0)), 1 + plan.total_bytes // SMALL_BYTES)
            outcomes = parse_parallel(_jobs(plan), parsers)
            summary = _write_all(plan, outcomes, store, lexical, LARGE_HEAP_BYTES, report)
        return replace(summary, note=note)


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


class RefreshPlan(Struct):
    """`changed` must be read; `gone` are ids of files to delete."""

    changed: list[FileStat] = field(default_factory=list)
    known: dict[str, KnownFile] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    unchanged: int = 0
    judged: int = 0
    """Files of the workspace that are left out, as they were the last time."""
    skipped: Counter[str] = field(default_factory=Counter)
    is_whole: bool = False
    """Whether it is about the whole workspace."""

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.changed)


def _scan_all(walks: Sequence[Walk], store: SqliteStore) -> RefreshPlan:
    """Compare the whole workspace with the store."""
    for language in store.languages_without_grammar():
        if grammar_of(languages.by_name(language)) is not None:
            store.forget_text_of(language)
    plan = RefreshPlan(known=store.known_files(), is_whole=True)
    judged = store.known_skipped()
    seen: set[str] = set()
    for walk in walks:
        for file in walk:
            seen.add(file.path)
            _sort(plan, file, judged.get(file.path))
        plan.skipped.update(walk.skipped)
    plan.gone = [known.id for path, known in plan.known.items() if path not in seen]
    store.forget_skipped(judged.keys() - seen)
    return plan


def _scan_paths(walks: Sequence[Walk], store: SqliteStore, paths: Sequence[str]) -> RefreshPlan | None:
    """Compare a few files, as a watcher names them; None if only a full scan can tell: one is a folder, or was one, or
    says which files belong to the workspace."""
    plan = RefreshPlan(known=store.known_files(paths))
    for path in dict.fromkeys(paths):
        walk = next((walk for walk in walks if path.startswith(walk.root.rstrip("/") + "/")), None)
        if walk is None:
            continue
        known = plan.known.get(path)
        if (
            os.path.basename(path) in SAYS_WHICH_FILES
            or os.path.isdir(path)
            or (known is None and not os.path.lexists(path))
        ):
            return None
        file = walk.find(path)
        if file is not None:
            _sort(plan, file, None)
        elif known is not None:
            plan.gone.append(known.id)
    return plan


def _sort(plan: RefreshPlan, file: FileStat, judged: tuple[int, int, str] | None) -> None:
    known, stat = plan.known.get(file.path), (file.size_bytes, file.mtime_ns)
    if judged is not None and judged[:2] == stat:
        plan.skipped[judged[2]] += 1
        plan.judged += 1
    elif known and (known.size_bytes, known.mtime_ns) == stat and file.mtime_ns < known.read_at_ns - RACY_NS:
        plan.unchanged += 1
    else:
        plan.changed.append(file)


class Progress(Struct, frozen=True):
    """How far a refresh is. `path` is the file last finished."""

    done_files: int
    total_files: int
    done_bytes: int
    total_bytes: int
    path: str


class RefreshSummary(Struct, frozen=True):
    """What a refresh did. `files`, `symbols`, `chunks` count the whole index; `note` is for a person, often empty.

    `is_complete` is false while another process is still building the first index of the workspace.
    """

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    files: int = 0
    symbols: int = 0
    chunks: int = 0
    note: str = ""
    is_complete: bool = True

    @classmethod
    def of(cls, store: SqliteStore, note: str = "") -> Self:
        """The summary of a refresh that did nothing."""
        files, symbols, chunks = map(store.count, ("files", "symbols", "chunks"))
        is_complete = store.state().is_complete
        return cls(files=files, symbols=symbols, chunks=chunks, note=note, is_complete=is_complete)


ProgressCallback = Callable[[Progress], None]


def _repair(store: SqliteStore, lexical: LexicalIndex) -> str:
    """Make both sides agree, by deleting from both what they do not have in common; the plan that follows has these
    files read again. Returns a note for a person if this was no kill but damage."""
    damaged = bool(store.lexical_fingerprint())
    todo, wanted, present = store.lexical_todo(), store.chunk_counts(), lexical.chunk_counts()
    # Where the list of files is not the one that was written, none of them is trusted.
    differing = wanted.keys() | present.keys() if damaged else _differing(wanted, present)
    wrong = sorted(differing.union(todo))
    with lexical.writer(SMALL_HEAP_BYTES) as writer:
        with store.transaction():
            store.replace(wrong, ())
        for file in () if damaged else wrong:
            writer.delete_file(file)
        if damaged:
            writer.clear()
        writer.commit()
        store.lexical_done()
    return f"the lexical index did not match its store: {len(wanted):,} files are built again" if damaged else ""


def _differing(wanted: Mapping[int, int], present: Mapping[int, int]) -> set[int]:
    return {file for file in wanted.keys() | present.keys() if wanted.get(file, 0) != present.get(file, 0)}


def _write_all(
    plan: RefreshPlan,
    outcomes: Iterable[tuple[FileStat, FileOutcome]],
    store: SqliteStore,
    lexical: LexicalIndex,
    heap_bytes: int,
    progress: ProgressCallback | None,
) -> RefreshSummary:
    """Carry out the plan, and keep that it has been. Use under the write lock."""
    if plan.is_whole and not store.state().is_complete:
        store.keep({TOTAL_FILES: plan.unchanged + plan.judged + len(plan.changed)})
    with lexical.writer(heap_bytes) as writer:
        summary = _apply(plan, outcomes, store, writer, progress)
    done = {LEXICAL: lexical.fingerprint()}
    with store.transaction():
        store.keep({**done, COMPLETE: 1} if plan.is_whole else done)
    return replace(summary, is_complete=store.state().is_complete)


class _Batches:
    """When to commit: by what has been read, and by the time that has passed."""

    def __init__(self) -> None:
        self._bytes = 0
        self._began = time.monotonic()
        self._seconds = BATCH_SECONDS

    def is_full(self, more_bytes: int) -> bool:
        self._bytes += more_bytes
        return self._bytes >= BATCH_BYTES or time.monotonic() - self._began >= self._seconds

    def committed(self, began: float) -> None:
        """The commit of a batch, which began then, has ended."""
        self._bytes, self._began = 0, time.monotonic()
        self._seconds = max(BATCH_SECONDS, (self._began - began) / MOST_COMMITTING)


def _apply(
    plan: RefreshPlan,
    outcomes: Iterable[tuple[FileStat, FileOutcome]],
    store: SqliteStore,
    writer: LexicalWriter,
    progress: ProgressCallback | None,
) -> RefreshSummary:
    """Take in what the parsers say about the plan's changed files, in any order."""
    indexed, unchanged, skipped, total_bytes = 0, plan.unchanged, plan.skipped.copy(), plan.total_bytes
    gone, batch, batches, done_bytes = plan.gone, list[FileOutcome](), _Batches(), 0
    for done_files, (file, outcome) in enumerate(outcomes, 1):
        batch.append(outcome)
        match outcome:
            case Unchanged():
                unchanged += 1
            case ParsedFile():
                indexed += 1
            case Skipped():
                skipped[outcome.reason] += 1
        done_bytes += file.size_bytes
        if batches.is_full(file.size_bytes):
            began = time.monotonic()
            _write(plan, gone, batch, store, writer)
            gone, batch = [], []
            batches.committed(began)
        if progress is not None:
            progress(Progress(done_files, len(plan.changed), done_bytes, total_bytes, file.path))
    if gone or batch:
        _write(plan, gone, batch, store, writer)
    summary = RefreshSummary.of(store)
    return replace(summary, indexed=indexed, unchanged=unchanged, removed=len(plan.gone), skipped=dict(skipped))


def _remembered(skipped: Skipped) -> Skipped:
    """What could not be read is tried again next time: no file has this time."""
    return replace(skipped, stat=replace(skipped.stat, mtime_ns=-1)) if skipped.reason in NOT_READ else skipped


def _write(
    plan: RefreshPlan, gone: list[int], batch: list[FileOutcome], store: SqliteStore, writer: LexicalWriter
) -> None:
    """One batch, in the order that the module describes."""
    parsed = [each for each in batch if isinstance(each, ParsedFile)]
    same = [each for each in batch if isinstance(each, Unchanged)]
    judged = [_remembered(each) for each in batch if isinstance(each, Skipped) and each.reason != "vanished"]
    read = [each.stat.path for each in batch if not isinstance(each, Unchanged)]
    dropped = gone + [plan.known[path].id for path in read if path in plan.known]
    with store.transaction():
        ids = store.replace(dropped, parsed)
        store.remember_skipped(judged)
        store.forget_skipped(each.stat.path for each in parsed)
        for each in same:
            store.touch(each.stat, each.read_at_ns)
    if not dropped and not parsed:
        return
    for file in dropped:
        writer.delete_file(file)
    for file_parsed in parsed:
        file_id, chunk_ids = ids[file_parsed.stat.path]
        writer.add_file(file_id, zip(chunk_ids, (chunk.terms for chunk in file_parsed.chunks), strict=True))
    writer.commit()
    store.lexical_done()

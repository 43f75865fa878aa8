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
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from callboard.actors.index.layout import Layout
from callboard.actors.index.lexical import LARGE_HEAP_BYTES, SMALL_HEAP_BYTES, LexicalIndex, LexicalWriter
from callboard.actors.index.parsing import ParseJob, parse_file, parse_parallel
from callboard.actors.index.records import FileOutcome, FileStat, ParsedFile, Skipped, Unchanged
from callboard.actors.index.store import KnownFile, SqliteStore
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


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of a refresh; sent to the child process unchanged."""

    roots: tuple[str, ...]
    layout: Layout
    paths: tuple[str, ...] | None = None
    wait_seconds: float = 5.0
    secrets: SecretRules = NO_RULES


def refresh(
    request: Request, store: SqliteStore, lexical: LexicalIndex, progress: ProgressCallback | None
) -> RefreshSummary:
    """Bring the index up to date.

    Raises:
        IndexBusyError: another process is writing it.
        UsageError: it cannot be written, or the indexing process was lost.
    """
    with request.layout.write_lock(request.wait_seconds):
        unfinished = bool(store.lexical_todo()) or lexical.document_count != store.count("chunks")
        plan = _plan(request, store)
        if not unfinished and not plan.changed and not plan.gone:
            return replace(RefreshSummary.of(store), unchanged=plan.unchanged, skipped=dict(plan.skipped))
        if not unfinished and len(plan.changed) <= SMALL_FILES and plan.total_bytes <= SMALL_BYTES:
            with lexical.writer(SMALL_HEAP_BYTES) as writer:
                return _apply(plan, ((job[0], parse_file(*job)) for job in _jobs(plan)), store, writer, progress)
    return _refresh_in_child(request, progress)


def _plan(request: Request, store: SqliteStore) -> RefreshPlan:
    walks = [Walk(root, str(request.layout.folder), request.secrets) for root in request.roots]
    plan = _scan_paths(walks, store, request.paths) if request.paths is not None else None
    return plan or _scan_all(walks, store)


def _jobs(plan: RefreshPlan) -> Iterator[ParseJob]:
    for file in plan.changed:
        known = plan.known.get(file.path)
        yield file, known.digest if known else b""


def _refresh_in_child(request: Request, progress: ProgressCallback | None) -> RefreshSummary:
    helper = Helper(main)
    try:
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
        answer = UsageError(f"indexing failed: {error}")
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
    with layout.write_lock(request.wait_seconds):
        lexical = LexicalIndex(layout.lexical)
        with closing(SqliteStore(layout.truth)) as store, lexical.writer(LARGE_HEAP_BYTES) as writer:
            unfinished, note = _repair(store, lexical, writer)
            plan = _plan(replace(request, paths=None) if unfinished else request, store)
            parsers = min(MAX_PARSERS, len(os.sched_getaffinity(0)), 1 + plan.total_bytes // SMALL_BYTES)
            summary = _apply(plan, parse_parallel(_jobs(plan), parsers), store, writer, report)
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


def _scan_all(walks: Sequence[Walk], store: SqliteStore) -> RefreshPlan:
    """Compare the whole workspace with the store."""
    plan = RefreshPlan(known=store.known_files())
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
    elif known and (known.size_bytes, known.mtime_ns) == stat and file.mtime_ns < known.read_at_ns - RACY_NS:
        plan.unchanged += 1
    else:
        plan.changed.append(file)


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


def _repair(store: SqliteStore, lexical: LexicalIndex, writer: LexicalWriter) -> tuple[bool, str]:
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


def _apply(
    plan: RefreshPlan,
    outcomes: Iterable[tuple[FileStat, FileOutcome]],
    store: SqliteStore,
    writer: LexicalWriter,
    progress: ProgressCallback | None,
) -> RefreshSummary:
    """Take in what the parsers say about the plan's changed files, in any order. Use under the write lock."""
    indexed, unchanged, skipped, total_bytes = 0, plan.unchanged, plan.skipped.copy(), plan.total_bytes
    gone, batch, batch_bytes, done_bytes = plan.gone, list[ParsedFile | Skipped](), 0, 0
    for done_files, (file, outcome) in enumerate(outcomes, 1):
        match outcome:
            case Unchanged():
                store.touch(outcome.stat, outcome.read_at_ns)
                unchanged += 1
            case ParsedFile():
                batch.append(outcome)
                indexed += 1
            case Skipped():
                batch.append(outcome)
                skipped[outcome.reason] += 1
        batch_bytes += file.size_bytes
        done_bytes += file.size_bytes
        if progress is not None:
            progress(Progress(done_files, len(plan.changed), done_bytes, total_bytes, file.path))
        if batch_bytes >= BATCH_BYTES:
            _write(plan, gone, batch, store, writer)
            gone, batch, batch_bytes = [], [], 0
    if gone or batch:
        _write(plan, gone, batch, store, writer)
    summary = RefreshSummary.of(store)
    return replace(summary, indexed=indexed, unchanged=unchanged, removed=len(plan.gone), skipped=dict(skipped))


def _write(
    plan: RefreshPlan, gone: list[int], batch: list[ParsedFile | Skipped], store: SqliteStore, writer: LexicalWriter
) -> None:
    """One batch, in the order that the module describes."""
    parsed = [each for each in batch if isinstance(each, ParsedFile)]
    # What could not be read is tried again next time.
    judged = [each for each in batch if isinstance(each, Skipped) and each.reason not in NOT_READ]
    dropped = gone + [plan.known[each.stat.path].id for each in batch if each.stat.path in plan.known]
    with store.transaction():
        ids = store.replace(dropped, parsed)
        store.remember_skipped(judged)
        store.forget_skipped(each.stat.path for each in parsed)
    for file in dropped:
        writer.delete_file(file)
    for each in parsed:
        file_id, chunk_ids = ids[each.stat.path]
        writer.add_file(file_id, zip(chunk_ids, (chunk.terms for chunk in each.chunks), strict=True))
    writer.commit()
    store.lexical_done()

"""A refresh: small changes here and now, large ones in a child process that may be killed at any moment."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from callboard.actors.index import workers
from callboard.actors.index.layout import Layout
from callboard.actors.index.lexical import LARGE_HEAP_BYTES, SMALL_HEAP_BYTES, LexicalIndex
from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileOutcome, FileStat
from callboard.actors.index.scan import RefreshPlan, scan_all, scan_paths
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.updater import Progress, ProgressCallback, RefreshSummary, Updater, repair
from callboard.actors.processes.spawning import Caller, Helper
from callboard.protocol.errors import UsageError

#: Up to here a change is indexed in the calling process: about half a second of parsing, less than starting a child.
SMALL_FILES = 64
SMALL_BYTES = 1_000_000
#: Two parsers keep two cores busy; more processes gain little before the single writer is the limit.
MAX_PARSERS = 4
#: An indexing process reports every percent of its files; if it reports nothing for this long, it hangs.
SILENCE_SECONDS = 300.0


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
            return _nothing_to_do(plan, store)
        if not unfinished and plan.is_small(SMALL_FILES, SMALL_BYTES):
            with lexical.writer(SMALL_HEAP_BYTES) as writer:
                return Updater(store, writer, plan, progress).run(_parse_here(plan))
    return _refresh_in_child(request, progress)


def _plan(request: Request, store: SqliteStore) -> RefreshPlan:
    if request.paths is not None:
        plan = scan_paths(request.roots, request.folder, store, request.paths)
        if plan is not None:
            return plan
    return scan_all(request.roots, request.folder, store)


def _nothing_to_do(plan: RefreshPlan, store: SqliteStore) -> RefreshSummary:
    return RefreshSummary(
        unchanged=plan.unchanged,
        skipped=dict(plan.skipped),
        files=store.count("files"),
        symbols=store.count("symbols"),
        chunks=store.count("chunks"),
    )


def _parse_here(plan: RefreshPlan) -> Iterator[tuple[FileStat, FileOutcome]]:
    for file, known in _jobs(plan):
        yield file, parse_file(file, known)


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

"""A refresh: small changes here and now, large ones in a child process that may be killed at any moment."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from callboard.actors.index import workers
from callboard.actors.index.layout import Layout
from callboard.actors.index.lexical import LARGE_HEAP_BYTES, SMALL_HEAP_BYTES, LexicalIndex
from callboard.actors.index.parsing import parse_file
from callboard.actors.index.records import FileStat, Outcome
from callboard.actors.index.scan import RefreshPlan, scan_all, scan_paths
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.updater import Progress, ProgressCallback, RefreshSummary, Updater, repair
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


def _parse_here(plan: RefreshPlan) -> Iterator[tuple[FileStat, Outcome]]:
    for file, known in _jobs(plan):
        yield file, parse_file(file, known)


def _jobs(plan: RefreshPlan) -> Iterator[workers.Job]:
    for file in plan.changed:
        known = plan.known.get(file.path)
        yield file, known.digest if known else b""


def _refresh_in_child(request: Request, progress: ProgressCallback | None) -> RefreshSummary:
    process = workers.spawn(__name__)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        workers.send(process.stdin, request)
        while True:
            answer = _receive(process, process.stdout)
            if isinstance(answer, RefreshSummary):
                return answer
            if isinstance(answer, UsageError):
                raise answer
            if isinstance(answer, Progress) and progress is not None:
                progress(answer)
    except (EOFError, BrokenPipeError) as error:
        raise UsageError(
            f"the indexing process ended early (status {process.wait()}); what it had finished is kept, index again"
        ) from error
    finally:
        _end(process)


def _receive(process: subprocess.Popen[bytes], stream: IO[bytes]) -> object:
    """The next message; a process that is silent for SILENCE_SECONDS is killed, which ends its stream."""
    watchdog = threading.Timer(SILENCE_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        return workers.receive(stream)
    finally:
        watchdog.cancel()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        # A process that ended before it had read its request leaves some of it unwritten.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if process.stdout is not None:
        process.stdout.close()


def main() -> None:
    """The indexing process: one request in, progress and a summary out. Ends when its caller does."""
    incoming, outgoing = workers.standard_streams()
    try:
        request = workers.receive(incoming)
    except EOFError:  # the caller ended before it asked, by Ctrl-C for example
        return
    assert isinstance(request, Request)
    threading.Thread(target=_exit_with_caller, args=(incoming.fileno(),), daemon=True).start()
    workers.answer_caller(outgoing, _outcome(request, _Reporter(outgoing)))


def _outcome(request: Request, report: ProgressCallback) -> RefreshSummary | UsageError:
    try:
        return _refresh_all(request, report)
    except UsageError as error:
        return error
    except OSError as error:
        return UsageError(f"indexing failed: {error}")


def _exit_with_caller(descriptor: int) -> None:
    """Nothing is written after the request: reading ends only when the caller does."""
    os.read(descriptor, 1)
    os._exit(1)


class _Reporter:
    """Sends progress, at most one message a percent: a pipe and a bar need no more."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._next_percent = 0

    def __call__(self, progress: Progress) -> None:
        percent = 100 * progress.done_files // max(1, progress.total_files)
        if percent >= self._next_percent:
            self._next_percent = percent + 1
            workers.answer_caller(self._stream, progress)


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

"""How the workers of a tool are made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from callboard.actors.kernel import ChildSpec
from callboard.actors.processes.source import ProcessSource
from callboard.actors.processes.supply import ProcessOptions, Replaced
from callboard.actors.workers.messages import KindOf, WorkerKind
from callboard.actors.workers.process import ProcessWorker
from callboard.actors.workers.task import MAX_LOOPS, MAX_TASKS, TaskWorker
from callboard.actors.workers.thread import MAX_THREADS, ThreadWorker
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.tools import Isolation

if TYPE_CHECKING:
    from callboard.actors.workers import caller
else:
    caller = lazy_module("callboard.actors.workers.caller")

TASKS: Final = WorkerKind(lambda reports, _pool: TaskWorker(reports), room=MAX_TASKS, max_workers=MAX_LOOPS)
THREADS: Final = WorkerKind(lambda reports, _pool: ThreadWorker(reports), max_workers=MAX_THREADS)
#: The source of processes ends what runs, the init process within 2 s, and is killed after this.
SOURCE_SHUTDOWN_SECONDS: Final = 3.0


def kinds(options: ProcessOptions, loop: asyncio.AbstractEventLoop | None = None) -> KindOf:
    """The real workers. For process tools: one for each call that runs, and a source of child processes a pool,
    which starts ahead of the first call unless no children are to be kept ready either. `loop`: where the tools of
    callers run; None: each on the loop from which it was asked."""
    source = ChildSpec("source", lambda: ProcessSource(options), shutdown_seconds=SOURCE_SHUTDOWN_SECONDS)
    ahead, most = options.warm > 0, options.max_children
    processes = WorkerKind(
        ProcessWorker, max_workers=most, fixed_children=(source,), replaced=Replaced, starts_ahead=ahead
    )
    callers = WorkerKind(lambda reports, _pool: caller.CallerWorker(reports, loop), room=MAX_TASKS)
    by_isolation = {
        Isolation.PROCESS: processes,
        Isolation.TASK: TASKS,
        Isolation.THREAD: THREADS,
        Isolation.CALLER: callers,
    }
    return lambda contract: by_isolation[contract.isolation]

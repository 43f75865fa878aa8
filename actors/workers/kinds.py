"""How the workers of a tool are made. docs/supervision.md gives the reason for each number."""

from __future__ import annotations

from callboard.actors.workers.messages import KindOf, WorkerKind
from callboard.actors.workers.task import MAX_LOOPS, MAX_TASKS, TaskWorker
from callboard.actors.workers.thread import MAX_THREADS, ThreadWorker
from callboard.protocol.tools import Isolation, ToolContract

TASKS = WorkerKind(lambda dispatcher, _pool: TaskWorker(dispatcher), room=MAX_TASKS, max_workers=MAX_LOOPS)
THREADS = WorkerKind(lambda dispatcher, _pool: ThreadWorker(dispatcher), max_workers=MAX_THREADS)


def kinds(process: KindOf) -> KindOf:
    """The real workers; `process` says how those of a process tool are made."""

    def kind(contract: ToolContract) -> WorkerKind:
        if contract.isolation is Isolation.PROCESS:
            return process(contract)
        return TASKS if contract.isolation is Isolation.TASK else THREADS

    return kind

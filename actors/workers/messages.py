"""What the dispatcher and its workers say to each other, and how a worker's pool is described.

    dispatcher                     worker                                session
        |-- RunCall ----------------->|                                      |
        |                             |-- ToolCallStarted ------------------>|   reports.begin(call)
        |                             |   (the go-ahead, BeginCode, where the begin must be durable)
        |                             |   (the tool's code runs)             |
        |                             |-- ToolCallCompleted, ... ----------->|   reports.end(call, result)
        |<-- WorkerState -------------|

A deadline or a cancel: StopCall, after the grace period KillCall; the worker ends the call by `reports.end` all the
same. Whether a call has begun, is being ended and has ended is written in its record of the ledger, at once; so a
message that is lost with a crashed dispatcher or worker loses nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Never

from msgspec import Struct

from callboard.actors.calls.ledger import Call, CallReports
from callboard.actors.journal.transactions import CallEffect
from callboard.actors.kernel import Actor, ChildSpec, DependencyLost
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Invoker, Result, text_of, with_traceback
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import Tag
from callboard.protocol.tools import FailureCode, ToolContract, ToolFailure

# -- to a worker


class RunCall(Struct, frozen=True):
    """Run this call, or give it back."""

    run: RunTool
    tool: Tool
    context: ToolContext
    record: Call

    def call_within(self, effect: CallEffect) -> Result:
        """Run a `def` whose effect is committed with its outcome, here and now."""
        invoker, run, report = self.tool.invoker, self.run, self.record.report
        return effect.call(lambda context: invoker.call(run.arguments, context, report), self.context)

    async def call_async_within(self, effect: CallEffect, invoker: Invoker) -> Result:
        """Run such an `async def`."""
        run, report = self.run, self.record.report
        return await effect.call_async(lambda context: invoker.call_async(run.arguments, context, report), self.context)

    def abandon(self) -> None:
        """The call has ended, and its thread goes on."""
        if self.record.effect is not None:
            self.record.effect.abandon()

    def unusable(self, error: BaseException) -> ToolFailure:
        """How it ends when its tool cannot even be prepared: the tool's types raise."""
        failed = ToolFailure(self.run.name, FailureCode.TOOL_ERROR, f"{self.run.name} cannot be used: {text_of(error)}")
        return with_traceback(failed, error)


class BeginCode(Struct, frozen=True):
    """To itself: that the call begins is durable, so its tool's code may run."""

    tag: Tag


class StopCall(Struct, frozen=True):
    """Its deadline has passed, or it is cancelled: ask the call to end. KillCall follows after a grace period."""

    tag: Tag


class KillCall(Struct, frozen=True):
    """The grace period is over: end the call now. Sent once."""

    tag: Tag


ToWorker = RunCall | BeginCode | StopCall | KillCall


# -- to the dispatcher, besides WorkerState


class WorkerLost(DependencyLost):
    """For a worker to crash with: what it ran has died, and its calls with it. They end by `failure`.

    Any other exception that ends a worker is our own fault, and its calls end by INTERNAL_ERROR.
    """

    def __init__(self, failure: ToolFailure, printed: str = "", tag: Tag | None = None) -> None:
        """`tag` is that of its call, where it runs one at a time: for the log."""
        ids = {} if tag is None else {**tag.shown(), "tool": failure.tool}
        told = ", ".join(f"{name} {value}" for name, value in ids.items())
        super().__init__(f"{failure.message} ({told})" if told else failure.message, ids)
        self.failure = failure
        self.printed = printed


#: What starting a thread, a loop or a process raises on a host that has no room for one more.
NO_RESOURCES: Final = (OSError, RuntimeError, MemoryError)


# -- pools


def pool_name(contract: ToolContract) -> str:
    """Pools are apart by isolation, so that each has one kind of worker, and by latency: short never waits for long."""
    name = f"{contract.isolation.value}-{contract.latency.value}"
    return f"{name}-reuse" if contract.reuse else name


class WorkerKind(Struct, frozen=True):
    """How a pool runs calls. Its supervisor is started when a call needs it, and workers as calls come."""

    make: Callable[[CallReports, str], Actor[ToWorker]]
    """A worker that tells of its calls by these reports, in the pool of this name."""
    room: int = 1
    """Calls that one worker takes at the same time."""
    max_workers: int = 1
    """Workers alive at the same time, those that take no more calls included."""
    fixed_children: tuple[ChildSpec[Never], ...] = ()
    """Permanent children beside the workers: the actor "POOL/ID" for each, POOL being the pool's name."""
    replaced: Callable[[Tool], object] | None = None
    """Tells these that a tool was replaced: what they keep ready for its calls goes."""
    starts_ahead: bool = False
    """The pool is started with the dispatcher, where one of its tools is registered; else when a call needs it."""


KindOf = Callable[[ToolContract], WorkerKind]
"""How the pool of a tool is made."""

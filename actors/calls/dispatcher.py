"""ToolDispatcher: takes the calls of all sessions and sees that each one gets its worker, its turn and one outcome.

It owns the registry (what models are offered), the queue of each tool, the health of each tool and the approvals that
wait. It runs nothing itself: pools do (worker/pool.py). A call is in exactly one of two places, `queue` of its tool or
`running`, and leaves by exactly one terminal event.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callboard.actors.calls.approvals import Approver, Verdict
from callboard.actors.calls.tool_health import FAILURE_BUDGET, ToolHealth
from callboard.actors.kernel import Actor, Down, ExitReason, MailboxFull, Ref, Rejected, Timer
from callboard.actors.tools import Tool, ToolContext
from callboard.actors.workers.pool import StartCall, StopCall, ThreadsHeld
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.errors import UsageError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import Decision, FailureCode, Isolation, Latency, Policy, ToolFailure

logger = logging.getLogger("callboard.tools")

#: Calls of one tool that may wait for their turn; more are refused as overloaded. One for each of the 10,000 requests
#: that a runtime takes; a kilobyte each, and none waits longer than its deadline.
MAX_QUEUED_CALLS = 10_000
#: Ended calls whose tags are kept. A call is sent twice only around a restart, when at most those now open are.
MAX_SETTLED_CALLS = 4_096

PoolKey = tuple[Isolation, Latency]
DispatcherMessage = Any


@dataclass(frozen=True, slots=True)
class OfferTools:
    """Asks which tools a request may use; answered with ToolsOffered."""

    tag: Tag
    reply_to: Ref


@dataclass(frozen=True, slots=True)
class ToolsOffered:
    """The answer to OfferTools: what is registered and in good health, each with what the policy says of it."""

    tag: Tag
    offers: tuple[ToolOffer, ...]


@dataclass(frozen=True, slots=True)
class DispatchCall:
    """Run this call; its events go to `reply_to`."""

    run: RunTool
    user_text: str
    reply_to: Ref
    asker: Context | None = None


@dataclass(frozen=True, slots=True)
class SeekApproval:
    """Ask whoever owns the runtime; ApprovalGranted or ApprovalDenied goes to `reply_to`."""

    question: AskApproval
    reply_to: Ref
    asker: Context | None = None


@dataclass(frozen=True, slots=True)
class ConfirmStops:
    tag: Tag
    reply_to: Ref


@dataclass(frozen=True, slots=True)
class StopsTold:
    tag: Tag


@dataclass(frozen=True, slots=True)
class _QueuedTooLong:
    tag: Tag


@dataclass(slots=True)
class _Entry:
    """One registered tool and its calls."""

    tool: Tool
    health: ToolHealth
    running: int = 0
    queue: deque[Tag] = field(default_factory=deque)


@dataclass(slots=True)
class _Call:
    request: DispatchCall
    entry: _Entry
    pool: Ref | None = None
    """The pool that runs it; None while it is queued."""
    timer: Timer | None = None
    """Ends a queued call at its deadline; a running one is ended by its pool."""


class ToolDispatcher(Actor):
    """See the module. `pools` maps (isolation, latency) to the pool's address."""

    def __init__(
        self,
        tools: Iterable[Tool],
        pools: Mapping[PoolKey, Ref],
        approver: Approver,
        policy: Policy,
        observer: Ref,
        workspace: Path | None = None,
        failure_budget: int | None = FAILURE_BUDGET,
        max_queued_calls: int = MAX_QUEUED_CALLS,
    ) -> None:
        self._entries: dict[ToolName, _Entry] = {}
        self._pools = pools
        self._approver = approver
        self._policy = policy
        self._observer = observer
        self._workspace = workspace
        self._failure_budget = failure_budget
        self._max_queued_calls = max_queued_calls
        self._calls: dict[Tag, _Call] = {}
        self._settled: dict[Tag, ToolCallEnd | None] = {}
        """Calls that have ended, oldest first; with the outcome, where it was a former incarnation's and is untold."""
        self._begun: dict[Tag, ToolCallStarted] = {}
        """Calls that began for a former incarnation, oldest first; their sessions send them again."""
        self._approvals: dict[Tag, Ref] = {}
        for tool in tools:
            self._register(tool)

    def on_start(self) -> None:
        for pool in self._pools.values():
            self.monitor(pool)

    def on_receive(self, message: Any) -> Any:
        handler = _HANDLERS.get(type(message))
        if handler is None:
            raise UsageError(f"the dispatcher does not understand {type(message).__name__}")
        return handler(self, message)

    def _register(self, tool: Tool) -> None:
        name = tool.definition.name
        if name in self._entries:
            raise UsageError(f"two tools are called {name!r}; rename one of them")
        self._entries[name] = _Entry(tool, ToolHealth(self._failure_budget))

    def _offer(self, message: OfferTools) -> None:
        now = self.now()
        offers = tuple(
            ToolOffer(entry.tool.definition, entry.tool.contract, self._decision(entry.tool))
            for entry in self._entries.values()
            if entry.health.is_offered(now)
        )
        message.reply_to.tell_control(ToolsOffered(message.tag, offers))

    def _decision(self, tool: Tool) -> Decision:
        try:
            return self._policy.decide(tool.contract)
        except Exception as error:  # noqa: BLE001 - the owner's own policy: broken, it fails closed and costs nobody else
            logger.warning("the policy failed for %s, which is denied: %r", tool.name, error)
            return Decision.DENY

    @property
    def open_calls(self) -> int:
        """Calls that run or wait for their turn; 0 at rest."""
        return sum(entry.running + len(entry.queue) for entry in self._entries.values())

    # -- the way of one call: dispatch -> (queue) -> start -> terminal

    def _dispatch(self, message: DispatchCall) -> None:
        run = message.run
        entry = self._entries.get(run.name)
        if entry is None:
            self._refuse(message, ToolFailure(run.name, FailureCode.UNKNOWN_TOOL, f"there is no tool {run.name!r}"))
        elif run.tag in self._calls:
            logger.warning("a call of %s came twice and is open already", run.name, extra=run.tag._asdict())
        elif run.tag in self._settled:
            self._tell_again(message)
        elif not entry.health.is_offered(self.now()):
            self._refuse(message, _withdrawal(run.name))
        elif entry.running < entry.tool.contract.concurrency:
            call = self._calls[run.tag] = _Call(message, entry)
            self._start(call)
        elif len(entry.queue) < self._max_queued_calls:
            timer = self.tell_at(run.deadline_at, _QueuedTooLong(run.tag))
            self._calls[run.tag] = _Call(message, entry, timer=timer)
            entry.queue.append(run.tag)
        else:
            why = f"{len(entry.queue)} calls of {run.name} are waiting already"
            self._refuse(message, ToolFailure(run.name, FailureCode.OVERLOADED, why))

    def _start(self, call: _Call) -> None:
        run, tool = call.request.run, call.entry.tool
        call.entry.running += 1
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        call.pool = self._pools[tool.contract.isolation, tool.contract.latency]
        context = ToolContext(run.tag, run.effect_id, run.deadline_at, call.request.user_text, self._workspace)
        begun = self._begun.pop(run.tag, None)
        call.pool.tell_control(StartCall(run, tool, context, self.ref, has_begun=begun is not None))
        if begun is not None:
            call.request.reply_to.tell_control(begun)

    def _started(self, event: ToolCallStarted) -> None:
        if call := self._calls.get(event.tag):
            call.request.reply_to.tell_control(event)
        elif event.tag not in self._settled:
            self._begun[event.tag] = event
            if len(self._begun) > MAX_SETTLED_CALLS:
                del self._begun[next(iter(self._begun))]

    def _ended(self, event: ToolCallEnd) -> None:
        call = self._calls.pop(event.tag, None)
        if call is None:
            self._settle(event.tag, event)
            raise Rejected("the call has ended before")
        self._settle(event.tag, None)
        entry = call.entry
        if call.pool is not None:
            entry.running -= 1
            self._judge(entry, event)
        elif event.tag in entry.queue:
            entry.queue.remove(event.tag)
        if call.timer is not None:
            call.timer.cancel()
        call.request.reply_to.tell_control(event)
        self._start_next(entry)

    def _settle(self, tag: Tag, untold: ToolCallEnd | None) -> None:
        """Remember that the call has ended, lest it run again when a session, not having heard, sends it again."""
        self._begun.pop(tag, None)
        self._settled.setdefault(tag, untold)
        if len(self._settled) > MAX_SETTLED_CALLS:
            del self._settled[next(iter(self._settled))]

    def _tell_again(self, message: DispatchCall) -> None:
        untold = self._settled[message.run.tag]
        if untold is not None:
            self._settled[message.run.tag] = None
            message.reply_to.tell_control(untold)

    def _start_next(self, entry: _Entry) -> None:
        while entry.queue and entry.running < entry.tool.contract.concurrency:
            self._start(self._calls[entry.queue.popleft()])

    def _queued_too_long(self, message: _QueuedTooLong) -> None:
        call = self._calls.get(message.tag)
        if call is not None and call.pool is None:
            self._ended(ToolCallTimedOut(message.tag, self.now()))

    def _cancel(self, command: CancelTool) -> None:
        call = self._calls.get(command.tag)
        if call is None:
            return
        if call.pool is None:
            self._ended(ToolCallCancelled(command.tag, self.now()))
        else:
            call.pool.tell_control(StopCall(command.tag))

    def _pool_down(self, down: Down) -> None:
        """Its running calls are lost with it; whether they had their effect, nobody knows."""
        if down.reason is not ExitReason.NOT_ALIVE:  # else it is dead for good, and a monitor would fire for ever
            self.monitor(down.ref)
        for entry in self._entries.values():
            if self._pools[entry.tool.contract.isolation, entry.tool.contract.latency] is down.ref:
                entry.health.held_threads = 0  # they are nobody's now, and nobody will tell of their return
        lost = [tag for tag, call in self._calls.items() if call.pool is down.ref]
        for tag in lost:
            name = self._calls[tag].request.run.name
            failure = ToolFailure(
                name, FailureCode.OUTCOME_UNKNOWN, f"the pool that ran {name} was lost: {down.reason}"
            )
            down.ref.tell_control(StopCall(tag))  # its start may have waited out the crash in the mailbox
            self._ended(ToolCallFailed(tag, self.now(), failure))

    def _refuse(self, message: DispatchCall, failure: ToolFailure) -> None:
        message.reply_to.tell_control(ToolCallFailed(message.run.tag, self.now(), failure))

    # -- health

    def _judge(self, entry: _Entry, event: ToolCallEnd) -> None:
        now, name = self.now(), entry.tool.definition.name
        if _is_breakdown(event):
            if entry.health.record_failure(now):
                extra = event.tag._asdict()
                logger.warning("tool %s is withdrawn for %.0f s", name, entry.health.pause_seconds, extra=extra)
                self._withdrawn(entry)
        elif not isinstance(event, ToolCallCancelled) and entry.health.record_success(now):
            logger.info("tool %s is restored", name, extra=event.tag._asdict())
            self._observe(ToolRestored(name, now))

    def _threads_held(self, message: ThreadsHeld) -> None:
        entry, now = self._entries[message.name], self.now()
        was_offered = entry.health.is_offered(now)
        entry.health.held_threads = message.count
        if was_offered and not entry.health.is_offered(now):
            logger.warning(
                "tool %s is withdrawn: calls of it that have ended hold %d threads", message.name, message.count
            )
            self._withdrawn(entry)
        elif entry.health.is_offered(now) and not was_offered:
            logger.info("tool %s is restored: threads that it held have returned", message.name)
            self._observe(ToolRestored(message.name, now))

    def _withdrawn(self, entry: _Entry) -> None:
        """Tell, and refuse what waits for it as what comes from now on."""
        name, waiting, entry.queue = entry.tool.definition.name, entry.queue, deque()
        self._observe(ToolWithdrawn(name, self.now()))
        for tag in waiting:
            self._ended(ToolCallFailed(tag, self.now(), _withdrawal(name)))

    def _observe(self, event: ToolWithdrawn | ToolRestored) -> None:
        with contextlib.suppress(MailboxFull):  # telemetry that cannot keep up must not steer; the kernel counts it
            self._observer.tell(event)

    # -- approvals

    def _seek_approval(self, message: SeekApproval) -> None:
        question = message.question
        self._approvals[question.tag] = message.reply_to
        decide = self.ref.tell_control
        try:
            self._approver.ask(question, decide)
        except Exception as error:  # noqa: BLE001 - an approver that cannot ask means no, and costs nobody else
            logger.warning("%s could not be asked about: %r", question.name, error, extra=question.tag._asdict())
            decide(Verdict(question.tag, granted=False, by="approver", reason="nobody could be asked"))

    def _decided(self, verdict: Verdict) -> None:
        asker = self._approvals.pop(verdict.tag, None)
        if asker is None:
            raise Rejected("nobody waits for this approval any more")
        if verdict.granted:
            asker.tell_control(ApprovalGranted(verdict.tag, self.now(), verdict.by))
        else:
            asker.tell_control(ApprovalDenied(verdict.tag, self.now(), verdict.by, verdict.reason))

    def _withdraw_question(self, command: WithdrawApproval) -> None:
        if self._approvals.pop(command.tag, None) is not None:
            self._approver.withdraw(command.tag)


@dataclass(frozen=True, slots=True)
class ToolWithdrawn:
    """The tool is over its failure budget, or holds too many threads: for now it is no longer offered to models."""

    name: ToolName
    at: float


@dataclass(frozen=True, slots=True)
class ToolRestored:
    """The tool's probe succeeded, or threads that it held have returned."""

    name: ToolName
    at: float


def _withdrawal(name: ToolName) -> ToolFailure:
    return ToolFailure(name, FailureCode.WITHDRAWN, f"{name} failed too often and is withdrawn for now")


def _is_breakdown(event: ToolCallEnd) -> bool:
    """A crash or a hang: what costs a worker. A tool that raises, or dislikes its arguments, works as it should."""
    if isinstance(event, ToolCallFailed):
        return event.failure.code in (FailureCode.CRASHED, FailureCode.OUTCOME_UNKNOWN)
    return isinstance(event, ToolCallTimedOut)


_HANDLERS: Mapping[type, Callable[[ToolDispatcher, Any], None]] = {
    OfferTools: ToolDispatcher._offer,
    DispatchCall: ToolDispatcher._dispatch,
    CancelTool: ToolDispatcher._cancel,
    ToolCallStarted: ToolDispatcher._started,
    ToolCallCompleted: ToolDispatcher._ended,
    ToolCallFailed: ToolDispatcher._ended,
    ToolCallTimedOut: ToolDispatcher._ended,
    ToolCallCancelled: ToolDispatcher._ended,
    _QueuedTooLong: ToolDispatcher._queued_too_long,
    ThreadsHeld: ToolDispatcher._threads_held,
    Down: ToolDispatcher._pool_down,
    SeekApproval: ToolDispatcher._seek_approval,
    ConfirmStops: lambda self, message: message.reply_to.tell_control(StopsTold(message.tag)),
    Verdict: ToolDispatcher._decided,
    WithdrawApproval: ToolDispatcher._withdraw_question,
}

"""ToolDispatcher: takes the calls of all sessions and sees that each one gets its worker, its turn and one outcome.

It is the actor between three objects and everybody else: the registry (which tools there are, and in what health), the
ledger (where each call is) and the approver. It runs nothing itself: workers do (workers/messages.py), in pools that
are made when a tool first needs them. A session hears of a call's start and end from the worker, and from here only
where no worker had the call, or lost it.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from callboard.actors.calls.approvals import Approver, Verdict
from callboard.actors.calls.ledger import (
    Call,
    CallEvent,
    CallState,
    Ending,
    Happening,
    Lane,
    Ledger,
    Outcome,
    Pool,
    Seat,
    WorkerState,
)
from callboard.actors.calls.registry import Change, Registry, ToolRestored, ToolWithdrawn, withdrawal
from callboard.actors.kernel import (
    Actor,
    ChildSpec,
    Down,
    ExitReason,
    MailboxFull,
    NoSuchActor,
    Ref,
    Rejected,
    Restart,
    Supervisor,
    Timer,
    handles,
    start_child,
)
from callboard.actors.tools import ToolContext
from callboard.actors.tools.invoke import Result, text_of
from callboard.actors.workers.messages import (
    KillCall,
    KindOf,
    Report,
    RunCall,
    StopCall,
    WorkerKind,
    WorkerLost,
    pool_name,
)
from callboard.protocol.commands import AskApproval, CancelTool, RunTool, WithdrawApproval
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    ToolCallCancelled,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import TOOL_GRACE_SECONDS
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import FailureCode, ToolContract, ToolFailure

logger = logging.getLogger("callboard.tools")

#: Calls of one tool that may wait for their turn; more are refused as overloaded. One for each of the 10,000 requests
#: that a runtime takes; a kilobyte each, and none waits longer than its deadline.
MAX_QUEUED_CALLS = 10_000
#: From KillCall to the end of a call whose worker says nothing; a kill takes milliseconds. Deadline, grace period and
#: this together are less than the session's own backstop, so that it is the dispatcher who knows of such a worker.
ABANDON_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class OfferTools:
    """Asks which tools a request may use; answered with ToolsOffered."""

    tag: Tag
    reply_to: Ref[ToolsOffered]


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
    reply_to: Ref[CallEvent]
    asker: Context | None = None
    """The context of whoever asked the request."""


@dataclass(frozen=True, slots=True)
class SeekApproval:
    """Ask whoever owns the runtime; ApprovalGranted or ApprovalDenied goes to `reply_to`."""

    question: AskApproval
    reply_to: Ref[ApprovalGranted | ApprovalDenied]
    asker: Context | None = None


@dataclass(frozen=True, slots=True)
class ConfirmStops:
    """Asks for a StopsTold once every CancelTool that was sent before it has reached the worker of its call."""

    tag: Tag
    reply_to: Ref[StopsTold]


@dataclass(frozen=True, slots=True)
class StopsTold:
    """The answer to ConfirmStops."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class _Due:
    """The time of a call has come: its deadline, or the end of its grace period."""

    call: Call


DispatcherMessage = (
    OfferTools
    | DispatchCall
    | CancelTool
    | ConfirmStops
    | SeekApproval
    | Verdict
    | WithdrawApproval
    | WorkerState
    | Down
    | _Due
)


@dataclass(frozen=True, slots=True)
class Workers:
    """Where workers come from."""

    supervisor: Ref
    """Of the pools' supervisors."""
    kind: KindOf
    chance: Callable[[], float] = random.random
    """From [0, 1): spreads restarts."""


class ToolDispatcher(Actor[DispatcherMessage]):
    """See the module. `ledger` outlives this actor; everything else is made anew with it."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        workers: Workers,
        approver: Approver,
        observer: Ref[ToolWithdrawn | ToolRestored],
        workspace: Path | None = None,
        max_queued_calls: int = MAX_QUEUED_CALLS,
    ) -> None:
        self._registry = registry
        self.ledger = ledger
        self._workers = workers
        self._approver = approver
        self._observer = observer
        self._workspace = workspace
        self._max_queued_calls = max_queued_calls
        self._timers: dict[Tag, Timer] = {}
        self._kinds: dict[str, WorkerKind] = {}
        self._approvals: dict[Tag, Ref[ApprovalGranted | ApprovalDenied]] = {}

    def on_start(self) -> None:
        """Take over what a former incarnation has left: its calls go on where they are."""
        for entry in self._registry.entries.values():
            name, kind = self._kind(entry.tool.contract)
            if kind.at_start:
                self._supervisor(name, kind)
        for worker in self.ledger.seats:
            self.monitor(worker)
            worker.tell_control(Report())
        for call in self.ledger.calls.values():
            self._set_timer(call, call.due)
        self._go_on(*self.ledger.pools.values())

    # -- the way of one call: dispatch -> (queue) -> worker -> outcome

    @handles(OfferTools)
    def _offer(self, message: OfferTools) -> None:
        message.reply_to.tell_control(ToolsOffered(message.tag, self._registry.offers(self.now())))

    @handles(DispatchCall)
    def _dispatch(self, message: DispatchCall) -> None:
        run, reply_to = message.run, message.reply_to
        is_open = self.ledger.calls.get(run.tag)
        if is_open is not None and is_open.reply_to is reply_to:
            logger.warning("a call of %s came twice and is open already", run.name, extra=run.tag._asdict())
        elif is_open is not None:
            why = "a call of an earlier request with the same id is still being ended"
            self._refuse(message, ToolFailure(run.name, FailureCode.OVERLOADED, why))
        elif (ended := self.ledger.ended.of(run.tag, reply_to)) is not None:
            reply_to.tell_control(ended)
        elif (refusal := self._registry.refusal(run.name, self.now())) is not None:
            self._refuse(message, refusal)
        else:
            try:
                self._admit(message)
            except Exception as error:  # noqa: BLE001 - our own fault costs this call, and nothing else
                self._refuse(message, _our_fault(run.name, error))
            self._go_on()

    def _admit(self, message: DispatchCall) -> None:
        run = message.run
        lane = self.ledger.lanes.get(run.name) or self._new_lane(run.name)
        call = self.ledger.submit(run, lane, message.reply_to, message.user_text, message.asker)
        if run.deadline_at <= self.now():
            self._end_running(call, Ending.TIMED_OUT)
            return
        self._set_timer(call, run.deadline_at)
        self._go_on(lane.pool)
        if call.state is CallState.QUEUED and len(lane.waiting) > self._max_queued_calls:
            why = f"{self._max_queued_calls} calls of {run.name} are waiting already"
            self._end(call, ToolFailure(run.name, FailureCode.OVERLOADED, why))

    def _new_lane(self, name: ToolName) -> Lane:
        contract = self._registry.entries[name].tool.contract
        place, kind = self._kind(contract)
        pool = self.ledger.pool(place, kind.room, kind.max_workers)
        return self.ledger.lane(name, pool, contract.concurrency)

    def _kind(self, contract: ToolContract) -> tuple[str, WorkerKind]:
        name = pool_name(contract)
        if name not in self._kinds:
            self._kinds[name] = self._workers.kind(contract)
        return name, self._kinds[name]

    def _refuse(self, message: DispatchCall, failure: ToolFailure) -> None:
        call = self.ledger.calls.get(message.run.tag)
        if call is not None and call.reply_to is message.reply_to:
            self._end(call, failure)
        else:
            message.reply_to.tell_control(ToolCallFailed(message.run.tag, self.now(), failure))

    def _go_on(self, *pools: Pool) -> None:
        """After whatever happened: look at the calls that have ended, then fill the room there is."""
        waiting = {pool.name: pool for pool in pools}
        while True:
            while self.ledger.news:
                call, event = self.ledger.news.popleft()
                waiting[call.lane.pool.name] = call.lane.pool
                self._contained(call, partial(self._settle, call, event))
            if not waiting:
                return
            _, pool = waiting.popitem()
            while (following := pool.next_call()) is not None:
                self._contained(following, partial(self._give, following, pool))

    def _contained(self, call: Call, act: Callable[[], object]) -> None:
        """A fault of our own in what is done about one call costs that call, and nothing else."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._end(call, _our_fault(call.run.name, error))

    def _give(self, call: Call, pool: Pool) -> None:
        run, tool = call.run, self._registry.entries[call.run.name].tool
        seat = next(reversed(pool.free), None) or self._new_worker(pool, tool.contract)
        context = ToolContext(run, call.user_text, self._workspace)
        if not self.ledger.give(call, seat):
            raise AssertionError(f"it is not the turn of {run.tag}")
        seat.worker.tell_control(RunCall(run, tool, context, call))

    def _new_worker(self, pool: Pool, contract: ToolContract) -> Seat:
        name, kind = self._kind(contract)
        supervisor, dispatcher = self._supervisor(name, kind), self.ref
        spec = ChildSpec(
            str(next(self.ledger.names)),
            lambda: kind.make(dispatcher, supervisor.name),
            restart=Restart.TEMPORARY,
            shutdown_seconds=kind.shutdown_seconds,
        )
        worker = start_child(supervisor, spec)
        self.monitor(worker)
        return self.ledger.add_worker(pool, worker)

    def _supervisor(self, pool: str, kind: WorkerKind) -> Ref:
        """Of the workers of a pool; started when there is none."""
        tools, chance = self._workers.supervisor, self._workers.chance
        try:
            return self.system.ref(f"{tools.name}/{pool}")
        except NoSuchActor:
            return start_child(tools, ChildSpec(pool, lambda: Supervisor(kind.fixed_children, chance=chance)))

    @handles(CancelTool)
    def _cancel(self, command: CancelTool) -> None:
        call = self.ledger.calls.get(command.tag)
        if call is not None:
            self._contained(call, partial(self._end_running, call, Ending.CANCELLED))
            self._go_on()

    @handles(ConfirmStops)
    def _confirm_stops(self, message: ConfirmStops) -> None:
        message.reply_to.tell_control(StopsTold(message.tag))

    @handles(_Due)
    def _due(self, message: _Due) -> None:
        call = message.call
        if call.state is not CallState.ENDED and self.now() >= call.due:
            self._contained(call, partial(self._time_is_over, call))
            self._go_on()

    def _time_is_over(self, call: Call) -> None:
        if call.seat is None or call.state is not CallState.ENDING:
            self._end_running(call, Ending.TIMED_OUT)
        elif self.ledger.enter(call, Happening.KILLED):
            self._set_timer(call, self.now() + ABANDON_SECONDS)
            call.seat.worker.tell_control(KillCall(call.run.tag))
        else:
            logger.warning("a worker of %s does not end a call", call.run.name, extra=call.run.tag._asdict())
            call.seat.take(0)
            self._end(call, Ending.TIMED_OUT)

    def _end_running(self, call: Call, why: Ending) -> None:
        """The call's deadline has passed, or it is cancelled: its worker, if it has one, is to end it."""
        if call.seat is None:
            self._end(call, why)
        elif self.ledger.stop(call, why):
            self._set_timer(call, self.now() + TOOL_GRACE_SECONDS)
            call.seat.worker.tell_control(StopCall(call.run.tag, why))

    def _end(self, call: Call, outcome: Outcome, printed: str = "", how: Happening = Happening.ENDED) -> None:
        """The call ends here, not at its worker."""
        event = self.ledger.end(call, outcome, printed, self.now(), how)
        if event is not None:
            call.reply_to.tell_control(event)

    def _set_timer(self, call: Call, due: float) -> None:
        """Of the call's one timer: the later time counts."""
        if timer := self._timers.get(call.run.tag):
            timer.cancel()
        call.due = due
        self._timers[call.run.tag] = self.tell_at(due, _Due(call))

    # -- workers

    @handles(WorkerState)
    def _worker_state(self, state: WorkerState) -> None:
        seat = self._seat(state.worker)
        seat.take(state.room)
        self._observe(self._registry.hold(state.worker, state.holds, self.now()))
        self._go_on(seat.pool)

    @handles(Down)
    def _worker_down(self, down: Down) -> None:
        seat, printed = self._seat(down.ref), down.error.printed if isinstance(down.error, WorkerLost) else ""
        self._observe(self._registry.hold(down.ref, (), self.now()))
        for call in self.ledger.lose(seat):
            self._end(call, _fate(call, down), printed, Happening.LOST)
        self._go_on(seat.pool)

    def _seat(self, worker: Ref) -> Seat:
        seat = self.ledger.seats.get(worker)
        if seat is None:
            raise Rejected("that worker is gone")
        return seat

    # -- health

    def _settle(self, call: Call, event: ToolCallEnd) -> None:
        if timer := self._timers.pop(call.run.tag, None):
            timer.cancel()
        worked = _worked(event)
        if call.begun and worked is not None:
            change = self._registry.judge(call.run.name, worked=worked, now=self.now())
            self._observe([change] if change is not None else [])

    def _observe(self, changes: Iterable[Change]) -> None:
        """Tell of a tool's health, and refuse what waits for a withdrawn one as what comes from now on."""
        for change in changes:
            with contextlib.suppress(MailboxFull):  # telemetry that cannot keep up must not steer
                self._observer.tell(change)
            if isinstance(change, ToolWithdrawn):
                lane = self.ledger.lanes.get(change.name)
                for _, call in tuple(lane.waiting) if lane is not None else ():
                    self._end(call, withdrawal(change.name))

    # -- approvals

    @handles(SeekApproval)
    def _seek_approval(self, message: SeekApproval) -> None:
        question = message.question
        self._approvals[question.tag] = message.reply_to
        decide = self.ref.tell_control
        try:
            self._approver.ask(question, decide, message.asker)
        except Exception as error:  # noqa: BLE001 - an approver that cannot ask means no, and costs nobody else
            logger.warning(
                "%s could not be asked about: %s", question.name, text_of(error), extra=question.tag._asdict()
            )
            decide(Verdict(question.tag, granted=False, by="approver", reason="nobody could be asked"))

    @handles(Verdict)
    def _decided(self, verdict: Verdict) -> None:
        asker = self._approvals.pop(verdict.tag, None)
        if asker is None:
            raise Rejected("nobody waits for this approval any more")
        if verdict.granted:
            asker.tell_control(ApprovalGranted(verdict.tag, self.now(), verdict.by))
        else:
            asker.tell_control(ApprovalDenied(verdict.tag, self.now(), verdict.by, verdict.reason))

    @handles(WithdrawApproval)
    def _withdraw_question(self, command: WithdrawApproval) -> None:
        if self._approvals.pop(command.tag, None) is None:
            return
        try:
            self._approver.withdraw(command.tag)
        except Exception as error:  # noqa: BLE001 - as above; its verdict, if it comes, is rejected
            logger.warning("a question could not be withdrawn: %s", text_of(error), extra=command.tag._asdict())


#: What the failure of a call says of its tool: that it does not work (a crash or a hang, which cost a worker), or
#: nothing. A tool that raises, or does not like its arguments, works.
_SAYS = {
    FailureCode.CRASHED: False,
    FailureCode.OUTCOME_UNKNOWN: False,
    FailureCode.INTERNAL_ERROR: None,
    FailureCode.OVERLOADED: None,
}


def _worked(event: ToolCallEnd) -> bool | None:
    """Whether the tool works, so far as the end of a call says that."""
    if isinstance(event, ToolCallFailed):
        return _SAYS.get(event.failure.code, True)
    return None if isinstance(event, ToolCallCancelled) else not isinstance(event, ToolCallTimedOut)


def _our_fault(name: ToolName, error: BaseException) -> ToolFailure:
    logger.error("a call of %s failed for a fault of callboard's own: %s", name, text_of(error), exc_info=error)
    return ToolFailure(name, FailureCode.INTERNAL_ERROR, f"callboard failed to run {name}: {text_of(error)}")


def _fate(call: Call, down: Down) -> Result:
    """How a call ends when its worker is gone: one that had begun, or that too many workers could not begin."""
    name, error = call.run.name, down.error
    if isinstance(error, WorkerLost):
        return error.failure
    if not call.begun:
        why = f"{name} was not run: each worker that was to run it was lost before it could"
        return ToolFailure(name, FailureCode.INTERNAL_ERROR, why)
    if down.reason is ExitReason.CRASHED:
        why = f"callboard's worker failed while {name} ran; whether it had its effect is not known"
        return ToolFailure(name, FailureCode.INTERNAL_ERROR, f"{why}: {text_of(error)}")
    why = f"the worker that ran {name} was lost ({down.reason.value}); whether it had its effect is not known"
    return ToolFailure(name, FailureCode.OUTCOME_UNKNOWN, why)

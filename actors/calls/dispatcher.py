"""ToolDispatcher: takes the calls of all sessions and sees that each one gets its worker, its turn and one outcome.

It is the actor between the registry (which tools there are, and in what health), the ledger (where each call is) and
the approver. It runs nothing itself: workers do (workers/messages.py), in pools that are made when a tool first needs
them. A session hears of a call's start and end from the worker, and from here only where no worker had the call, or
lost it.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable
from contextvars import Context
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors import kernel
from callboard.actors.calls import ledger as ledgers
from callboard.actors.calls.approvals import Approver, OpenQuestions, QuestionStep, SeekApproval, Verdict
from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import (
    Call,
    CallEvent,
    CallState,
    EndedCalls,
    Ending,
    Happening,
    Lane,
    LastEvent,
    Ledger,
    Outcome,
    Pool,
    Seat,
    WorkerState,
)
from callboard.actors.calls.registry import Change, Registry, ToolKey, ToolWithdrawn
from callboard.actors.journal.outbox import EffectCommitted
from callboard.actors.journal.transactions import CallEffect, Effects, transaction_fault
from callboard.actors.kernel import Actor, Asks, Down, Ref, handles
from callboard.actors.telemetry.notices import ToolPrinted, ToolStopped
from callboard.actors.telemetry.request_log import metadata_in, trace_headers_in
from callboard.actors.tools import Tool, ToolContext
from callboard.actors.tools.invoke import Result, text_of
from callboard.actors.workers import messages
from callboard.actors.workers.call_stacks import ReadStack
from callboard.protocol import events
from callboard.protocol.commands import CancelTool, RunTool, WithdrawApproval
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import COMMIT_SECONDS, TOOL_GRACE_SECONDS
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Mode
from callboard.protocol.tools import Effect, FailureCode, ToolContract, ToolFailure

logger = logging.getLogger("callboard.tools")

#: Calls of one tool that may wait for their turn; more are refused as overloaded. One for each of the 10,000 requests
#: that a runtime takes; a kilobyte each, and none waits longer than its deadline.
MAX_QUEUED_CALLS = 10_000
#: From KillCall to the end of a call whose worker says nothing; a kill takes milliseconds. Deadline, grace period and
#: this together are less than the session's own backstop, so that it is the dispatcher who knows of such a worker.
ABANDON_SECONDS = 1.5
#: For a worker to end when its pool stops; then it is killed.
WORKER_SHUTDOWN_SECONDS = 1.0


class OfferTools(Struct, frozen=True):
    """Asks which tools a request may use; answered with ToolsOffered."""

    tag: Tag
    reply_to: Ref[ToolsOffered]
    mode: Mode | None = None
    """That of the request; None: the runtime's."""


class ToolsOffered(Struct, frozen=True):
    """The answer to OfferTools: what is registered and in good health, each with what the policy says of it."""

    tag: Tag
    offers: tuple[ToolOffer, ...]


class ReadOffers(Asks[tuple[ToolOffer, ...]], Struct, frozen=True):
    """Asks, from outside, what would be offered to a request that begins now."""


class DispatchCall(Struct, frozen=True):
    """Run this call; its events go to `reply_to`."""

    run: RunTool
    user_text: str
    reply_to: Ref[CallEvent]
    asker: Context | None = None
    """The context in which the request was asked."""
    is_read_along: bool = False
    """Is the stream of the request read, and so the progress of its calls?"""
    ended: EndedCalls = field(default_factory=EndedCalls)
    """The session's: the same in all its calls."""
    tool: Tool | None = None
    """One that the question has brought with it; None: the runtime's of that name."""
    offered: ToolOffer | None = None
    """What the model was shown of the tool, where that may have changed since."""
    go_ahead: GoAhead | None = None
    """What the tool's code has to wait for; None: nothing."""


class ReplaceTools(Struct, frozen=True):
    """From now on these are all the tools of this source: they come and go while the runtime runs. A call that has
    begun goes on as it began; one that begins from now on, or waits, runs by the new contract. A request that runs
    keeps its offers: its call is refused where the tool is gone, or is not what was offered (`ToolOffer.changes_to`).
    """

    source: str
    tools: tuple[Tool, ...]


class ConfirmStops(Struct, frozen=True):
    """Asks for a StopsTold once every stop of a request has been told to whom it concerns."""

    tag: Tag
    reply_to: Ref[StopsTold]
    stops: tuple[CancelTool | WithdrawApproval, ...] = ()
    """All of them once more: those that were sent before it may be lost with a dispatcher."""


class StopsTold(Struct, frozen=True):
    """The answer to ConfirmStops."""

    tag: Tag


class _Due(Struct, frozen=True):
    """The time of a call has come: its deadline, or the end of its grace period."""

    call: Call


DispatcherMessage = (
    OfferTools
    | ReadOffers
    | ReplaceTools
    | DispatchCall
    | CancelTool
    | ConfirmStops
    | SeekApproval
    | Verdict
    | WithdrawApproval
    | WorkerState
    | EffectCommitted
    | ReadStack
    | Down
    | _Due
)


class Workers(Struct, frozen=True):
    """Where workers come from."""

    supervisor: Ref
    """Of the pools' supervisors."""
    kind: messages.KindOf
    chance: Callable[[], float] = random.random
    """From [0, 1): spreads restarts."""


class ToolDispatcher(Actor[DispatcherMessage]):
    """See the module. `ledger` outlives this actor; all else is made with it."""

    def __init__(
        self,
        registry: Registry,
        ledger: Ledger,
        workers: Workers,
        approver: Approver,
        observer: Ref[Change | ToolPrinted | ToolStopped],
        workspace: Path | None = None,
        max_queued_calls: int = MAX_QUEUED_CALLS,
        effects: Effects | None = None,
    ) -> None:
        """`effects`: how calls with the effect `transaction` are committed; None: not at all, they are refused."""
        self._registry = registry
        self.ledger = ledger
        self._workers = workers
        self._approver = approver
        self._observer = observer
        self._workspace = workspace
        self._max_queued_calls = max_queued_calls
        self._effects = effects
        self._timers: dict[Call, kernel.Timer] = {}
        self._questions = OpenQuestions()
        self._sessions: set[Ref] = set()
        """Those that are monitored: what is kept for a request goes with it."""

    def on_start(self) -> None:
        """Take over what a former incarnation has left: its calls go on where they are."""
        self._start_ahead()
        for worker, seat in self.ledger.seats.items():
            self.monitor(worker)
            self._hold(worker, seat.holds)
        for session, tools in self.ledger.brought.items():
            self._keep_until_end_of(session)
            for tool in tools:
                self._registry.bring(tool)
        for key, lane in tuple(self.ledger.lanes.items()):
            if (entry := self._registry.entries.get(key)) is not None:  # it may have been replaced meanwhile
                self._lane(lane.key, entry.tool.contract)
        for call in self.ledger.calls.values():
            self._set_timer(call, call.due)
            if call.effect is not None:
                call.effect.hand_over_again()
        self._go_on(*self.ledger.pools.values())

    def _start_ahead(self) -> None:
        for entry in self._registry.entries.values():
            kind = self._workers.kind(entry.tool.contract)
            if kind.starts_ahead:
                self._supervisor(self._pool(entry.tool.contract).name, kind)

    # -- the way of one call: dispatch -> (queue) -> worker -> outcome

    @handles(OfferTools)
    def _offer(self, message: OfferTools) -> None:
        message.reply_to.tell_control(ToolsOffered(message.tag, self._registry.offers(self.now(), message.mode)))

    @handles(ReadOffers)
    def _read_offers(self, _: ReadOffers) -> tuple[ToolOffer, ...]:
        return self._registry.offers(self.now())

    @handles(ReplaceTools)
    def _replace_tools(self, message: ReplaceTools) -> None:
        left = self._registry.replace(message.source, message.tools)
        for tool in left:
            self._has_left(tool)
        for tool in message.tools:  # what an earlier one of its name has begun may come back to the queue
            if tool.name in self.ledger.lanes and (entry := self._registry.entries.get(tool.name)) is not None:
                self._lane(tool.name, entry.tool.contract)
        self._start_ahead()
        self._end_unwanted_pools()
        for tool in left:
            self._tell_replaced(tool)
        self._go_on(*self.ledger.pools.values())

    def _has_left(self, tool: Tool) -> None:
        """It is gone, or there is another one of its name: what waits is refused, or runs as the new one says."""
        name, entry, lane = tool.name, self._registry.entries.get(tool.name), self.ledger.lanes.get(tool.name)
        if lane is None:
            return
        if entry is not None:
            self._lane(name, entry.tool.contract)
            return
        for _, call in tuple(lane.waiting):
            gone = f"{name} was taken away before the call could run"
            self._end(call, ToolFailure(name, FailureCode.WITHDRAWN, gone))
        self._forget_lane(lane)

    def _tell_replaced(self, tool: Tool) -> None:
        kind, pool = self._workers.kind(tool.contract), self.ledger.pools.get(messages.pool_name(tool.contract))
        if pool is None or kind.replaced is None:
            return
        for child in kind.fixed_children:
            with contextlib.suppress(kernel.NoSuchActor):
                self.system.ref(f"{self._workers.supervisor.name}/{pool.name}/{child.id}").tell_control(
                    kind.replaced(tool)
                )

    def _forget_lane(self, lane: Lane) -> None:
        """Unless it is in use: what has begun counts still, should the tool come back."""
        if lane.key not in self._registry.entries and not lane.running and not lane.waiting:
            self.ledger.lanes.pop(lane.key, None)

    def _end_unwanted_pools(self) -> None:
        """Those that no tool needs, and no call is in: their workers, with all that they keep."""
        wanted = {messages.pool_name(entry.tool.contract) for entry in self._registry.entries.values()}
        for pool in self.ledger.end_unwanted(wanted):
            kernel.stop_child(self._workers.supervisor, pool.name)

    @handles(DispatchCall)
    def _dispatch(self, message: DispatchCall) -> None:
        run, reply_to, now = message.run, message.reply_to, self.now()
        is_open = self.ledger.calls.get(run.tag)
        if is_open is not None and is_open.reply_to is reply_to:
            logger.warning("a call of %s came twice and is open already", run.name, extra=run.tag.shown())
        elif is_open is not None:
            why = "a call of an earlier request with the same id is still being ended"
            self._refuse(message, ToolFailure(run.name, FailureCode.OVERLOADED, why))
        elif (ended := message.ended.of(run.tag)) is not None:
            reply_to.tell_control(ended)
        elif (refusal := self._refusal(message.run, key := self._key(message), message.offered)) is not None:
            self._refuse(message, refusal)
        else:
            try:
                self._admit(message, key, now)
            except Exception as error:  # noqa: BLE001 - our own fault costs this call, and nothing else
                self._refuse(message, _our_fault(run.name, error))

    def _refusal(self, run: RunTool, key: ToolKey, offered: ToolOffer | None) -> ToolFailure | None:
        if (refusal := self._registry.refusal(key, self.now(), offered)) is not None:
            return refusal
        contract = self._registry.entries[key].tool.contract
        if run.hold and offered is not None and offered.contract.can_be_held and not contract.can_be_held:
            why = f"{run.name} has changed since the call was allowed: the kernel cannot hold it to reading any more"
            return ToolFailure(run.name, FailureCode.WITHDRAWN, why)
        if contract.effect is not Effect.TRANSACTION:
            return None
        fault = self._effects.fault(contract) if self._effects is not None else transaction_fault(contract)
        return ToolFailure(run.name, FailureCode.WITHDRAWN, f"it was not run: {fault}") if fault else None

    def _key(self, message: DispatchCall) -> ToolKey:
        """Of the tool that is called. One that a question brings with it is known as long as its session lives."""
        if (tool := message.tool) is None:
            return message.run.name
        if self.ledger.bring(tool, message.reply_to):
            self._keep_until_end_of(message.reply_to)
        self._registry.bring(tool)
        return tool

    def _keep_until_end_of(self, session: Ref) -> None:
        if session not in self._sessions:
            self._sessions.add(session)
            self.monitor(session)

    def _admit(self, message: DispatchCall, key: ToolKey, now: float) -> None:
        run, ledger = message.run, self.ledger
        contract = self._registry.entries[key].tool.contract
        lane = self._lane(key, contract)
        call = ledger.submit(run, lane, message.reply_to, message.user_text, message.asker, message.ended)
        call.is_read_along, call.go_ahead, call.contract = message.is_read_along, message.go_ahead, contract
        call.offered = message.offered
        if contract.effect is Effect.TRANSACTION and self._effects is not None:
            call.effect = self._effects.of(run)
        due = run.deadline_at
        if due <= now:  # on its way from the session, or while this process was stopped
            due += self.system.scheduler.frozen_since(due - contract.timeout_seconds)
        if due <= now:
            self._end(call, Ending.TIMED_OUT)
        else:
            self._set_timer(call, due)
        self._go_on(lane.pool)
        if call.state is CallState.QUEUED and len(lane.waiting) > self._max_queued_calls:
            why = f"{self._max_queued_calls} calls of {run.name} are waiting already"
            self._refuse(message, ToolFailure(run.name, FailureCode.OVERLOADED, why))

    def _lane(self, key: ToolKey, contract: ToolContract) -> Lane:
        """Where calls of the tool wait. One that was made by another contract goes by this one from now on, and one
        whose pool has ended to the pool that there is."""
        lane = self.ledger.lanes.get(key)
        if lane is not None and lane.contract is contract and lane.pool.is_wanted:
            return lane
        pool = self._pool(contract)
        if lane is None:
            lane = self.ledger.lane(key, contract.concurrency, pool)
        lane.move(pool, contract)
        return lane

    def _pool(self, contract: ToolContract) -> Pool:
        kind = self._workers.kind(contract)
        return self.ledger.pool(messages.pool_name(contract), kind.room, kind.max_workers)

    def _refuse(self, message: DispatchCall, failure: ToolFailure) -> None:
        call = self.ledger.calls.get(message.run.tag)
        if call is not None and call.reply_to is message.reply_to:
            self._end(call, failure)
            self._go_on()
        else:
            refused = events.ToolCallFailed(message.run.tag, self.now(), failure)
            message.ended.remember(refused)  # the next dispatcher may not refuse it, and its session has heard so
            message.reply_to.tell_control(refused)

    def _go_on(self, *pools: Pool) -> None:
        """Look at the calls that have ended, then fill the room there is."""
        news, unfilled = self.ledger.news, list(pools)
        while news or unfilled:
            if news:
                call, event = news.popleft()
                unfilled.append(call.lane.pool)
                if call.pool is not None and call.pool is not call.lane.pool:
                    unfilled.append(call.pool)  # its tool has moved since
                self._contained(self._settle, call, event)
            elif unfilled[-1].waiting and (following := unfilled[-1].next_call()) is not None:
                self._contained(self._give, following)
            else:
                unfilled.pop()

    def _contained(self, act: Callable[..., object], call: Call, *more: object) -> None:
        """A fault of our own in what is done about one call costs that call, and nothing else."""
        try:
            act(call, *more)
        except Exception as error:  # noqa: BLE001 - as above
            self._end(call, _our_fault(call.run.name, error))

    def _give(self, call: Call) -> None:
        run, key, pool = call.run, call.lane.key, call.lane.pool
        if (refusal := self._refusal(run, key, call.offered)) is not None:  # its tool has changed while it waited
            self._end(call, refusal)
            return
        tool = self._registry.entries[key].tool
        run = self._by_contract(call, tool.contract)
        seat = pool.seat_for(call) or self._new_worker(pool, tool.contract)
        asker = call.asker if call.asker is not None else Context()
        context = ToolContext(
            run,
            call.user_text,
            self._workspace,
            call.is_read_along,
            metadata=metadata_in(asker),
            trace_headers=trace_headers_in(asker),
        )
        if call.effect is not None:
            context = call.effect.for_tool(context)
        if not self.ledger.give(call, seat):
            raise AssertionError(f"it is not the turn of {run.tag}")
        seat.worker.tell_control(messages.RunCall(run, tool, context, call))

    def _by_contract(self, call: Call, contract: ToolContract) -> RunTool:
        """The call as it runs by this contract, which may not be the one that its request has planned with: then its
        time can only become shorter."""
        call.contract, offered = contract, call.offered
        if offered is None or offered.contract is contract:
            return call.run
        due = self.now() + contract.timeout_seconds
        if due >= call.run.deadline_at:
            return call.run
        self._set_timer(call, due)
        return replace(call.run, deadline_at=due)

    @handles(CancelTool)
    def _cancel(self, command: CancelTool) -> None:
        call = self.ledger.calls.get(command.tag)
        if call is not None:
            self._contained(self._end_running, call, Ending.CANCELLED)
            self._go_on()

    @handles(ConfirmStops)
    def _confirm_stops(self, message: ConfirmStops) -> None:
        for stop in message.stops:
            if isinstance(stop, CancelTool):
                self._cancel(stop)
            else:
                self._withdraw_question(stop)
        message.reply_to.tell_control(StopsTold(message.tag))

    @handles(ReadStack)
    def _read_stack(self, message: ReadStack) -> None:
        call = self.ledger.calls.get(message.tag)
        if call is None:
            message.refuse("there is no such call, or it has ended")
        elif call.seat is None:
            message.refuse("the call waits for its turn: none of its code runs yet")
        else:
            call.seat.worker.tell_control(message)

    @handles(_Due)
    def _due(self, message: _Due) -> None:
        call = message.call
        if call.state is not CallState.ENDED and self.now() >= call.due:
            self._contained(self._time_is_over, call)
            self._go_on()

    def _time_is_over(self, call: Call) -> None:
        if call.seat is None or call.state is CallState.RUNNING:
            self._end_running(call, Ending.TIMED_OUT)
        elif call.enter(Happening.KILLED):
            self._set_timer(call, self.now() + ABANDON_SECONDS)
            call.seat.worker.tell_control(messages.KillCall(call.run.tag))
        else:
            logger.warning("a worker of %s does not end a call", call.run.name, extra=call.run.tag.shown())
            call.seat.take(0)
            self._end(call, Ending.TIMED_OUT)

    def _end_running(self, call: Call, why: Ending) -> None:
        """The call's deadline has passed, or it is cancelled: its worker, if it has one, is to end it."""
        if call.seat is None:
            self._end(call, why)
        elif call.stop(why):
            self._set_timer(call, self.now() + TOOL_GRACE_SECONDS)
            call.seat.worker.tell_control(messages.StopCall(call.run.tag))
        elif call.effect is not None and call.effect.is_committing:
            self._wait_for_commit(call, call.effect)

    def _wait_for_commit(self, call: Call, effect: CallEffect) -> None:
        """A commit cannot be stopped. What comes of it counts, also after the deadline."""
        if effect.commit_by is None:
            effect.commit_by = self.now() + COMMIT_SECONDS
        if self.now() < effect.commit_by:
            self._set_timer(call, effect.commit_by)
        else:
            self._end(call, effect.unknown(f"there was no answer for {COMMIT_SECONDS:g} s"))

    @handles(EffectCommitted)
    def _effect_committed(self, message: EffectCommitted) -> None:
        call = self.ledger.calls.get(message.tag)
        if call is not None and call.effect is not None and call.effect.is_handed_over:
            self._end(call, *call.effect.settled(message.error))
            self._go_on()

    def _end(self, call: Call, outcome: Outcome, printed: str = "", how: Happening = Happening.ENDED) -> None:
        """The call ends here, not at its worker."""
        event = call.end(outcome, printed, self.now(), how)
        if event is not None:
            call.reply_to.tell_control(event)

    def _set_timer(self, call: Call, due: float) -> None:
        """Of the call's one timer: the later time counts."""
        if timer := self._timers.get(call):
            timer.cancel()
        call.due = due
        self._timers[call] = self.tell_at(due, _Due(call), lived=True)

    # -- workers

    def _new_worker(self, pool: Pool, contract: ToolContract) -> Seat:
        kind = self._workers.kind(contract)
        supervisor, dispatcher, now = self._supervisor(pool.name, kind), self.ref, self.system.now
        spec = kernel.ChildSpec(
            str(next(self.ledger.names)),
            lambda: kind.make(ledgers.CallReports(seat, dispatcher, now), supervisor.name),
            restart=kernel.Restart.TEMPORARY,
            shutdown_seconds=WORKER_SHUTDOWN_SECONDS,
        )
        worker = kernel.start_child(supervisor, spec)  # it is made later, when it has its seat
        self.monitor(worker)
        seat = self.ledger.add_worker(pool, worker)
        return seat

    def _supervisor(self, pool: str, kind: messages.WorkerKind) -> Ref:
        """Of the workers of a pool; started when there is none."""
        tools, chance = self._workers.supervisor, self._workers.chance
        try:
            return self.system.ref(f"{tools.name}/{pool}")
        except kernel.NoSuchActor:
            spec = kernel.ChildSpec(pool, lambda: kernel.Supervisor(kind.fixed_children, chance=chance))
            return kernel.start_child(tools, spec)

    @handles(WorkerState)
    def _worker_state(self, state: WorkerState) -> None:
        seat = self._seat(state.seat.worker)
        self._hold(seat.worker, seat.holds)
        self._go_on(seat.pool)
        if not seat.pool.is_wanted:
            self._end_unwanted_pools()

    @handles(Down)
    def _down(self, down: Down) -> None:
        if down.ref in self._sessions:
            self._sessions.remove(down.ref)
            self._questions.forget(down.ref)
            for tool in self.ledger.leave(down.ref):
                self._registry.forget(tool)
            return
        seat = self._seat(down.ref)
        printed = down.error.printed if isinstance(down.error, messages.WorkerLost) else ""
        self._hold(down.ref, ())
        for call in self.ledger.lose(seat):
            self._end(call, _fate(call, down), printed, Happening.LOST)
        self._go_on(seat.pool)

    def _seat(self, worker: Ref) -> Seat:
        seat = self.ledger.seats.get(worker)
        if seat is None:
            raise kernel.Rejected("that worker is gone")
        return seat

    # -- health

    def _settle(self, call: Call, event: LastEvent) -> None:
        if timer := self._timers.pop(call, None):
            timer.cancel()
        run = call.run
        if call.stopped_in:
            self._observe(ToolStopped(run.tag, run.name, call.stopped_in))
        if call.printed_bytes:
            self._observe(ToolPrinted(run.tag, run.name, event.output, call.printed_bytes, call.asker))
        if isinstance(event, events.ToolCallFailed):
            worked = _WORKED_IF_FAILED.get(event.failure.code, True)
        else:
            worked = _WORKED[type(event)]
        if call.begun and worked is not None:
            change = self._registry.judge(call.lane.key, worked=worked, now=self.now())
            if change is not None:
                self._health_changed(change)
        self._forget_lane(call.lane)
        if call.pool is not None and not call.pool.is_wanted:
            self._end_unwanted_pools()

    def _hold(self, worker: Ref, holds: tuple[ToolKey, ...]) -> None:
        for change in self._registry.hold(worker, holds, self.now()):
            self._health_changed(change)

    def _observe(self, seen: Change | ToolPrinted | ToolStopped) -> None:
        with contextlib.suppress(kernel.MailboxFull):  # telemetry that cannot keep up must not steer
            self._observer.tell(seen)

    def _health_changed(self, change: Change) -> None:
        """Tell of a tool's health, and refuse what waits for a withdrawn one as what comes from now on."""
        self._observe(change)
        if isinstance(change, ToolWithdrawn):
            lane = self.ledger.lanes.get(change.key)
            for _, call in tuple(lane.waiting) if lane is not None else ():
                self._end(call, self._registry.withdrawal(change.key, self.now()))

    # -- approvals

    @handles(SeekApproval)
    def _seek_approval(self, message: SeekApproval) -> None:
        self._go_on_asking(self._questions.add(message))

    @handles(Verdict)
    def _decided(self, verdict: Verdict) -> None:
        told = self._questions.settle(verdict)
        if not told.answers:
            raise kernel.Rejected("no session waits for this approval any more")
        if verdict.is_for_request:
            self._keep_until_end_of(told.answers[0][0])
        self._go_on_asking(told)

    @handles(WithdrawApproval)
    def _withdraw_question(self, command: WithdrawApproval) -> None:
        self._go_on_asking(self._questions.withdraw(command.tag))

    def _go_on_asking(self, told: QuestionStep) -> None:
        for tag in told.moot:
            try:
                self._approver.withdraw(tag)
            except Exception as error:  # noqa: BLE001 - as below; its verdict, if it comes, is rejected
                logger.warning("a question could not be withdrawn: %s", text_of(error), extra=tag.shown())
        for asker, verdict in told.answers:
            tag, now, by, rule = verdict.tag, self.now(), verdict.by, verdict.rule
            if verdict.granted:
                asker.tell_control(events.ApprovalGranted(tag, now, by, rule, verdict.arguments, verdict.hold))
            else:
                asker.tell_control(events.ApprovalDenied(tag, now, by, verdict.reason, rule))
        if told.ask is not None:
            self._ask_approver(told.ask)

    def _ask_approver(self, seek: SeekApproval) -> None:
        question, decide = seek.question, self.ref.tell_control
        known = self._registry.entries.get(question.name)
        tool = seek.tool or (known.tool if known is not None else None)
        try:
            self._approver.ask(question, decide, seek.asker, tool)
        except Exception as error:  # noqa: BLE001 - an approver that cannot ask means no
            logger.warning("%s could not be asked about: %s", question.name, text_of(error), extra=question.tag.shown())
            decide(Verdict(question.tag, granted=False, by="approver", reason="the approver could not ask"))


#: What the end of a call says of its tool: that it works, that it does not (a crash or a hang, which cost a worker), or
#: nothing. A tool that raises, or does not like its arguments, works.
_WORKED = {
    events.ToolCallCompleted: True,
    events.ToolCallDeferred: True,
    events.ToolCallTimedOut: False,
    events.ToolCallCancelled: None,
}
_WORKED_IF_FAILED = {
    FailureCode.CRASHED: False,
    FailureCode.OUTCOME_UNKNOWN: False,
    FailureCode.INTERNAL_ERROR: None,
    FailureCode.OVERLOADED: None,
}


def _our_fault(name: ToolName, error: BaseException) -> ToolFailure:
    logger.error("a call of %s failed for a fault of callboard's own: %s", name, text_of(error), exc_info=error)
    return ToolFailure(name, FailureCode.INTERNAL_ERROR, f"callboard failed to run {name}: {text_of(error)}")


def _fate(call: Call, down: Down) -> Result:
    """How a call ends when its worker is gone: one that had begun, or that too many workers could not begin."""
    name, error, code = call.run.name, down.error, FailureCode.INTERNAL_ERROR
    if isinstance(error, messages.WorkerLost):
        return error.failure
    if not call.may_have_run:
        why = f"{name} was not run: each worker that was to run it was lost before it could"
    elif down.reason is kernel.ExitReason.CRASHED:
        why = f"callboard's worker failed while {name} ran; whether it had its effect is not known: {text_of(error)}"
    else:
        code = FailureCode.OUTCOME_UNKNOWN
        why = f"the worker that ran {name} was lost ({down.reason.value}); whether it had its effect is not known"
    return ToolFailure(name, code, why)

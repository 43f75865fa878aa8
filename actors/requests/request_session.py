"""RequestSession: one actor for one request. It carries events into the protocol session and commands out of it.

No rule lives here: `protocol.machine` decides, this file knows whom to tell. The LLM manager and the dispatcher are
monitored: a model call is lost with its manager; calls of tools outlive a dispatcher in the ledger and at their
workers, so the next one is only sent them again. However this actor ends, what it has open elsewhere is stopped.

Where there is a journal, an event is shown and its commands are carried out when it is durable (write_ahead.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Final, get_args

from msgspec.structs import replace

from callboard.actors.calls import dispatcher
from callboard.actors.calls.approvals import SeekApproval
from callboard.actors.calls.dispatcher import DispatchCall, StopsTold, ToolsOffered
from callboard.actors.calls.go_ahead import GoAhead
from callboard.actors.calls.ledger import EndedCalls
from callboard.actors.journal.outbox import NotWritten, Written
from callboard.actors.kernel import Actor, Down, ExitReason, Rejected, Timer, handles, logger_of
from callboard.actors.kernel.reply import Reply
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.models.windows import FindWindow, Window
from callboard.actors.requests.open_requests import OpenWork, pending, state_of
from callboard.actors.requests.output_checks import ChecksAnswers
from callboard.actors.requests.outside import CalledTool, FindCall, ReportProgress, ResolveCall
from callboard.actors.requests.replies import STOPPING, SUSPENDED, Question, Seen, Unwritten
from callboard.actors.requests.session_messages import (
    ALWAYS_SHOWN,
    STOPS,
    AnswersChecked,
    FeedStart,
    GoOn,
    LookForWrites,
    Order,
    Peers,
    ReadAlong,
    ReadWork,
    Record,
    SessionLike,
    SessionMessage,
    Stop,
    Subscriber,
    TakenUp,
    WindowFound,
    lost_work,
    without_work,
)
from callboard.actors.requests.write_ahead import LATE, SECOND_LOOK_SECONDS, WRITTEN_WITHIN_SECONDS, WriteAhead
from callboard.actors.telemetry.notices import PeerLost
from callboard.actors.telemetry.spans import BeginSpans, Work
from callboard.actors.telemetry.telemetry import SessionTrace, ends_work
from callboard.actors.tools.progress import ProgressMade, ProgressRelay, ToolProgressed
from callboard.protocol import commands, events
from callboard.protocol.commands import Command
from callboard.protocol.content import Message
from callboard.protocol.errors import ProtocolError, RuntimeFailure, said
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import MAX_CALL_SENDS, PROGRESS_PAUSE_SECONDS
from callboard.protocol.machine import Session
from callboard.protocol.options import ToolOffer
from callboard.protocol.output import OUTPUT_TOOL, answers_in, named_apart
from callboard.protocol.states import CallState
from callboard.protocol.tools import Effect, ToolFailure

logger = logger_of("callboard")
#: For the dispatcher to say that the tools of a cancelled request were asked to stop; then it is answered anyway.
STOPS_TOLD_SECONDS = 1.0


class RequestSession(Actor[SessionMessage]):
    """See the module. `subscriber` hears what happens."""

    def __init__(
        self,
        question: Question,
        peers: Peers,
        subscriber: Subscriber,
        record: Record,
        make_session: Callable[[], SessionLike] = Session,
        find_window: FindWindow | None = None,
        begin_spans: BeginSpans | None = None,
        ahead: WriteAhead | None = None,
        taken_up: TakenUp | None = None,
    ) -> None:
        """`find_window`: where the options leave open how many tokens the model takes; `begin_spans`: where tracing is
        installed; `ahead`: where there is a journal; `taken_up`: of a request that was open there."""
        self._question, self._is_read_along = question, question.is_read_along
        self._peers, self._subscriber, self._record = peers, subscriber, record
        self._taken_up = taken_up
        self._session = make_session() if taken_up is None else taken_up.session
        self._ahead = ahead
        self._looks_for_writes = False
        """A timer is set for that."""
        self._fault = ""
        """Why the request ends, where it ends without a Finish and that is known."""
        self._trace = SessionTrace(question, peers.telemetry, begin_spans)
        self._unrecorded: tuple[Message, ...] = (question.user,) if question.user.parts else ()
        """Of the question and what it was asked with: it is recorded with the first step."""
        self._timers: dict[Tag, tuple[float, Timer]] = {}
        self._open: dict[Tag, tuple[Order, int]] = {}
        """What others work at now, and how often it was sent."""
        self._ended = EndedCalls()
        self._deferred: dict[Tag, ToolName] = {}
        """The calls whose results come from outside."""
        self._early: dict[Tag, ResolveCall] = {}
        """Results from outside that came before the tool had returned."""
        self._relays: dict[Tag, ProgressRelay] = {}
        """Of the calls that were shown to make progress."""
        self._offer_requests = 0
        self._offers: tuple[ToolOffer, ...] | None = None
        self._find_window, self._checker, self._output_tool = find_window, question.checker, OUTPUT_TOOL
        self._window = Window(question.options.context_tokens) if find_window is None else None
        self._has_started = False
        self._lost: events.ModelLost | None = None
        """It counts when the model is asked again, so that a process that never comes to that makes no loss of it."""
        self._acted_on = taken_up.number if taken_up is not None else 0
        """So many events, without ModelStreamed: the place in the request's feed."""
        self._clock_turned: commands.SetTimer | commands.ClearTimer | None = None
        """Of the request, by what was applied last: its asker has to know."""
        self._finish: commands.Finish | None = None
        self._stops: list[commands.CancelTool | commands.WithdrawApproval] = []
        """Of its calls: a dispatcher may be lost before it has read them, so the next one is told all of them."""
        self._is_stopping = self._is_waiting = False
        """Of the last: the request has finished, and its tools are being told to stop."""

    # -- life

    def on_start(self) -> None:
        self.at_end(self._tell_telemetry)
        self.at_end(self._stop_open_work)
        if self._ahead is not None:
            self._ahead.begin(self.ref)
            self.at_end(self._give_up_writing)
        self._trace.begin(self.now())
        self.monitor(self._peers.llm_manager)
        self.monitor(self._peers.dispatcher)
        if self._taken_up is not None:
            return  # it goes on when it is told to, before it is told anything else
        question = self._question
        self._set_timer(commands.SetTimer(question.tag, question.asked_at + question.options.timeout_seconds))
        self._ask_for_offers()
        if self._find_window is not None:
            ref = self.ref  # of its own: the window may be found when this session has ended
            self._find_window(lambda window: ref.tell_control(WindowFound(window)))
            self._find_window = None

    def on_stopping(self) -> bool:
        """The runtime is stopping: end the request as any cancelled one, or leave it to the next start that reads its
        journal."""
        self._is_stopping = True
        if self._ahead is not None:
            return self._suspends(self._ahead)
        if self._finish is None:
            self._happened(events.CancelRequested(self._question.tag, self.now(), STOPPING))
        return not self._is_waiting

    def _suspends(self, ahead: WriteAhead) -> bool:
        """Stop, as soon as what has happened is durable; no work begins meanwhile. True: it is."""
        if ahead.waits or self._is_waiting:
            return False
        if self._finish is None:
            why = SUSPENDED if ahead.has_begun else STOPPING
            self._finish = commands.Finish(self._question.tag, commands.Outcome.CANCELLED, "", None, None, (), why)
            self._trace.observe(self._finish)
            self._show(self._finish)
        return True

    def _give_up_writing(self) -> None:
        for early in self._early.values():
            if early.confirms is not None:
                early.confirms.answer(False)
        if self._ahead is not None:
            if self._is_stopping:
                self._ahead.close()
            self._ahead.give_up(self._fault)

    def _stop_open_work(self) -> None:
        for tag, (order, _) in tuple(self._open.items()):
            self._stop_work(STOPS[type(order)](tag))

    @handles(GoOn)
    def _go_on(self, _: GoOn) -> None:
        """With a request that was open when its process ended: what worked for it then is lost."""
        taken_up, self._taken_up = self._taken_up, None
        if taken_up is None:
            raise Rejected("its request goes on already")
        session, started = taken_up.session, taken_up.started
        self._has_started = True
        self._offers, self._window = started.tools, Window(started.options.context_tokens)
        if started.options.output is not None:
            self._output_tool = started.options.output.tool_name
        self._unrecorded = () if session.has_recorded else self._unrecorded
        self._deferred.update(taken_up.deferred)
        self._show(taken_up.timer or commands.ClearTimer(self._question.tag))  # its asker waits no longer than its time
        if taken_up.timer is not None:
            self._set_timer(taken_up.timer)
        step = session.step
        for outcome in taken_up.outcomes:
            with suppress(Rejected):  # it is among the events already
                self._apply(outcome)
        lost = session.loss_event(self.now())
        if lost is not None and session.step == step:  # else the outcomes have ended the step that was lost
            if isinstance(lost, events.ModelLost) and self._ahead is not None:
                self._lost, at = lost, session.asks_again_at(lost.at)
                self._timers[step] = at, self.tell_at(at, lost)
                self._ahead.goes_on()
            else:
                self._apply(lost)

    @handles(ReadWork)
    def _work(self, _: ReadWork) -> OpenWork:
        session = self._session
        calls = pending((tag, session.call_of(tag), state) for tag, state in session.calls.items())
        state = state_of(calls, has_started=self._has_started, has_finished=self._finish is not None)
        return OpenWork(state, session.step.step, calls)

    @handles(ReadAlong)
    def _is_read(self, message: ReadAlong) -> bool:
        """From now on: the next model calls are streamed."""
        called = [order.call.purpose for order, _ in self._open.values() if isinstance(order, StartModel)]
        message.begins_at(FeedStart(self._acted_on, *called))
        self._subscriber, self._is_read_along = message.subscriber, True
        return True

    # -- messages

    @handles(ToolsOffered)
    def _offered(self, message: ToolsOffered) -> None:
        if self._has_started or self._offers is not None:
            raise Rejected("the tools were offered before")
        self._offers = self._question.tools.offers(message.offers)
        self._start_when_ready()

    @handles(WindowFound)
    def _window_found(self, message: WindowFound) -> None:
        if self._has_started or self._window is not None:
            raise Rejected("the window was found before")
        self._window = message.window
        self._start_when_ready()

    @handles(*get_args(Event))
    def _happened(self, event: Event) -> bool | Reply[bool]:
        """True, or what says later that it is durable: for those who ask."""
        if (lost := self._lost) is not None:  # at its time, or before what else happens
            self._lost = None
            self._timers.pop(lost.tag)[1].cancel()
            self._apply(lost)
            if event is lost:
                return True
        of_request = not self._has_started and event.tag == self._question.tag
        if of_request and isinstance(event, events.CancelRequested | events.DeadlinePassed):
            self._start((), Window(None))  # only what has begun can end
        if self._checker is not None and isinstance(event, events.ModelResponded):
            self._check(self._checker, event)
        else:
            self._apply(event)
        return self._is_durable() if type(event) is events.NoticeCame else True

    def _check(self, checker: ChecksAnswers, event: events.ModelResponded) -> None:
        """A turn with answers reaches the protocol session when these have been checked."""
        order, _ = self._open.get(event.tag, (None, 0))
        is_turn = isinstance(order, StartModel) and order.call.is_turn
        texts = answers_in(event.response, self._output_tool) if is_turn and event.response.error is None else ()
        if not texts:
            self._apply(event)
            return
        told = self.ref.tell_control
        checker.check(texts, lambda checked: told(AnswersChecked(replace(event, checked=checked))))

    @handles(AnswersChecked)
    def _answers_checked(self, message: AnswersChecked) -> None:
        self._apply(message.responded)

    @handles(Down)
    def _holder_down(self, down: Down) -> None:
        """Its replacement has the same address: monitor that, and go on with it."""
        if down.reason is ExitReason.NOT_ALIVE:
            raise RuntimeFailure(f"{down.ref.name} has stopped permanently")
        self.monitor(down.ref)
        if self._is_waiting and down.ref is self._peers.dispatcher:
            self._confirm_stops()
        if self._finish is not None:
            return
        self._trace.observe(PeerLost(self._question.tag, down.ref.name, down.reason.value))
        self._tell_telemetry()
        is_manager = down.ref is self._peers.llm_manager
        if is_manager and self._has_started and self._lost is None:
            step = self._session.step
            if self._ahead is not None and self._ahead.holds_model_call(step):
                return  # the next one will be sent it
            if step in self._open:
                self._stop_work(commands.StopModel(step))  # its start may wait in the mailbox for the next manager
            self._apply(events.ModelLost(step, self.now()))
        elif not is_manager and self._has_started:
            self._send_again()
        elif not is_manager and self._offers is None:
            self._ask_for_offers()

    def _send_again(self) -> None:
        """The dispatcher ignores a call that it has from its ledger; one that it never heard of, it begins."""
        for stop in self._stops:
            self._peers.dispatcher.tell_control(stop)
        for tag, (order, sends) in tuple(self._open.items()):
            if isinstance(order, StartModel) or (self._ahead is not None and self._ahead.is_decided(tag)):
                continue
            if sends < MAX_CALL_SENDS:
                self._open[tag] = order, sends + 1
                self._peers.dispatcher.tell_control(order)
                continue
            self._stop_work(STOPS[type(order)](tag))
            may_go_on = self._session.calls.get(tag) is CallState.RUNNING
            with suppress(Rejected):  # the step may have ended, and the stop of its calls waits for the journal
                self._apply(lost_work(order, sends, self.now(), may_go_on=may_go_on))

    def _confirm_stops(self) -> None:
        self._peers.dispatcher.tell_control(dispatcher.ConfirmStops(self._question.tag, self.ref, tuple(self._stops)))

    @handles(StopsTold)
    def _stops_told(self, message: StopsTold) -> None:
        if not self._is_waiting or self._finish is None:
            raise Rejected("the request does not wait for it")
        self._end(self._finish)

    # -- events in, commands out

    def _ask_for_offers(self) -> None:
        if self._offer_requests == MAX_CALL_SENDS:
            raise RuntimeFailure(f"{MAX_CALL_SENDS} dispatchers were lost before one said which tools there are")
        self._offer_requests += 1
        asked = self._question
        self._peers.dispatcher.tell_control(dispatcher.OfferTools(asked.tag, self.ref, asked.options.mode))

    def _start_when_ready(self) -> None:
        if self._offers is not None and self._window is not None:
            self._start(self._offers, self._window)

    def _start(self, offers: tuple[ToolOffer, ...], window: Window) -> None:
        asked, self._has_started = self._question, True
        options = asked.options
        notes = (*asked.notes, window.note) if window.note else asked.notes
        if options.context_tokens != window.tokens:
            options = replace(options, context_tokens=window.tokens)
        if options.output is not None:
            output = named_apart(options.output, {offer.definition.name for offer in offers})
            options, self._output_tool = replace(options, output=output), output.tool_name
        try:
            self._apply(
                events.RequestStarted(
                    asked.tag, asked.asked_at, asked.history, asked.user, options, offers, notes, asked.compacted
                )
            )
        except Rejected as refusal:
            raise RuntimeFailure(f"the request could not begin: {refusal}") from refusal

    def _apply(self, event: Event) -> None:
        """Raises Rejected for an event that is illegal now; RuntimeFailure ends the request with our fault named."""
        ahead = self._ahead
        try:
            if ahead is None:
                given = self._session.apply(event)
            else:
                journaled = self._session.to_journal(event)  # before it is applied: what it ends is forgotten then
                given = self._session.apply(event)
                if ahead.holds(event, journaled, given, self.now()):
                    self._look_for_writes()
                    return
        except ProtocolError as error:
            raise Rejected(str(error)) from error
        except Exception as error:
            raise self._failure(f"applying {type(event).__name__}", error) from error
        self._act(event, given)

    def _act(self, event: Event, given: tuple[Command, ...]) -> None:
        """Show it, and carry out its commands."""
        doing: Event | Command = event
        try:
            self._taken_in(event)
            for doing in given:
                _CARRIERS[type(doing)](self, doing)
            self._carried_out(event)
        except Exception as error:
            what = f"{'applying' if doing is event else 'carrying out'} {type(doing).__name__}"
            raise self._failure(what, error) from error

    def _failure(self, what: str, error: Exception) -> RuntimeFailure:
        if self._ahead is not None and isinstance(error, RuntimeFailure):
            self._fault = said(error)
            return error
        self._fault = f"internal_error: {what} failed: {said(error)}"
        return RuntimeFailure(self._fault)

    # -- what the journal says

    @handles(Written)
    def _written(self, message: Written) -> None:
        ahead = self._ahead
        if ahead is None:
            raise Rejected("this request has no journal")
        for held in ahead.durable(message.up_to):
            if held.confirms is not None:
                held.confirms.answer(True)
            self._act(held.event, without_work(held.given) if self._is_stopping else held.given)
            if held.recorded is not None:
                held.recorded()
        if self._is_stopping and self._finish is None and self._suspends(ahead):
            self.stopped()

    @handles(NotWritten)
    def _not_written(self, message: NotWritten) -> None:
        """The Journal says in the journal that the request has ended, as soon as it can."""
        if self._ahead is not None:
            self._ahead.close()
        why = f"what it did could not be written to the journal: {message.why}"
        self._unwritten(why, may_go_on=message.is_unsure or self._acted_on > 0)

    @handles(LookForWrites)
    def _look_whether_late(self, message: LookForWrites) -> None:
        self._looks_for_writes = False
        if self._ahead is None or not self._ahead.waits:
            return
        if not self._ahead.is_late(self.now()):
            self._look_for_writes()
        elif message.is_second:
            self._unwritten(LATE)
        else:  # the machine may have slept in the middle of a commit: that goes on now
            self._looks_for_writes = True
            self.tell_after(SECOND_LOOK_SECONDS, LookForWrites(is_second=True))

    def _unwritten(self, why: str, *, may_go_on: bool = True) -> None:
        self._fault = why
        cause = self._ahead.error if self._ahead else None
        raise Unwritten(why, self._question.tag.shown(), may_go_on=may_go_on) from cause

    def _look_for_writes(self) -> None:
        """One timer at a time: most writes are durable long before."""
        if not self._looks_for_writes:
            self._looks_for_writes = True
            self.tell_after(WRITTEN_WITHIN_SECONDS, LookForWrites())

    def _is_durable(self, confirms: Reply[bool] | None = None) -> bool | Reply[bool]:
        """For who handed something in just now."""
        if self._ahead is None:
            return True
        return self._ahead.confirmation(confirms or Reply[bool](self.system.scheduler.block_until))

    def _taken_in(self, event: Event) -> None:
        """The protocol has accepted it: show it, and forget the work that has ended."""
        if self._relays and ends_work(event):
            self._show_last_progress(event.tag)
        if type(event) is not events.ModelStreamed:
            self._acted_on += 1
        self._show(event)
        if ends_work(event):
            self._trace.observe(event)
            self._open.pop(event.tag, None)
            self._deferred.pop(event.tag, None)
        elif isinstance(event, events.ToolCallDeferred):
            self._has_deferred(event)
        elif isinstance(event, events.ApprovalGranted | events.ApprovalDenied | events.ModelNoted):
            self._trace.observe(event)
            if isinstance(event, events.ApprovalDenied):
                self._open.pop(event.tag, None)
        elif isinstance(event, events.ToolCallStarted):
            self._give_go_ahead(event.tag)

    def _give_go_ahead(self, tag: Tag) -> None:
        """That its call begins is durable: the tool's code may run."""
        order, _ = self._open.get(tag, (None, 0))
        if isinstance(order, DispatchCall) and order.go_ahead is not None and not self._is_stopping:
            order.go_ahead.give()

    def _carried_out(self, event: Event) -> None:
        """So are the commands that it led to."""
        if self._early:
            self._look_at_early()
        if self._clock_turned is not None:
            turned, self._clock_turned = self._clock_turned, None
            if self._finish is None:
                self._show(turned)
        if self._trace.heard:
            self._tell_telemetry()

    # -- one method a command

    def _call_model(self, command: commands.CallModel) -> None:
        # The answer to anything but a turn is no part of the conversation, so no reader is shown it.
        if not command.is_turn:
            self._show(command)
        is_streamed = self._is_read_along and command.is_turn
        start = StartModel(command, self.ref, self._context_for(command), is_streamed, self._question.routes)
        self._open[command.tag] = start, 1
        self._peers.llm_manager.tell_control(start)

    def _run_tool(self, command: commands.RunTool) -> None:
        self._show(command)
        asker, is_read_along = self._context_for(command, command.name), self._is_read_along
        own, text = self._question.tools.own.get(command.name), self._question.user.text
        offer = next((each for each in self._offers or () if each.definition.name == command.name), None)
        # One of the runtime's tools may have changed since the model was shown it.
        shown = offer if own is None else None
        waits = self._ahead is not None and (offer is None or offer.contract.effect is not Effect.REPEAT)
        command = replace(command, mode=self._question.options.mode)
        go_ahead = GoAhead() if waits else None
        call = DispatchCall(command, text, self.ref, asker, is_read_along, self._ended, own, shown, go_ahead)
        self._open[command.tag] = call, 1
        self._peers.dispatcher.tell_control(call)

    def _ask_approval(self, command: commands.AskApproval) -> None:
        self._show(command)
        own = self._question.tools.own.get(command.name)
        command = replace(command, mode=self._question.options.mode)
        seek = SeekApproval(command, self.ref, self._context_for(command, command.name), own)
        self._open[command.tag] = seek, 1
        self._peers.dispatcher.tell_control(seek)

    def _stop_work(self, command: Stop) -> None:
        self._open.pop(command.tag, None)
        if isinstance(command, commands.StopModel):
            self._peers.llm_manager.tell_control(command)
        else:
            self._stops.append(command)
            self._peers.dispatcher.tell_control(command)

    def _tell(self, command: commands.ReportFailure | commands.Note) -> None:
        self._deferred.pop(command.tag, None)
        if self._relays and isinstance(command, commands.ReportFailure):  # the session itself may have ended the call
            self._show_last_progress(command.tag)
        self._show(command)
        self._trace.observe(command)

    def _record_step(self, command: commands.RecordStep) -> None:
        # The question enters the conversation with the first step that answers it, or not at all.
        question, self._unrecorded = self._unrecorded, ()
        self._record(question + command.messages, command.tag.request_id)

    def _record_compaction(self, command: commands.RecordCompaction) -> None:
        self._record(command.compacted, command.tag.request_id)

    def _set_timer(self, command: commands.SetTimer) -> None:
        at, before = self._timers.get(command.tag, (None, None))
        if at == command.at:
            return
        if before is not None:
            before.cancel()
        passed, of_calls = events.DeadlinePassed(command.tag, command.at), command.tag != self._question.tag
        self._timers[command.tag] = command.at, self.tell_at(command.at, passed, lived=of_calls)
        self._time_of_request(command)

    def _clear_timer(self, command: commands.ClearTimer) -> None:
        if command.tag in self._timers:
            self._timers.pop(command.tag)[1].cancel()
            self._time_of_request(command)

    def _time_of_request(self, command: commands.SetTimer | commands.ClearTimer) -> None:
        if command.tag == self._question.tag and self._has_started:
            self._clock_turned = command

    def _finished(self, finish: commands.Finish) -> None:
        """A request whose tools were cancelled is answered when they were asked to stop."""
        self._trace.observe(finish)
        self._finish = finish
        if self._stops and finish.outcome in (commands.Outcome.CANCELLED, commands.Outcome.TIMED_OUT):
            self._is_waiting = True
            self._confirm_stops()
            self.tell_after(STOPS_TOLD_SECONDS, StopsTold(finish.tag))  # for a dispatcher that does not say so in time
        else:
            self._end(finish)

    # -- what comes from outside, and progress

    @handles(FindCall)
    def _find(self, message: FindCall) -> CalledTool:
        name = self._deferred.get(message.tag) or self._name_of_running(message.tag)
        if name is None or message.tag in self._early:
            raise Rejected("its call has ended, or the request has no such call")
        return CalledTool(name, self._question.tools.own.get(name))

    def _name_of_running(self, tag: Tag) -> ToolName | None:
        order = self._open.get(tag, (None,))[0]
        return order.run.name if isinstance(order, DispatchCall) else None

    @handles(ResolveCall)
    def _resolve(self, message: ResolveCall) -> bool | Reply[bool]:
        """One result a call. It may come before the tool has returned that it defers the call: then it waits for that,
        and is a dead letter where the tool returns something else."""
        try:
            self._find(FindCall(message.tag))
            if message.tag not in self._deferred:
                return self._comes_early(message)
            self._end_deferred(message)
        except Rejected:
            if message.confirms is not None:
                message.confirms.answer(False)
            raise
        return self._is_durable(message.confirms)

    def _comes_early(self, message: ResolveCall) -> bool | Reply[bool]:
        if self._ahead is None:
            self._early[message.tag] = message
            return True
        confirms = Reply[bool](self.system.scheduler.block_until)
        self._early[message.tag] = replace(message, confirms=confirms)
        return confirms

    def _end_deferred(self, message: ResolveCall) -> None:
        tag, now, outcome = message.tag, self.now(), message.outcome
        if isinstance(outcome, ToolFailure):
            self._apply(events.ToolCallFailed(tag, now, outcome))
        else:
            self._apply(events.ToolCallCompleted(tag, now, outcome))

    def _has_deferred(self, event: events.ToolCallDeferred) -> None:
        order, _ = self._open.pop(event.tag)
        assert isinstance(order, DispatchCall)
        self._deferred[event.tag] = order.run.name
        self._trace.observe(event)

    def _look_at_early(self) -> None:
        """Of a call that is no longer run: its result counts now, or is refused as one that comes too late."""
        for tag in [tag for tag in self._early if tag not in self._open]:
            self.ref.tell_control(self._early.pop(tag))

    @handles(ProgressMade)
    def _progressed(self, message: ProgressMade) -> None:
        relay = message.relay
        if relay.tag not in self._open and relay.tag not in self._deferred:
            relay.close()
        elif self._ahead is not None and self._ahead.is_behind(relay.tag):
            self.tell_after(PROGRESS_PAUSE_SECONDS, message)  # that it has begun is shown first
        elif (progress := relay.take()) is not None:
            self._relays[relay.tag] = relay
            self._show(ToolProgressed(relay.tag, self.now(), *progress))
            self.tell_after(PROGRESS_PAUSE_SECONDS, message)

    @handles(ReportProgress)
    def _report_progress(self, message: ReportProgress) -> bool:
        self._find(FindCall(message.tag))
        if self._is_read_along:
            relay = self._relays.get(message.tag) or ProgressRelay(message.tag, self.ref.tell_control)
            relay.report(message.progress)
        return True

    def _show_last_progress(self, tag: Tag) -> None:
        """Before the end of a call is shown."""
        relay = self._relays.pop(tag, None)
        if relay is not None and (progress := relay.close()) is not None:
            self._show(ToolProgressed(tag, self.now(), *progress))

    # -- who listens

    def _show(self, seen: Seen) -> None:
        """A subscriber that fails costs its reader the events, not the request its answer."""
        if not (self._is_read_along or isinstance(seen, ALWAYS_SHOWN)):
            return
        try:
            self._trace.context.run(self._subscriber, seen)
        except Exception as error:  # noqa: BLE001 - a reader's fault
            self._is_read_along = False
            warn = partial(logger.warning, exc_info=error, extra=self._question.tag.shown())
            self._trace.context.run(warn, "the request goes on unread, since its subscriber failed")

    def _tell_telemetry(self) -> None:
        self._trace.tell(self._offers or (), self.now())

    def _context_for(self, work: Work, tool: str = "") -> Context:
        """In which user code does this work."""
        return self._trace.context_for(work, tool, self._offers or (), self.now())

    def _end(self, finish: commands.Finish) -> None:
        self._is_waiting = False
        self._show(finish)
        (self.stopped if self._is_stopping else self.stop)()


_CARRIERS: Final[Mapping[type[Command], Callable[..., None]]] = {
    commands.CallModel: RequestSession._call_model,
    commands.RunTool: RequestSession._run_tool,
    commands.AskApproval: RequestSession._ask_approval,
    commands.StopModel: RequestSession._stop_work,
    commands.CancelTool: RequestSession._stop_work,
    commands.WithdrawApproval: RequestSession._stop_work,
    commands.SetTimer: RequestSession._set_timer,
    commands.ClearTimer: RequestSession._clear_timer,
    commands.RecordStep: RequestSession._record_step,
    commands.RecordCompaction: RequestSession._record_compaction,
    commands.ReportFailure: RequestSession._tell,
    commands.Note: RequestSession._tell,
    commands.CallOutside: RequestSession._tell,
    commands.Finish: RequestSession._finished,
}

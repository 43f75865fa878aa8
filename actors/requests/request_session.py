"""RequestSession: one actor for one request. It carries events into the protocol session and commands out of it.

No rule lives here: `protocol.machine` decides, this file knows whom to tell. The LLM manager and the dispatcher hold
the open work of a request and are monitored. A model call is lost with its manager; calls of tools outlive a dispatcher
in the ledger and at their workers, so the next one is only sent them again. However this actor ends, what it has open
elsewhere is stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, assert_never, get_args

from callboard.actors.calls.dispatcher import (
    ConfirmStops,
    DispatchCall,
    DispatcherMessage,
    OfferTools,
    SeekApproval,
    StopsTold,
    ToolsOffered,
)
from callboard.actors.kernel import Actor, Down, ExitReason, Ref, Rejected, Timer, handles, logger_of
from callboard.actors.models.llm_manager import LlmMessage, StartModel
from callboard.actors.requests.conversation import STOPPING, Question, Seen
from callboard.actors.telemetry.telemetry import TelemetryMessage, is_heard
from callboard.protocol import commands, events
from callboard.protocol.commands import Command
from callboard.protocol.content import Message
from callboard.protocol.errors import ProtocolError, RuntimeFailure, said
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.machine import Session
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import FailureCode, ToolFailure

logger = logger_of("callboard")

#: For the dispatcher to say that the tools of a cancelled request were told to stop; then it is answered all the same.
STOPS_TOLD_SECONDS = 1.0

Subscriber = Callable[[Seen], None]
"""Hears, on the loop thread, each event of the request as it is applied, each RunTool, AskApproval and Note, and
Finish last. It must not block."""
#: Commands that a subscriber hears of, besides the events and Finish.
_SHOWN = (commands.RunTool, commands.AskApproval, commands.Note)
#: Events after which what they are about is not open any more.
_ENDS = frozenset({events.ModelResponded, events.ModelFailed, events.ApprovalDenied, *get_args(events.ToolCallEnd)})


@dataclass(frozen=True, slots=True)
class Peers:
    """The actors a session works with."""

    llm_manager: Ref[LlmMessage]
    dispatcher: Ref[DispatcherMessage]
    telemetry: Ref[TelemetryMessage]


class Open(NamedTuple):
    """What others work at for this request: the order, the command that stops it, and how often it was sent."""

    order: StartModel | DispatchCall | SeekApproval
    stop: commands.StopModel | commands.CancelTool | commands.WithdrawApproval
    sends: int = 1


@dataclass(frozen=True, slots=True)
class StopsOverdue:
    """The dispatcher has not said in time that the request's tools were told to stop."""


SessionMessage = Event | ToolsOffered | StopsTold | StopsOverdue | Down


class SessionLike(Protocol):
    """What this actor needs of the protocol's Session; a simulated run has one that writes down what it hears."""

    @property
    def step(self) -> Tag: ...

    def apply(self, event: Event) -> tuple[Command, ...]: ...


class RequestSession(Actor[SessionMessage]):
    """See the module. `record` takes the messages of each finished step; `subscriber` hears what happens."""

    def __init__(
        self,
        question: Question,
        peers: Peers,
        subscriber: Subscriber,
        record: Callable[[tuple[Message, ...]], None],
        make_session: Callable[[], SessionLike] = Session,
    ) -> None:
        self._question = question
        self._peers = peers
        self._subscriber = subscriber
        self._has_subscriber_failed = False
        self._record_messages = record
        self._session = make_session()
        self._context = question.asker.copy()  # of our own: a context can be entered only once at a time
        self._unrecorded: tuple[Message, ...] = (question.user,)
        self._timers: dict[Tag, tuple[float, Timer]] = {}
        self._open: dict[Tag, Open] = {}
        self._offer_requests = 0
        self._has_started = False
        self._has_cancelled = False
        self._finish: commands.Finish | None = None
        self._is_waiting = False
        """The request has finished, and its tools are being told to stop."""
        self._is_stopping = False

    # -- life

    def on_start(self) -> None:
        self.at_end(self._stop_open_work)
        self.monitor(self._peers.llm_manager)
        self.monitor(self._peers.dispatcher)
        question = self._question
        self._carry_out(commands.SetTimer(question.tag, question.asked_at + question.options.timeout_seconds))
        self._observe(question)
        self._ask_for_offers()

    def on_stopping(self) -> bool:
        """The runtime is stopping: end the request as any cancelled one."""
        self._is_stopping = True
        if self._finish is None:
            self._happened(events.CancelRequested(self._question.tag, self.now(), STOPPING))
        return not self._is_waiting

    def _stop_open_work(self) -> None:
        for work in self._open.values():
            self._tell_to_stop(work.stop)

    # -- messages

    @handles(ToolsOffered)
    def _offered(self, message: ToolsOffered) -> None:
        if self._has_started:
            raise Rejected("the tools were offered before")
        self._start(message.offers)

    @handles(*get_args(Event))
    def _happened(self, event: Event) -> None:
        of_request = event.tag == self._question.tag
        if not self._has_started and of_request and isinstance(event, events.CancelRequested | events.DeadlinePassed):
            self._start(())  # only what has begun can end
        self._apply(event)

    @handles(Down)
    def _holder_down(self, down: Down) -> None:
        """Its replacement has the same address: monitor that, and go on with it."""
        if down.reason is ExitReason.NOT_ALIVE:
            raise RuntimeFailure(f"{down.ref.name} has stopped permanently")
        self.monitor(down.ref)
        is_manager = down.ref is self._peers.llm_manager
        if self._finish is not None:
            return
        if not self._has_started:
            if not is_manager:
                self._ask_for_offers()
            return
        if not is_manager:
            self._send_again()
            return
        step = self._session.step
        if work := self._open.pop(step, None):
            self._tell_to_stop(work.stop)  # its start may wait in the mailbox for the next manager
        self._apply(events.ModelLost(step, self.now()))

    def _send_again(self) -> None:
        """The dispatcher ignores a call that it has from its ledger; one that it never heard of, it begins."""
        for tag, work in tuple(self._open.items()):
            if isinstance(work.order, StartModel):
                continue
            if work.sends < MAX_CALL_SENDS:
                self._open[tag] = work._replace(sends=work.sends + 1)
                self._peers.dispatcher.tell_control(work.order)
                continue
            name = work.order.run.name if isinstance(work.order, DispatchCall) else work.order.question.name
            why = f"each of {work.sends} dispatchers that {name} was sent to was lost"
            self._tell_to_stop(work.stop)
            self._apply(events.ToolCallFailed(tag, self.now(), ToolFailure(name, FailureCode.INTERNAL_ERROR, why)))

    @handles(StopsTold, StopsOverdue)
    def _stops_told(self, message: StopsTold | StopsOverdue) -> None:
        if not self._is_waiting or self._finish is None:
            raise Rejected("the request does not wait for it")
        self._end(self._finish)

    # -- events in, commands out

    def _ask_for_offers(self) -> None:
        if self._offer_requests == MAX_CALL_SENDS:
            raise RuntimeFailure(f"{MAX_CALL_SENDS} dispatchers were lost before one said which tools there are")
        self._offer_requests += 1
        self._peers.dispatcher.tell_control(OfferTools(self._question.tag, self.ref))

    def _start(self, offers: tuple[ToolOffer, ...]) -> None:
        question, self._has_started = self._question, True
        try:
            self._apply(
                events.RequestStarted(
                    question.tag, question.asked_at, question.history, question.user, question.options, offers
                )
            )
        except Rejected as refusal:
            raise RuntimeFailure(f"the request could not begin: {refusal}") from refusal

    def _apply(self, event: Event) -> None:
        """Raises Rejected for an event that is illegal now; RuntimeFailure ends the request with our fault named."""
        doing: Event | Command = event
        try:
            given = self._session.apply(event)
            self._show(event)
            if not isinstance(event, events.ModelStreamed):
                self._observe(event)
                if type(event) in _ENDS:
                    self._open.pop(event.tag, None)
            for doing in given:
                self._carry_out(doing)
        except ProtocolError as error:
            raise Rejected(str(error)) from error
        except Exception as error:
            what = f"{'applying' if doing is event else 'carrying out'} {type(doing).__name__}"
            raise RuntimeFailure(f"internal_error: {what} failed: {said(error)}") from error

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, _SHOWN):
            self._show(command)
        self._observe(command)
        match command:
            case commands.CallModel(tag):
                start = StartModel(command, self.ref, self._question.asker, self._question.is_read_along)
                self._open[tag] = Open(start, commands.StopModel(tag))
                self._peers.llm_manager.tell_control(start)
            case commands.RunTool(tag):
                call = DispatchCall(command, self._question.user.text, self.ref, self._question.asker)
                self._open[tag] = Open(call, commands.CancelTool(tag))
                self._peers.dispatcher.tell_control(call)
            case commands.AskApproval(tag):
                seek = SeekApproval(command, self.ref, self._question.asker)
                self._open[tag] = Open(seek, commands.WithdrawApproval(tag))
                self._peers.dispatcher.tell_control(seek)
            case commands.StopModel() | commands.CancelTool() | commands.WithdrawApproval():
                self._open.pop(command.tag, None)
                self._tell_to_stop(command)
            case commands.SetTimer(tag, at):
                self._set_timer(tag, at)
            case commands.ClearTimer(tag):
                self._set_timer(tag, None)
            case commands.RecordStep():
                # The question enters the conversation with the first step that answers it, or not at all.
                question_message, self._unrecorded = self._unrecorded, ()
                self._record_messages(question_message + command.messages)
            case commands.Finish():
                self._finished(command)
            case commands.Note():
                pass  # shown above
            case _:
                assert_never(command)

    def _tell_to_stop(self, command: commands.StopModel | commands.CancelTool | commands.WithdrawApproval) -> None:
        if isinstance(command, commands.StopModel):
            self._peers.llm_manager.tell_control(command)
        else:
            self._has_cancelled = True
            self._peers.dispatcher.tell_control(command)

    def _set_timer(self, tag: Tag, at: float | None) -> None:
        earlier = self._timers.get(tag)
        if earlier is not None and earlier[0] == at:
            return
        if earlier is not None:
            self._timers.pop(tag)[1].cancel()
        if at is not None:
            self._timers[tag] = at, self.tell_at(at, events.DeadlinePassed(tag, at))

    # -- who listens

    def _show(self, seen: Seen) -> None:
        """A subscriber that fails costs its reader the events, not the request its answer."""
        if self._has_subscriber_failed and not isinstance(seen, commands.Finish):
            return
        try:
            self._context.run(self._subscriber, seen)
        except Exception as error:  # noqa: BLE001 - a reader's fault
            self._has_subscriber_failed = True
            warn = partial(logger.warning, exc_info=error, extra=self._question.tag._asdict())
            self._context.run(warn, "the request goes on unread, since its subscriber failed")

    def _observe(self, what: Question | Event | Command) -> None:
        if is_heard(what):
            try:
                self._peers.telemetry.tell(what)
            except Exception:  # noqa: BLE001 - telemetry that cannot keep up must not steer; the kernel counts it
                return

    # -- the end

    def _finished(self, finish: commands.Finish) -> None:
        """A request whose tools were cancelled is answered when they were told to stop."""
        self._finish = finish
        if self._has_cancelled and finish.outcome in (commands.Outcome.CANCELLED, commands.Outcome.TIMED_OUT):
            self._is_waiting = True
            self._peers.dispatcher.tell_control(ConfirmStops(finish.tag, self.ref))
            self.tell_after(STOPS_TOLD_SECONDS, StopsOverdue())
        else:
            self._end(finish)

    def _end(self, finish: commands.Finish) -> None:
        self._is_waiting = False
        self._show(finish)
        if self._is_stopping:
            self.stopped()
        else:
            self.stop()

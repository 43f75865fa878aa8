"""RequestSession: one actor for one request. It carries events into the protocol session and commands out of it.

No rule lives here: `protocol.session` decides, this file knows whom to tell. Whoever holds open work of the request
(the LLM manager, the dispatcher) is monitored; when one goes down, the session is told that the work is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from callboard.actors.calls.dispatcher import DispatchCall, OfferTools, SeekApproval, ToolsOffered
from callboard.actors.kernel import Actor, Down, ExitReason, MailboxFull, Ref, Rejected, Timer
from callboard.actors.models.llm_manager import StartModel
from callboard.actors.telemetry.telemetry import CommandIssued
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    RecordStep,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import Message, UserMessage
from callboard.protocol.errors import ProtocolError, RuntimeFailure
from callboard.protocol.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelLost,
    ModelStreamed,
    RequestStarted,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.machine import Session
from callboard.protocol.options import RequestOptions, ToolOffer

Seen = Event | Command
#: Dispatchers that may be lost before one says which tools there are; whatever kills them kills the next one too.
MAX_OFFER_REQUESTS = 3

Subscriber = Callable[[Seen], None]
"""Hears, on the loop thread, each event of the request as it is applied, each RunTool, AskApproval and Note, and
Finish last. It must not block."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a request is about."""

    tag: Tag
    history: tuple[Message, ...]
    user: UserMessage
    options: RequestOptions
    is_read_along: bool = True
    """Does anybody read the answer while it comes? If not, a turn reaches the session in one piece, at a sixth of the
    cost of 50 deltas; a cancelled one then leaves no partial text behind."""


@dataclass(frozen=True, slots=True)
class Peers:
    """The actors a session works with."""

    llm_manager: Ref
    dispatcher: Ref
    telemetry: Ref


class SessionLike(Protocol):
    """What this actor needs of the protocol's Session; a simulated run has one that writes down what it hears."""

    @property
    def step(self) -> Tag: ...

    def apply(self, event: Event) -> tuple[Command, ...]: ...


class RequestSession(Actor):
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
        self._record_messages = record
        self._session = make_session()
        self._unrecorded: tuple[Message, ...] = (question.user,)
        self._timers: dict[Tag, Timer] = {}
        self._offer_requests = 0
        self._started = False

    def on_start(self) -> None:
        self.monitor(self._peers.llm_manager)
        self.monitor(self._peers.dispatcher)
        self._ask_for_offers()

    def on_receive(self, message: Any) -> None:
        if type(message) is ToolsOffered:
            self._start(message.offers)
        elif type(message) is Down:
            self._holder_down(message)
        else:
            if type(message) is CancelRequested and not self._started and message.tag == self._question.tag:
                self._start(())  # only what has begun can be cancelled, and nobody waits for the offers any more
            self._apply(message)

    def _start(self, offers: tuple[ToolOffer, ...]) -> None:
        question, self._started = self._question, True
        self._apply(RequestStarted(question.tag, self.now(), question.history, question.user, question.options, offers))

    def _ask_for_offers(self) -> None:
        if self._offer_requests == MAX_OFFER_REQUESTS:
            raise RuntimeFailure(f"{MAX_OFFER_REQUESTS} dispatchers were lost before one said which tools there are")
        self._offer_requests += 1
        self._peers.dispatcher.tell_control(OfferTools(self._question.tag, self.ref))

    def _apply(self, event: Event) -> None:
        try:
            commands = self._session.apply(event)
        except ProtocolError as error:
            raise Rejected(str(error)) from error
        self._subscriber(event)
        if type(event) is not ModelStreamed:
            self._observe(event)
        for command in commands:
            _CARRIERS[type(command)](self, command)

    def _observe(self, what: Event | CommandIssued) -> None:
        with contextlib.suppress(MailboxFull):  # telemetry that cannot keep up must not steer; the kernel counts it
            self._peers.telemetry.tell(what)

    def _holder_down(self, down: Down) -> None:
        """Its replacement has the same address: monitor that, and let the protocol decide what is done again."""
        if down.reason is ExitReason.NOT_ALIVE:
            raise RuntimeFailure(f"{down.ref.name} is dead for good; nobody would answer")
        self.monitor(down.ref)
        if not self._started:
            if down.ref is self._peers.dispatcher:
                self._ask_for_offers()
            return
        lost = ModelLost if down.ref is self._peers.llm_manager else ToolsLost
        self._apply(lost(self._session.step, self.now()))

    # -- one carrier a command

    def _call_model(self, command: CallModel) -> None:
        self._observe(CommandIssued(command, self.now()))
        self._peers.llm_manager.tell_control(StartModel(command, self.ref, self._question.is_read_along))

    def _stop_model(self, command: StopModel) -> None:
        self._peers.llm_manager.tell_control(command)

    def _run_tool(self, command: RunTool) -> None:
        self._subscriber(command)
        self._observe(CommandIssued(command, self.now()))
        self._peers.dispatcher.tell_control(DispatchCall(command, self._question.user.text, self.ref))

    def _cancel_tool(self, command: CancelTool) -> None:
        self._peers.dispatcher.tell_control(command)

    def _ask_approval(self, command: AskApproval) -> None:
        self._subscriber(command)
        self._peers.dispatcher.tell_control(SeekApproval(command, self.ref))

    def _withdraw_approval(self, command: WithdrawApproval) -> None:
        self._peers.dispatcher.tell_control(command)

    def _set_timer(self, command: SetTimer) -> None:
        if earlier := self._timers.get(command.tag):
            earlier.cancel()
        self._timers[command.tag] = self.tell_at(command.at, DeadlinePassed(command.tag, command.at))

    def _clear_timer(self, command: ClearTimer) -> None:
        if timer := self._timers.pop(command.tag, None):
            timer.cancel()

    def _note(self, command: Note) -> None:
        self._subscriber(command)

    def _record_step(self, command: RecordStep) -> None:
        """The question enters the conversation with the first step that answers it, or not at all."""
        question, self._unrecorded = self._unrecorded, ()
        self._record_messages(question + command.messages)

    def _finish(self, command: Finish) -> None:
        self._observe(CommandIssued(command, self.now()))
        self._subscriber(command)
        self.stop()


_CARRIERS: Mapping[type, Callable[[RequestSession, Any], None]] = {
    CallModel: RequestSession._call_model,
    StopModel: RequestSession._stop_model,
    RunTool: RequestSession._run_tool,
    CancelTool: RequestSession._cancel_tool,
    AskApproval: RequestSession._ask_approval,
    WithdrawApproval: RequestSession._withdraw_approval,
    SetTimer: RequestSession._set_timer,
    ClearTimer: RequestSession._clear_timer,
    Note: RequestSession._note,
    RecordStep: RequestSession._record_step,
    Finish: RequestSession._finish,
}

"""A session under fire: Hypothesis sends it any event at any time, legal or not, and a small model says what is legal.

    from callboard.protocol.testing.machine import SessionMachine
    TestMySession = SessionMachine.TestCase         # or: class Mine(SessionMachine): session_type = MySession

The model knows only what commands it saw: who was asked for what. It predicts whether an event must be taken or
refused; a refused event must leave no trace in the session; the twelve invariants are checked over the whole run.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from callboard.protocol.commands import AskApproval, CallModel, CancelTool, Finish, RunTool, SetTimer, WithdrawApproval
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import CallId, RequestId, Tag
from callboard.protocol.model import ModelRequest
from callboard.protocol.options import RequestOptions
from callboard.protocol.session import Session
from callboard.protocol.stream import Error, TextDelta
from callboard.protocol.testing.driver import SessionLike
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.outside import respond, result_of
from callboard.protocol.testing.replaying import fingerprint
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PlannedTurn, Scenario
from callboard.protocol.testing.strategies import histories, model_turns, request_options, seconds
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import FailureCode, ToolFailure

#: What comes twice is mostly what just came.
RECENT = 4
_MODEL_EVENTS = (ModelStreamed, ModelResponded, ModelFailed, ModelLost)
_ANSWERS = (ApprovalGranted, ApprovalDenied)


class ExpectedCalls:
    """The model: which model call is open, and for each call what it waits for ("person", "start" or "end")."""

    def __init__(self, request: Tag) -> None:
        self.request = request
        self.started = self.over = False
        self.model: Tag | None = None
        self.asked: ModelRequest | None = None
        self.step = request
        self.calls: dict[Tag, str] = {}

    def allows(self, event: Event) -> bool:
        """Whether a session must take this event now."""
        if isinstance(event, RequestStarted):
            return not self.started and event.tag == self.request
        if not self.started or self.over or event.tag.request != self.request:
            return False
        if isinstance(event, CancelRequested):
            return True
        if isinstance(event, _MODEL_EVENTS):
            return event.tag == self.model
        if isinstance(event, DeadlinePassed):
            return event.tag == self.request or (self.model is None and event.tag == self.step)
        if isinstance(event, ToolsLost):
            return self.model is None and event.tag == self.step
        return self._allows_call(event)

    def _allows_call(self, event: Event) -> bool:
        waits_for = self.calls.get(event.tag)
        if isinstance(event, _ANSWERS):
            return waits_for == "person"
        if isinstance(event, ToolCallStarted):
            return waits_for == "start"
        return waits_for in ("start", "end")

    def took(self, event: Event, commands: tuple[Any, ...]) -> None:
        """Learn from what was taken, and from the commands it led to."""
        self.started = True
        if isinstance(event, ToolCallStarted):
            self.calls[event.tag] = "end"
        elif isinstance(event, ToolsLost):
            self.calls.clear()
        elif event.tag in self.calls:
            del self.calls[event.tag]
        elif isinstance(event, _MODEL_EVENTS[1:]):
            self.model = None
        for command in commands:
            self._see(command)

    def _see(self, command: Any) -> None:
        match command:
            case CallModel():
                self.model = self.step = command.tag
                self.asked, self.calls = command.request, {}
            case RunTool():
                self.calls[command.tag] = "start"
            case AskApproval():
                self.calls[command.tag] = "person"
            case Finish():
                self.over = True
            case CancelTool() | WithdrawApproval():
                self.calls.pop(command.tag, None)


class SessionMachine(RuleBasedStateMachine):
    """Every rule sends one event; `send` compares the session with the model."""

    session_type: ClassVar[type[SessionLike]] = Session

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.failed = False
        self.session: Any = self.session_type()
        self.timers: dict[Tag, float] = {}
        self.trace = Trace(Scenario(tools=STANDARD_TOOLS))
        self.expected = ExpectedCalls(self.trace.scenario.tag)

    def send(self, event: Event) -> None:
        """One event: taken or refused as the model says, and without any effect when refused."""
        legal = self.expected.allows(event)
        before = fingerprint(self.session)
        self.trace.sent += 1
        commands, refusal = self._apply(event)
        if refusal is not None:
            self.trace.add(self.now, Verb.REFUSED, event, str(refusal))
            self.must(not legal, f"refused, but legal: {refusal}")
            self.must(fingerprint(self.session) == before, "a refused event changed the session")
            self.must(refusal.event == type(event).__name__, "the refusal does not name the event")
            self.must(bool(refusal.state), "the refusal does not name the state")
            return
        self.trace.add(self.now, Verb.APPLIED, event)
        for command in commands:
            self.trace.add(self.now, Verb.GAVE, command)
            if isinstance(command, SetTimer):
                self.timers[command.tag] = command.at
        self.must(legal, f"taken, but illegal: {type(event).__name__}")
        self.expected.took(event, commands)

    def _apply(self, event: Event) -> tuple[tuple[Any, ...], ProtocolError | None]:
        try:
            return self.session.apply(event), None
        except ProtocolError as error:
            return (), error

    def must(self, holds: bool, otherwise: str) -> None:
        """A failure as a person reads it: what, and the story that led there."""
        if not holds:
            self.failed = True
            raise AssertionError(f"{otherwise}\n{self.trace.story()}")

    @initialize(history=histories(2), options=request_options())
    def start(self, history: Any, options: RequestOptions) -> None:
        self.send(
            RequestStarted(self.expected.request, self.now, history, UserMessage.of("go"), options, STANDARD_TOOLS)
        )

    @rule(turn=model_turns(4))
    def model_answers(self, turn: PlannedTurn) -> None:
        asked = self.expected.asked
        if asked is not None:
            self.send(ModelResponded(self.expected.step, self.now, respond(turn, asked)))

    @rule()
    def model_streams(self) -> None:
        self.send(ModelStreamed(self.expected.step, self.now, (TextDelta("some "),)))

    @rule(kind=st.sampled_from(ErrorKind))
    def model_fails(self, kind: ErrorKind) -> None:
        self.send(ModelFailed(self.expected.step, self.now, Error(kind, "planned")))

    @rule()
    def model_is_lost(self) -> None:
        self.send(ModelLost(self.expected.step, self.now))

    @precondition(lambda self: self.expected.calls)
    @rule(
        data=st.data(), how=st.sampled_from((ToolCallStarted, ToolCallCompleted, ToolCallCancelled, ToolCallTimedOut))
    )
    def tool_answers(self, data: st.DataObject, how: type[Any]) -> None:
        tag = data.draw(st.sampled_from(sorted(self.expected.calls)))
        rest = (result_of(tag),) if how is ToolCallCompleted else ()
        self.send(how(tag, self.now, *rest))

    @precondition(lambda self: self.expected.calls)
    @rule(data=st.data(), code=st.sampled_from((FailureCode.TOOL_ERROR, FailureCode.CRASHED)))
    def tool_fails(self, data: st.DataObject, code: FailureCode) -> None:
        tag = data.draw(st.sampled_from(sorted(self.expected.calls)))
        name = next(call.definition.name for call in STANDARD_TOOLS)
        self.send(ToolCallFailed(tag, self.now, ToolFailure(name, code, "planned")))

    @precondition(lambda self: self.expected.calls)
    @rule(data=st.data(), granted=st.booleans())
    def person_answers(self, data: st.DataObject, granted: bool) -> None:
        tag = data.draw(st.sampled_from(sorted(self.expected.calls)))
        self.send(ApprovalGranted(tag, self.now) if granted else ApprovalDenied(tag, self.now))

    @rule()
    def tools_are_lost(self) -> None:
        self.send(ToolsLost(self.expected.step, self.now))

    @precondition(lambda self: self.trace.entries)
    @rule(data=st.data())
    def something_comes_again(self, data: st.DataObject) -> None:
        """A doubled or late event."""
        known = [entry.value for entry in self.trace.entries if entry.verb is Verb.APPLIED][-RECENT:]
        event: Any = data.draw(st.sampled_from(known))
        if not isinstance(event, CancelRequested | DeadlinePassed):
            self.send(event)

    @rule(kind=st.sampled_from((ModelLost, ToolsLost, ToolCallStarted, CancelRequested)))
    def another_request_speaks(self, kind: type[Any]) -> None:
        """With the very same step and call id."""
        own = next(iter(self.expected.calls), self.expected.step) if kind is ToolCallStarted else self.expected.step
        self.send(kind(own._replace(request_id=RequestId("another")), self.now))

    @rule(step=st.integers(0, 9), call=st.sampled_from(("a", "c", "nobody")))
    def nobody_asked(self, step: int, call: str) -> None:
        tag = self.expected.request.at_step(step).for_call(CallId(call))
        self.send(ToolCallCompleted(tag, self.now, result_of(tag)))

    @rule(waited=seconds(60.0))
    def time_passes(self, waited: float) -> None:
        until = self.now + waited
        while self.timers and min(self.timers.values()) <= until:
            tag = min(self.timers, key=lambda tag: self.timers[tag])
            self.now = max(self.now, self.timers.pop(tag))
            self.send(DeadlinePassed(tag, self.now))
        self.now = until

    @precondition(lambda self: len(self.trace.entries) > 12)
    @rule()
    def cancel(self) -> None:
        self.send(CancelRequested(self.expected.request, self.now, "enough"))

    def teardown(self) -> None:
        """The whole run against I1 to I12; of a run that has failed already, nothing more is to be said."""
        if self.failed:
            return
        self.trace.session, self.trace.ended_at = self.session, self.now
        if not self.expected.over:
            # Somebody still holds open work: as good as a message on its way.
            self.trace.queued = 1
            self.trace.sent += 1
        found = violations(self.trace)
        self.must(not found, "; ".join(map(str, found)))

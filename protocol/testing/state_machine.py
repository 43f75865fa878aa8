"""Sessions under fire: Hypothesis sends them events, most of them due and some not, and every rule is checked.

    from callboard.protocol.testing.state_machine import SessionMachine
    TestMySession = SessionMachine.TestCase         # or: class Mine(SessionMachine): session_type = MySession

Several requests live at the same time in one process. What is due is known from the commands alone
(`rules_requests.ExpectedEvents`); a refused event must leave no trace in the session. Each rule of the machine sends
one event, most of them to what is open: so runs are long, and reach the rows of the tables.
"""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import note, target
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, precondition, rule

from callboard.protocol.commands import AskApproval, CallModel, ClearTimer, NoteKind, RunTool, SetTimer
from callboard.protocol.content import Message, UserMessage
from callboard.protocol.errors import ErrorKind, ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    NoticeCame,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, ModelRequest, TextDelta
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.driver import SessionLike
from callboard.protocol.testing.invariants import violations
from callboard.protocol.testing.outside import cost_of, respond, result_of
from callboard.protocol.testing.reach import Reach
from callboard.protocol.testing.rules_journal import fingerprint
from callboard.protocol.testing.rules_requests import ExpectedEvents
from callboard.protocol.testing.scenario import ASKERS_TOOLS, STANDARD_TOOLS, PlannedTurn, Scenario
from callboard.protocol.testing.strategies import (
    histories,
    model_turns,
    request_options,
    seconds,
    turns_that_ask_back,
)
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import FailureCode, ToolFailure

#: What comes twice is mostly what just came.
RECENT = 4
#: More requests side by side say nothing more.
MAX_REQUESTS = 3
#: What each open call waits for, and what comes then.
_CALM: tuple[tuple[str, type[Any]], ...] = (
    ("person", ApprovalGranted),
    ("start", ToolCallStarted),
    ("end", ToolCallCompleted),
    ("outside", ToolCallCompleted),
)
#: By the most calls that they hold.
_TURNS = {most_calls: model_turns(most_calls) for most_calls in (2, 4, 8)}
_TOOL_ENDS = (ToolCallCompleted,) * 4 + (ToolCallCancelled, ToolCallTimedOut, ToolCallFailed)


class Request:
    """One request: its session, its trace, what is due, and its timers."""

    def __init__(self, number: int, session: SessionLike) -> None:
        self.tag = Tag(RequestId(f"r{number}"), MessageId("m"))
        self.session = session
        plan = Scenario(tools=STANDARD_TOOLS, askers_tools=ASKERS_TOOLS, request_id=self.tag.request_id)
        self.trace = Trace(plan)
        self.expected = ExpectedEvents(self.tag)
        self.timers: dict[Tag, float] = {}
        self.asked: ModelRequest | None = None
        self.waiting: CallModel | None = None
        """The model call that may not begin yet."""
        self.options = RequestOptions("sim/model")

    @property
    def calls(self) -> list[Tag]:
        """The calls that are open."""
        return sorted(self.expected.calls)

    def waiting_for(self, what: str) -> list[Tag]:
        """The open calls that wait for a "person", for their "start" or their "end"."""
        return [tag for tag in self.calls if self.expected.calls[tag] == what]


class SessionMachine(RuleBasedStateMachine):
    """Every rule sends one event; `send` compares what becomes of it with what is due."""

    session_type: ClassVar[type[SessionLike]] = Session
    requests = Bundle("requests")
    lengths: ClassVar[list[int]] = []
    """Events of each run: the report of what was reached reads it."""
    reach: ClassVar[Reach] = Reach()

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.failed = False
        self.all: list[Request] = []

    # Sending.

    def send(self, request: Request, event: Event) -> None:
        """One event: taken or refused as is due, and without any effect when refused."""
        due = request.expected.allows(event)
        trace, session = request.trace, request.session
        before = fingerprint(session)
        trace.sent += 1
        try:
            commands = session.apply(event)
        except ProtocolError as error:
            trace.add(self.now, Verb.REFUSED, event, str(error))
            self.must(request, not due, f"refused, but due: {error}")
            self.must(request, fingerprint(session) == before, "a refused event changed the session")
            self.must(request, error.event == type(event).__name__, "the refusal does not name the event")
            self.must(request, bool(error.state), "the refusal does not name the state")
            return
        trace.add(self.now, Verb.APPLIED, event)
        for command in commands:
            trace.add(self.now, Verb.GAVE, command)
            self._carry_out(request, command)
        self.must(request, due, f"taken, but not due: {type(event).__name__}")
        request.expected.took(event, commands)

    def _carry_out(self, request: Request, command: Any) -> None:
        if isinstance(command, CallModel) and command.not_before_at > self.now:
            request.waiting = command
        elif isinstance(command, RunTool | CallModel | AskApproval):
            verb = Verb.RAN if isinstance(command, RunTool) else Verb.ASKED
            request.trace.add(self.now, verb, command)
        match command:
            case SetTimer():
                request.timers[command.tag] = command.at
            case ClearTimer():
                request.timers.pop(command.tag, None)
            case CallModel():
                request.asked = command.request

    def must(self, request: Request, holds: bool, otherwise: str) -> None:
        """A failure as a person reads it: what, and the story that led there."""
        if not holds:
            self.failed = True
            raise AssertionError(f"{otherwise}\n{request.trace.story()}")

    # Requests begin.

    @initialize(target=requests, history=histories(2), options=request_options())
    def first(self, history: tuple[Message, ...], options: RequestOptions) -> Request:
        return self._begin(history, options)

    @precondition(lambda self: len(self.all) < MAX_REQUESTS)
    @rule(target=requests, history=histories(1), options=request_options())
    def another(self, history: tuple[Message, ...], options: RequestOptions) -> Request:
        return self._begin(history, options)

    def _begin(self, history: tuple[Message, ...], options: RequestOptions) -> Request:
        request = Request(len(self.all), self.session_type())
        self.all.append(request)
        request.options = options
        offers = request.trace.scenario.offers
        self.send(request, RequestStarted(request.tag, self.now, history, UserMessage.of("go"), options, offers))
        return request

    # What is due.

    @rule(request=requests, data=st.data())
    def the_next_thing_happens(self, request: Request, data: st.DataObject) -> None:
        self._advance(request, data, 4)

    @rule(request=requests, data=st.data())
    def and_the_next(self, request: Request, data: st.DataObject) -> None:
        self._advance(request, data, 2)

    @rule(request=requests, data=st.data())
    def and_one_more(self, request: Request, data: st.DataObject) -> None:
        self._advance(request, data, 8)

    @rule(request=requests)
    def the_model_streams(self, request: Request) -> None:
        self._model_begins(request)
        if request.expected.model is not None:
            self.send(request, ModelStreamed(request.expected.step, self.now, (TextDelta("some "),)))

    @precondition(lambda self: any(request.expected.model for request in self.all))
    @rule(request=requests, number=st.integers(1, 3))
    def a_request_of_the_model_call_fails(self, request: Request, number: int) -> None:
        if self._has_lived(request):
            until_at = self.now + 2.0 * (number - 1) if number > 1 else 0.0
            noted = ModelNoted(request.expected.step, self.now, NoteKind.RETRY, "planned", number, until_at)
            self.send(request, noted)

    @rule(request=requests)
    def something_happens_outside(self, request: Request) -> None:
        number = len(request.trace.entries)
        self.send(request, NoticeCame(request.tag, self.now, f"notice {number}"))

    def _advance(self, request: Request, data: st.DataObject, most_calls: int) -> None:
        """What a calm world does next: people allow, calls begin, calls complete, the model answers. To draw a turn
        takes longer than all the rest, so one is drawn only where it is due."""
        for what, kind in _CALM:
            waiting = request.waiting_for(what)
            if waiting:
                rest = (result_of(waiting[0]),) if kind is ToolCallCompleted else ()
                self.send(request, kind(waiting[0], self.now, *rest))
                return
        self._model_begins(request)
        if request.expected.model is not None:
            self._model_answers(request, data.draw(_TURNS[most_calls]))

    def _model_answers(self, request: Request, turn: PlannedTurn) -> None:
        if request.asked is not None and request.expected.model is not None:
            response = respond(turn, request.asked)
            cost = cost_of(response.usage, request.options, turn.extra_cost)
            self.send(request, ModelResponded(request.expected.step, self.now, response, cost))

    @precondition(lambda self: any(request.expected.model and self._has_lived(request) for request in self.all))
    @rule(turn=turns_that_ask_back())
    def a_model_asks_back(self, turn: PlannedTurn) -> None:
        """It calls tools of the asker; a result of such a call comes with another request, and not now."""
        request = next(each for each in self.all if each.expected.model and self._has_lived(each))
        self._model_begins(request)
        step = request.expected.step
        self._model_answers(request, turn)
        for call in turn.calls:
            tag = step._replace(call_id=CallId(call.call_id))
            if tag not in request.expected.calls:
                self.send(request, ToolCallCompleted(tag, self.now, result_of(tag)))

    def _model_begins(self, request: Request) -> None:
        """A model call that must wait begins when its time has come."""
        waiting, request.waiting = request.waiting, None
        if waiting is not None:
            self._pass_until(max(self.now, waiting.not_before_at))
            if request.expected.model == waiting.tag and not request.expected.over:
                request.trace.add(self.now, Verb.ASKED, waiting)

    @precondition(lambda self: any(request.calls for request in self.all))
    @rule(request=requests, data=st.data(), how=st.sampled_from(_TOOL_ENDS), code=st.sampled_from(FailureCode))
    def a_call_ends(self, request: Request, data: st.DataObject, how: type[Any], code: FailureCode) -> None:
        if request.calls:
            tag = data.draw(st.sampled_from(request.calls))
            rest: tuple[Any, ...] = (result_of(tag),) if how is ToolCallCompleted else ()
            if how is ToolCallFailed:
                rest = (ToolFailure(ToolName("look"), code, "planned"),)
            self.send(request, how(tag, self.now, *rest))

    @precondition(lambda self: any(request.calls for request in self.all))
    @rule(request=requests, data=st.data(), open_for=seconds(1.0) | seconds(600.0))
    def a_call_is_deferred(self, request: Request, data: st.DataObject, open_for: float) -> None:
        if request.calls:
            tag = data.draw(st.sampled_from(request.waiting_for("end") or request.calls))
            self.send(request, ToolCallDeferred(tag, self.now, open_for))

    @precondition(lambda self: any(request.waiting_for("person") for request in self.all))
    @rule(request=requests, data=st.data(), granted=st.booleans())
    def a_person_answers(self, request: Request, data: st.DataObject, granted: bool) -> None:
        if request.calls:
            tag = data.draw(st.sampled_from(request.waiting_for("person") or request.calls))
            self.send(request, ApprovalGranted(tag, self.now) if granted else ApprovalDenied(tag, self.now, "", "no"))

    # What goes wrong.

    @precondition(lambda self: any(request.expected.model for request in self.all))
    @rule(request=requests, kind=st.sampled_from((ErrorKind.TRUNCATED, ErrorKind.TOOLS_UNSUPPORTED, *ErrorKind)))
    def the_model_fails(self, request: Request, kind: ErrorKind) -> None:
        if self._has_lived(request):
            self.send(request, ModelFailed(request.expected.step, self.now, Error(kind, "planned")))

    @rule(request=requests)
    def a_holder_is_lost(self, request: Request) -> None:
        if self._has_lived(request):
            kind = ModelLost if request.expected.model is not None else ToolsLost
            self.send(request, kind(request.expected.step, self.now))

    @rule(request=requests, data=st.data())
    def something_comes_again(self, request: Request, data: st.DataObject) -> None:
        """A doubled or late event."""
        known = [entry.value for entry in request.trace.entries if entry.verb is Verb.APPLIED][-RECENT:]
        event: Any = data.draw(st.sampled_from(known)) if known else None
        if event is not None and not isinstance(event, CancelRequested | DeadlinePassed):
            self.send(request, event)

    @rule(request=requests, kind=st.sampled_from((ModelLost, ToolsLost, ToolCallStarted, CancelRequested)))
    def another_request_speaks(self, request: Request, kind: type[Any]) -> None:
        """With the very same step and call id."""
        own = next(iter(request.calls), request.expected.step) if kind is ToolCallStarted else request.expected.step
        self.send(request, kind(own._replace(request_id=RequestId("another")), self.now))

    @rule(request=requests, step=st.integers(0, 9), call=st.sampled_from(("a", "c", "unknown")))
    def a_stranger_answers(self, request: Request, step: int, call: str) -> None:
        tag = request.tag.at_step(step)._replace(call_id=CallId(call))
        if tag not in request.expected.calls:
            self.send(request, ToolCallCompleted(tag, self.now, result_of(tag)))

    @rule(waited=seconds(1.0) | seconds(2.0) | seconds(60.0))
    def time_passes(self, waited: float) -> None:
        self._pass_until(self.now + waited)

    def _pass_until(self, until: float) -> None:
        while (due := self._next_timer()) is not None and due[0] <= until:
            at, tag, request = due
            del request.timers[tag]
            self.now = max(self.now, at)
            self.send(request, DeadlinePassed(tag, self.now))
        self.now = until

    def _next_timer(self) -> tuple[float, Tag, Request] | None:
        timers = [(at, tag, request) for request in self.all for tag, at in request.timers.items()]
        return min(timers, key=lambda timer: timer[:2], default=None)

    @rule(request=requests, early=st.booleans())
    def a_timer_fires_early(self, request: Request, early: bool) -> None:
        if self._has_lived(request):
            self.send(request, DeadlinePassed(request.tag if early else request.expected.step, self.now))

    @rule(request=requests)
    def cancel(self, request: Request) -> None:
        if len(request.trace.entries) > 100:
            self.send(request, CancelRequested(request.tag, self.now, "enough"))

    @staticmethod
    def _has_lived(request: Request) -> bool:
        """What may end a request comes once it has lived a while, so that runs are long."""
        return len(request.trace.entries) > 25

    def teardown(self) -> None:
        """Each request against all rules; of a run that has failed already, nothing more is to be said."""
        if self.failed:
            return
        steps = sum(request.trace.steps for request in self.all)
        self.lengths.append(steps)
        target(float(steps), label="events")
        for request in self.all:
            self._check(request)

    def _check(self, request: Request) -> None:
        trace = request.trace
        trace.session, trace.ended_at = request.session, self.now
        if not request.expected.over:
            # Somebody still holds open work: as good as a message on its way.
            trace.queued += 1
            trace.sent += 1
        found = violations(trace)
        note(trace.story())
        self.must(request, not found, "; ".join(map(str, found)))
        self.reach.add(trace)

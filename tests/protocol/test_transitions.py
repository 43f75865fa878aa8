"""Every event in every state: what it leads to, or that it is refused and changes nothing.

`ROWS` says what a real session must do, in a table of its own; `states.py` is compared with it at the end, entry by
entry. So a row of `states.py` that accepts too much, or too little, is found in any case: by a session that does
something else, or by an entry that nothing here leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

import orjson
import pytest

from callboard.protocol.commands import Command, NoteKind, RecordStep
from callboard.protocol.content import Text, ToolCall, ToolMessage, UserMessage
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
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_CALL_SENDS, MAX_RESULT_BYTES
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelResponse, TextDelta
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.output import Checked, OutputSpec
from callboard.protocol.states import (
    CALL_TRANSITIONS,
    REQUEST_TRANSITIONS,
    TERMINAL_CALL_STATES,
    CallState,
    RequestState,
)
from callboard.protocol.testing.rules_journal import fingerprint
from callboard.protocol.tools import Decision, Effect, FailureCode, Risk, ToolContract, ToolDefinition, ToolFailure

NEW, ASKING, TOOLS, OVER = RequestState
REQUEST = Tag(RequestId("r"), MessageId("m"))
LOOK = ToolName("look")
FAILURE = ToolFailure(LOOK, FailureCode.TOOL_ERROR, "no")
SO_FAR = (TextDelta("so far"),)
OVERLOADED = Error(ErrorKind.OVERLOADED, "too busy")
TRUNCATED = Error(ErrorKind.TRUNCATED, "cut off")
REQUEST_SECONDS, SECONDS, BACKSTOP_SECONDS = 100.0, 10.0, 2.0
#: For a person, and for a result from outside.
APPROVAL_SECONDS, OPEN_SECONDS = 5_000.0, 50.0
OFFERS = (
    *(
        ToolOffer(
            ToolDefinition(ToolName(name), ""),
            ToolContract(timeout_seconds=SECONDS, effect=Effect.REPEAT if again else Effect.ONCE),
            decision,
        )
        for name, again, decision in (
            ("look", False, Decision.ALLOW),
            ("again", True, Decision.ALLOW),
            ("write", False, Decision.ASK),
            ("never", False, Decision.DENY),
        )
    ),
    ToolOffer(ToolDefinition(ToolName("mine"), ""), ToolContract(is_outside=True)),
    ToolOffer(ToolDefinition(ToolName("seek"), ""), ToolContract(risk=Risk.READ, searches_by="queries")),
)

# -- a session in each state -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """How the session comes to be in its state. `call` is where its call "a" is, None where it has none."""

    request: RequestState
    call: CallState | None = None
    tool: str = "look"
    """What "a" asks for."""
    beside: str = ""
    """The tool of a call "b" of the same step, if there is one: "a" can end, and the step goes on. With "write" it
    waits for a person, with "look" it has been sent."""
    max_steps: int = 9
    token_budget: int | None = None
    retries: int = 1
    repeated: int = 0
    """The steps in a row that have asked for the same call before; the third is told, the fourth ends the run."""
    sends: int = 1
    """The times that the call has been sent."""
    output: OutputSpec | None = None
    """The form that the answer must have."""
    answered: Checked | None = None
    """The turn that asked for "a" has an answer too, of which this is known."""
    awaits_words: bool = False
    """The turn asked for a search "a", which waits for further words to search by."""


def start(situation: Situation) -> RequestStarted:
    options = RequestOptions(
        "sim/model",
        timeout_seconds=REQUEST_SECONDS,
        approval_timeout_seconds=APPROVAL_SECONDS,
        max_steps=situation.max_steps,
        token_budget=situation.token_budget,
        repeated_call_limit=2,
        max_attempts=situation.retries + 1,
        output=situation.output,
        expand_search=situation.awaits_words,
    )
    return RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), options, OFFERS)


def call(call_id: str, tool: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(tool), arguments)


def turn(*parts: Any, reason: FinishReason | None = None) -> ModelResponse:
    calls = any(isinstance(part, ToolCall) for part in parts)
    return ModelResponse(parts, reason or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP))


#: How "a" gets from SENT, or from AWAITING_APPROVAL, to where a situation has it.
WAY: dict[CallState, Callable[[Tag], Event]] = {
    CallState.RUNNING: lambda tag: ToolCallStarted(tag, 1.0),
    CallState.DEFERRED: lambda tag: ToolCallDeferred(tag, 1.0, OPEN_SECONDS),
    CallState.COMPLETED: lambda tag: ToolCallCompleted(tag, 1.0, "1"),
    CallState.FAILED: lambda tag: ToolCallFailed(tag, 1.0, FAILURE),
    CallState.TIMED_OUT: lambda tag: ToolCallTimedOut(tag, 1.0),
    CallState.CANCELLED: lambda tag: ToolCallCancelled(tag, 1.0),
    CallState.DENIED: lambda tag: ApprovalDenied(tag, 1.0),
}


def session_in(situation: Situation) -> Session:
    """A real session, brought there by events alone."""
    session = Session(REQUEST)
    if situation.request is NEW:
        return session
    session.apply(start(situation))
    if situation.request is OVER:
        session.apply(ModelResponded(session.step, 1.0, turn(Text("done"))))
    for _ in range(situation.repeated):
        session.apply(ModelResponded(session.step, 1.0, turn(call("z", "look"))))
        if session.state is TOOLS:
            session.apply(ToolCallCompleted(a(session, "z"), 1.0, "1"))
    if situation.awaits_words:
        session.apply(ModelResponded(session.step, 0.0, turn(Text("let me look"), call("a", "seek"))))
    if situation.call is not None:
        asked = call("a", situation.tool), *([call("b", situation.beside)] if situation.beside else [])
        checked: tuple[Checked, ...] = ()
        if situation.answered is not None:
            asked, checked = (*asked, call("c", "final_answer")), (situation.answered,)
        session.apply(ModelResponded(session.step, 0.0, turn(*asked), checked=checked))
        for _ in range(1, situation.sends):
            session.apply(ToolsLost(session.step, 0.0))
        if situation.call in WAY:
            session.apply(WAY[situation.call](a(session)))
    assert session.state is situation.request
    assert session.calls.get(a(session)) is situation.call
    return session


def a(session: Session, call_id: str = "a") -> Tag:
    return session.step._replace(call_id=CallId(call_id))


# -- what must happen --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """An event of this kind, with the tags of the session that will hear it."""

    kind: type[Any]
    to: Callable[[Session], Event]


@dataclass(frozen=True)
class Row:
    """In this situation, this event leads there, and gives these commands."""

    situation: Situation
    event: Said
    request: RequestState
    call: CallState | None
    commands: str

    def __str__(self) -> str:
        where = self.situation.call or self.situation.request
        return f"{where}-{self.event.kind.__name__}-{self.request}-{self.call}"


IDLE = Situation(ASKING)
WAITING = Situation(TOOLS, CallState.AWAITING_APPROVAL, "write")
SENT = Situation(TOOLS, CallState.SENT)
RUNNING = Situation(TOOLS, CallState.RUNNING)
DEFERRED = Situation(TOOLS, CallState.DEFERRED)
#: Alone, it would be handed out at once.
OUTSIDE = Situation(TOOLS, CallState.OUTSIDE, "mine", beside="look")
ENDED = {
    state: Situation(TOOLS, state, "write" if state is CallState.DENIED else "look", beside="look")
    for state in sorted(TERMINAL_CALL_STATES - {CallState.HANDED_OUT})
}


def started(situation: Situation) -> Said:
    return Said(RequestStarted, lambda _: start(situation))


def responded(*parts: Any, reason: FinishReason | None = None) -> Said:
    return Said(ModelResponded, lambda session: ModelResponded(session.step, 1.0, turn(*parts, reason=reason)))


def answered(checked: Checked, *parts: Any, reason: FinishReason | None = None) -> Said:
    response = turn(*parts, reason=reason)
    return Said(ModelResponded, lambda session: ModelResponded(session.step, 1.0, response, checked=(checked,)))


def of_step(kind: type[Any], *values: Any, at: float = 1.0) -> Said:
    return Said(kind, lambda session: kind(session.step, at, *values))


def of_request(kind: type[Any], *values: Any, at: float = 1.0) -> Said:
    return Said(kind, lambda _: kind(REQUEST, at, *values))


def of_call(kind: type[Any], *values: Any) -> Said:
    return Said(kind, lambda session: kind(a(session), 1.0, *values))


def without_calls() -> Iterable[Row]:
    new = Situation(NEW)
    yield Row(new, started(new), ASKING, None, "SetTimer CallModel")
    poor = replace(new, token_budget=1)
    yield Row(poor, started(poor), OVER, None, "SetTimer ClearTimer Finish")

    gave_up = replace(IDLE, retries=0)
    yield Row(IDLE, of_step(ModelStreamed, SO_FAR), ASKING, None, "")
    endless = (TextDelta("x" * (MAX_ANSWER_BYTES + 1)),)
    yield Row(IDLE, of_step(ModelStreamed, endless), OVER, None, "StopModel ClearTimer Finish")
    yield Row(IDLE, of_step(ModelNoted, NoteKind.RETRY, "busy", 1), ASKING, None, "Note")
    yield Row(IDLE, of_request(NoticeCame, "news"), ASKING, None, "")
    yield Row(IDLE, responded(Text("done")), OVER, None, "RecordStep ClearTimer Finish")
    cut = responded(Text("do"), reason=FinishReason.LENGTH)
    yield Row(IDLE, cut, OVER, None, "Note RecordStep ClearTimer Finish")
    yield Row(IDLE, responded(Text("hm"), reason=FinishReason.PAUSE), ASKING, None, "RecordStep CallModel")
    yield Row(IDLE, of_step(ModelFailed, TRUNCATED), ASKING, None, "Note CallModel")
    yield Row(gave_up, of_step(ModelFailed, TRUNCATED), OVER, None, "ClearTimer Finish")
    yield Row(IDLE, of_step(ModelFailed, OVERLOADED), OVER, None, "ClearTimer Finish")
    yield Row(IDLE, of_step(ModelLost), ASKING, None, "Note CallModel")
    yield Row(gave_up, of_step(ModelLost), OVER, None, "ClearTimer Finish")
    yield Row(IDLE, of_request(CancelRequested), OVER, None, "StopModel ClearTimer Finish")
    yield Row(IDLE, of_request(DeadlinePassed, at=99.0), ASKING, None, "SetTimer")
    yield Row(IDLE, of_request(DeadlinePassed, at=100.0), OVER, None, "StopModel ClearTimer Finish")


def words() -> Iterable[Row]:
    """What becomes of a search for which the model is asked for further words: the call of the step before begins."""
    waits = replace(IDLE, awaits_words=True)
    yield Row(waits, responded(Text("find it")), TOOLS, None, "RunTool SetTimer")
    yield Row(waits, responded(), TOOLS, None, "Note RunTool SetTimer")
    yield Row(waits, of_step(ModelFailed, TRUNCATED), TOOLS, None, "Note RunTool SetTimer")
    yield Row(waits, of_step(ModelLost), TOOLS, None, "Note RunTool SetTimer")
    yield Row(waits, of_step(ModelStreamed, SO_FAR), ASKING, None, "")
    yield Row(waits, of_request(CancelRequested), OVER, None, "StopModel RecordStep ClearTimer Finish")
    yield Row(waits, of_request(DeadlinePassed, at=100.0), OVER, None, "StopModel RecordStep ClearTimer Finish")


def beginnings() -> Iterable[Row]:
    """What becomes of a call that the model asks for."""
    yield Row(IDLE, responded(call("a", "look")), TOOLS, CallState.SENT, "RunTool SetTimer")
    yield Row(
        IDLE, responded(call("a", "write")), TOOLS, CallState.AWAITING_APPROVAL, "AskApproval SetTimer ClearTimer"
    )
    yield Row(IDLE, responded(call("a", "never")), ASKING, CallState.DENIED, "ReportFailure RecordStep CallModel")
    yield Row(IDLE, responded(call("a", "nowhere")), ASKING, CallState.FAILED, "ReportFailure RecordStep CallModel")
    yield Row(IDLE, responded(call("a", "look", "[1]")), ASKING, CallState.FAILED, "ReportFailure RecordStep CallModel")
    last = replace(IDLE, max_steps=1)
    yield Row(last, responded(call("a", "never")), OVER, CallState.DENIED, "ReportFailure RecordStep ClearTimer Finish")
    told = replace(IDLE, repeated=2)
    yield Row(told, responded(call("a", "look")), ASKING, CallState.FAILED, "ReportFailure RecordStep CallModel")
    again = replace(IDLE, repeated=3)
    stopped = "ReportFailure RecordStep ClearTimer Finish"
    yield Row(again, responded(call("a", "look")), OVER, CallState.FAILED, stopped)
    yield Row(
        again, responded(call("a", "again"), call("z", "look")), OVER, CallState.CANCELLED, f"ReportFailure {stopped}"
    )


def answers() -> Iterable[Row]:
    """What becomes of an answer whose form was asked for: a text, or a call of the output tool."""
    asked = replace(IDLE, output=OutputSpec({"type": "object"}, max_tries=2))
    once, form = replace(IDLE, output=OutputSpec({"type": "object"}, max_tries=1)), call("a", "final_answer")
    taken, ended = "RecordStep ClearTimer Finish", CallState.COMPLETED
    yield Row(asked, answered(FITS, Text("{}")), OVER, None, taken)
    yield Row(asked, answered(MISFIT, Text("{}")), ASKING, None, "Note RecordStep CallModel")
    yield Row(once, answered(MISFIT, Text("{}")), OVER, None, taken)
    yield Row(asked, answered(BROKEN, Text("{}")), OVER, None, taken)
    yield Row(asked, answered(MISFIT, Text("{"), reason=FinishReason.LENGTH), OVER, None, f"Note {taken}")
    yield Row(asked, answered(FITS, form), OVER, ended, taken)
    yield Row(asked, answered(MISFIT, form), ASKING, CallState.FAILED, "Note ReportFailure RecordStep CallModel")
    yield Row(once, answered(MISFIT, form), OVER, CallState.FAILED, f"ReportFailure {taken}")
    beside = "RunTool SetTimer"
    yield Row(asked, answered(FITS, form, call("b", "look")), TOOLS, ended, beside)
    for situation in (replace(asked, answered=FITS), replace(once, answered=MISFIT)):
        for held in (SENT, RUNNING):
            open_beside = replace(situation, request=TOOLS, call=held.call)
            done = f"ClearTimer {taken}"
            yield Row(open_beside, of_call(ToolCallCompleted, "1"), OVER, ended, done)
            yield Row(open_beside, of_call(ToolCallFailed, FAILURE), OVER, CallState.FAILED, done)


FITS, MISFIT, BROKEN = Checked(), Checked("x: Field required"), Checked("KeyError", is_broken=True)


def ends_of(
    situation: Situation,
    event: Callable[[Session], Event],
    state: CallState,
    cancels: str = "",
    reports: str = "",
    *,
    fired: bool = False,
) -> Iterable[Row]:
    """A call ends: while another is open, as the last one, as the last one of the last step.

    `fired`: by the step's timer, which then need not be cleared.
    """
    waits = situation.call in (CallState.AWAITING_APPROVAL, CallState.DEFERRED)
    timer = "" if fired else "ClearTimer "
    clock = "SetTimer " if waits else ""  # the request's time runs again
    todo = f"{cancels} {reports}"
    yield Row(replace(situation, beside="look"), event, TOOLS, state, f"{todo}{' SetTimer' if fired else ''}")
    yield Row(situation, event, ASKING, state, f"{todo} {clock}{timer}RecordStep CallModel")
    last = replace(situation, max_steps=1)
    yield Row(last, event, OVER, state, f"{todo} {clock}{timer}RecordStep ClearTimer Finish")


def results_of(held: Situation) -> Iterable[Row]:
    yield from ends_of(held, of_call(ToolCallCompleted, "1"), CallState.COMPLETED)
    yield from ends_of(held, of_call(ToolCallFailed, FAILURE), CallState.FAILED)
    too_large = of_call(ToolCallCompleted, "x" * (MAX_RESULT_BYTES + 1))
    yield from ends_of(held, too_large, CallState.FAILED, "", "ReportFailure")


def held_calls() -> Iterable[Row]:
    for held in (WAITING, SENT, RUNNING, DEFERRED):
        yield Row(held, of_request(NoticeCame, "news"), TOOLS, held.call, "")
    for held in (SENT, RUNNING):
        yield from results_of(held)
        yield from ends_of(held, of_call(ToolCallTimedOut), CallState.TIMED_OUT)
        yield from ends_of(held, of_call(ToolCallCancelled), CallState.CANCELLED)
        late = of_step(DeadlinePassed, at=SECONDS + BACKSTOP_SECONDS)
        alone = [row for row in ends_of(held, late, CallState.TIMED_OUT, "CancelTool", "ReportFailure", fired=True)][1:]
        yield from alone  # what is beside it has the same deadline
        assert held.call is not None
        yield Row(held, of_step(DeadlinePassed, at=SECONDS), TOOLS, held.call, "SetTimer")
        yield Row(held, of_request(DeadlinePassed, at=99.0), TOOLS, held.call, "SetTimer")
        stopped = "CancelTool ReportFailure ClearTimer RecordStep ClearTimer Finish"
        yield Row(held, of_request(CancelRequested), OVER, CallState.CANCELLED, stopped)
        yield Row(held, of_request(DeadlinePassed, at=REQUEST_SECONDS), OVER, CallState.TIMED_OUT, stopped)
        yield Row(held, of_call(ToolCallDeferred, OPEN_SECONDS), TOOLS, CallState.DEFERRED, "ClearTimer")
        beside = replace(held, beside="look")
        yield Row(beside, of_call(ToolCallDeferred, OPEN_SECONDS), TOOLS, CallState.DEFERRED, "")

    yield Row(SENT, of_call(ToolCallStarted), TOOLS, CallState.RUNNING, "")
    yield Row(SENT, of_step(ToolsLost), TOOLS, CallState.SENT, "RunTool SetTimer")
    lost_each_time = replace(SENT, sends=MAX_CALL_SENDS)
    yield Row(
        lost_each_time, of_step(ToolsLost), ASKING, CallState.FAILED, "ReportFailure ClearTimer RecordStep CallModel"
    )
    yield Row(RUNNING, of_step(ToolsLost), ASKING, CallState.FAILED, "ReportFailure ClearTimer RecordStep CallModel")
    yield Row(
        replace(RUNNING, max_steps=1),
        of_step(ToolsLost),
        OVER,
        CallState.FAILED,
        "ReportFailure ClearTimer RecordStep ClearTimer Finish",
    )
    yield Row(replace(RUNNING, tool="again"), of_step(ToolsLost), TOOLS, CallState.SENT, "RunTool SetTimer")


def waiting_calls() -> Iterable[Row]:
    """The request's time stands still, unless another call of the step is held."""
    yield Row(WAITING, of_call(ApprovalGranted), TOOLS, CallState.SENT, "RunTool SetTimer SetTimer")
    yield from ends_of(WAITING, of_call(ApprovalDenied), CallState.DENIED, "", "ReportFailure")
    yield Row(WAITING, of_step(ToolsLost), TOOLS, CallState.AWAITING_APPROVAL, "AskApproval SetTimer")
    withdrawn = "WithdrawApproval ReportFailure ClearTimer RecordStep ClearTimer Finish"
    yield Row(WAITING, of_request(CancelRequested), OVER, CallState.CANCELLED, withdrawn)
    in_vain = of_step(DeadlinePassed, at=APPROVAL_SECONDS)
    alone = list(ends_of(WAITING, in_vain, CallState.DENIED, "WithdrawApproval", "ReportFailure", fired=True))[1:]
    yield from alone  # what is beside it has a deadline long before
    yield Row(WAITING, of_step(DeadlinePassed, at=1_000.0), TOOLS, CallState.AWAITING_APPROVAL, "SetTimer")
    yield Row(WAITING, of_request(DeadlinePassed, at=1_000.0), TOOLS, CallState.AWAITING_APPROVAL, "")

    yield from results_of(DEFERRED)
    over = of_step(DeadlinePassed, at=1.0 + OPEN_SECONDS)
    yield from list(ends_of(DEFERRED, over, CallState.TIMED_OUT, "", "ReportFailure", fired=True))[1:]
    yield Row(DEFERRED, of_step(ToolsLost), TOOLS, CallState.DEFERRED, "SetTimer")
    yield Row(DEFERRED, of_step(DeadlinePassed, at=OPEN_SECONDS), TOOLS, CallState.DEFERRED, "SetTimer")
    yield Row(DEFERRED, of_request(DeadlinePassed, at=1_000.0), TOOLS, CallState.DEFERRED, "")
    dropped = "ReportFailure ClearTimer RecordStep ClearTimer Finish"
    yield Row(DEFERRED, of_request(CancelRequested), OVER, CallState.CANCELLED, dropped)

    # The other call has been sent, so the request's time runs, and can be over.
    at_end = of_request(DeadlinePassed, at=REQUEST_SECONDS)
    both = "ReportFailure CancelTool ReportFailure ClearTimer RecordStep ClearTimer Finish"
    yield Row(replace(WAITING, beside="look"), at_end, OVER, CallState.TIMED_OUT, f"WithdrawApproval {both}")
    yield Row(replace(DEFERRED, beside="look"), at_end, OVER, CallState.TIMED_OUT, both)


def outside_calls() -> Iterable[Row]:
    """Those of the one who asks wait for the others, and then the request ends by them."""
    handed_out = "CallOutside RecordStep ClearTimer Finish"
    yield Row(IDLE, responded(call("a", "mine")), OVER, None, handed_out)
    yield Row(IDLE, responded(call("a", "mine"), call("b", "never")), OVER, None, f"ReportFailure {handed_out}")
    yield Row(IDLE, responded(call("a", "mine"), call("b", "look")), TOOLS, CallState.OUTSIDE, "RunTool SetTimer")
    yield Row(OUTSIDE, of_request(NoticeCame, "news"), TOOLS, CallState.OUTSIDE, "")
    yield Row(OUTSIDE, of_step(ToolsLost), TOOLS, CallState.OUTSIDE, "RunTool SetTimer")
    for kind, values in ((ToolCallCompleted, ("1",)), (ToolCallFailed, (FAILURE,)), (ToolCallCancelled, ())):
        last = Said(kind, lambda session, kind=kind, values=values: kind(a(session, "b"), 1.0, *values))
        yield Row(OUTSIDE, last, OVER, None, f"ClearTimer {handed_out}")
    stopped = "ReportFailure CancelTool ReportFailure ClearTimer RecordStep ClearTimer Finish"
    yield Row(OUTSIDE, of_request(CancelRequested), OVER, CallState.CANCELLED, stopped)
    yield Row(OUTSIDE, of_request(DeadlinePassed, at=REQUEST_SECONDS), OVER, CallState.TIMED_OUT, stopped)
    both = replace(IDLE, output=OutputSpec({"type": "object"}, max_tries=2))
    answer_beside = answered(FITS, call("c", "final_answer"), call("a", "mine"))
    given_up = "ReportFailure RecordStep ClearTimer Finish"
    yield Row(both, answer_beside, OVER, CallState.CANCELLED, given_up)


def ended_calls() -> Iterable[Row]:
    """What happens to the rest of the step leaves a call that has ended as it is."""
    for state, situation in ENDED.items():
        stopped = "CancelTool ReportFailure ClearTimer RecordStep ClearTimer Finish"
        yield Row(situation, of_request(NoticeCame, "news"), TOOLS, state, "")
        yield Row(situation, of_step(ToolsLost), TOOLS, state, "RunTool SetTimer")
        yield Row(situation, of_step(DeadlinePassed), TOOLS, state, "SetTimer")
        yield Row(situation, of_request(CancelRequested), OVER, state, stopped)
        yield Row(situation, of_request(DeadlinePassed, at=REQUEST_SECONDS), OVER, state, stopped)


ROWS = (
    *without_calls(),
    *words(),
    *beginnings(),
    *answers(),
    *held_calls(),
    *waiting_calls(),
    *outside_calls(),
    *ended_calls(),
)

#: The end of a call, by the failure that the model reads.
END_BY_CODE = {
    "": CallState.COMPLETED,
    "cancelled": CallState.CANCELLED,
    "timed_out": CallState.TIMED_OUT,
    "denied": CallState.DENIED,
}


def call_after(session: Session, tag: Tag, commands: Iterable[Command]) -> CallState | None:
    """Where the call is; after the end of its step, what the recorded result says."""
    if tag in session.calls:
        return session.calls[tag]
    for record in (command for command in commands if isinstance(command, RecordStep)):
        for message in record.messages:
            if isinstance(message, ToolMessage) and message.call_id == tag.call_id:
                code = orjson.loads(message.content)["code"] if message.is_error else ""
                return END_BY_CODE.get(code, CallState.FAILED)
    return None


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_an_event_leads_to(row: Row) -> None:
    session = session_in(row.situation)
    event, tag = row.event.to(session), a(session)
    commands = session.apply(event)
    assert session.state is row.request
    assert call_after(session, tag, commands) is row.call
    assert [type(command).__name__ for command in commands] == row.commands.split()


# -- what must be refused ----------------------------------------------------------------------------------------------

#: One event of each kind, with the tags that the session would take it with.
ANY = {
    said.kind: said
    for said in (
        started(IDLE),
        of_step(ModelStreamed, SO_FAR),
        responded(call("a", "look")),
        of_step(ModelNoted, NoteKind.RETRY, "busy", 1),
        of_step(ModelFailed, OVERLOADED),
        of_step(ModelLost),
        of_call(ApprovalGranted),
        of_call(ApprovalDenied),
        of_call(ToolCallStarted),
        of_call(ToolCallDeferred, OPEN_SECONDS),
        of_call(ToolCallCompleted, "1"),
        of_call(ToolCallFailed, FAILURE),
        of_call(ToolCallTimedOut),
        of_call(ToolCallCancelled),
        of_step(ToolsLost),
        of_request(NoticeCame, "news"),
        of_request(CancelRequested),
        of_request(DeadlinePassed, at=REQUEST_SECONDS),
    )
}
SITUATIONS = (Situation(NEW), IDLE, WAITING, SENT, RUNNING, DEFERRED, *ENDED.values(), Situation(OVER))


LEGAL = {(row.situation.request, row.situation.call, row.event.kind) for row in ROWS}
REFUSED = [
    pytest.param(situation, kind, id=f"{situation.call or situation.request}-{kind.__name__}")
    for situation in SITUATIONS
    for kind in get_args(Event)
    if (situation.request, situation.call, kind) not in LEGAL
]


@pytest.mark.parametrize(("situation", "kind"), REFUSED)
def test_what_is_refused_and_changes_nothing(situation: Situation, kind: type[Any]) -> None:
    session = session_in(situation)
    before = fingerprint(session)
    with pytest.raises(ProtocolError) as caught:
        session.apply(ANY[kind].to(session))
    assert (caught.value.state, caught.value.event) == (situation.request, kind.__name__)
    assert fingerprint(session) == before


def test_a_step_without_calls_has_no_deadline() -> None:
    """A step has a timer while its calls are open: for the first of their deadlines and ends of waits."""
    session = session_in(IDLE)
    before = fingerprint(session)
    with pytest.raises(ProtocolError, match="this step has no timer"):
        session.apply(DeadlinePassed(session.step, REQUEST_SECONDS - 1))
    assert fingerprint(session) == before


# -- the tables of states.py are these rows, entry by entry ------------------------------------------------------------


def test_the_table_of_requests_is_what_a_request_does_and_no_more() -> None:
    entries = {
        (state, kind, outcome)
        for state, row in REQUEST_TRANSITIONS.items()
        for kind, outcomes in row.items()
        for _, outcome in outcomes
    }
    assert entries == {(row.situation.request, row.event.kind, row.request) for row in ROWS}


def test_the_table_of_calls_is_what_a_call_does_and_no_more() -> None:
    """A call that an event leaves where it is takes no row; being given out again after a loss is one."""
    entries = {
        (state, kind, outcome)
        for state, row in CALL_TRANSITIONS.items()
        for kind, outcomes in row.items()
        for _, outcome in outcomes
    }
    seen = set()
    for row in ROWS:
        before = row.situation.call or CallState.REQUESTED
        moves = row.call is not before or row.event.kind is ToolsLost
        if row.call is not None and before not in TERMINAL_CALL_STATES and moves:
            seen.add((before, row.event.kind, row.call))
    assert entries == seen


def test_nothing_else_ends_a_call() -> None:
    assert {state for state, row in CALL_TRANSITIONS.items() if not row} == TERMINAL_CALL_STATES
    # By the end of the last other call of its step.
    assert {*ENDED, CallState.HANDED_OUT} == TERMINAL_CALL_STATES

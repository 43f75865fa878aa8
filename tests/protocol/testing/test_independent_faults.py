"""No planted fault may be a no-op: each differs from the real session in at least one of these handwritten requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.protocol.commands import Command, NoteKind
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Replay,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
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
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import (
    Error,
    FinishReason,
    ModelResponse,
    Restarted,
    Sampling,
    TextDelta,
    ToolChoice,
    ToolChoiceMode,
    Usage,
)
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.testing.independent_faults import INDEPENDENT_FAULTS
from callboard.protocol.testing.mutation import MutatedSession, Mutation, mutated
from callboard.protocol.tools import Decision, Effect, FailureCode, Risk, ToolContract, ToolDefinition, ToolFailure

OWN = Tag(RequestId("request"), MessageId("parent"))
FOREIGN = Tag(RequestId("another request"), MessageId("parent"))


def step(number: int) -> Tag:
    return OWN.at_step(number)


def call_tag(number: int, call_id: str) -> Tag:
    return step(number)._replace(call_id=CallId(call_id))


def offer(name: str, decision: Decision = Decision.ALLOW, *, timeout: float = 30.0, repeat: bool = False) -> ToolOffer:
    contract = ToolContract(risk=Risk.WRITE, timeout_seconds=timeout, effect=Effect.REPEAT if repeat else Effect.ONCE)
    return ToolOffer(ToolDefinition(ToolName(name), name), contract, decision)


TOOLS = (
    offer("look", timeout=10.0, repeat=True),
    offer("pay"),
    offer("write", Decision.ASK),
    offer("erase", Decision.DENY),
)
HISTORY = (
    SystemMessage("An older instruction."),
    UserMessage.of("The first question"),
    AssistantMessage((ToolCall(CallId("old"), ToolName("look"), "{}"),)),
    ToolMessage(CallId("old"), ToolName("look"), json.dumps("x" * 2_000)),
    AssistantMessage((Text("The first answer"),)),
    UserMessage.of("The second question"),
    AssistantMessage((Text("The second answer"),)),
)


def start(**options: Any) -> RequestStarted:
    given = RequestOptions("test/model", system_prompt="Be brief.", timeout_seconds=200.0)
    question = UserMessage.of("The third question")
    return RequestStarted(OWN, 10.0, HISTORY, question, replace(given, **options), TOOLS)


def call(call_id: str, name: str = "look", arguments: str = "{}", *, complete: bool = True) -> ToolCall:
    signature = Replay("gemini", {"signature": call_id})
    return ToolCall(CallId(call_id), ToolName(name), arguments, complete, signature)


def turn(
    number: int,
    at: float,
    *parts: AssistantPart,
    reason: FinishReason = FinishReason.STOP,
    error: ErrorKind | None = None,
    cost: float | None = 0.25,
) -> ModelResponded:
    failure = Error(error, "it failed") if error is not None else None
    return ModelResponded(step(number), at, ModelResponse(parts, reason, usage=Usage(100, 20), error=failure), cost)


def streamed(number: int, at: float, text: str) -> ModelStreamed:
    return ModelStreamed(step(number), at, (TextDelta(text),))


def noted(number: int, at: float, requests: int) -> ModelNoted:
    return ModelNoted(step(number), at, NoteKind.RETRY, "busy", requests)


def done(number: int, at: float, call_id: str, content: str = '"done"') -> ToolCallCompleted:
    return ToolCallCompleted(call_tag(number, call_id), at, content)


def started(number: int, at: float, call_id: str) -> ToolCallStarted:
    return ToolCallStarted(call_tag(number, call_id), at)


def failed(number: int, at: float, kind: ErrorKind) -> ModelFailed:
    return ModelFailed(step(number), at, Error(kind, "it failed"))


ANSWER = Text("The answer")
CRASH = ToolFailure(ToolName("pay"), FailureCode.CRASHED, "It crashed.")

#: Handwritten requests. Some events are illegal on purpose: a refusal is behaviour too.
REQUESTS: dict[str, list[Event]] = {
    "two steps with calls, then the answer": [
        start(tool_choice=ToolChoice(ToolChoiceMode.REQUIRED), provider_options=(ExtraFields({"knob": 1}),)),
        ModelResponded(FOREIGN.at_step(1), 11.0, ModelResponse((Text("Of another request"),))),
        turn(
            1, 12.0, Thinking("Hm"), Text("Let me look."), call("a", "look", '{"n": 1}'), call("b", "look", '{"n": 2}')
        ),
        started(1, 13.0, "b"),
        done(1, 14.0, "b", '"two"'),
        done(1, 14.5, "b", '"two, later"'),
        done(1, 15.0, "a", '"one"'),
        turn(2, 16.0, call("a", "pay"), call("c", "unknown")),
        done(1, 16.5, "a", '"late"'),
        ToolCallFailed(call_tag(2, "a"), 17.0, CRASH),
        turn(3, 18.0, ANSWER),
        CancelRequested(OWN, 19.0),
    ],
    "failures of calls": [
        start(),
        turn(1, 12.0, call("a"), call("b", "pay"), call("c", "erase"), call("d", "pay", '{"n": 2}')),
        ToolCallFailed(call_tag(1, "b"), 13.0, CRASH),
        ToolCallTimedOut(call_tag(1, "d"), 14.0),
        DeadlinePassed(step(1), 15.0),
        DeadlinePassed(step(1), 24.0),
        turn(2, 25.0, ANSWER),
    ],
    "approvals": [
        start(),
        turn(1, 12.0, call("a", "write", '{"n": 1}'), call("b", "write", '{"n": 2}'), call("c", "write", '{"n": 3}')),
        done(1, 12.5, "a"),
        ApprovalDenied(call_tag(1, "a"), 13.0, "Ada", "Not this file."),
        ApprovalGranted(call_tag(1, "c"), 14.0, "Ada"),
        ToolsLost(step(1), 15.0),
        done(1, 16.0, "c"),
        CancelRequested(OWN, 17.0, "enough"),
    ],
    "losses": [
        start(),
        turn(1, 12.0, call("a"), call("b", "pay")),
        started(1, 12.5, "a"),
        started(1, 12.5, "b"),
        ToolsLost(step(1), 13.0),
        ToolsLost(step(1), 14.0),
        ToolsLost(step(1), 15.0),
        turn(2, 16.0, call("a", "pay")),
        ToolsLost(step(2), 17.0),
        ToolsLost(step(2), 18.0),
        ToolsLost(step(2), 19.0),
    ],
    "two deadlines in one step": [
        start(),
        turn(1, 12.0, call("a"), call("b", "pay")),
        DeadlinePassed(step(1), 24.0),
        DeadlinePassed(step(1), 44.0),
        turn(2, 45.0, ANSWER),
    ],
    "cancelled during two calls": [
        start(),
        turn(1, 12.0, call("a"), call("b", "pay")),
        CancelRequested(OWN, 13.0),
    ],
    "cancelled in the middle of a turn": [
        start(),
        streamed(1, 11.0, "First"),
        ModelStreamed(step(1), 11.5, (Restarted("cut"), TextDelta("Second"))),
        CancelRequested(OWN, 12.0),
    ],
    "cancelled before any text": [start(), CancelRequested(OWN, 12.0)],
    "the request's deadline": [
        start(),
        DeadlinePassed(OWN, 11.0),
        streamed(1, 12.0, "Half an"),
        DeadlinePassed(OWN, 210.0),
    ],
    "the request's deadline during a call": [
        start(),
        turn(1, 12.0, call("a", "write"), call("b")),
        DeadlinePassed(OWN, 210.0),
    ],
    "lost model calls": [
        start(),
        ModelLost(step(1), 11.0),
        turn(1, 11.5, Text("Late")),
        ModelLost(step(2), 12.0),
        turn(3, 13.0, call("a")),
        done(3, 14.0, "a"),
        failed(4, 15.0, ErrorKind.TRUNCATED),
        turn(5, 16.0, ANSWER),
    ],
    "a model call lost while it waited": [
        start(),
        replace(noted(1, 11.0, 1), until_at=20.0),
        ModelLost(step(1), 12.0),
        turn(2, 21.0, ANSWER),
    ],
    "model calls lost too often": [
        start(),
        ModelLost(step(1), 11.0),
        ModelLost(step(2), 12.0),
        ModelLost(step(3), 13.0),
    ],
    "model calls that took several requests": [
        start(max_attempts=4),
        noted(1, 11.0, 1),
        noted(1, 11.5, 2),
        ModelLost(step(1), 12.0),
        failed(2, 13.0, ErrorKind.TRUNCATED),
    ],
    "a model call that waited when it was lost": [
        start(),
        replace(noted(1, 11.0, 1), until_at=90.0),
        ModelLost(step(1), 12.0),
        turn(2, 95.0, ANSWER),
    ],
    "a model call that took all requests": [
        start(max_attempts=2),
        ModelFailed(step(1), 12.0, Error(ErrorKind.TRUNCATED, "cut"), requests=2),
    ],
    "a cut turn": [
        start(max_attempts=2),
        turn(1, 12.0, Text("I pay."), call("a", "pay", '{"n":', complete=False), reason=FinishReason.LENGTH),
        turn(2, 13.0, call("a"), call("b", "pay", '{"n":', complete=False), reason=FinishReason.LENGTH),
        done(2, 14.0, "a"),
        turn(3, 15.0, Text("Cut"), reason=FinishReason.LENGTH),
    ],
    "calls that are not whole": [
        start(),
        turn(1, 12.0, call("a", "pay", "[1]"), call("b", "pay", '{"n": 1}', complete=False), call("a"), call("c")),
        done(1, 13.0, "c"),
    ],
    "a pause": [start(), turn(1, 12.0, Text("I look it up."), reason=FinishReason.PAUSE), turn(2, 13.0, ANSWER)],
    "a filtered turn": [start(), turn(1, 12.0, ANSWER, call("a"), reason=FinishReason.CONTENT_FILTER)],
    "no tools": [
        start(),
        failed(1, 12.0, ErrorKind.TOOLS_UNSUPPORTED),
        turn(2, 13.0, ANSWER),
    ],
    "no tools after a step with calls": [
        start(),
        turn(1, 12.0, call("a")),
        done(1, 13.0, "a"),
        failed(2, 14.0, ErrorKind.TOOLS_UNSUPPORTED),
        turn(3, 15.0, ANSWER),
    ],
    "a turn that ended in an error": [start(), turn(1, 12.0, ANSWER, error=ErrorKind.TRUNCATED), turn(2, 13.0, ANSWER)],
    "a final error": [start(), failed(1, 12.0, ErrorKind.AUTHENTICATION)],
    "a loop": [
        start(repeated_call_limit=2),
        turn(1, 12.0, call("a")),
        done(1, 12.5, "a"),
        turn(2, 13.0, call("a")),
        done(2, 13.5, "a"),
        turn(3, 14.0, call("a")),
    ],
    "the step limit": [start(max_steps=1), turn(1, 12.0, call("a")), done(1, 13.0, "a")],
    "the token budget": [
        start(token_budget=1_200, sampling=Sampling(max_output_tokens=5_000)),
        turn(1, 12.0, call("a")),
        done(1, 13.0, "a"),
    ],
    "the cost budget": [
        start(cost_budget=0.2, input_price=0.0, output_price=1e-6),
        turn(1, 12.0, call("a")),
        done(1, 13.0, "a"),
    ],
    "an unknown cost": [start(), turn(1, 12.0, ANSWER, cost=None)],
    "a prompt that is too long": [
        start(),
        ModelFailed(step(1), 12.0, Error(ErrorKind.CONTEXT_LENGTH, "too long", context_tokens=500)),
        turn(2, 13.0, ANSWER),
    ],
    "a model that is known to take no tools": [start(takes_tools=False, tool_prompt="Look."), turn(1, 12.0, ANSWER)],
    "a small context": [start(context_tokens=200), turn(1, 12.0, ANSWER)],
}


@dataclass(frozen=True)
class Seen:
    """What a session did: after each event, and after a restart at that point."""

    answer: tuple[Command, ...] | str
    restart: tuple[object, ...] | str


def play(session_type: type[Session] | type[MutatedSession], sent: Iterable[Event]) -> list[Seen]:
    """Send all events to one session; after each, rebuild a second one from the journal and resume it."""
    session = session_type()
    journal: list[Event] = []
    seen: list[Seen] = []
    for event in sent:
        lines = session.to_journal(event)
        try:
            answer: tuple[Command, ...] | str = session.apply(event)
            journal += lines
        except ProtocolError as refusal:
            answer = str(refusal)
        seen.append(Seen(answer, restarted(session_type, journal, event.at + 0.25)))
    return seen


def restarted(
    session_type: type[Session] | type[MutatedSession], journal: list[Event], at: float
) -> tuple[object, ...] | str:
    try:
        rebuilt = session_type.replay(journal)
        resumed = rebuilt.resume_commands()
        loss = rebuilt.loss_event(at)
        return (resumed, loss, rebuilt.apply(loss) if loss is not None else ())
    except ProtocolError as refusal:
        return str(refusal)


REAL: dict[str, list[Seen]] = {name: play(Session, sent) for name, sent in REQUESTS.items()}


def differences(fault: type[Mutation]) -> Iterator[str]:
    """The requests in which the fault can be seen."""
    session_type = mutated(fault)
    return (name for name, sent in REQUESTS.items() if play(session_type, sent) != REAL[name])


def test_a_mutation_that_changes_nothing_shows_no_difference() -> None:
    assert not any(differences(Mutation))


@pytest.mark.parametrize("fault", INDEPENDENT_FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_changes_what_a_session_does(fault: type[Mutation]) -> None:
    assert any(differences(fault))


def test_each_fault_says_what_goes_wrong_and_what_the_user_suffers() -> None:
    said = {fault.__name__: fault.__doc__ or "" for fault in INDEPENDENT_FAULTS}
    wrong = [f"{name}: {text!r}" for name, text in said.items() if ": " not in text or "\n" in text]
    assert not wrong, "\n".join(wrong)


def test_no_fault_is_listed_twice() -> None:
    assert len(INDEPENDENT_FAULTS) >= 45
    assert len(set(INDEPENDENT_FAULTS)) == len(INDEPENDENT_FAULTS)

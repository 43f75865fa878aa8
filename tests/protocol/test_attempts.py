"""How many requests a step may take, and what is told of the way to an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import CallModel, Command, Finish, Note, NoteKind, Outcome
from callboard.protocol.content import Text, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind, ProtocolError
from callboard.protocol.events import (
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    RequestStarted,
    ToolCallCompleted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.scenario import STANDARD_TOOLS

REQUEST = Tag(RequestId("r"), MessageId("m"))
TRUNCATED = Error(ErrorKind.TRUNCATED, "cut off")
NO_TOOLS = Error(ErrorKind.TOOLS_UNSUPPORTED, "no tools here")
LOOK = ModelResponse((ToolCall(CallId("c"), ToolName("look"), "{}"),), FinishReason.TOOL_CALLS)


def begun(max_attempts: int = 4) -> tuple[Session, CallModel]:
    session = Session()
    options = RequestOptions("sim/model", max_attempts=max_attempts)
    given_commands = session.apply(RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), options, STANDARD_TOOLS))
    return session, only(given_commands, CallModel)


def only(commands: tuple[Command, ...], kind: type[Any]) -> Any:
    [command] = [command for command in commands if isinstance(command, kind)]
    return command


def test_what_a_call_took_is_missing_from_the_next_one_of_its_step() -> None:
    session, first = begun(max_attempts=4)
    assert first.attempts == 4
    second = only(session.apply(ModelFailed(session.step, 1.0, TRUNCATED, requests=3)), CallModel)
    assert second.attempts == 1
    finish = only(session.apply(ModelFailed(session.step, 2.0, TRUNCATED)), Finish)
    assert (finish.outcome, finish.reason) == (Outcome.FAILED, "truncated: after 4 tries: cut off")


def test_a_step_that_was_taken_leaves_the_next_one_all_its_requests() -> None:
    session, _ = begun(max_attempts=3)
    session.apply(ModelFailed(session.step, 1.0, TRUNCATED, requests=2))
    session.apply(ModelResponded(session.step, 2.0, LOOK))
    commands = session.apply(ToolCallCompleted(session.step._replace(call_id=CallId("c")), 3.0, "1"))
    assert only(commands, CallModel).attempts == 3


def test_the_try_without_tools_counts_like_any_other() -> None:
    session, _ = begun(max_attempts=2)
    again = only(session.apply(ModelFailed(session.step, 1.0, NO_TOOLS)), CallModel)
    assert (again.attempts, again.request.tools) == (1, ())
    session, _ = begun(max_attempts=1)
    assert only(session.apply(ModelFailed(session.step, 1.0, NO_TOOLS)), Finish).outcome is Outcome.FAILED


def test_a_lost_call_took_what_was_told_of_it_and_one_more() -> None:
    """Its holder says that a request has failed before it sends the next one; nothing says whether that was sent."""
    session, _ = begun(max_attempts=4)
    session.apply(ModelNoted(session.step, 0.5, NoteKind.RETRY, "busy", 1))
    session.apply(ModelNoted(session.step, 0.7, NoteKind.RETRY, "busy", 2))
    assert only(session.apply(ModelLost(session.step, 1.0)), CallModel).attempts == 1
    assert only(session.apply(ModelLost(session.step, 2.0)), Finish).outcome is Outcome.FAILED


@pytest.mark.parametrize("requests", [0, -5])
def test_a_holder_that_counts_wrongly_is_not_asked_without_end(requests: int) -> None:
    session, _ = begun(max_attempts=3)
    kinds = []
    for _ in range(3):
        commands = session.apply(ModelFailed(session.step, 1.0, TRUNCATED, requests))
        kinds.append([type(command).__name__ for command in commands][-1])
    assert kinds == ["CallModel", "CallModel", "Finish"]


ENDS: list[Callable[[Session, int], Event]] = [
    lambda session, sent: ModelFailed(session.step, 1.0, TRUNCATED, sent),
    lambda session, sent: ModelFailed(session.step, 1.0, NO_TOOLS, sent),
    lambda session, sent: ModelResponded(session.step, 1.0, ModelResponse(), requests=sent),
    lambda session, sent: ModelResponded(session.step, 1.0, ModelResponse(error=TRUNCATED), requests=sent),
    lambda session, _: ModelLost(session.step, 1.0),
]


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from(ENDS), st.integers(0, 9), st.integers(0, 9)), min_size=10))
def test_no_mixture_of_failures_takes_more_requests_than_a_step_may(
    limit: int, ends: list[tuple[Callable[[Session, int], Event], int, int]]
) -> None:
    """Whatever the holder of the calls does, as long as it keeps to what each CallModel allows."""
    session, call = begun(limit)
    sent = 0
    for end, noted, used in ends:
        noted, used = min(noted, call.attempts), min(used, call.attempts)
        for number in range(1, noted + 1):
            session.apply(ModelNoted(session.step, 0.5, NoteKind.RETRY, "busy", number))
        ending = end(session, used)
        # One that is lost had said what has failed, and may have had one more request under way. That a model takes no
        # tools may be known without a request.
        is_known = isinstance(ending, ModelFailed) and ending.error is NO_TOOLS
        least = 0 if is_known else 1
        sent += min(noted + 1, call.attempts) if isinstance(ending, ModelLost) else max(least, noted, used)
        commands = session.apply(ending)
        if any(isinstance(command, Finish) for command in commands):
            break
        call = only(commands, CallModel)
        assert call.attempts >= 1
    assert sent <= limit
    assert any(isinstance(command, Finish) for command in commands)


def test_fewer_requests_than_one_are_no_request() -> None:
    with pytest.raises(ProtocolError, match="max_attempts must be 1 or more, got 0"):
        begun(max_attempts=0)


def test_what_is_counted_is_in_the_journal() -> None:
    noted = ModelNoted(REQUEST.at_step(1), 1.0, NoteKind.FALLBACK, "another model is asked now", 2)
    assert decode_event(encode_event(noted)) == noted
    session, _ = begun()
    journal: list[Event] = []
    for event in (ModelNoted(session.step, 1.0, NoteKind.RETRY, "busy", 2), ModelLost(session.step, 2.0)):
        journal += session.to_journal(event)
        session.apply(event)
    options = RequestOptions("sim/model", max_attempts=4)
    start = RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), options, STANDARD_TOOLS)
    replayed = Session.replay([start, *journal])
    assert only(replayed.apply(ModelLost(replayed.step, 3.0)), Finish).outcome is Outcome.FAILED


# -- what is told


def test_what_an_api_cannot_express_is_told_once_a_request() -> None:
    session, _ = begun()
    left_out = ("seed: the API has none; left out", "stop: left out")
    first = session.apply(ModelResponded(session.step, 1.0, replace(LOOK, notes=left_out)))
    assert [(note.text, note.kind) for note in first if isinstance(note, Note)] == [
        (text, NoteKind.LEFT_OUT) for text in left_out
    ]
    session.apply(ToolCallCompleted(session.step._replace(call_id=CallId("c")), 2.0, "1"))
    again = Error(ErrorKind.SERVER, "down", notes=(*left_out, "and one more"))
    second = session.apply(ModelFailed(session.step, 3.0, again))
    assert [note.text for note in second if isinstance(note, Note)] == ["and one more"]


@pytest.mark.parametrize(
    ("reason", "raw", "told"),
    [
        (FinishReason.LENGTH, "max_tokens", "The answer was cut off at the limit of output tokens"),
        (FinishReason.REFUSAL, "refusal", "The model refused"),
        (FinishReason.OTHER, "recitation", "not known here (recitation)"),
    ],
)
def test_an_answer_that_is_not_whole_says_so(reason: FinishReason, raw: str, told: str) -> None:
    session, _ = begun()
    commands = session.apply(ModelResponded(session.step, 1.0, ModelResponse((Text("half an"),), reason, raw)))
    finish, note = only(commands, Finish), only(commands, Note)
    assert (finish.outcome, finish.finish_reason, finish.text) == (Outcome.ANSWERED, reason, "half an")
    assert told in note.text
    assert note.kind is NoteKind.CUT
    assert finish.reason == note.text


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.TOOL_CALLS])
def test_a_whole_answer_has_nothing_to_say_of_its_end(reason: FinishReason) -> None:
    session, _ = begun()
    commands = session.apply(ModelResponded(session.step, 1.0, ModelResponse((Text("whole"),), reason)))
    assert (only(commands, Finish).finish_reason, only(commands, Finish).reason) == (reason, "")
    assert not [command for command in commands if isinstance(command, Note)]


def test_a_request_whose_last_call_had_no_turn_has_no_finish_reason() -> None:
    session, _ = begun()
    session.apply(ModelResponded(session.step, 1.0, LOOK))
    session.apply(ToolCallCompleted(session.step._replace(call_id=CallId("c")), 2.0, "1"))
    finish = only(session.apply(ModelFailed(session.step, 3.0, Error(ErrorKind.SERVER, "down"))), Finish)
    assert finish.finish_reason is FinishReason.OTHER

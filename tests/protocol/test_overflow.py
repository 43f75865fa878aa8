"""A prompt that a model refuses as too long: what a session cuts of it, once, and what it keeps to afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.budgets import MIN_OUTPUT_TOKENS, answer_room
from callboard.protocol.commands import CallModel, Command, Finish, Note, NoteKind, Outcome
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event, ModelFailed, ModelResponded, RequestStarted, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import OVERFLOW_SHARE
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, Sampling
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.testing.strategies import histories

REQUEST = Tag(RequestId("r"), MessageId("m"))
OPTIONS = RequestOptions("sim/model", system_prompt="Be brief.")
QUESTION = UserMessage.of("the question")
TALK: tuple[Message, ...] = tuple(
    message
    for number in range(20)
    for message in (UserMessage.of(f"question {number} " + "word " * 20), AssistantMessage((Text(f"answer {number}"),)))
)
LOOK = ModelResponse((ToolCall(CallId("c"), ToolName("look"), "{}"),), FinishReason.TOOL_CALLS)


def too_long(window: int | None = None) -> Error:
    return Error(ErrorKind.CONTEXT_LENGTH, "it is too long.", context_tokens=window)


class Asked:
    """One session, and what it gave last."""

    def __init__(self, history: tuple[Message, ...] = TALK, **options: Any) -> None:
        self.session = Session()
        start = RequestStarted(REQUEST, 0.0, history, QUESTION, replace(OPTIONS, **options), STANDARD_TOOLS)
        self.given: tuple[Command, ...] = self.session.apply(start)

    def hears(self, event: Event) -> Asked:
        self.given = self.session.apply(event)
        return self

    def fails(self, error: Error, model: str = "") -> Asked:
        return self.hears(ModelFailed(self.session.step, 1.0, error, model=model))

    @property
    def request(self) -> ModelRequest:
        [call] = [command for command in self.given if isinstance(command, CallModel)]
        return call.request

    @property
    def finish(self) -> Finish:
        [finish] = [command for command in self.given if isinstance(command, Finish)]
        return finish

    @property
    def notes(self) -> list[tuple[NoteKind, str]]:
        return [(command.kind, command.text) for command in self.given if isinstance(command, Note)]


@pytest.mark.parametrize("context_tokens", [None, 50_000])
def test_a_clear_share_is_cut_where_no_window_is_named(context_tokens: int | None) -> None:
    asked = Asked(context_tokens=context_tokens)
    sent = asked.request
    again = asked.fails(too_long()).request
    assert input_tokens(again) <= OVERFLOW_SHARE * input_tokens(sent)
    assert again.messages[0] == SystemMessage("Be brief.")
    assert again.messages[-1] == QUESTION
    assert again.messages[1:-1] == TALK[-len(again.messages) + 2 :]
    assert again.sampling.max_output_tokens is None, "what was not said of the window does not limit the answer"


def test_it_is_cut_to_the_window_that_was_named() -> None:
    asked = Asked()
    again = asked.fails(too_long(400)).request
    room = answer_room(replace(OPTIONS, context_tokens=400))
    assert input_tokens(again) <= 400 - room
    (kind, told), (other, trimmed) = asked.notes
    assert (kind, other) == (NoteKind.ASKED_AGAIN, NoteKind.TRIMMED)
    assert "too long for sim/model, which takes 400 tokens" in told
    assert "to fit into the 400 of the model's context" in trimmed


def test_the_model_that_refused_is_named() -> None:
    asked = Asked().fails(too_long(), model="other/smaller")
    assert any("the prompt was too long for other/smaller" in text for _, text in asked.notes)


def test_a_larger_window_than_ours_changes_nothing_of_ours() -> None:
    asked = Asked(context_tokens=1_000).fails(too_long(5_000))
    assert input_tokens(asked.request) <= 750


def test_it_is_cut_once_a_step() -> None:
    asked = Asked().fails(too_long()).fails(too_long())
    assert asked.finish.outcome is Outcome.FAILED
    assert asked.finish.reason.startswith("context_length: after 2 tries: it is too long; ask for less at once")


def test_a_later_step_may_be_cut_too_and_the_window_still_holds() -> None:
    asked = Asked().fails(too_long(800))
    asked.hears(ModelResponded(asked.session.step, 2.0, LOOK))
    call = asked.session.step._replace(call_id=CallId("c"))
    asked.hears(ToolCallCompleted(call, 3.0, "seen " * 400))
    assert input_tokens(asked.request) <= 800 - MIN_OUTPUT_TOKENS, "it fits the window that was named"
    asked.fails(too_long(600))
    assert input_tokens(asked.request) <= 600 - MIN_OUTPUT_TOKENS


@pytest.mark.parametrize("window", [None, 10, 60])
def test_where_nothing_can_be_cut_the_request_fails_at_once(window: int | None) -> None:
    asked = Asked(history=()).fails(too_long(window))
    assert asked.finish.reason.startswith("context_length: it is too long; ask for less at once")


def test_where_the_rest_would_not_fit_the_named_window_it_is_not_asked() -> None:
    assert Asked().fails(too_long(20)).finish.outcome is Outcome.FAILED


def test_without_requests_left_it_is_not_asked() -> None:
    assert Asked(max_attempts=1).fails(too_long()).finish.outcome is Outcome.FAILED


def test_an_error_that_came_with_a_charged_turn_is_one_too() -> None:
    asked = Asked()
    sent = asked.request
    asked.hears(ModelResponded(asked.session.step, 1.0, ModelResponse(error=too_long())))
    assert input_tokens(asked.request) < input_tokens(sent)


def test_results_are_shortened_before_exchanges_are_dropped() -> None:
    call = ToolCall(CallId("c"), ToolName("look"), "{}")
    history = (
        UserMessage.of("look"),
        AssistantMessage((call,)),
        ToolMessage(CallId("c"), ToolName("look"), "y " * 4_000),
        AssistantMessage((Text("seen"),)),
    )
    again = Asked(history).fails(too_long()).request
    assert [type(message) for message in again.messages[1:]] == [*map(type, history), UserMessage]
    assert isinstance(again.messages[3], ToolMessage)
    assert len(again.messages[3].content) < 1_000


@given(
    histories(6), st.none() | st.integers(1, 3_000), st.none() | st.integers(50, 3_000), st.none() | st.integers(1, 90)
)
def test_what_is_asked_again_is_less_and_legal_and_keeps_its_ends(
    history: tuple[Message, ...], named: int | None, context_tokens: int | None, most: int | None
) -> None:
    asked = Asked(history, context_tokens=context_tokens, sampling=Sampling(max_output_tokens=most))
    if asked.session.state == "finished":
        return  # it does not fit the window as it is
    sent = asked.request
    asked.fails(too_long(named))
    if any(isinstance(command, Finish) for command in asked.given):
        assert asked.finish.outcome is Outcome.FAILED
        return
    again = asked.request
    assert input_tokens(again) < input_tokens(sent)
    assert not history_faults(again.messages)
    assert again.messages[0] == SystemMessage("Be brief.")
    assert again.messages[-1] == QUESTION
    if named is not None:
        assert input_tokens(again) + MIN_OUTPUT_TOKENS <= named


def test_a_replay_gives_the_same() -> None:
    asked = Asked()
    start = RequestStarted(REQUEST, 0.0, TALK, QUESTION, OPTIONS, STANDARD_TOOLS)
    failed = ModelFailed(asked.session.step, 1.0, too_long(400))
    asked.hears(failed)
    twice = Session.replay([start, failed])
    answered = ModelResponded(asked.session.step, 2.0, LOOK)
    assert twice.apply(answered) == asked.session.apply(answered)

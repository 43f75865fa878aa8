"""What a request says of its model calls and tool calls when it has ended."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import Text, ToolCall, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    CancelRequested,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import Error, FinishReason, ModelResponse, TextDelta, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.reports import CallReport, StepReport
from callboard.protocol.tools import FailureCode, ToolDefinition, ToolFailure

REQUEST = Tag(RequestId("r"), MessageId("m"))
LOOK = ToolName("look")
OFFER = ToolOffer(ToolDefinition(LOOK, "Looks."))


def call(call_id: str) -> ToolCall:
    return ToolCall(CallId(call_id), LOOK, f'{{"at": "{call_id}"}}')


def finish_of(*happened: Event) -> Finish:
    session = Session()
    started = RequestStarted(REQUEST, 10.0, (), UserMessage.of("?"), RequestOptions("sim/m"), (OFFER,))
    session.apply(started)
    for event in happened:
        last = session.apply(event)
    [finish] = [command for command in last if isinstance(command, Finish)]
    return finish


def test_each_model_call_and_each_call_of_its_turn_has_its_time_and_usage() -> None:
    first, second = REQUEST.at_step(1), REQUEST.at_step(2)
    asked = ModelResponse(
        (call("a"), call("b")), FinishReason.TOOL_CALLS, usage=Usage(10, 5), model="m-1", response_id="x"
    )
    one, two = (first._replace(call_id=CallId(each)) for each in "ab")
    failure = ToolFailure(LOOK, FailureCode.TOOL_ERROR, "it broke")
    finish = finish_of(
        ModelResponded(first, 11.0, asked, 0.25, 2, "sim/other", 10.5),
        ToolCallStarted(two, 11.5),
        ToolCallFailed(two, 13.0, failure),
        ToolCallStarted(one, 12.0),
        ToolCallCompleted(one, 15.0, "1"),
        ModelResponded(second, 16.0, ModelResponse((Text("done"),), usage=Usage(20, 1)), None, 1, "sim/m"),
    )
    calls = (
        CallReport(CallId("a"), LOOK, None, 4.0, 3.0),
        CallReport(CallId("b"), LOOK, FailureCode.TOOL_ERROR, 2.0, 1.5),
    )
    assert finish.steps == (
        StepReport(
            1, 1.0, True, "sim/other", Usage(10, 5), 0.25, FinishReason.TOOL_CALLS, None, 2, calls, 0.5, "m-1", "x"
        ),
        StepReport(2, 1.0, True, "sim/m", Usage(20, 1), None, FinishReason.STOP, None, 1),
    )
    assert finish.usage == Usage(30, 6)


def test_model_calls_that_gave_no_turn_are_among_them() -> None:
    first, second, third = (REQUEST.at_step(number) for number in (1, 2, 3))
    error = Error(ErrorKind.TRUNCATED, "cut", retryable=True)
    finish = finish_of(
        ModelFailed(first, 11.0, error, 1, "sim/m"),
        ModelLost(second, 12.0),
        CancelRequested(REQUEST, 20.0, "enough"),
    )
    failed, lost, cancelled = finish.steps
    assert failed == StepReport(1, 1.0, model="sim/m", error=ErrorKind.TRUNCATED, requests=1)
    assert (lost.step, lost.is_whole, lost.error, lost.usage) == (2, False, ErrorKind.INTERNAL, None)
    assert (cancelled.step, cancelled.is_whole, cancelled.error) == (3, False, None)
    assert cancelled.seconds < 20.0 - 12.0, "the pause before a model call that is asked again is not its time"
    assert third.step == 3


@pytest.mark.parametrize(
    ("usage", "cost", "step", "end"),
    [
        (Usage(10, 2), 0.25, (Usage(10, 2), 0.25), (Usage(30, 3), 0.75)),
        (Usage(10, 2), None, (Usage(10, 2), None), (Usage(30, 3), None)),
        (None, None, (None, None), (None, None)),
        (Usage(), 0.0, (None, None), (Usage(20, 1), 0.5)),
    ],
    ids=["known", "no price", "unknown", "nothing"],
)
def test_what_a_failed_model_call_has_cost_is_counted(
    usage: Usage | None, cost: float | None, step: tuple[object, object], end: tuple[object, object]
) -> None:
    error = Error(ErrorKind.TRUNCATED, "cut", retryable=True)
    done = ModelResponse((Text("done"),), usage=Usage(20, 1))
    finish = finish_of(
        ModelFailed(REQUEST.at_step(1), 11.0, error, 2, "sim/m", usage, cost),
        ModelResponded(REQUEST.at_step(2), 12.0, done, 0.5),
    )
    assert (finish.steps[0].usage, finish.steps[0].cost) == step
    assert (finish.usage, finish.cost) == end


@pytest.mark.parametrize("usage", [Usage(900, 100), None], ids=["known", "estimated"])
def test_a_failed_model_call_is_charged_to_the_budget(usage: Usage | None) -> None:
    session = Session(count_tokens=lambda _: 400)
    session.apply(RequestStarted(REQUEST, 10.0, (), UserMessage.of("?"), RequestOptions("sim/m", token_budget=1_000)))
    error = Error(ErrorKind.TRUNCATED, "cut", retryable=True)
    session.apply(ModelStreamed(REQUEST.at_step(1), 10.5, (TextDelta("half an"),)))
    *_, finish = session.apply(ModelFailed(REQUEST.at_step(1), 11.0, error, 3, "sim/m", usage, None))
    assert isinstance(finish, Finish)
    assert finish.outcome is Outcome.TOKEN_LIMIT


def test_a_call_that_the_request_did_not_wait_for_ends_with_it() -> None:
    first = REQUEST.at_step(1)
    asked = ModelResponse((call("a"),), FinishReason.TOOL_CALLS, usage=Usage(1, 1))
    started = ToolCallStarted(first._replace(call_id=CallId("a")), 12.0)
    finish = finish_of(ModelResponded(first, 11.0, asked), started, CancelRequested(REQUEST, 14.0))
    assert finish.steps[0].calls == (CallReport(CallId("a"), LOOK, FailureCode.CANCELLED, 3.0, 2.0),)


def test_what_cannot_be_true_is_not_reported() -> None:
    response = ModelResponse((Text("done"),), usage=Usage(-1, 1))
    [step] = finish_of(ModelResponded(REQUEST.at_step(1), 11.0, response, 0.5)).steps
    assert (step.usage, step.cost) == (None, 0.5)
    [step] = finish_of(ModelResponded(REQUEST.at_step(1), 11.0, replace(response, usage=Usage(1, 1)), -0.5)).steps
    assert (step.usage, step.cost) == (Usage(1, 1), None)

"""What is not said is nothing: defaults that other code relies on, and what a request without tools still shows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from callboard.protocol.commands import CallModel
from callboard.protocol.content import AssistantMessage, Image, Text, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ToolCallCancelled, ToolCallCompleted, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Error, Sampling
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing import STANDARD_TOOLS, ModelDoes, PlannedTurn, Scenario, drive, violations
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.story import Story
from callboard.protocol.tools import FailureCode, ToolFailure

TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
FAILURE = ToolFailure(ToolName("look"), FailureCode.TOOL_ERROR, "no")


def test_a_picture_by_its_address_holds_no_data() -> None:
    assert Image(url="https://example.com/a.png") == Image("", "", "https://example.com/a.png")


@pytest.mark.parametrize(
    "event",
    [
        ToolCallCompleted(TAG, 0.0, "1"),
        ToolCallFailed(TAG, 0.0, FAILURE),
        ToolCallTimedOut(TAG, 0.0),
        ToolCallCancelled(TAG, 0.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_tool_that_printed_nothing_has_no_output(event: ToolCallCompleted) -> None:
    assert event.output == ""


def test_an_error_that_no_server_answered_has_no_status_and_no_code() -> None:
    error = Error(ErrorKind.CONNECTION, "refused")
    assert (error.status, error.code, error.raw, error.retry_after, error.retryable) == (0, "", "", None, False)


def test_the_room_of_tools_that_are_given_up_is_free_again() -> None:
    history = (UserMessage.of("before"), AssistantMessage((Text("yes"),)))
    scenario = Scenario((PlannedTurn(does=ModelDoes.REFUSE_TOOLS),), history, tools=STANDARD_TOOLS)
    (first, _) = Story.of(drive(scenario)).given(CallModel)
    room = RequestOptions("sim/model", context_tokens=10_000, sampling=Sampling(max_output_tokens=50))
    exactly = replace(room, context_tokens=input_tokens(first.request) + 50)
    trace = drive(replace(scenario, options=exactly))
    with_tools, without = Story.of(trace).given(CallModel)
    assert with_tools.request.tools
    assert not without.request.tools
    assert without.request.messages == with_tools.request.messages, "nothing is cut when there is more room"
    assert not violations(trace)

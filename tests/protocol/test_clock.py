"""The time of a request stands still while it only waits for someone outside; each wait has a limit of its own (I5)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.protocol.clock import RequestClock
from callboard.protocol.commands import CallModel, ClearTimer, Command, Finish, Outcome, RecordStep, RunTool, SetTimer
from callboard.protocol.content import ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ProtocolError, UsageError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    DeadlinePassed,
    ModelResponded,
    RequestStarted,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallStarted,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_WAIT_SECONDS
from callboard.protocol.machine import Session
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions
from callboard.protocol.start_check import check_start
from callboard.protocol.states import CallState
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.tools import Deferred

REQUEST = Tag(RequestId("r"), MessageId("m"))
OPTIONS = RequestOptions("sim/model", timeout_seconds=100.0, approval_timeout_seconds=3_600.0)


class Talk:
    """A session whose model has asked for these tools at 10 s; the calls are named after them."""

    def __init__(self, *tools: str, options: RequestOptions = OPTIONS) -> None:
        self.session = Session()
        self.session.apply(RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), options, STANDARD_TOOLS))
        calls = tuple(ToolCall(CallId(name), ToolName(name), "{}") for name in tools)
        self.first = self.session.apply(
            ModelResponded(self.session.step, 10.0, ModelResponse(calls, FinishReason.TOOL_CALLS))
        )

    def say(self, at: float, kind: type[Any], *values: Any, call: str = "") -> tuple[Command, ...]:
        return self.session.apply(kind(self.session.step._replace(call_id=CallId(call)), at, *values))

    def deferred(self, at: float, call: str, seconds: float = 500.0) -> tuple[Command, ...]:
        self.say(at, ToolCallStarted, call=call)
        return self.say(at, ToolCallDeferred, seconds, call=call)


def timer(commands: tuple[Command, ...]) -> float:
    """The one that the request's timer is set to."""
    [at] = [command.at for command in commands if isinstance(command, SetTimer) and command.tag == REQUEST]
    return at


def one(commands: tuple[Command, ...], kind: type[Any]) -> Any:
    [command] = [command for command in commands if isinstance(command, kind)]
    return command


def told(commands: tuple[Command, ...]) -> list[dict[str, Any]]:
    """The failures that the model reads of the step that was recorded."""
    results = [message for message in one(commands, RecordStep).messages if isinstance(message, ToolMessage)]
    return [orjson.loads(result.content) for result in results]


def test_a_wait_for_a_person_is_added_to_the_deadline() -> None:
    talk = Talk("write")
    assert ClearTimer(REQUEST) in talk.first, "no timer runs while a person thinks"
    granted = talk.say(3_010.0, ApprovalGranted, call="write")
    assert timer(granted) == 3_100.0, "of 100 s the model took 10, so 90 are left"
    assert one(granted, RunTool).deadline_at == 3_015.0, "the tool has its own 5 s"
    done = talk.say(3_012.0, ToolCallCompleted, "1", call="write")
    assert one(done, CallModel).deadline_at == 3_100.0


def test_a_tool_that_is_sent_after_a_wait_may_take_what_is_left_of_the_request() -> None:
    talk = Talk("deploy", options=replace(OPTIONS, timeout_seconds=40.0))
    assert one(talk.say(1_010.0, ApprovalGranted, call="deploy"), RunTool).deadline_at == 1_040.0, "its own is 60 s"


def test_a_deferred_call_ends_with_the_result_from_outside() -> None:
    talk = Talk("look")
    assert talk.deferred(15.0, "look") == (ClearTimer(REQUEST),)
    assert set(talk.session.calls.values()) == {CallState.DEFERRED}
    done = talk.say(415.0, ToolCallCompleted, "42", call="look")
    assert timer(done) == 500.0, "400 s were waited"
    [result] = one(done, RecordStep).messages[1:]
    assert (result.content, result.is_error) == ("42", False)


def test_overlapping_waits_are_counted_once_and_not_while_a_tool_runs() -> None:
    talk = Talk("write", "look", "again")
    talk.deferred(20.0, "look")
    talk.say(20.0, ToolCallStarted, call="again")
    assert talk.say(25.0, ToolCallCompleted, "1", call="again")[-1] == ClearTimer(REQUEST), "from now on it only waits"
    assert not [c for c in talk.say(125.0, ApprovalDenied, "", "no", call="write") if isinstance(c, SetTimer)]
    assert timer(talk.say(225.0, ToolCallCompleted, "1", call="look")) == 300.0, "25 s had passed, 200 were waited"


def test_a_deferred_call_has_a_time_of_its_own() -> None:
    talk = Talk("look")
    talk.deferred(20.0, "look", 500.0)
    assert talk.say(514.0, DeadlinePassed) == (SetTimer(talk.session.step, 520.0),), "a timer that fired early"
    ended = talk.say(520.0, DeadlinePassed)
    [failure] = told(ended)
    assert (failure["code"], failure["tool"]) == ("timed_out", "look")
    assert "did not come in its time" in failure["message"]
    assert timer(ended) == 600.0


def test_an_approval_that_is_not_given_in_its_time_is_denied() -> None:
    talk = Talk("write")
    ended = talk.say(10.0 + 3_600.0, DeadlinePassed)
    assert [type(command).__name__ for command in ended][:2] == ["WithdrawApproval", "ReportFailure"]
    [failure] = told(ended)
    assert failure["code"] == "denied"
    assert "was not approved within 3600 s" in failure["message"]
    with pytest.raises(ProtocolError):
        talk.session.apply(ApprovalGranted(REQUEST.at_step(1)._replace(call_id=CallId("write")), 4_000.0))


def test_each_wait_has_its_own_limit_beside_the_others() -> None:
    talk = Talk("write", "look")
    talk.deferred(20.0, "look", 30.0)
    first = talk.say(50.0, DeadlinePassed)
    assert set(talk.session.calls.values()) == {CallState.AWAITING_APPROVAL, CallState.TIMED_OUT}
    assert one(first, SetTimer).at == 3_610.0


def test_the_requests_deadline_is_not_noticed_while_it_only_waits() -> None:
    talk = Talk("look")
    talk.deferred(20.0, "look")
    assert talk.session.apply(DeadlinePassed(REQUEST, 100.0)) == (), "its message was on its way"
    resumed = talk.say(220.0, ToolCallCompleted, "1", call="look")
    assert timer(resumed) == 300.0
    assert talk.session.apply(DeadlinePassed(REQUEST, 250.0)) == (SetTimer(REQUEST, 300.0),)
    assert one(talk.session.apply(DeadlinePassed(REQUEST, 300.0)), Finish).outcome is Outcome.TIMED_OUT


def test_a_request_whose_time_is_over_does_not_begin_to_wait() -> None:
    """The machine was suspended, and its timer comes behind the end of the tool."""
    talk = Talk("look")
    talk.say(20.0, ToolCallStarted, call="look")
    assert talk.say(4_000.0, ToolCallDeferred, 500.0, call="look") == ()
    assert one(talk.session.apply(DeadlinePassed(REQUEST, 4_000.0)), Finish).outcome is Outcome.TIMED_OUT


def test_a_request_that_only_waits_survives_a_crash_as_it_was() -> None:
    """What is left of a wait is what was left before; nothing of a deferred call is sent again."""
    talk = Talk("write", "look")
    talk.deferred(20.0, "look", 500.0)
    assert talk.session.resume_commands() == (), "no timer runs"
    loss = talk.session.loss_event(300.0)
    assert isinstance(loss, ToolsLost)
    kinds = [type(command).__name__ for command in talk.session.apply(loss)]
    assert kinds == ["AskApproval", "SetTimer"]
    assert told(talk.say(3_610.0, DeadlinePassed))[0]["code"] == "denied", "it has no more time than it had"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), MAX_WAIT_SECONDS + 1])
def test_no_wait_is_without_an_end(seconds: float) -> None:
    with pytest.raises(UsageError, match=r"timeout_seconds must be above 0 and at most 604800 .*got"):
        Deferred(seconds)
    with pytest.raises(UsageError, match="approval_timeout_seconds must be above 0"):
        check_start((), replace(OPTIONS, approval_timeout_seconds=seconds))
    talk = Talk("look")
    with pytest.raises(ProtocolError, match="timeout_seconds"):
        talk.deferred(20.0, "look", seconds)


def test_a_note_must_be_a_text() -> None:
    with pytest.raises(UsageError, match="note must be a text, got int"):
        Deferred(1.0, 7)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1_000)), max_size=20), st.integers(0, 1_000))
def test_the_deadline_moves_by_the_time_it_was_halted(spans: list[tuple[bool, int]], limit: int) -> None:
    clock, now, waited = RequestClock(float(limit)), 0.0, 0.0
    for waits, seconds in spans:
        if waits:
            assert clock.turn(now) is None
        now += seconds
        waited += seconds * waits
        assert clock.deadline_at(now) == limit + waited
        if waits:
            assert clock.turn(now) == limit + waited
        assert not clock.is_halted

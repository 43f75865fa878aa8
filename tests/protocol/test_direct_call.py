"""One call of a tool without a model: the rules of every call hold, and no model is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Outcome,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
    WithdrawApproval,
)
from callboard.protocol.content import ToolCall, ToolMessage, UserMessage
from callboard.protocol.direct_call import DirectCall
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    RequestStarted,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import Decision, FailureCode, ToolContract, ToolDefinition, ToolFailure

REQUEST = Tag(RequestId("r"), MessageId("u"))
CALL = REQUEST.at_step(1)._replace(call_id=CallId("call"))
LOOKUP = ToolName("lookup")


class Called:
    """A session of one call, and all that came out of it."""

    def __init__(self, decision: Decision = Decision.ALLOW, arguments: str = '{"city":"Oslo"}', name: str = "lookup"):
        self.session = DirectCall(ToolCall(CallId("call"), ToolName(name), arguments))
        self.commands: list[Command] = []
        offer = ToolOffer(ToolDefinition(LOOKUP, "Look up."), ToolContract(timeout_seconds=10.0), decision)
        options = RequestOptions("a/b", timeout_seconds=100.0, approval_timeout_seconds=50.0)
        self.see(RequestStarted(REQUEST, 0.0, (), UserMessage.of("Call lookup."), options, (offer,)))

    def see(self, event: Event) -> list[type[Command]]:
        given = self.session.apply(event)
        self.commands += given
        return [type(command) for command in given]

    def only(self, kind: type) -> object:
        (found,) = [command for command in self.commands if type(command) is kind]
        return found

    @property
    def result(self) -> ToolMessage:
        (message,) = [
            message
            for command in self.commands
            if isinstance(command, RecordStep)
            for message in command.messages
            if isinstance(message, ToolMessage)
        ]
        return message

    @property
    def finish(self) -> Finish:
        finish = self.only(Finish)
        assert isinstance(finish, Finish)
        return finish


def test_an_allowed_call_is_run_and_its_result_ends_the_request() -> None:
    called = Called()
    assert called.only(RunTool) == RunTool(CALL, LOOKUP, '{"city":"Oslo"}', 10.0, "r/1/call")
    called.see(ToolCallStarted(CALL, 1.0))
    kinds = called.see(ToolCallCompleted(CALL, 2.0, "rain"))
    assert kinds[-2:] == [ClearTimer, Finish]
    assert (called.result.content, called.result.is_error) == ("rain", False)
    finish = called.finish
    assert (finish.outcome, finish.text, finish.usage, finish.cost) == (Outcome.ANSWERED, "", Usage(), 0.0)
    ((report,),) = [step.calls for step in finish.steps]
    assert (report.name, report.code, report.seconds, report.run_seconds) == (LOOKUP, None, 2.0, 1.0)
    assert not [command for command in called.commands if isinstance(command, CallModel)]
    with pytest.raises(ProtocolError):
        called.see(ToolCallCompleted(CALL, 3.0, "twice"))


def test_a_person_is_asked_first_and_the_time_of_the_tool_begins_with_the_answer() -> None:
    called = Called(Decision.ASK)
    assert isinstance(called.only(AskApproval), AskApproval)
    called.see(ApprovalGranted(CALL, 40.0, "owner"))
    run = called.only(RunTool)
    assert isinstance(run, RunTool)
    assert run.deadline_at == 50.0
    called.see(ToolCallCompleted(CALL, 41.0, "rain"))
    assert called.finish.outcome is Outcome.ANSWERED


@pytest.mark.parametrize("how", ["denied", "not answered"])
def test_a_call_that_is_not_approved_is_not_run(how: str) -> None:
    called = Called(Decision.ASK)
    step = REQUEST.at_step(1)
    called.see(ApprovalDenied(CALL, 1.0, "owner", "no") if how == "denied" else DeadlinePassed(step, 50.0))
    assert not [command for command in called.commands if isinstance(command, RunTool)]
    failed = called.only(ReportFailure)
    assert isinstance(failed, ReportFailure)
    assert failed.failure.code is FailureCode.DENIED
    assert called.result.is_error
    assert called.finish.outcome is Outcome.ANSWERED


@pytest.mark.parametrize(
    ("called", "code"),
    [
        (Called(Decision.DENY), FailureCode.DENIED),
        (Called(name="nothing"), FailureCode.UNKNOWN_TOOL),
        (Called(arguments="[1]"), FailureCode.INCOMPLETE_CALL),
    ],
    ids=["policy", "unknown", "not an object"],
)
def test_what_may_not_run_ends_at_once_with_its_reason(called: Called, code: FailureCode) -> None:
    failed = called.only(ReportFailure)
    assert isinstance(failed, ReportFailure)
    assert failed.failure.code is code
    assert called.finish.outcome is Outcome.ANSWERED


@pytest.mark.parametrize("decision", [Decision.ALLOW, Decision.ASK])
def test_a_cancelled_call_is_stopped_and_has_its_result(decision: Decision) -> None:
    called = Called(decision)
    kinds = called.see(CancelRequested(REQUEST, 1.0, "gone"))
    assert (CancelTool if decision is Decision.ALLOW else WithdrawApproval) in kinds
    assert called.result.is_error
    assert called.finish.outcome is Outcome.CANCELLED


def test_the_deadline_of_the_request_ends_its_call() -> None:
    called = Called()
    assert CancelTool in called.see(DeadlinePassed(REQUEST, 100.0))
    assert called.finish.outcome is Outcome.TIMED_OUT


def test_a_deferred_call_waits_for_its_result_from_outside() -> None:
    called = Called()
    called.see(ToolCallStarted(CALL, 1.0))
    assert ClearTimer in called.see(ToolCallDeferred(CALL, 2.0, 500.0))  # the request's time does not run
    assert SetTimer in called.see(ToolCallCompleted(CALL, 400.0, "at last"))
    assert called.result.content == "at last"


def test_a_call_that_was_lost_before_it_began_is_sent_again() -> None:
    called = Called()
    assert RunTool in called.see(ToolsLost(REQUEST.at_step(1), 1.0))
    called.see(ToolCallStarted(CALL, 2.0))
    called.see(ToolsLost(REQUEST.at_step(1), 3.0))
    assert '"outcome_unknown"' in called.result.content


STEP = REQUEST.at_step(1)
HAPPENINGS = st.sampled_from(
    [
        lambda at: ApprovalGranted(CALL, at),
        lambda at: ApprovalDenied(CALL, at, "owner", "no"),
        lambda at: ToolCallStarted(CALL, at),
        lambda at: ToolCallDeferred(CALL, at, 30.0),
        lambda at: ToolCallCompleted(CALL, at, "done"),
        lambda at: ToolCallFailed(CALL, at, ToolFailure(LOOKUP, FailureCode.TOOL_ERROR, "no")),
        lambda at: ToolCallTimedOut(CALL, at),
        lambda at: ToolsLost(STEP, at),
        lambda at: DeadlinePassed(STEP, at),
        lambda at: DeadlinePassed(REQUEST, at),
        lambda at: CancelRequested(REQUEST, at),
    ]
)


@given(st.sampled_from(Decision), st.lists(st.tuples(HAPPENINGS, st.floats(0, 60)), max_size=12))
def test_in_any_order_of_events_a_call_has_one_result_and_its_request_one_end(
    decision: Decision, happenings: list[tuple[Callable[[float], Event], float]]
) -> None:
    called, at = Called(decision), 0.0
    for happening, pause in happenings:
        at += pause
        with contextlib.suppress(ProtocolError):
            called.see(happening(at))
    with contextlib.suppress(ProtocolError):
        called.see(CancelRequested(REQUEST, at))
    assert called.finish.outcome in (Outcome.ANSWERED, Outcome.CANCELLED, Outcome.TIMED_OUT)
    assert called.result.call_id == "call"
    assert not [command for command in called.commands if isinstance(command, CallModel)]
    assert isinstance(called.commands[-1], Finish)

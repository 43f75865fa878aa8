"""Steps with calls of the one who asks, in any order of what becomes of the others (I1, I2, I3, I8, I12)."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import CallModel, CallOutside, Finish, Outcome, RecordStep, RunTool
from callboard.protocol.content import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage, history_faults
from callboard.protocol.events import (
    CancelRequested,
    Event,
    ModelResponded,
    RequestStarted,
    ToolCallCompleted,
    ToolCallFailed,
    ToolsLost,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.machine import Session
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.states import CallState
from callboard.protocol.tools import Decision, FailureCode, ToolContract, ToolDefinition, ToolFailure

TAG = Tag(RequestId("r"), MessageId("m"))
OFFERS = (
    ToolOffer(ToolDefinition(ToolName("mine"), ""), ToolContract(is_outside=True)),
    ToolOffer(ToolDefinition(ToolName("look"), ""), ToolContract()),
    ToolOffer(ToolDefinition(ToolName("never"), ""), ToolContract(), Decision.DENY),
)
ASKED = st.lists(
    st.tuples(st.sampled_from(["mine", "look", "never", "nowhere"]), st.sampled_from(["{}", '{"x": 1}', '{"x": '])),
    min_size=1,
    max_size=6,
)


def started(options: RequestOptions | None = None) -> RequestStarted:
    return RequestStarted(TAG, 0.0, (), UserMessage.of("go"), options or RequestOptions("sim/model"), OFFERS)


def turn_of(asked: list[tuple[str, str]]) -> ModelResponse:
    calls = tuple(
        ToolCall(CallId(f"c{place}"), ToolName(name), arguments, complete=arguments != '{"x": ')
        for place, (name, arguments) in enumerate(asked)
    )
    return ModelResponse(calls, FinishReason.TOOL_CALLS)


@given(ASKED, st.data())
def test_a_step_is_handed_out_once_all_its_other_calls_have_ended(
    asked: list[tuple[str, str]], data: st.DataObject
) -> None:
    session, journal = Session(TAG), []

    def apply(event: Event) -> list[object]:
        journal.extend(session.to_journal(event))
        return list(session.apply(event))

    apply(started())
    seen = apply(ModelResponded(session.step, 1.0, turn_of(asked)))
    running = [each.tag for each in seen if isinstance(each, RunTool)]
    mine = {f"c{place}" for place, (name, arguments) in enumerate(asked) if name == "mine" and arguments != '{"x": '}
    while running:
        tag = running.pop(data.draw(st.integers(0, len(running) - 1)))
        assert {tag.call_id for tag, state in session.calls.items() if state is CallState.OUTSIDE} == mine
        if data.draw(st.integers(0, 3)) == 0:
            again = apply(ToolsLost(session.step, 1.5))
            assert {each.tag for each in again if isinstance(each, RunTool)} == {tag, *running}
        if data.draw(st.booleans()):
            seen = apply(ToolCallCompleted(tag, 2.0, "found"))
        else:
            seen = apply(ToolCallFailed(tag, 2.0, ToolFailure(ToolName("look"), FailureCode.TOOL_ERROR, "no")))
    ends = [each for each in seen if isinstance(each, Finish)]
    handed = [each.call.call_id for each in seen if isinstance(each, CallOutside)]
    again = Session.replay(decode_event(encode_event(event)) for event in journal)
    assert again.resume_commands() == session.resume_commands()
    if not mine:
        assert any(isinstance(each, CallModel) for each in seen)
        return
    assert [each.outcome for each in ends] == [Outcome.CALLS_OUTSIDE]
    turn = ends[0].open_turn
    assert turn is not None
    assert handed == [each.call_id for each in turn.outside] == sorted(mine)
    assert [each.call_id for each in turn.results] == sorted({f"c{place}" for place in range(len(asked))} - mine)
    assert [each.messages for each in seen if isinstance(each, RecordStep)] == [()]
    whole = [ToolMessage(each.call_id, each.name, "mine") for each in turn.outside]
    results = sorted((*turn.results, *whole), key=lambda each: each.call_id)
    assert not history_faults((UserMessage.of("go"), turn.message, *results))


@given(ASKED)
def test_a_cancelled_step_answers_all_of_its_calls(asked: list[tuple[str, str]]) -> None:
    session = Session(TAG)
    session.apply(started())
    session.apply(ModelResponded(session.step, 1.0, turn_of([*asked, ("mine", "{}"), ("look", "{}")])))
    seen = session.apply(CancelRequested(TAG, 2.0))
    (recorded,) = (each.messages for each in seen if isinstance(each, RecordStep))
    assert not history_faults((UserMessage.of("go"), *recorded))
    codes = [orjson.loads(each.content)["code"] for each in recorded if isinstance(each, ToolMessage)]
    assert len(codes) == len(asked) + 2
    assert codes[-2:] == ["cancelled", "cancelled"]


def test_a_request_goes_on_from_results_as_if_the_step_were_its_own() -> None:
    """The last question stays in the prompt however much is cut, and tool_choice counts for the first new step."""
    turn = AssistantMessage((ToolCall(CallId("c"), ToolName("mine"), "{}"),))
    history = (
        UserMessage.of("one " * 900),
        UserMessage.of("two " * 50),
        turn,
        ToolMessage(CallId("c"), ToolName("mine"), "x"),
    )
    session = Session(TAG)
    options = RequestOptions("sim/model", context_tokens=800)
    begun = RequestStarted(TAG, 0.0, history, UserMessage(()), options, OFFERS)
    (asked,) = (each for each in session.apply(begun) if isinstance(each, CallModel))
    assert asked.request.messages[-3:] == history[-3:]
    (recorded,) = (
        each
        for each in session.apply(ModelResponded(session.step, 1.0, ModelResponse((Text("done"),), FinishReason.STOP)))
        if isinstance(each, RecordStep)
    )
    assert [type(each) for each in recorded.messages] == [AssistantMessage]

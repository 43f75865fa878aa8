"""One request at a time, told event by event."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples

from callboard.protocol.codec import decode_event, decode_messages, encode_event, encode_messages
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    NoteKind,
    Outcome,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import (
    AssistantMessage,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind, ProtocolError, UsageError
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
    ToolsLost,
    shifted,
)
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import (
    CALL_BACKSTOP_SECONDS,
    MAX_ANSWER_BYTES,
    MAX_CALLS_PER_STEP,
    MAX_MODEL_LOSSES,
    MAX_RESULT_BYTES,
)
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
    sampling_faults,
)
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.start_check import check_start
from callboard.protocol.states import CallState, RequestState
from callboard.protocol.step import WRITTEN_CALL_TOLD
from callboard.protocol.testing.scenario import STANDARD_TOOLS
from callboard.protocol.tools import Decision, FailureCode, Risk, ToolContract, ToolDefinition, ToolFailure

REQUEST = Tag(RequestId("r"), MessageId("m"))
OPTIONS = RequestOptions("sim/model")
PRICED = replace(OPTIONS, input_price=0.1, output_price=0.2)


class Talk:
    """A session and its commands, with the tags filled in."""

    def __init__(self, options: RequestOptions = OPTIONS, **start: Any) -> None:
        self.session = Session()
        self.now = 0.0
        self.said: list[tuple[Event, tuple[Command, ...]]] = []
        """Each event after the first, and the commands that came of it."""
        tools = start.pop("tools", STANDARD_TOOLS)
        start = {"history": (), "user": UserMessage.of("go"), **start}
        self.first = self.session.apply(RequestStarted(REQUEST, 0.0, options=options, tools=tools, **start))

    @property
    def step(self) -> Tag:
        return self.session.step

    def say(self, kind: type[Any], *values: Any, call: str = "") -> tuple[Command, ...]:
        tag = self.step._replace(call_id=CallId(call)) if call else self.step
        event = kind(tag, self.now, *values)
        self.said.append((event, self.session.apply(event)))
        return self.said[-1][1]

    def respond(self, *parts: Any, reason: FinishReason | None = None) -> tuple[Any, ...]:
        calls = any(isinstance(part, ToolCall) for part in parts)
        chosen = reason or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP)
        return self.say(ModelResponded, ModelResponse(parts, chosen, usage=Usage(10, 5)))


def call(call_id: str, name: str = "look", arguments: str = "{}", complete: bool = True) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(name), arguments, complete)


def kinds(commands: tuple[Command, ...]) -> list[str]:
    return [type(command).__name__ for command in commands]


def only(commands: tuple[Command, ...], kind: type[Any]) -> Any:
    [command] = [command for command in commands if isinstance(command, kind)]
    return command


def codes(record: RecordStep) -> list[str]:
    """The failure codes of a recorded step's results; "" for a success."""
    results = [message for message in record.messages if isinstance(message, ToolMessage)]
    return [orjson.loads(result.content)["code"] if result.is_error else "" for result in results]


def test_a_history_that_is_cut_to_fit_is_told_once() -> None:
    old = tuple(
        message
        for n in range(40)
        for message in (UserMessage.of(f"question {n} " * 40), AssistantMessage((Text(f"answer {n} " * 40),)))
    )
    talk = Talk(replace(OPTIONS, context_tokens=4_000), history=old)
    assert kinds(talk.first) == ["SetTimer", "Note", "CallModel"]
    note = only(talk.first, Note)
    assert note.kind is NoteKind.TRIMMED
    assert "left out of the prompt" in note.text
    assert len(only(talk.first, CallModel).request.messages) < len(old)
    talk.respond(call("a"))
    assert not [each for each in talk.say(ToolCallCompleted, '"x"', call="a") if isinstance(each, Note)]


def test_a_text_answer() -> None:
    talk = Talk(replace(OPTIONS, system_prompt="be brief"))
    assert kinds(talk.first) == ["SetTimer", "CallModel"]
    assert only(talk.first, SetTimer) == SetTimer(REQUEST, OPTIONS.timeout_seconds)
    asked = only(talk.first, CallModel).request
    assert asked.messages == (SystemMessage("be brief"), UserMessage.of("go"))
    assert [tool.name for tool in asked.tools] == [
        offer.definition.name for offer in STANDARD_TOOLS if offer.decision is not Decision.DENY
    ]
    commands = talk.respond(Text("hello"))
    assert kinds(commands) == ["RecordStep", "ClearTimer", "Finish"]
    assert only(commands, RecordStep).messages == (AssistantMessage((Text("hello"),)),)
    finish = only(commands, Finish)
    assert (finish.outcome, finish.text, finish.usage, len(finish.steps)) == (
        Outcome.ANSWERED,
        "hello",
        Usage(10, 5),
        1,
    )


def test_calls_run_side_by_side_and_results_stand_in_the_order_asked() -> None:
    talk = Talk()
    commands = talk.respond(call("a"), call("b"), call("c"))
    assert kinds(commands) == ["RunTool", "RunTool", "RunTool", "SetTimer"]
    tag, rule = talk.step._replace(call_id=CallId("a")), "of look the plan says: allow"
    assert commands[0] == RunTool(tag, ToolName("look"), "{}", 5.0, "r/1/a", rule)
    assert only(commands, SetTimer) == SetTimer(talk.step, 5.0 + CALL_BACKSTOP_SECONDS)
    assert talk.say(ToolCallStarted, call="c") == ()
    assert talk.say(ToolCallCompleted, '"C"', call="c") == ()
    assert talk.say(ToolCallFailed, ToolFailure(ToolName("look"), FailureCode.TOOL_ERROR, "no"), call="a") == ()
    commands = talk.say(ToolCallCompleted, '"B"', call="b")
    assert kinds(commands) == ["ClearTimer", "RecordStep", "CallModel"]
    record = only(commands, RecordStep)
    assert [message.call_id for message in record.messages[1:]] == ["a", "b", "c"]
    assert codes(record) == ["tool_error", "", ""]
    assert only(commands, CallModel).request.messages == (UserMessage.of("go"), *record.messages)


def test_calls_that_are_never_run() -> None:
    talk = Talk()
    commands = talk.respond(
        call("a", "nowhere"), call("b", "look", '{"x":', False), call("c", "never"), call("d", "look", "[1]")
    )
    assert codes(only(commands, RecordStep)) == ["unknown_tool", "incomplete_call", "denied", "incomplete_call"]
    turn = only(commands, RecordStep).messages[0]
    # The model sees its own text, and what is wrong with it.
    shown = ['{"incomplete_arguments":"{\\"x\\":"}', '{"incomplete_arguments":"[1]"}']
    assert [asked.arguments for asked in turn.tool_calls] == ["{}", shown[0], "{}", shown[1]]
    told = [orjson.loads(message.content)["message"] for message in only(commands, RecordStep).messages[1:]]
    assert (
        told[1] == "The arguments are not a JSON object: they end too early, after 5 characters; the call was not run."
    )
    assert told[3] == "The arguments are not a JSON object: they are a list; the call was not run."
    assert not any(isinstance(command, RunTool) for command in commands)


@pytest.mark.parametrize("mask", ["\\u2327***\\u2327", "\u2327***\u2327", "\u2327"])
@pytest.mark.parametrize("risk", Risk)
def test_a_call_that_would_write_a_mask_back_is_never_run_nor_asked_about(risk: Risk, mask: str) -> None:
    """The mask covers a key that the model was not shown: written back, it would take the key's place."""
    talk = Talk(tools=(ToolOffer(ToolDefinition(ToolName("edit"), "Edits."), ToolContract(risk=risk)),))
    commands = talk.respond(call("a", "edit", f'{{"new": "KEY = \'{mask}\'"}}'))
    if risk is Risk.READ:
        assert only(commands, RunTool).name == "edit"
        return
    (result,) = only(commands, RecordStep).messages[1:]
    assert codes(only(commands, RecordStep)) == ["invalid_arguments"]
    assert "Leave the masked text as it is in the file" in orjson.loads(result.content)["retry_hint"]
    assert not any(isinstance(command, RunTool | AskApproval) for command in commands)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1.5E+400"])
def test_a_number_that_is_not_finite_is_named_and_its_call_never_run(number: str) -> None:
    talk = Talk()
    commands = talk.respond(call("a", "look", f'{{"days": [{number}], "city": "NaN"}}'))
    (result,) = only(commands, RecordStep).messages[1:]
    assert f"The arguments contain {number}, which is not a finite number" in result.content
    assert not any(isinstance(command, RunTool) for command in commands)


def test_ids_repeated_within_a_turn_are_minted_anew() -> None:
    talk = Talk()
    commands = talk.respond(call("x"), call("x"), call(""), call("x_2"))
    assert [command.tag.call_id for command in commands if isinstance(command, RunTool)] == [
        "x",
        "x_2",
        "call_3",
        "x_2_4",
    ]


def test_approval_granted_and_denied() -> None:
    talk = Talk()
    commands = talk.respond(call("a", "write", '{"x":1}'), call("b", "write"))
    assert kinds(commands) == ["AskApproval", "AskApproval", "SetTimer", "ClearTimer"]
    assert isinstance(commands[0], AskApproval)
    assert commands[0].arguments == '{"x":1}'
    talk.now = 100.0
    commands = talk.say(ApprovalGranted, call="a")
    assert only(commands, RunTool).deadline_at == 105.0
    reported = only(talk.say(ApprovalDenied, "me", "not today", call="b"), ReportFailure)
    assert (reported.tag.call_id, reported.failure.code) == ("b", FailureCode.DENIED)
    commands = talk.say(ToolCallCompleted, '"done"', call="a")
    assert codes(only(commands, RecordStep)) == ["", "denied"]
    assert "not today" in only(commands, RecordStep).messages[2].content


def test_a_late_or_doubled_answer_is_refused() -> None:
    talk = Talk()
    talk.respond(call("a"), call("b"))
    talk.say(ToolCallCompleted, '"first"', call="a")
    with pytest.raises(
        ProtocolError, match="ToolCallCompleted is illegal in state running_tools: call 'a' is completed"
    ):
        talk.say(ToolCallCompleted, '"second"', call="a")
    with pytest.raises(ProtocolError, match="no call 'z'"):
        talk.say(ToolCallCompleted, '"who"', call="z")


def test_an_event_of_another_request_is_refused() -> None:
    talk = Talk()
    other = Tag(RequestId("other"), MessageId("m"), 1)
    for event in (ModelResponded(other, 0.0, ModelResponse((Text("x"),))), CancelRequested(other.request, 0.0)):
        with pytest.raises(ProtocolError, match="it is of request 'other', this is 'r'"):
            talk.session.apply(event)
    assert talk.session.state is RequestState.CALLING_MODEL


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ({"history": (ToolMessage(CallId("a"), ToolName("look"), "1"),)}, "follows no turn"),
        ({"tools": STANDARD_TOOLS[:1] * 2}, "share a name"),
        ({"options": replace(OPTIONS, timeout_seconds=0.0)}, "timeout_seconds must be above 0"),
        ({"options": replace(OPTIONS, timeout_seconds=float("inf"))}, "timeout_seconds must be above 0 and finite"),
        ({"options": replace(OPTIONS, timeout_seconds=float("nan"))}, "timeout_seconds must be above 0"),
        ({"options": replace(OPTIONS, cost_budget=float("nan"))}, "cost_budget must be a number from 0 on, got nan"),
        ({"options": replace(PRICED, cost_budget=float("inf"))}, "cost_budget must be a number from 0 on, got inf"),
        ({"options": replace(PRICED, cost_budget=True)}, "cost_budget must be a number from 0 on, got True"),
        ({"options": replace(OPTIONS, token_budget=-1)}, "token_budget must be a whole number from 0 on, got -1"),
        ({"options": replace(OPTIONS, token_budget=2.5)}, "token_budget must be a whole number from 0 on, got 2.5"),
        ({"options": replace(OPTIONS, token_budget=True)}, "token_budget must be a whole number from 0 on, got True"),
        ({"options": replace(OPTIONS, input_price=float("nan"))}, "input_price must be a number from 0 on, got nan"),
        ({"options": replace(OPTIONS, cost_budget=1.0)}, "cost_budget needs input_price and output_price"),
        ({"options": replace(OPTIONS, cost_budget=1.0, input_price=0.1)}, "cost_budget needs input_price and output"),
        ({"options": replace(OPTIONS, sampling=Sampling(temperature=float("nan")))}, "temperature must be a number"),
        ({"options": replace(OPTIONS, sampling=Sampling(max_output_tokens=0))}, "max_output_tokens must be a whole"),
    ],
)
def test_a_request_that_cannot_start_is_refused(start: dict[str, Any], reason: str) -> None:
    """By the session, as an event; by `check_start` before there is one, with the same words."""
    with pytest.raises(ProtocolError, match=reason) as refused:
        Talk(**start)
    given = {"history": (), "options": OPTIONS, "tools": STANDARD_TOOLS, **start}
    with pytest.raises(UsageError) as caught:
        check_start(**given)
    assert str(refused.value).endswith(str(caught.value))
    assert not isinstance(caught.value, ProtocolError)


def test_a_request_that_can_start_is_not_refused() -> None:
    check_start((UserMessage.of("x"),), OPTIONS, STANDARD_TOOLS)
    check_start((), replace(OPTIONS, cost_budget=0.0, token_budget=0, input_price=0.0, output_price=0))


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(temperature=-0.1), "temperature must be a number from 0 to 2, got -0.1"),
        (Sampling(temperature=2.1), "temperature must be a number from 0 to 2, got 2.1"),
        (Sampling(temperature=float("inf")), "temperature must be a number from 0 to 2, got inf"),
        (Sampling(temperature=True), "temperature must be a number from 0 to 2, got True"),
        (Sampling(temperature="hot"), "temperature must be a number from 0 to 2, got 'hot'"),  # type: ignore[arg-type]
        (Sampling(top_p=1.01), "top_p must be a number from 0 to 1, got 1.01"),
        (Sampling(top_p=float("nan")), "top_p must be a number from 0 to 1, got nan"),
        (Sampling(max_output_tokens=0), "max_output_tokens must be a whole number from 1 to 100000000, got 0"),
        (Sampling(max_output_tokens=1.5), "max_output_tokens must be a whole number"),  # type: ignore[arg-type]
        (Sampling(max_output_tokens=True), "max_output_tokens must be a whole number"),
        (Sampling(seed=2**63), "seed must be a whole number"),
        (Sampling(seed=False), "seed must be a whole number"),
        (Sampling(stop=("",)), "stop must be a tuple of texts, none of them empty, got ('',)"),
        (Sampling(stop="END"), "stop must be a tuple of texts"),  # type: ignore[arg-type]
        (Sampling(stop=(7,)), "stop must be a tuple of texts"),  # type: ignore[arg-type]
        (Sampling(reasoning_effort=""), "reasoning_effort must be a word"),
        (Sampling(reasoning_effort=3), "reasoning_effort must be a word"),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_each_sampling_value_that_no_api_takes_is_named(sampling: Sampling, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_start((), replace(OPTIONS, sampling=sampling))
    assert says in str(caught.value)
    both = sampling_faults(replace(sampling, top_p=5.0, seed=2**70))
    assert len(both) >= 2, "each fault is told"


@given(
    st.floats(0, 2) | st.integers(0, 2) | st.none(), st.floats(0, 1) | st.none(), st.integers(1, 10**8) | st.none(),
    st.lists(st.text(min_size=1)).map(tuple), st.integers(-(2**63), 2**63 - 1) | st.none(),
)  # fmt: skip
def test_what_apis_take_is_not_refused(
    temperature: float | None, top_p: float | None, most: int | None, stop: tuple[str, ...], seed: int | None
) -> None:
    check_start((), replace(OPTIONS, sampling=Sampling(temperature, top_p, most, stop, seed, "low")))


def test_notes_of_the_start_are_shown_once_before_anything_else() -> None:
    session = Session()
    start = RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), OPTIONS, STANDARD_TOOLS, ("a is assumed", "b too"))
    given_ = session.apply(start)
    assert kinds(given_) == ["SetTimer", "Note", "Note", "CallModel"]
    assert [command.text for command in given_ if isinstance(command, Note)] == ["a is assumed", "b too"]
    assert Note not in map(type, session.resume_commands())


def test_cancel_while_the_model_speaks_keeps_what_was_said() -> None:
    talk = Talk()
    talk.say(ModelStreamed, (TextDelta("wrong"), Restarted("again"), TextDelta("let "), TextDelta("me")))
    commands = talk.session.apply(CancelRequested(REQUEST, 1.0, "bored"))
    assert kinds(commands) == ["StopModel", "RecordStep", "ClearTimer", "Finish"]
    assert only(commands, StopModel).tag == talk.step
    assert only(commands, RecordStep).messages == (AssistantMessage((Text("let me"),)),)
    assert only(commands, Finish).outcome is Outcome.CANCELLED
    assert only(commands, Finish).reason == "bored"


def test_cancel_while_tools_run_and_people_think() -> None:
    talk = Talk()
    talk.respond(call("a"), call("b", "write"), call("c"))
    talk.say(ToolCallCompleted, "1", call="c")
    commands = talk.session.apply(CancelRequested(REQUEST, 1.0))
    assert kinds(commands) == [
        "CancelTool", "ReportFailure", "WithdrawApproval", "ReportFailure",
        "ClearTimer", "RecordStep", "ClearTimer", "Finish",
    ]  # fmt: skip
    assert only(commands, CancelTool).tag.call_id == "a"
    assert only(commands, WithdrawApproval).tag.call_id == "b"
    assert codes(only(commands, RecordStep)) == ["cancelled", "cancelled", ""]
    with pytest.raises(ProtocolError, match="illegal in state finished"):
        talk.say(ToolCallCompleted, "1", call="a")


def test_the_deadline_ends_even_what_waits_for_a_person_while_a_tool_runs() -> None:
    talk = Talk(replace(OPTIONS, timeout_seconds=20.0))
    talk.respond(call("a", "write"), call("b"))
    assert talk.session.apply(DeadlinePassed(REQUEST, 10.0)) == (SetTimer(REQUEST, 20.0),), "a timer that fired early"
    commands = talk.session.apply(DeadlinePassed(REQUEST, 20.0))
    assert codes(only(commands, RecordStep)) == ["timed_out", "timed_out"]
    assert only(commands, Finish).outcome is Outcome.TIMED_OUT


def test_the_backstop_ends_a_call_that_nobody_ends() -> None:
    talk = Talk()
    talk.respond(call("a"), call("b", "write"))
    talk.now = 4.0
    talk.say(ApprovalGranted, call="b")
    commands = talk.session.apply(DeadlinePassed(talk.step, 7.0))
    assert kinds(commands) == ["CancelTool", "ReportFailure", "SetTimer"]
    assert only(commands, SetTimer).at == 11.0
    assert talk.session.calls[talk.step._replace(call_id=CallId("a"))] is CallState.TIMED_OUT
    assert talk.session.apply(DeadlinePassed(talk.step, 9.0)) == (SetTimer(talk.step, 11.0),), "fired early: set again"
    commands = talk.session.apply(DeadlinePassed(talk.step, 11.0))
    assert codes(only(commands, RecordStep)) == ["timed_out", "timed_out"]


def test_a_lost_model_call_is_asked_again_under_a_new_number() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=2))
    lost = talk.step
    commands = talk.say(ModelLost)
    assert kinds(commands) == ["Note", "CallModel"]
    assert only(commands, CallModel).tag.step == 2
    with pytest.raises(ProtocolError, match="it is of step 1, the open one is 2"):
        talk.session.apply(ModelResponded(lost, 1.0, ModelResponse((Text("late"),))))
    assert only(talk.say(ModelLost), Finish).outcome is Outcome.FAILED


def test_a_lost_model_call_is_asked_again_after_a_growing_pause() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=10, timeout_seconds=700.0))
    assert only(talk.first, CallModel).not_before_at == 0.0
    pauses = []
    for talk.now in (10.0, 20.0, 30.0, 690.0):
        call_model = only(talk.say(ModelLost), CallModel)
        pauses.append(round(call_model.not_before_at - talk.now, 3))
        assert call_model.deadline_at == min(call_model.not_before_at + 600.0, 700.0)
    assert pauses == [0.1, 0.4, 1.6, 1.6]
    cut_off = only(talk.say(ModelFailed, Error(ErrorKind.TRUNCATED, "cut off")), CallModel)
    assert cut_off.not_before_at == 0.0, "nothing was lost"
    assert only(talk.say(ModelLost), CallModel).not_before_at == pytest.approx(690.1), "not in a row any more"
    assert only(talk.respond(reason=FinishReason.ERROR), CallModel).not_before_at == 0.0
    assert only(talk.say(ModelLost), CallModel).not_before_at == pytest.approx(690.1), "nor after an answer"


def test_a_wait_that_was_under_way_is_not_cut_short_by_losses() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=10))
    talk.now = 10.0
    talk.say(ModelNoted, NoteKind.RATE_LIMIT, "it waits", 1, 60.0)
    for talk.now in (20.0, 40.0):
        commands = talk.say(ModelLost)
        assert only(commands, CallModel).not_before_at == 60.0
        assert f"asked again after {60 - talk.now:g} s" in only(commands, Note).text
    talk.now = 59.9
    assert only(talk.say(ModelLost), CallModel).not_before_at == pytest.approx(61.5), "the pause is longer"
    talk.say(ModelNoted, NoteKind.RETRY, "it waits", 1, 500.0)
    talk.say(ModelNoted, NoteKind.FALLBACK, "another is asked now", 1)
    assert only(talk.say(ModelLost), CallModel).not_before_at == pytest.approx(61.5), "it waits no more"


def test_a_wait_survives_in_the_clock_of_the_process_that_goes_on() -> None:
    options = replace(OPTIONS, timeout_seconds=5_000.0)
    started = RequestStarted(REQUEST, 1_000.0, (), UserMessage.of("go"), options)
    waits = ModelNoted(REQUEST.at_step(1), 1_000.0, NoteKind.RATE_LIMIT, "it waits", 0, 1_060.0)
    written = [encode_event(shifted(event, 1_000_000.0)) for event in (started, waits)]
    taken_up = Session.replay(shifted(decode_event(each), -1_000_900.0) for each in written)
    lost = taken_up.loss_event(110.0)
    assert lost is not None
    assert only(taken_up.apply(lost), CallModel).not_before_at == 160.0


def test_a_model_call_that_is_lost_each_time_ends_its_request_with_our_fault_named() -> None:
    talk = Talk()
    assert [kinds(talk.say(ModelLost)) for _ in range(3)] == [["Note", "CallModel"]] * 3
    finish = only(talk.say(ModelLost), Finish)
    assert (finish.outcome, len(finish.steps)) == (Outcome.FAILED, 4)
    assert finish.reason == "internal_error: after 4 tries: the model call was lost 4 times"


def test_a_model_call_that_is_lost_with_its_process_is_asked_again_many_times() -> None:
    """A deploy or a kill says nothing of the call; one that kills its process each time must end."""
    talk = Talk()
    asked = [only(talk.say(ModelLost, True), CallModel) for _ in range(MAX_MODEL_LOSSES)]
    assert {each.attempts for each in asked} == {OPTIONS.max_attempts}, "it is no request of the step"
    finish = only(talk.say(ModelLost, True), Finish)
    assert finish.reason == "internal_error: the model call was lost 33 times"


def test_what_a_call_was_known_to_have_taken_counts_also_when_its_process_ends() -> None:
    talk = Talk()
    talk.say(ModelNoted, NoteKind.RETRY, "again", 3)
    assert only(talk.say(ModelLost, True), CallModel).attempts == OPTIONS.max_attempts - 3


def test_a_model_call_that_made_its_holder_crash_is_never_asked_again() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=10))
    finish = only(talk.say(ModelFailed, Error(ErrorKind.INTERNAL, "KeyError: 'choices'")), Finish)
    assert (finish.outcome, finish.reason) == (Outcome.FAILED, "internal_error: KeyError: 'choices'")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("complete", [True, False])
def test_arguments_with_a_number_that_json_lacks_are_refused_by_name(number: str, complete: bool) -> None:
    """Whether or not the adapter took them for whole; the call beside runs."""
    talk = Talk()
    commands = talk.respond(call("a", arguments=f'{{"x":[{number}]}}', complete=complete), call("b"))
    assert [command.tag.call_id for command in commands if isinstance(command, RunTool)] == ["b"]
    record = only(talk.say(ToolCallCompleted, "1", call="b"), RecordStep)
    told = orjson.loads(record.messages[1].content)
    assert told["code"] == "invalid_arguments"
    assert told["message"].startswith(f"The arguments contain {number}, which is not a finite number")
    assert orjson.loads(record.messages[0].tool_calls[0].arguments) == {"incomplete_arguments": f'{{"x":[{number}]}}'}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ('{"x":NaN}', ""),
        ("NaN", ""),
        ("any text\nat all", ""),
        ("", ""),
        ("1e999", ""),
        ("1" * MAX_RESULT_BYTES, ""),
        ("1" * MAX_RESULT_BYTES + "1", "result_too_large"),
        ('"' + "€" * (MAX_RESULT_BYTES // 3) + '"', "result_too_large"),
    ],
    ids=lambda value: f"{value[:10]}-{len(value)}",
)
def test_a_result_that_no_model_may_get_is_a_failure_that_says_why(content: str, code: str) -> None:
    talk = Talk()
    talk.respond(call("a"))
    record = only(talk.say(ToolCallCompleted, content, call="a"), RecordStep)
    assert codes(record) == [code]
    assert code or record.messages[1].content == content


ENDLESS = "x" * (MAX_ANSWER_BYTES // 2)


def test_an_endless_stream_ends_its_request_and_leaves_nothing_behind() -> None:
    talk = Talk()
    journal: list[Event] = [RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), OPTIONS, STANDARD_TOOLS)]
    for text in (ENDLESS, ENDLESS, "x"):
        event = ModelStreamed(talk.step, 1.0, (TextDelta(text),))
        journal += talk.session.to_journal(event)
        commands = talk.session.apply(event)
    assert kinds(commands) == ["StopModel", "ClearTimer", "Finish"]
    finish = only(commands, Finish)
    assert (finish.outcome, finish.text) == (Outcome.FAILED, "")
    assert finish.reason == "malformed: the answer went over 8,388,608 bytes, and was stopped."
    assert Session.replay(journal).resume_commands() == talk.session.resume_commands()


def test_a_stream_that_begins_again_is_not_endless() -> None:
    talk = Talk()
    for _ in range(3):
        talk.say(ModelStreamed, (Restarted("again"), TextDelta(ENDLESS)))
    assert talk.session.state is RequestState.CALLING_MODEL


@pytest.mark.parametrize(
    "parts",
    [
        (Text(ENDLESS), Text(ENDLESS + "x")),
        (Text("€" * (MAX_ANSWER_BYTES // 3 + 1)),),
        (Text("so"), Thinking(ENDLESS), call("a", arguments=ENDLESS + "x")),
    ],
    ids=["text", "bytes", "together"],
)
def test_an_answer_over_its_bytes_ends_its_request_and_leaves_nothing_behind(parts: tuple[Any, ...]) -> None:
    talk = Talk()
    talk.say(ModelStreamed, (TextDelta("so"),))
    commands = talk.respond(*parts)
    assert kinds(commands) == ["ClearTimer", "Finish"]
    assert only(commands, Finish).usage == Usage(10, 5), "it was charged all the same"


def test_an_answer_within_its_bytes_is_an_answer() -> None:
    assert only(Talk().respond(Text(ENDLESS), Thinking(ENDLESS)), Finish).outcome is Outcome.ANSWERED


def test_a_usage_and_a_cost_that_cannot_be_true_are_told_and_estimated() -> None:
    talk = Talk(replace(OPTIONS, token_budget=1_000, cost_budget=1.0, input_price=0.0, output_price=0.001))
    response = ModelResponse((Text("hm"),), FinishReason.PAUSE, usage=Usage(-5, 10**12))
    commands = talk.say(ModelResponded, response, float("nan"))
    assert kinds(commands) == ["Note", "RecordStep", "CallModel"]
    assert "usage and cost of this step cannot be true" in only(commands, Note).text
    assert 0 < (talk.session.spent.cost or 0) < 0.1
    assert talk.session.spent.usage is None
    assert 0 < talk.session.spent.total_tokens < 1_000


odd_texts = st.text(st.characters()) | st.sampled_from(["", "\ud800", "NaN", "x" * 900])
odd_values = st.recursive(st.none() | st.floats() | st.integers() | odd_texts, st.lists, max_leaves=5)
odd_data = st.dictionaries(odd_texts, odd_values, max_size=3)
replays = st.none() | st.builds(Replay, odd_texts, odd_data)
odd_parts = st.one_of(
    st.builds(Text, odd_texts, replays),
    st.builds(Thinking, odd_texts, replays),
    st.builds(ServerTool, odd_texts, st.builds(Replay, odd_texts, odd_data)),
    st.builds(
        ToolCall,
        odd_texts | st.just("a"),
        odd_texts | st.sampled_from(["look", "write", "never"]),
        odd_texts | st.sampled_from(["{}", '{"x":NaN}', '{"x":1e999}', '{"x":"\\ud800"}', "[" * 2_000, '{"a":' * 300]),
        st.booleans(),
        replays,
    ),
)
odd_numbers = st.integers() | st.floats()
odd_usages = st.none() | st.builds(Usage, *[odd_numbers] * 10)
odd_errors = st.none() | st.builds(Error, st.sampled_from(ErrorKind), odd_texts)
odd_responses = st.builds(
    ModelResponse, st.lists(odd_parts, max_size=4).map(tuple), st.sampled_from(FinishReason), odd_texts, odd_usages,
    odd_data, odd_errors,
)  # fmt: skip


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.tuples(odd_responses, st.floats() | st.none()), max_size=4), st.booleans())
def test_no_answer_of_a_model_is_an_exception_of_the_session(
    answers: list[tuple[ModelResponse, float | None]], budgets: bool
) -> None:
    """One poison answer must not end what carries the session: it is judged like any other, and can be journalled."""
    limits: dict[str, Any] = {"token_budget": 10_000, "cost_budget": 1.0, "context_tokens": 2_000} if budgets else {}
    limits |= {"input_price": 1e-6, "output_price": 1e-6} if budgets else {}
    talk = Talk(replace(OPTIONS, **limits))
    for response, cost in answers:
        if talk.session.state is not RequestState.CALLING_MODEL:
            break
        event = ModelResponded(talk.step, 1.0, response, cost)
        for command in talk.session.apply(event):
            if isinstance(command, RecordStep):
                assert decode_messages(encode_messages(command.messages))
        assert isinstance(decode_event(encode_event(event)), ModelResponded)
        for tag in list(talk.session.calls):
            if talk.session.calls.get(tag) is CallState.SENT:
                talk.session.apply(ToolCallCompleted(tag, 2.0, "\ud800"))
    assert math.isfinite(talk.session.spent.charged)
    assert talk.session.spent.cost is None or math.isfinite(talk.session.spent.cost)
    assert 0 <= talk.session.spent.total_tokens < 10**9


def test_objects_in_each_other_without_end_are_arguments_like_others() -> None:
    """orjson reads what it cannot write, and the other way round: neither may be an exception of the session."""
    for depth in (200, 300, 900, 5_000):
        deep = '{"a":' * depth + "1" + "}" * depth
        assert kinds(Talk().respond(call("a", arguments=deep)))[-1] in ("SetTimer", "CallModel")


def test_lost_tools_are_sent_again_or_their_outcome_is_unknown() -> None:
    talk = Talk()
    talk.respond(call("a"), call("b"), call("c", "again"), call("d", "write"))
    talk.say(ToolCallStarted, call="b")
    talk.say(ToolCallStarted, call="c")
    talk.now = 3.0
    commands = talk.say(ToolsLost)
    again = [(command.tag.call_id, command.effect_id) for command in commands if isinstance(command, RunTool)]
    assert again == [("a", "r/1/a"), ("c", "r/1/c")]
    assert only(commands, AskApproval).tag.call_id == "d"
    assert talk.session.calls[talk.step._replace(call_id=CallId("b"))] is CallState.FAILED


def test_a_model_without_tools_is_asked_once_without_them() -> None:
    talk = Talk()
    refusal = Error(ErrorKind.TOOLS_UNSUPPORTED, "No endpoints found that support tool use")
    commands = talk.say(ModelFailed, refusal)
    assert kinds(commands) == ["Note", "CallModel"]
    assert "takes no tools" in only(commands, Note).text
    assert only(commands, CallModel).request.tools == ()
    assert only(talk.say(ModelFailed, refusal), Finish).outcome is Outcome.FAILED
    proud = Talk(replace(OPTIONS, tool_fallback=ToolFallback.FAIL))
    reason = only(proud.say(ModelFailed, refusal), Finish).reason
    assert reason.startswith(f"tools_unsupported: {refusal.message}; use a model that takes tools, or tool_fallback")


def test_a_turn_cut_in_a_call_is_asked_again_then_told() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=2))
    cut = (call("a"), call("b", "look", '{"x', False))
    assert kinds(talk.respond(*cut, reason=FinishReason.LENGTH)) == ["Note", "CallModel"]
    commands = talk.respond(*cut, reason=FinishReason.LENGTH)
    assert kinds(commands) == ["Note", "RunTool", "ReportFailure", "SetTimer"]
    record = only(talk.say(ToolCallCompleted, "1", call="a"), RecordStep)
    assert codes(record) == ["", "incomplete_call"]
    assert isinstance(record.messages[-1], SystemMessage), "the note comes after the last result"


@pytest.mark.parametrize(
    ("reason", "text", "outcome", "told"),
    [
        (FinishReason.LENGTH, "half an", Outcome.ANSWERED, "cut off"),
        (FinishReason.REFUSAL, "I will not", Outcome.ANSWERED, "refused"),
        (FinishReason.REFUSAL, "", Outcome.FAILED, "refused"),
        (FinishReason.CONTENT_FILTER, "he", Outcome.FAILED, "content filter"),
        (FinishReason.STOP, "", Outcome.FAILED, "answered nothing"),
        (FinishReason.LENGTH, "", Outcome.FAILED, "before the model had answered; raise it"),
    ],
)
def test_how_an_answer_can_end(reason: FinishReason, text: str, outcome: Outcome, told: str) -> None:
    talk = Talk(replace(OPTIONS, max_attempts=1))
    finish = only(talk.respond(*([Text(text)] if text else []), reason=reason), Finish)
    assert (finish.outcome, finish.text) == (outcome, text)
    assert told in finish.reason


def test_a_paused_turn_is_sent_back_as_it_is() -> None:
    talk = Talk()
    commands = talk.respond(Text("searching"), reason=FinishReason.PAUSE)
    assert kinds(commands) == ["RecordStep", "CallModel"]
    assert only(commands, CallModel).request.messages[-1] == AssistantMessage((Text("searching"),))


def test_too_many_calls_in_one_turn() -> None:
    talk = Talk(replace(OPTIONS, max_attempts=1))
    finish = only(talk.respond(*(call(f"c{index}") for index in range(MAX_CALLS_PER_STEP + 1))), Finish)
    assert finish.outcome is Outcome.FAILED
    assert "129 calls" in finish.reason


def test_the_same_call_over_and_over() -> None:
    talk = Talk(replace(OPTIONS, repeated_call_limit=2))
    for arguments in ('{"x":1,"y":2}', '{"y":2,"x":1}'):
        talk.respond(call("a", "look", arguments))
        talk.say(ToolCallCompleted, "1", call="a")
    commands = talk.respond(call("a", "look", '{"y": 2, "x": 1}'))
    assert codes(only(commands, RecordStep)) == ["repeated"]
    commands = talk.respond(call("b"), call("a", "look", '{"x":1,"y":2}'))
    assert codes(only(commands, RecordStep)) == ["cancelled", "repeated"]
    assert only(commands, Finish).outcome is Outcome.REPEATED_CALLS


def test_polling_a_tool_whose_answers_change_is_no_loop() -> None:
    talk = Talk(replace(OPTIONS, repeated_call_limit=2, max_steps=40))
    for percent in range(30):
        assert kinds(talk.respond(call("a", "look", '{"job":1}'))) == ["RunTool", "SetTimer"]
        talk.say(ToolCallCompleted, f"{percent} % done", call="a")
    assert only(talk.respond(Text("done")), Finish).outcome is Outcome.ANSWERED


@pytest.mark.parametrize(
    ("failures", "is_loop"),
    [(["no such file"] * 4, True), ([f"{left} s left" for left in range(4)], False)],
    ids=["the same failure", "another failure each time"],
)
def test_a_call_that_fails_the_same_way_each_time_is_a_loop(failures: list[str], is_loop: bool) -> None:
    talk = Talk(OPTIONS)
    for message in failures[:3]:
        talk.respond(call("a"))
        talk.say(ToolCallFailed, ToolFailure(ToolName("look"), FailureCode.TOOL_ERROR, message), call="a")
    commands = talk.respond(call("a"))
    assert ("RunTool" in kinds(commands)) is not is_loop
    if is_loop:
        assert codes(only(commands, RecordStep)) == ["repeated"]


def test_a_loop_is_found_again_by_a_session_rebuilt_from_any_prefix_of_its_journal() -> None:
    talk = Talk(OPTIONS)
    start = RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), OPTIONS, STANDARD_TOOLS)
    for _ in range(3):
        talk.respond(call("a"), call("b", "quick"))
        for each in ("b", "a"):
            talk.say(ToolCallCompleted, each, call=each)
    assert codes(only(talk.respond(call("a"), call("b", "quick")), RecordStep)) == ["repeated", "repeated"]
    assert only(talk.respond(call("a")), Finish).outcome is Outcome.REPEATED_CALLS
    events = [event for event, _ in talk.said]
    for size in range(len(events)):
        rebuilt = Session.replay([start, *(decode_event(encode_event(event)) for event in events[:size])])
        assert [rebuilt.apply(event) for event in events[size:]] == [commands for _, commands in talk.said[size:]]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_order_in_which_calls_end_makes_no_other_result(order: str) -> None:
    """Two calls of one tool with the same arguments in each step, whose results differ."""
    talk = Talk(OPTIONS)
    for number in range(3):
        talk.respond(call("a"), call("b"))
        for each in order if number % 2 else "ab":
            talk.say(ToolCallCompleted, each, call=each)
    assert codes(only(talk.respond(call("a"), call("b")), RecordStep)) == ["repeated", "repeated"]


def test_models_are_not_told_of_a_denied_tool_and_a_call_of_one_is_denied() -> None:
    forced = ToolChoice(ToolChoiceMode.NAMED, ToolName("never"))
    talk = Talk(replace(OPTIONS, tool_choice=forced))
    request = only(talk.first, CallModel).request
    assert "never" not in [tool.name for tool in request.tools]
    assert request.tool_choice == ToolChoice(), "a tool that is not offered cannot be forced either"
    record = only(talk.respond(call("a", "never"), call("b", "nowhere")), RecordStep)
    assert codes(record) == ["denied", "unknown_tool"]
    unknown = orjson.loads(record.messages[-1].content)
    assert "look" in unknown["expected"]
    assert "never" not in unknown["expected"]


def test_a_request_whose_tools_are_all_denied_is_one_without_tools() -> None:
    denied = tuple(replace(offer, decision=Decision.DENY) for offer in STANDARD_TOOLS)
    options = replace(OPTIONS, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED), parallel_tool_calls=True)
    talk = Talk(options, tools=denied)
    request = only(talk.first, CallModel).request
    assert (request.tools, request.tool_choice, request.parallel_tool_calls) == ((), ToolChoice(), None)
    commands = talk.say(ModelFailed, Error(ErrorKind.TOOLS_UNSUPPORTED, "takes no tools"))
    assert only(commands, Finish).outcome is Outcome.FAILED, "there are no tools to leave out"


def test_max_steps_stops_before_the_next_call() -> None:
    talk = Talk(replace(OPTIONS, max_steps=1))
    talk.respond(Text("hm"), call("a"))
    commands = talk.say(ToolCallCompleted, "1", call="a")
    assert kinds(commands) == ["ClearTimer", "RecordStep", "ClearTimer", "Finish"]
    assert (only(commands, Finish).outcome, only(commands, Finish).text) == (Outcome.STEP_LIMIT, "hm")
    assert isinstance(commands[0], ClearTimer)


def test_token_and_cost_budgets() -> None:
    assert only(Talk(replace(OPTIONS, token_budget=5)).first, Finish).outcome is Outcome.TOKEN_LIMIT
    priced = replace(OPTIONS, cost_budget=1.0, input_price=0.001, output_price=0.01)
    talk = Talk(priced, tools=())
    limit = only(talk.first, CallModel).request.sampling.max_output_tokens
    assert limit == int((1.0 - 0.007) / 0.01), "7 tokens of input: what remains buys the output"
    assert only(Talk(replace(priced, cost_budget=0.05)).first, Finish).outcome is Outcome.COST_LIMIT


def test_a_forced_call_is_forced_once() -> None:
    talk = Talk(replace(OPTIONS, tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)))
    assert only(talk.first, CallModel).request.tool_choice.mode is ToolChoiceMode.REQUIRED
    talk.respond(call("a"))
    commands = talk.say(ToolCallCompleted, "1", call="a")
    assert only(commands, CallModel).request.tool_choice.mode is ToolChoiceMode.AUTO


def test_resume_after_a_crash() -> None:
    assert Session().resume_commands() == ()
    assert Session().loss_event(1.0) is None
    talk = Talk()
    talk.respond(call("a"), call("b"))
    talk.say(ToolCallStarted, call="a")
    assert talk.session.resume_commands() == (SetTimer(REQUEST, 1_800.0),)
    assert talk.session.loss_event(9.0) == ToolsLost(talk.step, 9.0)
    talk.session.apply(CancelRequested(REQUEST, 1.0))
    assert kinds(talk.session.resume_commands()) == ["RecordStep", "ClearTimer", "Finish"]
    assert talk.session.loss_event(9.0) is None


def test_what_a_journal_must_hold() -> None:
    talk = Talk()
    delta = ModelStreamed(talk.step, 1.0, (TextDelta("so "),))
    assert talk.session.to_journal(delta) == ()
    talk.session.apply(delta)
    talk.session.apply(replace(delta, events=(TextDelta("far"),)))
    cancel = CancelRequested(REQUEST, 2.0)
    assert talk.session.to_journal(cancel) == (
        ModelStreamed(talk.step, 2.0, (Restarted("journal"), TextDelta("so far"))),
        cancel,
    )
    whole = ModelResponded(talk.step, 2.0, ModelResponse((Text("so far"),)))
    assert talk.session.to_journal(whole) == (whole,)


def test_an_answer_that_is_only_a_call_written_as_text_is_asked_again_and_noted() -> None:
    written = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    talk = Talk(replace(OPTIONS, max_attempts=2))
    commands = talk.respond(Text(written))
    assert kinds(commands) == ["Note", "CallModel"]
    assert only(commands, Note).kind is NoteKind.ASKED_AGAIN
    assert "wrote a call of look as text, in its own markup, which is not run." in only(commands, Note).text
    commands = talk.respond(Text(written))
    assert (only(commands, Finish).outcome, only(commands, Finish).text) == (Outcome.ANSWERED, written)
    assert only(commands, Note).text == only(commands, Finish).reason == WRITTEN_CALL_TOLD.format("look")


def test_an_answer_that_quotes_a_call_or_names_a_tool_that_was_not_offered_is_an_answer() -> None:
    for text in (
        'Hermes writes <tool_call>{"name": "look", "arguments": {}}</tool_call>.',
        '<tool_call>{"name": "fetch", "arguments": {}}</tool_call>',
    ):
        finish = only(Talk().respond(Text(text)), Finish)
        assert (finish.outcome, finish.reason, finish.text) == (Outcome.ANSWERED, "", text)

"""Structured output in the session: how it asks, what it takes, what the model reads, and when it gives up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import CallModel, Command, Finish, Note, NoteKind, Outcome, RecordStep, RunTool
from callboard.protocol.content import (
    AssistantMessage,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.errors import ErrorKind, ProtocolError, UsageError
from callboard.protocol.events import Event, ModelFailed, ModelResponded, RequestStarted, ToolCallCompleted
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import OUTPUT_TRIES
from callboard.protocol.machine import Session, check_start
from callboard.protocol.model import Error, FinishReason, ModelResponse, ToolChoice, ToolChoiceMode, Usage
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.output import OUTPUT_TOOL, Checked, OutputMode, OutputSpec, answers_in, mode_of, named_apart
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.tools import ToolDefinition

REQUEST = Tag(RequestId("r"), MessageId("m"))
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SPEC = OutputSpec(SCHEMA, "Point")
LOOK = ToolOffer(ToolDefinition(ToolName("look"), "looks"))
FITS, MISFIT = Checked(), Checked("x: Field required")
NATIVE, TOOL, PROMPT = OutputMode


def tag(step: int) -> Tag:
    return REQUEST.at_step(step)


def call(call_id: str, arguments: str = '{"x": 1}', tool: str = OUTPUT_TOOL, *, complete: bool = True) -> ToolCall:
    return ToolCall(CallId(call_id), ToolName(tool), arguments, complete)


def responded(
    step: int, *parts: Any, checked: Iterable[Checked] = (), reason: FinishReason | None = None
) -> ModelResponded:
    calls = any(isinstance(part, ToolCall) for part in parts)
    response = ModelResponse(
        parts, reason or (FinishReason.TOOL_CALLS if calls else FinishReason.STOP), usage=Usage(9, 3)
    )
    return ModelResponded(tag(step), 1.0, response, 0.0, checked=tuple(checked))


def begun(spec: OutputSpec = SPEC, *tools: ToolOffer, **options: Any) -> tuple[Session, list[Command]]:
    session = Session()
    asked = RequestOptions("sim/m", output=spec, **options)
    return session, list(session.apply(RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), asked, tools)))


def of(kind: type[Any], commands: Iterable[Command]) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def model_call(commands: Iterable[Command]) -> CallModel:
    (found,) = of(CallModel, commands)
    assert isinstance(found, CallModel)
    return found


def finish(commands: Iterable[Command]) -> Finish:
    (found,) = of(Finish, commands)
    assert isinstance(found, Finish)
    return found


def recorded(commands: Iterable[Command]) -> tuple[Any, ...]:
    (found,) = of(RecordStep, commands)
    return tuple(found.messages)


# -- how it is asked


def test_a_schema_of_the_api_s_own_and_nothing_else() -> None:
    request = model_call(begun(SPEC, LOOK)[1]).request
    assert request.response_schema == SCHEMA
    assert request.tools == (LOOK.definition,)
    assert request.messages == (UserMessage.of("go"),)


def test_a_tool_whose_arguments_are_the_answer_and_a_word_about_it() -> None:
    request = model_call(begun(replace(SPEC, modes=(TOOL, PROMPT)), LOOK)[1]).request
    assert request.response_schema is None
    assert [tool.name for tool in request.tools] == ["look", OUTPUT_TOOL]
    assert request.tools[1].parameters == SCHEMA
    assert request.messages[0] == SystemMessage(
        f"Give your final answer by calling the tool {OUTPUT_TOOL}, not as text."
    )


def test_words_with_the_schema_behind_the_instructions() -> None:
    _, commands = begun(replace(SPEC, modes=(PROMPT,), description="A place."), system_prompt="Be brief.")
    request = model_call(commands).request
    assert (request.response_schema, request.tools) == (None, ())
    first = request.messages[0]
    assert isinstance(first, SystemMessage)
    told, _, schema = first.text.rpartition("\n")
    assert told.startswith("Be brief.\n\nGive your final answer (A place.) as one JSON object")
    assert json.loads(schema) == SCHEMA


@pytest.mark.parametrize(
    ("modes", "alone", "options", "tools", "expected"),
    [
        ((NATIVE, TOOL), False, {}, (LOOK,), NATIVE),
        ((NATIVE, TOOL), True, {}, (LOOK,), TOOL),
        ((NATIVE, TOOL), True, {}, (), NATIVE),
        ((NATIVE,), True, {}, (LOOK,), NATIVE),  # chosen by the asker
        ((TOOL, PROMPT), False, {"tool_choice": ToolChoice(ToolChoiceMode.NONE)}, (LOOK,), PROMPT),
        ((TOOL,), False, {"takes_tools": False}, (), PROMPT),
        ((TOOL,), False, {"takes_tools": False}, (LOOK,), PROMPT),
    ],
)
def test_which_way_is_taken(
    modes: tuple[OutputMode, ...],
    alone: bool,
    options: dict[str, Any],
    tools: tuple[ToolOffer, ...],
    expected: OutputMode,
) -> None:
    _, commands = begun(replace(SPEC, modes=modes, is_native_alone=alone), *tools, **options)
    request = model_call(commands).request
    names = [tool.name for tool in request.tools]
    words = any(isinstance(message, SystemMessage) and "JSON Schema" in message.text for message in request.messages)
    found = {"native": request.response_schema is not None, "tool": OUTPUT_TOOL in names, "prompt": words}
    assert found == {mode.value: mode is expected for mode in OutputMode}


def test_mode_of_falls_back_to_words() -> None:
    assert mode_of(SPEC, (TOOL,), has_tools=False, takes_calls=False) is PROMPT


def test_a_model_that_refuses_tools_is_asked_in_words_also_where_others_must_not_be_given_up() -> None:
    session, _ = begun(replace(SPEC, modes=(TOOL, PROMPT)), tool_fallback=ToolFallback.FAIL)
    refused = Error(ErrorKind.TOOLS_UNSUPPORTED, "no tools")
    commands = session.apply(ModelFailed(tag(1), 1.0, refused))
    assert model_call(commands).request.tools == ()
    with_tools, _ = begun(replace(SPEC, modes=(TOOL, PROMPT)), LOOK, tool_fallback=ToolFallback.FAIL)
    assert finish(with_tools.apply(ModelFailed(tag(1), 1.0, refused))).outcome is Outcome.FAILED


def test_a_model_that_refuses_the_schema_is_asked_in_the_next_way_once() -> None:
    session, _ = begun(SPEC)
    refused = Error(ErrorKind.SCHEMA_UNSUPPORTED, "no response_format")
    commands = session.apply(ModelFailed(tag(1), 1.0, refused, model="other/m"))
    (note,) = of(Note, commands)
    assert note.kind is NoteKind.SCHEMA_FALLBACK
    assert note.text == "other/m takes no schema of the answer, or not this one; it is asked to answer by a tool call."
    request = model_call(commands).request
    assert request.model == "other/m"
    assert (request.response_schema, [tool.name for tool in request.tools]) == (None, [OUTPUT_TOOL])
    end = finish(session.apply(ModelFailed(tag(2), 2.0, refused)))
    assert end.outcome is Outcome.FAILED
    assert end.reason.endswith("no response_format; leave the output's mode open, or choose another one: tool, prompt")


def test_a_mode_that_the_asker_chose_is_not_left() -> None:
    session, _ = begun(replace(SPEC, modes=(NATIVE,)))
    assert (
        finish(session.apply(ModelFailed(tag(1), 1.0, Error(ErrorKind.SCHEMA_UNSUPPORTED, "no")))).outcome
        is Outcome.FAILED
    )


def test_the_schema_counts_as_tokens_of_the_prompt_in_each_way() -> None:
    plain, _ = Session(), None
    bare = plain.apply(RequestStarted(REQUEST, 0.0, (), UserMessage.of("go"), RequestOptions("sim/m")))
    least = model_call(bare).prompt_tokens + estimate_tokens(json.dumps(SCHEMA)) // 2
    for mode in OutputMode:
        assert model_call(begun(replace(SPEC, modes=(mode,)))[1]).prompt_tokens > least


def test_after_the_fallback_the_tokens_are_those_of_what_is_sent() -> None:
    session, _ = begun(SPEC)
    again = session.apply(ModelFailed(tag(1), 1.0, Error(ErrorKind.SCHEMA_UNSUPPORTED, "no")))
    fresh = model_call(begun(replace(SPEC, modes=(TOOL, PROMPT)))[1])
    assert model_call(again).prompt_tokens == fresh.prompt_tokens


# -- what is taken, and what the model reads


def test_a_text_that_fits_is_the_answer() -> None:
    session, _ = begun()
    end = finish(session.apply(responded(1, Text('{"x": 1}'), checked=[FITS])))
    assert (end.outcome, end.text, end.reason) == (Outcome.ANSWERED, '{"x": 1}', "")


@pytest.mark.parametrize("mode", OutputMode)
def test_a_text_that_does_not_is_told_what_is_wrong_and_what_is_wanted(mode: OutputMode) -> None:
    session, _ = begun(replace(SPEC, modes=(mode,)))
    commands = session.apply(responded(1, Text("{}"), checked=[MISFIT]))
    turn, told = recorded(commands)
    assert turn == AssistantMessage((Text("{}"),))
    assert isinstance(told, SystemMessage)
    assert "x: Field required" in told.text
    assert (OUTPUT_TOOL if mode is TOOL else '"required":["x"]') in told.text
    assert model_call(commands).request.messages[-2:] == (turn, told)
    assert not history_faults((UserMessage.of("go"), turn, told))
    assert [note.text for note in of(Note, commands)] == ["The answer does not fit Point (try 1 of 3)."]


def test_it_is_given_up_after_so_many_tries_with_the_text_kept() -> None:
    session, _ = begun(max_steps=9)
    for step in range(1, OUTPUT_TRIES):
        assert session.apply(responded(step, Text(f"no {step}"), checked=[MISFIT]))
    end = finish(session.apply(responded(OUTPUT_TRIES, Text("no"), checked=[MISFIT])))
    assert (end.outcome, end.text) == (Outcome.FAILED, "no")
    assert end.reason == "The answer does not fit Point, after 3 tries: x: Field required"
    assert not history_faults((UserMessage.of("go"), *session.recorded))


def test_tries_are_steps() -> None:
    session, _ = begun(max_steps=1)
    end = finish(session.apply(responded(1, Text("{}"), checked=[MISFIT])))
    assert end.outcome is Outcome.STEP_LIMIT


@pytest.mark.parametrize(
    ("reason", "told"), [(FinishReason.LENGTH, "cut off at the limit"), (FinishReason.REFUSAL, "The model refused.")]
)
def test_a_cut_or_refused_answer_is_said_to_be_that(reason: FinishReason, told: str) -> None:
    session, _ = begun()
    checked = [] if reason is FinishReason.REFUSAL else [MISFIT]
    end = finish(session.apply(responded(1, Text('{"x": '), checked=checked, reason=reason)))
    assert end.outcome is Outcome.FAILED
    assert told in end.reason
    assert end.finish_reason is reason


def test_a_cut_answer_that_fits_all_the_same_is_taken() -> None:
    session, _ = begun()
    end = finish(session.apply(responded(1, Text('{"x": 1} and so'), checked=[FITS], reason=FinishReason.LENGTH)))
    assert end.outcome is Outcome.ANSWERED


def test_a_check_that_fails_itself_ends_the_request_and_is_named() -> None:
    session, _ = begun()
    broken = Checked("the check of Point raised KeyError: 'y'", is_broken=True)
    end = finish(session.apply(responded(1, Text("{}"), checked=[broken])))
    assert end.outcome is Outcome.FAILED
    assert end.reason == "The answer could not be checked: the check of Point raised KeyError: 'y'"


# -- the output tool


def by_tool(*tools: ToolOffer, **options: Any) -> Session:
    return begun(replace(SPEC, modes=(TOOL, PROMPT)), *tools, **options)[0]


def test_a_call_that_fits_ends_the_request_with_its_result() -> None:
    session = by_tool()
    commands = session.apply(responded(1, call("a"), checked=[FITS]))
    turn, result = recorded(commands)
    assert not of(RunTool, commands)
    assert isinstance(result, ToolMessage)
    assert (result.content, result.is_error) == ("The answer was taken.", False)
    end = finish(commands)
    assert (end.outcome, json.loads(end.text)) == (Outcome.ANSWERED, {"x": 1})
    assert not history_faults((UserMessage.of("go"), turn, result))


def test_a_call_that_does_not_fit_reads_why() -> None:
    session = by_tool()
    commands = session.apply(responded(1, call("a", "{}"), checked=[MISFIT]))
    _, result = recorded(commands)
    told = json.loads(result.content)
    assert (told["ok"], told["code"], result.is_error) == (False, "invalid_arguments", True)
    assert "x: Field required" in told["message"]
    assert OUTPUT_TOOL in told["retry_hint"]
    assert finish(session.apply(responded(2, call("a"), checked=[FITS]))).outcome is Outcome.ANSWERED


def test_other_calls_of_the_turn_run_and_no_model_call_follows() -> None:
    session = by_tool(LOOK)
    commands = session.apply(responded(1, call("a"), call("b", "{}", "look"), checked=[FITS]))
    assert [run.name for run in of(RunTool, commands)] == ["look"]
    done = session.apply(ToolCallCompleted(tag(1)._replace(call_id=CallId("b")), 2.0, "seen"))
    assert not of(CallModel, done)
    assert [message.content for message in recorded(done)[1:]] == ["The answer was taken.", "seen"]
    assert finish(done).outcome is Outcome.ANSWERED


def test_of_several_the_first_that_fits_is_taken() -> None:
    session = by_tool()
    parts = (call("a", "{}"), call("b", '{"x": 2}'), call("c", '{"x": 3}'))
    commands = session.apply(responded(1, *parts, checked=[MISFIT, FITS, FITS]))
    assert json.loads(finish(commands).text) == {"x": 2}
    results = recorded(commands)[1:]
    assert [result.is_error for result in results] == [True, False, False]
    assert results[2].content == "Another answer of this turn was taken."


def test_a_call_that_is_not_whole_is_no_answer() -> None:
    session = by_tool()
    commands = session.apply(responded(1, call("a", '{"x":', complete=False)))
    (result,) = recorded(commands)[1:]
    assert json.loads(result.content)["code"] == "incomplete_call"
    assert model_call(commands)


def test_the_same_wrong_answer_is_no_loop_of_calls() -> None:
    session, _ = begun(replace(SPEC, modes=(TOOL,), max_tries=9), repeated_call_limit=2)
    for step in range(1, 9):
        assert model_call(session.apply(responded(step, call("a", "{}"), checked=[MISFIT])))
    assert finish(session.apply(responded(9, call("a", "{}"), checked=[MISFIT]))).outcome is Outcome.FAILED


def test_an_answer_beside_a_loop_is_taken() -> None:
    session = by_tool(LOOK, repeated_call_limit=2)
    for step in range(1, 4):
        session.apply(responded(step, call("b", "{}", "look")))
        if step < 3:
            session.apply(ToolCallCompleted(tag(step)._replace(call_id=CallId("b")), 2.0, "the same"))
    commands = session.apply(responded(4, call("a"), call("b", "{}", "look"), checked=[FITS]))
    assert finish(commands).outcome is Outcome.ANSWERED


def test_the_last_wrong_answer_beside_other_calls_ends_the_request_when_they_have_ended() -> None:
    session = begun(replace(SPEC, modes=(TOOL,), max_tries=1), LOOK)[0]
    session.apply(responded(1, call("a", "{}"), call("b", "{}", "look"), checked=[MISFIT]))
    end = finish(session.apply(ToolCallCompleted(tag(1)._replace(call_id=CallId("b")), 2.0, "seen")))
    assert (end.outcome, end.text) == (Outcome.FAILED, "{}")


def test_a_name_that_a_tool_has_is_not_taken() -> None:
    offered = ToolOffer(ToolDefinition(OUTPUT_TOOL, "a tool of the user's"))
    with pytest.raises(UsageError, match="has the name of a tool on offer"):
        check_start((), RequestOptions("sim/m", output=SPEC), (offered,))
    assert named_apart(SPEC, {OUTPUT_TOOL}).tool_name == "final_answer_2"
    assert named_apart(SPEC, {OUTPUT_TOOL, ToolName("final_answer_2")}).tool_name == "final_answer_3"
    assert named_apart(SPEC, {ToolName("look")}) is SPEC


@pytest.mark.parametrize(
    ("wrong", "told"), [({"max_tries": 0}, "max_tries must be 1 or more"), ({"modes": ()}, "names no mode")]
)
def test_a_wrong_spec_begins_nothing(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        check_start((), RequestOptions("sim/m", output=replace(SPEC, **wrong)))


# -- what comes in


def test_answers_that_were_not_checked_are_refused_and_change_nothing() -> None:
    session, _ = begun()
    for wrong in (
        responded(1, Text("{}")),
        responded(1, Text("{}"), checked=[FITS, FITS]),
        responded(1, call("z", tool="look"), checked=[FITS]),
    ):
        with pytest.raises(ProtocolError, match="answers to check"):
            session.apply(wrong)
    assert finish(session.apply(responded(1, Text("{}"), checked=[FITS]))).outcome is Outcome.ANSWERED


def test_which_parts_of_a_turn_are_answers() -> None:
    def answers(*parts: Any, reason: FinishReason = FinishReason.STOP) -> tuple[str, ...]:
        return answers_in(ModelResponse(parts, reason), OUTPUT_TOOL)

    assert answers(Text("a"), Text("b")) == ("ab",)
    assert answers(Text("a"), call("c", "{}")) == ("{}",)
    assert answers(Text("a"), call("c", "{}", "look")) == ()
    assert answers(call("c", "[1]"), call("d", "{", complete=False)) == ()
    assert answers(Text("a"), reason=FinishReason.REFUSAL) == ()
    assert answers() == ()


def test_a_journal_replays_without_a_validator() -> None:
    session, _ = begun(replace(SPEC, modes=(TOOL,)), LOOK)
    events: list[Event] = [
        RequestStarted(
            REQUEST,
            0.0,
            (),
            UserMessage.of("go"),
            RequestOptions("sim/m", output=replace(SPEC, modes=(TOOL,))),
            (LOOK,),
        ),
        responded(1, call("a", "{}"), checked=[MISFIT]),
        responded(2, call("a"), checked=[FITS]),
    ]
    for event in events[1:]:
        session.apply(event)
    replayed = Session.replay(decode_event(encode_event(event)) for event in events)
    assert replayed.recorded == session.recorded
    assert replayed.resume_commands() == session.resume_commands()

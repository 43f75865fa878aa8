"""The rules about answers of a certain form."""

from __future__ import annotations

from collections.abc import Iterator

from callboard.protocol.commands import AskApproval, Outcome, RunTool
from callboard.protocol.content import AssistantMessage, SystemMessage
from callboard.protocol.events import ModelResponded
from callboard.protocol.output import Checked, OutputMode
from callboard.protocol.testing.expected import ExpectedTurn, Follows, expected_turns, modes
from callboard.protocol.testing.expected_output import answers_of, words_about
from callboard.protocol.testing.story import ModelRun, Story, without_notices


def answers_fit(story: Story) -> Iterator[str]:
    """I30: a request with an output is answered by what was checked and fits, after no more tries than it may have.

    The model is asked in one way at a time; it reads what is wrong with each answer that does not fit; the output tool
    is never run, nor asked about.
    """
    spec = story.start.options.output if story.start is not None else None
    if spec is None:
        return
    yield from _wrong_end(story, spec.tool_name)
    for command in (*story.given(RunTool), *story.given(AskApproval)):
        if command.name == spec.tool_name:
            yield f"the output tool was handed out: {command.tag}"
    turns = expected_turns(story)
    failed = sum(turn.answer is not None and bool(turn.answer.misfit) for turn in turns)
    if failed > spec.max_tries:
        yield f"{failed} answers did not fit, {spec.max_tries} may be tried"
    expected = modes(story)
    for model in story.models:
        yield from _wrong_way(story, model, expected[model.command.tag])
    for turn in turns:
        if turn.follows is Follows.MISFIT:
            yield from _untold(turn)
        if _is_broken(turn) and turn.model is not story.models[-1]:
            yield f"the check of step {turn.model.command.tag.step} failed itself, and the model was asked again"


def _is_broken(turn: ExpectedTurn) -> bool:
    event = turn.model.end.event if turn.model.end is not None else None
    if not isinstance(event, ModelResponded) or turn.answer is None or not turn.answer.misfit:
        return False
    return any(verdict.is_broken for verdict in event.checked)


def _wrong_end(story: Story, tool_name: str) -> Iterator[str]:
    end = story.finish()
    if end is None or end[1].outcome is not Outcome.ANSWERED:
        return
    event = story.models[-1].end.event if story.models and story.models[-1].end is not None else None
    if not isinstance(event, ModelResponded):
        yield "it was answered without a turn"
        return
    texts = answers_of(event.response, tool_name)
    verdicts: dict[str, Checked] = dict(zip(texts, event.checked, strict=True))
    if end[1].text not in verdicts or verdicts[end[1].text].misfit:
        yield f"it was answered by {end[1].text!r}, which does not fit"


def _wrong_way(story: Story, model: ModelRun, mode: OutputMode | None) -> Iterator[str]:
    assert story.start is not None
    spec, request, step = story.start.options.output, model.command.request, model.command.tag.step
    assert spec is not None
    if (request.response_schema is not None) != (mode == "native"):
        yield f"model call {step} is to be asked by {mode}, and its schema is {request.response_schema}"
    tools = [tool for tool in request.tools if tool.name == spec.tool_name]
    if bool(tools) != (mode == "tool") or any(tool.parameters != spec.schema for tool in tools):
        yield f"model call {step} is to be asked by {mode}, and its output tool is {tools}"
    if any(spec.title not in tool.description or spec.description not in tool.description for tool in tools):
        yield f"model call {step} has an output tool that does not say what is wanted: {tools}"
    first = request.messages[0]
    head = first.text if isinstance(first, SystemMessage) else ""
    for other in ("native", "tool", "prompt"):
        words = words_about(spec, other)
        if words and all(word in head for word in words) != (other == mode):
            yield f"model call {step} is to be asked by {mode}, its instructions are {head!r}"


def _untold(turn: ExpectedTurn) -> Iterator[str]:
    record, answer = turn.model.record, turn.answer
    if record is None or answer is None:
        return
    told = [message.text for message in without_notices(record.messages) if isinstance(message, SystemMessage)]
    if not isinstance(record.messages[0], AssistantMessage) or len(told) != 1 or answer.misfit not in told[0]:
        yield f"the answer of step {turn.model.command.tag.step} does not fit, and the model reads {told!r:.300}"

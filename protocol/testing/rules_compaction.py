"""The rule about compaction: what is left out of a prompt, what is in its place, and who may ask for a summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Note, NoteKind, RecordCompaction
from callboard.protocol.compaction import Compacted, Compaction
from callboard.protocol.content import Message, SystemMessage, ToolMessage, UserMessage, split_atoms
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelLost, ModelResponded
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose, FinishReason, ModelResponse
from callboard.protocol.prompt_tokens import estimate_tokens, message_tokens
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.story import ModelRun, Story
from callboard.protocol.tools import Decision

_READ: Final = "read_earlier_messages"
#: Results of up to so many characters are not cleared (docs/protocol.md, "Compaction").
_SHORT_CHARS: Final = 400
_WRITTEN_BADLY: Final = frozenset({FinishReason.REFUSAL, FinishReason.CONTENT_FILTER})
_REFUSES: Final = frozenset({ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED})
_REPEATED: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})


# What a prompt shows of what was compacted: a second reading, by docs/protocol.md.


def compacted_history(story: Story, compacted: Compacted, leading: int, *, told: bool) -> tuple[Message, ...]:
    """The history behind its leading instructions: one message for what is left out, and results that are cleared."""
    assert story.start is not None
    history, reads = story.earlier, _reads(story, told=told)
    begin = max(leading, compacted.left_out)
    rest = _cleared(history[begin:], begin + 1, compacted.cleared, reads=reads)
    return (*_in_their_place(leading + 1, compacted, reads=reads), *rest)


def shown_steps(story: Story, model: ModelRun, *, told: bool) -> list[tuple[Message, ...]]:
    """The finished steps before this model call, with the results that are cleared."""
    assert story.start is not None
    number, reads, shown = len(story.earlier) + 2, _reads(story, told=told), []
    for step in (*split_atoms(story.begun), *(record.messages for record in story.records[: model.records_before])):
        shown.append(_cleared(step, number, model.compacted.cleared, reads=reads))
        number += len(step)
    return shown


def _reads(story: Story, *, told: bool) -> bool:
    assert story.start is not None
    tools = [offer for offer in story.start.tools if offer.decision is not Decision.DENY]
    return not told and any(offer.definition.name == _READ for offer in tools)


def _in_their_place(first: int, compacted: Compacted, *, reads: bool) -> tuple[Message, ...]:
    if compacted.left_out < first:
        return ()
    said = f"Note, not written by the user: messages {first} to {compacted.left_out} of this conversation are left out."
    if reads:
        said += f" {_READ} shows their exact words, by number or by words in them."
    if compacted.summary:
        said += f" This is a summary of messages {first} to {compacted.summarised}:"
    summary = f"\n<summary>\n{compacted.summary}\n</summary>" if compacted.summary else ""
    return (UserMessage.of(f"[{said}]{summary}"),)


def _cleared(messages: Sequence[Message], first: int, last: int, *, reads: bool) -> tuple[Message, ...]:
    shown: list[Message] = []
    for number, message in enumerate(messages, first):
        if isinstance(message, ToolMessage) and number <= last and len(message.content) > _SHORT_CHARS:
            what = "error" if message.is_error else "result"
            said = f"The {what} of this call ({len(message.content):,} characters) was cleared to make room."
            hint = f" {_READ}(first={number}) shows it." if reads else ""
            message = replace(message, content=f"[{said}{hint}]")
        shown.append(message)
    return tuple(shown)


def models_asked(story: Story) -> dict[Tag, str]:
    """Which model each call has to ask: that of the request or, once a fallback has refused tools or a schema, that."""
    assert story.start is not None
    name, found = story.start.options.model, {}
    for model in story.asked:
        found[model.command.tag] = name
        event = model.end.event if model.end is not None else None
        is_turn = model.command.purpose is CallPurpose.TURN
        if is_turn and isinstance(event, ModelFailed) and event.error.kind in _REFUSES and event.model:
            name = event.model
    return found


# I28.


def compacts(story: Story) -> Iterator[str]:
    """I28: where it is asked for, and there alone, older messages are summarised, by at most one summary a request.

    A summary is asked for before a step, without tools, of messages that are left out then, and by calls that end as
    those of a step do; it takes the place of whole exchanges before the question, and what is cleared, summarised or
    left out is recorded, and only grows. One that could not be made is noted, and the request goes on.
    """
    if story.start is None:
        return
    options, history = story.start.options, story.start.history
    before = story.start.compacted
    if options.compaction is None:
        if any(model.is_summary for model in story.asked) or story.given(RecordCompaction):
            yield "a conversation was compacted, and no one asked for it"
        return
    yield from _wrong_calls(story, options.compaction)
    known = len(history)
    for reaction in story.reactions:
        if reaction.event is None:
            continue
        for command in reaction.given(RecordCompaction):
            steps = sum(len(record.messages) for record in story.records)
            yield from _wrong_record(before, command.compacted, history, known + 1 + steps)
            before = command.compacted


def _wrong_record(before: Compacted, now: Compacted, history: Sequence[Message], known: int) -> Iterator[str]:
    if now.left_out < before.left_out or now.summarised < before.summarised or now.cleared < before.cleared:
        yield f"what was compacted went back from {before} to {now}"
    if not now.summarised <= now.left_out <= len(history) or now.cleared > known:
        yield f"of {len(history)} messages before the question, {now.left_out} are left out, {now.cleared} cleared"
    if (now.summary != before.summary) is not (now.summarised > before.summarised):
        yield f"another summary of the same messages, or the same of others: {now}"
    rest = history[now.left_out :]
    if now.left_out > before.left_out and rest and not isinstance(rest[0], UserMessage):
        yield f"what is left out ends before {type(rest[0]).__name__}, in the middle of an exchange"


def _wrong_calls(story: Story, compaction: Compaction) -> Iterator[str]:
    made, sent, previous = 0, 0, None
    for model in story.asked:
        again = previous is not None and previous.is_summary and model.is_summary
        if model.is_summary:
            made += not again
            sent = sent if again else 0
            yield from _wrong_call(story, compaction, model, sent)
            if model.end is not None:
                sent += model.requests
                yield from _wrong_end(story, model, sent)
        previous = model
    if made > 1:
        yield f"{made} summaries were asked for in one request"


def _wrong_call(story: Story, compaction: Compaction, model: ModelRun, sent: int) -> Iterator[str]:
    assert story.start is not None
    request, step, options = model.command.request, model.command.tag.step, story.start.options
    if compaction.summarise_at is None:
        yield f"model call {step} asks for a summary, which is switched off"
    if request.tools or request.response_schema is not None:
        yield f"model call {step} asks for a summary and offers tools"
    told, asked = request.messages[0], request.messages[-1]
    if len(request.messages) != 2 or not isinstance(told, SystemMessage) or not isinstance(asked, UserMessage):
        yield f"model call {step} asks for a summary by {len(request.messages)} messages"
    elif model.compacted.summary and model.compacted.summary not in asked.text:
        yield f"model call {step} asks for a summary and leaves out the one before"
    if request.model != (compaction.model or models_asked(story)[model.command.tag]):
        yield f"model call {step} asks {request.model!r} for a summary"
    most, window = request.sampling.max_output_tokens or 0, options.context_tokens
    if window is not None and not compaction.model and input_tokens(request) + most > window:
        yield f"model call {step} asks for a summary with {input_tokens(request)} tokens and {most}, of {window}"
    if model.command.attempts != options.max_attempts - sent:
        yield f"model call {step} may take {model.command.attempts} requests, {sent} were sent"


def _wrong_end(story: Story, model: ModelRun, sent: int) -> Iterator[str]:
    """What follows from the end of a call that asked for a summary."""
    assert model.end is not None
    assert story.start is not None
    end, event, options = model.end, model.end.event, story.start.options
    asked, recorded = end.given(CallModel), end.given(RecordCompaction)
    step, may_repeat = model.command.tag.step, False
    text = ""
    if isinstance(event, ModelResponded):
        text, may_repeat = _summary_in(event.response)
    elif isinstance(event, ModelFailed):
        may_repeat = event.error.kind in _REPEATED
    elif isinstance(event, ModelLost):
        may_repeat = True
    if text:
        made = recorded[0].compacted if recorded else Compacted()
        if not made.summary or not text.startswith(made.summary):
            yield f"model call {step} has a summary {text!r:.80}, recorded is {made.summary!r:.80}"
        return
    again = may_repeat and sent < options.max_attempts
    if again and _may_be_short(story, model):
        again = any(call.purpose is model.command.purpose for call in asked)  # what it costs, I6 asks
    if again is not any(call.purpose is model.command.purpose for call in asked):
        yield f"model call {step} gave no summary: asked again is {not again}"
    if not again and not any(note.kind is NoteKind.SUMMARY_FAILED for note in end.given(Note)):
        yield f"model call {step} gave no summary, and no note says so"
    if any(command.compacted.summary != model.compacted.summary for command in recorded):
        yield f"model call {step} gave no summary, and one was recorded"


def _may_be_short(story: Story, model: ModelRun) -> bool:
    """Are the budgets so low that they may not cover this call once more, together with the step behind it?"""
    assert story.start is not None
    options, request = story.start.options, model.command.request
    asked = [each for each in story.asked if each.command.tag.step <= model.command.tag.step]
    ends = [each.end.event for each in asked if each.end is not None]
    responses = [event.response for event in ends if isinstance(event, ModelResponded)]
    known = [response.usage for response in responses if response.usage is not None]
    used = sum(usage.total_tokens for usage in known) + sum(input_tokens(each.command.request) for each in asked)
    said = sum(message_tokens(message, estimate_tokens) for message in (*story.earlier, *story.begun))
    needed = 2 * (input_tokens(request) + said) + 2 * (request.sampling.max_output_tokens or 0)
    if options.token_budget is not None and used + needed > options.token_budget:
        return True
    price = max(options.input_price or 0.0, options.output_price or 0.0)
    paid = sum(event.cost or 0.0 for event in ends if isinstance(event, ModelResponded))
    return options.cost_budget is not None and paid + (used + needed) * price > options.cost_budget


def _summary_in(response: ModelResponse) -> tuple[str, bool]:
    """The summary, if it is one; and whether the same may be asked once more."""
    if response.error is not None:
        return "", response.error.kind in _REPEATED
    if response.finish_reason in _WRITTEN_BADLY:
        return "", False
    return ("" if response.tool_calls else response.text.strip()), True

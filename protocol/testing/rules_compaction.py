"""The rule about compaction: what is left out of a prompt, what is in its place, and who may ask for a summary."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from callboard.protocol.commands import CallModel, Finish, Note, NoteKind, RecordCompaction
from callboard.protocol.compaction import Compacted, Compaction, summary_request
from callboard.protocol.content import Message, SystemMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event, ModelFailed, ModelLost, ModelResponded
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose
from callboard.protocol.prompt_tokens import estimate_tokens
from callboard.protocol.testing.counted import tokens_of
from callboard.protocol.testing.expected_prompts import (
    REPEATED,
    DueSummary,
    as_data,
    expected_prompts,
    summary_in,
    told_of,
)
from callboard.protocol.testing.rules_limits import Spending, covers_aside, spending, spending_after, wrong_aside
from callboard.protocol.testing.story import ModelRun, Story

#: What stands around the summary before, where another one is asked for.
_BEFORE: Final = "<summary of what came before>"
_REFUSES: Final = frozenset({ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED})


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
    left out is recorded, and only grows. One that could not be made is noted, and the request goes on; a fault of
    callboard's own ends it.
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
        told = [note.text for note in reaction.given(Note) if note.kind is NoteKind.COMPACTED]
        for command in reaction.given(RecordCompaction):
            steps = sum(len(record.messages) for record in story.records)
            yield from _wrong_record(before, command.compacted, history, known + 1 + steps)
            said = _told(before, command.compacted)
            if said != told[:1]:
                yield f"what was compacted is told by {told}, due is {said}"
            before, told = command.compacted, told[1:]
        if told:
            yield f"{told} is told, and not recorded"


def _told(before: Compacted, now: Compacted) -> list[str]:
    """The note on what was done between these two."""
    done = []
    if now.cleared > before.cleared:
        done.append(f"the results of tool calls up to message {now.cleared} were cleared")
    if now.summarised > before.summarised:
        done.append(f"messages up to {now.summarised} were replaced by a summary")
    return [f"To make room, {' and '.join(done)}; the conversation keeps them all."] if done else []


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
    made, sent, due, tokens = 0, 0, None, 0
    spent = spending(story)
    for expected in expected_prompts(story):
        if (model := expected.model) is None:
            continue
        tag, ratio = model.command.tag, expected.ratio
        if model.compacted != expected.compacted:
            yield f"before model call {tag.step} {expected.compacted} is due, recorded was {model.compacted}"
        if not model.is_summary:
            needed = expected.tokens_before
            if expected.due is not None and _covered(story, spent[tag], expected.due, needed, ratio):
                yield f"before model call {tag.step} a summary is to be asked for: {expected.due}"
            continue
        if not expected.is_repeated:
            made, sent, due, tokens = made + 1, 0, expected.due, expected.tokens
        if due is None:
            yield f"model call {tag.step} asks for a summary, which is not due, or frees nothing"
            continue
        yield from _wrong_call(story, compaction, model, due, sent, ratio)
        if spent[tag].exact and not _covered(story, spent[tag], due, tokens, ratio, again=expected.is_repeated):
            yield f"model call {tag.step} asks for a summary, and the budgets do not cover it and the step behind it"
        if model.end is not None:
            sent += model.requests
            after = spending_after(story, model)
            is_covered = _covered(story, after, due, tokens, ratio, again=True) if after.exact else None
            yield from _wrong_end(story, model, due, sent, is_covered)
    if made > 1:
        yield f"{made} summaries were asked for in one request"


def _covered(story: Story, spent: Spending, due: DueSummary, tokens: int, ratio: float, *, again: bool = False) -> bool:
    """Whether window and budgets cover this summary together with the step behind it, which needs so many tokens."""
    assert story.start is not None
    size = math.ceil(tokens_of(_asks(story, due, ratio)) * ratio)
    return (again or size + due.most <= due.window) and covers_aside(story.start.options, spent, size, due.most, tokens)


@lru_cache(maxsize=2)
def _asks(story: Story, due: DueSummary, ratio: float) -> tuple[Message, ...]:
    """What asks for it. How that is worded is not for a rule; what it holds is."""
    assert story.start is not None
    before = f"{_BEFORE}\n{as_data(due.before)}\n{_BEFORE.replace('<', '</')}\n\n" if due.before else ""
    task, around = summary_request("", (), due.tokens, due.most, due.before).messages
    assert isinstance(around, UserMessage)
    begins, _, ends = around.text.partition(f"<conversation>\n{before}")
    room = int((due.window - due.most) / ratio) - tokens_of((task, around))
    lines = "\n\n".join(told_of(story.start.history, due, room))
    return task, UserMessage.of(f"{begins}<conversation>\n{before}{lines}{ends}")


def _wrong_call(
    story: Story, compaction: Compaction, model: ModelRun, due: DueSummary, sent: int, ratio: float
) -> Iterator[str]:
    assert story.start is not None
    request, step, options = model.command.request, model.command.tag.step, story.start.options
    told, asked = request.messages[0], request.messages[-1]
    if len(request.messages) != 2 or not isinstance(told, SystemMessage) or not isinstance(asked, UserMessage):
        yield f"model call {step} asks for a summary by {len(request.messages)} messages"
        return
    yield from wrong_aside(model, options, due.most)
    if f" {max(int(due.tokens * 0.6), 20)} words" not in told.text:
        yield f"model call {step} asks for a summary, which may have {due.tokens} tokens, by {told.text[-60:]!r}"
    if request.model != (compaction.model or models_asked(story)[model.command.tag]):
        yield f"model call {step} asks {request.model!r} for a summary"
    wanted = _asks(story, due, ratio)
    if request.messages != wanted:
        of = f"messages {due.first} to {due.last}"
        yield f"model call {step} asks for a summary by {request.messages!r:.300}, due is, of {of}, {wanted!r:.300}"
    if model.command.attempts != options.max_attempts - sent:
        yield f"model call {step} may take {model.command.attempts} requests, {sent} were sent"


def _may_repeat(event: Event | None) -> bool:
    """Whether the same summary may be asked for once more, of which nothing came."""
    return isinstance(event, ModelLost) or (isinstance(event, ModelFailed) and event.error.kind in REPEATED)


def _wrong_end(story: Story, model: ModelRun, due: DueSummary, sent: int, is_covered: bool | None) -> Iterator[str]:
    """What follows from the end of a call that asked for a summary."""
    assert model.end is not None
    assert story.start is not None
    end, event, options = model.end, model.end.event, story.start.options
    asked, recorded = end.given(CallModel), end.given(RecordCompaction)
    step = model.command.tag.step
    if isinstance(event, ModelFailed) and event.error.kind is ErrorKind.INTERNAL:
        if not end.given(Finish):
            yield f"model call {step} failed by a fault of callboard's own, and the request goes on"
        return
    text, may_repeat = summary_in(model) if isinstance(event, ModelResponded) else ("", _may_repeat(event))
    if text:
        made = recorded[0].compacted if recorded else Compacted()
        if not made.summary or not text.startswith(made.summary):
            yield f"model call {step} has a summary {text!r:.80}, recorded is {made.summary!r:.80}"
        size, kept = estimate_tokens(text), estimate_tokens(made.summary)
        if made.summary != text if size <= due.tokens else not due.tokens / 2 <= kept <= due.tokens:
            yield f"of a summary of {size} tokens {kept} are kept, it may have {due.tokens}"
        return
    again = may_repeat and sent < options.max_attempts
    if again and not is_covered:
        again = is_covered is None and any(call.purpose is model.command.purpose for call in asked)
    if again is not any(call.purpose is model.command.purpose for call in asked):
        yield f"model call {step} gave no summary: asked again is {not again}"
    if not again and not any(note.kind is NoteKind.SUMMARY_FAILED for note in end.given(Note)):
        yield f"model call {step} gave no summary, and no note says so"
    if any(command.compacted.summary != model.compacted.summary for command in recorded):
        yield f"model call {step} gave no summary, and one was recorded"

"""The rules about what is told at the end and on the way: reports, reasons, notes and failures, by what was played."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import orjson
from msgspec import Struct

from callboard.protocol.commands import (
    CallModel,
    CancelTool,
    Finish,
    Note,
    NoteKind,
    Outcome,
    RecordCompaction,
)
from callboard.protocol.content import AssistantMessage, ToolMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    RequestStarted,
    ToolCallStarted,
)
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_CALL_COST
from callboard.protocol.model import Usage
from callboard.protocol.reports import CallReport, StepReport
from callboard.protocol.testing.expected import (
    ASKED_AGAIN,
    ExpectedCall,
    ExpectedTurn,
    Follows,
    begins_without_tools,
    expected_turns,
)
from callboard.protocol.testing.rules_limits import can_be_true
from callboard.protocol.testing.story import CUT, SHORT, ModelRun, Reaction, Story, is_whole
from callboard.protocol.tools import FailureCode

#: Sums of virtual times, in seconds: what is told of a time is told exactly.
_EXACT: Final = 1e-6


# I33.


def reports_true(story: Story) -> Iterator[str]:
    """I33: the end reports each model call and each tool call as it was, field by field, and says why it ended so.

    Times are those of the events that began and ended it; tokens, dollars, ids and names are what was heard of it; a
    call has the code that the model reads, and the rule that decided on it.
    """
    for reaction in story.reactions if story.start is not None else ():
        if reaction.event is not None and not _GIVES_REASONS.isdisjoint(reaction.by_kind):
            yield from _wrong_reasons(story, reaction)
    end = story.finish()
    if end is None or story.start is None or not story.asked:
        return
    expected = list(_expected_steps(story))
    for told, step in zip(end[1].steps, expected, strict=False):  # I21 has the number of them
        yield from _differences(f"model call {step.step}", told, step, but="calls")
        for call, wanted in zip(told.calls, step.calls, strict=False):
            yield from _differences(f"call {wanted.call_id!r} of step {step.step}", call, wanted)
        if len(told.calls) != len(step.calls):
            yield f"model call {step.step} is reported with {len(told.calls)} calls, it had {len(step.calls)}"


_GIVES_REASONS: Final = frozenset({CancelTool, Finish})


def _wrong_reasons(story: Story, reaction: Reaction) -> Iterator[str]:
    """Why the request ended, as its end says it; and each call that is stopped, by the same where that stops it."""
    event, finishes = reaction.event, reaction.given(Finish)
    ends_all = isinstance(event, CancelRequested) or (isinstance(event, DeadlinePassed) and not event.tag.step)
    for command in reaction.given(CancelTool):
        if not command.reason or (ends_all and finishes and command.reason != finishes[0].reason):
            yield f"call {command.tag} was stopped because {command.reason!r}: {finishes[0].reason if finishes else ''}"
    for finish in finishes:
        if missing := [word for word in _reasons(story, reaction, finish) if word not in finish.reason]:
            yield f"the request ended as {finish.outcome} because {finish.reason!r}, which does not say {missing}"


def _reasons(story: Story, reaction: Reaction, finish: Finish) -> Iterator[str]:
    """What must stand in the reason."""
    assert story.start is not None
    event, options, outcome = reaction.event, story.start.options, finish.outcome
    turns = expected_turns(story)
    if isinstance(event, CancelRequested):
        yield event.reason
    elif outcome is Outcome.TIMED_OUT:
        yield f"{options.timeout_seconds:g} s"
        yield from _failures(story)
    elif outcome is Outcome.STEP_LIMIT:
        yield str(options.max_steps)
    elif outcome is Outcome.FAILED and turns and turns[-1].follows is Follows.GIVEN_UP and turns[-1].answer is not None:
        broken = [each.misfit for each in getattr(event, "checked", ()) if each.is_broken]
        short = turns[-1].model.response is not None and turns[-1].model.response.finish_reason in SHORT
        yield "" if short else broken[0] if broken else turns[-1].answer.misfit
    elif outcome is Outcome.FAILED and turns and reaction is turns[-1].model.end:
        yield from _why_failed(turns[-1], event)


def _why_failed(turn: ExpectedTurn, event: Any) -> Iterator[str]:
    sent = turn.sent + turn.model.requests
    if isinstance(event, ModelLost):
        yield "lost"
        return
    error = event.response.error if isinstance(event, ModelResponded) else event.error
    if error is not None:
        yield str(error.kind)
        yield error.message.rstrip(".")
        if sent > 1:
            yield f"after {sent} tries"


#: Notes of the LLM manager that say why there is no answer yet.
_TELLS_WHY: Final = frozenset({NoteKind.RETRY, NoteKind.FALLBACK, NoteKind.RATE_LIMIT})


def _failures(story: Story) -> Iterator[str]:
    """Of a request that ran out of time while a model was asked: what the tries of its last step have failed with."""
    last = story.models[-1] if story.models else None
    if last is None or last is not story.asked[-1] or last.end is not None:
        return
    tries = {last.command.tag}
    for turn in reversed(expected_turns(story)):
        if turn.follows not in ASKED_AGAIN:
            break
        tries.add(turn.model.command.tag)
        event: Any = turn.model.end.event if turn.model.end is not None else None
        if turn.follows is Follows.AGAIN and isinstance(event, ModelFailed):
            yield str(event.error.kind)
        elif isinstance(event, ModelLost):
            yield "lost"
    noted = (each.text for each in story.events(ModelNoted) if each.tag in tries and each.kind in _TELLS_WHY)
    why = (text.partition("; ")[0].rstrip(".") for text in noted)
    yield from {each.partition(" after ")[0]: each for each in why}.values()  # the latest of each model


def _differences(what: str, told: Struct, expected: Struct, but: str = "") -> Iterator[str]:
    if told == expected:
        return
    for name in expected.__struct_fields__:
        said, wanted = getattr(told, name), getattr(expected, name)
        if name != but and not _is_same(said, wanted):
            yield f"{what} is reported with {name} {said!r}, it was {wanted!r}"


def _is_same(said: Any, wanted: Any) -> bool:
    if isinstance(said, float) and isinstance(wanted, float):
        return abs(said - wanted) <= _EXACT
    return bool(said == wanted)


def _expected_steps(story: Story) -> Iterator[StepReport]:
    turns = {turn.model.command.tag: turn for turn in expected_turns(story)}
    ends_at = next(
        (each.event.at for each in story.reactions if each.event is not None and Finish in each.by_kind), 0.0
    )
    watch = _CallTimes(story, ends_at)
    for model in story.asked:
        assert model.reaction.event is not None
        asked_at = max(model.reaction.event.at, model.command.not_before_at)
        step, purpose = model.command.tag.step, model.command.purpose
        event = model.end.event if model.end is not None else None
        if isinstance(event, ModelResponded):
            turn = turns.get(model.command.tag)
            yield _of_response(model, event, asked_at, watch.reports(turn) if turn is not None else ())
            continue
        seconds = max((ends_at if event is None else event.at) - asked_at, 0.0)
        if isinstance(event, ModelFailed):
            error, requests = event.error.kind, event.requests
            is_free = event.usage == Usage() and event.cost == 0
            usage, cost = (None, None) if is_free else (_sound_usage(event.usage), _sound_cost(event.cost))
            yield StepReport(
                step, seconds, False, event.model, usage, cost, error=error, requests=requests, purpose=purpose
            )
        else:
            lost = ErrorKind.INTERNAL if isinstance(event, ModelLost) else None
            yield StepReport(step, seconds, error=lost, purpose=purpose)


def _sound_usage(usage: Usage | None) -> Usage | None:
    return usage if usage is not None and can_be_true(usage) else None


def _sound_cost(cost: float | None) -> float | None:
    return cost if cost is not None and 0 <= cost <= MAX_CALL_COST else None


def _of_response(model: ModelRun, event: ModelResponded, asked_at: float, calls: tuple[CallReport, ...]) -> StepReport:
    response, first_at = event.response, event.first_event_at
    return StepReport(
        step=model.command.tag.step,
        seconds=event.at - asked_at,
        is_whole=response.error is None,
        model=event.model,
        usage=_sound_usage(response.usage),
        cost=_sound_cost(event.cost),
        finish_reason=response.finish_reason,
        error=response.error.kind if response.error is not None else None,
        requests=event.requests,
        calls=calls,
        first_event_seconds=None if first_at is None else first_at - asked_at,
        response_model=response.model,
        response_id=response.response_id,
        provider_request_id=response.provider_request_id,
        service_tier=response.service_tier,
        purpose=model.command.purpose,
    )


class _CallTimes:
    """When the calls began and ended, and by which rules it was decided on them."""

    def __init__(self, story: Story, ends_at: float) -> None:
        self._story = story
        self._ends_at = ends_at
        self._begun: dict[Tag, float] = {}
        self._rules: dict[Tag, str] = {}
        for event in story.events(ToolCallStarted, ApprovalGranted, ApprovalDenied):
            if isinstance(event, ToolCallStarted):
                self._begun[event.tag] = event.at
            elif event.rule:
                self._rules[event.tag] = event.rule
        self._codes = {tag: _code(result) for tag, result in story.results()}

    def reports(self, turn: ExpectedTurn) -> tuple[CallReport, ...]:
        """Of each call of a turn, once the step is closed."""
        message = next((each for each in turn.model.recorded if isinstance(each, AssistantMessage)), None)
        begins = turn.model.calls_begin
        if turn.follows is not Follows.CALLS or message is None or begins is None or begins.event is None:
            return ()
        asked = message.tool_calls
        if len(asked) != len(turn.calls):
            return ()  # I17 says so
        own = [(turn.model.command.tag.at_call(each.call_id), each.name) for each in asked]
        began_at = begins.event.at
        return tuple(
            self._report(tag, CallReport(tag.call_id, name, self._codes.get(tag), 0.0, 0.0), one, began_at)
            for (tag, name), one in zip(own, turn.calls, strict=True)
        )

    def _report(self, tag: Tag, known: CallReport, expected: ExpectedCall, began_at: float) -> CallReport:
        ended_at = self._ended_at(tag, expected, began_at)
        begun_at = self._begun.get(tag)
        offer = self._story.offers.get(known.name) if expected.offer is not None else None
        return CallReport(
            call_id=known.call_id,
            name=known.name,
            code=known.code,
            seconds=ended_at - began_at,
            run_seconds=0.0 if begun_at is None else ended_at - begun_at,
            rule=self._rules.get(tag, "" if offer is None else offer.rule),
        )

    def _ended_at(self, tag: Tag, expected: ExpectedCall, began_at: float) -> float:
        call = self._story.calls.get(tag)
        if call is not None and call.ending is not None:
            return call.ending.at
        if call is not None and call.closed_by is not None and call.closed_by.event is not None:
            return call.closed_by.event.at
        return self._ends_at if expected.begins else began_at


def _code(result: ToolMessage) -> FailureCode | None:
    return FailureCode(orjson.loads(result.content)["code"]) if result.is_error else None


# I34.


class _ExpectedNote(Struct, frozen=True):
    """One note that a person must be shown."""

    kind: NoteKind
    says: tuple[str, ...] = ()
    """What must stand in it."""
    exactly: str | None = None


#: Those of a prompt that was made: what was cut or compacted is for the rules on prompts.
_OF_THE_PROMPT: Final = frozenset({NoteKind.TRIMMED, NoteKind.COMPACTED})
#: Events that a note may have to follow.
_MAY_BE_NOTED: Final = frozenset({RequestStarted, ModelNoted, ModelResponded, ModelFailed, ModelLost})
#: An end of a turn's text that is told to a person.
_TOLD_SHORT: Final = frozenset({Follows.ANSWER, Follows.CUT_ON, Follows.MISFIT, Follows.GIVEN_UP})


def notes_true(story: Story) -> Iterator[str]:
    """I34: a person is shown each note that is due, once, at once and by its kind, and no other.

    What the LLM manager notes is shown as it says it; what a provider's API cannot express, once a request; why a step
    is asked again, by how many requests and for which error; why a turn is not whole; what is estimated.
    """
    if story.start is None:
        return
    turns = {id(turn.model.end): turn for turn in expected_turns(story)}
    asides = {id(model.end): model for model in story.asked if not model.command.is_turn and model.end is not None}
    left_out: set[str] = set()
    step = story.start.tag
    for reaction in story.reactions:
        if reaction.event is None:
            continue
        if not reaction.commands and type(reaction.event) not in _MAY_BE_NOTED:
            continue
        given = [note for note in reaction.given(Note) if note.kind not in _OF_THE_PROMPT]
        began = [command.tag for command in reaction.commands if command.tag.step and not command.tag.call_id]
        for command in (*reaction.given(Note), *reaction.given(RecordCompaction)):
            if command.tag not in (step, *began):
                yield f"{type(command).__name__} {command.tag} is about no step that is open"
        if id(reaction) not in asides:
            expected = [*_expected_notes(story, reaction, turns.get(id(reaction)), left_out)]
            yield from _wrong_notes(reaction, given, expected, step)
        else:
            yield from _wrong_aside_notes(reaction, given, asides[id(reaction)])
            left_out.update(_left_out(reaction.event) if isinstance(reaction.event, ModelFailed) else ())
        if reaction.given(Note):
            yield from _wrong_notes_of_prompt(reaction)
        step = began[-1] if began else step


def _wrong_notes_of_prompt(reaction: Reaction) -> Iterator[str]:
    """What was cut is said with the prompt that was cut; what was compacted, with what is kept of it."""
    notes = {kind: [note for note in reaction.given(Note) if note.kind is kind] for kind in _OF_THE_PROMPT}
    if len(notes[NoteKind.COMPACTED]) > len(reaction.given(RecordCompaction)):
        yield f"{notes[NoteKind.COMPACTED][0].text!r} was told, and nothing is kept of it"
    tags = [command.tag for command in reaction.given(CallModel) if command.is_turn]
    for note in notes[NoteKind.TRIMMED]:
        if tags != [note.tag]:
            yield f"{note.text!r} was told of {note.tag}, which is no prompt that was made"
    for note in (*notes[NoteKind.COMPACTED], *notes[NoteKind.TRIMMED]):
        if not any(letter.isdigit() for letter in note.text):
            yield f"the note {note.text!r} does not say how much"


def _wrong_notes(reaction: Reaction, given: list[Note], expected: list[_ExpectedNote], step: Tag) -> Iterator[str]:
    if not given and not expected:
        return
    what = f"{type(reaction.event).__name__} of step {step.step}"
    if [note.kind for note in given] != [note.kind for note in expected]:
        wanted = [str(note.kind) for note in expected]
        yield f"{what} was told of by the notes {[str(note.kind) for note in given]}, due are {wanted}"
        return
    for note, wanted_note in zip(given, expected, strict=True):
        missing = [word for word in wanted_note.says if word not in note.text]
        if missing or not note.text.strip() or wanted_note.exactly not in (None, note.text):
            yield f"{what}: the note {note.text!r} does not say {missing or wanted_note.exactly!r}"
        if note.tag != step:
            yield f"{what}: the note {note.text!r} is about {note.tag}"


def _expected_notes(
    story: Story, reaction: Reaction, turn: ExpectedTurn | None, left_out: set[str]
) -> Iterator[_ExpectedNote]:
    assert story.start is not None
    event = reaction.event
    if isinstance(event, RequestStarted):
        yield from (_ExpectedNote(NoteKind.ASSUMED, exactly=text) for text in event.notes)
        if begins_without_tools(story):
            yield _ExpectedNote(NoteKind.TOOL_FALLBACK, (event.options.model,))
    elif isinstance(event, ModelNoted):
        yield _ExpectedNote(event.kind, exactly=event.text)
    elif isinstance(event, ModelResponded | ModelFailed | ModelLost):
        said = () if isinstance(event, ModelLost) else _left_out(event)
        for text in dict.fromkeys(said):
            if text not in left_out:
                left_out.add(text)
                yield _ExpectedNote(NoteKind.LEFT_OUT, exactly=text)
        yield from _doubted(event)
        if turn is not None:
            yield from _notes_of_turn(story, turn, event)


def _left_out(event: ModelResponded | ModelFailed) -> tuple[str, ...]:
    return event.response.notes if isinstance(event, ModelResponded) else event.error.notes


def _doubted(event: Any) -> Iterator[_ExpectedNote]:
    """What cannot be true is estimated, and that is said."""
    if not isinstance(event, ModelResponded | ModelFailed):
        return
    usage = event.usage if isinstance(event, ModelFailed) else event.response.usage
    wrong = () if usage == _sound_usage(usage) else ("usage",)
    wrong = wrong if event.cost == _sound_cost(event.cost) else (*wrong, "cost")
    if wrong:
        yield _ExpectedNote(NoteKind.ESTIMATED, wrong)


def _notes_of_turn(story: Story, turn: ExpectedTurn, event: Any) -> Iterator[_ExpectedNote]:
    assert story.start is not None
    options = story.start.options
    error = event.response.error if isinstance(event, ModelResponded) else getattr(event, "error", None)
    why = "lost" if isinstance(event, ModelLost) else str(error.kind) if error is not None else ""
    model = (event.model if isinstance(event, ModelFailed) else "") or options.model
    sent = f"{turn.sent + turn.model.requests} of {options.max_attempts} requests"
    if turn.follows is Follows.AGAIN:
        yield _ExpectedNote(NoteKind.ASKED_AGAIN, (sent, why))
    elif turn.follows is Follows.CUT_HARDER:
        window = error.context_tokens if error is not None else None
        yield _ExpectedNote(NoteKind.ASKED_AGAIN, (sent, model, f"{window:,}" if window else ""))
    elif turn.follows is Follows.WITHOUT_TOOLS:
        yield _ExpectedNote(NoteKind.TOOL_FALLBACK, (model,))
    elif turn.follows is Follows.OTHER_WAY:
        yield _ExpectedNote(NoteKind.SCHEMA_FALLBACK, (model,))
    else:
        yield from _notes_of_answer(turn, event)


def _notes_of_answer(turn: ExpectedTurn, event: Any) -> Iterator[_ExpectedNote]:
    response = turn.model.response
    if response is None or turn.follows in (Follows.FAIL, Follows.GO_ON):
        return
    reason = response.finish_reason
    is_cut = reason in CUT and not all(map(is_whole, response.tool_calls))
    if is_cut if turn.follows is Follows.CALLS else reason in SHORT or turn.is_written_call:
        yield _ExpectedNote(NoteKind.CUT)
    if turn.answer is not None and turn.answer.misfit and turn.answer.ends is None:
        yield _ExpectedNote(NoteKind.MISFIT)


def _wrong_aside_notes(reaction: Reaction, given: list[Note], aside: ModelRun) -> Iterator[str]:
    """Of a model call beside the conversation: that it is asked again, or that nothing came of it, and why."""
    for note in given:
        if not note.text.strip() or note.text.rstrip(". ;").endswith(":"):
            yield f"model call {aside.command.tag.step}: the note {note.text!r} does not say why"

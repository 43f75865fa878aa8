"""The rules about histories: legal for every provider, true to what was said, and shown to the model as recorded."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from callboard.protocol.commands import CallModel, Finish, Note, NoteKind, RecordStep
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    is_json_object,
)
from callboard.protocol.events import ModelResponded, ModelStreamed, NoticeCame
from callboard.protocol.ids import CallId
from callboard.protocol.model import (
    CallPurpose,
    ModelRequest,
    ModelResponse,
    Restarted,
    TextDelta,
    ToolChoice,
    ToolChoiceMode,
)
from callboard.protocol.options import RequestOptions
from callboard.protocol.testing.expected import (
    ExpectedTurn,
    Follows,
    begins_without_tools,
    expected_turns,
    is_kept,
    windows,
)
from callboard.protocol.testing.expected_prompts import ExpectedPrompt, expected_prompts
from callboard.protocol.testing.rules_compaction import models_asked
from callboard.protocol.testing.story import (
    CUT,
    STOPPED,
    ModelRun,
    Reaction,
    Story,
    answer_texts,
    is_notice,
    is_too_long,
    is_whole,
    responses,
    without_notices,
)

_FORCED = frozenset({ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED})


# I2, I3.


def valid_history(story: Story) -> Iterator[str]:
    """I2: each call has its result directly after the turn that asked, and there is no result without its call."""
    for where, turn, block in story.blocks():
        if not turn.parts:
            yield f"{where}: an empty turn"
        calls = turn.tool_calls
        if not calls and not block:
            continue
        asked = [(call.call_id, call.name) for call in calls]
        answered = [(result.call_id, result.name) for result in block]
        if asked != answered and Counter(asked) != Counter(answered):
            yield f"{where}: calls {dict(Counter(asked))}, results {dict(Counter(answered))}"
        if len(set(asked)) < len(asked) or not all(call_id for call_id, _ in asked):
            yield f"{where}: a turn whose calls have no id, or share one"
        if not all(is_json_object(call.arguments) for call in calls):
            yield f"{where}: arguments that are no JSON object"


def in_order(story: Story) -> Iterator[str]:
    """I3: results stand in the order in which the model asked."""
    for where, turn, block in story.blocks():
        answered = [result.call_id for result in block]
        asked = [call.call_id for call in turn.tool_calls] if answered else []
        if asked != answered and Counter(asked) == Counter(answered):
            yield f"{where}: asked {asked}, answered {answered}"
    answers = responses(story)
    for record in story.records:
        answer = answers.get(record.tag.step)
        names = [message.name for message in record.messages if isinstance(message, ToolMessage)]
        if answer is not None and names and names != [call.name for call in answer.response.tool_calls]:
            yield f"step {record.tag.step}: results of {names} in another order than the model asked"


# I17: what is recorded is what was said.


def recorded_truly(story: Story) -> Iterator[str]:
    """I17: each turn that counts is recorded once and whole, a cut one by what was streamed, the final answer too."""
    steps = Counter(record.tag.step for record in story.records)
    yield from (f"step {step} was recorded {count} times" for step, count in steps.items() if count > 1)
    known = {model.command.tag for model in story.models}
    at_end = {model.command.tag for model in (*story.asked[-1:], *story.models[-1:])}  # perhaps no more than notices
    for record in story.records:
        is_turn = any(not isinstance(message, SystemMessage) for message in record.messages)
        if record.tag not in (known if is_turn else at_end):
            yield f"{record.tag} was recorded and never asked"
    for turn in expected_turns(story):
        if turn.taken:
            yield from _wrong_turn(story, turn)
    yield from _wrong_partial(story)


def _wrong_turn(story: Story, turn: ExpectedTurn) -> Iterator[str]:
    step, recorded, response = turn.model.command.tag.step, turn.model.recorded, turn.model.response
    assert response is not None
    if not recorded:
        if not any(call.open for call in story.calls.values() if call.tag.step == step):
            yield f"the turn of step {step} was not recorded"
        return
    first, *rest = recorded
    results = len(turn.calls) - (len(turn.outside) if turn.model.open_turn is not None else 0)
    if not isinstance(first, AssistantMessage) or not _is_as_said(first, response):
        yield f"step {step} was recorded as {first!r:.300}, the model said {response.parts!r:.300}"
    notes = [message for message in without_notices(rest) if not isinstance(message, ToolMessage)]
    rest = without_notices(rest)
    if len(rest) - len(notes) != results:
        yield f"step {step} has {results} calls that ended here, and {len(rest) - len(notes)} results"
    if any(isinstance(message, ToolMessage) for message in rest[results:]):
        yield f"step {step}: a note stands before the last result"
    cut = response.finish_reason in CUT and any(not is_whole(call) for call in response.tool_calls)
    cut = cut or turn.follows in (Follows.CUT_ON, Follows.MISFIT)
    changed = [call.changed for call in story.calls.values() if call.tag.step == step and call.changed]
    if any(not isinstance(note, SystemMessage) for note in notes) or len(notes) != cut + len(changed):
        yield f"step {step} ended {response.finish_reason}, its notes are {notes!r:.200}"
    told = [note.text for note in notes if isinstance(note, SystemMessage)]
    if sum(changed[0] in text for text in told) != len(changed) if changed else False:
        yield f"step {step}: the model is not told that a person has changed the arguments of {len(changed)} calls"


# I29: what the model should read of what happened outside.


def notices_read(story: Story) -> Iterator[str]:
    """I29: each notice is recorded once, in the order in which they came, behind everything else of its step.

    It is in the first step that is recorded after it came, but for a turn that is sent back as it is; at the end of the
    request none is left, but for those that came after such a turn.
    """
    waiting: list[str] = []
    paused = False
    sent_back = {id(turn.model.end) for turn in expected_turns(story) if turn.follows is Follows.GO_ON}
    for reaction in story.reactions:
        event = reaction.event
        if event is None:
            continue
        if type(event) is NoticeCame:
            waiting.append(event.text)
        if not reaction.commands:
            continue
        for record in reaction.given(RecordStep):
            told = [message.text for message in record.messages if is_notice(message)]
            paused = id(reaction) in sent_back
            due = [] if paused else waiting
            if told != due:
                yield f"step {record.tag.step} tells {told}, due are {due}"
            if told and not all(map(is_notice, record.messages[-len(told) :])):
                yield f"step {record.tag.step}: a notice is not at the end"
            waiting = [text for text in waiting if text not in told]
        if waiting and not paused and Finish in reaction.by_kind:
            yield f"{waiting} are told nowhere"
        if CallModel in reaction.by_kind:
            paused = False


def _is_as_said(turn: AssistantMessage, response: ModelResponse) -> bool:
    is_same = turn.parts == response.parts and response.finish_reason not in STOPPED
    return is_same or _plain(turn.parts, None) == _plain(response.parts, response)


def _plain(parts: Sequence[AssistantPart], response: ModelResponse | None) -> list[AssistantPart]:
    """A turn's parts without what a history changes on purpose: ids, arguments of half calls, what was stopped."""
    stopped = response is not None and response.finish_reason in STOPPED
    plain: list[AssistantPart] = []
    for part in filter(is_kept, parts):
        if not isinstance(part, ToolCall):
            plain.append(part)
        elif not stopped:
            # Half a call stands in the history as an object that shows its text, and is marked as incomplete.
            whole = is_whole(part)
            arguments = part.arguments if whole else "{}"
            plain.append(replace(part, call_id=CallId(""), arguments=arguments, complete=whole))
    return plain


def _wrong_partial(story: Story) -> Iterator[str]:
    """What was streamed of a turn that ended the request stays in the history, exactly once."""
    end = story.finish()
    if end is None or not story.asked or story.start is None:
        return
    said, last, before = said_texts(story)
    model = story.models[-1] if story.models and story.models[-1].words is story.asked[-1] else story.asked[-1]
    finish = end[1]
    whole_text = before + said if said else last
    if finish.text != whole_text:
        yield f"the request finished with the text {finish.text!r}, said was {whole_text!r}"
    whole = () if model.record is None else tuple(without_notices(model.record.messages))
    if said and whole != (AssistantMessage((Text(said),)),):
        yield f"{said!r} was streamed and is recorded as {model.record and model.record.messages!r:.200}"
    kept = (*(message for record in story.records for message in record.messages), *model.recorded)
    turns = [turn for turn in kept if isinstance(turn, AssistantMessage)]
    texts = [turn.text for turn in turns] + [call.arguments for turn in turns for call in turn.tool_calls]
    joined = ("".join(texts[first:end]) for first in range(len(texts)) for end in range(first + 2, len(texts) + 1))
    if finish.text and finish.text not in texts and finish.text not in joined:
        yield f"the text {finish.text!r} of the finished request is not in the history"


def said_texts(story: Story) -> tuple[str, str, str]:
    """At the end: what the last, unfinished turn has said, the text of the last turn that counted, with those of cut
    turns that it goes on from, and the texts of cut turns that nothing has gone on from yet."""
    said, last, written, before = "", "", "", ""
    taken = {turn.model.command.tag: turn for turn in expected_turns(story) if turn.taken}
    asides = {model.command.tag for model in story.asked if not model.command.is_turn}
    for reaction in story.reactions:
        event = reaction.event
        if event is None:
            said = written  # deltas that no further event was journalled after are lost when the process dies
            continue
        if type(event) is ModelStreamed:
            if event.tag not in asides:  # which are no part of the answer
                said = _after_deltas(said, event)
                said = "" if is_too_long(said) else said
            continue
        if type(event) is ModelResponded:
            if event.tag in asides:
                continue
            said = "" if is_too_long(*answer_texts(event.response)) else event.response.text
            if (turn := taken.get(event.tag)) is not None:
                said, last = "", turn.answer.text if turn.answer is not None else event.response.text
                last = before + last if turn.follows in (Follows.ANSWER, Follows.CUT_ON) else last
                before = last if turn.follows is Follows.CUT_ON else ""
        for command in reaction.given(CallModel):
            if command.purpose is not CallPurpose.SEARCH_WORDS:
                said = ""  # but a turn whose calls wait for words may still be cut
        written = said
    return said, last, before


def _after_deltas(said: str, event: ModelStreamed) -> str:
    for piece in event.events:
        if isinstance(piece, TextDelta):
            said += piece.text
        elif isinstance(piece, Restarted):
            said = ""
    return said


# I18: what is recorded is shown, and only that.


def shown_as_recorded(story: Story) -> Iterator[str]:
    """I18: the model sees instructions, history, the user's message and every recorded step, in this order.

    Without a limit on the context that is all of it, exactly; with one, exactly what docs/protocol.md leaves of it (The
    window, Results, History, Compaction), and a note says how much is missing. A model that takes no tools is shown
    calls and results in words, and no instructions on tools. Tools, schema, tool choice and sampling are those of the
    request, without the tools that policy denies.
    """
    if story.start is None:
        return
    options, models = story.start.options, models_asked(story)
    if begins_without_tools(story) and not _says(story.reactions[0], NoteKind.TOOL_FALLBACK):
        yield "the model is asked without its tools, and no note says so"
    sent = 0
    for expected in expected_prompts(story):
        model = expected.model
        if model is None or not model.command.is_turn:
            continue
        request, step = model.command.request, model.command.tag.step
        if request.messages != expected.messages:
            yield f"model call {step} shows {_differs(request.messages, expected.messages)}"
        if not expected.fits:
            yield f"model call {step} has a prompt of {expected.tokens} tokens, which leaves no room for an answer"
        if request.tool_search != expected.search:
            yield f"model call {step} may be searched for {request.tool_search}, it should be {expected.search}"
        if request.tools != expected.tools:
            yield f"model call {step} offers {[tool.name for tool in request.tools]}"
        if request.response_schema != expected.schema:
            yield f"model call {step} has the schema {request.response_schema}, expected is {expected.schema}"
        if request.model != models[model.command.tag]:
            yield f"model call {step} asks {request.model!r}, not {models[model.command.tag]!r}"
        yield from _wrong_options(request, options, first=model.records_before == 0, step=step)
        if expected.is_cut_harder and model.command.prompt_tokens >= sent:
            yield f"model call {step} shows no less than one that was too long"
        sent = model.command.prompt_tokens
        yield from _wrong_note(model, expected, story)
    yield from _wrong_storage(story)


def _wrong_storage(story: Story) -> Iterator[str]:
    """What the provider keeps is gone on from where it was, by its last turn that counted."""
    assert story.start is not None
    storage = story.start.options.storage
    turns = {turn.model.command.tag: turn for turn in expected_turns(story)}
    for model in story.models:
        if model.command.request.storage != storage:
            yield f"model call {model.command.tag.step} has {model.command.request.storage}, due is {storage}"
        turn = turns.get(model.command.tag)
        if turn is not None and turn.taken and storage is not None and storage.previous_response_id:
            last = model.response.response_id if model.response is not None else ""
            storage = dataclasses.replace(storage, previous_response_id=last or storage.previous_response_id)


def _wrong_note(model: ModelRun, expected: ExpectedPrompt, story: Story) -> Iterator[str]:
    """What was cut is said, with how much it is."""
    notes = [note.text for note in model.reaction.given(Note) if note.kind is NoteKind.TRIMMED]
    cut = expected.trimmed
    if len(notes) != (cut > 0) or (notes and f" {cut:,} tokens " not in notes[0]):
        yield f"of model call {model.command.tag.step} {cut} tokens were cut, and the notes are {notes}"
    window = windows(story)[model.command.tag]
    if notes and window is not None and f"the {window:,} of" not in notes[0]:
        yield f"the window has {window} tokens, and the note is {notes}"


def _says(reaction: Reaction, kind: NoteKind) -> bool:
    return any(note.kind is kind for note in reaction.given(Note))


def _differs(shown: Sequence[Message], due: Sequence[Message]) -> str:
    """The first difference, in words."""
    at = next((at for at, (one, other) in enumerate(zip(shown, due, strict=False)) if one != other), None)
    if at is None:
        return f"{_kinds(shown)}, due is {_kinds(due)}"
    return f"{_kinds(shown)}, due is {_kinds(due)}; message {at} is {shown[at]!r:.200}, due is {due[at]!r:.200}"


#: What goes with every model call as the request has it.
_AS_ASKED: Final = (
    "server_tools", "prompt_cache", "service_tier", "images_out", "audio_out", "provider_options",
)  # fmt: skip


def _narrowed(choice: ToolChoice, options: RequestOptions, request: ModelRequest) -> ToolChoice:
    """The choice, with those of the allowed tools that are offered, and the output tool."""
    if not options.tool_choice.allowed or not request.tools:
        return choice
    allowed = {*options.tool_choice.allowed, *([options.output.tool_name] if options.output is not None else [])}
    shown = tuple(tool.name for tool in request.tools if tool.name in allowed)
    return replace(choice, allowed=shown) if shown else ToolChoice(ToolChoiceMode.NONE)


def _wrong_options(request: ModelRequest, options: RequestOptions, *, first: bool, step: int) -> Iterator[str]:
    sampling = replace(options.sampling, max_output_tokens=request.sampling.max_output_tokens)
    if request.sampling != sampling:
        yield f"model call {step} has other sampling than the request"
    wanted = options.tool_choice
    hidden = wanted.mode is ToolChoiceMode.NAMED and wanted.name not in {tool.name for tool in request.tools}
    is_free = not (request.tools or options.server_tools) or hidden or (wanted.mode in _FORCED and not first)
    if request.tool_choice != _narrowed(ToolChoice() if is_free else wanted, options, request):
        yield f"model call {step} has the tool choice {request.tool_choice}"
    if request.parallel_tool_calls != (options.parallel_tool_calls if request.tools else None):
        yield f"model call {step} has parallel_tool_calls={request.parallel_tool_calls}"
    for name in _AS_ASKED:
        if getattr(request, name) != getattr(options, name):
            yield f"model call {step} has other {name} than the request"


def _kinds(messages: Sequence[Message]) -> str:
    letters = {"SystemMessage": "S", "UserMessage": "U", "AssistantMessage": "A", "ToolMessage": "T"}
    return "".join(letters[type(message).__name__] for message in messages)


#: What has its place behind something else.
_IN_PLACE: Final = frozenset({RecordStep, Finish})


def records_in_place(story: Story) -> Iterator[str]:
    """I19: a step is recorded before the next model call and before the end, and the end comes last."""
    for reaction in story.reactions:
        if reaction.event is None or _IN_PLACE.isdisjoint(reaction.by_kind):
            continue
        kinds = [type(command) for command in reaction.commands]
        if Finish in kinds and kinds.index(Finish) != len(kinds) - 1:
            yield f"{kinds[-1].__name__} follows the end of the request"
        if RecordStep in kinds and CallModel in kinds and kinds.index(RecordStep) > kinds.index(CallModel):
            yield "a step was recorded after the next model call"

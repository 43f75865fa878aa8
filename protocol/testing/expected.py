"""What must follow from a model's answer, as docs/protocol.md says it: a second reading, made for the rules alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.calls_as_text import written_call
from callboard.protocol.commands import CallModel, Outcome
from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Media,
    ServerTool,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    split_atoms,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelLost, ModelResponded
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import MAX_CALLS_PER_STEP, MAX_MODEL_LOSSES
from callboard.protocol.model import Error, FinishReason, ModelResponse
from callboard.protocol.options import RequestOptions, ToolFallback, ToolOffer
from callboard.protocol.output import OutputMode
from callboard.protocol.testing.counted import shortened, tokens_of
from callboard.protocol.testing.expected_output import ExpectedAnswer, expected_answer, mode_now
from callboard.protocol.testing.expected_search import answered_calls, deferred, found_in
from callboard.protocol.testing.outside import input_tokens
from callboard.protocol.testing.story import (
    CUT,
    STOPPED,
    ModelRun,
    Story,
    answer_texts,
    holds_nan,
    is_too_long,
    is_whole,
    signature,
)
from callboard.protocol.testing.told_calls import in_words
from callboard.protocol.tools import Decision, FailureCode, Risk


class Follows(StrEnum):
    """What a model call leads to."""

    ANSWER = auto()
    CALLS = auto()
    GO_ON = auto()
    """The provider paused: the turn is recorded and sent back."""
    CUT_ON = auto()
    """The answer was cut: the turn is recorded with a word about it, and the model asked for the rest."""
    MISFIT = auto()
    """The answer does not fit: the turn is recorded with a word about it, and the model asked once more."""
    GIVEN_UP = auto()
    """The answer does not fit, and the request ends with it."""
    AGAIN = auto()
    WITHOUT_TOOLS = auto()
    OTHER_WAY = auto()
    """The model takes no schema of the answer, and is asked in another way."""
    CUT_HARDER = auto()
    """The prompt was too long, and more of it is left out."""
    FAIL = auto()


#: The same step is asked once more.
ASKED_AGAIN: Final = frozenset({Follows.AGAIN, Follows.WITHOUT_TOOLS, Follows.OTHER_WAY, Follows.CUT_HARDER})


_ASKED_AGAIN: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})
#: What is shown in place of a key; written back, it would take the key's place.
_COVERED: Final = "\u2327"
#: How a call of the asker's own tools begins.
OUTSIDE: Final = "outside"
_BY_DECISION: Final = {Decision.ALLOW: "run", Decision.ASK: "ask"}


_Signature = tuple[str, str]
_Made = dict[_Signature, set[str]]
"""The calls of one step, and the results of each; a call may be asked for more than once in a step."""


class ExpectedCall(Struct, frozen=True):
    """One call of a turn: begun ("run", "ask"), left to the asker ("outside"), or ended at once with a failure code."""

    call: ToolCall
    offer: ToolOffer | None
    begins: str = ""
    code: FailureCode | None = None
    result: str | None = None
    """Of the output tool, where it was taken or not needed; of a search for tools."""
    is_hidden: bool = False
    """The model has not found its tool."""


class ExpectedTurn(Struct):
    """What must follow from the end of one model call."""

    model: ModelRun
    follows: Follows
    sent: int
    """Requests that the step had taken when this call was made."""
    calls: list[ExpectedCall]
    loops: bool = False
    """A repeated call ends the run."""
    steps: int = 1
    """Steps begun so far, this one included: repeated tries are one step."""
    context_tokens: int | None = None
    """The window that counted when it was asked: that of the request, or a smaller one that a model has named since."""
    mode: OutputMode | None = None
    """How it was asked for an answer of a certain form."""
    answer: ExpectedAnswer | None = None
    """What the answers of the turn lead to."""
    searches: Mapping[int, FailureCode | str] = MappingProxyType({})
    """Its calls that are about deferred tools, by their places."""
    hidden: Collection[str] = ()
    """Tools that were not found before it."""
    is_wary: bool = False
    """Text from outside was read before its calls, and the request asks about what does more than read then."""
    told_in_words: bool = False
    """It was asked without the tools of the request, since the model had refused them."""
    is_written_call: bool = False
    """Its answer is only a call that its model wrote as text."""

    @property
    def answered(self) -> Mapping[int, FailureCode | str]:
        """The calls that the session itself answers, by their places."""
        return {**self.searches, **(self.answer.calls if self.answer is not None else {})}

    @property
    def taken(self) -> bool:
        """Whether the turn becomes part of the history."""
        return self.follows in _TAKEN

    @property
    def begun(self) -> list[ExpectedCall]:
        """The calls that a dispatcher or a person gets."""
        return [call for call in self.calls if call.begins in _BY_DECISION.values()]

    @property
    def outside(self) -> list[ExpectedCall]:
        """The calls that wait for the others, and are the asker's then."""
        return [call for call in self.calls if call.begins == OUTSIDE]

    @property
    def ends_as(self) -> Outcome | None:
        """How the request ends when the calls of the turn have ended; None: it goes on."""
        if self.follows is not Follows.CALLS:
            return None
        if self.answer is not None and self.answer.ends is not None:
            return self.answer.ends
        return Outcome.CALLS_OUTSIDE if self.outside else None


@lru_cache(maxsize=2)
def expected_turns(story: Story) -> tuple[ExpectedTurn, ...]:
    """One for each model call that ended, in their order. Several rules ask; a story does not change."""
    return tuple(_expected_turns(story))


def windows(story: Story) -> dict[Tag | None, int | None]:
    """The window that counts for each model call, by its tag; under None, the one that counts in the end."""
    assert story.start is not None
    found: dict[Tag | None, int | None] = {}
    window = story.start.options.context_tokens
    turns = {turn.model.command.tag: turn for turn in expected_turns(story)}
    for model in story.models:
        found[model.command.tag] = window
        turn = turns.get(model.command.tag)
        if turn is not None and turn.follows is Follows.CUT_HARDER:
            window = _smaller(window, named_window(model))
    found[None] = window
    return found


def modes(story: Story) -> dict[Tag, OutputMode | None]:
    """How each model call must ask for an answer of a certain form, by its tag."""
    assert story.start is not None
    options, told = story.start.options, begins_without_tools(story)
    left = options.output.modes if options.output is not None else ()
    turns = {turn.model.command.tag: turn for turn in expected_turns(story)}
    found: dict[Tag, OutputMode | None] = {}
    for model in story.models:
        tag = model.command.tag
        has_tools = not told and _are_shown(story.offers)
        found[tag] = mode_now(options, left, has_tools=has_tools, takes_tools=not told)
        follows = turns[tag].follows if tag in turns else None
        told = told or follows is Follows.WITHOUT_TOOLS
        if follows is Follows.OTHER_WAY:
            left = tuple(mode for mode in left if mode is not OutputMode.NATIVE)
    return found


def _expected_turns(story: Story) -> Iterator[ExpectedTurn]:
    if story.start is None:
        return
    options, window = story.start.options, story.start.options.context_tokens
    told = begins_without_tools(story)
    offers = {} if told else dict(story.offers)
    sent, losses, steps, again, has_cut, failed, gone_on = 0, 0, 0, False, False, 0, 0
    left = options.output.modes if options.output is not None else ()
    steps_made: list[_Made] = []
    for model in story.models:
        steps += not again
        if model.end is None or model.calls_begin is None:
            return
        before, sent = sent, sent + model.requests
        losses = losses + 1 if isinstance(model.end.event, ModelLost) else 0
        may_retry = sent < options.max_attempts and losses <= MAX_MODEL_LOSSES
        turn = ExpectedTurn(model, Follows.FAIL, before, [], steps=steps, context_tokens=window, told_in_words=told)
        turn.mode = mode_now(options, left, has_tools=_are_shown(offers), takes_tools=not told)
        turn.follows = follows = _follows(story, turn, offers, may_retry, may_cut=not has_cut)
        if follows is Follows.ANSWER and gone_on < options.continue_cut_answers and _may_go_on(options, model):
            turn.follows, gone_on = Follows.CUT_ON, gone_on + 1
        if follows in _TAKEN:
            failed += _expect_answer(story, turn, failed)
            follows = turn.follows
        if follows is Follows.OTHER_WAY:
            left = tuple(mode for mode in left if mode is not OutputMode.NATIVE)
        if follows is Follows.WITHOUT_TOOLS:
            offers, told = {}, True
        if follows is Follows.CUT_HARDER:
            window = _smaller(window, named_window(model))
        again = follows in ASKED_AGAIN
        has_cut = again and (has_cut or follows is Follows.CUT_HARDER)
        sent = sent if again else 0
        if follows is Follows.CALLS and model.response is not None:
            if not told:
                _expect_searches(story, turn, model.response)
            turn.is_wary = options.ask_after_untrusted and _read_from_outside(story, model)
            turn.loops = _expect_calls(turn, model.response.tool_calls, offers, steps_made, options.repeated_call_limit)
            steps_made.append(_what_came(turn))
        yield turn


def _expect_searches(story: Story, turn: ExpectedTurn, response: ModelResponse) -> None:
    """The calls that are about deferred tools, by what was found before."""
    assert story.start is not None
    kept = [message for record in story.records[: turn.model.records_before] for message in record.messages]
    found = found_in(story.start, (*story.start.history, *kept))
    turn.searches = answered_calls(story.start, response, found)
    by_provider = {name for part in response.parts if isinstance(part, ServerTool) for name in part.found}
    turn.hidden = {tool.name for tool in deferred(story.start)} - {*found} - by_provider


def _may_go_on(options: RequestOptions, model: ModelRun) -> bool:
    """A text was cut, and no form of the answer was asked for."""
    response = model.response
    is_cut = response is not None and response.finish_reason is FinishReason.LENGTH
    return options.output is None and is_cut and response is not None and bool(response.text)


def _read_from_outside(story: Story, model: ModelRun) -> bool:
    """Does anything that was there when the calls were made hold text that is not the owner's, callboard's or the
    model's own?"""
    assert story.start is not None
    kept = [message for record in story.records[: model.records_before] for message in record.messages]
    for message in (*story.start.history, story.start.user, *kept):
        if isinstance(message, ToolMessage) and not message.is_trusted:
            return True
        if isinstance(message, UserMessage | AssistantMessage) and not _is_own(message):
            return True
    return model.response is not None and any(isinstance(part, ServerTool) for part in model.response.parts)


def _is_own(message: UserMessage | AssistantMessage) -> bool:
    """A person said it, or a model. Not so a file that a person shows, nor what a tool of the provider has found."""
    foreign = Media if isinstance(message, UserMessage) else ServerTool
    return not any(isinstance(part, foreign) for part in message.parts)


_TAKEN: Final = frozenset(
    {Follows.ANSWER, Follows.CALLS, Follows.GO_ON, Follows.CUT_ON, Follows.MISFIT, Follows.GIVEN_UP}
)


def _expect_answer(story: Story, turn: ExpectedTurn, failed: int) -> int:
    """Read the answers of a turn where a form was asked for; 1 where none of them fits."""
    assert story.start is not None
    event, spec = turn.model.end.event if turn.model.end else None, story.start.options.output
    if spec is None or turn.follows is Follows.GO_ON or not isinstance(event, ModelResponded):
        return 0
    turn.answer = answer = expected_answer(spec, event.response, event.checked, failed)
    if answer is None:
        return 0
    if turn.follows is Follows.ANSWER and answer.misfit:
        turn.follows = Follows.MISFIT if answer.ends is None else Follows.GIVEN_UP
    return 1 if answer.misfit else 0


def _are_shown(offers: Mapping[ToolName, ToolOffer]) -> bool:
    return any(offer.decision is not Decision.DENY for offer in offers.values())


def _may_do_without_tools(story: Story, offers: Mapping[ToolName, ToolOffer], mode: OutputMode | None) -> bool:
    """Some are offered and may be given up; or none but the output tool, which words can stand for."""
    assert story.start is not None
    if _are_shown(offers):
        return story.start.options.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS
    return mode is OutputMode.TOOL


def begins_without_tools(story: Story) -> bool:
    """The model is known to take no tools, and may be asked without those of the request."""
    assert story.start is not None
    options, offers = story.start.options, story.offers
    left = options.output.modes if options.output is not None else ()
    mode = mode_now(options, left, has_tools=_are_shown(offers), takes_tools=True)
    return not options.takes_tools and _may_do_without_tools(story, offers, mode)


def _error_of(model: ModelRun) -> Error | None:
    event = model.end.event if model.end else None
    if isinstance(event, ModelResponded):
        return event.response.error
    return event.error if isinstance(event, ModelFailed) else None


def named_window(model: ModelRun) -> int | None:
    """The window that the model has named, where it has refused the prompt as too long."""
    error = _error_of(model)
    return error.context_tokens if error is not None else None


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((window for window in (one, other) if window is not None), default=None)


def _can_cut(story: Story, turn: ExpectedTurn) -> bool:
    """Something of the prompt may be left out, and what must stay fits into the window that the model has named."""
    assert story.start is not None
    request, model = turn.model.command.request, turn.model
    if _is_counted_otherwise(story):
        return bool(model.end is not None and model.end.given(CallModel))
    messages = request.messages
    question = max(place for place, message in enumerate(messages) if message == story.question)
    first = next(place for place, message in enumerate(messages) if not isinstance(message, SystemMessage))
    turns = [place for place, message in enumerate(messages) if isinstance(message, AssistantMessage)]
    turns = [place for place in turns if place > question]
    last = messages[turns[-1] :] if turns else ()
    shortest = last
    if turns:
        steps = [*split_atoms(story.begun), *(record.messages for record in story.records[: model.records_before])]
        recorded = tuple(map(shortened, steps[-1]))
        recorded = in_words(recorded) if turn.told_in_words else recorded
        shortest = min(last, recorded, key=tokens_of)
    least = replace(request, messages=(*messages[:first], messages[question], *shortest))
    window = _smaller(turn.context_tokens, named_window(model))
    return input_tokens(least) < input_tokens(request) and (window is None or input_tokens(least) + 16 <= window)


def _is_counted_otherwise(story: Story) -> bool:
    """Has a provider counted the prompt otherwise than we do? Then how much can be cut is not known here (but in
    `expected_prompts`)."""
    assert story.start is not None
    ends = [each.end.event for each in story.models if each.end is not None]
    sent = {each.command.tag: each.command.request for each in story.models}
    return story.start.options.token_ratio != 1 or any(
        event.response.usage is not None and event.response.usage.input_tokens != input_tokens(sent[event.tag])
        for event in ends
        if isinstance(event, ModelResponded)
    )


def _follows(
    story: Story, turn: ExpectedTurn, offers: dict[ToolName, ToolOffer], may_retry: bool, *, may_cut: bool
) -> Follows:
    assert story.start is not None
    assert turn.model.end is not None
    event = turn.model.end.event
    again = Follows.AGAIN if may_retry else Follows.FAIL
    if isinstance(event, ModelLost):
        return again
    error = _error_of(turn.model)
    if error is not None:
        may_do_without = _may_do_without_tools(story, offers, turn.mode)
        if error.kind is ErrorKind.TOOLS_UNSUPPORTED and may_do_without and may_retry:
            return Follows.WITHOUT_TOOLS
        output = story.start.options.output
        others = output is not None and len(output.modes) > 1 and turn.mode is OutputMode.NATIVE
        if error.kind is ErrorKind.SCHEMA_UNSUPPORTED and others and may_retry:
            return Follows.OTHER_WAY
        if error.kind is ErrorKind.CONTEXT_LENGTH and may_retry and may_cut and _can_cut(story, turn):
            return Follows.CUT_HARDER
        return again if error.kind in _ASKED_AGAIN else Follows.FAIL
    assert isinstance(event, ModelResponded)
    follows = _follows_turn(event.response, again)
    turn.is_written_call = follows is Follows.ANSWER and _is_written_call(story, event.response, offers)
    return Follows.AGAIN if turn.is_written_call and may_retry else follows


def _is_written_call(story: Story, response: ModelResponse, offers: Mapping[ToolName, ToolOffer]) -> bool:
    """Is the answer no more than a call that its model wrote as text, of a tool that it was shown?"""
    shown = [name for name, offer in offers.items() if offer.decision is not Decision.DENY]
    assert story.start is not None
    if story.start.options.output is not None or response.finish_reason is not FinishReason.STOP:
        return False
    return written_call(response.text, shown) is not None


def _follows_turn(response: ModelResponse, again: Follows) -> Follows:
    reason = response.finish_reason
    if is_too_long(*answer_texts(response)):
        return Follows.FAIL
    calls = () if reason in STOPPED else response.tool_calls
    if len(calls) > MAX_CALLS_PER_STEP:
        return again
    if calls:
        cut = reason in CUT and not all(is_whole(call) for call in calls)
        return Follows.AGAIN if cut and again is Follows.AGAIN else Follows.CALLS
    if reason is FinishReason.PAUSE and any(map(is_kept, response.parts)):
        return Follows.GO_ON
    if reason is FinishReason.CONTENT_FILTER:
        return Follows.FAIL
    said = response.text or any(isinstance(part, Media) for part in response.parts)
    if reason is FinishReason.REFUSAL:
        return Follows.ANSWER if said else Follows.FAIL
    return Follows.ANSWER if said and reason is not FinishReason.ERROR else again


def is_kept(part: AssistantPart) -> bool:
    """Whether a part of a turn belongs into the history: empty texts without provider data do not."""
    return not isinstance(part, Text) or bool(part.text) or part.replay is not None


def _expect_calls(
    turn: ExpectedTurn,
    calls: tuple[ToolCall, ...],
    offers: dict[ToolName, ToolOffer],
    steps_made: list[_Made],
    limit: int,
) -> bool:
    limit = max(limit, 2) if limit else 0  # a first result repeats nothing
    answers = turn.answered
    counts = [
        _times_in_vain(steps_made, signature(call)) if limit and place not in answers else 0
        for place, call in enumerate(calls)
    ]
    loops = bool(limit) and max(counts) > limit
    for place, (call, count) in enumerate(zip(calls, counts, strict=True)):
        offer = offers.get(call.name)
        if (found := answers.get(place)) is not None:
            code = found if isinstance(found, FailureCode) else None
            is_hidden = code is FailureCode.UNKNOWN_TOOL
            turn.calls.append(ExpectedCall(call, None, "", code, None if code else str(found), is_hidden))
        elif limit and count >= limit:
            turn.calls.append(ExpectedCall(call, offer, code=FailureCode.REPEATED))
        elif loops:
            turn.calls.append(ExpectedCall(call, offer, code=FailureCode.CANCELLED))
        else:
            turn.calls.append(_expect_call(call, offer, is_wary=turn.is_wary))
    return loops


def _what_came(turn: ExpectedTurn) -> _Made:
    """What each call of a step gave, as the model reads it; of one that was refused as a repetition, nothing."""
    answers = turn.answered
    came: _Made = {signature(made.call): set() for place, made in enumerate(turn.calls) if place not in answers}
    results = [message.content for message in turn.model.recorded if isinstance(message, ToolMessage)]
    for place, (expected, result) in enumerate(zip(turn.calls, results, strict=False)):
        if expected.code is not FailureCode.REPEATED and place not in answers:
            came[signature(expected.call)].add(result)
    return came


def _times_in_vain(steps_made: list[_Made], asked: _Signature) -> int:
    """How often in a row a call gave what it gave last, or was refused; read backwards from now to the latest news."""
    times, last = 0, set[str]()
    for number in range(len(steps_made) - 1, -1, -1):
        results = steps_made[number].get(asked)
        if results and last and results != last:
            break
        if results is not None:
            last = last or results
            times += 1
        if _brought_news(steps_made, number):
            break
    return times


def _brought_news(steps_made: list[_Made], number: int) -> bool:
    """Whether a call of this step was made for the first time, or gave something else than the last time."""
    for asked, results in steps_made[number].items():
        before = [made[asked] for made in steps_made[:number] if made.get(asked)]
        if results and (not before or before[-1] != results):
            return True
    return False


def decision_of(offer: ToolOffer, *, is_wary: bool) -> Decision:
    """Who decides on a call of this tool."""
    may_harm = offer.contract.risk is not Risk.READ and not offer.contract.is_outside
    return Decision.ASK if is_wary and may_harm and offer.decision is Decision.ALLOW else offer.decision


def _expect_call(call: ToolCall, offer: ToolOffer | None, *, is_wary: bool) -> ExpectedCall:
    if offer is None:
        return ExpectedCall(call, None, code=FailureCode.UNKNOWN_TOOL)
    if not is_whole(call):
        no_json = holds_nan(call.arguments)
        code = FailureCode.INVALID_ARGUMENTS if no_json else FailureCode.INCOMPLETE_CALL
        return ExpectedCall(call, offer, code=code)
    if offer.contract.is_outside and offer.decision is Decision.ALLOW:
        return ExpectedCall(call, offer, OUTSIDE)
    begins = _BY_DECISION.get(decision_of(offer, is_wary=is_wary), "")
    if begins and offer.contract.risk is not Risk.READ and _COVERED in "".join(signature(call)):
        return ExpectedCall(call, offer, code=FailureCode.INVALID_ARGUMENTS)
    return ExpectedCall(call, offer, begins, None if begins else FailureCode.DENIED)

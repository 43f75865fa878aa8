"""What must follow from a model's answer, as docs/protocol.md says it: a second reading, made for the rules alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Final

from callboard.protocol.content import AssistantPart, Media, Text, ToolCall, ToolMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import ModelFailed, ModelLost, ModelResponded
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_CALLS_PER_STEP
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import ToolFallback, ToolOffer
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
from callboard.protocol.tools import Decision, FailureCode, Risk


class Follows(Enum):
    """What a model call leads to."""

    ANSWER = auto()
    CALLS = auto()
    GO_ON = auto()
    """The provider paused: the turn is recorded and sent back."""
    AGAIN = auto()
    WITHOUT_TOOLS = auto()
    FAIL = auto()


_ASKED_AGAIN: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})
#: What is shown in place of a key; written back, it would take the key's place.
_COVERED: Final = "\u2327"
_BY_DECISION: Final = {Decision.ALLOW: "run", Decision.ASK: "ask"}


_Signature = tuple[str, str]
_Made = dict[_Signature, set[str]]
"""The calls of one step, and the results of each; a call may be asked for more than once in a step."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """One call of a turn: handed out ("run", "ask"), or ended at once with a failure code."""

    call: ToolCall
    offer: ToolOffer | None
    begins: str = ""
    code: FailureCode | None = None


@dataclass(slots=True)
class ExpectedTurn:
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

    @property
    def taken(self) -> bool:
        """Whether the turn becomes part of the history."""
        return self.follows in (Follows.ANSWER, Follows.CALLS, Follows.GO_ON)


@lru_cache(maxsize=1)
def expected_turns(story: Story) -> tuple[ExpectedTurn, ...]:
    """One for each model call that ended, in their order. Several rules ask; a story does not change."""
    return tuple(_expected_turns(story))


def _expected_turns(story: Story) -> Iterator[ExpectedTurn]:
    if story.start is None:
        return
    options = story.start.options
    offers = dict(story.offers)
    sent, steps, again = 0, 0, False
    steps_made: list[_Made] = []
    for model in story.models:
        steps += not again
        if model.end is None:
            return
        before, sent = sent, sent + model.requests
        follows = _follows(story, model, offers, may_retry=sent < options.max_attempts)
        turn = ExpectedTurn(model, follows, before, [], steps=steps)
        if follows is Follows.WITHOUT_TOOLS:
            offers = {}
        again = follows in (Follows.AGAIN, Follows.WITHOUT_TOOLS)
        sent = sent if again else 0
        if follows is Follows.CALLS and model.response is not None:
            turn.loops = _expect_calls(turn, model.response.tool_calls, offers, steps_made, options.repeated_call_limit)
            steps_made.append(_what_came(turn))
        yield turn


def _follows(story: Story, model: ModelRun, offers: dict[ToolName, ToolOffer], *, may_retry: bool) -> Follows:
    assert story.start is not None
    assert model.end is not None
    event = model.end.event
    again = Follows.AGAIN if may_retry else Follows.FAIL
    if isinstance(event, ModelLost):
        return again
    error = event.error if isinstance(event, ModelFailed) else None
    if isinstance(event, ModelResponded):
        error = event.response.error
    if error is not None:
        fallback = story.start.options.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS
        shown = any(offer.decision is not Decision.DENY for offer in offers.values())
        if error.kind is ErrorKind.TOOLS_UNSUPPORTED and shown and fallback and may_retry:
            return Follows.WITHOUT_TOOLS
        return again if error.kind in _ASKED_AGAIN else Follows.FAIL
    assert isinstance(event, ModelResponded)
    return _follows_turn(event.response, again)


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
    counts = [_times_in_vain(steps_made, signature(call)) if limit else 0 for call in calls]
    loops = bool(limit) and max(counts) > limit
    for call, count in zip(calls, counts, strict=True):
        offer = offers.get(call.name)
        if limit and count >= limit:
            turn.calls.append(ExpectedCall(call, offer, code=FailureCode.REPEATED))
        elif loops:
            turn.calls.append(ExpectedCall(call, offer, code=FailureCode.CANCELLED))
        else:
            turn.calls.append(_expect_call(call, offer))
    return loops


def _what_came(turn: ExpectedTurn) -> _Made:
    """What each call of a step gave, as the model reads it; of one that was refused as a repetition, nothing."""
    came: _Made = {signature(expected.call): set() for expected in turn.calls}
    record = turn.model.record
    results = [message.content for message in record.messages if isinstance(message, ToolMessage)] if record else []
    for expected, result in zip(turn.calls, results, strict=False):
        if expected.code is not FailureCode.REPEATED:
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


def _expect_call(call: ToolCall, offer: ToolOffer | None) -> ExpectedCall:
    if offer is None:
        return ExpectedCall(call, None, code=FailureCode.UNKNOWN_TOOL)
    if not is_whole(call):
        no_json = holds_nan(call.arguments)
        code = FailureCode.INVALID_ARGUMENTS if no_json else FailureCode.INCOMPLETE_CALL
        return ExpectedCall(call, offer, code=code)
    begins = _BY_DECISION.get(offer.decision, "")
    if begins and offer.contract.risk is not Risk.READ and _COVERED in "".join(signature(call)):
        return ExpectedCall(call, offer, code=FailureCode.INVALID_ARGUMENTS)
    return ExpectedCall(call, offer, begins, None if begins else FailureCode.DENIED)

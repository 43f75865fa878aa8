"""One turn of the model, judged and made fit for the history. Pure functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

import orjson

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    ServerTool,
    Text,
    ToolCall,
    bad_number,
    byte_size,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId
from callboard.protocol.limits import MAX_ANSWER_BYTES, MAX_CALLS_PER_STEP
from callboard.protocol.model import FinishReason, ModelResponse


class TurnVerdict(Enum):
    """What to do about a turn of the model."""

    ANSWER = auto()
    RUN_CALLS = auto()
    GO_ON = auto()
    """The provider paused: the turn is sent back as it is."""
    ASK_AGAIN = auto()
    """The turn is unusable or cut: ask the step again, as often as that is allowed."""
    FAIL = auto()


#: An answer that ended so is not all that the model had to say.
_SHORT_ANSWERS: Final = {
    FinishReason.LENGTH: "The answer was cut off at the limit of output tokens.",
    FinishReason.REFUSAL: "The model refused.",
}
#: A turn that was stopped by its provider asks for nothing: its calls are not run.
_STOPPED: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL})
#: A turn that ended so may have been cut in the middle of a call.
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.ERROR})
#: A model call that failed so can be asked again as it is; the LLM manager has already retried all other kinds.
ASK_AGAIN_KINDS: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})
#: Why a request ends whose model does not stop writing. Such an answer is not asked for again, and not recorded: no one
#: could read it, and no later request could send it.
TOO_LONG: Final = f"{ErrorKind.MALFORMED}: the answer went over {MAX_ANSWER_BYTES:,} bytes, and was stopped."


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as it is in the history, and what the model really wrote."""

    call: ToolCall
    arguments: str | None
    """Canonical JSON of the arguments; None when they are incomplete, and then the call is never run (I12)."""
    received: str
    bad_number: str = ""
    """The first number that is not JSON (NaN, Infinity), where that is why the call is not run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as it is in the history: legal for every provider once its calls have results."""

    message: AssistantMessage
    calls: tuple[AskedCall, ...]

    @property
    def incomplete(self) -> bool:
        """Whether any of its calls must not be run."""
        return any(asked.arguments is None for asked in self.calls)


#: A turn that says nothing.
NO_TURN: Final = Turn(AssistantMessage(()), ())


def answer_size(response: ModelResponse) -> int:
    """Bytes of text, thinking and arguments; exact only for an answer that may be over its limit."""
    characters = _size(response, len)
    # A character takes at most four bytes.
    return _size(response, byte_size) if characters * 4 > MAX_ANSWER_BYTES else characters


def _size(response: ModelResponse, measure: Callable[[str], int]) -> int:
    size = 0
    for part in response.parts:
        if isinstance(part, ToolCall):
            size += measure(part.arguments)
        elif not isinstance(part, ServerTool):
            size += measure(part.text)
    return size


def judge(response: ModelResponse, turn: Turn, may_retry: bool) -> tuple[TurnVerdict, str]:
    """What to do about a turn, and why where it is not simply done."""
    reason = response.finish_reason
    if len(turn.calls) > MAX_CALLS_PER_STEP:
        told = f"The model asked for {len(turn.calls)} calls in one turn; the limit is {MAX_CALLS_PER_STEP}."
        return (TurnVerdict.ASK_AGAIN if may_retry else TurnVerdict.FAIL), told
    if turn.calls:
        if reason in _CUT and turn.incomplete and may_retry:
            return TurnVerdict.ASK_AGAIN, f"The model's turn was cut off in the middle of a call ({reason})."
        return TurnVerdict.RUN_CALLS, ""
    if reason is FinishReason.PAUSE and turn.message.parts:
        return TurnVerdict.GO_ON, ""
    return _judge_answer(response, may_retry)


def _judge_answer(response: ModelResponse, may_retry: bool) -> tuple[TurnVerdict, str]:
    reason = response.finish_reason
    if reason is FinishReason.CONTENT_FILTER:
        return TurnVerdict.FAIL, "The provider's content filter stopped the answer."
    if reason is FinishReason.ERROR or (not response.text and reason is not FinishReason.REFUSAL):
        told = f"The model answered nothing ({response.raw_finish_reason or reason})."
        return (TurnVerdict.ASK_AGAIN if may_retry else TurnVerdict.FAIL), told
    if not response.text:
        return TurnVerdict.FAIL, _SHORT_ANSWERS[FinishReason.REFUSAL]
    return TurnVerdict.ANSWER, _SHORT_ANSWERS.get(reason, "")


def cut_notes(response: ModelResponse, turn: Turn) -> tuple[str, ...]:
    """What to tell the model after the results of a turn that was cut off and kept all the same."""
    if response.finish_reason not in _CUT or not turn.incomplete:
        return ()
    return (f"Your turn was cut off ({response.finish_reason}). Ask for fewer calls at a time, or shorter ones.",)


def tidy(response: ModelResponse) -> Turn:
    """The turn as the history takes it.

    Ids are made unique within the turn; arguments that are no JSON object become "{}"; empty texts and the calls of a
    turn that its provider stopped are left out.
    """
    parts: list[AssistantPart] = []
    calls: list[AskedCall] = []
    taken: set[CallId] = set()
    for part in response.parts:
        if isinstance(part, ToolCall):
            if response.finish_reason not in _STOPPED:
                asked = _tidy_call(part, taken, len(calls))
                taken.add(asked.call.call_id)
                calls.append(asked)
                parts.append(asked.call)
        elif not (isinstance(part, Text) and not part.text and part.replay is None):
            parts.append(part)
    return Turn(AssistantMessage(tuple(parts)), tuple(calls))


def _tidy_call(call: ToolCall, taken: set[CallId], index: int) -> AskedCall:
    arguments = canonical_arguments(call.arguments) if call.complete else None
    call_id = call.call_id
    suffix = index + 1
    while not call_id or call_id in taken:
        # Letters, digits and _ only: what Anthropic takes as an id.
        call_id = CallId(f"{call.call_id or 'call'}_{suffix}")
        suffix += 1
    clean = call
    if call_id != call.call_id or arguments is None:
        clean = replace(
            call,
            call_id=call_id,
            complete=arguments is not None,
            arguments=call.arguments if arguments is not None else "{}",
        )
    return AskedCall(clean, arguments, call.arguments, bad_number(call.arguments) if arguments is None else "")


def canonical_arguments(text: str) -> str | None:
    """The same text for the same arguments, however they were written; None for anything but a JSON object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    try:
        # A str: the bytes that orjson makes take 4 kB each, however short they are, and these are kept for a while.
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return text  # objects in each other more than 254 deep

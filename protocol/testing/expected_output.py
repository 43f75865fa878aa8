"""What must follow where an answer of a certain form was asked for: a second reading, made for the rules alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from callboard.protocol.commands import Outcome
from callboard.protocol.model import FinishReason, ModelResponse, ToolChoiceMode
from callboard.protocol.options import RequestOptions
from callboard.protocol.output import Checked, OutputMode, OutputSpec
from callboard.protocol.testing.story import STOPPED, holds_nan, is_whole
from callboard.protocol.tools import FailureCode

#: What a call of the output tool reads that was taken, and another one beside it.
TAKEN, SPARE = "The answer was taken.", "Another answer of this turn was taken."


class ExpectedAnswer(Struct, frozen=True):
    """What the answers of one turn lead to."""

    ends: Outcome | None
    """How the request ends when no call is open; None: the model is asked again."""
    text: str
    misfit: str = ""
    """What the model must be told; "" where an answer was taken."""
    calls: Mapping[int, FailureCode | str] = field(default_factory=dict)
    """The calls of the output tool, by their places: the code of the failure, or the result."""


def answers_of(response: ModelResponse, tool_name: str) -> list[str]:
    """The texts that must be checked."""
    if response.finish_reason in STOPPED:
        return []
    if response.tool_calls:
        return [call.arguments for call in response.tool_calls if call.name == tool_name and is_whole(call)]
    return [response.text] if response.text else []


def expected_answer(
    spec: OutputSpec, response: ModelResponse, checked: Sequence[Checked], failed: int
) -> ExpectedAnswer | None:
    """Of a turn that the session takes; None where it asks for other calls only. `failed`: answers before it that did
    not fit."""
    asked = () if response.finish_reason in STOPPED else response.tool_calls
    places = [place for place, call in enumerate(asked) if call.name == spec.tool_name]
    if asked and not places:
        return None
    texts = answers_of(response, spec.tool_name)
    fitting = [text for text, verdict in zip(texts, checked, strict=True) if not verdict.misfit]
    verdicts = iter(checked)
    calls: dict[int, FailureCode | str] = {}
    for place in places:
        verdict = next(verdicts) if is_whole(asked[place]) else None
        if verdict is None:
            no_json = holds_nan(asked[place].arguments)
            calls[place] = FailureCode.INVALID_ARGUMENTS if no_json else FailureCode.INCOMPLETE_CALL
        elif verdict.misfit:
            calls[place] = FailureCode.INVALID_ARGUMENTS
        else:
            calls[place] = SPARE if TAKEN in calls.values() else TAKEN
    if fitting:
        return ExpectedAnswer(Outcome.ANSWERED, fitting[0], calls=calls)
    text, misfit = (texts[-1], checked[-1].misfit) if texts else (response.text, "no answer")
    cut = not asked and response.finish_reason in (FinishReason.LENGTH, FinishReason.REFUSAL)
    is_over = cut or any(verdict.is_broken for verdict in checked) or failed + 1 >= spec.max_tries
    return ExpectedAnswer(Outcome.FAILED if is_over else None, text, misfit, calls)


def mode_now(
    options: RequestOptions, modes: Sequence[OutputMode], *, has_tools: bool, takes_tools: bool
) -> OutputMode | None:
    """How the model must be asked, by these modes: with or without tools of the request beside it."""
    if options.output is None:
        return None
    may_call = takes_tools and options.tool_choice.mode is not ToolChoiceMode.NONE
    native_is_off = options.output.is_native_alone and has_tools and len(options.output.modes) > 1
    off = {OutputMode.NATIVE} if native_is_off else set[OutputMode]()
    off |= set() if may_call else {OutputMode.TOOL}
    return next((mode for mode in modes if mode not in off), OutputMode.PROMPT)


def words_about(spec: OutputSpec, mode: str) -> tuple[str, ...]:
    """What the instructions must hold where it is asked so, and must not hold where it is not."""
    words: Mapping[str, tuple[str, ...]] = {
        "tool": (f"calling the tool {spec.tool_name}",),
        "prompt": ("JSON Schema", spec.description, *map(str, spec.schema)),
    }
    return words.get(mode, ())

"""Structured output: what an answer must look like, how a model is asked for it, and what it reads when it fails.

An answer is either the text of a turn or the arguments of a call of the output tool, whichever way the model was asked:
`answers_in` finds them. Whether one fits is checked outside of the session, by code of the user's that may be slow; the
result comes in with the turn (`ModelResponded.checked`), so that a replay needs no validator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum, StrEnum, auto
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol import limits
from callboard.protocol.commands import Outcome
from callboard.protocol.content import Text, ToolCall, is_json_object, json_text
from callboard.protocol.ids import ToolName
from callboard.protocol.model import STOPPED_REASONS, FinishReason, ModelResponse
from callboard.protocol.tools import FailureCode, ToolDefinition, ToolFailure
from callboard.protocol.values import Value


class OutputMode(StrEnum):
    """How a model is asked for an answer of a certain form."""

    NATIVE = "native"
    """By the API's own field for a JSON Schema of the answer."""
    TOOL = "tool"
    """By a tool whose arguments are the answer. It is never run."""
    PROMPT = "prompt"
    """In the instructions, with the schema."""


#: The name of the output tool, where no other tool has it.
OUTPUT_TOOL: Final = ToolName("final_answer")


class OutputSpec(Value, frozen=True):
    """The form of an answer, as one request wants it."""

    schema: Mapping[str, object]
    """JSON Schema of an object."""
    title: str = "answer"
    """What people and the model read as its name, such as the name of a class."""
    description: str = ""
    modes: tuple[OutputMode, ...] = tuple(OutputMode)
    """Ways to ask for it, the best first. The next one is taken where the first cannot be, or the model refuses it."""
    is_native_alone: bool = False
    """NATIVE only where no tools are offered beside it, or it is the only mode."""
    max_tries: int = limits.OUTPUT_TRIES
    """Answers that may fail to fit; with the last of them the request has failed."""
    tool_name: ToolName = OUTPUT_TOOL
    is_raw: bool = False
    """The schema is all there is of the type: the answer is plain JSON data."""

    @property
    def tool(self) -> ToolDefinition:
        """The output tool as the model sees it."""
        about = f" {self.description}" if self.description else ""
        told = f"Give your final answer by calling this tool, once: {self.title}.{about}"
        return ToolDefinition(self.tool_name, told, self.schema)

    def instructions(self, mode: OutputMode | None) -> str:
        """What the instructions say of the answer's form; "" where the API says it."""
        if mode is OutputMode.TOOL:
            return f"Give your final answer by calling the tool {self.tool_name}, not as text."
        return self._asked_in_words if mode is OutputMode.PROMPT else ""

    @property
    def _asked_in_words(self) -> str:
        about = f" ({self.description})" if self.description else ""
        return (
            f"Give your final answer{about} as one JSON object, without any text around it, that follows this JSON "
            f"Schema:\n{json_text(self.schema)}"
        )

    def told_misfit(self, misfit: str, mode: OutputMode | None) -> str:
        """What the model reads about a text that does not fit: what is wrong, and what is wanted."""
        wanted = self._asked_in_words if mode is not OutputMode.TOOL else self.instructions(mode)
        return f"Your answer was not taken: {misfit}\n{wanted}"

    def failure(self, misfit: str) -> ToolFailure:
        """What the model reads about a call of the output tool that does not fit."""
        told = f"The answer was not taken: {misfit}"
        hint = f"Call {self.tool_name} again with the whole answer, corrected."
        return ToolFailure(self.tool_name, FailureCode.INVALID_ARGUMENTS, told, retry_hint=hint)


#: What the model reads as the result of a call of the output tool that was taken, and of another one beside it.
TAKEN_RESULT: Final = "The answer was taken."
SPARE_RESULT: Final = "Another answer of this turn was taken."


#: How a model is asked for an answer whose schema it does not take.
ASKED_BY: Final[Mapping[OutputMode | None, str]] = {
    OutputMode.TOOL: "it is asked to answer by a tool call",
    OutputMode.PROMPT: "it is asked for JSON in the instructions",
}


def is_any_object(schema: Mapping[str, object]) -> bool:
    """Does a schema say no more than that the answer is a JSON object, as that of `dict` does? APIs have a mode for it
    that needs no schema."""
    is_open = schema.get("additionalProperties") in (None, True, {})
    return schema.get("type") == "object" and is_open and schema.keys() <= _SAYS_NO_MORE


_SAYS_NO_MORE: Final = frozenset({"type", "additionalProperties", "title", "description", "$schema"})


class Checked(Value, frozen=True):
    """Whether one answer fits."""

    misfit: str = ""
    """What is wrong with it, for the model to read: places, what was expected and received. "": it fits."""
    is_broken: bool = False
    """The check itself failed, by an error in code of the user's that `misfit` names: asking again would not help."""

    @property
    def fits(self) -> bool:
        return not self.misfit


def answers_in(response: ModelResponse, tool_name: ToolName) -> tuple[str, ...]:
    """The answers of a turn: the arguments of whole calls of the output tool or, in a turn without calls, its text."""
    if response.finish_reason in STOPPED_REASONS:
        return ()
    calls = [part for part in response.parts if isinstance(part, ToolCall)]
    if calls:
        return tuple(call.arguments for call in calls if is_answer(call, tool_name))
    text = "".join(part.text for part in response.parts if isinstance(part, Text))
    return (text,) if text else ()


def check_fault(spec: OutputSpec | None, response: ModelResponse, checked: Sequence[Checked]) -> str:
    """What is wrong with how a turn comes, "" for nothing: each answer of it must come checked, where a form is asked
    for (`spec`), since a replay has nothing to check it by."""
    is_form_asked = spec is not None and response.error is None
    wanted = answers_in(response, spec.tool_name) if spec is not None and is_form_asked else ()
    if len(wanted) == len(checked):
        return ""
    return f"its turn has {len(wanted)} answers to check, and {len(checked)} were checked"


def is_answer(call: ToolCall, tool_name: ToolName) -> bool:
    """Is this a whole call of the output tool? One that was cut off, or is no JSON object, holds no answer."""
    return call.name == tool_name and call.complete and is_json_object(call.arguments)


class AnswerCall(Enum):
    """What becomes of a call of the output tool."""

    TAKEN = auto()
    SPARE = auto()
    """Another answer of its turn was taken."""
    UNFIT = auto()
    FOUND = auto()
    """It is none of the output tool: a search for tools, which the session answers too (tool_search.py)."""


class AnsweredCall(Value, frozen=True):
    """A call of the output tool, and what the model reads of it."""

    becomes: AnswerCall
    result: str = ""
    failure: ToolFailure | None = None
    """Of an UNFIT one. None where the call is not whole."""


NO_ANSWERS: Final[Mapping[int, AnsweredCall]] = MappingProxyType({})


def _no_calls() -> Mapping[int, AnsweredCall]:
    return NO_ANSWERS


class Ruling(Value, frozen=True):
    """What follows from the answers of one turn."""

    outcome: Outcome | None = None
    """How the request ends, as soon as no call of the turn is open; None: the model is asked again."""
    reason: str = ""
    misfit: str = ""
    """Of the last answer, where none fits."""
    text: str = ""
    """The answer that was taken, or the last one that was not."""
    calls: Mapping[int, AnsweredCall] = field(default_factory=_no_calls)
    """The calls of the output tool, by their places among the calls of the turn."""


class OutputTries(Struct):
    """Counts the answers that do not fit."""

    spec: OutputSpec
    failed: int = 0

    def rule(self, response: ModelResponse, checked: Sequence[Checked], cut: str) -> Ruling | None:
        """Decide on the answers of a turn; None where it only asks for calls. `cut`: why the turn is not whole.

        The first answer that fits is taken. A text that was cut or refused is not said not to fit: to ask again with an
        error would not help.
        """
        texts = answers_in(response, self.spec.tool_name)
        taken = next((place for place, each in enumerate(checked) if each.fits), None)
        is_stopped = response.finish_reason in STOPPED_REASONS  # its calls count for nothing
        calls = NO_ANSWERS if is_stopped else self._calls(response, checked, taken)
        if response.tool_calls and not calls and not is_stopped:
            return None
        if taken is not None:
            return Ruling(Outcome.ANSWERED, cut, text=texts[taken], calls=calls)
        text, misfit = (texts[-1], checked[-1].misfit) if texts else (response.text, _NO_ANSWER[bool(calls)])
        if broken := next((each.misfit for each in checked if each.is_broken), ""):
            return Ruling(Outcome.FAILED, f"The answer could not be checked: {broken}", misfit, text, calls)
        if response.finish_reason in _NO_USE and not calls:
            return Ruling(Outcome.FAILED, cut, misfit, text)
        self.failed += 1
        if self.failed < self.spec.max_tries:
            return Ruling(None, "", misfit, text, calls)
        tries = f"{self.failed} tries" if self.failed > 1 else "1 try"
        return Ruling(
            Outcome.FAILED, f"The answer does not fit {self.spec.title}, after {tries}: {misfit}", misfit, text, calls
        )

    def told_again(self, ruling: Ruling) -> str:
        """For a person: that the answer does not fit, where the model is asked once more; else ""."""
        if not ruling.misfit or ruling.outcome is not None:
            return ""
        return f"The answer does not fit {self.spec.title} (try {self.failed} of {self.spec.max_tries})."

    def _calls(
        self, response: ModelResponse, checked: Sequence[Checked], taken: int | None
    ) -> Mapping[int, AnsweredCall]:
        found: dict[int, AnsweredCall] = {}
        left = iter(enumerate(checked))
        for place, call in enumerate(response.tool_calls):
            if call.name != self.spec.tool_name:
                continue
            number, each = next(left, _NOT_CHECKED) if is_answer(call, self.spec.tool_name) else _NOT_CHECKED
            if each is None:
                found[place] = AnsweredCall(AnswerCall.UNFIT)
            elif not each.fits:
                found[place] = AnsweredCall(AnswerCall.UNFIT, failure=self.spec.failure(each.misfit))
            elif number == taken:
                found[place] = AnsweredCall(AnswerCall.TAKEN, TAKEN_RESULT)
            else:
                found[place] = AnsweredCall(AnswerCall.SPARE, SPARE_RESULT)
        return found


#: A text that ended so would end so again.
_NO_USE: Final = frozenset({FinishReason.LENGTH, FinishReason.REFUSAL})
#: Why a turn without an answer is none, by whether it calls the output tool.
_NO_ANSWER: Final = {
    True: "the arguments of the call were cut off, or are not a JSON object.",
    False: "it holds no text.",
}
_NOT_CHECKED: Final = (-1, None)


def named_apart(spec: OutputSpec, names: Collection[ToolName]) -> OutputSpec:
    """With a name of the output tool that no other tool has."""
    name, number = spec.tool_name, 2
    while name in names:
        name, number = ToolName(f"{spec.tool_name}_{number}"), number + 1
    return spec if name == spec.tool_name else replace(spec, tool_name=name)


def mode_of(spec: OutputSpec, modes: Sequence[OutputMode], *, has_tools: bool, takes_calls: bool) -> OutputMode:
    """The best of these modes that is possible. `has_tools`: tools are offered; `takes_calls`: the model may call."""
    chosen = len(spec.modes) == 1
    for mode in modes:
        if mode is OutputMode.NATIVE and spec.is_native_alone and has_tools and not chosen:
            continue
        if mode is OutputMode.TOOL and not takes_calls:
            continue
        return mode
    return OutputMode.PROMPT


def spec_faults(spec: OutputSpec, names: Collection[ToolName]) -> list[str]:
    """One sentence for each fault of it; `names` are those of the tools on offer."""
    faults = []
    if spec.max_tries < 1:
        faults.append(f"the output's max_tries must be 1 or more, got {spec.max_tries}")
    if not spec.modes:
        faults.append("the output names no mode; give one of: " + ", ".join(OutputMode))
    if spec.tool_name in names:
        faults.append(f"the output tool has the name of a tool on offer, {spec.tool_name!r}")
    return faults

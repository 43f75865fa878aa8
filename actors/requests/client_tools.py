"""Tools of the one who asks: a model may call them, and its calls end the request. They are answered with the next one.

reply = await runtime.ask("What is in my calendar?", tools=[ClientTool("calendar", "...", schema)], conversation=talk)
for call in reply.outside_calls: ...
reply = await runtime.ask(CallResults((CallAnswer(call.call_id, "nothing"),)), conversation=talk)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from callboard.actors.tools.decorator import NAME
from callboard.protocol.codec import check_types
from callboard.protocol.commands import OpenTurn
from callboard.protocol.content import MediaPart, Message, SystemMessage, ToolMessage, history_faults, json_text
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import Decision, FailureCode, ToolContract, ToolDefinition, ToolFailure

#: What a model reads of a call that its user did not answer.
WENT_ON = "The call was not answered: the conversation went on without it."


class ClientTool(Struct, frozen=True):
    """A tool that the asker runs. Raises UsageError for a name that models do not take, and for no object's schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON Schema of an object."""
    strict: bool = False
    """Is the provider to hold the arguments to the schema?"""
    deferred: bool = False
    """Is the model to find it by searching?"""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise UsageError(f"a tool's name has 1 to 64 of a-z, A-Z, 0-9, _ and -, not {self.name!r:.80}")
        given = (self.description, self.strict, self.deferred)
        check_types(given, tuple[str, bool, bool], f"tool {self.name}: description, strict and deferred")
        if not isinstance(self.parameters, Mapping) or self.parameters.get("type", "object") != "object":
            raise UsageError(f"tool {self.name}: parameters must be the JSON Schema of an object")

    @property
    def offer(self) -> ToolOffer:
        """As a request sees it: what the asker runs is the asker's to decide about."""
        parameters = {"type": "object", **self.parameters}
        definition = ToolDefinition(ToolName(self.name), self.description, parameters, self.strict, self.deferred)
        return ToolOffer(definition, ToolContract(is_outside=True), Decision.ALLOW)


class CallAnswer(Struct, frozen=True):
    """What one call came to."""

    call_id: str
    content: str
    """What the model reads: a text, or JSON."""
    is_error: bool = False
    media: tuple[MediaPart, ...] = ()


class CallResults(Struct, frozen=True):
    """In place of a question: the answers to the calls that a request has ended with, and the model goes on.

    Without any, the conversation's own messages must end with results.
    """

    answers: Sequence[CallAnswer] = ()


def closed_turn(turn: OpenTurn, given: CallResults) -> tuple[Message, ...]:
    """The whole step: the turn, its results in the order of its calls, the notes. Raises UsageError."""
    for place, answer in enumerate(given.answers):
        check_types(answer, CallAnswer, f"answer {place}, {type(answer).__name__}")
    answers = {answer.call_id: answer for answer in given.answers}
    waiting = {str(call.call_id) for call in turn.outside}
    if unknown := sorted(answers.keys() - waiting):
        raise UsageError(f"no call {unknown[0]!r:.80} waits for its result; these do: {', '.join(sorted(waiting))}")
    if missing := sorted(waiting - answers.keys()):
        raise UsageError(f"the call {missing[0]!r:.80} has no result: give one for each, an error where there is none")
    if len(answers) < len(given.answers):
        raise UsageError("two results are for the same call; give one for each")
    known = {result.call_id: result for result in turn.results}
    results = (
        known.get(call.call_id) or _result(call.call_id, call.name, answers[call.call_id])
        for call in turn.message.tool_calls
    )
    return (turn.message, *results, *map(SystemMessage, turn.notes))


def _result(call_id: CallId, name: ToolName, answer: CallAnswer) -> ToolMessage:
    return ToolMessage(call_id, name, answer.content, answer.is_error, tuple(answer.media))


def given_up(turn: OpenTurn) -> CallResults:
    """Of a turn whose asker has put another question instead."""
    answers = [
        CallAnswer(call.call_id, json_text(ToolFailure(call.name, FailureCode.CANCELLED, WENT_ON).to_wire()), True)
        for call in turn.outside
    ]
    return CallResults(tuple(answers))


def open_turn_faults(turn: OpenTurn) -> list[str]:
    """What keeps a turn from being answered, one sentence each; empty for one that a request has ended with."""
    if not turn.outside:
        return ["none of its calls waits for a result"]
    known = {result.call_id: result for result in turn.results}
    calls = turn.message.tool_calls
    if len(known) < len(turn.results) or known.keys() - {call.call_id for call in calls}:
        return ["its results must be of its calls, at most one each"]
    whole = [known.get(call.call_id) or ToolMessage(call.call_id, call.name, "") for call in calls]
    return history_faults((turn.message, *whole))


def check_goes_on(messages: Sequence[Message]) -> None:
    """Raise UsageError where a model could not go on from these without a question."""
    last = next((each for each in reversed(messages) if not isinstance(each, SystemMessage)), None)
    if not isinstance(last, ToolMessage) or history_faults(messages):
        raise UsageError("nothing waits for results in this conversation, and it does not end with any; ask a question")

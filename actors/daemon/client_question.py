"""What the body of a stateless API comes to: a question for a runtime, with the whole history that the client keeps.

The parsers (chat_body.py, messages_body.py) make it, client_answer.py asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.daemon.api_errors import bad_field
from callboard.actors.requests.asking import AskOptions
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.ids import CallId
from callboard.protocol.tools import ToolDefinition

#: Begins the ids of calls that clients run: "call_<request id>_<number>", from 0.
_CALL_PREFIX: Final = "call_"
#: Of the faults of a history, what the client is told.
_FAULTS_SHOWN: Final = 3


class AnswerFormat(Struct, frozen=True):
    """The JSON Schema that the answer must follow."""

    schema: Mapping[str, object]
    name: str = ""


class ClientQuestion(Struct, frozen=True):
    """What a client asks."""

    model: str | None
    """In the client's words; None: it names none."""
    messages: tuple[Message, ...]
    """All of them but the instructions: legal for every provider, and the last is a user's or a tool's result."""
    instructions: str | None = None
    """None: those of the runtime's settings."""
    tools: tuple[ToolDefinition, ...] = ()
    """The client's own: their calls are handed out to it."""
    runs_here: tuple[str, ...] | None = None
    """Names of the runtime's own tools that are offered beside them; None: all."""
    options: AskOptions = field(default_factory=AskOptions)
    """The rest of what is said with the question, without model, instructions and tools."""
    only_for: Mapping[str, AskOptions] = field(default_factory=dict)
    """Further options by the provider of the model; "": for those that are not named here."""
    output: AnswerFormat | None = None
    is_streamed: bool = False
    includes_usage: bool = False
    """Does a stream of Chat Completions end with the usage?"""


def checked_messages(messages: Iterable[Message], param: str = "messages") -> tuple[Message, ...]:
    """The messages in the order in which a runtime takes them. Raises ApiError for a history that no provider takes,
    and for one that does not end with something to answer.

    Results of calls are put into the order of the calls, with the names of the tools. Instructions behind the last
    question are put before it.
    """
    found = ordered_messages(messages, param)
    if not found or not isinstance(found[-1], UserMessage | ToolMessage):
        raise bad_field(param, "the last message must be the user's, or the result of a tool call")
    return found


def ordered_messages(messages: Iterable[Message], param: str = "messages") -> tuple[Message, ...]:
    """The same of a history that may end with an answer, or be empty."""
    found = _with_notes_before(_with_results_in_order(tuple(messages)))
    if faults := history_faults(found):
        raise bad_field(param, f"this history is not legal: {'; '.join(faults[:_FAULTS_SHOWN])}")
    return found


def _with_results_in_order(messages: Sequence[Message]) -> Sequence[Message]:
    """Clients may give the results of a turn in any order, and without the names of their tools."""
    ordered: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        ordered.append(message)
        at += 1
        if isinstance(message, AssistantMessage) and message.tool_calls:
            results = tuple(results_at(messages, at))
            ordered += _sorted_results(message.tool_calls, results)
            at += len(results)
    return ordered


def results_at(messages: Sequence[Message], start: int) -> Iterable[ToolMessage]:
    """The results that follow each other from `start` on."""
    following = takewhile(lambda each: isinstance(each, ToolMessage), messages[start:])
    return (each for each in following if isinstance(each, ToolMessage))


def _sorted_results(calls: Sequence[ToolCall], results: Sequence[ToolMessage]) -> Iterable[ToolMessage]:
    """In the order of the calls. What belongs to no call stays behind them, where `history_faults` finds it."""
    waiting = list(results)
    for call in calls:
        found = next((each for each in waiting if each.call_id == call.call_id), None)
        if found is not None:
            waiting.remove(found)
            yield replace(found, name=call.name)
    yield from waiting


def _with_notes_before(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Instructions behind the last question, or behind the last results, go before the question or the turn."""
    notes = tuple(takewhile(lambda each: isinstance(each, SystemMessage), reversed(messages)))[::-1]
    rest = tuple(messages[: len(messages) - len(notes)])
    if not notes or not rest or not isinstance(rest[-1], UserMessage | ToolMessage):
        return tuple(messages)
    at = len(rest) - 1
    while at > 0 and isinstance(rest[at], ToolMessage):
        at -= 1
    return (*rest[:at], *notes, *rest[at:])


# -- ids of calls


def outside_call_id(request_id: str, number: int) -> CallId:
    """The id by which a client knows a call of this request."""
    return CallId(f"{_CALL_PREFIX}{request_id}_{number}")


def request_of_call(call_id: str) -> str:
    """The request whose call it is; "" for an id that is none of ours."""
    if not call_id.startswith(_CALL_PREFIX):
        return ""
    request_id, _, number = call_id.removeprefix(_CALL_PREFIX).rpartition("_")
    return request_id if number.isdigit() else ""

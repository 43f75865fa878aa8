"""Turns that ended with calls for the client. When their results come, the client goes on where its request was.

A client of a stateless API keeps the calls that it was given, not the thinking beside them and not what ran here. Those
are kept: in memory, and in the journal for the time after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.daemon.client_question import outside_call_id, request_of_call, results_at
from callboard.actors.daemon.recently_used import RecentlyUsed
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Reply
from callboard.actors.runtime import Runtime
from callboard.protocol.content import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId

#: Turns of one tenant that are kept in memory: as many as come in ten minutes at 3 a second. Some kB each; fewer where
#: they are large (MAX_BYTES).
MAX_TURNS: Final = 2_000


class RecordedTurn(Struct, frozen=True):
    """A turn that ended with calls for the client, as the runtime has it."""

    before: tuple[Message, ...]
    """What its request has added before: turns with calls that ran here, and their results."""
    turn: AssistantMessage
    """With thinking and with the calls that ran here, under their own ids."""
    results: tuple[ToolMessage, ...]
    """Of the calls that ran here."""
    notes: tuple[str, ...]
    """What the model reads behind the results."""
    outside: tuple[CallId, ...]
    """The calls for the client, in its order."""


class RecordedTurns:
    """Those of one tenant, by the ids of their requests."""

    def __init__(self) -> None:
        self._turns = RecentlyUsed[RecordedTurn](MAX_TURNS)

    @property
    def size_bytes(self) -> int:
        """About so much memory they hold."""
        return self._turns.size_bytes

    def keep(self, request_id: str, turn: RecordedTurn) -> None:
        """In place of those that were not used for the longest time, where there are too many or they are too large."""
        self._turns.keep(request_id, turn)

    async def find(self, runtime: Runtime, request_id: str) -> RecordedTurn | None:
        """The turn; None where neither memory nor journal has it."""
        found = self._turns.find(request_id)
        if found is None and runtime.settings.journal is not None:
            found = await asyncio.to_thread(_of_journal, runtime, request_id)
            if found is not None:
                self.keep(request_id, found)
        return found


def _of_journal(runtime: Runtime, request_id: str) -> RecordedTurn | None:
    try:
        reply = runtime.result_sync(request_id)
        return turn_of(reply, runtime.journal.conversation(runtime.journal.request(request_id).begins.conversation_id))
    except UsageError:
        return None


def turn_of(reply: Reply[object], conversation: Conversation) -> RecordedTurn | None:
    """What is to be kept of a request that ended with calls for its client; None for another one."""
    opened = conversation.open_turn
    if opened is None:
        return None
    outside = tuple(call.call_id for call in reply.outside_calls)
    before = tuple(message for message in reply.messages if not isinstance(message, UserMessage))
    return RecordedTurn(before, opened.message, opened.results, opened.notes, outside)


def requests_in(messages: Iterable[Message]) -> set[str]:
    """The requests whose calls are in a client's history."""
    turns = (message for message in messages if isinstance(message, AssistantMessage))
    return {request_of_call(call.call_id) for turn in turns for call in turn.tool_calls} - {""}


def with_recorded_turns(messages: Sequence[Message], known: Mapping[str, RecordedTurn]) -> tuple[Message, ...]:
    """The messages, which are legal, with the turns that are `known`, by their requests, in place of the client's short
    form of them.

    Thinking and what ran here come back so. A turn that the client has changed counts as the client says it.
    """
    told: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if not isinstance(message, AssistantMessage) or not message.tool_calls:
            told.append(message)
            continue
        results = tuple(results_at(messages, at))
        at += len(results)
        recorded = _recorded(message, known)
        told += (message, *results) if recorded is None else _whole(recorded, results)
    return tuple(told)


def _recorded(message: AssistantMessage, known: Mapping[str, RecordedTurn]) -> RecordedTurn | None:
    requests = {request_of_call(call.call_id) for call in message.tool_calls}
    request_id = requests.pop() if len(requests) == 1 else ""
    found = known.get(request_id)
    if found is None:
        return None
    given = {call.call_id: _said_by(call) for call in message.tool_calls}
    own = {call.call_id: _said_by(call) for call in found.turn.tool_calls}
    kept = {outside_call_id(request_id, number): own.get(known) for number, known in enumerate(found.outside)}
    return found if given == kept else None


def _said_by(call: ToolCall) -> tuple[str, object]:
    """Name and arguments, however these are spaced."""
    return call.name, orjson.loads(call.arguments)


def _whole(recorded: RecordedTurn, results: Sequence[ToolMessage]) -> Iterable[Message]:
    """The recorded turn with all results, in the order of its calls."""
    known = {result.call_id: result for result in recorded.results}
    for result in results:
        call_id = recorded.outside[int(result.call_id.rpartition("_")[2])]
        known[call_id] = replace(result, call_id=call_id)
    yield from recorded.before
    yield recorded.turn
    yield from (known[call.call_id] for call in recorded.turn.tool_calls)
    yield from map(SystemMessage, recorded.notes)

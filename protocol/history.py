"""What makes a history legal for every provider (I2, I3), and its atoms: what is kept or cut as one piece.

An atom is a message, or an assistant turn with calls together with all its results. Cutting between atoms is always
legal; cutting inside one never is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from callboard.protocol.content import AssistantMessage, Message, ToolMessage

Atom = tuple[Message, ...]


def is_json_object(text: str) -> bool:
    """Whether the text is the JSON of an object: what every provider demands of a call's arguments."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def split_atoms(messages: Sequence[Message]) -> list[Atom]:
    """The messages in pieces that may be cut apart. The history must be legal."""
    atoms: list[Atom] = []
    start = 0
    while start < len(messages):
        message = messages[start]
        size = 1 + len(message.tool_calls) if isinstance(message, AssistantMessage) else 1
        atoms.append(tuple(messages[start : start + size]))
        start += size
    return atoms


def history_faults(messages: Sequence[Message]) -> list[str]:
    """What makes this history illegal for some provider, one sentence each; empty when it is legal."""
    faults: list[str] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        results = 0
        if isinstance(message, AssistantMessage):
            results = len(message.tool_calls)
            faults += _turn_faults(position, message, messages[position + 1 : position + 1 + results])
        elif isinstance(message, ToolMessage):
            faults.append(f"message {position}: result of {message.call_id!r} follows no turn that asked for it")
        # A wrong result is reported with its turn, and not again as an orphan.
        position += 1
        while results and position < len(messages) and isinstance(messages[position], ToolMessage):
            position += 1
            results -= 1
    return faults


def _turn_faults(position: int, turn: AssistantMessage, following: Sequence[Message]) -> Iterator[str]:
    calls = turn.tool_calls
    if not turn.parts:
        yield f"message {position}: an assistant turn without any part"
    if len({call.call_id for call in calls}) < len(calls):
        yield f"message {position}: two calls of one turn share an id"
    for index, call in enumerate(calls):
        if not call.call_id:
            yield f"message {position}: a call of {call.name!r} has no id"
        if not is_json_object(call.arguments):
            yield f"message {position}: the arguments of {call.call_id!r} are not a JSON object"
        result = following[index] if index < len(following) else None
        if not isinstance(result, ToolMessage):
            yield f"message {position}: {call.call_id!r} has no result directly after its turn"
            return
        if result.call_id != call.call_id or result.name != call.name:
            yield (
                f"message {position}: the result in place {index + 1} is of {result.call_id!r} ({result.name}), "
                f"the turn asked for {call.call_id!r} ({call.name}) there"
            )

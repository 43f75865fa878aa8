"""Tokens of messages and tools, and texts in part: a second reading, for the rules and the simulated provider alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import replace

from callboard.protocol.content import Media, Message, ServerTool, Text, Thinking, ToolCall, ToolMessage
from callboard.protocol.prompt_tokens import estimate_tokens, media_tokens
from callboard.protocol.tools import ToolDefinition

#: What surrounds each message, and each call (docs/protocol.md, "Tokens").
_AROUND: Final = 6
#: What stays of a shortened result.
SHORT_CHARS: Final = 400


def tokens_of(messages: Iterable[Message]) -> int:
    """Of all these messages."""
    return sum(once(message, tokens_of_one) for message in messages)


def tokens_of_one(message: Message) -> int:
    """Of this message, with what surrounds it."""
    if isinstance(message, ToolMessage):
        return _AROUND + estimate_tokens(message.content) + sum(map(_of_media, message.media))
    parts: Sequence[Any] = getattr(message, "parts", (message,))  # a note is a text of its own
    return _AROUND + sum(_OF_PARTS.get(type(part), _of_text)(part) for part in parts)


def tokens_of_tools(tools: Iterable[ToolDefinition]) -> int:
    """Of the tools on offer."""
    shown = [text for tool in tools for text in (tool.name, tool.description, _json(tool.parameters))]
    return sum(map(estimate_tokens, shown))


def tokens_of_schema(schema: Mapping[str, Any] | None) -> int:
    """Of the schema of the answer."""
    return 0 if schema is None else estimate_tokens(_json(schema))


def _of_text(part: Any) -> int:
    return estimate_tokens(part.text)


def _of_call(part: ToolCall) -> int:
    return _AROUND + estimate_tokens(part.name) + estimate_tokens(part.arguments)


def _of_media(part: Media) -> int:
    return media_tokens(part, estimate_tokens)


def _of_server_tool(part: ServerTool) -> int:
    return estimate_tokens(_json(part.replay.data))


_OF_PARTS: Final[dict[type[Any], Callable[[Any], int]]] = {
    Text: _of_text,
    Thinking: _of_text,
    ToolCall: _of_call,
    ServerTool: _of_server_tool,
    **dict.fromkeys(Media.__subclasses__(), _of_media),
}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def shortened(message: Message) -> Message:
    """A result of more than twice what stays, in part; any other message as it is (docs/protocol.md, "History")."""
    if not isinstance(message, ToolMessage) or len(message.content) <= 2 * SHORT_CHARS:
        return message
    return replace(message, content=in_part(message.content, SHORT_CHARS))


def in_part(text: str, chars: int) -> str:
    """The beginning and the end of a text, about two thirds and one, cut at a word; between them what is missing."""
    head = int(chars * (2 / 3))
    tail = len(text) - (chars - head)
    begun, after = text[:head], text[tail:]
    near = begun[head - int(chars * (2 / 3) * 0.25) :]
    for mark in "\n ,":
        if mark in near:
            begun = begun[: begun.rindex(mark) + 1]
            break
    near = after[: int(chars * (1 - 2 / 3) * 0.25)]
    for mark in "\n ,":
        if mark in near:
            after = after[near.index(mark) + 1 :]
            break
    missing = text[len(begun) : len(text) - len(after)]
    lines = f" (about {missing.count(chr(10)):,} lines)" if "\n" in missing else ""
    return (
        f"{begun}\n[... {len(missing):,} of {len(text):,} characters{lines} are left out here: the result is too long "
        "for the model's context. For the rest, call the tool for less at a time: a range, a page, a narrower query. "
        f"...]\n{after}"
    )


_Counted = TypeVar("_Counted")
_COUNTED: Final[dict[int, tuple[object, int]]] = {}
"""What was counted lately, by its id: the same messages stand in one request after the other."""
_MOST_COUNTED: Final = 256


def once(value: _Counted, count: Callable[[_Counted], int]) -> int:
    """What this comes to, counted once."""
    known = _COUNTED.get(id(value))
    if known is None:
        if len(_COUNTED) >= _MOST_COUNTED:
            _COUNTED.clear()
        known = _COUNTED[id(value)] = value, count(value)  # it is held: no other one gets its id
    return known[1]

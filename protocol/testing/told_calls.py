"""How a model that takes no tools is shown calls and results: a second reading, made for the rules alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callboard.protocol.content import AssistantMessage, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage


def in_words(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, with calls as sentences of their turn and the results of a turn as one user message."""
    told: list[Message] = []
    results: list[Any] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            verb = "failed" if message.is_error else "returned"
            results += [Text(f"[{message.name} {verb}]\n{message.content}"), *message.media]
            continue
        told += [UserMessage(tuple(results))] if results else []
        results = []
        told.append(_turn(message) if isinstance(message, AssistantMessage) and message.tool_calls else message)
    return (*told, UserMessage(tuple(results))) if results else tuple(told)


def _turn(turn: AssistantMessage) -> AssistantMessage:
    parts: list[Any] = []
    for part in turn.parts:
        if isinstance(part, ToolCall):
            parts.append(Text(("\n" if parts else "") + f"[Called {part.name} with {part.arguments}]"))
        elif not isinstance(part, Thinking):
            parts.append(Text(part.text) if isinstance(part, Text) else part)
    return AssistantMessage(tuple(parts))

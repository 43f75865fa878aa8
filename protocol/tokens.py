"""How many tokens a message takes, by a counter that is given. Estimates are on the high side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import orjson

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.tools import ToolDefinition

TokenCounter = Callable[[str], int]
"""Tokens of a text; pure, never negative. The real tokenizer of a model, where one is installed."""

#: English prose has 4 to 4.5 characters a token, code about 3.
CHARS_PER_TOKEN: Final = 4.0
#: 4 / 1.25 = 3.2 characters a token: code fits too.
SAFETY_FACTOR: Final = 1.25
#: Role, separators and field names around each message or call.
MESSAGE_OVERHEAD_TOKENS: Final = 6
#: A picture at the largest size providers keep (Anthropic: width x height / 750, about 1,600).
IMAGE_TOKENS: Final = 1_600


def estimate_tokens(text: str) -> int:
    """Tokens of a text when no tokenizer is at hand."""
    return math.ceil(len(text) * SAFETY_FACTOR / CHARS_PER_TOKEN)


def message_tokens(message: Message, count: TokenCounter) -> int:
    """Tokens of one message, what surrounds it included."""
    if isinstance(message, SystemMessage):
        return count(message.text) + MESSAGE_OVERHEAD_TOKENS
    if isinstance(message, ToolMessage):
        return count(message.content) + MESSAGE_OVERHEAD_TOKENS
    return _parts_tokens(message, count) + MESSAGE_OVERHEAD_TOKENS


def _parts_tokens(message: UserMessage | AssistantMessage, count: TokenCounter) -> int:
    total = 0
    for part in message.parts:
        match part:
            case Text() | Thinking():
                total += count(part.text)
            case ToolCall():
                total += count(part.name) + count(part.arguments) + MESSAGE_OVERHEAD_TOKENS
            case Image():
                total += IMAGE_TOKENS
            case ServerTool():
                total += count(orjson.dumps(part.replay.data, default=str).decode())
    return total


def messages_tokens(messages: Iterable[Message], count: TokenCounter) -> int:
    """Tokens of several messages."""
    return sum(message_tokens(message, count) for message in messages)


def tools_tokens(tools: Sequence[ToolDefinition], count: TokenCounter) -> int:
    """Tokens of what the model is told of its tools."""
    return sum(
        count(tool.name) + count(tool.description) + count(orjson.dumps(tool.parameters, default=str).decode())
        for tool in tools
    )

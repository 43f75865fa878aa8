"""A history for a model that takes no tools: what was called, and what came of it, in words.

Servers that refuse `tools` refuse calls and results in the messages as well (Perplexity: "role: Input should be
'system', 'user' or 'assistant'", litellm issue 11665; the chat templates of Gemma and Llama 2 know no other roles).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Audio,
    Document,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
    Video,
)


def calls_as_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages without tool calls and results: a call is a sentence of its turn, and the results of a turn are one
    user message. What a provider wants back of such a turn (signatures, reasoning) belongs to the calls, and goes too.
    """
    told: list[Message] = []
    for are_results, group in groupby(messages, lambda message: isinstance(message, ToolMessage)):
        if are_results:
            results = [result for result in group if isinstance(result, ToolMessage)]
            told.append(UserMessage(tuple(part for result in results for part in _result(result))))
        else:
            told += (_turn(message) if isinstance(message, AssistantMessage) else message for message in group)
    return tuple(told)


def _turn(turn: AssistantMessage) -> AssistantMessage:
    if not turn.tool_calls:
        return turn
    told: list[AssistantPart] = []
    for part in turn.parts:
        if isinstance(part, ToolCall):
            call = f"[Called {part.name} with {part.arguments}]"
            told.append(Text(f"\n{call}" if told else call))  # most APIs join the texts of a turn
        elif not isinstance(part, Thinking):
            told.append(Text(part.text) if isinstance(part, Text) else part)
    return AssistantMessage(tuple(told))


def _result(result: ToolMessage) -> Iterator[UserPart]:
    yield Text(f"[{result.name} {'failed' if result.is_error else 'returned'}]\n{result.content}")
    yield from (part for part in result.media if isinstance(part, Image | Document | Audio | Video))

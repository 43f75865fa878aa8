"""Messages as JSON, in the form in which the OpenTelemetry GenAI conventions have them (`gen_ai.input.messages`).

Only made where content is logged. Values that look like keys are masked, texts are cut and the oldest messages left
out: all the spans that are sent together should fit into the 4 MiB that a gRPC server takes by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson

from callboard.protocol.content import (
    AssistantMessage,
    AssistantPart,
    Message,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    UserPart,
)
from callboard.protocol.masking import LONGEST_KEY_BYTES, for_log
from callboard.protocol.model import ModelResponse

#: Of what a person, a model or an exception said, in one attribute or log record.
MAX_CONTENT_CHARS: Final = 4_000
#: Of a prompt, in one attribute: the last ones, which the answer is about.
MAX_MESSAGES: Final = 20

Json = dict[str, object]


def shown_text(text: str) -> str:
    """As it is shown outside: masked, bounded, and fit for UTF-8 (a model may send half a surrogate pair)."""
    shown = for_log(text[: MAX_CONTENT_CHARS + LONGEST_KEY_BYTES])[:MAX_CONTENT_CHARS]
    shown = shown.encode(errors="backslashreplace").decode()
    more = len(text) - MAX_CONTENT_CHARS
    return f"{shown}... ({more:,} characters more)" if more > 0 else shown


def messages_json(messages: Sequence[Message]) -> str:
    """The last messages of a prompt; the first says how many were left out."""
    shown = [_message(message) for message in messages[-MAX_MESSAGES:]]
    if len(messages) > MAX_MESSAGES:
        told = f"({len(messages) - MAX_MESSAGES} earlier messages are not shown)"
        shown.insert(0, {"role": "system", "parts": [_text(told)]})
    return _dumped(shown)


def instructions_json(messages: Iterable[SystemMessage]) -> str:
    """The instructions that come before the messages."""
    return _dumped([_text(message.text) for message in messages])


def output_json(response: ModelResponse) -> str:
    """The turn, with why it ended."""
    message = _message(AssistantMessage(response.parts))
    return _dumped([{**message, "finish_reason": response.finish_reason.value}])


def _message(message: Message) -> Json:
    match message:
        case SystemMessage():
            return {"role": "system", "parts": [_text(message.text)]}
        case UserMessage():
            return {"role": "user", "parts": [_part(part) for part in message.parts]}
        case AssistantMessage():
            return {"role": "assistant", "parts": [_part(part) for part in message.parts]}
        case ToolMessage():
            result = {"id": shown_text(message.call_id), "response": shown_text(message.content)}
            return {"role": "tool", "parts": [{"type": "tool_call_response", **result}]}


def _part(part: UserPart | AssistantPart) -> Json:
    match part:
        case Text():
            return _text(part.text)
        case Thinking():
            return {"type": "reasoning", "content": shown_text(part.text)}
        case ToolCall():
            named = {"id": shown_text(part.call_id), "name": shown_text(part.name)}
            return {"type": "tool_call", **named, "arguments": shown_text(part.arguments)}
    return {"type": type(part).__name__.lower()}  # pictures and sounds are not repeated


def _text(text: str) -> Json:
    return {"type": "text", "content": shown_text(text)}


def _dumped(value: object) -> str:
    return orjson.dumps(value).decode()

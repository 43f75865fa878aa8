"""Both sides of a stateless API in one process, without I/O: what our adapters write and read, the daemon's endpoints
read and write."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping

from callboard.protocol.content import (
    AssistantMessage,
    Document,
    Media,
    Message,
    SystemMessage,
    Text,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.model import ModelRequest, StreamEvent
from callboard.providers.adapter import Adapter


def written_by(adapter: Adapter, messages: Iterable[Message]) -> bytes:
    """The body by which the adapter sends these messages."""
    return adapter.encode(ModelRequest("model", tuple(messages))).body


def read_by(adapter: Adapter, body: bytes, *, streaming: bool, status: int = 200) -> list[StreamEvent]:
    """What the adapter reads in an answer."""
    kind = "text/event-stream" if streaming else "application/json"
    decoder = adapter.decoder(status, {"content-type": kind}, streaming)
    return [*decoder.feed(body), *decoder.finish()]


def said(messages: Iterable[Message]) -> list[object]:
    """What messages say, by role: without what only one provider reads, and however texts are cut into parts."""
    found: list[object] = []
    for message in messages:
        match message:
            case SystemMessage(text=text):
                found.append(("system", text))
            case UserMessage(parts=parts):
                found.append(("user", tuple(each.text if isinstance(each, Text) else _medium(each) for each in parts)))
            case AssistantMessage():
                calls = [(call.call_id, call.name, json.loads(call.arguments)) for call in message.tool_calls]
                found.append(("assistant", message.text, calls))
            case ToolMessage():
                media = tuple(map(_medium, message.media))
                found.append(("tool", message.call_id, message.name, message.content, media))
    return found


def _medium(media: Media) -> Mapping[str, str]:
    """A text is the same, be it given as such or by its bytes."""
    text, data = (media.text if isinstance(media, Document) else ""), media.data_base64
    if media.media_type == "text/plain" and data:
        text, data = b64decode(data).decode(), ""
    return {"kind": type(media).__name__, "type": media.media_type, "data": data, "url": media.url, "text": text}

"""Bytes as servers send them, and what our decoders make of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import astuple

from callboard.protocol.content import Message, UserMessage
from callboard.protocol.model import Done, Error, ModelRequest, ModelResponse, StreamEvent, Usage
from callboard.providers.adapter import Adapter
from callboard.providers.response_builder import build_response


def sse(documents: Iterable[Any], *, named: bool = False, newline: str = "\n", done: bool = False) -> bytes:
    """An event stream of these JSON documents; `named` writes each one's type as event line too."""
    lines: list[str] = []
    for document in documents:
        if named:
            lines.append(f"event: {document['type']}")
        lines += [f"data: {json.dumps(document, ensure_ascii=False)}", ""]
    if done:
        lines += ["data: [DONE]", ""]
    return (newline.join(lines) + newline).encode()


def cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """`data` in chunks of these sizes, over and over."""
    chunks, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        chunks.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return chunks


def events(adapter: Adapter, data: bytes, sizes: Sequence[int] = (65536,), **how: Any) -> list[StreamEvent]:
    """All events of an answer. Checks that it ends exactly once, and that what comes after its end is ignored."""
    decoder = adapter.decoder(**how)
    found = [event for chunk in cut(data, sizes) for event in decoder.feed(chunk)]
    found += decoder.finish()
    assert [event for event in found if isinstance(event, Done | Error)] == found[-1:]
    assert decoder.feed(data) == []
    assert decoder.finish() == []
    return found


def answer(adapter: Adapter, data: bytes, sizes: Sequence[int] = (65536,), **how: Any) -> ModelResponse:
    """The finished turn of an answer."""
    return build_response(events(adapter, data, sizes, **how))


def body(adapter: Adapter, *messages: Message, **fields: Any) -> dict[str, Any]:
    """The body that a request with these messages gets."""
    request = ModelRequest(fields.pop("model", "m"), messages or (UserMessage.of("Hi"),), **fields)
    decoded: dict[str, Any] = json.loads(adapter.encode(request).body)
    return decoded


def usage_is_true(usage: Usage | None) -> bool:
    """Is it unknown, or do its counts satisfy their own definition?"""
    if usage is None:
        return True
    parts = (
        (usage.cached_tokens + usage.cache_write_tokens, usage.input_tokens),
        (usage.cache_write_1h_tokens, usage.cache_write_tokens),
        (usage.input_audio_tokens, usage.input_tokens),
        (usage.reasoning_tokens + usage.output_audio_tokens, usage.output_tokens),
        (usage.reasoning_tokens + usage.output_image_tokens, usage.output_tokens),
    )
    return all(count >= 0 for count in astuple(usage)) and all(part <= whole for part, whole in parts)


def header(headers: Mapping[str, str], name: str) -> str | None:
    return {key.lower(): value for key, value in headers.items()}.get(name)

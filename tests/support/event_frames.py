"""Frames of AWS's binary event stream, as Bedrock sends them."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32


def frame(headers: Mapping[str, bool | int | bytes | str], payload: bytes) -> bytes:
    """A frame whose headers have the type that their values have in Python."""
    return typed_frame([(name, *_typed(value)) for name, value in headers.items()], payload)


def typed_frame(headers: Sequence[tuple[str, int, bytes]], payload: bytes = b"") -> bytes:
    """A frame with these names, types and bytes of headers."""
    packed = b"".join(
        bytes([len(name.encode())]) + name.encode() + bytes([kind]) + value for name, kind, value in headers
    )
    start = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    body = start + struct.pack("!I", crc32(start)) + packed + payload
    return body + struct.pack("!I", crc32(body))


def _typed(value: bool | int | bytes | str) -> tuple[int, bytes]:
    if isinstance(value, bool):
        return (0 if value else 1), b""
    if isinstance(value, int):
        return 5, struct.pack("!q", value)
    data = value.encode() if isinstance(value, str) else value
    return (7 if isinstance(value, str) else 6), struct.pack("!H", len(data)) + data


def event(kind: str, document: Any) -> bytes:
    """One event of ConverseStream."""
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(document, ensure_ascii=False).encode())


def exception(kind: str, message: str) -> bytes:
    """A modelled exception in the stream."""
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())


def stream(events: Iterable[tuple[str, Any]]) -> bytes:
    """A whole answer: (event type, document) pairs."""
    return b"".join(event(kind, document) for kind, document in events)


# The events of ConverseStream.

USAGE = {"inputTokens": 12, "outputTokens": 7, "totalTokens": 19}
METADATA = ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 300}})


def stop(reason: str) -> tuple[str, dict[str, Any]]:
    return "messageStop", {"stopReason": reason}


def delta(index: int, **piece: Any) -> tuple[str, dict[str, Any]]:
    return "contentBlockDelta", {"contentBlockIndex": index, "delta": piece, "p": "abcdefg"}


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def converse_events(blocks: list[Any], reason: str, size: int) -> list[tuple[str, Any]]:
    """The events by which a server tells these blocks, their texts in pieces of so many characters."""
    told: list[tuple[str, Any]] = [("messageStart", {"role": "assistant"})]
    for index, block in enumerate(blocks):
        ((kind, value),) = block.items()
        if kind in ("toolUse", "toolResult"):
            start = {name: each for name, each in value.items() if name not in ("input", "content")}
            told.append(("contentBlockStart", {"contentBlockIndex": index, "start": {kind: start}}))
        if kind == "image":
            start = {"format": value["format"]}
            told.append(("contentBlockStart", {"contentBlockIndex": index, "start": {"image": start}}))
        told += [delta(index, **piece) for piece in _deltas(kind, value, size)]
        told.append(("contentBlockStop", {"contentBlockIndex": index}))
    return [*told, stop(reason), METADATA]


def _written(value: Any) -> str:
    """As what was an object is written by a whole answer's reader too."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _deltas(kind: str, value: Any, size: int) -> list[dict[str, Any]]:
    if kind == "text":
        return [{"text": piece} for piece in _pieces(value, size)]
    if kind == "toolUse":
        return [{"toolUse": {"input": piece}} for piece in _pieces(_written(value["input"]), size)]
    if kind == "toolResult":
        return [{"toolResult": value["content"]}]
    if kind == "citationsContent":
        texts = [{"text": piece} for each in value["content"] for piece in _pieces(each["text"], size)]
        return texts + [{"citation": each} for each in value["citations"]]
    if kind == "image":
        data = b64decode(value["source"]["bytes"])
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        return [{"image": {"source": {"bytes": b64encode(part).decode()}}} for part in parts]
    if "redactedContent" in value:
        return [{"reasoningContent": {"redactedContent": value["redactedContent"]}}]
    said = value["reasoningText"]
    texts = [{"reasoningContent": {"text": piece}} for piece in _pieces(said["text"], size)]
    return texts + [{"reasoningContent": {"signature": piece}} for piece in _pieces(said["signature"], size)]

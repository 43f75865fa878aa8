"""Frames of AWS's binary event stream, as Bedrock sends them."""

from __future__ import annotations

import json
import struct
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

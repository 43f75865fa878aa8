"""JSON with whole numbers of any size, which clients may send: in schemas, and in fields that are only handed back."""

from __future__ import annotations

import json

import orjson


def json_bytes(value: object) -> bytes:
    """The value as JSON. Raises TypeError for what is none."""
    try:
        return orjson.dumps(value)
    except TypeError:  # orjson writes no numbers beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

"""What a stream of a request gives, as JSON for server-sent events: the name of its kind, and its fields."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import asdict

from callboard.actors.daemon.native_answers import ReplyShown
from callboard.actors.requests.replies import Reply
from callboard.protocol.ids import Tag
from callboard.protocol.masking import for_log

_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def event_name(item: object) -> str:
    """ "text_delta" of a TextDelta."""
    return _HUMPS.sub("_", type(item).__name__).lower()


def event_data(item: object) -> bytes:
    """One JSON object in one line: the fields of the item, and its kind as `type`."""
    if isinstance(item, Reply):
        return _json({"type": "reply", **ReplyShown.of(item).model_dump()})
    fields = orjson.loads(_json(item))
    return _json({"type": event_name(item), **(fields if isinstance(fields, dict) else {"value": fields})})


def _json(value: object) -> bytes:
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:  # half of a surrogate pair, or a number that no 64 bits hold
        return json.dumps(value, default=_plain).encode()


def _plain(value: object) -> object:
    if isinstance(value, Struct):
        return asdict(value)
    if is_dataclass(value):  # in an object that a program of its own has made
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Tag):
        return {"request_id": value.request_id, "step": value.step, "call_id": value.call_id}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    if isinstance(value, tuple | frozenset | set):
        return list(value)
    return for_log(str(value))

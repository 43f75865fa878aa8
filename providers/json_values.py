"""JSON as providers send it: its type, read fast, forgiven where a strict parser would lose an answer, then narrowed.

A decoder asks for a field by the type that it must have (`text_at`, `object_at`, `objects_at`). Null and a missing
field are the empty value; a value of another type is a TypeError, which base_decoder reports as a malformed answer.
Token counts are forgiven everything (`count_at`): an answer is not lost because its bill cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Final, TypeAlias, TypeGuard

import orjson

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"
Body: TypeAlias = dict[str, object]
"""A JSON object that goes out: its values are what orjson can write."""

#: What reading untrusted JSON of the wrong shape can raise. ValueError covers both parsers' own errors.
SHAPE_ERRORS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
EMPTY_OBJECT: Final = "{}"
#: A count of tokens above this is none: it is a hundred times the largest context there is.
MAX_TOKEN_COUNT: Final = 1_000_000_000
#: orjson writes 254 levels. What is kept of an answer goes back inside a request or a journal entry, so it must leave
#: some of them to what is around it.
_LEVELS_AROUND: Final = 16


def loads(data: bytes | str) -> Json:
    """The value of a JSON text. Raises ValueError where it is none.

    orjson first. What it refuses and servers send all the same (invalid UTF-8, NaN, half of a surrogate pair as an
    escape: a token cut through an emoji) is read by the standard library, the unreadable character replaced.
    """
    value: Json
    try:
        value = orjson.loads(data)
        return value
    except orjson.JSONDecodeError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        value = json.loads(text)
        return _without_surrogates(value)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def dumps(value: object) -> bytes:
    """Compact JSON. Raises TypeError for what JSON cannot hold, but writes NaN as null: see `not_finite`."""
    return orjson.dumps(value)


def dumps_text(value: object) -> str:
    """`dumps`, as text."""
    return orjson.dumps(value).decode()


def not_finite(value: object, written: bytes = b"null") -> str:
    """Where in `value`, which has no cycles, NaN or an infinity is, as a path ("tools/0/minimum"); "" if nowhere.

    `written`, where given, is its JSON by orjson, which makes null of them: without a null in it the search is spared.
    """
    waiting: list[tuple[str, object]] = [("", value)] if b"null" in written else []
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, float) and not isfinite(node):
            return path.removeprefix("/") or "the value"
        if isinstance(node, Mapping):
            waiting += [(f"{path}/{key}", child) for key, child in node.items() if not isinstance(child, str)]
        elif isinstance(node, list | tuple):
            waiting += [(f"{path}/{index}", child) for index, child in enumerate(node) if not isinstance(child, str)]
    return ""


def storable_bytes(value: Mapping[str, object]) -> int:
    """How many bytes of JSON `value` takes. Raises ValueError for what could not be written later, when it goes back to
    its provider: nested too deeply, or holding NaN."""
    wrapped: object = value
    for _ in range(_LEVELS_AROUND):
        wrapped = [wrapped]
    try:
        written = orjson.dumps(wrapped)
    except TypeError as error:
        raise ValueError(f"a value that cannot be kept: {error}") from None
    if path := not_finite(value, written):
        raise ValueError(f"{path} is not a finite number")
    return len(written) - 2 * _LEVELS_AROUND


def arguments_text(arguments: Json) -> str:
    """The argument text of a call whose arguments came as a value. NaN stays NaN, so that the call is refused by name
    and not run with a null that its model never wrote."""
    if arguments is None:
        return ""
    if isinstance(arguments, str):
        return arguments
    try:
        written = orjson.dumps(arguments)
    except TypeError:
        return json.dumps(arguments)
    return json.dumps(arguments) if not_finite(arguments, written) else written.decode()


def canonical_arguments(raw: str) -> tuple[str, bool]:
    """(arguments, complete) of a call whose whole argument text is `raw`.

    Nothing and null are `{}` (docs/wire.md, quirk 9). An object that was encoded twice is unwrapped (10). A text which
    is not one JSON object, or has a number in it that JSON has not (NaN, 1e400), stays as it is and is not complete:
    such a call is never run (11, 21).
    """
    text = raw.strip()
    if text in ("", "null"):
        return EMPTY_OBJECT, True
    value = _parsed(text)
    if isinstance(value, str):
        text, value = value, _parsed(value)
    return (text, True) if isinstance(value, dict) else (raw, False)


# What a decoder asks a document for.


def text_of(value: Json) -> str:
    """`value`, which must be a string; "" for null. Raises TypeError for anything else."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise TypeError(f"expected a string, not {type(value).__name__}")


def text_at(holder: JsonObject, key: str) -> str:
    """The string at `key`; "" where it is missing or null. Raises TypeError for anything else."""
    value = holder.get(key)
    return value if isinstance(value, str) else text_of(value)


def object_of(value: Json) -> JsonObject:
    """`value`, which must be an object. Raises TypeError for anything else."""
    if isinstance(value, dict):
        return value
    raise TypeError(f"expected an object, not {type(value).__name__}")


def object_at(holder: JsonObject, key: str) -> JsonObject:
    """The object at `key`; an empty one where it is missing, null or false. Raises TypeError for anything else."""
    value = holder.get(key)
    return value if isinstance(value, dict) else object_of(value) if value else {}


def list_at(holder: JsonObject, key: str) -> list[Json]:
    """The list at `key`; an empty one where it is missing, null or false. Raises TypeError for anything else."""
    value = holder.get(key)
    if not value:
        return []
    if isinstance(value, list):
        return value
    raise TypeError(f"expected a list, not {type(value).__name__}")


def objects_at(holder: JsonObject, key: str) -> list[JsonObject]:
    """The list of objects at `key`; an empty one where it is missing or null. Raises TypeError for anything else."""
    values = holder.get(key)
    if not values:
        return []
    if isinstance(values, list) and _are_objects(values):
        return values
    raise TypeError("expected a list of objects")


def _are_objects(values: list[Json]) -> TypeGuard[list[JsonObject]]:
    for value in values:  # noqa: SIM110 - a generator costs twice as much, and every streamed event has such a list
        if not isinstance(value, dict):
            return False
    return True


def fields_at(holder: JsonObject, key: str) -> JsonObject:
    """The object at `key`; an empty one for anything else. For what an answer is not lost over: its usage."""
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def index_at(holder: JsonObject, key: str) -> int:
    """The place that `key` names; 0 where it is missing or null. Raises TypeError for anything else."""
    value = holder.get(key) or 0
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number, not {type(value).__name__}")


def count_at(holder: JsonObject, key: str) -> int:
    """The count of tokens at `key`; 0 (unknown) for what cannot be one: text, NaN, a negative or absurd number."""
    value = holder.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return 0
    return int(value) if 0 <= value <= MAX_TOKEN_COUNT else 0


def _parsed(text: str) -> Json:
    """None for what is no JSON, or holds a number that is none."""
    try:
        value: Json = orjson.loads(text)
        return value
    except orjson.JSONDecodeError:
        pass
    try:
        value = loads(text)
        return None if not_finite(value) else value
    except ValueError:
        return None


def _without_surrogates(value: Json) -> Json:
    if isinstance(value, str):
        # A pair of escapes that the parser left apart is joined, a lone half becomes U+FFFD.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {str(_without_surrogates(key)): _without_surrogates(item) for key, item in value.items()}
    return value

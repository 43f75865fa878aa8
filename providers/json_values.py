"""JSON as providers send and take it: its type, read fast, forgiven where a strict parser would lose an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import orjson

from callboard.protocol.content import not_finite

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"
Body: TypeAlias = dict[str, object]
"""A JSON object that goes out: its values are what orjson can write."""

#: What reading untrusted JSON of the wrong shape can raise. ValueError covers both parsers' own errors.
SHAPE_ERRORS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
#: What JSON has only escaped within a text (RFC 8259, section 7), and models write as it is: Gemini (rhesis pull 2488),
#: Kimi (kimi-cli pull 1460). Both clients read it so (`strict=False`).
_CONTROL: Final = re.compile("[\x00-\x1f]")
_ESCAPES: Final = {code: f"\\u{code:04x}" for code in range(32)} | str.maketrans(
    {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
)
#: A text in JSON that is sound but for those.
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
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


def finite_loads(text: str) -> Json:
    """`loads`, but a ValueError for NaN and the infinities as well (orjson reads none of them)."""
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = loads(text)
        if found := not_finite(value):
            raise ValueError(f"{found} is not a finite number") from None
    return value


def load_object(data: bytes | str) -> JsonObject | None:
    """The object that a JSON text is; None where it is anything else."""
    try:
        value = loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def dumps(value: object, default: Callable[[object], object] | None = None) -> bytes:
    """The JSON of a value. Raises ValueError for what JSON cannot hold: NaN, half of a surrogate pair, a cycle."""
    try:
        written = orjson.dumps(value, default)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if b"null" in written and (found := not_finite(value)):
        raise ValueError(f"{found} is not a finite number")
    return written


def as_text(value: Json) -> str:
    """The text that a server wrote: "" for null, and the JSON of anything else that came in its place, such as a digit
    as a number (cloudflare/ai issue 651) or arguments as an object. NaN stays NaN, so that a call with it is refused by
    name and not run with a null that its model never wrote."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    try:
        return dumps(value).decode()
    except ValueError:
        return json.dumps(value)


def canonical_arguments(raw: str) -> tuple[str, bool]:
    """(arguments, complete) of a call whose whole argument text is `raw`.

    Nothing and null are `{}` (docs/wire.md, quirk 9). An object that was encoded twice is unwrapped (10). Line feeds,
    tabs and other control characters that its texts have as they are, are escaped (86). A text which is not one JSON
    object, or has a number in it that JSON has not (NaN, 1e400), stays as it is and is not complete: such a call is
    never run (11, 21).
    """
    text = raw.strip()
    if text in ("", "null"):
        return "{}", True
    try:
        text, value = _lenient_loads(text)
        if isinstance(value, str):
            text, value = _lenient_loads(value)
    except ValueError:
        return raw, False
    return (text, True) if isinstance(value, dict) else (raw, False)


def holds_objects(text: str) -> bool:
    """Are these the arguments of several calls: one whole object behind another?"""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text := text.strip())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and text[end:].lstrip().startswith("{")


def _lenient_loads(text: str) -> tuple[str, Json]:
    """The text as JSON has it, and its value."""
    try:
        return text, finite_loads(text)
    except ValueError:
        if _CONTROL.search(text) is None:
            raise
    try:
        json.loads(text, strict=False)  # else texts may not be told apart from what is between them
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    text = _STRING.sub(lambda found: found[0].translate(_ESCAPES), text)
    return text, finite_loads(text)


def storable_bytes(value: Mapping[str, object]) -> int:
    """The bytes of JSON that `value` takes. Raises ValueError for what could not go back to its provider later."""
    wrapped: object = value
    for _ in range(_LEVELS_AROUND):
        wrapped = [wrapped]
    return len(dumps(wrapped)) - 2 * _LEVELS_AROUND


def _without_surrogates(value: Json) -> Json:
    if isinstance(value, str):
        # A pair of escapes that the parser left apart is joined, a lone half becomes U+FFFD.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {str(_without_surrogates(key)): _without_surrogates(item) for key, item in value.items()}
    return value

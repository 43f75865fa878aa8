"""JSON as providers send it: read fast, forgiven where a strict parser would lose an answer."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

#: What reading untrusted JSON of the wrong shape can raise. ValueError covers both parsers' own errors.
SHAPE_ERRORS: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError)

EMPTY_OBJECT: Final = "{}"


def loads(data: bytes | str) -> Any:
    """The value of a JSON text. Raises ValueError where it is none.

    orjson first. What it refuses and the field sends all the same (invalid UTF-8, NaN, half of a surrogate pair as an
    escape: a token cut through an emoji) is read by the standard library, the unreadable character replaced.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    try:
        return _without_surrogates(json.loads(text))
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


def dumps(value: Any) -> bytes:
    """Compact JSON. Raises TypeError for what JSON cannot hold."""
    return orjson.dumps(value)


def dumps_text(value: Any) -> str:
    """`dumps`, as text."""
    return orjson.dumps(value).decode()


def canonical_arguments(raw: str) -> tuple[str, bool]:
    """(arguments, complete) of a call whose whole argument text is `raw`.

    Nothing and null are `{}` (docs/wire.md, quirk 9). An object that was encoded twice is unwrapped (10). A text which
    is not one JSON object stays as it is and is not complete: such a call is never run (11, 21).
    """
    text = raw.strip()
    if text in ("", "null"):
        return EMPTY_OBJECT, True
    value = _parsed(text)
    if isinstance(value, str):
        text, value = value, _parsed(value)
    return (text, True) if isinstance(value, dict) else (raw, False)


def _parsed(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return None


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        # A pair of escapes that the parser left apart is joined, a lone half becomes U+FFFD.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value


def text_of(value: Any) -> str:
    """`value`, which must be a string; "" for null. Raises TypeError, which decoders report as malformed."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    raise TypeError(f"expected a string, not {type(value).__name__}")


def count_of(value: Any) -> int:
    """A number of tokens; 0 for null. Raises TypeError, which decoders report as malformed."""
    if value is None:
        return 0
    if isinstance(value, int | float):
        return int(value)
    raise TypeError(f"expected a number, not {type(value).__name__}")

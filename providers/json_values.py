"""JSON as providers send and take it: its type, read fast, forgiven where a strict parser would lose an answer.

A decoder asks a document for a field by the type that it must have (`text_at`, `object_at`, `objects_at`). Null and a
missing field are the empty value; a value of another type is a TypeError. Token counts that make no sense are not known
(`count_at`, `usage_of`): an answer is not lost because its bill cannot be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, TypeGuard

import orjson

from callboard.protocol.content import not_finite
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.model import NEVER_LIKELY, Usage

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
#: A count of tokens above this is none: it is a hundred times the largest context there is.
MAX_TOKEN_COUNT: Final = 1_000_000_000


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


def final_arguments(raw: str) -> tuple[str, bool]:
    """`canonical_arguments` of a call to which nothing more can come: an object that was said again is one (7)."""
    arguments, complete = canonical_arguments(raw)
    first = "" if complete else _first_object(text := raw.strip())
    is_repeat = first and not any(map(str.strip, text.split(first)))
    return canonical_arguments(first) if is_repeat else (arguments, complete)


def holds_objects(text: str) -> bool:
    """Are these the arguments of several calls: one whole object behind another?"""
    first = _first_object(text := text.strip())
    return bool(first) and text[len(first) :].lstrip().startswith("{")


def _first_object(text: str) -> str:
    """The JSON of the object that the text begins with; "": it begins with none."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return ""
    return text[:end] if isinstance(value, dict) else ""


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


def said_at(holder: JsonObject, key: str) -> str:
    """What is said at `key`: as `text_at`, but no answer breaks over words that are no string; they are their JSON."""
    value = holder.get(key)
    return value if isinstance(value, str) else as_text(value)


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
    values = holder.get(key) or []
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


def count_at(holder: JsonObject, key: str) -> int | None:
    """The count at `key`; None (not known) where it is missing or cannot be one: text, NaN, a negative or absurd
    number."""
    value = holder.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(value) if 0 <= value <= MAX_TOKEN_COUNT else None


def span_at(holder: JsonObject, start_key: str, end_key: str) -> tuple[int | None, int | None]:
    """The characters of a text that two fields name, from the first to the one behind the last; (None, None) for what
    names none in any answer."""
    start, end = holder.get(start_key), holder.get(end_key)
    if type(start) is int and type(end) is int and 0 <= start < end <= MAX_ANSWER_BYTES:
        return start, end
    return None, None


def log_probability(value: Json) -> float | None:
    """A logarithm that JSON can hold; None for what is none (NaN, a text)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value < math.inf:
        return None
    return float(value) if value > -math.inf else NEVER_LIKELY


def likely_token(raw: JsonObject, key: str = "logprob") -> tuple[str, float] | None:
    """A token and the logarithm of its probability; None where either cannot be read."""
    token, logprob = raw.get("token"), log_probability(raw.get(key))
    return (token, logprob) if isinstance(token, str) and logprob is not None else None


def whole_counts(
    asked: int, answered: int, read: int, written: int, reasoned: int, total: int | None
) -> tuple[int, int]:
    """(input, output) as a whole. Servers count some parts beside them: Grok on Azure what it read from its cache (71),
    xAI and Perplexity the reasoning (59), and Kimi K3 more reasoning than output (vercel/ai#19311). The part must fit
    into the whole, and of what fits the total decides.

    A total above all of them counts thinking that is said nowhere else (Google's own OpenAI endpoint:
    mozilla-ai/any-llm#1290): it was output.
    """
    if total in (None, asked + answered) and read + written <= asked and reasoned <= answered:
        return asked, answered  # as nearly every server counts
    fitting = [
        (asked + beside, output)
        for beside in dict.fromkeys((0, read, written, read + written))
        for output in dict.fromkeys((answered, answered + reasoned, reasoned))
        if read + written <= asked + beside and reasoned <= output
    ]
    best = next((way for way in fitting if sum(way) == total), fitting[0])
    if total is not None and total > max(map(sum, fitting)):
        return asked, total - asked
    return best


def usage_of(*, input_tokens: int | None, output_tokens: int | None, **details: int | None) -> Usage | None:
    """Usage by the counts that are known; `details` are the other fields of Usage.

    None where neither input nor output is known, or where the numbers contradict the definition: what was read from the
    cache and written to it is part of the input, reasoning, sound and pictures of the output.
    """
    if input_tokens is None and output_tokens is None:
        return None
    known = {name: count for name, count in details.items() if count is not None}
    usage = Usage(input_tokens or 0, output_tokens or 0, **known)
    parts_of_input = usage.cached_tokens + usage.cache_write_tokens
    parts_of_output = max(
        usage.reasoning_tokens + usage.output_audio_tokens, usage.reasoning_tokens + usage.output_image_tokens
    )
    is_sound = (
        parts_of_input <= usage.input_tokens
        and usage.input_audio_tokens <= usage.input_tokens
        and usage.cache_write_1h_tokens <= usage.cache_write_tokens
        and parts_of_output <= usage.output_tokens
    )
    return usage if is_sound else None

"""Events and messages to bytes and back, with a version: what the journal and the conversation store keep.

Each value is JSON with its class's name under "$" (`values.Value`), so that parts which look alike stay apart. msgspec
writes, and checks what is read field by field, because a file may have been cut, edited or written by another version.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeVar, get_args
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import fields, replace

from callboard.protocol.commands import OpenTurn
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message
from callboard.protocol.errors import UsageError
from callboard.protocol.events import Event, ModelFailed, ModelResponded
from callboard.protocol.ids import MessageId
from callboard.protocol.model import NEVER_LIKELY, TokenLogprob, Usage
from callboard.protocol.values import Value

#: Raised when a field changes its meaning, or a default that is not written becomes another (see `Value`). New fields
#: with a default need no new version: old journals lack them.
FORMAT_VERSION: Final = 1
#: The place of the deepest value we write has some 60 characters; a file nested deeper is not ours.
MAX_PLACE_CHARS: Final = 400
#: Objects and lists in each other in what is a provider's own: what we write of it has to be written again.
MAX_OPAQUE_DEPTH: Final = 300
#: Of a kept conversation. Pictures are in it as base64: some hundred of the largest that providers take.
MAX_CONVERSATION_CHARS: Final = 512 * 1024 * 1024
#: Of a conversation: ours have 32.
MAX_ID_CHARS: Final = 200
CONVERSATION_FORMAT: Final = "callboard conversation"
#: The counts of `Compacted`, and under which names the ids of the messages they end with are written.
_COMPACTED_TO: Final = {
    "left_out": "left_out_to",
    "summarised": "summarised_to",
    "cleared": "cleared_to",
    "tried": "tried_at",
}
_NAME: Final = "$"
#: No float is 2**1024 or more.
_MAX_BITS: Final = 1_023
_T = TypeVar("_T")
_Object = tuple[str, type[Value], dict[str, Any]]
"""One of ours in plain JSON: its place, its class and its fields."""


class CodecError(UsageError):
    """These bytes are not what `encode_event` or `encode_messages` writes. The message says where they differ."""


class _Line(Struct):
    """What each line is: a version, and one of the three."""

    v: object = None
    event: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    parts: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _EventLine(Struct):
    """The line of an event, where nothing is wrong with it."""

    v: object
    event: Event


def encode_event(event: Event) -> bytes:
    """One event, as one line without a line feed."""
    if isinstance(event, ModelResponded | ModelFailed) and event.cost is not None and not math.isfinite(event.cost):
        # JSON has no NaN, and null is a cost that is not known: written is something else that cannot be true.
        event = replace(event, cost=-1.0)
    return _line("event", event)


def decode_event(data: bytes) -> Event:
    """Raises CodecError for anything `encode_event` did not write."""
    line: _EventLine | None = None
    try:
        if _is_flat(data):
            line = _decoder(_EventLine).decode(data)
    except (msgspec.DecodeError, UnicodeError):
        line = None  # what is wrong is told below
    if line is not None and line.v == FORMAT_VERSION:
        return line.event
    event: Event = _read(_raw(data, "event"), Event, "event", "expected an event, found {}")
    return event


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Messages of a conversation, as one line."""
    return _line("messages", messages)


def decode_messages(data: bytes) -> tuple[Message, ...]:
    """Raises CodecError for anything `encode_messages` did not write."""
    messages: tuple[Message, ...] = _read(
        _raw(data, "messages"), tuple[Message, ...], "messages", "expected a list of messages, found {}"
    )
    return messages


def check_types(value: object, form: Any, where: str) -> None:
    """A value looks at no type when it is made: this does, where a program hands one in.

    Raises UsageError with the place that is wrong, such as "messages[0].parts[1].text: Expected `str`, got `int`".
    """
    try:
        plain = msgspec.to_builtins(value, builtin_types=_OTHER_THAN_JSON, enc_hook=_other)
        _convert(plain, form, where, f"{{}} is not what {where} can be")
    except (TypeError, RecursionError) as error:
        raise UsageError(f"{where}: {error}") from error
    except CodecError as error:
        raise UsageError(str(error)) from error


def encode_parts(parts: Mapping[str, object]) -> bytes:
    """Values by name, as one line: classes of the protocol, texts, numbers, None, and lists and tuples of them."""
    return _line("parts", parts)


def decode_parts(data: bytes, form: type[_T]) -> _T:
    """The parts as the fields of a Struct. Raises CodecError for anything that `encode_parts` did not write for it."""
    parts: _T = _read(_raw(data, "parts"), form, "parts", "expected parts by name, found {}")
    return parts


class SavedConversation(Struct, frozen=True):
    """All that there is to keep of a conversation."""

    messages: tuple[Message, ...]
    ids: tuple[MessageId, ...]
    """Of each message, in their order."""
    compacted: Compacted = Compacted()
    id: str = ""
    """By which journals know it; "" where it was kept by an earlier version, or has none."""
    open_turn: OpenTurn | None = None
    """What its last request has ended with, where its calls wait for their results."""


def encode_conversation(saved: SavedConversation) -> str:
    """JSON that a person can read: a message a block, with its id and that of the one before it."""
    ids: tuple[MessageId | None, ...] = (None, *saved.ids)
    messages = [
        {"id": own, "parent": parent, **_plain(message)}
        for message, parent, own in zip(saved.messages, ids, saved.ids, strict=False)
    ]
    named = {_COMPACTED_TO[name]: ids[getattr(saved.compacted, name)] for name in _COMPACTED_TO}
    compacted = {"summary": saved.compacted.summary, **named} if saved.compacted != Compacted() else None
    whole = {
        "format": CONVERSATION_FORMAT,
        "version": FORMAT_VERSION,
        **({"id": saved.id} if saved.id else {}),
        "messages": messages,
        "compacted": compacted,
        **({"open_turn": saved.open_turn} if saved.open_turn is not None else {}),
    }
    return msgspec.json.format(_encode(whole)).decode()


def decode_conversation(text: str) -> SavedConversation:
    """Raises CodecError, with the place and the fault, for anything `encode_conversation` did not write.

    Whether the history is legal is not asked here.
    """
    if not isinstance(text, str):
        raise CodecError(f"a conversation is read from a str, not {type(text).__name__}")
    if len(text) > MAX_CONVERSATION_CHARS:
        raise CodecError(f"a conversation has up to {MAX_CONVERSATION_CHARS:,} characters, this text {len(text):,}")
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CodecError(f"this is not the JSON of a conversation: {error}") from error
    except RecursionError:
        raise CodecError("this is not the JSON of a conversation: nested too deeply") from None
    if not isinstance(whole, dict) or whole.get("format") != CONVERSATION_FORMAT:
        raise CodecError(f'this is not a conversation: "format" must be "{CONVERSATION_FORMAT}"')
    if (version := whole.get("version")) != FORMAT_VERSION:
        told = f"this conversation has the version {version!r:.40}; this callboard reads {FORMAT_VERSION}"
        raise CodecError(f"{told}: read it with the one that wrote it")
    if unknown := whole.keys() - {"format", "version", "id", "messages", "compacted", "open_turn"}:
        raise CodecError(f"there is no {min(unknown)!r:.80} in a conversation")
    if not isinstance(own := whole.get("id", ""), str) or len(own) > MAX_ID_CHARS:
        raise CodecError(f'"id" must be a text of up to {MAX_ID_CHARS} characters')
    if not isinstance(rows := whole.get("messages"), list):
        raise CodecError('"messages" must be a list')
    messages, ids = _read_rows(rows)
    open_turn = None
    if (found := whole.get("open_turn")) is not None:
        open_turn = _read_strictly(found, OpenTurn, "open_turn", "open_turn is a {}, not an OpenTurn")
    return SavedConversation(messages, ids, _read_compacted(whole.get("compacted"), ids), own, open_turn)


def _read_rows(rows: Sequence[object]) -> tuple[tuple[Message, ...], tuple[MessageId, ...]]:
    messages: list[Message] = []
    ids: dict[str, None] = {}
    parent: str | None = None
    for place, row in enumerate(rows):
        where = f"messages[{place}]"
        if not isinstance(row, dict):
            raise CodecError(f"{where} is not an object")
        own = row.pop("id", None)
        if not isinstance(own, str) or not own or own in ids:
            raise CodecError(f'{where}: "id" must be a text of its own, got {own!r:.80}')
        if (found := row.pop("parent", None)) != parent:
            raise CodecError(
                f'{where}: "parent" must be the id of the message before it, {parent!r:.80}; got {found!r:.80}'
            )
        messages.append(_read_strictly(row, Message, where, f"{where} is a {{}}, not a message"))
        ids[own], parent = None, own
    return tuple(messages), tuple(map(MessageId, ids))


def _read_compacted(value: object, ids: Sequence[MessageId]) -> Compacted:
    if value is None:
        return Compacted()
    if not isinstance(value, dict) or value.keys() - {"summary", *_COMPACTED_TO.values()}:
        raise CodecError(f"compacted: expected an object with summary, {', '.join(_COMPACTED_TO.values())}")
    summary = value.get("summary", "")
    if not isinstance(summary, str):
        raise CodecError("compacted.summary must be a text")
    counts: dict[str, int] = {}
    for name, key in _COMPACTED_TO.items():
        named = value.get(key)
        if named is not None and named not in ids:
            raise CodecError(f"compacted.{key}: no message has the id {named!r:.80}")
        counts[name] = 0 if named is None else ids.index(named) + 1
    return Compacted(summary=summary, **counts)


# -- writing


def _line(kind: str, value: object) -> bytes:
    return b'{"v":%d,"%b":%b}' % (FORMAT_VERSION, kind.encode(), _encode(value))


def _other(value: object) -> object:
    """What msgspec does not know: a read-only view of a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written")


#: Written as texts, and no texts.
_OTHER_THAN_JSON: Final = (bytes, bytearray, memoryview, datetime, date, time, timedelta, UUID, Decimal)
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_other)


def _encode(value: object) -> bytes:
    try:
        return _ENCODER.encode(value)
    except ValueError:  # a lone surrogate, which UTF-8 cannot hold, or an integer too long to be written
        return json.dumps(_clean(_plain(value)), ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=_other, str_keys=True)


def _clean(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if not math.isfinite(value):
            return None
        case int() if value.bit_length() > _MAX_BITS:  # no JSON reader takes it for a number
            return None
        case dict():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
    return value


# -- reading


def _raw(data: bytes, kind: str) -> bytes:
    """What a line of this kind holds, as JSON that is not yet looked at."""
    try:
        line = _LINES.decode(data)
        found = getattr(line, kind)
    except msgspec.ValidationError:
        found = msgspec.UNSET
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CodecError(f"not JSON: {error}") from error
    except RecursionError:
        raise CodecError("nested too deeply") from None
    if found is msgspec.UNSET:
        raise CodecError(f"expected an object with {kind!r} in it")
    if line.v != FORMAT_VERSION:
        told = f"written in format {line.v!r}; this version reads {FORMAT_VERSION}"
        raise CodecError(f"{told}: use the one that wrote it")
    return bytes(found)


_LINES: Final = msgspec.json.Decoder(_Line)


def _is_flat(data: bytes) -> bool:
    """Whether it cannot be nested too deeply."""
    return len(data) <= 2 * MAX_OPAQUE_DEPTH or data.count(b"[") + data.count(b"{") <= MAX_OPAQUE_DEPTH


@cache
def _decoder(form: Hashable) -> msgspec.json.Decoder[Any]:
    """Made when first needed: the one for events looks at a hundred classes, in some milliseconds."""
    return msgspec.json.Decoder(form)


def _read(data: bytes, form: Any, where: str, otherwise: str) -> Any:
    """`otherwise`: what is said of another kind of value altogether, with a place for its name."""
    try:
        if _is_flat(data):  # else it is looked at
            return _decoder(form).decode(data)
        plain = msgspec.json.decode(data)
    except msgspec.ValidationError:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CodecError(f"not JSON: {error}") from error
    except RecursionError:
        raise CodecError(f"{where}: nested too deeply") from None
    # It is looked at closely: a number that cannot be true is mended, anything else is told with its place.
    places = plain.items() if where == "parts" and isinstance(plain, dict) else [(where, plain)]
    for place, value in places:
        for _, cls, found in _objects(value, place, _known(form)):
            _mend(cls, found)
    return _convert(plain, form, where, otherwise)


def _read_strictly(plain: object, form: Any, where: str, otherwise: str) -> Any:
    """Of a conversation, which a person may have edited: a field that we do not know may be misspelt. A journal is
    written by callboard alone, and by a later one perhaps."""
    for place, cls, found in _objects(plain, where, _known(form)):
        if unknown := found.keys() - {_NAME, *cls.__struct_fields__}:
            wrong = f"{cls.__name__} has no {min(unknown)!r:.80}; it may be misspelt, or of a later version"
            raise CodecError(f"{place}: {wrong}")
        _mend(cls, found)
    return _convert(plain, form, where, otherwise)


def _check_depth(value: object, where: str) -> None:
    level: list[object] = [value]
    for _ in range(MAX_OPAQUE_DEPTH):
        nested = [each for each in level if isinstance(each, dict | list)]
        if not nested:
            return
        level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
    raise CodecError(f"{where}: nested too deeply; at most {MAX_OPAQUE_DEPTH} objects and lists in each other")


def _objects(value: object, where: str, known: Mapping[str, type[Value]]) -> Iterator[_Object]:
    """The objects of ours in plain JSON, from the outermost down: what is a provider's own has none of them."""
    if len(where) > MAX_PLACE_CHARS:
        raise CodecError(f"{where[:40]}...: nested too deeply")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _objects(item, f"{where}[{index}]", known)
    elif isinstance(value, dict):
        name = value.get(_NAME)
        cls = known.get(name) if isinstance(name, str) else None
        if cls is None:
            raise CodecError(f"{where}: unknown class {name!r:.80}")
        yield where, cls, value
        for field, item in value.items():
            if field in _fields_with_values(cls):
                yield from _objects(item, f"{where}.{field}", known)
            elif isinstance(item, dict | list):
                _check_depth(item, f"{where}.{field}")


@cache
def _known(form: Hashable) -> Mapping[str, type[Value]]:
    """All classes of values that can be in this form, by the names under "$"."""
    found: dict[str, type[Value]] = {}
    waiting: list[Any] = [form]
    while waiting:
        each = waiting.pop()
        waiting += get_args(each)
        if isinstance(each, type) and issubclass(each, Struct) and found.get(each.__name__) is not each:
            if issubclass(each, Value):
                found[each.__name__] = each
            waiting += [field.type for field in fields(each)]
    return found


@cache
def _fields_with_values(cls: type[Struct]) -> frozenset[str]:
    return frozenset(field.name for field in fields(cls) if _holds_values(field.type))


def _holds_values(form: Any) -> bool:
    if inner := get_args(form):
        return any(map(_holds_values, inner))
    return isinstance(form, type) and issubclass(form, Value)


def _mend(cls: type[Value], found: dict[str, Any]) -> None:
    """JSON has no NaN: one is written as null. What cannot be true is read as something else that cannot be true (see
    `budgets`) or as not known, so that a provider's bad number leaves no journal that cannot be read."""
    if cls is Usage:
        counts = found.keys() - {_NAME}
        found |= {name: -1 for name in counts if found[name] is None or isinstance(found[name], float)}
    elif cls is TokenLogprob:
        found["logprob"] = _likelihood(found.get("logprob"))
        if isinstance(top := found.get("top"), list):
            found["top"] = [
                [each[0], _likelihood(each[1])] if isinstance(each, list) and len(each) == 2 else each for each in top
            ]
    else:
        found |= {name: None for name in _optional_counts(cls) if isinstance(found.get(name), float)}


def _likelihood(logprob: object) -> object:
    return NEVER_LIKELY if logprob is None else logprob


@cache
def _optional_counts(cls: type[Value]) -> frozenset[str]:
    """Its whole numbers that may be unknown."""
    return frozenset(field.name for field in fields(cls) if set(get_args(field.type)) == {int, type(None)})


def _convert(plain: object, form: Any, where: str, otherwise: str) -> Any:
    try:
        return msgspec.convert(plain, form)
    except msgspec.ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        place = place.removesuffix("`")
        if missing := re.fullmatch(r"Object missing required field `(\w+)`", fault):
            place, fault = f"{place}.{missing[1]}", "Field required"
        elif not place or place.endswith("." + _NAME):
            found = re.fullmatch(r"Invalid value '(\w+)'", fault)
            raise CodecError(otherwise.format(found[1] if found else type(plain).__name__)) from error
        raise CodecError(f"{where}{place}: {fault}") from error

"""Events and messages to bytes and back, with a version: what the journal and the conversation store keep.

Each value is JSON with its class's name under "$", so that parts which look alike stay apart. orjson writes; reading
back goes through pydantic class by class, because a file may have been cut, edited or written by another version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final, get_args

import orjson

from callboard.protocol import (
    commands,
    compaction,
    content,
    events,
    model,
    options,
    output,
    provider_options,
    reports,
    tools,
)
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message
from callboard.protocol.errors import UsageError
from callboard.protocol.events import Event, ModelResponded
from callboard.protocol.ids import MessageId
from callboard.protocol.lazy_loading import lazy_module
from callboard.protocol.model import NEVER_LIKELY, TokenLogprob, Usage

if TYPE_CHECKING:
    import pydantic
    from _typeshed import DataclassInstance
else:
    pydantic = lazy_module("pydantic")

#: Raised when a field changes its meaning, or a default that is nothing becomes something: those are not written. New
#: fields with a default need no new version: old journals lack them.
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


class CodecError(UsageError):
    """These bytes are not what `encode_event` or `encode_messages` writes. The message says where they differ."""


_CLASSES: Final[dict[str, type]] = {
    name: cls
    for module in (commands, compaction, content, events, model, options, output, provider_options, reports, tools)
    for name, cls in vars(module).items()
    if is_dataclass(cls) and isinstance(cls, type) and not name.startswith("_")
}
#: What a provider or a tool's author put there is data of theirs: a "$" in it names no class of ours.
_OPAQUE: Final = {
    cls: frozenset(field.name for field in fields(cls) if "Mapping" in str(field.type)) for cls in _CLASSES.values()
}
_FIELD_NAMES: Final = {cls: frozenset(field.name for field in fields(cls)) for cls in _CLASSES.values()}
#: Whole numbers that may be unknown.
_OPTIONAL_COUNTS: Final = {
    cls: frozenset(field.name for field in fields(cls) if str(field.type) == "int | None") for cls in _CLASSES.values()
}
#: No float is 2**1024 or more.
_MAX_BITS: Final = 1_023


@cache
def _adapter(cls: type) -> pydantic.TypeAdapter[object]:
    """Made when first needed: all of them take 0.1 s, and every runtime imports this file."""
    return pydantic.TypeAdapter(cls)


def encode_event(event: Event) -> bytes:
    """One event, as one line without a line feed."""
    if isinstance(event, ModelResponded) and event.cost is not None and not math.isfinite(event.cost):
        # JSON has no NaN, and null is a cost that is not known: written is something else that cannot be true.
        event = replace(event, cost=-1.0)
    return _dump({"v": FORMAT_VERSION, "event": event})


def decode_event(data: bytes) -> Event:
    """Raises CodecError for anything `encode_event` did not write."""
    event = _revive(_load(data, "event"), "event")
    if not isinstance(event, Event):
        raise CodecError(f"expected an event, found {type(event).__name__}")
    return event


def encode_messages(messages: Sequence[Message]) -> bytes:
    """Messages of a conversation, as one line."""
    return _dump({"v": FORMAT_VERSION, "messages": list(messages)})


def decode_messages(data: bytes) -> tuple[Message, ...]:
    """Raises CodecError for anything `encode_messages` did not write."""
    messages = _revive(_load(data, "messages"), "messages")
    if not isinstance(messages, list) or any(type(message) not in get_args(Message) for message in messages):
        raise CodecError("expected a list of messages")
    return tuple(messages)


def encode_parts(parts: Mapping[str, object]) -> bytes:
    """Values by name, as one line: classes of the protocol, texts, numbers, None, and lists and tuples of them."""
    return _dump({"v": FORMAT_VERSION, "parts": dict(parts)})


def decode_parts(data: bytes) -> dict[str, object]:
    """Tuples come back as lists. Raises CodecError for anything `encode_parts` did not write."""
    parts = _load(data, "parts")
    if not isinstance(parts, dict):
        raise CodecError("expected parts by name")
    return {name: _revive(value, name) for name, value in parts.items()}


@dataclass(frozen=True, slots=True)
class SavedConversation:
    """All that there is to keep of a conversation."""

    messages: tuple[Message, ...]
    ids: tuple[MessageId, ...]
    """Of each message, in their order."""
    compacted: Compacted = Compacted()
    id: str = ""
    """By which journals know it; "" where it was kept by an earlier version, or has none."""
    open_turn: commands.OpenTurn | None = None
    """What its last request has ended with, where its calls wait for their results."""


def encode_conversation(saved: SavedConversation) -> str:
    """JSON that a person can read: a message a block, with its id and that of the one before it."""
    ids: tuple[MessageId | None, ...] = (None, *saved.ids)
    messages = [
        {"id": own, "parent": parent, **_fields(message)}
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
    return _dump(whole, orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_INDENT_2).decode()


def decode_conversation(text: str) -> SavedConversation:
    """Raises CodecError, with the place and the fault, for anything `encode_conversation` did not write.

    Whether the history is legal is not asked here.
    """
    if not isinstance(text, str):
        raise CodecError(f"a conversation is read from a str, not {type(text).__name__}")
    if len(text) > MAX_CONVERSATION_CHARS:
        raise CodecError(f"a conversation has up to {MAX_CONVERSATION_CHARS:,} characters, this text {len(text):,}")
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise CodecError(f"this is not the JSON of a conversation: {error}") from error
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
    open_turn = _revive(whole.get("open_turn"), "open_turn", strict=True)
    if open_turn is not None and not isinstance(open_turn, commands.OpenTurn):
        raise CodecError(f"open_turn is a {type(open_turn).__name__}, not an OpenTurn")
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
        message = _revive(row, where, strict=True)
        if not isinstance(message, Message):
            raise CodecError(f"{where} is a {type(message).__name__}, not a message")
        messages.append(message)
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


def _dump(value: object, options: int = orjson.OPT_PASSTHROUGH_DATACLASS) -> bytes:
    try:
        return orjson.dumps(value, _name, options)
    except TypeError:
        # A lone surrogate, which UTF-8 cannot hold, or an integer of more than 64 bits, which orjson will not write.
        spaced = {"indent": 2} if options & orjson.OPT_INDENT_2 else {"separators": (",", ":")}
        return json.dumps(_clean(value), ensure_ascii=False, **spaced).encode()


def _name(value: object) -> object:
    return _WRITERS[type(value)](value)


def _fields(message: Message) -> dict[str, object]:
    written = _name(message)
    assert isinstance(written, dict)
    return written


class _Writers(dict[type, Callable[..., object]]):
    """What makes plain JSON of a value, by its class; made when first needed, as all of them take some milliseconds."""

    def __missing__(self, cls: type) -> Callable[..., object]:
        if cls in _FIELD_NAMES:
            self[cls] = _writer_of(cls)
        elif issubclass(cls, tuple):  # a Tag
            self[cls] = list
        elif issubclass(cls, Mapping):
            self[cls] = dict
        else:
            raise TypeError(f"{cls.__name__} cannot be written")
        return self[cls]


def _writer_of(cls: type[DataclassInstance]) -> Callable[..., dict[str, object]]:
    """A function that names all fields in its code, as `dataclasses` makes `__init__`: it takes a third of the time of
    one that goes through a list of them. A default that is nothing (None, 0, "", False, ()) is left out."""
    needed = [each.name for each in fields(cls) if each.default is MISSING or each.default]
    others = {each.name: each.default for each in fields(cls) if each.name not in needed}
    values = {name: f"[*value.{name}]" if name == "tag" else f"value.{name}" for name in needed}
    lines = [
        "def write(value):",
        f" found = {{{_NAME!r}: {cls.__name__!r}, {', '.join(f'{name!r}: {got}' for name, got in values.items())}}}",
        *(f" if value.{name} is not default_{name}: found[{name!r}] = value.{name}" for name in others),
        " return found",
    ]
    names: dict[str, Callable[..., dict[str, object]]] = {}
    exec("\n".join(lines), {f"default_{name}": default for name, default in others.items()}, names)
    return names["write"]


def _likelihood_written(value: TokenLogprob) -> dict[str, object]:
    top = [(token, _likelihood(logprob)) for token, logprob in value.top]
    return {_NAME: "TokenLogprob", "token": value.token, "logprob": _likelihood(value.logprob), "top": top}


def _likelihood(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else NEVER_LIKELY


_WRITERS: Final = _Writers({TokenLogprob: _likelihood_written})


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int):
        # orjson reads those of more than 64 bits as floats, and nothing at all of a line with a larger one.
        return value if value.bit_length() <= _MAX_BITS else None
    if isinstance(value, float) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(_clean(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return _clean(_name(value))


def _load(data: bytes, key: str) -> object:
    try:
        envelope = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CodecError(f"not JSON: {error}") from error
    if not isinstance(envelope, dict) or key not in envelope:
        raise CodecError(f"expected an object with {key!r} in it")
    if (found := envelope.get("v")) != FORMAT_VERSION:
        raise CodecError(f"written in format {found!r}; this version reads {FORMAT_VERSION}: use the one that wrote it")
    return envelope[key]


def _revive(value: object, where: str, *, strict: bool = False) -> object:
    """The objects in plain JSON, from the leaves up; each is validated when what it holds has been.

    `strict`: a field that we do not know is a fault. A person may have misspelt it in a conversation; a journal is
    written by callboard alone, and by a later one perhaps.
    """
    if len(where) > MAX_PLACE_CHARS:
        raise CodecError(f"{where[:40]}...: nested too deeply")
    if isinstance(value, list):
        return [_revive(item, f"{where}[{index}]", strict=strict) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    name = value.get(_NAME)
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise CodecError(f"{where}: unknown class {name!r:.80}")
    if strict and (unknown := value.keys() - _FIELD_NAMES[cls] - {_NAME}):
        raise CodecError(f"{where}: {name} has no {min(unknown)!r:.80}; it may be misspelt, or of a later version")
    opaque = _OPAQUE[cls]
    for key in opaque & value.keys():
        _check_depth(value[key], f"{where}.{key}")
    plain = {
        key: item if key in opaque else _revive(item, f"{where}.{key}", strict=strict)
        for key, item in value.items()
        if key != _NAME
    }
    # JSON has no NaN: one is written as null. What cannot be true is read as something else that cannot be true (see
    # `budgets`) or as not known, so that a provider's bad number leaves no journal that cannot be read.
    if cls is Usage:
        plain = {key: -1 if count is None or isinstance(count, float) else count for key, count in plain.items()}
    for key in _OPTIONAL_COUNTS[cls]:
        if isinstance(plain.get(key), float):
            plain[key] = None
    try:
        return _adapter(cls).validate_python(plain)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CodecError(f"{where}.{place}: {first['msg']}") from error


def _check_depth(value: object, where: str) -> None:
    level: list[object] = [value]
    for _ in range(MAX_OPAQUE_DEPTH):
        nested = [each for each in level if isinstance(each, dict | list)]
        if not nested:
            return
        level = [item for each in nested for item in (each.values() if isinstance(each, dict) else each)]
    raise CodecError(f"{where}: nested too deeply; at most {MAX_OPAQUE_DEPTH} objects and lists in each other")

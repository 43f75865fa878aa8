"""What is written, as rows of the tables, and the values that rows hold. `protocol/codec` writes what is inside.

A row that is read back is checked first: by its checksum, then by the types of what it holds. `DamagedRecord` says what
is wrong with it; no value is made of a damaged row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Final

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.journal.journal_records import (
    Beginning,
    EffectWrite,
    Needs,
    NewMessage,
    Recorded,
    RequestEnd,
    SetAside,
    Write,
    without_keys,
)
from callboard.actors.journal.tables import (
    COMPACTIONS,
    CONVERSATIONS,
    ENDS,
    EVENTS,
    MESSAGES,
    OFFERS,
    OUTCOMES,
    REQUESTS,
    SET_ASIDE,
    USAGE,
    Row,
    Table,
)
from callboard.protocol.codec import (
    CodecError,
    decode_event,
    decode_messages,
    decode_parts,
    encode_event,
    encode_messages,
    encode_parts,
)
from callboard.protocol.commands import Finish
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import ToolCall
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import RequestStarted, ToolCallEnd
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.model import Error
from callboard.protocol.options import ToolOffer
from callboard.protocol.reports import StepReport
from callboard.protocol.tools import ToolFailure

_DIGEST_BYTES: Final = 16
_MOST_OFFERS: Final = 64
#: Longer than the ids of the providers' own APIs.
_LONGEST_KEY: Final = 128


class DamagedRecord(RuntimeFailure):
    """A row is not as it was written: its checksum differs, or it holds what is never written."""


def column(name: str) -> str:
    """An id as it is written: what is not ASCII is escaped, as no database takes NUL and lone surrogates."""
    if name.isascii() and name.isprintable() and "\\" not in name:
        return name
    return name.encode("unicode_escape").decode("ascii")


def from_column(text: object) -> str:
    """The id that `column` has written."""
    if not isinstance(text, str):
        raise DamagedRecord(f"expected an id, found {type(text).__name__}")
    try:
        return text.encode("ascii").decode("unicode_escape")
    except UnicodeError as error:
        raise DamagedRecord("an id is no text of ours") from error


# -- writing


def offer_row(tools: tuple[ToolOffer, ...]) -> Row:
    """The row of OFFERS for these tools."""
    data = encode_parts({"tools": tools})
    return OFFERS.row(blake2b(data, digest_size=_DIGEST_BYTES).hexdigest(), data)


class OfferRows:
    """`offer_row`, remembering: the requests of a runtime are offered the same tools, in new ToolOffers each."""

    def __init__(self) -> None:
        self._rows: dict[tuple[object, ...], tuple[tuple[ToolOffer, ...], Row]] = {}
        """With the tools, which keeps what the key names by its address."""

    def __call__(self, tools: tuple[ToolOffer, ...]) -> Row:
        key = tuple(
            (id(each.definition), id(each.contract), each.decision, each.rule, each.confinement) for each in tools
        )
        if key not in self._rows:
            if len(self._rows) >= _MOST_OFFERS:
                self._rows.clear()
            self._rows[key] = tools, offer_row(tools)
        return self._rows[key][1]


def rows_of(
    write: Write, now: float, offer: Callable[[tuple[ToolOffer, ...]], Row] = offer_row
) -> list[tuple[Table, Row]]:
    """All rows of one Write, those that others refer to first. Times are wall-clock seconds."""
    request_id = column(write.request_id)
    rows: list[tuple[Table, Row]] = []
    if write.begins is not None:
        rows += _beginning_rows(request_id, write, write.begins, offer)
    led_to = orjson.dumps(write.led_to).decode() if write.led_to else None
    last = write.number + len(write.events) - 1
    for number, event in enumerate(write.events, write.number):
        data = encode_event(_kept_of(event) if isinstance(event, RequestStarted) else event)
        rows.append((EVENTS, EVENTS.row(request_id, number, now, led_to if number == last else None, data)))
    if write.messages or write.compacted is not None:
        rows += _conversation_rows(request_id, write, now)
    if write.ends is not None:
        rows.append((ENDS, end_row(request_id, write.ends)))
    return rows


def _conversation_rows(request_id: str, write: Write, now: float) -> Iterator[tuple[Table, Row]]:
    conversation_id = column(write.conversation_id or (write.begins.conversation_id if write.begins else ""))
    if write.begins is None or write.begins.conversation_id != write.conversation_id:
        yield CONVERSATIONS, CONVERSATIONS.row(conversation_id, now)
    for place, new in enumerate(write.messages):
        parent = None if new.parent is None else column(new.parent)
        data = encode_messages((new.message,))
        yield (
            MESSAGES,
            MESSAGES.row(conversation_id, column(new.message_id), parent, request_id, write.number, place, now, data),
        )
    if write.compacted is not None:
        data = encode_parts({"compacted": write.compacted})
        yield COMPACTIONS, COMPACTIONS.row(conversation_id, request_id, write.number, now, data)


def _kept_of(started: RequestStarted) -> RequestStarted:
    """Without what is kept elsewhere, and without what may hold keys: `Needs.headers` has the names of that."""
    return replace(started, history=(), tools=(), options=without_keys(started.options))


def _beginning_rows(
    request_id: str, write: Write, begins: Beginning, offer: Callable[[tuple[ToolOffer, ...]], Row]
) -> Iterator[tuple[Table, Row]]:
    started = next((event for event in write.events if isinstance(event, RequestStarted)), None)
    digest = None
    if started is not None and started.tools:
        row = offer(started.tools)
        digest = str(row[0])
        yield OFFERS, row
    needs = begins.needs
    parts: dict[str, object] = {
        "parent": begins.parent,
        "own_tools": list(needs.own_tools.items()),
        "output": needs.output,
        "counter": needs.counter,
        "has_approver": needs.has_approver,
        "direct": needs.direct,
        "headers": needs.headers,
        "metadata": list(begins.metadata.items()),
    }
    conversation_id = column(begins.conversation_id)
    yield CONVERSATIONS, CONVERSATIONS.row(conversation_id, begins.begun_at)
    yield (
        REQUESTS,
        REQUESTS.row(request_id, conversation_id, begins.begun_at, column(begins.model), digest, encode_parts(parts)),
    )


def end_row(request_id: str, end: RequestEnd) -> Row:
    """The row of ENDS for a request with this id, as `column` writes it."""
    outcome = "" if end.finish is None else end.finish.outcome.value
    parts: dict[str, object] = {
        "finish": end.finish,
        "notes": end.notes,
        "failures": end.failures,
        "error": end.error,
        "failure": end.failure,
    }
    return ENDS.row(request_id, end.ended_at, outcome, encode_parts(parts))


def outcome_row(tag: Tag, outcome: ToolCallEnd, now: float) -> Row:
    """The row of OUTCOMES for a call with the effect `transaction`: inserted in the transaction of its effect."""
    return OUTCOMES.row(column(tag.request_id), tag.step, _call_key(tag.call_id), now, encode_event(outcome))


def _call_key(call_id: CallId) -> str:
    """A server chooses the id, and some pack kilobytes into it; a key of PostgreSQL's has 2,700 bytes at the most. The
    id itself is in the event."""
    written = column(call_id)
    return written if len(written) <= _LONGEST_KEY else blake2b(written.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def usage_row(usage_id: str, ended_at: float, steps: tuple[StepReport, ...]) -> Row:
    """The row of USAGE that is left of a request: its steps without ids, rules and the like."""
    bare = tuple(
        replace(
            step,
            response_id="",
            provider_request_id="",
            calls=tuple(replace(call, call_id=CallId(""), rule="") for call in step.calls),
        )
        for step in steps
    )
    return USAGE.row(usage_id, ended_at, encode_parts({"steps": bare}))


def set_aside_row(found: SetAside, data: bytes | None) -> Row:
    """The row of SET_ASIDE for a record that cannot be read, and the bytes of it that are left."""
    request_id = None if found.request_id is None else column(found.request_id)
    return SET_ASIDE.row(found.found_at, found.what, found.why, request_id, column(found.call_id), data)


# -- reading; each takes a row as `Table.select` gives it


class _BeginningParts(Struct):
    parent: MessageId | None
    own_tools: tuple[tuple[str, str], ...]
    output: str
    counter: str
    has_approver: bool
    metadata: tuple[tuple[str, str], ...]
    direct: ToolCall | None = None
    headers: tuple[str, ...] = ()


class _OfferParts(Struct):
    tools: tuple[ToolOffer, ...]


class _CompactionParts(Struct):
    compacted: Compacted


class _EndParts(Struct):
    finish: Finish | None
    notes: tuple[str, ...] = ()
    failures: tuple[ToolFailure, ...] = ()
    error: Error | None = None
    failure: str = ""


class _UsageParts(Struct):
    steps: tuple[StepReport, ...]


def check(table: Table, row: Sequence[object]) -> None:
    """Raises DamagedRecord when the checksum of the row is not that of its values."""
    *values, crc = row
    if not all(value is None or isinstance(value, str | bytes | int | float) for value in values):
        raise DamagedRecord(f"{table.name} has a value of a type that is never written")
    known = tuple(value for value in values if value is None or isinstance(value, str | bytes | int | float))
    if table.checksum(known) != crc:
        raise DamagedRecord(f"the checksum of a row in {table.name} differs")


def is_sound(table: Table, row: Sequence[object]) -> bool:
    """Is the checksum of the row that of its values?"""
    try:
        check(table, row)
    except DamagedRecord:
        return False
    return True


def read_event(row: Sequence[object]) -> Recorded:
    """Of a row of EVENTS."""
    check(EVENTS, row)
    _, number, written_at, led_to, data, _ = row
    with _told("an event"):
        lines = () if led_to is None else tuple(orjson.loads(_text(led_to)))
        return Recorded(_whole(number), decode_event(_bytes(data)), lines, _number(written_at))


def read_beginning(row: Sequence[object]) -> tuple[Beginning, str | None]:
    """Of a row of REQUESTS, and the digest of the tools that it was offered."""
    check(REQUESTS, row)
    _, conversation_id, begun_at, model, tools, data, _ = row
    with _told("the beginning of a request"):
        parts = decode_parts(_bytes(data), _BeginningParts)
        needs = Needs(
            dict(parts.own_tools), parts.output, parts.counter, parts.has_approver, parts.direct, parts.headers
        )
        begins = Beginning(
            from_column(conversation_id),
            parts.parent,
            _number(begun_at),
            from_column(model),
            needs,
            dict(parts.metadata),
        )
        return begins, None if tools is None else _text(tools)


def read_tools(row: Sequence[object]) -> tuple[ToolOffer, ...]:
    """Of a row of OFFERS."""
    check(OFFERS, row)
    with _told("the tools of a request"):
        return decode_parts(_bytes(row[1]), _OfferParts).tools


def read_message(row: Sequence[object]) -> tuple[NewMessage, RequestId]:
    """Of a row of MESSAGES, and the request that added it."""
    check(MESSAGES, row)
    _, message_id, parent, request_id, _, _, _, data, _ = row
    with _told("a message"):
        (message,) = decode_messages(_bytes(data))
        above = None if parent is None else MessageId(from_column(parent))
        return NewMessage(MessageId(from_column(message_id)), above, message), RequestId(from_column(request_id))


def read_compacted(row: Sequence[object]) -> Compacted:
    """Of a row of COMPACTIONS."""
    check(COMPACTIONS, row)
    with _told("what was done to a conversation"):
        return decode_parts(_bytes(row[-2]), _CompactionParts).compacted


def read_end(row: Sequence[object]) -> RequestEnd:
    """Of a row of ENDS."""
    check(ENDS, row)
    _, ended_at, _, data, _ = row
    with _told("the end of a request"):
        parts = decode_parts(_bytes(data), _EndParts)
        return RequestEnd(_number(ended_at), parts.finish, parts.notes, parts.failures, parts.error, parts.failure)


def read_usage(row: Sequence[object]) -> tuple[float, tuple[StepReport, ...]]:
    """Of a row of USAGE: when the request ended, and its steps."""
    check(USAGE, row)
    with _told("the usage of a deleted request"):
        return _number(row[1]), decode_parts(_bytes(row[2]), _UsageParts).steps


def read_outcome(row: Sequence[object]) -> EffectWrite:
    """Of a row of OUTCOMES."""
    check(OUTCOMES, row)
    with _told("the outcome of a call"):
        event = decode_event(_bytes(row[-2]))
        if not isinstance(event, ToolCallEnd):
            raise DamagedRecord(f"expected the outcome of a call, found {type(event).__name__}")
        return EffectWrite(event.tag, event)


def read_set_aside(row: Sequence[object]) -> SetAside:
    """Of a row of SET_ASIDE."""
    check(SET_ASIDE, row)
    found_at, what, why, request_id, call_id, _, _ = row
    known = None if request_id is None else RequestId(from_column(request_id))
    return SetAside(_text(what), _text(why), _number(found_at), known, CallId(from_column(call_id)))


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (CodecError, TypeError, ValueError) as error:
        raise DamagedRecord(f"{what} cannot be read: {str(error).splitlines()[0]:.200}") from error


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise DamagedRecord(f"expected bytes, found {type(value).__name__}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise DamagedRecord(f"expected a text, found {type(value).__name__}")
    return value


def _whole(value: object) -> int:
    if type(value) is not int:
        raise DamagedRecord(f"expected a whole number, found {type(value).__name__}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, float):
        raise DamagedRecord(f"expected a number, found {type(value).__name__}")
    return value

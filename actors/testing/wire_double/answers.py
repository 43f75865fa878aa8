"""From a scripted answer to what goes over the connection: the pieces of bytes, and how it ends. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, StrEnum, auto
from typing import Final

import orjson
from msgspec import Struct

from callboard.actors.testing.wire_double.script import Fault, FaultKind, RawAnswer, Turn
from callboard.actors.testing.wire_double.wire_api import Document, Event, Question, WireApi, resolved

_GARBAGE: Final = b'data: {"wire double": \xff\xfe\x00\n\n'
_HTML_PAGE: Final = b"<!DOCTYPE html><html><head><title>Welcome</title></head><body>Nothing to see.</body></html>\n"
_JSON: Final = {"content-type": "application/json"}
_HTML: Final = {"content-type": "text/html; charset=utf-8"}


class End(StrEnum):
    """What happens to the connection after the pieces."""

    WELL = "well"
    """The answer is ended, the connection kept."""
    HANGUP = "hangup"
    """The answer is ended, and the connection closed although keep-alive was promised."""
    STALL = "stall"
    """Nothing, until the client leaves."""
    CUT = "cut"
    """The connection is closed in the middle of the answer."""
    RESET = "reset"
    """RST in place of an answer."""
    CLOSE = "close"
    """FIN in place of an answer."""
    DEAF = "deaf"
    """Nothing in place of an answer, until the client leaves."""


#: Ends without an answer: not even its head is sent.
SILENT_ENDS: Final = frozenset({End.RESET, End.CLOSE, End.DEAF})

_ENDS: Final[Mapping[FaultKind, End]] = {
    FaultKind.STALL: End.STALL,
    FaultKind.CUT: End.CUT,
    FaultKind.GARBAGE: End.HANGUP,
    FaultKind.HANGUP: End.HANGUP,
    FaultKind.RESET: End.RESET,
    FaultKind.CLOSE: End.CLOSE,
    FaultKind.DEAF: End.DEAF,
}
_SILENT_FAULTS: Final = frozenset({FaultKind.RESET, FaultKind.CLOSE, FaultKind.DEAF})
#: After these nothing of the turn comes any more.
_BREAKING_FAULTS: Final = frozenset({FaultKind.STALL, FaultKind.CUT, FaultKind.GARBAGE, FaultKind.STREAM_ERROR})


class WireAnswer(Struct, frozen=True):
    """One HTTP answer, piece by piece. The pieces of an endless one have no end."""

    pieces: Iterable[bytes]
    headers: Mapping[str, str]
    status: int = 200
    end: End = End.WELL
    pause: float = 0.0
    """Seconds between two pieces."""


def wire_answer(api: WireApi, answer: Turn | RawAnswer, question: Question) -> WireAnswer:
    """The bytes of a scripted answer in the words of `api`."""
    fault = answer.fault
    if fault is not None and fault.kind in _SILENT_FAULTS:
        return WireAnswer((), {}, end=_ENDS[fault.kind])
    if isinstance(answer, RawAnswer):
        return _raw_answer(answer)
    if fault is not None and fault.kind is FaultKind.HTML:
        return WireAnswer((_HTML_PAGE,), _HTML)
    if fault is not None and (fault.kind is FaultKind.STATUS or _is_error_for_whole(fault, question)):
        return error_answer(api, fault)
    turn = resolved(answer, question)
    parts = _stream_parts(api.events(turn)) if question.streamed else _document_parts(api.whole(turn), turn.endless)
    pieces = _with_fault(parts, fault, lambda error: api.stream_error(error, turn))
    headers = {"content-type": api.stream_type(question)} if question.streamed else _JSON
    # What has an end is written down: the server keeps it and sends it again.
    return WireAnswer(pieces if turn.endless else tuple(pieces), headers, 200, _end(fault), answer.pause)


def error_answer(api: WireApi, fault: Fault) -> WireAnswer:
    """An HTTP error in the shape of `api`."""
    waits = {"retry-after": f"{fault.retry_after:g}"} if fault.retry_after is not None else {}
    return WireAnswer((orjson.dumps(api.error(fault)),), {**_JSON, **waits}, fault.status)


def _raw_answer(answer: RawAnswer) -> WireAnswer:
    is_text = isinstance(answer.body, str)
    data = answer.body.encode() if isinstance(answer.body, str) else orjson.dumps(answer.body)
    parts = [_Part(data, _Place.CONTENT)] if data else []
    given = {name.lower(): value for name, value in answer.headers.items()}
    headers = {**(_HTML if is_text else _JSON), **given}
    if answer.fault is not None and answer.fault.kind is FaultKind.ENDLESS:
        return WireAnswer(itertools.repeat(data), headers, answer.status)
    pieces = _with_fault(iter(parts), answer.fault, lambda _: b"")
    return WireAnswer(tuple(pieces), headers, answer.status, _end(answer.fault))


def _is_error_for_whole(fault: Fault, question: Question) -> bool:
    """An error in the middle needs a stream; an answer that is one document fails as a whole."""
    return fault.kind is FaultKind.STREAM_ERROR and not question.streamed


def _end(fault: Fault | None) -> End:
    return End.WELL if fault is None else _ENDS.get(fault.kind, End.WELL)


class _Place(Enum):
    """Which section of an answer some bytes belong to."""

    OPENING = auto()
    CONTENT = auto()
    CLOSING = auto()


class _Part(Struct, frozen=True):
    data: bytes
    place: _Place


def _stream_parts(events: Iterable[Event]) -> Iterator[_Part]:
    """Every piece of content with the frames before it; the frames before the first are the opening."""
    frames, place = b"", _Place.OPENING
    for event in events:
        if not event.content:
            frames += event.data
            continue
        if place is _Place.OPENING and frames:
            yield _Part(frames, place)
            frames = b""
        place = _Place.CONTENT
        yield _Part(frames + event.data, place)
        frames = b""
    yield _Part(frames, _Place.CLOSING)


def _document_parts(document: Document, endless: bool) -> Iterator[_Part]:
    """A whole answer in two halves; an endless one has blanks for a second half."""
    data = orjson.dumps(document)
    half = len(data) // 2
    yield _Part(data[:half], _Place.OPENING)
    if endless:
        yield from itertools.repeat(_Part(b" ", _Place.CONTENT))
    yield _Part(data[half:], _Place.CLOSING)


def _with_fault(parts: Iterator[_Part], fault: Fault | None, error: Callable[[Fault], bytes]) -> Iterator[bytes]:
    """The bytes of the parts, or of those before the fault and then what replaces the rest."""
    if fault is None or fault.kind not in _BREAKING_FAULTS:
        yield from (part.data for part in parts)
        return
    yield from _before(parts, fault.after)
    if fault.kind is FaultKind.GARBAGE:
        yield _GARBAGE
    elif fault.kind is FaultKind.STREAM_ERROR:
        yield error(fault)


def _before(parts: Iterator[_Part], after: int | None) -> Iterator[bytes]:
    """The opening, and as many pieces of content; None: all of them."""
    count = 0
    for part in parts:
        if part.place is _Place.CLOSING or (part.place is _Place.CONTENT and count == after):
            return
        count += part.place is _Place.CONTENT
        yield part.data

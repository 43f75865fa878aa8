"""A recorded request: its events in order, each with the commands that it led to. As JSON lines, and replayed.

The first line says whose they are; each further line is one event. What a request has seen and done is in it: keep it
like the conversation itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from callboard.protocol.codec import FORMAT_VERSION, CodecError, decode_event, encode_event
from callboard.protocol.command_lines import led_to
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId
from callboard.protocol.machine import Session
from callboard.protocol.prompt_tokens import TokenCounter, estimate_tokens

RECORDED_FORMAT: Final = "callboard request"


class RecordedEvent(Protocol):
    """One event as it was written, by the journal or by `recorded_lines`."""

    @property
    def number(self) -> int:
        """1, 2, ... of each request."""

    @property
    def event(self) -> Event: ...

    @property
    def led_to(self) -> tuple[str, ...]:
        """The commands that followed, as `command_lines.led_to` writes them."""


class RecordedLog(Protocol):
    """What a replay needs of a request: a RecordedRequest, or what a journal has of one."""

    @property
    def request_id(self) -> RequestId: ...

    @property
    def records(self) -> Sequence[RecordedEvent]: ...

    @property
    def counter(self) -> str:
        """By what its tokens were counted: the name of a vocabulary, "" for the estimate."""


class RecordedLine(Struct, frozen=True):
    """One event as it was read."""

    number: int
    event: Event
    led_to: tuple[str, ...] = ()


class RecordedRequest(Struct, frozen=True):
    """All that was recorded of one request."""

    request_id: RequestId
    records: tuple[RecordedEvent, ...]
    counter: str = ""
    """By what its tokens were counted: the name of a vocabulary, "" for the estimate."""


def recorded_lines(recorded: RecordedRequest) -> Iterator[str]:
    """The request as JSON, a line at a time, without line feeds."""
    first = {
        "format": RECORDED_FORMAT,
        "version": FORMAT_VERSION,
        "request_id": recorded.request_id,
        "counter": recorded.counter,
    }
    yield msgspec.json.encode(first).decode()
    for each in recorded.records:
        envelope = encode_event(each.event).decode()
        yield f'{{"number":{each.number},"led_to":{msgspec.json.encode(each.led_to).decode()},"record":{envelope}}}'


def read_recorded(lines: Iterable[str]) -> RecordedRequest:
    """Raises CodecError, with the line and the fault, for anything `recorded_lines` did not write."""
    rows = [(place, line) for place, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise CodecError("an empty text is no recorded request")
    first = _object(*rows[0])
    if first.get("format") != RECORDED_FORMAT:
        raise CodecError(f'line {rows[0][0]}: "format" must be "{RECORDED_FORMAT}"')
    if (version := first.get("version")) != FORMAT_VERSION:
        told = f"this request was recorded in version {version!r:.40}; this callboard reads {FORMAT_VERSION}"
        raise CodecError(f"{told}: read it with the one that wrote it")
    request_id, counter = first.get("request_id"), first.get("counter", "")
    if not isinstance(request_id, str) or not isinstance(counter, str):
        raise CodecError(f'line {rows[0][0]}: "request_id" and "counter" must be texts')
    return RecordedRequest(RequestId(request_id), tuple(_records(rows[1:])), counter)


def _records(rows: Sequence[tuple[int, str]]) -> Iterator[RecordedLine]:
    for expected, (place, line) in enumerate(rows, 1):
        row = _object(place, line)
        number, led_to = row.get("number"), row.get("led_to", [])
        if number != expected:
            raise CodecError(f"line {place}: expected event {expected}, found {number!r:.40}")
        if not isinstance(led_to, list) or not all(isinstance(each, str) for each in led_to):
            raise CodecError(f'line {place}: "led_to" must be a list of texts')
        try:
            event = decode_event(msgspec.json.encode(row.get("record")))
        except CodecError as error:
            raise CodecError(f"line {place}: {error}") from error
        yield RecordedLine(expected, event, tuple(led_to))


def _object(place: int, line: str) -> dict[str, object]:
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise CodecError(f"line {place}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise CodecError(f"line {place}: expected an object")
    return row


class Replayed(Struct, frozen=True):
    """One event of a record, and what this code makes of it."""

    record: RecordedEvent
    given: tuple[str, ...]
    """The commands that it leads to now."""
    refused: str = ""
    """Why this code does not take it; then the replay ends here."""

    @property
    def name(self) -> str:
        """Which event it is, in words."""
        event = self.record.event
        call = f" of call {event.tag.call_id}" if event.tag.call_id else ""
        return f"event {self.record.number} ({type(event).__name__}{call}, step {event.tag.step})"

    @property
    def differences(self) -> tuple[str, ...]:
        """Where code and record differ: a sentence each."""
        if self.refused:
            return (f"{self.name}: {self.refused}",)
        pairs = [pair for pair in zip_longest(self.record.led_to, self.given) if pair[0] != pair[1]]
        return tuple(f"{self.name}: {_difference(then, now)}" for then, now in pairs)


def _difference(then: str | None, now: str | None) -> str:
    if now is None:
        return f"it led to {then!r}, and now leads to nothing in its place"
    return f"it leads to {now!r}, and led to {'nothing' if then is None else repr(then)} in its place"


def replay_log(log: RecordedLog, *, count_tokens: TokenCounter = estimate_tokens) -> Iterator[Replayed]:
    """Each event of the record, applied to a new session; the last one is the first that is refused or missing.

    `count_tokens`: the counter that the request had.
    """
    session = Session(count_tokens=count_tokens)
    for expected, record in enumerate(log.records, 1):
        if record.number != expected:
            yield Replayed(record, (), f"event {expected} is missing before it")
            return
        try:
            yield Replayed(record, led_to(session.apply(record.event)))
        except ProtocolError as error:
            yield Replayed(record, (), f"this code refuses it: {error}")
            return

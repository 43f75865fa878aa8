"""Server-sent events, by the rules of the WHATWG (HTML standard, 9.2.6 "Interpreting an event stream").

One difference, on purpose: an event that is not followed by a blank line when the body ends is handed out by `finish`.
Recorded streams end so (docs/wire.md, quirk 31), and with the last event one would lose the reason why the turn ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from callboard.protocol.limits import MAX_RESPONSE_BYTES

_BOM: Final = b"\xef\xbb\xbf"


class SseLimitError(ValueError):
    """An event or a line grew past the limit."""


class ServerSentEvent(NamedTuple):
    """One event of a stream."""

    event: str
    """The event's type; "" where the stream named none."""
    data: bytes
    """Its data lines, joined by LF. Bytes: JSON parsers want them so."""


class SseDecoder:
    """Bytes to events. Cost is linear in the bytes, however they are cut; memory is bounded by one event.

    Lines end with LF, CR or CR LF and nothing else: U+2028, U+0085, VT and FF stand inside JSON strings (quirk 29).
    """

    __slots__ = ("_data", "_event", "_first_line", "_max_event_bytes", "_pending_bytes", "_skip_lf", "_tail")

    def __init__(self, max_event_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._event = ""
        self._pending_bytes = 0
        self._skip_lf = False
        self._first_line = True

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that `chunk` completes. Raises SseLimitError for an event without end."""
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if b"\r" in chunk:
            # A CR at the end of the chunk ends its line now; if an LF comes next, it belongs to it.
            self._skip_lf = chunk[-1] == 13
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" in chunk:
            return self._feed_lines(chunk)
        # A growing bytearray is amortised linear; joining bytes here would be quadratic for one-byte chunks.
        self._tail += chunk
        self._bound(len(chunk))
        return []

    def finish(self) -> list[ServerSentEvent]:
        """The body ended: the event that was being built, if it has data."""
        line, self._tail = bytes(self._tail), bytearray()
        events = self._lines([line, b""])
        return events

    def _feed_lines(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._tail:
            chunk = bytes(self._tail) + chunk
            self._tail.clear()
        lines = chunk.split(b"\n")
        self._tail += lines.pop()
        events = self._lines(lines)
        if not self._data:
            self._pending_bytes = 0
            self._bound(len(self._tail))
        else:
            if events:
                self._pending_bytes = 0
            self._bound(len(chunk))
        return events

    def _bound(self, more_bytes: int) -> None:
        self._pending_bytes += more_bytes
        if self._pending_bytes > self._max_event_bytes:
            raise SseLimitError(f"an event of more than {self._max_event_bytes} bytes")

    def _lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[ServerSentEvent] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append(ServerSentEvent(self._event, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                self._event = ""
            elif line[:6] == b"data: ":
                data.append(line[6:])
            else:
                self._field(line)
        return events

    def _field(self, line: bytes) -> None:
        """A line other than `data: ...`. Comments, `id`, `retry` and unknown fields say nothing to us."""
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")

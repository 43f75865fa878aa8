"""Server-sent events, by the rules of the WHATWG (HTML standard, 9.2.6 "Interpreting an event stream").

An event without its blank line at the end of the body counts too: recorded streams end so (docs/wire.md quirk 31).

What stands in a stream and is no line of one (a server's error as plain JSON, a proxy's page) is kept for the decoder:
the standard skips it, and a cut answer would pass for a whole one (quirk 94).
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from callboard.protocol.limits import MAX_RESPONSE_BYTES

BOM: Final = b"\xef\xbb\xbf"
#: What begins the data of an event that is none: a line outside the format, in its place among the events. (RFC 7464's
#: mark of a JSON text in a sequence.)
OUTSIDE: Final = b"\x1e"
_SILENT_FIELDS: Final = frozenset({b"id", b"retry"})
#: Lines that an event stream may have: a field of any name (the standard skips those it does not know), alone or before
#: a colon, and one behind white space (quirk 31). `{"error": ...`, `<html>` and sentences are none.
_FIELD: Final = re.compile(rb"[ \t]*[\w-]{1,30}(?::|$)|[ \t]*$")

ServerSentEvent: TypeAlias = tuple[str, bytes]
"""The event's type, "" where the stream named none, and its data lines joined by LF. Bytes: JSON parsers want them."""


class SseLimitError(ValueError):
    """An event or a line grew past the limit."""


class SseDecoder:
    """Bytes to events. Cost is linear in the bytes, however they are cut; memory is bounded by one event.

    Lines end with LF, CR or CR LF and nothing else: U+2028, U+0085, VT and FF occur inside JSON strings (quirk 29).
    """

    __slots__ = (
        *("_data", "_event", "_first_line", "_max_event_bytes", "_pending_bytes", "_skip_lf", "_tail"),
        *("_is_broken", "hint"),
    )

    def __init__(self, max_event_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self.hint = b""
        """The last line of an unknown field. `Error: no` looks like one: it is told where the stream ends early."""
        self._is_broken = False
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
        if b"\n" not in chunk:
            # A growing bytearray is amortised linear; joining bytes here would be quadratic for one-byte chunks.
            self._tail += chunk
            self._hold(len(chunk))
            return []
        if self._tail:
            chunk = bytes(self._tail) + chunk
            self._tail.clear()
        lines = chunk.split(b"\n")
        tail = lines.pop()
        events = self._lines(lines)
        if not self._data or (events and not events[-1][1].startswith(OUTSIDE)):
            self._pending_bytes = 0
        if tail or self._data:
            self._tail += tail
            self._hold(len(chunk) if self._data else len(tail))
        return events

    def finish(self) -> list[ServerSentEvent]:
        """The body ended: the event that was being built, if it has data."""
        line, self._tail = bytes(self._tail), bytearray()
        return self._lines([line, b""])

    def _hold(self, more_bytes: int) -> None:
        self._pending_bytes += more_bytes
        if self._pending_bytes > self._max_event_bytes:
            raise SseLimitError(f"an event of more than {self._max_event_bytes} bytes")

    def _lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(BOM)
        events: list[ServerSentEvent] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    events.append((self._event, data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                self._event = ""
            elif line[:6] == b"data: ":
                data.append(line[6:])
            else:
                # Comments, `id`, `retry` and unknown fields say nothing to us.
                name, _, value = line.partition(b":")
                if name == b"event":
                    self._event = value.removeprefix(b" ").decode("utf-8", "replace")
                elif name == b"data":
                    data.append(value.removeprefix(b" "))
                elif name and name not in _SILENT_FIELDS:
                    # Behind the first line that no stream may have, those that look like fields are of its kind.
                    self._is_broken = self._is_broken or not _FIELD.match(line)
                    if self._is_broken:
                        events.append(("", OUTSIDE + line + b"\n"))
                    else:
                        self.hint = line
        return events

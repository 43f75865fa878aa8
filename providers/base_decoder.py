"""Bytes of an HTTP answer to JSON documents, and what every decoder does alike: end exactly once, and never raise.

`BaseDecoder` finds out what kind of body it gets and reads its JSON. An adapter's decoder says what one document means
(`on_json` for a streamed one, `on_body` for a whole answer) and what the end of the body means (`on_end`). A document
of an unexpected shape, and an answer beyond all bounds, end here, as an Error(MALFORMED) with a snippet.

The fields of a document are read by json_values.py.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol import model
from callboard.protocol.content import Audio, Citation, Document, Image, Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import ANSWER_PART_BYTES, MAX_ANSWER_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import (
    CitationDelta,
    Done,
    Error,
    MediaDelta,
    StreamEvent,
    TokenLogprob,
)
from callboard.protocol.values import repr_without
from callboard.providers.http_errors import (
    error_from_body,
    error_from_payload,
    error_from_words,
    is_error,
    make_error,
    scrubbed,
    snippet,
)
from callboard.providers.json_values import SHAPE_ERRORS, Json, JsonObject, loads, storable_bytes
from callboard.providers.response_builder import ToolCallTracker

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

#: Of an error body no more is read: messages are short, and a proxy's HTML page is not worth keeping.
MAX_ERROR_BODY_BYTES: Final = 64 * 1024
#: Of a body that is not an answer so much is kept to be shown; of the white space before one, so that it stays bounded.
_SNIFF_BYTES: Final = 1024
#: Of the words that a server ends with (its reason, the model's name) so much is kept.
_MAX_WORD_CHARS: Final = 200
#: Of the lines outside the format so many that may end a JSON document are looked at; later ones at the end.
_MAX_LOOKS: Final = 16
#: With twenty alternatives each takes 3 kB.
MAX_LOGPROBS: Final = 20_000
_UNSTORABLE: Final = "citations: what a source says of itself is not JSON that can be kept; left out"
_UNREADABLE: Final = "media: what the answer shows has no bytes that can be read; left out"
_BROKEN_OFF: Final = "The stream ended before the turn did; the server wrote into it: "
_BLANK: Final = b" \t\r\n" + BOM
#: No event stream starts with these, so a body that does is a whole document, even if its content type says otherwise
#: (docs/wire.md quirks 26, 51; Gemini without alt=sse).
_DOCUMENT_STARTS: Final = (b"{", b"[", b"<", b'"')
_STREAM_STARTS: Final = (b":", b"data", b"event", b"id", b"retry")

_PROSE: Final = (model.TextDelta, model.ThinkingDelta)
#: Where servers put the id of an HTTP request: OpenAI and most others, Anthropic, Azure, OpenRouter, AWS, Cloudflare.
_REQUEST_IDS: Final = (
    *("x-request-id", "request-id", "apim-request-id", "x-generation-id"),
    *("x-amzn-requestid", "cf-ray"),
)


# Server-sent events, by the rules of the WHATWG (HTML standard, 9.2.6 "Interpreting an event stream").
#
# An event without its blank line at the end of the body counts too: recorded streams end so (docs/wire.md quirk 31).
# What stands in a stream and is no line of one (a server's error as plain JSON, a proxy's page) is kept for the
# decoder: the standard skips it, and a cut answer would pass for a whole one (quirk 94).


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


# What every decoder does alike.


class AnswerHead(Struct, frozen=True):
    """What is known of an answer before its body."""

    family: str
    """The first column of the error table."""
    status: int = 200
    headers: Mapping[str, str] | None = None
    streaming: bool = True
    secret: str | None = None
    """Blotted out of every error."""

    __repr__ = repr_without("headers", "secret")


class BaseDecoder(ABC):
    """See the module."""

    # An object with more than 30 attributes beside its slots is slower to read: 5 % of an event.
    __slots__ = (
        "_answer_bytes",
        "_block",
        "_body",
        "_head",
        "_held_bytes",
        "_kind",
        "_last_data",
        "_looks",
        "_outside",
        "_replay_bytes",
        "_secret",
        "_sse",
        "_take",
        "calls",
        "ended",
        "family",
        "headers",
        "logprobs",
        "model",
        "notes",
        "response_id",
        "service_tier",
        "status",
        "usage",
    )

    def __init__(self, head: AnswerHead) -> None:
        self.family, self._secret = head.family, head.secret
        self.calls = ToolCallTracker()
        self.model = ""
        self.usage: JsonObject = {}
        """As the provider gives it; how its parts count is for each API to say."""
        self.response_id = ""
        self.service_tier = ""
        self.logprobs: list[TokenLogprob] = []
        self.notes: list[str] = []
        """What the answer has that could not be kept."""
        self._answer_bytes = 0
        self._replay_bytes = 0
        self._held_bytes = 0
        # Which part of the answer was written last.
        self._kind: type[StreamEvent] | None = None
        self._block = 0
        self.reopen(head.status, head.headers)

    def reopen(self, status: int, headers: Mapping[str, str] | None) -> None:
        """Read on in an HTTP answer that begins now; what earlier ones have told of the turn stays."""
        self.status = status
        self.headers = {name.lower(): value for name, value in (headers or {}).items()}
        self.ended = False
        """Done or Error was emitted: everything after it is ignored."""
        self._sse = SseDecoder()
        self._body = bytearray()
        self._last_data = b""
        self._head = b""
        self._outside = bytearray()
        """Lines of the stream outside its format."""
        self._looks = 0
        # Decided by the bytes: servers stream unasked, and answer whole where a stream was wanted.
        self._take: Callable[[bytes, list[StreamEvent]], None] = self._take_first if status < 400 else self._take_error

    # What an adapter's decoder says.

    @abstractmethod
    def on_json(self, event: str, document: JsonObject, out: list[StreamEvent]) -> None:
        """One event of the stream: its SSE type ("" where there is none) and its JSON object."""

    @abstractmethod
    def on_body(self, document: Json, out: list[StreamEvent]) -> None:
        """A whole answer: must `end` or `fail`."""

    @abstractmethod
    def on_end(self, out: list[StreamEvent], marked: bool) -> None:
        """The stream ended, by `data: [DONE]` (`marked`) or by the end of the body: must `end` or `fail`."""

    # What it is given for that.

    def end(self, out: list[StreamEvent], done: Done) -> None:
        """Close the stream in good order. Usage that cannot be kept (NaN, endless nesting) is unknown usage."""
        if self.ended:
            return
        self._close()
        if self._outside:  # the server says that the turn is whole all the same
            self.notes.append(f"the stream held text outside its format: {snippet(bytes(self._outside))}")
        try:
            storable_bytes(done.raw_usage)
        except ValueError:
            done = replace(done, raw_usage={})
        out.append(
            replace(
                done,
                model=done.model[:_MAX_WORD_CHARS],
                raw_finish_reason=done.raw_finish_reason[:_MAX_WORD_CHARS],
                response_id=self.response_id[:_MAX_WORD_CHARS],
                provider_request_id=self.provider_request_id,
                service_tier=self.service_tier[:_MAX_WORD_CHARS],
                logprobs=tuple(self.logprobs),
                notes=(*done.notes, *self.notes, *self.calls.notes),
            )
        )

    def fail(self, out: list[StreamEvent], error: Error) -> None:
        """Close the stream with an error."""
        if not self.ended:
            self._close()
            out.append(scrubbed(replace(error, provider_request_id=self.provider_request_id), self._secret))

    def _close(self) -> None:
        self.ended = True
        # A bound method of our own is a cycle, and would keep the decoder until the garbage collector comes.
        self._take = _ignore

    @property
    def provider_request_id(self) -> str:
        """The provider's id of the HTTP request, by the answer's headers; "" where they have none."""
        return next((self.headers[name] for name in _REQUEST_IDS if name in self.headers), "")[:_MAX_WORD_CHARS]

    def note_logprobs(self, tokens: Iterable[TokenLogprob]) -> None:
        """Keep what the answer says of its tokens. Raises ValueError past the limit."""
        self.logprobs.extend(tokens)
        if len(self.logprobs) > MAX_LOGPROBS:
            raise ValueError(f"log probabilities of more than {MAX_LOGPROBS} tokens")

    def cite(self, out: list[StreamEvent], citations: Iterable[Citation], block: int = 0) -> tuple[Citation, ...]:
        """Say what the text of a block rests on, and return it. An answer is not lost over a source whose own form
        cannot be kept (NaN in it): that is left out, and a note says so."""
        kept = tuple(map(self._storable, citations))
        if kept:
            out.append(CitationDelta(kept, block))
        return kept

    def show(self, out: list[StreamEvent], media: Image | Audio | Document, block: int = 0) -> None:
        """A picture, sound or file, or a piece of one. A later request could not carry one without bytes that can be
        read: it is left out, and a note says so."""
        if media.url or media.file_id or _is_base64(media.data_base64):
            out.append(MediaDelta(media, block))
        elif _UNREADABLE not in self.notes:
            self.notes.append(_UNREADABLE)

    def _storable(self, citation: Citation) -> Citation:
        try:
            storable_bytes(citation.raw)
        except ValueError:
            if _UNSTORABLE not in self.notes:
                self.notes.append(_UNSTORABLE)
            return replace(citation, raw={})
        return citation

    def fail_payload(self, payload: Json, out: list[StreamEvent]) -> None:
        """Close the stream with the error that the provider put into it (quirks 24-26)."""
        self.fail(out, error_from_payload(self.family, payload, self.status, self.headers))

    def fail_truncated(self, out: list[StreamEvent]) -> None:
        """Close a stream whose body ended before its turn (quirk 23)."""
        if words := bytes(self._outside) or self._sse.hint or (self._last_data if _tells(self._last_data) else b""):
            self.fail_words(out, words, ErrorKind.TRUNCATED, _BROKEN_OFF)
            return
        raw = snippet(self._last_data)
        self.fail(out, make_error(ErrorKind.TRUNCATED, "The stream ended before the turn did.", raw))

    def fail_malformed(self, out: list[StreamEvent], why: str, data: bytes = b"") -> None:
        """Close a stream of bytes that are not what the API promises."""
        message = f"The server did not answer as its API promises: {why}"
        self.fail(out, make_error(ErrorKind.MALFORMED, message, snippet(data)))

    def fail_words(self, out: list[StreamEvent], words: bytes, unknown: ErrorKind, preface: str = "") -> None:
        """Close the stream with what its server wrote into it outside the API's documents."""
        self.fail(out, error_from_words(self.family, words, unknown, preface, self.headers))

    def fail_if_error(self, document: JsonObject, out: list[StreamEvent]) -> None:
        """Close the stream if a document of it that holds nothing of an answer is an error in a form of its own."""
        if is_error(document):
            self.fail_payload(document, out)

    def hold(self) -> None:
        """Count the event that is being read as kept without being emitted yet. Raises ValueError past the limit."""
        if not self._body:
            self._held_bytes += len(self._last_data)
        if self._held_bytes > MAX_RESPONSE_BYTES:
            raise ValueError(f"more than {MAX_RESPONSE_BYTES} bytes of parts that do not end")

    # The Decoder protocol.

    def feed(self, data: bytes, /) -> list[StreamEvent]:
        out: list[StreamEvent] = []
        if self.ended or not data:
            return out
        try:
            self._take(data, out)
        except SHAPE_ERRORS as error:
            self.fail_malformed(out, _reason(error), self._last_data or data)
        if out:
            self._measure(out)
        return out

    def finish(self) -> list[StreamEvent]:
        out: list[StreamEvent] = []
        if self.ended:
            return out
        try:
            self._finish(out)
        except SHAPE_ERRORS as error:
            self.fail_malformed(out, _reason(error), self._last_data or bytes(self._body))
        if not self.ended:
            self.fail_truncated(out)
        self._measure(out)
        return out

    # How.

    def _measure(self, out: list[StreamEvent]) -> None:
        """Count what the answer holds by now, and end it before the event that makes it too long, or cannot be kept."""
        event = None
        try:
            for event in out:
                if isinstance(event, _PROSE):
                    text = event.text
                    if event.block != self._block or event.__class__ is not self._kind or event.replay is not None:
                        self._begin(event.__class__, event.block, event.replay)
                elif isinstance(event, model.ToolCallDelta):
                    text = event.args_delta
                else:
                    text = self._counted(event)
                size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
                self._answer_bytes = size = self._answer_bytes + size
                if size > MAX_ANSWER_BYTES or self._replay_bytes > MAX_RESPONSE_BYTES:
                    raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes; it was broken off.")
        except ValueError as error:
            del out[next(place for place, each in enumerate(out) if each is event) :]
            self.ended = False
            self.fail_malformed(out, str(error), self._last_data)

    def _counted(self, event: StreamEvent) -> str:
        """What an event says that comes seldom; what must be kept of it besides is counted."""
        match event:
            case model.ToolCallStart(call_id, name, replay):
                self._begin(None, 0, replay)
                return call_id + name
            case model.ServerToolEvent(kind=kind, replay=replay, text=text):
                self._begin(None, 0, replay)
                return kind + text
            case model.MediaDelta(media, block):
                self._replay_bytes += len(media.data_base64)
                self._begin(event.__class__, block, media.replay)
            case model.CitationDelta(citations):
                self._replay_bytes += sum(storable_bytes(each.raw) for each in citations)
                return "".join(each.url + each.title + each.cited_text for each in citations)
            case model.ReplayDelta(replay):
                self._replay_bytes += storable_bytes(replay.data)
        return ""

    def _begin(self, kind: type[StreamEvent] | None, block: int, replay: Replay | None) -> None:
        """Count a part where one begins (None: one of its own), and what must go back. ValueError if it could not."""
        if kind is None or kind is not self._kind or block != self._block:
            self._kind, self._block = kind, block
            self._answer_bytes += ANSWER_PART_BYTES
        if replay is not None:
            self._replay_bytes += storable_bytes(replay.data)

    def _finish(self, out: list[StreamEvent]) -> None:
        if self.status >= 400:
            self._fail_status(out)
        elif self._take != self._take_stream:
            self._read_body(bytes(self._body), out)
        else:
            self._take_last(out)
            begins = any(self._head.startswith(start) or start.startswith(self._head) for start in _STREAM_STARTS)
            if not self._last_data and not begins:
                self.fail_malformed(out, "the body is neither JSON nor an event stream.", self._head)
            elif self._outside and not self.ended:
                # Only the end of the body says that the turn is whole, and words came before it.
                self.fail_truncated(out)
            elif not self.ended:
                self.on_end(out, False)

    def _fail_status(self, out: list[StreamEvent]) -> None:
        self.fail(out, error_from_body(self.family, self.status, self.headers, bytes(self._body)))

    def _take_last(self, out: list[StreamEvent]) -> None:
        """An event without its blank line: whole, it counts (quirk 31); cut off, the stream was."""
        for event, data in self._sse.finish():
            try:
                self._take_event(event, data, out)
            except ValueError:
                self.fail_truncated(out)

    def _read_body(self, body: bytes, out: list[StreamEvent]) -> None:
        if not body.strip(_BLANK):
            self.fail(out, make_error(ErrorKind.TRUNCATED, "The server closed the connection without an answer."))
            return
        try:
            document = loads(body)
        except ValueError:
            kind = self.headers.get("content-type", "no content type")
            self.fail_malformed(out, f"the body is not JSON ({kind}).", body)
            return
        if isinstance(document, dict) and is_error(document, whole=True):
            self.fail_payload(document, out)
        else:
            self._last_data = body
            self.on_body(document, out)

    def _take_first(self, data: bytes, out: list[StreamEvent]) -> None:
        """Until the first byte that tells a stream from a document. OpenRouter sends white space until then."""
        self._body += data
        head = bytes(self._body).lstrip(_BLANK)
        if not head:
            del self._body[:-_SNIFF_BYTES]
            return
        data = bytes(self._body)
        self._body.clear()
        self._take = self._take_body if head.startswith(_DOCUMENT_STARTS) else self._take_stream
        self._take(data, out)

    def _take_error(self, data: bytes, out: list[StreamEvent]) -> None:
        """The body of an HTTP error; one that has no end is not waited for."""
        self._body += data[: MAX_ERROR_BODY_BYTES - len(self._body)]
        if len(self._body) >= MAX_ERROR_BODY_BYTES:
            self._fail_status(out)

    def _take_body(self, data: bytes, out: list[StreamEvent]) -> None:
        self._body += data
        if len(self._body) > MAX_RESPONSE_BYTES:
            head = bytes(self._body[:_SNIFF_BYTES])
            self._body.clear()
            self.fail_malformed(out, f"the body is longer than {MAX_RESPONSE_BYTES} bytes.", head)

    def _take_stream(self, data: bytes, out: list[StreamEvent]) -> None:
        if not self._last_data and len(self._head) < _SNIFF_BYTES:
            # Shown if this turns out to be no event stream at all.
            self._head = (self._head + data[:_SNIFF_BYTES]).lstrip(_BLANK)
        for event, payload in self._sse.feed(data):
            self._take_event(event, payload, out)
            if self.ended:
                return

    def _take_event(self, event: str, data: bytes, out: list[StreamEvent]) -> None:
        self._last_data = data
        try:
            document: Json = orjson.loads(data)
        except orjson.JSONDecodeError:
            text = data.strip()
            if not text:
                return
            if text == b"[DONE]":
                self.on_end(out, True)
                return
            if text.startswith(OUTSIDE):
                self._take_outside(data[1:], out)
                return
            if text.startswith(b":"):
                return  # Vertex's partner models send their keep-alives as data (quirk 99)
            if event == "error" or not text.startswith(_DOCUMENT_STARTS):
                self.fail_words(out, data, ErrorKind.OTHER if event == "error" else ErrorKind.MALFORMED)
                return
            document = loads(data)
        if isinstance(document, dict):
            self.on_json(event, document, out)
        elif document is not None:
            self.fail_malformed(out, "a streamed event is not a JSON object.", data)

    def _take_outside(self, line: bytes, out: list[StreamEvent]) -> None:
        """A line that no event stream may have. A whole JSON error ends it: its server may keep the connection open."""
        self._last_data = b""
        if len(self._outside) < MAX_ERROR_BODY_BYTES:
            self._outside += line
            if line.rstrip().endswith((b"}", b"]")) and self._looks < _MAX_LOOKS:
                self._looks += 1
                if _tells(words := bytes(self._outside)):
                    self.fail_words(out, words, ErrorKind.OTHER)


def _ignore(data: bytes, out: list[StreamEvent]) -> None:
    """What comes after the end of an answer."""


def _tells(words: bytes) -> bool:
    """Are these words a JSON error, whole?"""
    if not words.rstrip().endswith((b"}", b"]")):
        return False
    try:
        document = loads(words)
    except SHAPE_ERRORS:
        return False
    document = document[0] if isinstance(document, list) and document else document
    return isinstance(document, dict) and is_error(document, whole=True)


def _is_base64(data: str) -> bool:
    try:
        return bool(b64decode(data, validate=True))
    except ValueError:
        return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]

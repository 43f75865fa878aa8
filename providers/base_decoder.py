"""Bytes of an HTTP answer to JSON documents, and what every decoder does alike: end exactly once, and never raise.

`BaseDecoder` finds out what kind of body it gets and reads its JSON. An adapter's decoder says what one document means
(`on_json` for a streamed one, `on_body` for a whole answer) and what the end of the body means (`on_end`). A document
of an unexpected shape, and an answer beyond all bounds, end here, as an Error(MALFORMED) with a snippet.

A decoder asks a document for a field by the type that it must have (`text_at`, `object_at`, `objects_at`). Null and a
missing field are the empty value; a value of another type is a TypeError. Token counts that make no sense are not known
(`count_at`, `usage_of`): an answer is not lost because its bill cannot be read.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeGuard

import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol import model
from callboard.protocol.content import Audio, Citation, Document, Image, Replay
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import ANSWER_PART_BYTES, MAX_ANSWER_BYTES, MAX_RESPONSE_BYTES
from callboard.protocol.model import (
    NEVER_LIKELY,
    CitationDelta,
    Done,
    Error,
    MediaDelta,
    StreamEvent,
    TokenLogprob,
    Usage,
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
from callboard.providers.json_values import SHAPE_ERRORS, Json, JsonObject, as_text, loads, storable_bytes
from callboard.providers.response_builder import ToolCallTracker
from callboard.providers.sse_decoder import BOM, OUTSIDE, SseDecoder

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
#: A count of tokens above this is none: it is a hundred times the largest context there is.
MAX_TOKEN_COUNT: Final = 1_000_000_000
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
                self.fail_truncated(
                    out
                )  # only the end of the body says that the turn is whole, and words came before it
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

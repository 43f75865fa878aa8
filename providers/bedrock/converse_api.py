"""Bedrock's Converse and ConverseStream: the adapter, and its answers. converse_requests.py writes the requests.

Facts: docs/wire.md 1.8; botocore's service model `bedrock-runtime`.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from io import StringIO
from typing import ClassVar, Final
from urllib.parse import quote

from msgspec import Struct, field

from callboard.protocol import content, model
from callboard.protocol.content import Citation, Replay, json_text
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_ARGUMENT_BYTES
from callboard.protocol.model import FinishReason, StreamEvent, TextDelta, ThinkingDelta
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.base_decoder import AnswerHead, BaseDecoder
from callboard.providers.bedrock.converse_requests import ORIGIN, ConverseEncoding
from callboard.providers.bedrock.event_stream import EventStreamDecoder, Frame
from callboard.providers.http_errors import error_from_payload, make_error
from callboard.providers.json_values import (
    Json,
    JsonObject,
    as_text,
    count_at,
    fields_at,
    list_at,
    load_object,
    loads,
    object_at,
    object_of,
    objects_at,
    said_at,
    text_at,
    text_of,
    usage_of,
)
from callboard.providers.own_options import BEDROCK_OPTIONS

DEFAULT_REGION: Final = "us-east-1"
EVENT_STREAM: Final = "application/vnd.amazon.eventstream"


class Bedrock(encoding.HttpAdapter):
    """The adapter of Bedrock in one region. `api_key` is a Bedrock API key; requests without one are signed by
    `aws_credentials.AwsCredentials` on their way out."""

    own_options = BEDROCK_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        region: str = DEFAULT_REGION,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        address = encoding.checked_url(base_url, f"https://bedrock-runtime.{quote(region, safe='')}.amazonaws.com")
        super().__init__("bedrock", address, api_key, ConverseDecoder, headers=headers)

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = ConverseEncoding(request)
        operation = "converse-stream" if request.stream else "converse"
        # Model ids hold colons, ARNs slashes too: all of them escaped, as the SDKs do.
        url = f"{self._url}/model/{quote(request.model, safe='')}/{operation}"
        headers = self.headers(request)
        if request.stream:
            headers["accept"] = EVENT_STREAM
        return self.sent(url, headers, written, written.body())


_FINISH_REASONS: Final = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "content_filtered": FinishReason.CONTENT_FILTER,
}
#: Reasons that mean that there is no answer.
_FAILURES: Final = {
    "malformed_tool_use": ErrorKind.MALFORMED_TOOL_CALL,
    "malformed_model_output": ErrorKind.MALFORMED,
}
#: After these no call of the turn is whole (docs/wire.md quirk 69); the length limit cuts only the last one.
_BROKEN_OFF: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.OTHER})
#: Nova's own tools, by what every provider's are called here.
_TOOL_NAMES: Final = {"nova_grounding": "web_search", "nova_code_interpreter": "code_execution"}
#: Of what a server tool asked or answered so much is shown.
_SHOWN_CHARS: Final = 2_000
_Out = list[StreamEvent]


class _Block(Struct):
    """A content block that is being streamed: what must be kept until it ends."""

    kind: str = ""
    """Of a server tool: "toolUse" or "toolResult"."""
    start: JsonObject = field(default_factory=dict)
    pieces: StringIO = field(default_factory=StringIO)
    """Of a server tool's input."""
    results: list[Json] = field(default_factory=list)
    has_reasoning: bool = False
    signature: StringIO = field(default_factory=StringIO)
    redacted: bytearray = field(default_factory=bytearray)
    citations: list[Mapping[str, object]] = field(default_factory=list)
    image_format: str = ""


class ConverseDecoder(BaseDecoder):
    """Frames of ConverseStream, or a whole answer. Calls are complete once the reason for the end is known."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._frames = EventStreamDecoder()
        self._blocks: dict[int, _Block] = {}
        self._stop_reason = ""
        self._searches = 0

    # The binary stream in place of server-sent events.

    def _take_stream(self, data: bytes, out: _Out) -> None:
        if not self._last_data:
            self._head = self._head or data[:1024]
        for frame in self._frames.feed(data):
            self._take_frame(frame, out)
            if self.ended:
                return

    def _take_frame(self, frame: Frame, out: _Out) -> None:
        self._last_data = payload = frame.payload
        kind = frame.text(":message-type")
        if kind == "event":
            self.on_json(frame.text(":event-type"), object_of(loads(payload)) if payload else {}, out)
        elif kind in ("exception", "error"):
            code = frame.text(":exception-type") or frame.text(":error-code")
            said = load_object(frame.payload) or {}
            message = text_at(said, "message") or text_at(said, "originalMessage") or frame.text(":error-message")
            self.fail(out, self._named_error(code, message, said, frame.payload))

    def _finish(self, out: _Out) -> None:
        if self._take == self._take_stream and self._last_data and not self._frames.is_between_frames:
            self.fail_truncated(out)
        else:
            super()._finish(out)

    def _take_last(self, out: _Out) -> None:
        """Nothing is left: a frame is whole, or the stream was cut."""

    def _fail_status(self, out: _Out) -> None:
        # The name of the error is in a header: "ThrottlingException:http://internal.amazon.com/...".
        body = bytes(self._body)
        said = load_object(body)
        code = self.headers.get("x-amzn-errortype", "").partition(":")[0]
        if said is not None and not code:  # or in the body: "com.amazon.coral.service#ExpiredTokenException"
            code = text_at(said, "__type").rpartition("#")[2]
        if said is None or not code:
            super()._fail_status(out)
            return
        message = text_at(said, "message") or text_at(said, "Message")
        self.fail(out, self._named_error(code, message, said, body))

    def _named_error(self, code: str, message: str, said: JsonObject, raw: bytes) -> model.Error:
        # ModelErrorException carries the status of the model behind.
        status = self.status if self.status >= 400 else count_at(said, "originalStatusCode") or self.status
        payload: Json = {"error": {"code": code, "message": message or code}}
        return error_from_payload(self.family, payload, status, self.headers, raw)

    # What comes.

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        if (handler := self._EVENTS.get(event)) is not None:
            handler(self, document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        message = object_of(object_of(document["output"])["message"])
        self._stop_reason = text_of(document["stopReason"])
        for index, block in enumerate(objects_at(message, "content")):
            self._whole_block(index, block, out)
        self._metadata(document, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        if self._stop_reason:
            self._end_turn(out)
        else:
            self.fail_truncated(out)

    # A stream's events.

    def _open_block(self, document: JsonObject) -> tuple[int, _Block]:
        index = document.get("contentBlockIndex") or 0
        if not isinstance(index, int):
            raise TypeError("the index of a block is not a number")
        block = self._blocks.get(index)
        if block is None:
            self.hold()
            block = self._blocks[index] = _Block()
        return index, block

    def _block_start(self, document: JsonObject, out: _Out) -> None:
        index, block = self._open_block(document)
        start = object_at(document, "start")
        kind = next(iter(start), "")
        if kind == "toolUse":
            use = object_of(start[kind])
            if use.get("type") == "server_tool_use":
                block.kind, block.start = kind, use
            else:
                self.calls.begin(out, index=index, id=text_at(use, "toolUseId"), name=text_of(use["name"]))
        elif kind == "toolResult":
            block.kind, block.start = kind, object_of(start[kind])
        elif kind == "image":
            block.image_format = text_at(object_of(start[kind]), "format")

    def _block_delta(self, document: JsonObject, out: _Out) -> None:
        delta = object_at(document, "delta")
        text = delta.get("text")
        if text is not None:  # nearly every event of an answer
            if text := text if isinstance(text, str) else as_text(text):
                index = document.get("contentBlockIndex")
                out.append(TextDelta(text, index if isinstance(index, int) else 0))
            return
        index, block = self._open_block(document)
        for kind, value in delta.items():
            if (handler := self._DELTAS.get(kind)) is not None:
                handler(self, index, block, value, out)

    def _input(self, index: int, block: _Block, value: Json, out: _Out) -> None:
        text = said_at(object_of(value), "input")
        if not block.kind:
            self.calls.delta(out, index=index, arguments=text)
        elif block.pieces.tell() + len(text) > MAX_ARGUMENT_BYTES:
            raise ValueError(f"the input of a server tool is longer than {MAX_ARGUMENT_BYTES} characters")
        else:
            block.pieces.write(text)

    def _server_result(self, index: int, block: _Block, value: Json, out: _Out) -> None:
        self.hold()
        block.results += value if isinstance(value, list) else [value]

    def _reasoning(self, index: int, block: _Block, value: Json, out: _Out) -> None:
        piece = object_of(value)
        block.has_reasoning = True
        if text := said_at(piece, "text"):
            out.append(ThinkingDelta(text, index))
        if signature := text_at(piece, "signature"):
            self.hold()
            block.signature.write(signature)
        if redacted := text_at(piece, "redactedContent"):
            self.hold()
            block.redacted += b64decode(redacted)

    def _citation(self, index: int, block: _Block, value: Json, out: _Out) -> None:
        self.hold()
        raw = object_of(value)
        block.citations += [each.raw for each in self.cite(out, [_citation_of(raw)], index) if each.raw]

    def _image(self, index: int, block: _Block, value: Json, out: _Out) -> None:
        data = text_at(object_at(object_of(value), "source"), "bytes")
        if data:
            kind = f"image/{block.image_format or 'png'}"
            self.show(out, content.Image(kind, data, replay=Replay(ORIGIN, {})), index)

    def _block_stop(self, document: JsonObject, out: _Out) -> None:
        index, block = self._open_block(document)
        del self._blocks[index]
        self._settle_block(index, block, out)

    def _settle_block(self, index: int, block: _Block, out: _Out) -> None:
        """A block has ended: what must go back with it, or of it, is whole now."""
        if block.redacted:
            opaque = {"redactedContent": b64encode(block.redacted).decode()}
            out.append(ThinkingDelta("", index, Replay(ORIGIN, opaque)))
        elif block.has_reasoning:
            signature = block.signature.getvalue()
            out.append(ThinkingDelta("", index, Replay(ORIGIN, {"signature": signature} if signature else {})))
        if block.citations:
            out.append(TextDelta("", index, Replay(ORIGIN, {"citations": block.citations})))
        if block.kind:
            self._show_server_tool({block.kind: _server_block(block)}, out)

    def _message_stop(self, document: JsonObject, out: _Out) -> None:
        self._stop_reason = text_of(document["stopReason"])

    def _metadata(self, document: JsonObject, out: _Out) -> None:
        self.usage = {key: value for key, value in fields_at(document, "usage").items() if value is not None}
        tier = fields_at(document, "serviceTier").get("type")
        self.service_tier = tier if isinstance(tier, str) else ""
        router = fields_at(fields_at(document, "trace"), "promptRouter").get("invokedModelId")
        self.model = router if isinstance(router, str) else ""
        if self._stop_reason:
            self._end_turn(out)

    # A whole answer's blocks: the same, at once.

    def _whole_block(self, index: int, block: JsonObject, out: _Out) -> None:
        for kind, value in block.items():
            if (handler := self._WHOLE.get(kind)) is not None and value is not None:
                handler(self, index, value, out)

    def _whole_text(self, index: int, value: Json, out: _Out) -> None:
        if text := as_text(value):
            out.append(TextDelta(text, index))

    def _whole_call(self, index: int, value: Json, out: _Out) -> None:
        use = object_of(value)
        if use.get("type") == "server_tool_use":
            self._show_server_tool({"toolUse": use}, out)
            return
        call_id, name = text_at(use, "toolUseId"), text_of(use["name"])
        self.calls.whole(out, id=call_id, name=name, arguments=use.get("input"), complete=False)

    def _whole_result(self, index: int, value: Json, out: _Out) -> None:
        self._show_server_tool({"toolResult": object_of(value)}, out)

    def _show_server_tool(self, block: JsonObject, out: _Out) -> None:
        shown = _server_tool(block)
        self._searches += shown.kind == "toolUse" and shown.name == "web_search"
        out.append(shown)

    def _whole_reasoning(self, index: int, value: Json, out: _Out) -> None:
        block, reasoning = _Block(), object_of(value)
        said = object_at(reasoning, "reasoningText")
        for piece in (said, {"redactedContent": reasoning.get("redactedContent")}):
            self._reasoning(index, block, piece, out)
        self._settle_block(index, block, out)

    def _whole_citations(self, index: int, value: Json, out: _Out) -> None:
        cited, block = object_of(value), _Block()
        for piece in objects_at(cited, "content"):
            self._whole_text(index, piece.get("text"), out)
        for citation in objects_at(cited, "citations"):
            self._citation(index, block, citation, out)
        self._settle_block(index, block, out)

    def _whole_image(self, index: int, value: Json, out: _Out) -> None:
        image = object_of(value)
        self._image(index, _Block(image_format=text_at(image, "format")), image, out)

    # The end.

    def _end_turn(self, out: _Out) -> None:
        reason = self._stop_reason
        if reason in _FAILURES:
            self.fail(out, make_error(_FAILURES[reason], f"The model's turn ended with {reason}.", code=reason))
            return
        for index, block in sorted(self._blocks.items()):
            if block.citations:  # a block that was not closed: what it rests on is known, the rest of it is not whole
                self._settle_block(index, _Block(citations=block.citations), out)
        finish = _FINISH_REASONS.get(reason, FinishReason.OTHER)
        if finish not in _BROKEN_OFF:
            self.calls.complete_all(out, cut=finish is FinishReason.LENGTH)
        if self.calls.count and finish is FinishReason.STOP:
            finish = FinishReason.TOOL_CALLS
        self.end(out, model.Done(finish, reason, _usage(self.usage, self._searches), self.usage, self.model))

    _EVENTS: ClassVar[Mapping[str, Callable[[ConverseDecoder, JsonObject, _Out], None]]] = {
        "contentBlockStart": _block_start,
        "contentBlockDelta": _block_delta,
        "contentBlockStop": _block_stop,
        "messageStop": _message_stop,
        "metadata": _metadata,
    }
    _DELTAS: ClassVar[Mapping[str, Callable[[ConverseDecoder, int, _Block, Json, _Out], None]]] = {
        "toolUse": _input,
        "toolResult": _server_result,
        "reasoningContent": _reasoning,
        "citation": _citation,
        "image": _image,
    }
    _WHOLE: ClassVar[Mapping[str, Callable[[ConverseDecoder, int, Json, _Out], None]]] = {
        "text": _whole_text,
        "toolUse": _whole_call,
        "toolResult": _whole_result,
        "reasoningContent": _whole_reasoning,
        "citationsContent": _whole_citations,
        "image": _whole_image,
    }


def _server_block(block: _Block) -> JsonObject:
    """The whole block of a server tool, as it must go back."""
    if block.kind == "toolResult":
        return {**block.start, "content": block.results}
    try:
        return {**block.start, "input": loads(block.pieces.getvalue() or "{}")}
    except ValueError:
        return {**block.start, "input": {}}  # cut off by the length limit


def _server_tool(wire: JsonObject) -> model.ServerToolEvent:
    ((kind, value),) = wire.items()
    block = object_of(value)
    name = text_at(block, "name") or text_at(block, "type").removesuffix("_result")
    shown = block.get("input") if kind == "toolUse" else [_shown(each) for each in list_at(block, "content")]
    text = shown if isinstance(shown, str) else "\n".join(map(str, shown)) if isinstance(shown, list) else ""
    text = text or (json_text(shown) if isinstance(shown, dict) else "")
    call_id = text_at(block, "toolUseId")
    return model.ServerToolEvent(kind, Replay(ORIGIN, wire), _TOOL_NAMES.get(name, name), call_id, text[:_SHOWN_CHARS])


def _shown(piece: Json) -> str:
    text = piece.get("text") if isinstance(piece, dict) else None
    return text if isinstance(text, str) else json_text(piece)


def _citation_of(raw: JsonObject) -> Citation:
    location = fields_at(raw, "location")
    place = next((each for each in location.values() if isinstance(each, dict)), {})
    document = count_at(place, "documentIndex")
    texts = [text_at(each, "text") for each in objects_at(raw, "sourceContent")]
    url = text_at(place, "url") or text_at(raw, "source")
    return Citation(url, text_at(raw, "title"), "".join(texts), document=document, raw=raw)


def _usage(raw: JsonObject, searches: int) -> model.Usage | None:
    """inputTokens leaves the cache out: the whole input is the sum of three (User Guide, "Prompt caching for faster
    model inference"). OpenAI's models behind Bedrock count it in, and then once more in totalTokens (bifrost #6942)."""
    read, written = count_at(raw, "cacheReadInputTokens"), count_at(raw, "cacheWriteInputTokens")
    fresh = count_at(raw, "inputTokens")
    details = raw.get("cacheDetails")
    hours = [each for each in details if isinstance(each, dict)] if isinstance(details, list) else []
    kept = [count_at(each, "inputTokens") or 0 for each in hours if each.get("ttl") == "1h"]
    return usage_of(
        input_tokens=None if fresh is None else fresh + (read or 0) + (written or 0),
        output_tokens=count_at(raw, "outputTokens"),
        cached_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=sum(kept),
        web_searches=searches,
    )

"""Anthropic Messages: the adapter, and how an answer is read. Facts: docs/wire.md 1.3, quirks 31-39, 57, 64, 68, 69.

`messages_requests.py` writes the requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from io import StringIO
from typing import ClassVar, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol import content, model
from callboard.protocol.limits import MAX_ARGUMENT_BYTES
from callboard.protocol.model import FinishReason, ReplayDelta, StreamEvent, TextDelta, ThinkingDelta
from callboard.providers import request_encoding as encoding
from callboard.providers.adapter import WireRequest
from callboard.providers.anthropic import server_blocks
from callboard.providers.anthropic.messages_dialects import ANTHROPIC_MESSAGES, MessagesDialect, dialect_at
from callboard.providers.anthropic.messages_requests import MessagesEncoding
from callboard.providers.base_decoder import AnswerHead, BaseDecoder
from callboard.providers.json_values import (
    Body,
    Json,
    JsonObject,
    count_at,
    dumps,
    fields_at,
    loads,
    object_at,
    object_of,
    objects_at,
    said_at,
    text_at,
    text_of,
    usage_of,
)
from callboard.providers.own_options import BETA_HEADER, MESSAGES_OPTIONS, OwnFields

API_VERSION: Final = "2023-06-01"


class Anthropic(encoding.HttpAdapter):
    """The adapter of the Messages API at one address with one credential."""

    own_options = MESSAGES_OPTIONS

    def __init__(
        self,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        bearer: bool = False,
        name: str = "",
        dialect: MessagesDialect | None = None,
    ) -> None:
        """`bearer`: the credential is an OAuth token or a gateway's. Without a `dialect` the address tells it."""
        self.dialect = dialect or dialect_at(base_url)
        super().__init__(
            name or (dialect or ANTHROPIC_MESSAGES).name,
            # With the version or without: gateways name their address either way.
            encoding.checked_url(base_url, self.dialect.base_url).removesuffix("/v1"),
            api_key,
            partial(AnthropicDecoder, dialect=self.dialect),
            credential=(
                encoding.bearer(api_key) if bearer or self.dialect.bearer or not api_key else {"x-api-key": api_key}
            ),
            headers={"anthropic-version": API_VERSION, **(headers or {})},
        )

    def encode(self, request: model.ModelRequest, /) -> WireRequest:
        written = MessagesEncoding(request, self.dialect)
        body = self.envelope(written.body())
        headers = self.headers(request)
        if written.betas:
            headers = OwnFields(lists={BETA_HEADER: sorted(written.betas)}).in_headers(headers)
        return self.sent(self.endpoint(request), headers, written, body)

    def endpoint(self, request: model.ModelRequest) -> str:
        """Where the request goes. Clouds that host the API differ here, and in the envelope."""
        return f"{self._url}/v1/messages"

    def envelope(self, body: Body) -> Body:
        """The request's fields, as the server wants them."""
        return body


_FINISH_REASONS: Final = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.PAUSE,
    "refusal": FinishReason.REFUSAL,
}
#: Blocks that no tool of the provider's wrote. All others, also of kinds to come, are shown and go back as they are.
_NO_TOOL_BLOCKS: Final = frozenset({"text", "thinking", "redacted_thinking"})
#: What a delta without a block begins.
_BEGUN_BY: Final = {"text_delta": "text", "thinking_delta": "thinking"}
#: After these the last call is as its model wrote it.
_UNBROKEN: Final = frozenset({FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.PAUSE})
_MAX_NOTE_CHARS: Final = 500
_Out = list[StreamEvent]


class _Block(Struct):
    """A content block that is being streamed, under its `index`."""

    kind: str
    ordinal: int
    """Its place among all blocks of this stream; indexes may be sparse or start at 1 (quirk 6)."""
    start: JsonObject
    pieces: StringIO = field(default_factory=StringIO)
    """Of a server tool's input."""
    size: int = 0
    """Of its input or its thinking, in characters."""
    signed: bool = False


class AnthropicDecoder(BaseDecoder):
    """Events of the Messages API. A call is complete when its block has ended, and after it another block began or the
    turn ended for a reason that breaks nothing off: a limit may have cut what looks whole (quirks 57, 69)."""

    def __init__(self, head: AnswerHead, dialect: MessagesDialect = ANTHROPIC_MESSAGES) -> None:
        super().__init__(head)
        self._origin = dialect.origin
        self._ordinal = 0
        self._begin_message()

    def _begin_message(self) -> None:
        self._blocks: dict[Json, _Block] = {}
        self._server_tools: list[Json] = []
        """The indexes of those that are a server tool's."""
        self._ended_call: int | None = None
        """The call whose block was the last to end."""
        self._takes_input: _Block | None = None
        """The last block that is no text or thinking."""
        self._pending: set[str] = set()
        """Calls of server tools that have no result yet."""
        self._container = ""
        self._started = False
        self._stop_reason = ""
        self._is_output_counted = False

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # Proxies leave the event line out, or the type: whichever is there.
        kind = document.get("type")
        if (handler := self._EVENTS.get(kind if isinstance(kind, str) else event)) is not None:
            handler(self, document, out)
        else:
            self.fail_if_error(document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        if "content" not in document:
            raise KeyError("content")
        self._message_start({"message": document}, out)
        self._is_output_counted = True
        self._message_stop(document, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        # Some proxies close with [DONE] in place of message_stop; a bare end of the body is a cut (quirk 23).
        if marked and self._stop_reason:
            self._message_stop({}, out)
        else:
            self.fail_truncated(out)

    @property
    def _cut(self) -> bool:
        """Was the last call broken off? A reason that we do not know may mean that (quirk 69)."""
        return self._stop_reason != "" and _FINISH_REASONS.get(self._stop_reason) not in _UNBROKEN

    # The message.

    def _message_start(self, document: JsonObject, out: _Out) -> None:
        message = object_at(document, "message")
        if self._started:
            # A proxy spliced a second answer in: the aborted one must not be run (quirk 37).
            self.calls.restart()
            self.usage.clear()
            self._begin_message()
            out.append(model.Restarted("a second message_start"))
        self._started = True
        self.calls.seed = self.response_id = text_at(message, "id")
        self.model = text_at(message, "model")
        self._note_end(message, message)
        # All blocks of a whole answer; newer servers may also begin a stream with whole blocks (quirk 68).
        for place, block in enumerate(objects_at(message, "content")):
            self._block_start({"index": place, "content_block": block}, out)
            self._block_stop({"index": place}, out)

    def _message_delta(self, document: JsonObject, out: _Out) -> None:
        self.hold()
        self._note_end(object_at(document, "delta"), document)
        self._is_output_counted |= fields_at(document, "usage").get("output_tokens") is not None

    def _note_end(self, delta: JsonObject, holder: JsonObject) -> None:
        # Cumulative, field by field: the last value wins, nothing is added up (quirk 36). Null and 0 are placeholders
        # where another number was said.
        for key, value in fields_at(holder, "usage").items():
            if value or self.usage.get(key) is None:
                self.usage[key] = value
        if isinstance(tier := self.usage.get("service_tier"), str):
            self.service_tier = tier
        self._stop_reason = text_at(delta, "stop_reason") or self._stop_reason
        if isinstance(container := fields_at(delta, "container").get("id"), str):
            self._container = container
        if "context_management" in holder:
            edits = fields_at(holder, "context_management").get("applied_edits")
            for edit in edits if isinstance(edits, list) else ():
                self.notes.append(f"context_management: {dumps(edit).decode()}"[:_MAX_NOTE_CHARS])
        if details := fields_at(delta, "stop_details"):
            said = (details.get(key) for key in ("type", "category", "explanation"))
            self.notes.append(": ".join(word for word in said if isinstance(word, str))[:_MAX_NOTE_CHARS])

    def _message_stop(self, document: JsonObject, out: _Out) -> None:
        # Proxies leave the end of a block out; where the turn was cut, that may be what is missing.
        for block in tuple(self._blocks.values()):
            if block.kind != "tool_use" or not self._cut:
                self._end_block(block, out)
        if not self._cut:
            self._complete_call(out)
        if self._container and self._pending:
            # "container_id is required when there are pending tool uses generated by code execution" (a public issue
            # of anthropic-sdk-python, #1801).
            kept: JsonObject = {"type": server_blocks.CONTAINER, "id": self._container}
            out.append(server_blocks.shown(kept, self._origin))
        reason = _FINISH_REASONS.get(self._stop_reason, FinishReason.OTHER)
        if self.calls.count and (reason is FinishReason.STOP or not self._stop_reason):
            reason = FinishReason.TOOL_CALLS
        usage = _usage(self.usage) if self._is_output_counted else None
        self.end(out, model.Done(reason, self._stop_reason, usage, dict(self.usage), self.model))

    # Its blocks.

    def _block_start(self, document: JsonObject, out: _Out) -> None:
        start, index = object_of(document.get("content_block")), document.get("index")
        kind = text_of(start["type"])
        self._end_left_open(index, out)
        block = _Block(kind, self._ordinal, start)
        self._ordinal += 1
        self._blocks[index] = block
        if kind not in _NO_TOOL_BLOCKS:
            self._takes_input = block
            if kind != "tool_use":
                self._server_tools.append(index)
        self.hold()
        self._complete_call(out)
        if kind == "tool_use":
            self._call_start(block, out)
        elif kind == "redacted_thinking":
            out.append(ThinkingDelta("", block.ordinal, content.Replay(self._origin, {"data": text_of(start["data"])})))
        elif kind == "text":
            self._text_delta(block, {"text": start.get("text")}, out)
            self._cite(block, start.get("citations"), out)
        elif kind == "thinking":
            self._thinking_delta(block, {"thinking": start.get("thinking")}, out)
            self._signature_delta(block, start, out)

    def _end_left_open(self, index: Json, out: _Out) -> None:
        """End what a proxy did not: a block whose index begins another one, and a server tool's, whose place in the
        turn counts. Calls of ours may be written side by side."""
        for place in (*self._server_tools, index):
            if (block := self._blocks.pop(place, None)) is not None:
                self._end_block(block, out)
        self._server_tools.clear()

    def _call_start(self, block: _Block, out: _Out) -> None:
        call_id, name = text_at(block.start, "id"), text_of(block.start["name"])
        caller = object_at(block.start, "caller") or {"type": "direct"}
        # A call that the provider's own code execution makes must go back with its caller.
        replay = None if caller.get("type") == "direct" else content.Replay(self._origin, {"caller": caller})
        self.calls.begin(out, index=block.ordinal, id=call_id, name=name, replay=replay)

    def _block_delta(self, document: JsonObject, out: _Out) -> None:
        block = self._blocks.get(document.get("index"))
        delta = object_at(document, "delta")
        kind = text_at(delta, "type")
        if block is None:
            block = self._block_of_stray(document, kind, out)
        if block is not None and (handler := self._DELTAS.get(kind)) is not None:
            handler(self, block, delta, out)

    def _block_of_stray(self, document: JsonObject, kind: str, out: _Out) -> _Block | None:
        """The block of a delta that no open block has the index of: without an index it goes on with the last block;
        text that was never begun begins one; arguments are of the call that is being written (85)."""
        if self._blocks and ("index" not in document or None in self._blocks):
            return next(reversed(self._blocks.values()))
        if kind == "input_json_delta":
            return self._block_of_input(document, out)
        if kind in _BEGUN_BY:
            index = document.get("index")
            self._block_start({"index": index, "content_block": {"type": _BEGUN_BY[kind]}}, out)
            return self._blocks[index]
        return None

    def _block_of_input(self, document: JsonObject, out: _Out) -> _Block | None:
        """Those of a call of ours are for the tracker to place; a server tool's are of its block, if that is open."""
        last = self._takes_input
        if last is not None and last.kind == "tool_use":
            text = said_at(object_at(document, "delta"), "partial_json")
            self.calls.delta(out, index=("no block", str(document.get("index"))), arguments=text)
            return None
        return last if last in self._blocks.values() else None

    def _text_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := said_at(delta, "text"):
            out.append(TextDelta(text, block.ordinal))

    def _thinking_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := said_at(delta, "thinking"):
            block.size += len(text)
            out.append(ThinkingDelta(text, block.ordinal))

    def _signature_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        # llama.cpp and others send an empty one: it signs nothing.
        if signature := text_at(delta, "signature"):
            block.signed = True
            self._keep(block, content.Replay(self._origin, {"signature": signature}), out)

    def _keep(self, block: _Block, replay: content.Replay, out: _Out) -> None:
        """Say what must go back with a thought. llama.cpp signs and ends it behind the text that follows it."""
        is_late = block.size and block.ordinal + 1 < self._ordinal
        out.append(ReplayDelta(replay, block.ordinal) if is_late else ThinkingDelta("", block.ordinal, replay))

    def _citations_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        self._cite(block, [delta.get("citation")], out)

    def _cite(self, block: _Block, citations: Json, out: _Out) -> None:
        found = [each for each in citations if isinstance(each, dict) and each] if isinstance(citations, list) else []
        self.cite(out, map(server_blocks.citation_of, found), block.ordinal)

    def _input_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        text = said_at(delta, "partial_json")
        block.size += len(text)
        if block.kind == "tool_use":
            self.calls.delta(out, index=block.ordinal, arguments=text)
        elif block.size > MAX_ARGUMENT_BYTES:
            raise ValueError(f"the input of a {block.kind} block is longer than {MAX_ARGUMENT_BYTES} characters")
        else:
            # A server tool streams its input too; it is shown whole when its block ends, and is not our call (34).
            block.pieces.write(text)

    def _compaction_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        self.hold()
        block.start = {**block.start, **{key: value for key, value in delta.items() if key != "type"}}

    def _block_stop(self, document: JsonObject, out: _Out) -> None:
        index = document.get("index")
        if index not in self._blocks and self._blocks and "index" not in document:
            index = next(reversed(self._blocks))
        if (block := self._blocks.pop(index, None)) is not None:
            self._end_block(block, out)

    def _end_block(self, block: _Block, out: _Out) -> None:
        if block.kind == "tool_use":
            given = block.start.get("input")
            if given and not block.size:
                # Programmatic tool calling: the input comes with the start, and no delta after it (quirk 32).
                self.calls.delta(out, index=block.ordinal, arguments=given)
            self._complete_call(out)
            self._ended_call = block.ordinal
        elif block.kind == "thinking":
            self._mark_unsigned(block, out)
        elif block.kind not in _NO_TOOL_BLOCKS and (block.kind != "fallback" or "to" in block.start):
            # A `fallback` that names no model could not go back (the SDK's BetaFallbackBlockParam).
            shown = _shown_block(block, self._origin)
            out.append(shown)
            if server_blocks.is_call(block.start):
                self._pending.add(shown.call_id)
            else:
                self._pending.discard(shown.call_id)

    def _mark_unsigned(self, block: _Block, out: _Out) -> None:
        """Thinking without a signature is this server's own all the same: it goes back as it is, or a note says that it
        did not (quirk 73)."""
        if block.size and not block.signed:
            self._keep(block, content.Replay(self._origin, {}), out)

    def _complete_call(self, out: _Out) -> None:
        """More of the answer came, or its end and no cut: the call that ended last is as its model wrote it."""
        if (ended := self._ended_call) is not None:
            self._ended_call = None
            self.calls.complete(out, index=ended)
            self.calls.settle(out)

    _EVENTS: ClassVar[Mapping[str, Callable[[AnthropicDecoder, JsonObject, _Out], None]]] = {
        "message_start": _message_start,
        "content_block_start": _block_start,
        "content_block_delta": _block_delta,
        "content_block_stop": _block_stop,
        "message_delta": _message_delta,
        "message_stop": _message_stop,
        "error": BaseDecoder.fail_payload,
    }
    _DELTAS: ClassVar[Mapping[str, Callable[[AnthropicDecoder, _Block, JsonObject, _Out], None]]] = {
        "text_delta": _text_delta,
        "thinking_delta": _thinking_delta,
        "signature_delta": _signature_delta,
        "citations_delta": _citations_delta,
        "input_json_delta": _input_delta,
        "compaction_delta": _compaction_delta,
    }


def _shown_block(block: _Block, origin: str) -> model.ServerToolEvent:
    """The whole block of a server tool, as it must go back. A call that was cut off has no `input`, and stays here
    (quirk 64)."""
    text = block.pieces.getvalue()
    if not text.strip():
        return server_blocks.shown(block.start, origin)
    try:
        given = object_of(loads(text))
    except (ValueError, TypeError):
        cut = {key: value for key, value in block.start.items() if key != "input"}
        return replace(server_blocks.shown(cut, origin), text=text[: server_blocks.MAX_SHOWN_CHARS])
    return server_blocks.shown({**block.start, "input": given}, origin)


def _usage(raw: JsonObject) -> model.Usage | None:
    """Anthropic's input_tokens leave the cache out: the whole input is the sum of three (docs/wire.md 1.3).

    A compaction of the context is billed besides: "A `compaction` entry's tokens are not included in the top-level
    `usage` fields" (the SDK's BetaUsage.iterations).
    """
    iterations = raw.get("iterations")
    entries = [each for each in iterations if isinstance(each, dict)] if isinstance(iterations, list) else []
    billed = [raw, *(entry for entry in entries if entry.get("type") == "compaction")]

    def total(key: str, inside: str = "") -> int | None:
        holders = (fields_at(each, inside) if inside else each for each in billed)
        counts = [count for holder in holders if (count := count_at(holder, key)) is not None]
        return sum(counts) if counts else None

    read, written, fresh = (
        total(key) for key in ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
    )
    hour = total("ephemeral_1h_input_tokens", "cache_creation") or 0
    # The parts are newer than their sum, which some gateways leave out.
    written = max(written or 0, hour + (total("ephemeral_5m_input_tokens", "cache_creation") or 0))
    asked = (fresh or 0) + (read or 0) + written
    answered = total("output_tokens")
    return usage_of(
        # A prompt is never empty: 0 is a placeholder, and with 0 for the answer nothing was counted.
        input_tokens=asked or None,
        output_tokens=answered if asked or answered else None,
        cached_tokens=read,
        cache_write_tokens=written,
        cache_write_1h_tokens=hour,
        reasoning_tokens=count_at(fields_at(raw, "output_tokens_details"), "thinking_tokens"),
        web_searches=count_at(fields_at(raw, "server_tool_use"), "web_search_requests"),
    )

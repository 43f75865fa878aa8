"""Anthropic Messages: answers. Facts: docs/wire.md 1.3, quirks 31-39 and 57."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import StringIO
from typing import ClassVar, Final

from callboard.protocol.content import Replay
from callboard.protocol.limits import MAX_ARGUMENT_BYTES
from callboard.protocol.model import (
    Done,
    FinishReason,
    Restarted,
    ServerToolEvent,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from callboard.providers.base_decoder import (
    AnswerHead,
    BaseDecoder,
    count_at,
    fields_at,
    object_at,
    object_of,
    objects_at,
    text_at,
    text_of,
)
from callboard.providers.json_values import Json, JsonObject, loads

ORIGIN: Final = "anthropic"

_FINISH_REASONS: Final = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "pause_turn": FinishReason.PAUSE,
    "refusal": FinishReason.REFUSAL,
}
#: Blocks of which a client makes nothing: their kind is not one of a tool that the provider ran.
_IGNORED_BLOCKS: Final = frozenset({"fallback"})
_Out = list[StreamEvent]


@dataclass(slots=True)
class _Block:
    """A content block that is being streamed, under its `index`."""

    kind: str
    ordinal: int
    """Its place among all blocks of this stream; indexes may be sparse or start at 1 (quirk 6)."""
    start: JsonObject
    pieces: StringIO = field(default_factory=StringIO)
    """Of a server tool's input."""
    size: int = 0
    """Of its input, in characters."""


class AnthropicDecoder(BaseDecoder):
    """Events of the Messages API. A call is complete at its content_block_stop, and only there."""

    def __init__(self, head: AnswerHead) -> None:
        super().__init__(head)
        self._blocks: dict[Json, _Block] = {}
        self._ordinal = 0
        self._ids: set[str] = set()
        self._waiting: int | None = None
        """A call without any argument text has stopped: it has none, or the length limit cut them off. What comes next
        tells which."""
        self._started = False
        self._stop_reason = ""

    def on_json(self, event: str, document: JsonObject, out: _Out) -> None:
        # Proxies leave the event line out, or the type: whichever is there.
        kind = document.get("type")
        handler = self._EVENTS.get(kind if isinstance(kind, str) else event)
        if handler is not None:
            handler(self, document, out)

    def on_body(self, document: Json, out: _Out) -> None:
        document = object_of(document)
        if "content" not in document:
            raise KeyError("content")
        content = objects_at(document, "content")
        self._message_start({"message": {**document, "content": []}}, out)
        for index, block in enumerate(content):
            self._block_start({"index": index, "content_block": block}, out)
            last = index == len(content) - 1
            if last and self._cut and block["type"] == "tool_use":
                # Arguments that the length limit cut off look finished in a whole answer (quirk 57).
                self.calls.delta(out, index=self._blocks[index].ordinal, arguments=block.get("input"))
            else:
                self._block_stop({"index": index}, out)
        self._message_stop(document, out)

    def on_end(self, out: _Out, marked: bool) -> None:
        # Some proxies close with [DONE] in place of message_stop; a bare end of the body is a cut (quirk 23).
        if marked and self._stop_reason:
            self._message_stop({}, out)
        else:
            self.fail_truncated(out)

    @property
    def _cut(self) -> bool:
        return _FINISH_REASONS.get(self._stop_reason) is FinishReason.LENGTH

    def _message_start(self, document: JsonObject, out: _Out) -> None:
        message = object_at(document, "message")
        if self._started:
            # A proxy spliced a second answer in: the aborted one must not be run (quirk 37).
            self.calls.restart()
            self._blocks.clear()
            self._ids.clear()
            self._waiting = None
            self.usage.clear()
            self._stop_reason = ""
            out.append(Restarted("a second message_start"))
        self._started = True
        self.calls.seed = text_at(message, "id")
        self.model = text_at(message, "model")
        self._note_end(message, message)
        for index, block in enumerate(objects_at(message, "content")):
            # Newer servers may begin with whole blocks (quirk 68).
            self._block_start({"index": index, "content_block": block}, out)
            self._block_stop({"index": index}, out)

    def _block_start(self, document: JsonObject, out: _Out) -> None:
        start = object_of(document.get("content_block"))
        kind = text_of(start["type"])
        block = _Block(kind, self._ordinal, start)
        self._ordinal += 1
        self._blocks[document.get("index")] = block
        self.hold()
        self._complete_waiting(out)
        if kind == "tool_use":
            self._call_start(block, out)
        elif kind == "redacted_thinking":
            out.append(ThinkingDelta("", block.ordinal, Replay(ORIGIN, {"data": text_of(start["data"])})))
        elif kind == "text":
            self._text_delta(block, {"text": start.get("text")}, out)
        elif kind == "thinking":
            self._thinking_delta(block, {"thinking": start.get("thinking")}, out)
            if start.get("signature"):
                self._signature_delta(block, start, out)

    def _call_start(self, block: _Block, out: _Out) -> None:
        call_id, name = text_at(block.start, "id"), text_of(block.start["name"])
        # Each block is a call of its own, even where a proxy repeats an id.
        caller = object_at(block.start, "caller") or {"type": "direct"}
        # A call that the provider's own code execution makes must go back with its caller.
        replay = None if caller["type"] == "direct" else Replay(ORIGIN, {"caller": caller})
        sent_id = "" if call_id in self._ids else call_id
        self.calls.delta(out, index=block.ordinal, id=sent_id, name=name, replay=replay)
        self._ids.add(call_id)

    def _complete_waiting(self, out: _Out) -> None:
        if self._waiting is not None:
            self.calls.complete(out, index=self._waiting)
            self._waiting = None

    def _block_delta(self, document: JsonObject, out: _Out) -> None:
        block = self._blocks.get(document.get("index"))
        delta = object_at(document, "delta")
        handler = self._DELTAS.get(text_at(delta, "type"))
        if block is not None and handler is not None:
            handler(self, block, delta, out)

    def _text_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := text_at(delta, "text"):
            out.append(TextDelta(text, block.ordinal))

    def _thinking_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        if text := text_at(delta, "thinking"):
            out.append(ThinkingDelta(text, block.ordinal))

    def _signature_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        out.append(ThinkingDelta("", block.ordinal, Replay(ORIGIN, {"signature": text_of(delta["signature"])})))

    def _input_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        text = text_at(delta, "partial_json")
        block.size += len(text)
        if block.kind == "tool_use":
            self.calls.delta(out, index=block.ordinal, arguments=text)
        elif block.size > MAX_ARGUMENT_BYTES:
            raise ValueError(f"the input of a {block.kind} block is longer than {MAX_ARGUMENT_BYTES} characters")
        else:
            # A server tool streams its input too; it is shown whole when its block ends, and is no call of ours (34).
            block.pieces.write(text)

    def _compaction_delta(self, block: _Block, delta: JsonObject, out: _Out) -> None:
        self.hold()
        block.start = {**block.start, **{key: value for key, value in delta.items() if key != "type"}}

    def _block_stop(self, document: JsonObject, out: _Out) -> None:
        block = self._blocks.pop(document.get("index"), None)
        if block is None:
            return
        if block.kind == "tool_use":
            given = block.start.get("input")
            if given and not block.size:
                # Programmatic tool calling: the input comes with the start, and no delta after it (quirk 32).
                self.calls.delta(out, index=block.ordinal, arguments=given)
            self._waiting = block.ordinal
            if block.size or given:
                self._complete_waiting(out)
        elif block.kind not in _PROSE_BLOCKS:
            out.append(ServerToolEvent(block.kind, Replay(ORIGIN, _server_block(block))))

    def _message_delta(self, document: JsonObject, out: _Out) -> None:
        self._note_end(object_at(document, "delta"), document)

    def _note_end(self, delta: JsonObject, holder: JsonObject) -> None:
        # Cumulative, field by field: the last value that is no null wins, nothing is added up (quirk 36).
        usage = fields_at(holder, "usage")
        self.usage.update((key, value) for key, value in usage.items() if value is not None)
        self._stop_reason = text_at(delta, "stop_reason") or self._stop_reason

    def _message_stop(self, document: JsonObject, out: _Out) -> None:
        if not self._cut:
            self._complete_waiting(out)
        reason = _FINISH_REASONS.get(self._stop_reason, FinishReason.OTHER)
        if self.calls.count and reason in (FinishReason.STOP, FinishReason.OTHER):
            reason = FinishReason.TOOL_CALLS
        self.end(out, Done(reason, self._stop_reason, _usage(self.usage), dict(self.usage), self.model))

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
        "input_json_delta": _input_delta,
        "compaction_delta": _compaction_delta,
    }


_PROSE_BLOCKS: Final = frozenset({"text", "thinking", "redacted_thinking"}) | _IGNORED_BLOCKS


def _server_block(block: _Block) -> JsonObject:
    """The whole block of a server tool, as it must go back."""
    text = block.pieces.getvalue()
    try:
        return {**block.start, "input": loads(text)} if text else block.start
    except ValueError:
        return block.start  # cut off by the length limit: no reason to lose the answer around it (quirk 64)


def _usage(raw: JsonObject) -> Usage:
    """Anthropic's input_tokens leave the cache out: the whole input is the sum of three (docs/wire.md 1.3)."""
    read, written = count_at(raw, "cache_read_input_tokens"), count_at(raw, "cache_creation_input_tokens")
    return Usage(
        input_tokens=count_at(raw, "input_tokens") + read + written,
        output_tokens=count_at(raw, "output_tokens"),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count_at(fields_at(raw, "output_tokens_details"), "thinking_tokens"),
    )

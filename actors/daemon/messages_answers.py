"""Answers in the words of the Messages API (Anthropic, API reference, "Messages" and "Streaming messages").

`callboard` is our own field. A signature is that of a model of Anthropic's; thinking of others has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from callboard.actors.daemon.answer_pieces import CallPiece, Piece, TextPiece, ThinkingPiece
from callboard.actors.daemon.api_errors import Api, ApiError, error_body
from callboard.actors.daemon.server_events import server_event
from callboard.protocol.model import FinishReason, Usage

Block = dict[str, object]
STOP_REASONS: Final[Mapping[FinishReason, str]] = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.REFUSAL: "refusal",
}
#: Who calls: the model itself, not a program of its own.
_CALLER: Final[Mapping[str, object]] = {"caller": {"type": "direct"}}
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageStream:
    """One streamed answer: events from pieces, each block begun and ended."""

    def __init__(self, request_id: str, model: str) -> None:
        self._request_id, self._model = request_id, model
        self._open: tuple[object, ...] = ()
        """What tells the block that is open from the next; () where none is."""
        self._index = -1

    def begin(self) -> bytes:
        """The start of the message. How many tokens its input has is known at its end."""
        message = _message(self._request_id, self._model, [], None, Usage())
        return _event({"type": "message_start", "message": message}) + PING

    def write(self, piece: Piece) -> bytes:
        """A piece of the answer."""
        match piece:
            case TextPiece(text=text, turn=turn, block=block):
                begun = self._in_block(("text", turn, block), {"type": "text", "text": ""})
                return begun + self._delta({"type": "text_delta", "text": text})
            case ThinkingPiece(redacted=redacted, turn=turn, block=block) if redacted:
                return self._in_block(("redacted", turn, block), {"type": "redacted_thinking", "data": redacted})
            case ThinkingPiece(text=text, signature=signature, turn=turn, block=block):
                begun = self._in_block(("thinking", turn, block), {"type": "thinking", "thinking": "", "signature": ""})
                said = self._delta({"type": "thinking_delta", "thinking": text}) if text else b""
                signed = self._delta({"type": "signature_delta", "signature": signature}) if signature else b""
                return begun + said + signed
        call = piece.call
        start = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        begun = self._in_block(("tool_use", call.call_id), start)
        return begun + self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def end(self, reason: FinishReason, usage: Usage | None, about: Block) -> bytes:
        """From the end of the last block on. `about` is what callboard says of the request."""
        delta = {"stop_reason": STOP_REASONS.get(reason, "end_turn"), "stop_sequence": None}
        counted = message_usage(usage or Usage())
        last = {"type": "message_delta", "delta": delta, "usage": counted, "callboard": about}
        return self._close() + _event(last) + _event({"type": "message_stop"})

    def fail(self, error: ApiError) -> bytes:
        """The stream ends with an error."""
        return _event(error_body(Api.ANTHROPIC, error))

    def _in_block(self, key: tuple[object, ...], start: Mapping[str, object]) -> bytes:
        if key == self._open:
            return b""
        closed = self._close()
        self._open = key
        self._index += 1
        return closed + _event({"type": "content_block_start", "index": self._index, "content_block": start})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ()
        return _event({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: Mapping[str, object]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})


def whole_message(
    request_id: str, model: str, pieces: Sequence[Piece], reason: FinishReason, usage: Usage | None, about: Block
) -> Block:
    """A whole answer."""
    stop = STOP_REASONS.get(reason, "end_turn")
    content = [_block(piece) for piece in pieces]
    return {**_message(request_id, model, content, stop, usage or Usage()), "callboard": about}


def message_usage(usage: Usage) -> Block:
    """The usage object, of all model calls of the request. `input_tokens` is without what the cache held."""
    return {
        "input_tokens": max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0),
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": max(usage.cache_write_tokens - usage.cache_write_1h_tokens, 0),
            "ephemeral_1h_input_tokens": usage.cache_write_1h_tokens,
        },
        "server_tool_use": {"web_search_requests": usage.web_searches, "web_fetch_requests": 0},
        "service_tier": "standard",
        "inference_geo": None,
    }


def _message(request_id: str, model: str, content: list[Block], stop: str | None, usage: Usage) -> Block:
    return {
        "id": f"msg_{request_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": message_usage(usage),
    }


def _block(piece: Piece) -> Block:
    match piece:
        case TextPiece(text=text):
            # The API's own schema wants the field, and older providers of the Vercel AI SDK refuse null in it.
            return {"type": "text", "text": text, "citations": []}
        case ThinkingPiece(redacted=redacted) if redacted:
            return {"type": "redacted_thinking", "data": redacted}
        case ThinkingPiece(text=text, signature=signature):
            return {"type": "thinking", "thinking": text, "signature": signature}
        case CallPiece(call=call):
            arguments = orjson.loads(call.arguments)
            return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": arguments, **_CALLER}


def _event(document: Mapping[str, object]) -> bytes:
    return server_event(orjson.dumps(document), name=str(document["type"]))

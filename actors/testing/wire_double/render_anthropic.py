"""Anthropic Messages (docs/wire.md 1.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from callboard.actors.testing.wire_double.script import Fault, Tokens
from callboard.actors.testing.wire_double.wire_api import (
    SIGNATURE,
    Document,
    Event,
    ResolvedTurn,
    Said,
    Speaker,
    WireApi,
    objects_in,
    sse,
    user_said,
)
from callboard.protocol.model import FinishReason

_STOP_REASONS: Final = {
    FinishReason.STOP: "end_turn",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
}
_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class AnthropicApi(WireApi):
    """Blocks with an index, each begun and ended; the stop reason and the usage at the end."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        yield _event({"type": "message_start", "message": _message(turn, [], None, _opening_usage(turn.usage))})
        yield _event({"type": "ping"})
        index = itertools.count()
        if turn.thinking:
            deltas = ({"type": "thinking_delta", "thinking": piece} for piece in turn.thinking_pieces())
            signed = {"type": "signature_delta", "signature": SIGNATURE}
            yield from _block(next(index), {"type": "thinking", "thinking": "", "signature": ""}, deltas, signed)
        if turn.text:
            deltas = ({"type": "text_delta", "text": piece} for piece in turn.text_pieces())
            yield from _block(next(index), {"type": "text", "text": ""}, deltas)
        for call in turn.calls:
            pieces = ["", *turn.argument_pieces(call)]
            deltas = ({"type": "input_json_delta", "partial_json": piece} for piece in pieces)
            yield from _block(next(index), {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas)
        ended = {"stop_reason": _STOP_REASONS[turn.finish], "stop_sequence": None}
        usage = {"usage": _usage(turn.usage)} if turn.usage is not None else {}
        yield _event({"type": "message_delta", "delta": ended, **usage})
        yield _event({"type": "message_stop"})

    def whole(self, turn: ResolvedTurn) -> Document:
        content: list[Document] = []
        if turn.thinking:
            content.append({"type": "thinking", "thinking": turn.thinking, "signature": SIGNATURE})
        if turn.text:
            content.append({"type": "text", "text": turn.text})
        for call in turn.calls:
            # A whole answer has objects only: what was cut off looks empty there (docs/wire.md, quirk 57).
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.object() or {}})
        return _message(turn, content, _STOP_REASONS[turn.finish], turn.usage)

    def error(self, fault: Fault) -> Document:
        kind = _ERROR_TYPES.get(fault.status, "invalid_request_error" if fault.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": fault.message}, "request_id": "req_double"}

    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        return sse(self.error(fault), "error")

    def history(self, body: Document) -> Iterator[Said]:
        for message in objects_in(body.get("messages")):
            content = message.get("content")
            is_result = any(part.get("type") == "tool_result" for part in objects_in(content))
            if message.get("role") == "assistant":
                yield Said(Speaker.MODEL)
            elif message.get("role") == "user" and not is_result:
                yield user_said(content)
            else:
                yield Said(Speaker.OTHER)


def _block(index: int, start: Document, deltas: Iterable[Document], *closing: Document) -> Iterator[Event]:
    yield _event({"type": "content_block_start", "index": index, "content_block": start})
    for delta in deltas:
        yield _event({"type": "content_block_delta", "index": index, "delta": delta}, content=True)
    for delta in closing:
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _event({"type": "content_block_stop", "index": index})


def _event(document: Document, content: bool = False) -> Event:
    return Event(sse(document, document["type"]), content)


def _message(turn: ResolvedTurn, content: list[Document], reason: str | None, usage: Tokens | None) -> Document:
    message = {"id": turn.id("msg"), "type": "message", "role": "assistant", "model": turn.question.model}
    counted = {"usage": _usage(usage)} if usage is not None else {}
    return {**message, "content": content, "stop_reason": reason, "stop_sequence": None, **counted}


def _opening_usage(tokens: Tokens | None) -> Tokens | None:
    """A stream begins with the usage of the input; the output is counted at its end."""
    return None if tokens is None else Tokens(tokens.input, 0, tokens.cached, tokens.cache_write)


def _usage(tokens: Tokens) -> Document:
    return {
        "input_tokens": tokens.input - tokens.cached - tokens.cache_write,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": tokens.cache_write,
        "output_tokens": tokens.output,
        "output_tokens_details": {"thinking_tokens": tokens.reasoning},
    }

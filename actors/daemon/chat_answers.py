"""Answers in the words of Chat Completions (OpenAI, API reference, "The chat completion object", "... chunk").

Thinking is in `reasoning_content`, as DeepSeek and most compatible servers have it. `callboard` is our own field.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson

from callboard.actors.daemon.answer_pieces import CallPiece, Piece, TextPiece, ThinkingPiece
from callboard.actors.daemon.api_errors import Api, ApiError, error_body
from callboard.actors.daemon.server_events import server_event
from callboard.protocol.content import Citation
from callboard.protocol.model import FinishReason, Usage

Fields = dict[str, object]
FINISH_REASONS: Final[Mapping[FinishReason, str]] = {
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.REFUSAL: "content_filter",
}
#: Between what the model said before its tools ran here and what it said then.
BETWEEN_TURNS: Final = "\n\n"
DONE: Final = b"data: [DONE]\n\n"


class ChatStream:
    """One streamed answer: chunks from pieces."""

    def __init__(self, request_id: str, model: str, *, includes_usage: bool) -> None:
        self._head = _head(request_id, model, "chat.completion.chunk")
        self._includes_usage = includes_usage
        self._text_turn: int | None = None
        self._calls = 0

    def begin(self) -> bytes:
        """The first chunk."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def write(self, piece: Piece) -> bytes:
        """A piece of the answer."""
        match piece:
            case TextPiece(text=text, turn=turn):
                between = BETWEEN_TURNS if self._text_turn not in (None, turn) else ""
                self._text_turn = turn
                return self._chunk({"content": between + text})
            case ThinkingPiece(text=text):
                return self._chunk({"reasoning_content": text}) if text else b""
        index, self._calls = self._calls, self._calls + 1
        return self._chunk({"tool_calls": [{"index": index, **_call(piece)}]})

    def end(self, reason: FinishReason, usage: Usage | None, about: Fields) -> bytes:
        """From the finish reason to the end. `about` is what callboard says of the request."""
        finish = FINISH_REASONS.get(reason, "stop")
        last = self._chunk({}, finish, callboard=about)
        if self._includes_usage:
            counted = None if usage is None else chat_usage(usage)
            last += server_event(orjson.dumps({**self._head, "choices": [], "usage": counted}))
        return last + DONE

    def fail(self, error: ApiError) -> bytes:
        """The stream ends with an error."""
        return server_event(orjson.dumps(error_body(Api.OPENAI, error))) + DONE

    def _chunk(self, delta: Fields, finish: str | None = None, **more: object) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        counted = {"usage": None} if self._includes_usage else {}
        return server_event(orjson.dumps({**self._head, "choices": [choice], **counted, **more}))


def whole_chat(
    request_id: str,
    model: str,
    pieces: Sequence[Piece],
    reason: FinishReason,
    usage: Usage | None,
    about: Fields,
    citations: Iterable[Citation] = (),
) -> Fields:
    """A whole answer. The places of `citations` are in its text."""
    text, thinking = joined_text(pieces), "".join(p.text for p in pieces if isinstance(p, ThinkingPiece))
    calls: list[Fields] = [_call(piece) for piece in pieces if isinstance(piece, CallPiece)]
    message: Fields = {
        "role": "assistant",
        "content": text or (None if calls else ""),
        "refusal": None,
        "annotations": [_annotation(each) for each in citations if each.url],
    }
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = calls
    finish = FINISH_REASONS.get(reason, "stop")
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    counted: Fields = {} if usage is None else {"usage": chat_usage(usage)}
    return {**_head(request_id, model, "chat.completion"), "choices": [choice], **counted, "callboard": about}


def joined_text(pieces: Iterable[Piece]) -> str:
    """All text, turns apart by an empty line, as a stream has it."""
    found, last = "", None
    for piece in pieces:
        if isinstance(piece, TextPiece):
            found += (BETWEEN_TURNS if last not in (None, piece.turn) else "") + piece.text
            last = piece.turn
    return found


def chat_usage(usage: Usage) -> Fields:
    """The usage object, of all model calls of the request."""
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": usage.input_audio_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": usage.output_audio_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _head(request_id: str, model: str, kind: str) -> Fields:
    return {"id": f"chatcmpl-{request_id}", "object": kind, "created": int(time.time()), "model": model}


def _call(piece: CallPiece) -> Fields:
    call = piece.call
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _annotation(citation: Citation) -> Fields:
    found = {"url": citation.url, "title": citation.title, "start_index": citation.start, "end_index": citation.end}
    known = {name: value for name, value in found.items() if value is not None}
    return {"type": "url_citation", "url_citation": {"start_index": 0, "end_index": 0, **known}}

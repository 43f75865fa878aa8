"""Gemini generateContent and streamGenerateContent (docs/wire.md 1.4)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from callboard.actors.testing.wire_double.script import Fault, Tokens
from callboard.actors.testing.wire_double.wire_api import (
    SIGNATURE,
    Document,
    Event,
    Question,
    ResolvedCall,
    ResolvedTurn,
    Said,
    Speaker,
    WireApi,
    objects_in,
    sse,
    user_said,
)
from callboard.protocol.model import FinishReason

_FINISH_REASONS: Final = {
    FinishReason.STOP: "STOP",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.CONTENT_FILTER: "SAFETY",
}
#: The finish reason for a call that the model wrote wrongly; the call itself is left out.
_MALFORMED: Final = "MALFORMED_FUNCTION_CALL"
_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_PATH: Final = re.compile(r"models/([^/:]+):(\w+)")
_CRLF: Final = b"\r\n"


class GeminiApi(WireApi):
    """Whole calls, the usage on every chunk, and no mark at the end. Without alt=sse a stream is one JSON array."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        if not turn.question.as_array:
            for document, content in self._chunks(turn):
                yield Event(sse(document, newline=_CRLF), content)
            return
        for number, (document, content) in enumerate(self._chunks(turn)):
            yield Event((b",\r\n" if number else b"[") + orjson.dumps(document), content)
        yield Event(b"\n]\n")

    def _chunks(self, turn: ResolvedTurn) -> Iterator[tuple[Document, bool]]:
        for piece in turn.thinking_pieces():
            yield _chunk(turn, {"text": piece, "thought": True}), True
        for piece in turn.text_pieces():
            yield _chunk(turn, {"text": piece}), True
        for part in _call_parts(turn):
            yield _chunk(turn, part), True
        yield _chunk(turn, {"text": ""}, finishReason=_finish(turn)), False

    def whole(self, turn: ResolvedTurn) -> Document:
        parts: list[Document] = [{"text": turn.thinking, "thought": True}] if turn.thinking else []
        if turn.text:
            parts.append({"text": turn.text})
        return _chunk(turn, *parts, *_call_parts(turn), finishReason=_finish(turn))

    def error(self, fault: Fault) -> Document:
        status = _STATUSES.get(fault.status, "INVALID_ARGUMENT" if fault.status < 500 else "UNKNOWN")
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{fault.retry_after or 0:g}s"}
        details = [retry] if fault.retry_after is not None else []
        return {"error": {"code": fault.status, "message": fault.message, "status": status, "details": details}}

    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        if turn.question.as_array:
            return b",\r\n" + orjson.dumps(self.error(fault)) + b"\n]\n"
        return sse(self.error(fault), newline=_CRLF)

    def history(self, body: Document) -> Iterator[Said]:
        contents = body.get("contents")
        for content in [contents] if isinstance(contents, dict) else objects_in(contents):
            yield _said(content)

    def stream_type(self, question: Question) -> str:
        return "application/json" if question.as_array else super().stream_type(question)

    def question(self, body: Document, path: str, number: int) -> Question:
        found = _PATH.search(path)
        model, method = (found[1], found[2]) if found else ("", "")
        streamed = method == "streamGenerateContent"
        return Question(model, number, streamed, as_array=streamed and "alt=sse" not in path)


def _said(content: Document) -> Said:
    parts = objects_in(content.get("parts"))
    if content.get("role") == "model":
        return Said(Speaker.MODEL)
    if any("functionResponse" in part or "function_response" in part for part in parts):
        return Said(Speaker.OTHER)
    return user_said(parts)


def _chunk(turn: ResolvedTurn, *parts: Document, **more: Any) -> Document:
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
    usage = {"usageMetadata": _usage(turn.usage)} if turn.usage is not None else {}
    return {"candidates": [candidate], **usage, "modelVersion": turn.question.model, "responseId": turn.id("response")}


def _call_parts(turn: ResolvedTurn) -> Iterator[Document]:
    """One part a call; the first one is signed. A call that was cut off has incomplete arguments."""
    signed: Document = {"thoughtSignature": SIGNATURE}
    for call in turn.calls:
        function = _function_call(call)
        if function is not None:
            yield {"functionCall": function, **signed}
            signed = {}


def _function_call(call: ResolvedCall) -> Document | None:
    """None where the arguments are not a JSON object: this API cannot carry them."""
    # Google leaves the ids out of most answers.
    head: Document = {"id": call.given_id, "name": call.name} if call.given_id else {"name": call.name}
    if not call.whole:
        piece = {"jsonPath": "$.cut_off", "stringValue": call.arguments, "willContinue": True}
        return {**head, "partialArgs": [piece], "willContinue": True}
    arguments = call.object()
    return None if arguments is None else {**head, "args": arguments}


def _finish(turn: ResolvedTurn) -> str:
    malformed = any(call.whole and call.object() is None for call in turn.calls)
    return _MALFORMED if malformed else _FINISH_REASONS[turn.finish]


def _usage(tokens: Tokens) -> Document:
    return {
        "promptTokenCount": tokens.input,
        "cachedContentTokenCount": tokens.cached,
        "candidatesTokenCount": tokens.output - tokens.reasoning,
        "thoughtsTokenCount": tokens.reasoning,
        "totalTokenCount": tokens.input + tokens.output,
    }

"""OpenAI Responses (docs/wire.md 1.2)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any, Final

from callboard.actors.testing.wire_double.render_chat import openai_error
from callboard.actors.testing.wire_double.script import Fault, Tokens
from callboard.actors.testing.wire_double.wire_api import (
    CREATED,
    SIGNATURE,
    Document,
    Event,
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

_INCOMPLETE: Final = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
}
#: The items that a model writes.
_MODEL_ITEMS: Final = frozenset({"function_call", "reasoning", "item_reference"})
_RESPONSE_ID: Final = re.compile(r"resp_(\d+)")

Numbered = tuple[str, Document, bool]
"""(event type, its fields, does it carry content?)"""


class ResponsesApi(WireApi):
    """Every item is begun, told in pieces, told whole and ended; the last event repeats the whole response."""

    def events(self, turn: ResolvedTurn) -> Iterator[Event]:
        for number, (kind, fields, content) in enumerate(self._numbered(turn)):
            document = {"type": kind, "sequence_number": number, **fields}
            yield Event(sse(document, kind), content)

    def _numbered(self, turn: ResolvedTurn) -> Iterator[Numbered]:
        begun = self._response(turn, "in_progress", [])
        yield "response.created", {"response": begun}, False
        yield "response.in_progress", {"response": begun}, False
        index = itertools.count()
        if turn.thinking:
            yield from self._reasoning(turn, next(index))
        if turn.text:
            yield from self._message(turn, next(index))
        for call in turn.calls:
            yield from self._call(turn, call, next(index))
        whole = self.whole(turn)
        yield f"response.{whole['status']}", {"response": whole}, False

    def _reasoning(self, turn: ResolvedTurn, index: int) -> Iterator[Numbered]:
        place = {"item_id": turn.id("rs"), "output_index": index, "summary_index": 0}
        item = _reasoning_item(turn)
        yield "response.output_item.added", {"output_index": index, "item": {**item, "summary": []}}, False
        part = {"type": "summary_text", "text": ""}
        yield "response.reasoning_summary_part.added", {**place, "part": part}, False
        for piece in turn.thinking_pieces():
            yield "response.reasoning_summary_text.delta", {**place, "delta": piece}, True
        yield "response.reasoning_summary_text.done", {**place, "text": turn.thinking}, False
        yield "response.reasoning_summary_part.done", {**place, "part": {**part, "text": turn.thinking}}, False
        yield "response.output_item.done", {"output_index": index, "item": item}, False

    def _message(self, turn: ResolvedTurn, index: int) -> Iterator[Numbered]:
        place = {"item_id": turn.id("msg"), "output_index": index, "content_index": 0}
        item = _message_item(turn)
        (part,) = item["content"]
        begun = {**item, "content": [], "status": "in_progress"}
        yield "response.output_item.added", {"output_index": index, "item": begun}, False
        yield "response.content_part.added", {**place, "part": {**part, "text": ""}}, False
        for piece in turn.text_pieces():
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}, True
        yield "response.output_text.done", {**place, "text": turn.text, "logprobs": []}, False
        yield "response.content_part.done", {**place, "part": part}, False
        yield "response.output_item.done", {"output_index": index, "item": item}, False

    def _call(self, turn: ResolvedTurn, call: ResolvedCall, index: int) -> Iterator[Numbered]:
        item = _call_item(call)
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield "response.output_item.added", {"output_index": index, "item": begun}, True
        for piece in turn.argument_pieces(call):
            yield "response.function_call_arguments.delta", {**place, "delta": piece}, True
        ended = {**place, "name": call.name, "arguments": call.arguments}
        yield "response.function_call_arguments.done", ended, False
        yield "response.output_item.done", {"output_index": index, "item": item}, False

    def whole(self, turn: ResolvedTurn) -> Document:
        output = [_reasoning_item(turn)] if turn.thinking else []
        if turn.text:
            output.append(_message_item(turn))
        output += [_call_item(call) for call in turn.calls]
        why = _INCOMPLETE.get(turn.finish)
        response = self._response(turn, "incomplete" if why else "completed", output)
        return {**response, "incomplete_details": {"reason": why} if why else None, "usage": _usage(turn.usage)}

    def _response(self, turn: ResolvedTurn, status: str, output: list[Document]) -> Document:
        return {
            "id": turn.id("resp"),
            "object": "response",
            "created_at": CREATED,
            "model": turn.question.model,
            "status": status,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }

    def error(self, fault: Fault) -> Document:
        return {"error": openai_error(fault)}

    def stream_error(self, fault: Fault, turn: ResolvedTurn) -> bytes:
        error = openai_error(fault)
        code = error["code"] or error["type"]
        failed = {**self._response(turn, "failed", []), "error": {"code": code, "message": fault.message}}
        # Numbers behind any that the events before can have had.
        told = {"type": "error", "sequence_number": 1_000_000, "error": error}
        ended = {"type": "response.failed", "sequence_number": 1_000_001, "response": failed}
        return sse(told, "error") + sse(ended, "response.failed")

    def history(self, body: Document) -> Iterator[Said]:
        given = body.get("input")
        for item in [{"role": "user", "content": given}] if isinstance(given, str) else objects_in(given):
            yield _said(item)

    def turns_before(self, body: Document) -> int:
        # With previous_response_id only what is new is sent; our ids tell which answer they belong to.
        found = _RESPONSE_ID.match(str(body.get("previous_response_id")))
        return int(found[1]) + 1 if found else 0


def _said(item: Document) -> Said:
    role = item.get("role")
    if role == "user":
        return user_said(item.get("content"))
    return Said(Speaker.MODEL if role == "assistant" or item.get("type") in _MODEL_ITEMS else Speaker.OTHER)


def _reasoning_item(turn: ResolvedTurn) -> Document:
    summary = [{"type": "summary_text", "text": turn.thinking}]
    return {"id": turn.id("rs"), "type": "reasoning", "summary": summary, "encrypted_content": SIGNATURE}


def _message_item(turn: ResolvedTurn) -> Document:
    cut = turn.finish in _INCOMPLETE and not turn.calls
    part: dict[str, Any] = {"type": "output_text", "text": turn.text, "annotations": [], "logprobs": []}
    status = "incomplete" if cut else "completed"
    return {"id": turn.id("msg"), "type": "message", "role": "assistant", "status": status, "content": [part]}


def _call_item(call: ResolvedCall) -> Document:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed" if call.whole else "incomplete",
    }


def _usage(tokens: Tokens | None) -> Document | None:
    if tokens is None:
        return None
    return {
        "input_tokens": tokens.input,
        "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": tokens.cache_write},
        "output_tokens": tokens.output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": tokens.input + tokens.output,
    }

"""Answers that are none: an Error of a kind, with a snippet, and bounded work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wire import answer, events, sse

from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_CALLS_PER_STEP
from callboard.protocol.model import Error, ToolCallStart
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses

ADAPTERS: dict[str, Adapter] = {"anthropic": Anthropic(), "responses": OpenAIResponses(), "gemini": Gemini()}


def one_call(api: str, number: int, arguments: Any = None) -> dict[str, Any]:
    """The event that begins (for Gemini: tells) one call."""
    if api == "anthropic":
        block = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": arguments or {}}
        return {"type": "content_block_start", "index": number, "content_block": block}
    if api == "responses":
        item = {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": json.dumps(arguments)}
        return {"type": "response.output_item.done", "output_index": number, "item": item}
    part = {"functionCall": {"name": "f", "args": arguments or {}}}
    return {"candidates": [{"content": {"parts": [part]}}]}


BODIES = {
    "garbage": (b"\x00\xff\xfe\x80garbage", {ErrorKind.MALFORMED}),
    "empty": (b"", {ErrorKind.TRUNCATED}),
    "blank": (b" \r\n\r\n", {ErrorKind.TRUNCATED}),
    "html": (b"<!DOCTYPE html><html>Sign in</html>", {ErrorKind.MALFORMED}),
    "half a document": (b'{"type": "message", "content": [', {ErrorKind.MALFORMED}),
    "half an event": (b'data: {"type": "message_st', {ErrorKind.TRUNCATED}),
    "a list for an event": (b"data: [1]\n\n", {ErrorKind.MALFORMED}),
    "plain text": (b"upstream connect error", {ErrorKind.MALFORMED}),
    "a string": (b'"unexpected"', {ErrorKind.MALFORMED}),
    "half an array": (b'[{"candidates": [', {ErrorKind.MALFORMED, ErrorKind.TRUNCATED}),
}


@pytest.mark.parametrize("api", ADAPTERS)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("content_type", ["text/event-stream", "text/html", ""])
def test_bodies_that_are_no_answers(api: str, name: str, content_type: str) -> None:
    data, kinds = BODIES[name]
    (found,) = events(ADAPTERS[api], data, [3], headers={"content-type": content_type})
    assert isinstance(found, Error)
    assert found.kind in kinds
    assert len(found.raw) <= ERROR_SNIPPET_CHARS


@pytest.mark.parametrize("api", ADAPTERS)
def test_ten_thousand_calls_in_one_turn(api: str) -> None:
    found = events(ADAPTERS[api], sse(one_call(api, number) for number in range(10_000)))
    assert sum(isinstance(event, ToolCallStart) for event in found) <= MAX_CALLS_PER_STEP
    assert isinstance(found[-1], Error)
    assert found[-1].kind is ErrorKind.MALFORMED


@pytest.mark.parametrize("api", ADAPTERS)
@pytest.mark.parametrize("depth", [200, 5_000])
def test_arguments_nested_deep(api: str, depth: int) -> None:
    deep: Any = json.dumps(one_call(api, 0, {"a": "DEEP"})).replace('\\"DEEP\\"', "DEEP").replace('"DEEP"', "DEEP")
    data = f"data: {deep.replace('DEEP', '[' * depth + ']' * depth)}\n\n".encode()
    turn = answer(ADAPTERS[api], data)
    assert turn.error is not None
    assert turn.error.kind in (ErrorKind.MALFORMED, ErrorKind.TRUNCATED)


@pytest.mark.parametrize("api", ADAPTERS)
def test_a_line_without_end(api: str) -> None:
    decoder = ADAPTERS[api].decoder()
    chunk = b"x" * (8 * 1024 * 1024)
    found = decoder.feed(b"data: ")
    for _ in range(9):
        found += decoder.feed(chunk)
    (error,) = found
    assert isinstance(error, Error)
    assert error.kind is ErrorKind.MALFORMED
    assert decoder.finish() == []


@pytest.mark.parametrize("api", ADAPTERS)
def test_half_of_a_surrogate_pair_does_not_lose_the_answer(api: str) -> None:
    texts = {
        "anthropic": {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "A\ud83d"}},
        "responses": {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "A\ud83d"},
        "gemini": {"candidates": [{"content": {"parts": [{"text": "A\ud83d"}]}}]},
    }
    data = b"data: " + json.dumps(texts[api]).encode() + b"\n\n"
    assert answer(ADAPTERS[api], data).text == "A\ufffd"

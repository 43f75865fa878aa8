"""Answers that are none: an Error of a kind, with a snippet, and bounded work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer, events, sse

from callboard.protocol.errors import KINDS_OF_ERRORS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_CALLS_PER_STEP
from callboard.protocol.model import Error, ToolCallStart
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
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


def gemini(text: str, reason: str = "STOP") -> bytes:
    """Vertex and older models tell a reason in each chunk, the first one too."""
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "finishReason": reason}
    return sse([{"candidates": [candidate]}], newline="\r\n")


def chat(text: str, reason: str | None = None, done: bool = False) -> bytes:
    return sse([{"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}], done=done)


BEGUN = sse([{"type": "message_start", "message": {"id": "m", "model": "m", "usage": {}}}], named=True)
CREATED = sse([{"type": "response.created", "response": {"id": "r"}}])
#: As Vertex writes it in the middle of a stream: without `data:`, over several lines.
EXHAUSTED = json.dumps(
    {"error": {"code": 429, "message": "Resource exhausted.", "status": "RESOURCE_EXHAUSTED"}}, indent=2
)
PAGE = "<html>\n<head><title>502 Bad Gateway</title></head>\n<body>\n<h1>502 Bad Gateway</h1>\n</body>\n</html>\n"
K = ErrorKind
CHAT = OpenAIChat()
#: (the API, what it streamed, the kind, words that the message has). Sources: a recorded stream of Vertex; litellm
#: 4500 (the same); MiniMax's errorcode page; FastAPI's `detail`; Envoy's, nginx's and slowapi's own pages and words.
OUTSIDE: list[tuple[Adapter, bytes, ErrorKind, str]] = [
    (Gemini(), gemini("Hel") + EXHAUSTED.encode(), K.RATE_LIMITED, "Resource exhausted."),
    (Gemini(), gemini("Hel") + EXHAUSTED.replace("\n", "\r\n").encode() + b"\r\n\r\n", K.RATE_LIMITED, "Resource"),
    (Gemini(), gemini("Hel") + b"[" + EXHAUSTED.encode() + b"\n]\n", K.RATE_LIMITED, "Resource exhausted."),
    (Gemini(), gemini("Hel") + PAGE.encode(), K.SERVER, "502 Bad Gateway"),
    (Gemini(), gemini("Hel") + b"upstream connect error or disconnect/reset before headers", K.SERVER, "upstream"),
    (Gemini(), gemini("Hel") + b"The worker is gone.\n", K.TRUNCATED, "The worker is gone."),
    (Gemini(), gemini("Hel") + b'event: error\ndata: {"code": 503, "message": "busy"}\n\n', K.OVERLOADED, "busy"),
    (CHAT, chat("Hel") + b'{"error": {"message": "m", "code": "rate_limit_exceeded"}}\n\n', K.RATE_LIMITED, "m"),
    (CHAT, chat("Hel") + b'{"detail": "Too Many Requests"}\n' + chat("lo", "stop", True), K.RATE_LIMITED, "Too Many"),
    (CHAT, chat("Hel") + PAGE.encode(), K.SERVER, "502 Bad Gateway"),
    (CHAT, chat("Hel") + b"Error: the worker died\n", K.TRUNCATED, "Error: the worker died"),
    (CHAT, chat("Hel", "stop") + b"The worker is gone.\n", K.TRUNCATED, "The worker is gone."),
    (CHAT, chat("Hel") + b"event: error\ndata: Overloaded, retry after 3 seconds\n\n", K.OVERLOADED, "retry after"),
    (CHAT, chat("Hel") + b"event: error\ndata: it is odd\n\n", K.OTHER, "it is odd"),
    (CHAT, chat("Hel") + b"data: Internal Server Error\n\n", K.SERVER, "Internal Server Error"),
    (CHAT, chat("Hel") + b"data: it is odd\n\n", K.MALFORMED, "it is odd"),
    (CHAT, chat("Hel") + b'data: {"message": "the worker died"}\n\n', K.TRUNCATED, "the worker died"),
    (CHAT, sse([{"status_code": 429, "message": "slower"}]), K.RATE_LIMITED, "slower"),
    (CHAT, b'{"error_code":336003,"error_msg":"the max input length is 11200"}', K.OTHER, "the max input length"),
    (CHAT, sse([{"errorCode": 1, "error_code": 5, "errorMessage": "no such thing"}]), K.OTHER, "no such thing"),
    (CHAT, sse([{"detail": "Invalid API key"}]), K.AUTHENTICATION, "Invalid API key"),
    (CHAT, sse([{"detail": [{"loc": ["body", "n"], "msg": "too small"}]}]), K.INVALID_REQUEST, "body.n: too small"),
    (CHAT, sse([{"id": "1", "choices": None, "base_resp": {"status_code": 1008, "status_msg": "no money"}}]), K.BILLING,
     "no money"),
    (CHAT, b'{"id":"1","choices":null,"base_resp":{"status_code":1039,"status_msg":"token limit"}}', K.RATE_LIMITED,
     "token limit"),
    (CHAT, b'{"detail": "Model not found"}', K.NOT_FOUND, "Model not found"),
    (CHAT, b'{"code": 20015, "message": "length 3", "data": null}', K.OTHER, "length 3"),
    (Anthropic(), BEGUN + b'{"type":"error","error":{"type":"overloaded_error","message":"m"}}\n\n', K.OVERLOADED, "m"),
    (Anthropic(), BEGUN + b"event: error\ndata: Internal server error\n\n", K.SERVER, "Internal server error"),
    (Anthropic(), BEGUN + sse([{"base_resp": {"status_code": 2056, "status_msg": "spent"}}]), K.QUOTA_SPENT, "spent"),
    (Anthropic(), BEGUN + sse([{"error": {"type": "api_error", "message": "m"}}]), K.SERVER, "m"),
    (OpenAIResponses(), CREATED + b'{"detail":"Rate limit exceeded"}\n', K.RATE_LIMITED, "Rate limit exceeded"),
    (OpenAIResponses(), CREATED + b"event: error\ndata: service unavailable\n\n", K.OVERLOADED, "service unavailable"),
    (OpenAIResponses(), CREATED + PAGE.encode(), K.SERVER, "502 Bad Gateway"),
]  # fmt: skip


@pytest.mark.parametrize("sizes", [(65536,), (1,), (7, 3)], ids=["whole", "bytes", "cut"])
@pytest.mark.parametrize("case", range(len(OUTSIDE)))
def test_whatever_stands_in_a_stream_outside_the_format_is_an_error_with_its_words(
    case: int, sizes: tuple[int, ...]
) -> None:
    adapter, data, kind, words = OUTSIDE[case]
    error = events(adapter, data, sizes)[-1]
    assert isinstance(error, Error)
    assert (error.kind, error.retryable) == (kind, KINDS_OF_ERRORS[kind].is_retried)
    assert words in error.message
    assert words.rpartition(": ")[2] in error.raw


@pytest.mark.parametrize("sizes", [(65536,), (1,), (7, 3)], ids=["whole", "bytes", "cut"])
@pytest.mark.parametrize(
    "harmless",
    [
        b": ping\n\n", b"event: progress\nid: 7\nretry: 5\n\n", b"nonsense: 1\n\n", b" data: a\n", b"\n\n\n", b"5c\n",
        b"ping\n",
        b"data: : keepalive\n\n", b'data: {"type": "ping"}\n\n', b'event: status\ndata: {"message": "Searching"}\n\n',
        b'data: {"choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}}\n\n',
    ],
)  # fmt: skip
def test_what_a_stream_may_have_is_no_error(harmless: bytes, sizes: tuple[int, ...]) -> None:
    turn = answer(CHAT, chat("Hel") + harmless + chat("lo", "stop"), sizes)
    assert (turn.text, turn.error, turn.notes) == ("Hello", None, ())


def test_text_in_an_answer_that_its_server_calls_whole_is_told_in_a_note() -> None:
    """A PHP warning before the first event (seen of gateways), and [DONE] behind the last: nothing is missing."""
    turn = answer(CHAT, chat("Hel") + b"<b>Warning</b>: headers already sent\n" + chat("lo", "stop", done=True))
    assert (turn.text, turn.error) == ("Hello", None)
    assert turn.notes == ("the stream held text outside its format: <b>Warning</b>: headers already sent",)


@pytest.mark.parametrize("line", [b"x y\n", b"{\n", b"}\n", b'{"a": 1}\n', b"[", b"<a>", b"n: 1\n"])
def test_text_without_end_outside_the_format_is_bounded_work(line: bytes) -> None:
    decoder = CHAT.decoder()
    found = decoder.feed(chat("Hel"))
    for _ in range(3_000):
        found += decoder.feed(line)
    found += decoder.feed(line * 1_000_000)
    error = (found + decoder.finish())[-1]
    assert isinstance(error, Error)
    assert len(error.raw) <= ERROR_SNIPPET_CHARS


#: Lines of a stream and lines that are none, so that they meet in every order.
LINES = [
    *(chat("a"), chat("b", "stop"), chat("c", "stop", True), b": ping\n", b"event: x\n", b"\n", b"n: 1\n"),
    *(b"Oops, it fell\n", b"Error: no\n", b'{"detail": "no"}\n', b"]\n", b"[\n", PAGE.encode()),
    *(b"{\n", b'  "error": {"message": "m", "code": 429}\n', b"}\n"),
    *(b"event: error\ndata: plain words\n\n", b'data: {"code": 503, "message": "busy"}\n\n', b"data: : ping\n\n"),
]  # fmt: skip


@given(st.lists(st.sampled_from(LINES), max_size=12), st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_where_words_stand_outside_the_format_counts_and_not_how_the_bytes_are_cut(
    lines: list[bytes], sizes: list[int]
) -> None:
    data = b"".join([chat("begun"), *lines])
    assert events(CHAT, data, sizes)[-1] == events(CHAT, data)[-1]

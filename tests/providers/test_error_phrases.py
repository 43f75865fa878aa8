"""What servers say in words alone, with the bytes of their own errors: a context that is too long, no tools here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer, events, sse

from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Error
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.error_phrases import kind_of_phrase
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.http_errors import by_status, error_from_body, error_from_payload
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses

K = ErrorKind


def openai(message: str, code: object = None, kind: str = "invalid_request_error", **more: object) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


def gemini(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


def anthropic(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


def mistral(message: str, code: object) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": "invalid_request_error", "param": None, "code": code}


def routed(raw: object, message: str = "Provider returned error", code: int = 400) -> dict[str, Any]:
    return {"error": {"message": message, "code": code, "metadata": {"raw": raw, "provider_name": "Anthropic"}}}


TOO_LONG = "prompt is too long: 209353 tokens > 200000 maximum"
OPENAI_WORDS = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. Please reduce "
    "the length of the messages."
)


def recorded(name: str) -> list[dict[str, Any]]:
    """Errors of servers, one a line: of which server, the HTTP status (200 inside a stream), the body."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['server']}-{number}" for number, row in enumerate(rows)]


#: With the window that the body names.
OVERFLOWS = recorded("context_too_long.jsonl")
NO_TOOLS = recorded("no_tools_here.jsonl")
NO_SCHEMA = recorded("no_schema_here.jsonl")


@pytest.mark.parametrize("row", OVERFLOWS, ids=ids(OVERFLOWS))
def test_quirk_77_a_context_that_is_too_long_is_one_kind_for_all(row: dict[str, Any]) -> None:
    body = b"" if row["body"] is None else orjson.dumps(row["body"])
    error = error_from_body(row["server"], row["status"], {}, body)
    assert (error.kind, error.context_tokens, error.retryable) == (K.CONTEXT_LENGTH, row["window"], False)


@pytest.mark.parametrize("row", NO_SCHEMA, ids=ids(NO_SCHEMA))
def test_every_servers_way_to_say_that_it_takes_no_schema_of_the_answer(row: dict[str, Any]) -> None:
    error = error_from_payload(row["server"], row["body"], row["status"])
    assert (error.kind, error.retryable) == (K.SCHEMA_UNSUPPORTED, False)
    assert by_status(error).kind is K.INVALID_REQUEST  # of a request that had none, it is about something else


@pytest.mark.parametrize(
    "message",
    [
        "the prompt quotes: Invalid schema for response_format 'x'",
        "Invalid value for response: no schema",
        "This model does not support image input",
        "Failed to parse the file",
    ],
)
def test_a_message_about_something_else_is_not_about_a_schema(message: str) -> None:
    assert error_from_payload("openai-chat", openai(message), 400).kind is not K.SCHEMA_UNSUPPORTED


@pytest.mark.parametrize("row", NO_TOOLS, ids=ids(NO_TOOLS))
def test_quirk_79_every_servers_way_to_say_that_it_takes_no_tools(row: dict[str, Any]) -> None:
    error = error_from_payload(row["server"], row["body"], row["status"])
    assert (error.kind, error.retryable) == (K.TOOLS_UNSUPPORTED, False)


def test_quirk_79_without_tools_the_refused_parameters_are_others() -> None:
    said = {"error": {"message": "No endpoints found that can handle the requested parameters.", "code": 404}}
    assert by_status(error_from_payload("openrouter", said, 404)).kind is K.NOT_FOUND
    assert error_from_payload("vllm", said, 404).kind is K.NOT_FOUND, "no other server says it"
    other = error_from_payload("openai", openai("m"), 400)
    assert by_status(other) == other


@pytest.mark.parametrize(
    ("message", "status", "kind"),
    [
        # A message that quotes what somebody else said, at any place but its start.
        (f"Invalid value for 'messages[3].content': '{TOO_LONG}'", 400, K.INVALID_REQUEST),
        (f"the tool said: {TOO_LONG}", 400, K.INVALID_REQUEST),
        (f"Could not parse the user's text: {OPENAI_WORDS}", 400, K.INVALID_REQUEST),
        ("this text does not support tools", 400, K.INVALID_REQUEST),
        ("the user wrote that the model does not support tools", 400, K.INVALID_REQUEST),
        ("Prompt is too long, he said", 400, K.INVALID_REQUEST),
        ("The input is too long for this field", 400, K.INVALID_REQUEST),
        ("max_tokens is too large: 5000. This model supports at most 4096 completion tokens", 400, K.INVALID_REQUEST),
        ("Image input is not enabled for this model", 400, K.INVALID_REQUEST),
        ("too many tokens: max tokens must be less than or equal to 4096, the maximum output", 400, K.INVALID_REQUEST),
        ("{'role': 'user', 'message': 'prompt is too long: 3 tokens > 2 maximum'}", 400, K.INVALID_REQUEST),
        # A status or code that says something else is believed.
        (TOO_LONG, 429, K.RATE_LIMITED),
        (TOO_LONG, 401, K.AUTHENTICATION),
        ("Prompt tokens limit exceeded: 36163 > 29652. To increase, visit https://openrouter.ai/settings/credits", 402,
         K.BILLING),
    ],
)  # fmt: skip
def test_words_that_only_look_like_it(message: str, status: int, kind: ErrorKind) -> None:
    error = error_from_payload("openai", openai(message), status)
    assert (error.kind, error.context_tokens) == (kind, None)


def test_what_mistral_cannot_do_is_no_overflow() -> None:
    said = mistral("Image input is not enabled for this model", 3051)
    assert error_from_payload("mistral", said, 400).kind is K.INVALID_REQUEST


@pytest.mark.parametrize(
    ("adapter", "body"),
    [
        (OpenAIChat(), sse([{"error": {"message": OPENAI_WORDS, "code": 400}}])),
        (OpenAIChat(), sse([{"choices": [{"index": 0, "delta": {"content": "So"}}]}, openai(OPENAI_WORDS)])),
        (OpenAIResponses(), sse([{"type": "error", "code": "context_length_exceeded", "message": OPENAI_WORDS}])),
        (OpenAIResponses(), sse([{"type": "response.failed", "response": {"status": "failed", "error": {
            "code": "context_length_exceeded", "message": OPENAI_WORDS}}}])),
        (Anthropic(), sse([anthropic("prompt is too long: 9000 tokens > 8192 maximum")], named=True)),
        (Gemini(), sse([gemini("The input token count (9000) exceeds the maximum number of tokens allowed (8192).")])),
    ],
    ids=["chat", "chat-late", "responses", "responses-failed", "anthropic", "gemini"],
)  # fmt: skip
@pytest.mark.parametrize("sizes", [(65536,), (1,), (7, 3)], ids=["whole", "bytes", "cut"])
def test_the_same_inside_a_stream(adapter: Any, body: bytes, sizes: tuple[int, ...]) -> None:
    error = events(adapter, body, sizes)[-1]
    assert isinstance(error, Error)
    assert (error.kind, error.context_tokens) == (K.CONTEXT_LENGTH, 8192)


@pytest.mark.parametrize("reason", ["model_context_window_exceeded"])
def test_a_finish_reason_is_a_cut_answer_and_no_overflow(reason: str) -> None:
    turn = answer(
        Anthropic(),
        json.dumps({"content": [{"type": "text", "text": "half"}], "stop_reason": reason}).encode(),
        streaming=False,
    )
    assert turn.error is None
    assert turn.text == "half"


def test_what_a_gateway_passes_on_is_shown_with_its_server() -> None:
    error = error_from_payload("openrouter", routed(json.dumps(anthropic(TOO_LONG))), 400)
    assert error.message == f"Provider returned error (Anthropic: {TOO_LONG})"
    plain = {"error": {"message": "Provider returned error", "code": 400, "metadata": {"provider_name": "Azure"}}}
    assert error_from_payload("openrouter", plain, 400).message == "Provider returned error (Azure)"
    inside = openai(json.dumps(anthropic("messages: at least one message is required")))
    assert error_from_payload("x", inside, 400).message == "messages: at least one message is required"


def test_the_error_behind_a_gateway_says_what_kind_it_is() -> None:
    filtered = {
        "error": {"code": "content_filter", "message": "m", "innererror": {"code": "ResponsibleAIPolicyViolation"}}
    }
    assert error_from_payload("openrouter", routed(json.dumps(filtered)), 400).kind is K.CONTENT_FILTER
    assert error_from_payload("openrouter", routed(json.dumps(filtered), code=429), 429).kind is K.RATE_LIMITED
    deep: object = anthropic(TOO_LONG)
    for _ in range(30):
        deep = routed(deep)
    assert error_from_payload("openrouter", deep, 400).kind is K.INVALID_REQUEST, "only so many layers are looked at"


@pytest.mark.parametrize("tail", ["x" * 60_000, " " * 60_000, "9" * 60_000, "model " * 10_000, "400 " * 15_000])
@pytest.mark.parametrize(
    "head", ["", "This model's maximum context length is ", "Error: ", "Prompt contains 9 tokens "]
)
def test_long_messages_end_too(head: str, tail: str) -> None:
    """A pattern that backtracks would take hours for 60 kB."""
    assert kind_of_phrase("openrouter", head + tail) == (None, None)


ERRORS = [row["body"].get("error") for row in OVERFLOWS if isinstance(row["body"], dict)]
MESSAGES = [error["message"] for error in ERRORS if isinstance(error, dict) and "message" in error]


@given(st.text(max_size=80), st.sampled_from(MESSAGES))
def test_no_prefix_makes_a_quoted_message_match(prefix: str, quoted: str) -> None:
    """Only what gateways are known to put before an error is skipped."""
    said = f"{prefix}«{quoted}"
    assert kind_of_phrase("openai", said) == (None, None)

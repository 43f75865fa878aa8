"""Errors by table, and how long a provider asks us to wait, in all its forms."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS
from callboard.protocol.model import Error
from callboard.providers.error_table import KINDS
from callboard.providers.http_errors import error_from_body, error_from_payload, error_kind, snippet
from callboard.providers.retry import duration_seconds, retry_after_seconds, wait_in_words, wait_seconds

K = ErrorKind
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)


def openai(kind: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": "m", "type": kind, "code": code}}


def anthropic(kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": "m"}}


def said(message: str, code: object) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


@pytest.mark.parametrize(
    ("family", "status", "payload", "kind"),
    [
        ("openai", 401, openai("invalid_request_error", "invalid_api_key"), K.AUTHENTICATION),
        ("openai", 401, openai("invalid_request_error", None), K.AUTHENTICATION),
        ("openai", 429, openai("insufficient_quota", "insufficient_quota"), K.BILLING),
        ("openai", 429, openai("tokens", "rate_limit_exceeded"), K.RATE_LIMITED),
        ("groq", 413, openai("tokens", "rate_limit_exceeded"), K.REQUEST_TOO_LARGE),
        ("openai", 400, openai("invalid_request_error", "context_length_exceeded"), K.CONTEXT_LENGTH),
        ("openai", 404, openai("invalid_request_error", "model_not_found"), K.NOT_FOUND),
        ("openai", 400, openai("invalid_request_error", "unsupported_value"), K.INVALID_REQUEST),
        ("openai", 500, {"error": {"message": "m", "type": "server_error"}}, K.SERVER),
        ("openai", 503, {"error": {"message": "m"}}, K.OVERLOADED),
        ("anthropic", 529, anthropic("overloaded_error"), K.OVERLOADED),
        ("anthropic", 200, anthropic("overloaded_error"), K.OVERLOADED),
        ("anthropic", 413, anthropic("request_too_large"), K.REQUEST_TOO_LARGE),
        ("anthropic", 400, anthropic("invalid_request_error"), K.INVALID_REQUEST),
        ("anthropic", 500, anthropic("api_error"), K.SERVER),
        ("gemini", 429, {"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, K.RATE_LIMITED),
        ("gemini", 400, [{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT",
                                    "details": [{"reason": "API_KEY_INVALID"}]}}], K.AUTHENTICATION),
        ("gemini", 503, {"error": {"code": 503, "message": "m", "status": "UNAVAILABLE"}}, K.OVERLOADED),
        ("openrouter", 402, {"error": {"code": 402, "message": "m"}}, K.BILLING),
        ("openrouter", 200, {"error": {"code": 502, "message": "m"}}, K.SERVER),
        ("openrouter", 404, said("No endpoints found that support tool use. Try", 404), K.TOOLS_UNSUPPORTED),
        ("openrouter", 404, said("No endpoints found that support the provided 'tool_choice' value.", 404),
         K.TOOLS_UNSUPPORTED),
        ("openrouter", 404, said("No endpoints found for x", 404), K.NOT_FOUND),
        ("ollama", 400, said("registry.ollama.ai/library/x does not support tools", 400), K.TOOLS_UNSUPPORTED),
        ("vllm", 400, {"error": {"message": "this text does not support tools"}}, K.INVALID_REQUEST),
        ("xai", 400, {"error": "bad model", "code": "Client specified an invalid argument"}, K.INVALID_REQUEST),
        ("mistral", 401, {"detail": "Invalid API Key"}, K.AUTHENTICATION),
        ("mistral", 422, {"detail": [{"loc": ["body"], "msg": "field required"}]}, K.INVALID_REQUEST),
        ("together", 400, {"message": "nope"}, K.INVALID_REQUEST),
        ("mistral", 400, {"object": "error", "message": "Invalid model: x", "type": "invalid_model", "code": "1500"},
         K.NOT_FOUND),
        ("mistral", 429, {"object": "error", "message": "m", "type": "rate_limited", "code": "1300"}, K.RATE_LIMITED),
        ("mistral", 429, {"object": "error", "message": "m", "type": "service_tier_capacity_exceeded",
                          "code": "3505"}, K.OVERLOADED),
        ("mistral", 400, {"object": "error", "message": "m", "type": "invalid_request_message_order", "code": 3230},
         K.INVALID_REQUEST),
        ("zai", 401, said("m", "1002"), K.AUTHENTICATION),
        ("zai", 429, said("m", "1113"), K.BILLING),
        ("zai", 400, said("m", "1211"), K.NOT_FOUND),
        ("zai", 400, said("m", "1214"), K.INVALID_REQUEST),
        ("zai", 400, said("m", "1301"), K.CONTENT_FILTER),
        ("zai", 429, said("m", 1302), K.RATE_LIMITED),
        ("zai", 429, said("m", "1308"), K.QUOTA_SPENT),
        ("zai", 429, said("m", "1312"), K.OVERLOADED),
        ("zai", 500, said("m", "1234"), K.SERVER),
        ("x", 400, said("m", "1113"), K.INVALID_REQUEST),
        ("moonshot", 401, openai("invalid_authentication_error", None), K.AUTHENTICATION),
        ("moonshot", 429, openai("exceeded_current_quota_error", None), K.BILLING),
        ("moonshot", 429, openai("rate_limit_reached_error", None), K.RATE_LIMITED),
        ("moonshot", 429, openai("engine_overloaded_error", None), K.OVERLOADED),
        ("moonshot", 404, openai("resource_not_found_error", None), K.NOT_FOUND),
        ("moonshot", 400, openai("content_filter", None), K.CONTENT_FILTER),
        ("cerebras", 401, openai("invalid_request_error", "wrong_api_key"), K.AUTHENTICATION),
        ("cerebras", 429, openai("too_many_requests_error", "request_quota_exceeded"), K.RATE_LIMITED),
        ("cerebras", 429, openai("too_many_requests_error", "queue_exceeded"), K.OVERLOADED),
        ("alibaba", 400, {"error": {"message": "m", "code": "Arrearage"}}, K.BILLING),
        ("alibaba", 400, openai("data_inspection_failed", "data_inspection_failed"), K.CONTENT_FILTER),
        ("alibaba", 429, openai("limit_requests", "limit_requests"), K.RATE_LIMITED),
        ("perplexity", 400, {"error": {"message": "m", "type": "invalid_model", "code": 400}}, K.NOT_FOUND),
        ("huggingface", 400, openai("invalid_request_error", "model_not_supported"), K.NOT_FOUND),
        ("huggingface", 503, {"error": "Model m is currently loading", "estimated_time": 20.0}, K.OVERLOADED),
        ("huggingface", 422, {"error": "m", "error_type": "validation"}, K.INVALID_REQUEST),
        ("nvidia", 404, {"status": 404, "title": "Not Found", "detail": "Function not found"}, K.NOT_FOUND),
        ("nvidia", 402, {"detail": "Account credits exhausted"}, K.BILLING),
        ("cohere", 404, {"id": "1", "message": "model 'x' not found"}, K.NOT_FOUND),
        ("cohere", 429, {"message": "Please wait and try again later"}, K.RATE_LIMITED),
        ("fireworks", 404, {"error": {"message": "Model not found", "code": "NOT_FOUND"}}, K.NOT_FOUND),
        ("fireworks", 412, {"error": {"message": "suspended", "code": "PRECONDITION_FAILED"}}, K.INVALID_REQUEST),
        ("together", 404, openai("invalid_request_error", "model_not_available"), K.NOT_FOUND),
        ("together", 402, openai("credit_limit", None), K.BILLING),
        ("azure", 400, {"error": {"message": "m", "code": None, "status": 400,
                                  "innererror": {"code": "ResponsibleAIPolicyViolation"}}}, K.CONTENT_FILTER),
        ("azure", 404, openai("invalid_request_error", "DeploymentNotFound"), K.NOT_FOUND),
        ("x", 413, "<html>413 Request Entity Too Large</html>", K.REQUEST_TOO_LARGE),
        ("x", 200, {"error": {"code": "401", "message": "m"}}, K.AUTHENTICATION),
        ("x", 200, {"error": {"code": 401, "message": "m"}}, K.AUTHENTICATION),
        ("x", 200, {"error": {"message": "m"}}, K.OTHER),
        ("groq", 498, {"error": {"message": "m"}}, K.OVERLOADED),
        ("x", 418, {}, K.INVALID_REQUEST),
        ("x", 599, "text", K.SERVER),
        ("x", 500, [], K.SERVER),
        ("x", 500, None, K.SERVER),
    ],
)  # fmt: skip
def test_the_table(family: str, status: int, payload: Any, kind: ErrorKind) -> None:
    error = error_from_payload(family, payload, status)
    assert error.kind is kind
    assert error.retryable is (kind in RETRYABLE_KINDS)
    assert error.message
    assert error_from_body(family, status, {}, orjson.dumps(payload)) == error


def test_a_broad_type_does_not_hide_a_telling_status() -> None:
    assert error_kind("openai", 429, ("invalid_request_error",)) is K.RATE_LIMITED
    assert error_kind("openai", 0, ("invalid_request_error",)) is K.INVALID_REQUEST


@pytest.mark.parametrize(
    ("code", "told"), [(1261, "1261"), ("1261", "1261"), (400, ""), ("400", ""), (0, ""), (True, "")]
)
def test_a_number_is_a_code_unless_it_is_an_http_status(code: object, told: str) -> None:
    assert error_from_payload("x", said("m", code), 400).code == told


def test_codes_in_the_table_are_lower_case() -> None:
    assert all(code == code.lower() for _, _, code in KINDS)


@pytest.mark.parametrize("told", [True, False])
def test_the_provider_may_overrule_what_is_worth_a_retry(told: bool) -> None:
    headers = {"x-should-retry": str(told).lower()}
    assert (
        error_from_payload("openai", {"error": {"message": "m"}}, 500 if not told else 400, headers).retryable is told
    )


@pytest.mark.parametrize("body", [b"", b"<html>x</html>", b"\xff\xfe", b"{", b"[" * 10_000])
def test_a_body_that_is_no_json(body: bytes) -> None:
    error = error_from_body("openai", 502, {"retry-after": "2"}, body)
    assert (error.kind, error.status, error.retry_after) == (K.SERVER, 502, 2.0)
    assert len(error.raw) <= ERROR_SNIPPET_CHARS


def test_a_snippet_is_short_and_on_one_line() -> None:
    assert snippet("a\n\n b" + "x" * 10_000) == ("a b" + "x" * 10_000)[:ERROR_SNIPPET_CHARS]
    assert snippet(b"\xff") == "\ufffd"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("12ms", 0.012), ("17.399999999s", 17.399999999), ("1m0s", 60.0), ("2h3m", 7380.0), ("34s", 34.0), ("5", 5.0),
     ("0.5", 0.5), ("", None), ("soon", None), ("1m later", None), ("nan", None), ("inf", None)],
)  # fmt: skip
def test_durations(text: str, seconds: float | None) -> None:
    assert duration_seconds(text) == pytest.approx(seconds) if seconds is not None else duration_seconds(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-01T12:01:00Z", 60.0), ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0), ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        (str(int(NOW.timestamp()) + 9), 9.0), (str((int(NOW.timestamp()) + 9) * 1000), 9.0), ("-3", 0.0),
    ],
)  # fmt: skip
def test_points_in_time(text: str, seconds: float) -> None:
    assert wait_seconds(text, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "1500", "retry-after": "9"}, None, 1.5),
        ({"retry-after": "9"}, None, 9.0),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT", "date": "Thu, 01 Jan 2026 12:00:00 GMT"}, None, 30.0),
        ({"retry-after": "soon"}, None, None),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "6m0s",
          "x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "12h"}, None, 360.0),
        ({"anthropic-ratelimit-input-tokens-remaining": "0",
          "anthropic-ratelimit-input-tokens-reset": "2026-01-01T12:00:10Z",
          "date": "Thu, 01 Jan 2026 12:00:00 GMT"}, None, 10.0),
        ({"retry-after": "9"}, {"error": {"details": [{"@type": "x"}, {"retryDelay": "34s"}]}}, 34.0),
        ({}, {"error": {"details": "odd"}}, None),
        ({}, None, None),
    ],
)  # fmt: skip
def test_retry_after(headers: dict[str, str], body: Any, seconds: float | None) -> None:
    assert retry_after_seconds(headers, body) == seconds


#: Words of OpenAI, Groq, Azure, Gemini, GitHub Models, Codex and others (sources: `retry._WAIT`).
SAID_WAITS = {
    "Rate limit reached for gpt-5.1 on tokens per min (TPM): Limit 30000. Please try again in 4s.": 4.0,
    "Please try again in 20ms. Visit https://x to learn more": 0.02,
    "Please try again in 1m30s.": 90.0,
    "Please try again in 7m54.336s. Need more tokens?": 474.336,
    "Please try again in 6h0m0s": 21_600.0,
    "Rate limit is exceeded. Please retry after 4 seconds.": 4.0,
    "Please retry after 86400 seconds.": 86_400.0,
    "Please retry in 12.5s.": 12.5,
    "Rate limit of 50 per 86400s exceeded. Please wait 54321 seconds before retrying.": 54_321.0,
    "Too many requests. Retry after: 7s": 7.0,
    "try again in 4 days 20 hours 9 minutes.": 418_140.0,
    "Your quota will reset after 3h5m.": 11_100.0,
    "retry after 500 milliseconds": 0.5,
    "try again in 2 hours and 5 mins": 7_500.0,
    "Retry after about 1 hour": 3_600.0,
    "try again later": None,
    "Please try again in a moment": None,
    "It took 5 s; try again": None,
    "try again in 5 months": None,
    "I retry in 5 ways": None,
}


@pytest.mark.parametrize("words", SAID_WAITS)
def test_a_wait_that_is_said_in_words(words: str) -> None:
    assert wait_in_words(words) == (pytest.approx(SAID_WAITS[words]) if SAID_WAITS[words] else None)


def test_words_count_where_no_header_says_it_and_the_wait_is_bounded() -> None:
    def error(message: str, **headers: str) -> Error:
        return error_from_payload("x", {"error": {"message": message}}, 429, headers)

    assert error("Please try again in 4s").retry_after == 4.0
    assert error("Please try again in 4s", **{"retry-after": "9"}).retry_after == 9.0, "a header wins"
    absurd = error("Please try again in 999999999999999 days")
    assert "callboard waits 60 s at most" in absurd.message, "as a header's"
    assert error_from_payload("x", {"error": {"message": "Please try again in 4s"}}, 400).retry_after is None
    assert error_from_body("x", 503, {}, b"Please retry after 3 seconds").retry_after == 3.0, "plain text too"


@pytest.mark.parametrize(
    "text", ["try again in " * 10_000, "9" * 60_000, "try again in " + "9m" * 30_000, "wait " * 20_000]
)
def test_a_wait_in_a_long_text_is_looked_for_in_no_time(text: str) -> None:
    began = time.process_time()
    wait_in_words(text)
    assert time.process_time() - began < 1.0


KEYS = ["error", "message", "code", "details", "status", "type", "retryDelay", "metadata", "raw", "provider_name",
        "innererror", "n_ctx", "detail", "base_resp", "status_code", "status_msg", "loc", "msg", "violations",
        "quotaId", "errors", "error_code"]  # fmt: skip
HEADERS = ["retry-after", "retry-after-ms", "date", "x-ratelimit-reset", "x-ratelimit-remaining"]
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 700) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)


@given(
    json_values,
    st.sampled_from([200, 400, 404, 429, 500]),
    st.dictionaries(st.sampled_from(HEADERS), st.text(max_size=8)),
)
def test_no_error_is_too_odd_to_be_told(payload: Any, status: int, headers: dict[str, str]) -> None:
    error = error_from_body("openai", status, headers, orjson.dumps(payload))
    assert error.message
    assert error.retry_after is None or error.retry_after >= 0

"""What a provider's error means: a table from (family, status, code) to ErrorKind. Nothing else decides it.

Looked up from the most to the least exact line; `ANY` stands for every family, 0 for every status, "" for every code.
Whether trying again can help follows from the kind (protocol.errors), unless the provider says otherwise by
`x-should-retry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error
from callboard.providers.json_values import SHAPE_ERRORS, Json, JsonObject, dumps_text, loads
from callboard.providers.retry import retry_after_seconds, should_retry

ANY: Final = "*"
#: Shorter "keys" are placeholders ("EMPTY", "ollama"), which would blot out words.
SHORTEST_SECRET: Final = 8
_K = ErrorKind

KINDS: Final[Mapping[tuple[str, int, str], ErrorKind]] = {
    # By status alone, where no code is known.
    (ANY, 400, ""): _K.INVALID_REQUEST,
    (ANY, 401, ""): _K.AUTHENTICATION,
    (ANY, 402, ""): _K.BILLING,
    (ANY, 403, ""): _K.PERMISSION,
    (ANY, 404, ""): _K.NOT_FOUND,
    (ANY, 405, ""): _K.NOT_FOUND,
    (ANY, 408, ""): _K.TIMEOUT,
    (ANY, 409, ""): _K.OVERLOADED,
    (ANY, 413, ""): _K.REQUEST_TOO_LARGE,
    (ANY, 422, ""): _K.INVALID_REQUEST,
    (ANY, 425, ""): _K.OVERLOADED,
    (ANY, 429, ""): _K.RATE_LIMITED,
    (ANY, 498, ""): _K.OVERLOADED,  # Groq: flex capacity exceeded
    (ANY, 503, ""): _K.OVERLOADED,
    (ANY, 504, ""): _K.TIMEOUT,
    (ANY, 524, ""): _K.TIMEOUT,  # Cloudflare: origin too slow
    (ANY, 529, ""): _K.OVERLOADED,
    # OpenAI's codes and types; the compatible servers copy them.
    (ANY, 0, "invalid_api_key"): _K.AUTHENTICATION,
    (ANY, 0, "account_deactivated"): _K.AUTHENTICATION,
    (ANY, 0, "insufficient_quota"): _K.BILLING,  # a 429 that waiting does not cure
    (ANY, 0, "billing_hard_limit_reached"): _K.BILLING,
    (ANY, 0, "billing_not_active"): _K.BILLING,
    (ANY, 0, "credit_balance_too_low"): _K.BILLING,
    (ANY, 0, "model_not_found"): _K.NOT_FOUND,
    (ANY, 0, "deploymentnotfound"): _K.NOT_FOUND,
    (ANY, 0, "context_length_exceeded"): _K.CONTEXT_LENGTH,
    (ANY, 0, "exceed_context_size_error"): _K.CONTEXT_LENGTH,  # llama.cpp
    (ANY, 0, "string_above_max_length"): _K.REQUEST_TOO_LARGE,
    (ANY, 0, "request_too_large"): _K.REQUEST_TOO_LARGE,
    (ANY, 0, "content_filter"): _K.CONTENT_FILTER,
    (ANY, 0, "content_policy_violation"): _K.CONTENT_FILTER,
    (ANY, 0, "rate_limit_exceeded"): _K.RATE_LIMITED,
    (ANY, 0, "rate_limit_error"): _K.RATE_LIMITED,
    (ANY, 0, "tokens"): _K.RATE_LIMITED,
    (ANY, 0, "requests"): _K.RATE_LIMITED,
    (ANY, 0, "slow_down"): _K.OVERLOADED,
    (ANY, 0, "server_error"): _K.SERVER,
    (ANY, 0, "internal_error"): _K.SERVER,
    (ANY, 0, "internalservererror"): _K.SERVER,
    (ANY, 0, "server_is_overloaded"): _K.OVERLOADED,
    (ANY, 0, "engine_overloaded"): _K.OVERLOADED,
    (ANY, 0, "service_unavailable"): _K.OVERLOADED,
    (ANY, 0, "invalid_request_error"): _K.INVALID_REQUEST,
    (ANY, 0, "invalid_prompt"): _K.INVALID_REQUEST,
    (ANY, 0, "unsupported_value"): _K.INVALID_REQUEST,
    (ANY, 0, "unsupported_parameter"): _K.INVALID_REQUEST,
    (ANY, 0, "tool_use_failed"): _K.MALFORMED_TOOL_CALL,  # Groq: what the model wrote was no call
    (ANY, 0, "tools_not_supported"): _K.TOOLS_UNSUPPORTED,
    (ANY, 0, "tool_use_not_supported"): _K.TOOLS_UNSUPPORTED,
    # Anthropic's types; GitHub Copilot sends them too, on its messages route.
    (ANY, 0, "authentication_error"): _K.AUTHENTICATION,
    (ANY, 0, "billing_error"): _K.BILLING,
    (ANY, 0, "permission_error"): _K.PERMISSION,
    (ANY, 0, "not_found_error"): _K.NOT_FOUND,
    (ANY, 0, "api_error"): _K.SERVER,
    (ANY, 0, "timeout_error"): _K.TIMEOUT,
    (ANY, 0, "overloaded_error"): _K.OVERLOADED,
    # Gemini's statuses (google.rpc.Code).
    ("gemini", 0, "invalid_argument"): _K.INVALID_REQUEST,
    ("gemini", 0, "failed_precondition"): _K.BILLING,  # free tier not available there: enable billing
    ("gemini", 0, "unauthenticated"): _K.AUTHENTICATION,
    ("gemini", 0, "api_key_invalid"): _K.AUTHENTICATION,  # sent as a 400; the reason stands in details
    ("gemini", 0, "permission_denied"): _K.PERMISSION,
    ("gemini", 0, "not_found"): _K.NOT_FOUND,
    ("gemini", 0, "resource_exhausted"): _K.RATE_LIMITED,
    ("gemini", 0, "internal"): _K.SERVER,
    ("gemini", 0, "unavailable"): _K.OVERLOADED,
    ("gemini", 0, "deadline_exceeded"): _K.TIMEOUT,
    # OpenRouter and Copilot.
    ("openrouter", 403, ""): _K.CONTENT_FILTER,  # moderation
    # Groq: one request above the limit of a minute, which waiting does not cure.
    ("groq", 413, "rate_limit_exceeded"): _K.REQUEST_TOO_LARGE,
    ("copilot", 0, "model_not_supported"): _K.NOT_FOUND,
    ("copilot", 0, "model_max_prompt_tokens_exceeded"): _K.CONTEXT_LENGTH,
    ("copilot", 0, "quota_exceeded"): _K.BILLING,
}

#: The only place that looks at an error's text: these servers say "no tools here" by no code of their own (docs/wire.md
#: 1.5). Vendor wording may change; then the answer is NOT_FOUND or INVALID_REQUEST: a failure, no fallback.
TOOLS_UNSUPPORTED_TEXTS: Final = (
    ("openrouter", 404, "No endpoints found that support tool use"),
    ("openrouter", 404, "No endpoints found that support the provided 'tool_choice' value"),
    ("ollama", 400, "does not support tools"),
)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The parts of an error, whatever shape it came in."""

    message: str = ""
    codes: tuple[str, ...] = ()
    """The provider's code, type and status words, the most telling first."""
    status: int = 0
    """An HTTP status that stands in the body."""


def make_error(
    kind: ErrorKind,
    message: str,
    raw: str = "",
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
    status: int = 0,
    code: str = "",
) -> Error:
    """An Error whose `retryable` follows from its kind, unless it is given.

    A wait that is longer than any we keep is said in the message: it is the reason why nothing is tried again.
    """
    retryable = kind in RETRYABLE_KINDS if retryable is None else retryable
    if retryable and retry_after is not None and retry_after > MAX_RETRY_AFTER_SECONDS:
        asked = f"{retry_after:,.0f}" if retry_after < 1e15 else f"{retry_after:g}"
        message = (
            f"{message} The provider asks to wait {asked} s; callboard waits {MAX_RETRY_AFTER_SECONDS:g} s at most, so "
            "the call is not tried again."
        )
    return Error(kind, message, retryable, retry_after, raw, status, code)


def scrubbed(error: Error, secret: str | None) -> Error:
    """The error without the key, which some servers repeat in what they refuse."""
    if not secret or len(secret) < SHORTEST_SECRET or (secret not in error.message and secret not in error.raw):
        return error
    return replace(error, message=error.message.replace(secret, "***"), raw=error.raw.replace(secret, "***"))


def snippet(data: bytes | str) -> str:
    """The start of a bad answer, on one line, short enough for a message."""
    head = data[: ERROR_SNIPPET_CHARS * 4]
    text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    return " ".join(text.split())[:ERROR_SNIPPET_CHARS]


def error_kind(family: str, status: int, codes: tuple[str, ...] = ()) -> ErrorKind:
    """The kind of an error by the table above."""
    for code in codes:
        word = code.lower()
        for key in ((family, status, word), (family, 0, word), (ANY, 0, word)):
            # A type as broad as "invalid_request_error" must not hide what the status says (401, 404, 413, 429).
            if key in KINDS and not (KINDS[key] is _K.INVALID_REQUEST and status not in (0, 200, 400)):
                return KINDS[key]
    for key in ((family, status, ""), (ANY, status, "")):
        if key in KINDS:
            return KINDS[key]
    if status >= 500:
        return _K.SERVER
    return _K.INVALID_REQUEST if status >= 400 else _K.OTHER


def read_error(payload: Json) -> ErrorBody:
    """The parts of an error payload. Known shapes: {"error": {..} | "text"}, {"detail": ..}, {"message": ..}, [..]."""
    payload = _first(payload)
    if not isinstance(payload, dict):
        return ErrorBody(_shown(payload))
    inner = payload.get("error") or payload.get("detail") or payload.get("errors") or payload
    inner = _first(inner) or payload
    if not isinstance(inner, dict):
        words = _words(payload.get("code"), payload.get("type"))
        return ErrorBody(_shown(inner), words, _status(payload.get("status")))
    message = inner.get("message") or inner.get("msg") or inner.get("error") or payload.get("message") or inner
    code, kind, status = inner.get("code"), inner.get("type"), inner.get("status")
    number = _status(code) or _status(inner.get("status_code")) or _status(status)
    return ErrorBody(_shown(message), _words(*_reasons(inner), code, kind, status), number)


def error_from_payload(
    family: str, payload: Json, status: int = 200, headers: Mapping[str, str] | None = None, raw: bytes | str = ""
) -> Error:
    """The Error that a JSON error document means. `status` is the HTTP status it came with, 200 inside a stream.

    `headers` have lower case names. `raw` is shown as snippet, the payload itself where it is left out.
    """
    raw = raw or _as_json(payload)
    payload = _first(payload)  # Gemini wraps the error of a stream in an array
    body = read_error(payload)
    headers = headers or {}
    real_status = status if status >= 400 else body.status or status
    kind = error_kind(family, real_status, body.codes)
    for text_family, text_status, text in TOOLS_UNSUPPORTED_TEXTS:
        if (text_family, text_status) == (family, real_status) and text in body.message:
            kind = _K.TOOLS_UNSUPPORTED
    return make_error(
        kind,
        snippet(body.message) or f"The provider sent an error without a message (HTTP {real_status}).",
        snippet(raw),
        retryable=should_retry(headers),
        retry_after=retry_after_seconds(headers, payload),
        status=real_status if real_status >= 400 else 0,
        code=snippet(next(iter(body.codes), "")),
    )


def error_from_body(family: str, status: int, headers: Mapping[str, str], body: bytes) -> Error:
    """The Error that an HTTP answer with an error status means, whatever its body is. Never raises."""
    try:
        return error_from_payload(family, loads(body), status, headers, body)
    except SHAPE_ERRORS:
        what = f"it said: {snippet(body)}" if body.strip() else "the body was empty"
    return make_error(
        error_kind(family, status),
        f"The server answered HTTP {status} without a JSON error; {what}",
        snippet(body),
        retryable=should_retry(headers),
        retry_after=retry_after_seconds(headers),
        status=status,
    )


def _first(payload: Json) -> Json:
    """The first of a list of errors; anything else as it is."""
    if isinstance(payload, list):
        return payload[0] if payload else {}
    return payload


def _shown(value: Json) -> str:
    """A message as it is, anything else as JSON."""
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: Json) -> str:
    """JSON, or what Python shows where that cannot be written (an integer of more than 64 bits)."""
    try:
        return dumps_text(value)
    except TypeError:
        return repr(value)


def _reasons(error: JsonObject) -> list[Json]:
    """Gemini's details carry google.rpc.ErrorInfo reasons such as API_KEY_INVALID."""
    details = error.get("details")
    return [d.get("reason") for d in details if isinstance(d, dict)] if isinstance(details, list) else []


def _words(*values: Json) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value and not value.isdigit())


def _status(value: Json) -> int:
    """400 or "400" as a status; 0 for what is none."""
    if not isinstance(value, int | str) or (isinstance(value, int) and not 0 <= value <= 999):
        return 0
    number = int(value) if str(value).isdecimal() and len(str(value)) == 3 else 0
    return number if number >= 400 else 0

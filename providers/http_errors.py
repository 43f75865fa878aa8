"""What a provider's error means: a table from (family, status, code) to ErrorKind.

The most exact line counts; `ANY` is every family, 0 every status, "" every code. Whether trying again can help follows
from the kind (protocol.errors), unless the provider says otherwise by `x-should-retry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from callboard.protocol.content import json_text
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error
from callboard.providers.json_values import SHAPE_ERRORS, Json, loads
from callboard.providers.retry import details_of, retry_after_seconds, should_retry

ANY: Final = "*"
#: Shorter "keys" are placeholders ("EMPTY", "ollama"), which would blot out words.
SHORTEST_SECRET: Final = 8
_K = ErrorKind

#: HTTP statuses alone, where no code is known. 498 is Groq's (flex capacity exceeded), 524 Cloudflare's (origin slow).
_STATUSES: Final = {
    _K.INVALID_REQUEST: (400, 422),
    _K.AUTHENTICATION: (401,),
    _K.BILLING: (402,),
    _K.PERMISSION: (403,),
    _K.NOT_FOUND: (404, 405),
    _K.TIMEOUT: (408, 504, 524),
    _K.OVERLOADED: (409, 425, 498, 503, 529),
    _K.REQUEST_TOO_LARGE: (413,),
    _K.RATE_LIMITED: (429,),
}
#: Codes, types and status words, for any HTTP status: OpenAI's, which the compatible servers copy, Anthropic's
#: (GitHub Copilot sends them too, on its messages route), llama.cpp's and Groq's.
_CODES: Final = {
    _K.AUTHENTICATION: "invalid_api_key account_deactivated authentication_error",
    # insufficient_quota is a 429 that waiting does not cure.
    _K.BILLING: "insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_too_low billing_error",
    _K.PERMISSION: "permission_error",
    _K.NOT_FOUND: "model_not_found deploymentnotfound not_found_error",
    _K.CONTEXT_LENGTH: "context_length_exceeded exceed_context_size_error",
    _K.REQUEST_TOO_LARGE: "string_above_max_length request_too_large",
    _K.CONTENT_FILTER: "content_filter content_policy_violation",
    _K.RATE_LIMITED: "rate_limit_exceeded rate_limit_error tokens requests",
    _K.OVERLOADED: "slow_down server_is_overloaded engine_overloaded service_unavailable overloaded_error",
    _K.SERVER: "server_error internal_error internalservererror api_error",
    _K.TIMEOUT: "timeout_error",
    _K.INVALID_REQUEST: "invalid_request_error invalid_prompt unsupported_value unsupported_parameter",
    _K.MALFORMED_TOOL_CALL: "tool_use_failed",  # Groq: what the model wrote was no call
    _K.TOOLS_UNSUPPORTED: "tools_not_supported tool_use_not_supported",
}
#: Bedrock's exceptions, as HTTP errors (header x-amzn-errortype) and in the stream; the last ones of AUTHENTICATION are
#: those of every AWS service ("Common Errors" of the API reference).
_BEDROCK: Final = {
    _K.AUTHENTICATION: "expiredtokenexception unrecognizedclientexception invalidsignatureexception "
    "incompletesignatureexception missingauthenticationtokenexception expiredtoken invalidclienttokenid",
    _K.PERMISSION: "accessdeniedexception",
    _K.BILLING: "servicequotaexceededexception",  # a quota of the account, which waiting does not raise
    _K.NOT_FOUND: "resourcenotfoundexception",
    _K.INVALID_REQUEST: "validationexception",
    _K.RATE_LIMITED: "throttlingexception",
    _K.OVERLOADED: "serviceunavailableexception modelnotreadyexception",
    _K.TIMEOUT: "modeltimeoutexception",
    _K.SERVER: "internalserverexception modelerrorexception modelstreamerrorexception internalfailure",
}
KINDS: Final[Mapping[tuple[str, int, str], ErrorKind]] = {
    **{(ANY, status, ""): kind for kind, statuses in _STATUSES.items() for status in statuses},
    **{(ANY, 0, code): kind for kind, codes in _CODES.items() for code in codes.split()},
    **{("bedrock", 0, code): kind for kind, codes in _BEDROCK.items() for code in codes.split()},
    ("azure", 401, "permissiondenied"): _K.PERMISSION,  # an Entra identity without the role
    # Gemini's statuses (google.rpc.Code).
    ("gemini", 0, "invalid_argument"): _K.INVALID_REQUEST,
    ("gemini", 0, "failed_precondition"): _K.BILLING,  # free tier not available there: enable billing
    ("gemini", 0, "unauthenticated"): _K.AUTHENTICATION,
    ("gemini", 0, "api_key_invalid"): _K.AUTHENTICATION,  # sent as a 400; the reason is in details
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
    message, raw, code = (without_key(text, secret) for text in (error.message, error.raw, error.code))
    return replace(error, message=message, raw=raw, code=code)


def without_key(text: str, secret: str | None) -> str:
    """The text without the key, nor the beginning of one that was cut off with the text around it."""
    if not secret or len(secret) < SHORTEST_SECRET:
        return text
    text = text.replace(secret, "***")
    for length in range(len(secret) - 1, SHORTEST_SECRET - 1, -1):
        text = text.replace(secret[:length], "***")
    return text


def snippet(data: bytes | str) -> str:
    """The start of a bad answer, on one line, short enough for a message."""
    head = data[: ERROR_SNIPPET_CHARS * 4]
    text = head.decode("utf-8", "replace") if isinstance(head, bytes) else head
    return " ".join(text.split())[:ERROR_SNIPPET_CHARS]


def shown_address(url: str) -> str:
    """An address for a message: without a user, a password or a query, which may hold a key."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # a port that is no number, or brackets without an IPv6 address
        return "an address that cannot be read"
    host = f"[{host}]" if ":" in host else host
    return snippet(f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}")


def error_kind(family: str, status: int, codes: tuple[str, ...] = ()) -> ErrorKind:
    """The kind of an error by the table above."""
    for word in map(str.lower, codes):
        for key in ((family, status, word), (family, 0, word), (ANY, 0, word)):
            # A type as broad as "invalid_request_error" must not hide what the status says (401, 404, 413, 429).
            if key in KINDS and not (KINDS[key] is _K.INVALID_REQUEST and status not in (0, 200, 400)):
                return KINDS[key]
    if kind := KINDS.get((family, status, "")) or KINDS.get((ANY, status, "")):
        return kind
    if status >= 500:
        return _K.SERVER
    return _K.INVALID_REQUEST if status >= 400 else _K.OTHER


def _read_error(payload: Json) -> tuple[str, tuple[str, ...], int]:
    """(message, codes, HTTP status) of an error payload; "", () and 0 for what it does not have. Codes are the
    provider's code, type and status words, the most telling first.

    Known shapes: {"error": {..} | "text"}, {"detail": ..}, {"message": ..}.
    """
    if not isinstance(payload, dict):
        return _shown(payload), (), 0
    inner = payload.get("error") or payload.get("detail") or payload.get("errors") or payload
    inner = _first(inner) or payload
    if not isinstance(inner, dict):
        words = _words(payload.get("code"), payload.get("type"))
        return _shown(inner), words, _status(payload.get("status"))
    message = inner.get("message") or inner.get("msg") or inner.get("error") or payload.get("message") or inner
    code, kind, status = inner.get("code"), inner.get("type"), inner.get("status")
    number = _status(code) or _status(inner.get("status_code")) or _status(status)
    reasons = [detail.get("reason") for detail in details_of(inner)]  # such as Gemini's API_KEY_INVALID
    return _shown(message), _words(*reasons, code, kind, status), number


def error_from_payload(
    family: str, payload: Json, status: int = 200, headers: Mapping[str, str] | None = None, raw: bytes | None = None
) -> Error:
    """The Error that a JSON error document means. `status` is the HTTP status it came with, 200 inside a stream.

    `headers` have lower case names. `raw` is shown as snippet, the payload itself where it is left out.
    """
    shown = snippet(json_text(payload) if raw is None else raw)
    payload = _first(payload)  # Gemini wraps the error of a stream in an array
    (message, codes, found_status), headers = _read_error(payload), headers or {}
    real_status = status if status >= 400 else found_status or status
    kind = error_kind(family, real_status, codes)
    for text_family, text_status, text in TOOLS_UNSUPPORTED_TEXTS:
        if (text_family, text_status) == (family, real_status) and text in message:
            kind = _K.TOOLS_UNSUPPORTED
    return make_error(
        kind,
        snippet(message) or f"The provider sent an error without a message (HTTP {real_status}).",
        shown,
        retryable=should_retry(headers),
        retry_after=retry_after_seconds(headers, payload),
        status=real_status if real_status >= 400 else 0,
        code=snippet(next(iter(codes), "")),
    )


def error_from_body(family: str, status: int, headers: Mapping[str, str], body: bytes) -> Error:
    """The Error that an HTTP answer with an error status means. Never raises, for any body."""
    try:
        return error_from_payload(family, loads(body), status, headers, body)
    except SHAPE_ERRORS:
        what = f"it said: {snippet(body)}" if body.strip() else "the body was empty"
    message = f"the error is not JSON; {what}"
    return error_from_payload(family, {"message": message}, status, headers, body)


def _first(payload: Json) -> Json:
    """The first of a list of errors; anything else as it is."""
    return next(iter(payload), {}) if isinstance(payload, list) else payload


def _shown(value: Json) -> str:
    """A message as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def _words(*values: Json) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and value and not value.isdigit())


def _status(value: Json) -> int:
    """400 or "400" as a status; 0 for what is none."""
    if not isinstance(value, int | str) or (isinstance(value, int) and not 0 <= value <= 999):
        return 0
    number = int(value) if str(value).isdecimal() and len(str(value)) == 3 else 0
    return number if number >= 400 else 0

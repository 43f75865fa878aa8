"""What a provider's error means: a table from (family, status, code) to ErrorKind.

The most exact line counts; `ANY` is every family, 0 every status, "" every code. Where that says no more than that the
request is bad, the words of the message may (error_phrases.py), and so may the error of another server that a gateway
passes on inside its own. Whether trying again can help follows from the kind (protocol.errors), unless the provider
says otherwise by `x-should-retry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from callboard.protocol.content import json_text
from callboard.protocol.errors import RETRYABLE_KINDS, ErrorKind
from callboard.protocol.limits import ERROR_SNIPPET_CHARS, MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Error
from callboard.providers.error_phrases import kind_of_phrase, unwrapped, window_of
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
#: (GitHub Copilot sends them too, on its messages route), llama.cpp's, Groq's, and words of others that mean nothing
#: else: Moonshot's (platform.moonshot.ai, "Errors"), Alibaba's (help.aliyun.com, "Error codes"), Azure's inner codes.
_CODES: Final = {
    _K.AUTHENTICATION: "invalid_api_key account_deactivated authentication_error invalid_authentication_error "
    "incorrect_api_key_error invalidapikey wrong_api_key",
    # insufficient_quota is a 429 that waiting does not cure; so are Moonshot's and Alibaba's.
    _K.BILLING: "insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_too_low billing_error "
    "exceeded_current_quota_error arrearage allocationquota.freetieronly",
    _K.PERMISSION: "permission_error permission_denied_error accessdenied model.accessdenied",
    _K.NOT_FOUND: "model_not_found deploymentnotfound not_found_error resource_not_found_error invalid_model "
    "model_not_supported model_not_available",
    _K.CONTEXT_LENGTH: "context_length_exceeded exceed_context_size_error model_max_prompt_tokens_exceeded "
    "tokens_limit_reached",
    _K.REQUEST_TOO_LARGE: "string_above_max_length request_too_large badrequest.toolarge",
    _K.CONTENT_FILTER: "content_filter content_policy_violation responsibleaipolicyviolation datainspectionfailed "
    "data_inspection_failed",
    _K.RATE_LIMITED: "rate_limit_exceeded rate_limit_error rate_limit_reached_error rate_limited tokens requests "
    "too_many_requests_error too_many_tokens_error throttling throttling.ratequota throttling.allocationquota "
    "limit_requests limit_burst_rate",
    _K.OVERLOADED: "slow_down server_is_overloaded engine_overloaded engine_overloaded_error service_unavailable "
    "overloaded_error service_tier_capacity_exceeded queue_exceeded",
    _K.SERVER: "server_error internal_error internalservererror internal_server_error internalerror api_error",
    _K.TIMEOUT: "timeout_error requesttimeout",
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
#: Numbers that are codes of one family. Z.ai: docs.z.ai/api-reference/api-code; what it calls a limit of the day, the
#: week or the plan (1304, 1308 to 1310) no wait of ours cures. Mistral: 3051 is "too large for model", and what the
#: model cannot do (error_phrases.py tells them apart), 3505 "Service tier capacity exceeded".
_NUMBERS: Final = {
    "zai": {
        _K.AUTHENTICATION: "1000 1001 1002 1003 1004",
        _K.PERMISSION: "1110 1111 1112 1121 1220 1311",
        _K.BILLING: "1113 1304 1308 1309 1310",
        _K.NOT_FOUND: "1211 1221 1222",
        _K.INVALID_REQUEST: "1210 1212 1213 1214 1215 1231",
        _K.SERVER: "1120 1200 1230 1234",
        _K.CONTEXT_LENGTH: "1261",
        _K.CONTENT_FILTER: "1300 1301",
        _K.RATE_LIMITED: "1302 1303 1305",
        _K.OVERLOADED: "1312",
    },
    "mistral": {
        _K.RATE_LIMITED: "1300",
        _K.NOT_FOUND: "1500",
        _K.CONTEXT_LENGTH: "3051",
        _K.INVALID_REQUEST: "3230",
        _K.OVERLOADED: "3505",
    },
}
KINDS: Final[Mapping[tuple[str, int, str], ErrorKind]] = {
    **{(ANY, status, ""): kind for kind, statuses in _STATUSES.items() for status in statuses},
    **{(ANY, 0, code): kind for kind, codes in _CODES.items() for code in codes.split()},
    **{("bedrock", 0, code): kind for kind, codes in _BEDROCK.items() for code in codes.split()},
    ("azure", 401, "permissiondenied"): _K.PERMISSION,  # an Entra identity without the role
    **{
        (family, 0, number): kind
        for family, rows in _NUMBERS.items()
        for kind, numbers in rows.items()
        for number in numbers.split()
    },
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
    # Cerebras sends a prompt that is too long back without a body (pi's list of overflow errors, pi issue 4943).
    ("cerebras", 413, ""): _K.CONTEXT_LENGTH,
    ("copilot", 0, "quota_exceeded"): _K.BILLING,
}
#: Kinds that say little: the words of the message, or another server's error inside this one, may say more.
_BROAD: Final = frozenset(
    {_K.INVALID_REQUEST, _K.OTHER, _K.SERVER, _K.NOT_FOUND, _K.REQUEST_TOO_LARGE, _K.CONTEXT_LENGTH}
)
#: Of these, the inner error counts where it is of another kind.
_VAGUE: Final = frozenset({_K.INVALID_REQUEST, _K.OTHER, _K.SERVER})
_HTTP_STATUS: Final = re.compile(r"0|[1-5]\d\d")
#: Gateways pass on errors of gateways: OpenRouter's of Vertex's of Anthropic's is the deepest seen.
_MAX_LAYERS: Final = 4


def make_error(
    kind: ErrorKind,
    message: str,
    raw: str = "",
    *,
    retryable: bool | None = None,
    retry_after: float | None = None,
    status: int = 0,
    code: str = "",
    context_tokens: int | None = None,
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
    return Error(kind, message, retryable, retry_after, raw, status, code, context_tokens=context_tokens)


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


def by_status(error: Error) -> Error:
    """Of a request without tools, or without a schema: an error about them means something else, as its status says."""
    return replace(error, kind=error_kind(ANY, error.status)) if error.kind in _ABOUT_A_PART else error


_ABOUT_A_PART: Final = frozenset({_K.TOOLS_UNSUPPORTED, _K.SCHEMA_UNSUPPORTED})


class _Said(NamedTuple):
    """What one error document says. Codes are the provider's code, type and status words, the most telling first."""

    message: str
    codes: tuple[str, ...] = ()
    status: int = 0
    """The HTTP status that it names; 0: none."""
    context_tokens: int | None = None
    inner: Json = None
    """The error of another server that this one passes on."""
    inner_server: str = ""


def _read_error(payload: Json) -> _Said:
    """Known shapes: {"error": {..} | "text"}, {"detail": ..}, {"message": ..}."""
    payload = _first(payload)  # Gemini wraps the error of a stream in an array
    if not isinstance(payload, dict):
        return _Said(_shown(payload))
    inner = payload.get("error") or payload.get("detail") or payload.get("errors") or payload
    inner = _first(inner) or payload
    if not isinstance(inner, dict):
        words = _words(payload.get("code"), payload.get("type"), payload.get("error_type"))
        return _Said(_shown(inner), words, _status(payload.get("status")), inner=_document(inner))
    message = inner.get("message") or inner.get("msg") or inner.get("error") or payload.get("message") or inner
    code, kind, status = inner.get("code"), inner.get("type"), inner.get("status")
    number = _status(code) or _status(inner.get("status_code")) or _status(status)
    reasons = [detail.get("reason") for detail in details_of(inner)]  # such as Gemini's API_KEY_INVALID
    azure = inner.get("innererror")
    reasons += [azure.get("code")] if isinstance(azure, dict) else []
    metadata = inner.get("metadata")  # OpenRouter: whose error it is, and the error as that server sent it
    metadata = metadata if isinstance(metadata, dict) else {}
    raw, server = metadata.get("raw"), metadata.get("provider_name")
    return _Said(
        _shown(message),
        _words(*reasons, code, kind, status),
        number,
        window_of(inner.get("n_ctx")),  # llama.cpp
        _document(raw) or raw or _document(message),
        server if isinstance(server, str) else "",
    )


def _layers(payload: Json) -> Iterator[_Said]:
    """The error, then the error of another server that it passes on, and so on."""
    for _ in range(_MAX_LAYERS):
        said = _read_error(payload)
        yield said
        payload = said.inner
        if not payload:
            return


def _document(value: Json) -> Json:
    """The JSON document that a text holds: some gateways pass an error on so, and LiteLLM puts words before and behind
    it. None for any other text."""
    text = unwrapped(value) if isinstance(value, str) else ""
    if not text.startswith(("{", "[")):
        return None
    try:
        return loads(text[: max(text.rfind("}"), text.rfind("]")) + 1].encode())
    except SHAPE_ERRORS:
        return None


def _kind_of(family: str, status: int, layers: Sequence[_Said]) -> tuple[ErrorKind, int | None]:
    """The kind of an error and the window that it names: the first layer decides, unless it says little."""
    kind = error_kind(family, status, layers[0].codes)
    context_tokens = next((said.context_tokens for said in layers if said.context_tokens), None)
    if kind not in _BROAD:
        return kind, None
    for said in layers:
        by_words, named = kind_of_phrase(family, said.message)
        if by_words is not None:
            return by_words, named or context_tokens
    for said in layers[1:]:
        inner = error_kind(ANY, said.status, said.codes)
        if kind in _VAGUE and inner not in _VAGUE:
            return inner, context_tokens
    return kind, context_tokens


def error_from_payload(
    family: str, payload: Json, status: int = 200, headers: Mapping[str, str] | None = None, raw: bytes | None = None
) -> Error:
    """The Error that a JSON error document means. `status` is the HTTP status it came with, 200 inside a stream.

    `headers` have lower case names. `raw` is shown as snippet, the payload itself where it is left out.
    """
    shown = snippet(json_text(payload) if raw is None else raw)
    payload, headers, layers = _first(payload), headers or {}, tuple(_layers(payload))
    real_status = status if status >= 400 else layers[0].status or status
    kind, context_tokens = _kind_of(family, real_status, layers)
    return make_error(
        kind,
        _message_of(layers) or f"The provider sent an error without a message (HTTP {real_status}).",
        shown,
        retryable=should_retry(headers),
        retry_after=retry_after_seconds(headers, payload),
        status=real_status if real_status >= 400 else 0,
        code=snippet(next((code for said in layers for code in said.codes), "")),
        context_tokens=context_tokens if kind is _K.CONTEXT_LENGTH else None,
    )


def _message_of(layers: Sequence[_Said]) -> str:
    """What to show: the gateway's words, and those of the server behind it."""
    outer, innermost = layers[0], layers[-1]
    server = next((said.inner_server for said in layers if said.inner_server), "")
    if innermost is outer:
        return snippet(f"{outer.message} ({server})" if server and outer.message else outer.message)
    behind = f"{server}: {innermost.message}" if server else innermost.message
    return snippet(behind if _document(outer.message) else f"{outer.message} ({behind})")


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
    """Codes among these values: words, and numbers that are no HTTP status."""
    numbers = (str(value) if isinstance(value, int) and not isinstance(value, bool) else value for value in values)
    return tuple(word for word in numbers if isinstance(word, str) and word and not _HTTP_STATUS.fullmatch(word))


def _status(value: Json) -> int:
    """400 or "400" as a status; 0 for what is none."""
    if not isinstance(value, int | str) or (isinstance(value, int) and not 0 <= value <= 999):
        return 0
    number = int(value) if str(value).isdecimal() and len(str(value)) == 3 else 0
    return number if number >= 400 else 0

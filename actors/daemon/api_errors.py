"""What went wrong with a call over HTTP, and how each API writes it.

The shapes are those of the API references: OpenAI (`error` with message, type, param, code), Anthropic (`type: error`
with an `error` of type and message). The native API's is OpenAI's, so that one client library reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from callboard.actors.daemon.json_bytes import json_bytes
from callboard.protocol.errors import ErrorKind, OutcomeUnknown, ProviderError, RuntimeFailure, UsageError, said
from callboard.protocol.masking import for_log

#: A client that is refused for want of room may try again after this time.
RETRY_SECONDS: Final = 1
#: One that comes while the daemon stops, to be started again.
DRAIN_RETRY_SECONDS: Final = 5
#: On an answer that would be the same again, for OpenAI's and Anthropic's clients, which try twice more by themselves.
NO_RETRY: Final[Mapping[str, str]] = {"x-should-retry": "false"}
#: Of every answer that does not say otherwise: it is no page, whatever it looks like, and no cache keeps it.
SAFE_HEADERS: Final[Mapping[str, str]] = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class Api(StrEnum):
    """In whose words an endpoint speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    NATIVE = "native"


class ApiError(Exception):
    """A call over HTTP cannot be served. The message goes to the client."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """`code`: one word for programs, such as "model_not_found". `param`: the field that is wrong."""
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers: Mapping[str, str] = headers or {}


def bad_field(param: str, message: str) -> ApiError:
    """A field of the body is wrong."""
    return ApiError(400, "invalid_request", message, param=param)


def not_found(what: str) -> ApiError:
    """There is no such thing, or it belongs to another tenant: the answer is the same."""
    return ApiError(404, "not_found", what)


def goes_on_later(request_id: str) -> ApiError:
    """The daemon stops, and goes on with the request when it is back: no refusal, and not to be asked again."""
    told = f"the server is stopping, and goes on with the request when it is back: GET /api/requests/{request_id}"
    return ApiError(504, "unknown", told, headers=NO_RETRY)


def overloaded(message: str, retry_after_seconds: float = RETRY_SECONDS) -> ApiError:
    """There is no room now."""
    return ApiError(429, "overloaded", message, headers={"Retry-After": str(max(1, round(retry_after_seconds)))})


class _Row(Struct, frozen=True):
    status: int
    code: str


#: What a provider's failure is to a client of ours. A key of ours that a provider refuses is no fault of the client.
_OF_PROVIDERS: Final[Mapping[ErrorKind, _Row]] = {
    ErrorKind.AUTHENTICATION: _Row(502, "provider_authentication"),
    ErrorKind.PERMISSION: _Row(502, "provider_permission"),
    ErrorKind.BILLING: _Row(502, "provider_billing"),
    ErrorKind.QUOTA_SPENT: _Row(502, "provider_quota_spent"),
    ErrorKind.NOT_FOUND: _Row(404, "model_not_found"),
    ErrorKind.INVALID_REQUEST: _Row(400, "invalid_request"),
    ErrorKind.CONTEXT_LENGTH: _Row(400, "context_length_exceeded"),
    ErrorKind.REQUEST_TOO_LARGE: _Row(413, "request_too_large"),
    ErrorKind.TOOLS_UNSUPPORTED: _Row(400, "tools_unsupported"),
    ErrorKind.SCHEMA_UNSUPPORTED: _Row(400, "schema_unsupported"),
    ErrorKind.UNSUPPORTED: _Row(400, "unsupported"),
    ErrorKind.CONTENT_FILTER: _Row(400, "content_filter"),
    ErrorKind.RATE_LIMITED: _Row(429, "rate_limit_exceeded"),
    ErrorKind.OVERLOADED: _Row(503, "provider_overloaded"),
    ErrorKind.TIMEOUT: _Row(504, "provider_timeout"),
}
_OTHER: Final = _Row(502, "provider_error")


def error_of(error: BaseException) -> ApiError:
    """What an exception of callboard is to a client; one that callboard does not raise on purpose says nothing of
    itself."""
    match error:
        case ApiError():
            return error
        case ProviderError():
            row = _OF_PROVIDERS.get(error.kind, _OTHER)
            wait = error.retry_after_seconds
            headers = {"Retry-After": str(max(1, round(wait)))} if wait is not None else None
            return ApiError(row.status, row.code, said(error), headers=headers)
        case UsageError():
            return ApiError(400, "invalid_request", said(error))
        case OutcomeUnknown():
            return ApiError(504, "unknown", said(error), headers=NO_RETRY)
        case RuntimeFailure() if str(error).startswith("draining"):
            return ApiError(503, "draining", said(error), headers={"Retry-After": str(DRAIN_RETRY_SECONDS)})
        case RuntimeFailure() if str(error).startswith("overloaded"):
            return overloaded(said(error))
        case RuntimeFailure():
            return ApiError(503, "unavailable", said(error))
    return ApiError(500, "internal_error", "a fault in callboard; its log has the rest")


#: The word of each status in OpenAI's `type` and in Anthropic's.
_TYPES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "invalid_request_error"),
    401: ("authentication_error", "authentication_error"),
    403: ("permission_error", "permission_error"),
    404: ("invalid_request_error", "not_found_error"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "rate_limit_error"),
    503: ("server_error", "overloaded_error"),
    529: ("server_error", "overloaded_error"),
}


#: By this code, in `details`, Anthropic's clients know that they must send the whole conversation, and do: their tool
#: runners ask first for one that the server holds.
NO_THREADS: Final = "thread_unsupported_request"


def _types(status: int) -> tuple[str, str]:
    known = ("invalid_request_error", "invalid_request_error") if status < 500 else ("server_error", "api_error")
    return _TYPES.get(status, known)


def error_body(api: Api, error: ApiError) -> dict[str, object]:
    """The error as the API writes it. What looks like a key in its message is masked."""
    if api is Api.ANTHROPIC:
        told: dict[str, object] = {"type": _types(error.status)[1], "message": for_log(error.message)}
        if error.code == NO_THREADS:
            told["details"] = {"error_code": error.code, "unsupported": []}
        return {"type": "error", "error": told}
    return {"error": error_fields(error)}


def error_fields(error: ApiError) -> dict[str, object]:
    """What OpenAI's `error` has."""
    kind, message = _types(error.status)[0], for_log(error.message)
    return {"message": message, "type": kind, "param": error.param or None, "code": error.code}


#: What of the request is still to come is not read then.
_HANGS_UP: Final = frozenset((408, 413, 414, 431))


def error_response(api: Api, error: ApiError) -> Response:
    """The whole answer."""
    headers = {**error.headers, "Connection": "close"} if error.status in _HANGS_UP else error.headers
    return json_response(error_body(api, error), error.status, headers)


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")

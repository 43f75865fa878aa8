"""Who is let in: the checks of a call over HTTP, in their order. Nothing of its body is read before they have passed.

Host and Origin are checked against pages that have a name of their own point at this machine (DNS rebinding), and
against pages of other sites that send requests in a browser's name. A browser sends Origin with each request that could
change something, so a request with a foreign one is refused, with or without a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from callboard.actors.daemon.access_tokens import AccessToken
from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.daemon import Daemon, host_name
from callboard.actors.daemon.endpoint import Endpoint, HttpCall, Told

#: Bodies of endpoints that take a few words.
SMALL_BODY_BYTES: Final = 64 * 1024
#: Of a body that is refused for its size, so much is read and thrown away, for at most this time: a connection that is
#: closed with bytes unread is reset (RFC 9112, 9.6), and its client may never see why.
LINGER_BYTES: Final = 1024 * 1024
LINGER_SECONDS: Final = 1.0


def check_headers(daemon: Daemon, request: Request) -> None:
    """Raise ApiError for more than a client needs to send."""
    most = daemon.settings.limits.max_header_bytes
    if sum(len(name) + len(value) for name, value in request.headers.raw) > most:
        raise ApiError(431, "headers_too_large", f"the headers may have at most {most:,} bytes")


def check_host(daemon: Daemon, request: Request) -> None:
    """Raise ApiError for a Host that is not one of ours."""
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or host_name(hosts[0]) not in daemon.host_names:
        raise ApiError(421, "wrong_host", "this server does not answer to that name; see allowed_hosts in [daemon]")


def check_origin(daemon: Daemon, request: Request) -> None:
    """Raise ApiError for a page of another site."""
    origin = request.headers.get("origin")
    if origin is None or origin in daemon.settings.allowed_origins:
        return
    scheme, _, rest = origin.partition("://")
    if scheme in ("http", "https") and rest.lower() == request.headers.get("host", "").lower():
        return  # the board's own
    raise ApiError(
        403, "wrong_origin", "pages of that origin may not call this server; see allowed_origins in [daemon]"
    )


def token_of(daemon: Daemon, request: Request, told: Told) -> AccessToken:
    """The caller's token: `Authorization: Bearer ...`, or `x-api-key`, as Anthropic's clients do. Raises ApiError.

    `told` hears whose it is, by its id, also of one that was removed meanwhile: its client is to be found.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if not secret or scheme.lower() != "bearer":
        secret = request.headers.get("x-api-key", "")
    secret = secret.strip()
    found = daemon.tokens.find(secret)
    known = found or daemon.tokens.removed(secret)
    told["tenant"] = known.tenant if known is not None else "unknown"
    told["token_id"] = known.id if known is not None else "unknown" if secret else "none"
    if found is None and secret and daemon.tokens.fault:
        raise ApiError(
            503, "tokens_unreadable", "the tokens of this server cannot be read, so none counts; see its log"
        )
    if found is None:
        what = "the token is not known here" if secret else "this needs a token: Authorization: Bearer TOKEN"
        raise ApiError(401, "invalid_api_key", what, headers={"WWW-Authenticate": "Bearer"})
    return found


def check_scope(endpoint: Endpoint, token: AccessToken) -> None:
    """Raise ApiError for a token that may not do this."""
    if endpoint.scope is not None and token.scope < endpoint.scope:
        needed = endpoint.scope.name.lower()
        raise ApiError(403, "missing_scope", f"this needs a token with the scope {needed!r}")


#: What a page of an allowed origin may send, and read of an answer (WHATWG Fetch, "CORS protocol").
_PREFLIGHT: Final[Mapping[str, str]] = {
    "Access-Control-Allow-Methods": "GET, POST, DELETE",
    "Access-Control-Max-Age": "600",
}
#: A browser's list of headers is sent back to it, if it looks like one: clients of OpenAI and Anthropic send their own.
_HEADER_NAMES: Final = re.compile(r"[A-Za-z0-9, _-]{1,1000}")


def cors_headers(daemon: Daemon, request: Request) -> dict[str, str]:
    """Of every answer: what lets a page of one of the `allowed_origins` read it; nothing for others."""
    if not daemon.settings.allowed_origins:
        return {}
    origin = request.headers.get("origin", "")
    if origin not in daemon.settings.allowed_origins:
        return {"Vary": "Origin"}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "*"}


def preflight(daemon: Daemon, request: Request) -> Response | None:
    """The answer to a browser's question before a call of an allowed origin's page; None for all else."""
    asks_method = "access-control-request-method" in request.headers
    allowed = cors_headers(daemon, request)
    if request.method != "OPTIONS" or not asks_method or "Access-Control-Allow-Origin" not in allowed:
        return None
    check_headers(daemon, request)
    check_host(daemon, request)
    asked = request.headers.get("access-control-request-headers", "")
    names = {"Access-Control-Allow-Headers": asked} if _HEADER_NAMES.fullmatch(asked) else {}
    return Response(status_code=204, headers={**allowed, **_PREFLIGHT, **names})


async def body_of(daemon: Daemon, endpoint: Endpoint, request: Request) -> bytes:
    """The body, bounded in bytes and time. Raises ApiError."""
    limits = daemon.settings.limits
    most = limits.max_body_bytes if endpoint.may_be_large else min(SMALL_BODY_BYTES, limits.max_body_bytes)
    declared = request.headers.get("content-length", "0")
    if not declared.isdigit() or int(declared) > most:
        await _throw_away(request)
        raise ApiError(413, "request_too_large", f"the body may have at most {most:,} bytes")
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise ApiError(413, "request_too_large", f"the body may have at most {most:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise ApiError(408, "body_too_slow", f"the body did not come within {limits.body_seconds:g} s") from None
    except ClientDisconnect:
        raise ApiError(400, "client_left", "the client left before its body had come") from None
    return b"".join(parts)


async def _throw_away(request: Request) -> None:
    """The beginning of a body, as far as it comes in time."""
    size = 0
    with contextlib.suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(LINGER_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > LINGER_BYTES:
                    return


async def let_in(daemon: Daemon, endpoint: Endpoint, request: Request, told: Told) -> HttpCall:
    """All checks, then the body. Raises ApiError."""
    check_headers(daemon, request)
    check_host(daemon, request)
    check_origin(daemon, request)
    token = token_of(daemon, request, told)
    check_scope(endpoint, token)
    daemon.rates.check(token.id, daemon.settings.limits.requests_per_minute)
    if token.tenant not in daemon.tenants:
        raise ApiError(403, "no_tenant", f"the tenant of this token, {token.tenant!r}, is not served here")
    tenant = daemon.tenants[token.tenant]
    if (most := tenant.plan.own.requests_per_minute) is not None:
        daemon.rates.check(f"tenant/{tenant.name}", most, "this tenant")
    await daemon.quotas.check(endpoint.method, endpoint.path, tenant)
    return HttpCall(daemon, request, token, tenant, await body_of(daemon, endpoint, request), told)

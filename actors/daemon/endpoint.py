"""Endpoint: one row of the table of everything that the daemon answers.

The application, the tests of its security and the OpenAPI document are made from the same rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson
from msgspec import Struct
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from callboard.actors.daemon.access_tokens import AccessToken, Scope
from callboard.actors.daemon.api_errors import Api, ApiError
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.tenants import Tenant

Told = dict[str, object]
"""What the log says of a call, beside its path, status and time."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """One call over HTTP that was let in."""

    daemon: Daemon
    request: Request
    token: AccessToken
    tenant: Tenant
    """Of the token."""
    body: bytes = field(default=b"", repr=False)
    told: Told = field(default_factory=dict)

    def json(self) -> dict[str, object]:
        """The body, which must be a JSON object. Raises ApiError."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise ApiError(400, "invalid_json", f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise ApiError(400, "invalid_json", "the body must be a JSON object")
        return found

    def path(self, name: str) -> str:
        """A variable part of the path."""
        return str(self.request.path_params[name])


Handle = Callable[[HttpCall], Awaitable[Response]]
HandleOpen = Callable[[Daemon, Request], Awaitable[Response]]
"""Of an endpoint without a token."""


async def no_open_handler(daemon: Daemon, request: Request) -> Response:
    """Of an endpoint that needs a token."""
    raise ApiError(500, "internal_error", "this endpoint has no handler without a token")


async def no_handler(call: HttpCall) -> Response:
    """Of an endpoint that needs no token."""
    raise ApiError(500, "internal_error", "this endpoint has no handler with a token")


class Endpoint(Struct, frozen=True):
    """What is answered at one method and path."""

    method: str
    path: str
    """As Starlette writes it: "/api/requests/{request_id}"."""
    handle: Handle = no_handler
    handle_open: HandleOpen = no_open_handler
    """In place of `handle` where `scope` is None."""
    api: Api = Api.NATIVE
    """In whose words it answers, errors too."""
    scope: Scope | None = Scope.USE
    """What a token must have; None: it needs no token."""
    summary: str = ""
    body: type[BaseModel] | None = None
    """The model of its JSON body, for the OpenAPI document; the handler checks it."""
    answer: type[BaseModel] | None = None
    """The model of its answer, likewise."""
    is_stream: bool = False
    """Does it answer with server-sent events?"""
    query: type[BaseModel] | None = None
    """The model of what may follow the "?", likewise."""
    status: int = 200
    """Of the answer when all is well."""
    may_be_large: bool = True
    """May its body be as large as `max_body_bytes`? Else 64 KiB."""

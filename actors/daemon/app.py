"""The application: each endpoint behind the guard, errors in the words of its API, a log record of each call."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from callboard.actors.daemon import (
    board_pages,
    chat_completions,
    embeddings_endpoint,
    health,
    messages_endpoint,
    models_endpoint,
    native_actors,
    native_approvals,
    native_conversations,
    native_requests,
    openapi,
    reloads,
    responses_endpoint,
)
from callboard.actors.daemon.api_errors import SAFE_HEADERS, Api, ApiError, error_of, error_response
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.endpoint import Endpoint, Told
from callboard.actors.daemon.guard import (
    check_headers,
    check_host,
    check_origin,
    cors_headers,
    let_in,
    preflight,
)
from callboard.actors.daemon.server_events import EventStream
from callboard.actors.telemetry.timelines import ASKED_BY
from callboard.actors.tools.context import asked_by_others

logger = logging.getLogger("callboard.daemon")

#: Everything that the daemon answers.
ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *health.ENDPOINTS,
    *reloads.ENDPOINTS,
    *chat_completions.ENDPOINTS,
    *messages_endpoint.ENDPOINTS,
    *responses_endpoint.ENDPOINTS,
    *models_endpoint.ENDPOINTS,
    *embeddings_endpoint.ENDPOINTS,
    *board_pages.ENDPOINTS,
    *native_requests.ENDPOINTS,
    *native_approvals.ENDPOINTS,
    *native_conversations.ENDPOINTS,
    *native_actors.ENDPOINTS,
    *openapi.ENDPOINTS,
)
#: Paths of other APIs, whose clients read errors in their own shape also where the path is wrong.
_APIS: Final = (("/v1/messages", Api.ANTHROPIC), ("/v1/", Api.OPENAI))


def make_app(daemon: Daemon, endpoints: Iterable[Endpoint] = ENDPOINTS) -> Starlette:
    """For uvicorn."""
    rows = tuple(endpoints)
    routes = [Route(each.path, Served(daemon, each), methods=[each.method], name=each.path) for each in rows]

    async def wrong_path(request: Request, error: Exception) -> Response:
        try:
            found = preflight(daemon, request) or await _wrong_path(request, error)
        except ApiError as refused:
            found = error_response(Api.NATIVE, refused)
        _for_browsers(daemon, request, found)
        return found

    handlers = {404: wrong_path, 405: wrong_path, 500: wrong_path}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.endpoints = rows
    return app


class Served:
    """ASGI: one endpoint."""

    def __init__(self, daemon: Daemon, endpoint: Endpoint) -> None:
        self._daemon, self._endpoint = daemon, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, request = time.monotonic(), Request(scope, receive)
        told: Told = {}
        try:
            with asked_by_others():
                response = await self._answer(request, told)
        except Exception as error:
            found = error_of(error)
            if found.status == 500:
                logger.exception("%s %s failed", self._endpoint.method, self._endpoint.path)
            response = error_response(self._endpoint.api, found)
        told |= {"status": response.status_code, "seconds": round(time.monotonic() - began, 6)}
        if (request_id := response.headers.get("x-callboard-request-id")) is not None:
            told["request_id"] = request_id
        logger.info("%s %s", self._endpoint.method, self._endpoint.path, extra=told)
        _for_browsers(self._daemon, request, response)
        self._daemon.numbers.answered(self._endpoint.method, self._endpoint.path, response.status_code)
        if isinstance(response, EventStream):
            with self._daemon.streams.held(request.state.token, response):
                await response(scope, receive, send)
        else:
            await response(scope, receive, send)

    async def _answer(self, request: Request, told: Told) -> Response:
        """`told`: for the log, whose call it is, also where it is refused."""
        endpoint = self._endpoint
        if endpoint.scope is None:
            check_headers(self._daemon, request)
            check_host(self._daemon, request)
            check_origin(self._daemon, request)
            return await endpoint.handle_open(self._daemon, request)
        call = await let_in(self._daemon, endpoint, request, told)
        request.state.token = call.token
        ASKED_BY.set(call.token.note or call.token.id)
        return await endpoint.handle(call)


def _for_browsers(daemon: Daemon, request: Request, response: Response) -> None:
    """What each answer says to a browser: what it may be read by, that it is what it says, and not to be kept."""
    response.headers.update(cors_headers(daemon, request))
    for name, value in SAFE_HEADERS.items():
        response.headers.setdefault(name, value)


async def _wrong_path(request: Request, error: Exception) -> Response:
    """No endpoint has this path and method."""
    status = getattr(error, "status_code", 500)
    api = next((api for start, api in _APIS if request.url.path.startswith(start)), Api.NATIVE)
    words = {404: "there is nothing at this path", 405: "this path does not take this method"}
    codes = {404: "not_found", 405: "method_not_allowed"}
    headers = {"Allow": ", ".join(_methods(request))} if status == 405 else None
    message = words.get(status, "a fault in callboard")
    found = ApiError(status, codes.get(status, "internal_error"), message, headers=headers)
    return error_response(api, found)


def _methods(request: Request) -> list[str]:
    """Those that its path takes."""
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    fit = [each for each in routes if each.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for each in fit for method in each.methods or ()})

"""The HTTP client that the SDK's streamable transport uses: bounded answers, judged addresses, and failures of the
network as answers to the request they are about, since the SDK would end the whole connection with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final

import httpx2
import orjson

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.judged_streams import mended
from callboard.actors.mcp.server_thread import (
    MAX_FRAME_BYTES,
    ConnectionLost,
    NotSent,
    RemoteError,
    mark_failed,
    mark_sent,
)
from callboard.actors.policy.addresses import CheckedAddress

logger = logger_of("callboard.mcp")

#: To connect, to write, and for a connection of the pool. An answer takes as long as its call may.
CONNECT_SECONDS: Final = 10.0
#: A stream of which nothing comes for so long is taken for dead.
READ_SECONDS: Final = 660.0
#: The header by which a server of 2025-11-25 knows a session.
_SESSION: Final = "mcp-session-id"
#: JSON-RPC's "internal error" and "method not found".
_INTERNAL_ERROR: Final = -32_603
_METHOD_NOT_FOUND: Final = -32_601

JudgeAddress = Callable[[str], Awaitable[CheckedAddress]]
"""May this address be asked, which a server has named?"""


def http_client(
    url: str, headers: Mapping[str, str], judge: JudgeAddress, auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """For one server. Its own host is the owner's choice; others, such as of its OAuth metadata, are judged."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS)
    transport = _Guarded(httpx2.URL(url), judge)
    return httpx2.AsyncClient(headers=dict(headers), timeout=timeout, auth=auth, transport=transport)


class AddressRefused(httpx2.RequestError):
    """A server named an address that may not be asked."""


class _Guarded(httpx2.AsyncBaseTransport):
    def __init__(self, own: httpx2.URL, judge: JudgeAddress) -> None:
        self._own = own
        self._judge = judge
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        is_own = request.url.host == self._own.host
        if not is_own:
            await self._pin(request)
        if request.method != "POST" or not is_own or "json" not in request.headers.get("content-type", ""):
            return _bounded(await self._inner.handle_async_request(request))
        mark_sent()
        try:
            response = await self._inner.handle_async_request(request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            return _failed(request, NotSent(f"the server cannot be reached: {error}"))
        except httpx2.TransportError as error:
            return _failed(request, ConnectionLost(f"the connection broke: {type(error).__name__}"))
        response = _bounded(response)
        if response.status_code == HTTPStatus.NOT_FOUND and _SESSION in request.headers:
            return await _of_no_session(request, response)
        return response

    async def _pin(self, request: httpx2.Request) -> None:
        """Connect to the address that was judged: a name may lead elsewhere at the next look."""
        judged = await self._judge(str(request.url))
        if judged.refused:
            raise AddressRefused(judged.refused, request=request)
        if judged.addresses:
            request.extensions = {**request.extensions, "sni_hostname": request.url.host}
            request.url = request.url.copy_with(host=judged.addresses[0])

    async def aclose(self) -> None:
        await self._inner.aclose()


def _failed(request: httpx2.Request, failure: RemoteError) -> httpx2.Response:
    """As if the server had answered so; of a notification or an answer of ours, that it has taken it."""
    try:
        asked = orjson.loads(request.content)
    except ValueError:
        asked = None
    asked_id = asked.get("id") if isinstance(asked, dict) and "method" in asked else None
    if asked_id is None:
        return httpx2.Response(202, request=request)
    mark_failed(failure)
    answer = {"jsonrpc": "2.0", "id": asked_id, "error": {"code": _INTERNAL_ERROR, "message": str(failure)}}
    return httpx2.Response(200, json=answer, request=request)


async def _of_no_session(request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
    """404 to a request with a session: the session is gone, and nothing was looked at (2025-11-25, "Session
    Management"). SDKs put words of their own into it: -32001 "Session not found" (TypeScript), -32600 (Python). But
    a server may say by it, too, that it has no such method."""
    try:
        body = await response.aread()
        said = orjson.loads(body)
    except (httpx2.StreamError, ValueError):
        body, said = b"", None
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, dict) and error.get("code") == _METHOD_NOT_FOUND:
        kind = {"content-type": response.headers.get("content-type", "")}
        return httpx2.Response(response.status_code, headers=kind, content=body, request=request)
    words = error.get("message") if isinstance(error, dict) else None
    told = f": {words}" if isinstance(words, str) else ""
    return _failed(request, NotSent(f"its session is gone{told}"))


def _bounded(response: httpx2.Response) -> httpx2.Response:
    """Of a stream of events each is bounded by the SDK; anything else as a whole, by us."""
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    response.stream = _Events(response.stream) if is_events else _Counted(response.stream)
    return response


class _Wrapped(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Counted(_Wrapped):
    """A body that ends in an error which the SDK takes for a bad answer, not for the end of the connection."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        whole = bytearray()
        try:
            async for part in self._inner:
                whole += part
                if len(whole) > MAX_FRAME_BYTES:
                    raise httpx2.StreamError(f"the answer has more than {MAX_FRAME_BYTES:,} bytes")
            body = bytes(whole)
            yield mended(body) or body
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the answer broke off: {type(error).__name__}") from error


class _Events(_Wrapped):
    """A stream that the SDK closes as soon as it has its answer: one that ends by itself has brought none, and the
    SDK makes an error of it which a server might send as well."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        mark_failed(None)
        broke_off = ConnectionLost("the stream of its answer broke off")
        line = bytearray()
        try:
            async for part in self._inner:
                *ended, rest = part.split(b"\n")
                for each in ended:
                    line += each
                    yield _mended_line(bytes(line)) + b"\n"
                    line.clear()
                line += rest
                if len(line) > MAX_FRAME_BYTES:  # the SDK ends the stream for it
                    yield bytes(line)
                    line.clear()
        except httpx2.TransportError:
            mark_failed(broke_off)
            raise
        yield bytes(line)
        mark_failed(broke_off)


def _mended_line(line: bytes) -> bytes:
    if line.startswith(b"data:") and (text := mended(line.removeprefix(b"data:").strip())) is not None:
        return b"data: " + text
    return line

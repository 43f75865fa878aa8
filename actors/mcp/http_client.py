"""The HTTP client that the SDK's streamable transport uses: bounded answers, judged addresses, and failures of the
network as answers to the request they are about, since the SDK would end the whole connection with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

import httpx2
import orjson

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.server_thread import MAX_FRAME_BYTES, mark_sent
from callboard.actors.policy.addresses import CheckedAddress

logger = logger_of("callboard.mcp")

#: To connect, to write, and for a connection of the pool. An answer takes as long as its call may.
CONNECT_SECONDS: Final = 10.0
#: A stream of which nothing comes for so long is taken for dead.
READ_SECONDS: Final = 660.0
#: Codes of our own, in the range that JSON-RPC leaves to applications: what became of a request.
NOT_SENT_CODE: Final = -31_001
LOST_CODE: Final = -31_002

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
            mark_sent(sent=False)
            return _failed(request, NOT_SENT_CODE, f"the server cannot be reached: {error}")
        except httpx2.TransportError as error:
            return _failed(request, LOST_CODE, f"the connection broke: {type(error).__name__}")
        return _bounded(response)

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


def _failed(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    """As if the server had answered so; of a notification, that it has taken it."""
    try:
        asked = orjson.loads(request.content)
    except ValueError:
        asked = None
    asked_id = asked.get("id") if isinstance(asked, dict) and "method" in asked else None
    if asked_id is None:
        return httpx2.Response(202, request=request)
    answer = {"jsonrpc": "2.0", "id": asked_id, "error": {"code": code, "message": message}}
    return httpx2.Response(200, json=answer, request=request)


def _bounded(response: httpx2.Response) -> httpx2.Response:
    """Of a stream of events each is bounded by the SDK; anything else as a whole, by us."""
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Counted(response.stream)
    return response


class _Counted(httpx2.AsyncByteStream):
    """A body that ends in an error which the SDK takes for a bad answer, not for the end of the connection."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for part in self._inner:
                size += len(part)
                if size > MAX_FRAME_BYTES:
                    raise httpx2.StreamError(f"the answer has more than {MAX_FRAME_BYTES:,} bytes")
                yield part
        except httpx2.TransportError as error:
            raise httpx2.StreamError(f"the answer broke off: {type(error).__name__}") from error

    async def aclose(self) -> None:
        await self._inner.aclose()

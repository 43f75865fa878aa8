"""The only file of providers/ that opens a connection: model calls go over aiohttp, asked directly.

httpx is around it: addresses, TLS settings, the exceptions (httpx-aiohttp names aiohttp's so), and any transport of
httpx's that a host or a test gives. Through a proxy the bytes go over httpx-aiohttp's transport. httpx.AsyncClient is
not used: it would add cookies, auth flows and redirects, none of which a model API needs. At 1,000 open streams its own
pool (httpcore) takes 17.0 ms of CPU a call where this takes 2.7 (benchmarks/transport.py --streams 1000).

Environment variables (HTTP_PROXY, SSL_CERT_FILE, .netrc) are NOT looked at here: a proxy and whom to trust are given
by `proxy=` (environment_proxy.py reads the variables) and `verify=`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit, urlunsplit
from weakref import WeakSet

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_aiohttp.transport import map_aiohttp_exceptions
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.masking import for_log
from callboard.protocol.model import Done, Error, ModelRequest, StreamEvent
from callboard.protocol.values import repr_without
from callboard.providers.adapter import (
    CREDENTIAL_HEADERS,
    Adapter,
    AsksServer,
    Authorizer,
    Decoder,
    HasAddress,
    HttpAnswer,
    Timeouts,
    WireRequest,
)
from callboard.providers.call_deadline import CallDeadline, CallTimedOut
from callboard.providers.credentials import CredentialError
from callboard.providers.http_errors import make_error, scrubbed, snippet, without_key
from callboard.providers.own_options import NO_OPTIONS, OptionTable, check_own

#: An answer to other than a model call: a page of embeddings takes 2 MB, a token a few hundred bytes.
MAX_FETCHED_BYTES: Final = 16 * 1024 * 1024
#: A finished stream is read to its very end, so that the connection can be used again; a server that keeps it open
#: longer than this loses it.
_DRAIN_SECONDS: Final = 0.25
_KEEPALIVE_SECONDS: Final = 30.0
#: Of one header: gateways write a whole policy or trace into one, and 64 KiB is what Node and nginx are set to at most.
_MAX_HEADER_BYTES: Final = 64 * 1024
#: The most that one read gives: 150 events of 100 bytes, which take the decoder 0.5 ms.
_READ_BYTES: Final = 16 * 1024
#: A read that gives one event takes the loop 0.1 ms, with all that it wakes (benchmarks/sessions.py). So of n streams
#: that are fast, each is read once in n times this, and what came meanwhile is read together: they take a quarter of a
#: core. One stream alone is read as it comes.
_REST_SECONDS_EACH: Final = 0.0004
_MAX_REST_SECONDS: Final = 0.05
_LONG_AGO: Final = float("-inf")

HeaderListener = Callable[[int, Mapping[str, str]], None]
"""Gets the status and the headers (lower case names) of each answer: the rate limiter listens."""

ProxyFor = Callable[[str], str]
"""From the address that is asked to that of the proxy; "": none."""
Verify = bool | str | Path | ssl.SSLContext

AnyTransport = httpx.AsyncBaseTransport
"""What carries the bytes: a test gives httpx.MockTransport."""

#: All that can come out of httpx, of aiohttp where httpx-aiohttp does not translate it, and of the socket below.
_TRANSPORT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, aiohttp.ClientError, OSError)
#: What a kept connection that the server has closed meanwhile ends in, before any byte of an answer. Servers close idle
#: connections without a word, and llama.cpp closes each one after a stream.
_STALE: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
#: What would end a header before its time.
_UNSENDABLE: Final = re.compile(r"[\r\n\0]")


class HttpProvider:
    """A model behind HTTP: `adapter` translates, this carries the bytes. One connection pool per event loop.

    A model call is one HTTP request, never two: whether there is another, its caller decides. The last one that it may
    send (`ModelRequest.is_last_try`) gets a connection of its own, since the server may have closed a kept one.

    Close the iterator of `stream` (contextlib.aclosing) when leaving it early: that, like cancelling the task that
    reads it, closes the connection at once.
    """

    def __init__(
        self,
        adapter: Adapter,
        *,
        timeouts: Timeouts | None = None,
        on_headers: HeaderListener | None = None,
        proxy: str | ProxyFor = "",
        verify: Verify = True,
        transport: AnyTransport | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        """`authorizer`: adds the credential, where the adapter has none of its own. `proxy`: the address of an HTTP
        proxy, or what tells it for each address. `verify`: whom to trust; a path is that of certificates of one's own.
        Raises UsageError where none can be read from there."""
        self.adapter = adapter
        self.address = adapter.address if isinstance(adapter, HasAddress) else ""
        """See `HasAddress.address`."""
        self._authorizer = authorizer
        self._timeouts = timeouts or Timeouts()
        self._on_headers = on_headers
        self._proxy = proxy
        # Read here, and not on the loop when the provider is first asked.
        self._tls = _tls(verify)
        self._given: _Sender | None = _OverHttpx(transport) if transport is not None else None
        self._connections: dict[asyncio.AbstractEventLoop, dict[str, _Connections]] = {}
        """Of each loop, by the proxy that they go through."""

    @property
    def name(self) -> str:
        return self.adapter.name

    async def stream(
        self, request: ModelRequest, /, adapter: Adapter | None = None, timeouts: Timeouts | None = None
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """See `Provider.stream`. With another adapter it uses the same connections: Copilot has one for each token and
        route. `timeouts` take the place of the provider's own."""
        adapter = adapter or self.adapter
        wire = adapter.encode(request)
        deadline = CallDeadline(timeouts or self._timeouts)
        ended = False
        try:
            wire = await self._authorized(wire, deadline)
            answer = await self._send(wire, deadline, is_last_try=request.is_last_try)
            try:
                decoder, read = self._decoder(adapter, wire, request.stream, answer, deadline), answer.body.read
                try:
                    while not ended and (chunk := await deadline.run(read())):
                        if events := decoder.feed(chunk):  # one list a socket read
                            ended = isinstance(events[-1], Done | Error)
                            if not ended:
                                answer.body.rest()
                            yield await self._ended(events, wire, deadline) if ended else events
                            if isinstance(events[-1], Done):  # read on to the end, or give the connection up
                                deadline.shorten(_DRAIN_SECONDS)
                                while await deadline.run(read()):
                                    continue
                except (CallTimedOut, *_TRANSPORT_ERRORS):
                    # An error's status has said what is wrong: the body that does not end, or breaks off, explains it.
                    if answer.status < 400:
                        raise
                if not ended and (events := decoder.finish()):
                    ended = True
                    yield await self._ended(events, wire, deadline)
            finally:
                await answer.body.aclose()
        except (ProviderError, CallTimedOut, _Redirected, _StaleConnection, *_TRANSPORT_ERRORS) as error:
            # What goes wrong after a finished answer changes nothing about it.
            if not ended:
                yield _with_notes([self._failure(error, wire.url)], wire)
        finally:
            deadline.cancel()

    def own_options(self, model: str) -> OptionTable:
        """See `ChecksRequests.own_options`."""
        return _table(self.adapter)

    def check(self, request: ModelRequest, /, adapter: Adapter | None = None) -> None:
        """See `ChecksRequests.check`: the request is written, and not sent."""
        adapter = adapter or self.adapter
        check_own(_table(adapter), request.provider_options)
        adapter.encode(request)

    async def fetch(self, wire: WireRequest) -> HttpAnswer:
        """A whole answer, to other than a model call. ProviderError if none comes, or more than MAX_FETCHED_BYTES.

        Where the server has closed a kept connection, the request is sent once more: these are not counted."""
        deadline = CallDeadline(self._timeouts)
        host, body = _host(wire.url), bytearray()
        try:
            try:
                answer = await self._send(wire, deadline)
            except _StaleConnection:
                answer = await self._send(wire, deadline)
            try:
                while chunk := await deadline.run(answer.body.read()):
                    body += chunk
                    if len(body) > MAX_FETCHED_BYTES:
                        why = f"The answer of {host} is longer than {MAX_FETCHED_BYTES} bytes."
                        raise ProviderError(ErrorKind.MALFORMED, why)
                return HttpAnswer(answer.status, bytes(body), _told(answer.headers))
            finally:
                await answer.body.aclose()
        except (CallTimedOut, *_TRANSPORT_ERRORS) as error:
            failure = self._failure(error, wire.url)
            raise ProviderError(failure.kind, failure.message) from None
        finally:
            deadline.cancel()

    async def inquire(self, path: str, body: bytes | None = None) -> HttpAnswer:
        """See `Inquirable.inquire`."""
        if not isinstance(self.adapter, AsksServer):
            raise UsageError(f"{self.name} has no questions but model calls")
        wire = self.adapter.question(path, body)
        return await self.fetch(wire if self._authorizer is None else await self._authorizer.authorize(wire))

    async def aclose(self) -> None:
        """Close the connections of the running loop."""
        for connections in self._connections.pop(asyncio.get_running_loop(), {}).values():
            # Not by TLS's own goodbye: a server that does not answer it would still be waited for when the loop ends.
            await asyncio.gather(*(connector.close(abort_ssl=True) for connector in connections.connectors))
            await connections.kept.aclose()
            await connections.single.aclose()

    async def _authorized(self, wire: WireRequest, deadline: CallDeadline) -> WireRequest:
        if self._authorizer is None:
            return wire
        try:
            return await deadline.run(self._authorizer.authorize(wire))
        except CallTimedOut:
            raise CredentialError("no credential came in the time of the call", retryable=True) from None

    async def _ended(self, events: list[StreamEvent], wire: WireRequest, deadline: CallDeadline) -> list[StreamEvent]:
        """The events; an error at their end says which host it is from, and holds nothing of what was sent as a
        credential. Where that was refused, the next try may have another at once."""
        if isinstance(error := events[-1], Error):
            host = _host(wire.url)
            answered = f"{host} answered HTTP {error.status}" if error.status else host
            error = replace(error, message=f"{answered}: {error.message}")
            if self._authorizer is not None:
                for secret in _credentials(wire):
                    error = scrubbed(error, secret)
                if error.kind is ErrorKind.AUTHENTICATION and await self._has_another(self._authorizer, wire, deadline):
                    error = replace(error, retryable=True, at_once=True)
            events = [*events[:-1], error]
        return _with_notes(events, wire)

    async def _has_another(self, authorizer: Authorizer, wire: WireRequest, deadline: CallDeadline) -> bool:
        try:
            async with asyncio.timeout_at(deadline.call_ends_at):
                return await authorizer.is_renewed(wire)
        except (ProviderError, TimeoutError):
            return False  # what the server said is what the user should hear

    def _decoder(
        self, adapter: Adapter, wire: WireRequest, streaming: bool, answer: _Answer, deadline: CallDeadline
    ) -> Decoder:
        status = answer.status
        headers = _told(answer.headers)
        if self._on_headers is not None:
            self._on_headers(status, headers)
        if 300 <= status < 400:
            location = snippet(headers.get("location", ""))
            for secret in _credentials(wire):
                location = without_key(location, secret)
            raise _Redirected(f"redirects to {for_log(location) or 'nowhere'}; set base_url to where the API is")
        if status >= 400:
            deadline.shorten(self._timeouts.error_body_seconds)
        return adapter.decoder(status, headers, streaming)

    async def _send(self, wire: WireRequest, deadline: CallDeadline, *, is_last_try: bool = False) -> _Answer:
        """The answer's head. _StaleConnection where a kept connection turns out to be closed; for as long as
        connections are kept, none of them is used then, since the server is likely to have closed the others too."""
        question = self._question(wire)
        path = question.url.raw_path.partition(b"?")[0]
        if b"%" in path or _escaped_path.get():
            _escaped_path.set(path.decode("ascii") if b"%" in path else "")
        if self._given is not None:
            return (await deadline.run(self._given.send(question))).decompressed()
        connections = self._open_connections(self._proxy_for(wire.url))
        if is_last_try or connections.are_doubtful:
            return (await deadline.run(connections.single.send(question))).decompressed()
        if _is_used_again.get():
            _is_used_again.set(False)
        try:
            return (await deadline.run(connections.kept.send(question))).decompressed()
        except httpx.TransportError as error:
            cause = error.__cause__
            if not (_is_used_again.get() and isinstance(cause, _STALE)):
                raise
            connections.doubtful_until = asyncio.get_running_loop().time() + _KEEPALIVE_SECONDS
            raise _StaleConnection from error

    def _question(self, wire: WireRequest) -> _Question:
        # A compressed stream reaches us in lumps, when the compressor's window is full.
        headers = {**wire.headers, "accept-encoding": "identity"}
        text = "".join((*headers, *headers.values()))
        if _UNSENDABLE.search(text):
            raise UsageError(f"A header of {self.name} holds a line break; does its key end with one?")
        if "@" in urlsplit(wire.url).netloc and "authorization" in headers:
            raise UsageError(f"The address of {self.name} holds a user, and there is a key too; leave one of them out.")
        try:
            text.encode("ascii")
            return _Question(wire.method, _parsed_url(wire.url), headers, wire.body, self._timeouts.connect_seconds)
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            why = str(error)
        # Out here: the UnicodeEncodeError holds the header with the key, and would go along as the context.
        raise UsageError(f"The address or a header of {self.name} cannot be sent: {why}")

    def _open_connections(self, proxy: str) -> _Connections:
        of_loop = self._connections.setdefault(asyncio.get_running_loop(), {})
        if (connections := of_loop.get(proxy)) is None:
            # No limit of connections here: how many calls run at once is decided above, and a queue here would look
            # like a stalled server.
            kept = _KeptConnections(self._tls)
            single = aiohttp.TCPConnector(limit=0, force_close=True, ssl=self._tls)
            over = (self._over(kept, proxy), self._over(single, proxy))
            connections = of_loop[proxy] = _Connections(*over, (kept, single))
        return connections

    def _over(self, connector: aiohttp.TCPConnector, proxy: str) -> _Sender:
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=[_as_escaped],
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        )
        if proxy:
            through = _proxy(proxy)
            return _OverHttpx(AiohttpTransport(verify=self._tls, trust_env=False, proxy=through, client=session))
        return _OverAiohttp(session)

    def _proxy_for(self, url: str) -> str:
        return self._proxy if isinstance(self._proxy, str) else self._proxy(url)

    def _failure(self, error: Exception, url: str) -> Error:
        if isinstance(error, ProviderError):
            return make_error(error.kind, f"{self.name} was not asked: {error}.", retryable=error.retryable)
        host = _host(url)
        if proxy := self._proxy_for(url):  # which may be what is wrong
            host = f"{host} (through the proxy {_host(proxy)})"
        if isinstance(error, _StaleConnection):
            message = f"{host} closed a connection that it had kept open; the next request gets a new one."
            return replace(make_error(ErrorKind.CONNECTION, message), at_once=True)
        if isinstance(error, CallTimedOut | _Redirected):
            kind = ErrorKind.TIMEOUT if isinstance(error, CallTimedOut) else ErrorKind.NOT_FOUND
            return make_error(kind, f"{host} {error}.")
        # httpx-aiohttp calls a refused or reset connection a timeout; the cause knows better.
        if isinstance(error.__cause__ or error, TimeoutError):
            return make_error(ErrorKind.TIMEOUT, f"{host} sent nothing for {self._timeouts.connect_seconds:g} s.")
        return make_error(ErrorKind.CONNECTION, _what_broke(error, host))


def _proxy(address: str) -> httpx.Proxy:
    """A password is given as a header: as `auth`, aiohttp takes it in a form that it is about to drop."""
    parts = urlsplit(address)
    if parts.username is None:
        return httpx.Proxy(address)
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return httpx.Proxy(bare, headers={"authorization": f"Basic {b64encode(login).decode()}"})


def _table(adapter: Adapter) -> OptionTable:
    """That of a user's own adapter too, if it has one."""
    table: OptionTable = getattr(adapter, "own_options", NO_OPTIONS)
    return table


def _host(url: str) -> str:
    """The host of an address and its port, if it names one; never the user or the password."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


#: What kinds of broken connections are called, the most exact first.
_BREAKS: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (ssl.SSLCertVerificationError, "The certificate of {host} is not valid"),
    (ssl.SSLError, "{host} does not speak TLS as it should (https:// to a server of http://?)"),
    (socket.gaierror, "The name of {host} cannot be found"),
    (ConnectionRefusedError, "{host} refused the connection"),
    (ConnectionResetError, "{host} broke the connection off"),
)


def _what_broke(error: BaseException, host: str) -> str:
    """One sentence about a connection; never the request."""
    causes = list(_causes(error))
    for kind, words in _BREAKS:
        if any(isinstance(cause, kind) for cause in causes):
            return words.format(host=host) + "."
    # The words of the first cause that has any.
    said = next((str(cause) for cause in causes if str(cause)), type(error).__name__)
    return f"No connection to {host}, or it broke: {snippet(said).rstrip('.')}."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what led to it, the last first. aiohttp keeps the socket's error as an attribute."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        below = getattr(error, "os_error", None)
        error = below if isinstance(below, OSError) else error.__cause__ or error.__context__


def _credentials(wire: WireRequest) -> list[str]:
    """What the server was told as a credential."""
    return [wire.headers[name].rpartition(" ")[2] for name in CREDENTIAL_HEADERS & wire.headers.keys()]


def _with_notes(events: list[StreamEvent], wire: WireRequest) -> list[StreamEvent]:
    """The end of an answer tells what of its request the API could not express, beside what could not be kept of it."""
    if wire.notes and isinstance(last := events[-1], Done | Error):
        return [*events[:-1], replace(last, notes=(*wire.notes, *last.notes))]
    return events


#: Was the request of this task sent over a connection that had carried another one before?
_is_used_again: ContextVar[bool] = ContextVar("callboard_connection_is_used_again", default=False)


#: The path of this task's request, where it has escapes.
_escaped_path: ContextVar[str] = ContextVar("callboard_escaped_path", default="")


class _KeptConnections(aiohttp.TCPConnector):
    """Says of each connection whether it was used before. (A TraceConfig is asked at each turn of a request: 13 us.)"""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS, ssl=tls)
        self._used = WeakSet[asyncio.Protocol]()

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - as aiohttp names it
    ) -> aiohttp.connector.Connection:
        connection = await super().connect(req, traces, timeout)
        if (protocol := connection.protocol) in self._used:
            _is_used_again.set(True)
        elif protocol is not None:
            self._used.add(protocol)
        return connection


async def _as_escaped(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send escapes as they were written: aiohttp undoes those that it finds needless (%3A), and AWS signs the path."""
    if path := _escaped_path.get():
        request.url = request.url.with_path(path, encoded=True, keep_query=True)
    return await handler(request)


class _Question(Struct):
    """One request."""

    method: str
    url: httpx.URL
    headers: dict[str, str]
    body: bytes
    connect_seconds: float

    __repr__ = repr_without("headers", "body")


class _Body(Protocol):
    """What reads an answer's body, and closes it."""

    def read(self) -> Awaitable[bytes]:
        """What has come, as soon as something has; b"" at the end."""

    def rest(self) -> None:
        """Where many bodies are read, let what comes next be read with what follows it."""

    async def aclose(self) -> None: ...


def _told(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
    """By name, in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


class _Answer(Struct):
    """The head of an answer, and what reads on."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: _Body

    __repr__ = repr_without("headers", "body")

    def decompressed(self) -> _Answer:
        """It, where a server compresses unasked; else as it is."""
        if not any(name.lower() == b"content-encoding" for name, _ in self.headers):
            return self
        response = httpx.Response(self.status, headers=list(self.headers), content=_chunks(self.body))
        return _Answer(self.status, self.headers, _IteratedBody(response.aiter_bytes(), self.body.aclose))


async def _chunks(body: _Body) -> AsyncIterator[bytes]:
    while chunk := await body.read():
        yield chunk


class _Sender(Protocol):
    """What carries the bytes."""

    async def send(self, question: _Question, /) -> _Answer: ...
    async def aclose(self) -> None: ...


class _OverHttpx:
    """Any transport of httpx's, as a host or a test gives it, and aiohttp through a proxy."""

    def __init__(self, transport: AnyTransport) -> None:
        self._transport = transport
        self.aclose = transport.aclose

    async def send(self, question: _Question) -> _Answer:
        seconds = {"connect": question.connect_seconds, "pool": question.connect_seconds}
        request = httpx.Request(
            question.method,
            question.url,
            headers=question.headers,
            content=question.body,
            extensions={"timeout": seconds},
        )
        response = await self._transport.handle_async_request(request)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        body = _IteratedBody(aiter(response.stream), response.stream.aclose)
        return _Answer(response.status_code, response.headers.raw, body)


class _OverAiohttp:
    """aiohttp as httpx-aiohttp uses it, with the same exceptions. Without httpx's objects for request, headers, URL and
    answer, and without a generator and a context manager around each read, a call takes 0.2 ms less of 0.5."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.bodies = 0
        """Are being read."""
        self.aclose = session.close

    async def send(self, question: _Question) -> _Answer:
        try:
            response = await self._session.request(
                question.method,
                str(question.url),
                headers=question.headers,
                data=question.body or None,
                allow_redirects=False,
                auto_decompress=False,
                timeout=_client_timeout(question.connect_seconds),
            )
        except Exception:
            with map_aiohttp_exceptions():
                raise
        return _Answer(response.status, response.raw_headers, _AiohttpBody(response, self))


class _AiohttpBody:
    """Read as it comes from aiohttp."""

    __slots__ = ("_response", "_sender", "_waits_since")

    def __init__(self, response: aiohttp.ClientResponse, sender: _OverAiohttp) -> None:
        self._response = response
        self._sender = sender
        self._waits_since = _LONG_AGO
        sender.bodies += 1

    def read(self) -> Awaitable[bytes]:
        return self._response.content.read(_READ_BYTES)

    def rest(self) -> None:
        seconds = min(self._sender.bodies * _REST_SECONDS_EACH, _MAX_REST_SECONDS)
        loop, connection = asyncio.get_running_loop(), self._response.connection
        now = loop.time()
        is_slower = now - self._waits_since >= seconds
        self._waits_since = now
        if is_slower or connection is None or connection.transport is None:  # nothing of a slower one is held up
            return
        connection.transport.pause_reading()
        loop.call_later(seconds, connection.transport.resume_reading)  # which does nothing once it is closed
        self._waits_since += seconds

    async def aclose(self) -> None:
        self._sender.bodies -= 1
        await self._response.__aexit__(None, None, None)


class _IteratedBody:
    """Read from an iterator of httpx's."""

    def __init__(self, chunks: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]) -> None:
        self._chunks = chunks
        self._close = close

    async def read(self) -> bytes:
        while (chunk := await anext(self._chunks, None)) == b"":  # of a decompressor that needs more
            continue
        return chunk or b""

    def rest(self) -> None:
        """Its transport is another's."""

    async def aclose(self) -> None:
        await self._close()


@lru_cache(maxsize=64)
def _client_timeout(connect_seconds: float) -> aiohttp.ClientTimeout:
    # `connect` is name look-up, handshakes and all. `sock_read` is not set: aiohttp would set a new timer for each
    # read, where `CallDeadline` looks at the clock once in a while.
    return aiohttp.ClientTimeout(sock_connect=connect_seconds, connect=connect_seconds)


class _Connections(Struct):
    """Those of one event loop."""

    kept: _Sender
    """Uses a connection again."""
    single: _Sender
    """Opens one for each request."""
    connectors: tuple[aiohttp.TCPConnector, ...]
    """Below the two."""
    doubtful_until: float = _LONG_AGO
    """By the loop's clock: a kept one was found closed."""

    @property
    def are_doubtful(self) -> bool:
        return asyncio.get_running_loop().time() < self.doubtful_until


class _StaleConnection(Exception):
    """The server has closed a connection that had carried another request before."""


class _Redirected(Exception):
    """The server says that the API is elsewhere."""


@lru_cache(maxsize=64)
def _parsed_url(url: str) -> httpx.URL:
    """httpx takes 20 us to read an address, and a process calls only a few."""
    return httpx.URL(url)


def _tls(verify: Verify) -> ssl.SSLContext:
    if isinstance(verify, ssl.SSLContext):
        return verify
    return _default_tls() if verify is True else _other_tls(str(verify or ""))


@cache
def _default_tls() -> ssl.SSLContext:
    """Reading the certificates takes about 10 ms: once a process."""
    return httpx.create_ssl_context(trust_env=False)


@lru_cache(maxsize=16)
def _other_tls(path: str) -> ssl.SSLContext:
    """Trusts the certificates of a file or folder; any, where there is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not path:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(**{"capath" if os.path.isdir(path) else "cafile": path})
    except OSError as error:  # ssl.SSLError is one
        raise UsageError(f"verify: no certificates can be read from {path}: {error.strerror or error}") from None
    return context

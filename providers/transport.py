"""The only file of providers/ that opens a connection: model calls go over httpx's transport interface.

`HttpTransport` is one over a session of aiohttp's; that of a host's own, or a wrapper around ours, stands in
its place and sees every request. httpx.AsyncClient is not used: it would add cookies, auth flows and redirects, none of
which a model API needs. At 1,000 open streams its own pool (httpcore) takes 17.0 ms of CPU a call where this takes 2.7
(benchmarks/transport.py --streams 1000).

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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit
from weakref import WeakSet

import aiohttp
import httpx
import yarl
from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.masking import for_log
from callboard.protocol.model import Done, Error, ModelRequest, StreamEvent
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
"""What carries the bytes: `HttpTransport`, or another in its place; a test gives httpx.MockTransport."""

#: A request with this extension is not sent over a connection that was used before.
_NEW_CONNECTION: Final = "callboard_new_connection"
#: The extension of an answer that holds its `_AnswerStream`, also where a host's wrapper has put a stream around it.
_OURS: Final = "callboard_stream"

#: All that can come out of a transport of httpx's, and of the socket below one that lets that through.
_TRANSPORT_ERRORS: Final = (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError)
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
        """`authorizer`: adds the credential, where the adapter has none of its own. `transport`: what carries the bytes
        in place of an `HttpTransport(proxy=proxy, verify=verify)`; who gives it closes it."""
        self.adapter = adapter
        self.address = adapter.address if isinstance(adapter, HasAddress) else ""
        """See `HasAddress.address`."""
        self._authorizer = authorizer
        self._timeouts = timeouts or Timeouts()
        self._on_headers = on_headers
        self._proxy = proxy
        self._is_given = transport is not None
        self._transport = HttpTransport(proxy=proxy, verify=verify) if transport is None else transport
        self._last_head: tuple[str, Mapping[str, str], httpx.URL, httpx.Headers] | None = None
        """Address and headers of the last request, and what they were found to be in httpx's words."""

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
            if self._authorizer is not None:
                wire = await self._authorized(self._authorizer, wire, deadline)
            answer = await self._send(wire, deadline, is_last_try=request.is_last_try)
            try:
                headers = _told(answer.headers)
                head = HttpAnswer(answer.status_code, b"", headers)
                decoder = self._decoder(adapter, wire, request.stream, head, deadline)
                chunks = _chunks(answer, headers)
                ours: _AnswerStream | None = answer.extensions.get(_OURS)
                try:
                    while not ended and (chunk := await deadline.run(anext(chunks, None))) is not None:
                        if events := decoder.feed(chunk):  # one list a socket read
                            ended = isinstance(events[-1], Done | Error)
                            if ours is not None and not ended:
                                ours.rest()
                            yield await self._ended(events, wire, deadline) if ended else events
                            if isinstance(events[-1], Done) and not (ours is not None and ours.has_ended):
                                # Read on to the end, or give the connection up.
                                deadline.shorten(_DRAIN_SECONDS)
                                while await deadline.run(anext(chunks, None)) is not None:
                                    continue
                except (CallTimedOut, *_TRANSPORT_ERRORS):
                    # An error's status has said what is wrong: the body that does not end, or breaks off, explains it.
                    if answer.status_code < 400:
                        raise
                if not ended and (events := decoder.finish()):
                    ended = True
                    yield await self._ended(events, wire, deadline)
            finally:
                await _stream(answer).aclose()
        except (ProviderError, CallTimedOut, _Redirected, *_TRANSPORT_ERRORS) as error:
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
                headers = _told(answer.headers)
                chunks = _chunks(answer, headers)
                while (chunk := await deadline.run(anext(chunks, None))) is not None:
                    body += chunk
                    if len(body) > MAX_FETCHED_BYTES:
                        why = f"The answer of {host} is longer than {MAX_FETCHED_BYTES} bytes."
                        raise ProviderError(ErrorKind.MALFORMED, why)
                return HttpAnswer(answer.status_code, bytes(body), headers)
            finally:
                await _stream(answer).aclose()
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
        """Close the connections of the running loop; a transport that was given stays open."""
        if not self._is_given:
            await self._transport.aclose()

    async def _authorized(self, authorizer: Authorizer, wire: WireRequest, deadline: CallDeadline) -> WireRequest:
        try:
            return await deadline.run(authorizer.authorize(wire))
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
        self, adapter: Adapter, wire: WireRequest, streaming: bool, answer: HttpAnswer, deadline: CallDeadline
    ) -> Decoder:
        status, headers = answer.status, answer.headers
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

    async def _send(self, wire: WireRequest, deadline: CallDeadline, *, is_last_try: bool = False) -> httpx.Response:
        """The answer's head."""
        url, headers = self._head(wire)
        # No `read` and `write`: `CallDeadline` looks at the clock once in a while, where a transport sets a timer for
        # each of them.
        seconds = self._timeouts.connect_seconds
        extensions: dict[str, object] = {"timeout": {"connect": seconds, "pool": seconds}}
        if is_last_try:
            extensions[_NEW_CONNECTION] = True
        request = httpx.Request(
            wire.method, url, headers=headers, stream=httpx.ByteStream(wire.body), extensions=extensions
        )
        if self._is_given:  # ours reads the body and counts it itself
            request.read()
            if wire.body or wire.method != "GET":
                request.headers["content-length"] = str(len(wire.body))
        return await deadline.run(self._transport.handle_async_request(request))

    def _head(self, wire: WireRequest) -> tuple[httpx.URL, httpx.Headers]:
        """Address and headers. They are looked at once: those of two calls in a row are seldom different."""
        if (last := self._last_head) is not None and last[0] == wire.url and last[1] == wire.headers:
            return last[2:]
        # A compressed stream reaches us in lumps, when the compressor's window is full.
        headers = {**wire.headers, "accept-encoding": "identity"}
        text = "".join((*headers, *headers.values()))
        if _UNSENDABLE.search(text):
            raise UsageError(f"A header of {self.name} holds a line break; does its key end with one?")
        if has_user := "@" in urlsplit(wire.url).netloc:
            if "authorization" in headers:
                why = "holds a user, and there is a key too; leave one of them out"
                raise UsageError(f"The address of {self.name} {why}.")
            headers["authorization"] = _login(wire.url)
        try:
            text.encode("ascii")
            url = _parsed_url(wire.url)
            if has_user:  # which the header says: no log of a host's shows the password with the address
                url = url.copy_with(userinfo=b"")
            found = httpx.Headers({"host": url.netloc.decode("ascii"), **headers})
            self._last_head = wire.url, dict(wire.headers), url, found
            return url, found
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            why = str(error)
        # Out here: the UnicodeEncodeError holds the header with the key, and would go along as the context.
        raise UsageError(f"The address or a header of {self.name} cannot be sent: {why}")

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
        return make_error(*_what_broke(error, host, self._timeouts.connect_seconds))


def _login(address: str) -> str:
    """User and password of an address, as a header has them."""
    parts = urlsplit(address)
    login = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(login.encode()).decode()}"


def _table(adapter: Adapter) -> OptionTable:
    """That of a user's own adapter too, if it has one."""
    table: OptionTable = getattr(adapter, "own_options", NO_OPTIONS)
    return table


def _host(url: str) -> str:
    """The host of an address and its port, if it names one; never the user or the password."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


#: What a transport may end in, or what has led to it: the kind of error that it is, and what is told. The first counts.
_FAILURES: Final[tuple[tuple[type[BaseException], ErrorKind, str], ...]] = (
    (httpx.TimeoutException, ErrorKind.TIMEOUT, "{host} sent nothing for {seconds:g} s"),
    (ssl.SSLCertVerificationError, ErrorKind.CONNECTION, "The certificate of {host} is not valid"),
    (
        ssl.SSLError,
        ErrorKind.CONNECTION,
        "{host} does not speak TLS as it should (https:// to a server of http://?)",
    ),
    (socket.gaierror, ErrorKind.CONNECTION, "The name of {host} cannot be found"),
    (ConnectionRefusedError, ErrorKind.CONNECTION, "{host} refused the connection"),
    (ConnectionResetError, ErrorKind.CONNECTION, "{host} broke the connection off"),
    (TimeoutError, ErrorKind.TIMEOUT, "{host} did not answer in time"),
    (httpx.DecodingError, ErrorKind.MALFORMED, "The answer of {host} cannot be decompressed: {said}"),
    (httpx.LocalProtocolError, ErrorKind.INVALID_REQUEST, "The request to {host} cannot be sent: {said}"),
    (httpx.UnsupportedProtocol, ErrorKind.INVALID_REQUEST, "{host} cannot be asked: {said}"),
    (httpx.InvalidURL, ErrorKind.INVALID_REQUEST, "{host} cannot be asked: {said}"),
    (Exception, ErrorKind.CONNECTION, "No connection to {host}, or it broke: {said}"),
)


def _what_broke(error: BaseException, host: str, seconds: float) -> tuple[ErrorKind, str]:
    """The kind, and one sentence about a connection; never the request."""
    causes = list(_causes(error))
    # The words of the first cause that has any.
    said = snippet(next((str(cause) for cause in causes if str(cause)), type(error).__name__)).rstrip(".")
    kind, words = next(row[1:] for row in _FAILURES if any(isinstance(cause, row[0]) for cause in causes))
    return kind, words.format(host=host, seconds=seconds, said=said) + "."


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


# -- httpx's transport over aiohttp


class HttpTransport(httpx.AsyncBaseTransport):
    """httpx's transport interface over aiohttp: what carries model calls unless another transport is given.

    For a wrapper of a host's to put around: `AsyncOpenTelemetryTransport(HttpTransport())`. It may be shared by any
    number of providers, threads and event loops, each loop with connections of its own. HTTP/1.1 only.

    Of the extensions of a request it knows httpx's `timeout` (`connect`, for name look-up and handshakes too; `read`;
    aiohttp has none for writing, and there is no pool to wait for) and `sni_hostname`. Whatever goes wrong is one of
    httpx's TransportErrors. Cancelling a request, like closing an answer that was not read to its end, closes the
    connection at once.
    """

    def __init__(self, *, proxy: str | ProxyFor = "", verify: Verify = True) -> None:
        """`proxy`: the address of an HTTP proxy, or what tells it for each address (`environment_proxy()`). `verify`:
        whom to trust; a path is that of certificates of one's own. Raises UsageError where none can be read there."""
        self._proxy = proxy
        # Read here, and not on the loop when it is first asked.
        self._tls = _tls(verify)
        self._sessions: dict[asyncio.AbstractEventLoop, _Sessions] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """The head of the answer; its stream reads on."""
        loop = asyncio.get_running_loop()
        if (sessions := self._sessions.get(loop)) is None:
            sessions = self._sessions[loop] = _Sessions.opened(self._tls)
        address, asked = str(request.url), request.extensions
        proxy, proxy_headers = _proxy(self._proxy if isinstance(self._proxy, str) else self._proxy(address))
        is_whole = isinstance(request.stream, httpx.ByteStream)
        body = b"".join(request.stream) if is_whole else await request.aread()  # type: ignore[arg-type]
        is_new = _NEW_CONNECTION in asked or (sessions.doubtful and sessions.are_doubtful(request.url, loop.time()))
        if _is_used_again.get():
            _is_used_again.set(False)
        try:
            response = await (sessions.single if is_new else sessions.kept).request(
                request.method,
                _target(address),
                headers=_sent(request.headers),
                data=body or None,
                allow_redirects=False,
                auto_decompress=False,
                proxy=proxy,
                proxy_headers=proxy_headers,
                server_hostname=asked.get("sni_hostname"),
                timeout=_client_timeout(**asked.get("timeout", {})),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, _STALE) and _is_used_again.get():
                # For as long as connections are kept, none to it is used: it is likely to have closed the others too.
                sessions.doubtful[request.url.netloc] = loop.time() + _KEEPALIVE_SECONDS
                raise _StaleConnection(_words(error), request=request) from error
            raise _translated(error, request) from error
        stream = _AnswerStream(response, request, sessions)
        extensions = {
            "http_version": b"HTTP/1.0" if response.version == aiohttp.HttpVersion10 else b"HTTP/1.1",
            _OURS: stream,
        }
        return httpx.Response(
            response.status, headers=response.raw_headers, stream=stream, request=request, extensions=extensions
        )

    async def aclose(self) -> None:
        """Close the connections of the running loop. The next request opens others."""
        if (sessions := self._sessions.pop(asyncio.get_running_loop(), None)) is None:
            return
        for session in (sessions.kept, sessions.single):
            assert session.connector is not None
            # Not by TLS's own goodbye: a server that does not answer it would still be waited for when the loop ends.
            await session.connector.close(abort_ssl=True)
            await session.close()


class _Sessions(Struct):
    """Those of one event loop."""

    kept: aiohttp.ClientSession
    """Uses a connection again."""
    single: aiohttp.ClientSession
    """Opens one for each request."""
    bodies: int = 0
    """Are being read."""
    doubtful: dict[bytes, float] = field(default_factory=dict)
    """Servers that had closed a kept connection, until when it counts, by the loop's clock."""

    @classmethod
    def opened(cls, tls: ssl.SSLContext) -> _Sessions:
        # No limit of connections here: how many calls run at once is decided above, and a queue here would look like a
        # stalled server.
        kept, single = (
            aiohttp.ClientSession(
                connector=each,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=_MAX_HEADER_BYTES,
                max_field_size=_MAX_HEADER_BYTES,
            )
            for each in (_KeptConnections(tls), aiohttp.TCPConnector(limit=0, force_close=True, ssl=tls))
        )
        return cls(kept, single)

    def are_doubtful(self, url: httpx.URL, now: float) -> bool:
        """Are kept connections to its server to be left alone?"""
        return now < self.doubtful.get(url.netloc, _LONG_AGO)


class _AnswerStream(httpx.AsyncByteStream):
    """The body of an answer, each piece as soon as it has come."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request, sessions: _Sessions) -> None:
        self._response = response
        self._request = request
        self._sessions = sessions
        self._is_open = True
        self._waits_since = _LONG_AGO
        sessions.bodies += 1

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            if piece := await self._response.content.read(_READ_BYTES):
                return piece
        except (aiohttp.ClientError, OSError) as error:
            raise _translated(error, self._request) from error
        raise StopAsyncIteration

    @property
    def has_ended(self) -> bool:
        """Has all of it been read?"""
        return self._response.content.at_eof()

    def rest(self) -> None:
        """Where many bodies are read, let what comes next be read with what follows it."""
        seconds = min(self._sessions.bodies * _REST_SECONDS_EACH, _MAX_REST_SECONDS)
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
        """Give the connection back; close it where the body was not read to its end."""
        if self._is_open:
            self._is_open = False
            self._sessions.bodies -= 1
            self._response.release()


#: Was the request of this task sent over a connection that had carried another one before?
_is_used_again: ContextVar[bool] = ContextVar("callboard_connection_is_used_again", default=False)


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


class _StaleConnection(httpx.RemoteProtocolError):
    """The server has closed a connection that had carried another request before."""


class _Redirected(Exception):
    """The server says that the API is elsewhere."""


#: What a kept connection that the server has closed meanwhile ends in, before any byte of an answer. Servers close idle
#: connections without a word, and llama.cpp closes each one after a stream.
_STALE: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
#: aiohttp's errors in httpx's words, as httpcore's transport has them: the first that fits. (httpx-aiohttp calls a
#: refused or reset connection a timeout.)
_IN_HTTPX: Final[tuple[tuple[tuple[type[Exception], ...], type[httpx.RequestError]], ...]] = (
    ((aiohttp.ConnectionTimeoutError,), httpx.ConnectTimeout),
    ((aiohttp.ServerTimeoutError,), httpx.ReadTimeout),
    ((aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError), httpx.ProxyError),
    ((aiohttp.ClientConnectorError, aiohttp.ServerFingerprintMismatch), httpx.ConnectError),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), httpx.UnsupportedProtocol),
    (
        (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError),
        httpx.RemoteProtocolError,
    ),
    ((aiohttp.ClientError, OSError), httpx.ReadError),
    ((ValueError,), httpx.LocalProtocolError),
)


def _translated(error: Exception, request: httpx.Request) -> httpx.RequestError:
    kind = next(httpx_kind for kind, httpx_kind in _IN_HTTPX if isinstance(error, kind))
    return kind(_words(error), request=request)


def _words(error: Exception) -> str:
    """Without the address, which the other words of such an error name too."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy answered HTTP {error.status} {error.message}"
    return error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)


def _sent(headers: httpx.Headers) -> list[tuple[str, str]]:
    """Without how the body was to be cut: it is sent whole."""
    return [(name.decode(), value.decode()) for name, value in headers.raw if name.lower() != b"transfer-encoding"]


def _told(headers: httpx.Headers) -> dict[str, str]:
    """By name, in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers.raw}


def _stream(answer: httpx.Response) -> httpx.AsyncByteStream:
    if not isinstance(answer.stream, httpx.AsyncByteStream):
        raise UsageError("the transport's answer has a stream that is not async (httpx.AsyncByteStream)")
    return answer.stream


def _chunks(answer: httpx.Response, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body as it comes, decompressed where a server compresses unasked. A host's transport may have read it."""
    if "content-encoding" in headers or answer.is_stream_consumed:
        return answer.aiter_bytes()
    return aiter(_stream(answer))


@lru_cache(maxsize=64)
def _client_timeout(connect: float | None = None, read: float | None = None, **_: object) -> aiohttp.ClientTimeout:
    # `connect` is name look-up, handshakes and all. Where `sock_read` is set, aiohttp sets a new timer for each read.
    return aiohttp.ClientTimeout(sock_connect=connect, connect=connect, sock_read=read)


@lru_cache(maxsize=64)
def _parsed_url(url: str) -> httpx.URL:
    """httpx takes 20 us to read an address, and a process calls only a few."""
    return httpx.URL(url)


@lru_cache(maxsize=64)
def _target(address: str) -> yarl.URL:
    """Escapes as they were written: yarl would undo those that it finds needless (%3A), and AWS signs the path."""
    return yarl.URL(address, encoded=True)


@lru_cache(maxsize=16)
def _proxy(address: str) -> tuple[str | None, dict[str, str] | None]:
    """A proxy's address and its headers, as aiohttp takes them. A password is given as a header: as `proxy_auth`, it is
    in a form that aiohttp is about to drop."""
    if not address:
        return None, None
    parts = urlsplit(address)
    if parts.username is None:
        return address, None
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])), {"authorization": _login(address)}


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

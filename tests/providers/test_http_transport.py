"""HttpTransport as httpx's transport, and what stands in its place, against real servers."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import inspect
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import httpx
import pytest
from support.own_servers import certificate_for, chat_server, proxy_server
from support.shared_double import cut, shared_double, stall

from callboard.actors.testing.wire_double import Fault, FaultKind, RawAnswer, Turn
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import ModelRequest, ModelResponse
from callboard.providers import transport as transports
from callboard.providers.adapter import Timeouts, WireRequest
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider, HttpTransport

KEY = "sk-very-secret-1234567890"
ASKED = ModelRequest("fake-1", (UserMessage.of("Hi"),))
PATIENT = Timeouts(connect_seconds=5, idle_seconds=10, total_seconds=20)


class Watching(httpx.AsyncBaseTransport):
    """What a host's tracing does: sees each request, its answer, what it raises, and each piece of the body."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner
        self.seen: list[str] = []
        self.pieces = 0
        self.has_begun = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["model"] == "fake-1", "the body can be looked at"
        assert request.headers["content-length"] == str(len(request.content))
        request.headers["traceparent"] = "00-ab-cd-01"
        self.seen.append(f"{request.method} {request.url.path}")
        try:
            answer = await self._inner.handle_async_request(request)
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        self.seen.append(str(answer.status_code))
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = Counted(self, answer.stream)
        return answer

    async def aclose(self) -> None:
        self.seen.append("closed")
        await self._inner.aclose()


class Counted(httpx.AsyncByteStream):
    def __init__(self, watching: Watching, inner: httpx.AsyncByteStream) -> None:
        self._watching, self._inner = watching, inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._watching.pieces += 1
            self._watching.has_begun.set()
            yield piece

    async def aclose(self) -> None:
        self._watching.seen.append("end")
        await self._inner.aclose()


async def collect(provider: HttpProvider, request: ModelRequest = ASKED) -> ModelResponse:
    builder = ResponseBuilder()
    async with contextlib.aclosing(provider.stream(request)) as batches:
        async for events in batches:
            builder.feed(events)
    return builder.response()


def ask(transport: httpx.AsyncBaseTransport, url: str, timeouts: Timeouts = PATIENT) -> ModelResponse:
    async def talk() -> ModelResponse:
        provider = HttpProvider(OpenAIChat(base_url=url, api_key=KEY), timeouts=timeouts, transport=transport)
        try:
            return await collect(provider)
        finally:
            await provider.aclose()
            await transport.aclose()

    return asyncio.run(talk())


# -- a host's transport around ours


def test_a_wrapper_sees_the_stream_of_a_model_call_and_what_it_adds_is_sent() -> None:
    watching = Watching(HttpTransport())
    with shared_double([Turn("word " * 20, fragment=5, pause=0.001)]) as server:
        assert ask(watching, server.base_url()).text == "word " * 20
        assert server.traffic().requests[0].headers["traceparent"] == "00-ab-cd-01"
    assert watching.seen == ["POST /v1/chat/completions", "200", "end", "closed"]
    assert watching.pieces > 1


@pytest.mark.parametrize(
    ("answer", "kind", "seen"),
    [
        (RawAnswer({"error": {"message": "slow"}}, 429), ErrorKind.RATE_LIMITED, ["429", "end"]),
        (RawAnswer("moved", 302, {"location": "https://elsewhere.example/"}), ErrorKind.NOT_FOUND, ["302", "end"]),
        (cut("half"), ErrorKind.CONNECTION, ["200", "end"]),
        (stall("half"), ErrorKind.TIMEOUT, ["200", "end"]),
        (stall(), ErrorKind.TIMEOUT, None),
        (Turn(fault=Fault(FaultKind.CLOSE)), ErrorKind.CONNECTION, ["RemoteProtocolError"]),
        (Turn(fault=Fault(FaultKind.RESET)), ErrorKind.CONNECTION, ["ReadError"]),
    ],
)  # fmt: skip
def test_a_wrapper_sees_every_way_in_which_a_call_ends(
    answer: Turn | RawAnswer, kind: ErrorKind, seen: list[str] | None
) -> None:
    watching = Watching(HttpTransport())
    with shared_double([answer]) as server:
        found = ask(watching, server.base_url(), Timeouts(5, 0.3, 10)).error
    assert found is not None
    assert found.kind is kind
    assert KEY not in repr(found)
    assert watching.seen[0] == "POST /v1/chat/completions"
    assert watching.seen[-1] == "closed"
    assert seen is None or watching.seen[1:-1] == seen


def test_cancelling_a_call_goes_through_a_wrapper_and_closes_the_connection() -> None:
    async def cancel(url: str) -> list[str]:
        watching = Watching(HttpTransport())
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT, transport=watching)
        task = asyncio.create_task(collect(provider))
        await watching.has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.wait_until, lambda traffic: traffic.abandoned == 1)
        await watching.aclose()
        return watching.seen

    with shared_double([stall("half")]) as server:
        assert asyncio.run(cancel(server.base_url()))[1:] == ["200", "end", "closed"]
        assert server.traffic().open_connections == 0


def test_a_stale_connection_is_known_behind_a_wrapper_and_a_last_try_gets_a_new_one() -> None:
    """See test_transport.py, where ours is asked directly."""

    async def talk(url: str) -> list[ModelResponse]:
        watching = Watching(HttpTransport())
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT, transport=watching)
        found = [await collect(provider) for _ in range(6)]
        await watching.aclose()
        return found

    with shared_double([Turn("a", fault=Fault(FaultKind.HANGUP))] * 6) as server:
        errors = [each.error for each in asyncio.run(talk(server.base_url())) if each.error is not None]
    assert len(errors) <= 1
    assert all(error.at_once for error in errors)


def test_a_wrapper_may_read_the_answer_first() -> None:
    class Reading(Watching):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            answer = await self._inner.handle_async_request(request)
            self.seen.append(str(len(await answer.aread())))
            return answer

    reading = Reading(HttpTransport())
    with shared_double([Turn("whole")]) as server:
        assert ask(reading, server.base_url()).text == "whole"
    assert int(reading.seen[0]) > 5


def test_a_password_in_the_address_is_sent_as_a_header_and_not_shown_to_a_wrapper() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(401, json={"error": {"message": "no"}})

    async def talk() -> None:
        provider = HttpProvider(
            OpenAIChat(base_url="http://u:geheim@model.test/v1"), transport=httpx.MockTransport(answer)
        )
        await collect(provider)

    asyncio.run(talk())
    assert "geheim" not in str(seen[0].url)
    assert seen[0].headers["authorization"] == "Basic dTpnZWhlaW0="
    assert seen[0].headers["host"] == "model.test"


EVENT = json.dumps({"choices": [{"index": 0, "delta": {"content": "mocked"}, "finish_reason": "stop"}]})
STREAM = f"data: {EVENT}\n\ndata: [DONE]\n\n".encode()


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: httpx.Response(200, content=STREAM),
        lambda request: httpx.Response(200, text=STREAM.decode(), headers={"content-type": "text/event-stream"}),
        lambda request: httpx.Response(200, content=gzip.compress(STREAM), headers={"content-encoding": "gzip"}),
        lambda request: httpx.Response(200, content=pieces(STREAM[:9], b"", STREAM[9:])),
        lambda request: httpx.Response(200, json={"choices": [{"index": 0, "message": {"content": "mocked"}}]}),
    ],
)
def test_httpx_own_mock_stands_in_its_place(answer: Callable[[httpx.Request], httpx.Response]) -> None:
    assert ask(httpx.MockTransport(answer), "http://model.test/v1").text == "mocked"


async def pieces(*given: bytes) -> AsyncIterator[bytes]:
    for each in given:
        yield each


#: What httpx's transports raise (httpx/_exceptions.py), and what that is of ours.
RAISED: dict[type[Exception], ErrorKind] = {
    httpx.ConnectTimeout: ErrorKind.TIMEOUT,
    httpx.ReadTimeout: ErrorKind.TIMEOUT,
    httpx.WriteTimeout: ErrorKind.TIMEOUT,
    httpx.PoolTimeout: ErrorKind.TIMEOUT,
    TimeoutError: ErrorKind.TIMEOUT,
    httpx.ConnectError: ErrorKind.CONNECTION,
    httpx.ReadError: ErrorKind.CONNECTION,
    httpx.WriteError: ErrorKind.CONNECTION,
    httpx.CloseError: ErrorKind.CONNECTION,
    httpx.ProxyError: ErrorKind.CONNECTION,
    httpx.RemoteProtocolError: ErrorKind.CONNECTION,
    httpx.LocalProtocolError: ErrorKind.INVALID_REQUEST,
    httpx.UnsupportedProtocol: ErrorKind.INVALID_REQUEST,
    httpx.DecodingError: ErrorKind.MALFORMED,
    httpx.InvalidURL: ErrorKind.INVALID_REQUEST,
    OSError: ErrorKind.CONNECTION,
}


@pytest.mark.parametrize("raised", RAISED)
def test_what_a_transport_raises_is_one_error_of_that_call(raised: type[Exception]) -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise raised("the words")

    found = ask(httpx.MockTransport(fail), "http://model.test/v1").error
    assert found is not None
    assert (found.kind, "model.test" in found.message) == (RAISED[raised], True)


def test_an_answer_that_is_not_async_is_named() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=iter([STREAM]))

    with pytest.raises(UsageError, match="a stream that is not async"):
        ask(httpx.MockTransport(answer), "http://model.test/v1")


# -- ours as a transport of httpx's: what it does in httpx's own client, it does for a host


def run(talk: Callable[[httpx.AsyncClient], Awaitable[None]], transport: HttpTransport | None = None) -> None:
    async def inside() -> None:
        async with httpx.AsyncClient(transport=transport or HttpTransport(), timeout=5) as client:
            await talk(client)

    asyncio.run(inside())


@contextlib.asynccontextmanager
async def serving(raw: bytes, *, holds: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request with these bytes, and then closes, or holds on; with what it was sent."""
    heard: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(raw)
            await writer.drain()
            while holds and (more := await reader.read(65_536)):
                heard.append(more)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard


def test_it_is_a_transport_of_httpx() -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        async with serving(b"HTTP/1.0 200 Fine\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 2\r\n\r\nhi") as (url, heard):
            answer = await client.get(f"{url}/a%3Ab?c=%2F", headers={"x-mine": "1"})
        assert (answer.text, answer.http_version, answer.headers.get_list("x-a")) == ("hi", "HTTP/1.0", ["1", "2"])
        assert heard[0].startswith(b"GET /a%3Ab?c=%2F HTTP/1.1\r\n"), "escapes as they were written"
        async with serving(b"HTTP/1.1 204 No\r\n\r\n", holds=True) as (url, heard):
            assert (await client.post(url, content=pieces(b"abc", b"def"))).status_code == 204
        assert b"transfer-encoding" not in heard[0].lower()
        assert b"".join(heard).endswith(b"abcdef")

    run(talk)


def test_timeouts_of_a_request_are_kept() -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        async with serving(b"", holds=True) as (url, _):
            with pytest.raises(httpx.ReadTimeout):
                await client.get(url, timeout=httpx.Timeout(5, read=0.1))
        async with serving(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", holds=True) as (url, _):
            with pytest.raises(httpx.ReadTimeout):
                await client.get(url, timeout=httpx.Timeout(5, read=0.1))

    run(talk)


@pytest.mark.parametrize(
    ("raw", "raised"),
    [
        (b"", httpx.RemoteProtocolError),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", httpx.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", httpx.RemoteProtocolError),
    ],
)
def test_what_is_no_answer_is_an_error_of_httpx(raw: bytes, raised: type[Exception]) -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        async with serving(raw) as (url, _):
            with pytest.raises(raised):
                await client.post(url, content=b"{}")

    run(talk)


def test_what_cannot_be_asked_is_an_error_of_httpx() -> None:
    async def talk(client: httpx.AsyncClient) -> None:
        async with serving(b"") as (url, _):
            pass
        for address, raised in {
            url: httpx.ConnectError,
            "http://no.such.host.invalid": httpx.ConnectError,
            "ftp://127.0.0.1": httpx.UnsupportedProtocol,
        }.items():
            with pytest.raises(raised):
                await client.get(address)
        async with serving(b"", holds=True) as (url, heard):
            for header in (b"a\nb", b"\xff"):
                with pytest.raises(httpx.LocalProtocolError):
                    await client.get(url, headers={b"x": header})
            assert heard == []

    run(talk)


def test_every_error_of_aiohttp_is_one_of_httpx() -> None:
    kinds = [each for _, each in inspect.getmembers(aiohttp, inspect.isclass) if issubclass(each, aiohttp.ClientError)]
    assert len(kinds) > 20
    for kind in kinds:
        first = next(told for known, told in transports._IN_HTTPX if issubclass(kind, known))
        assert issubclass(first, httpx.TransportError), kind
        assert issubclass(first, httpx.TimeoutException) is issubclass(kind, aiohttp.ServerTimeoutError), kind


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_certificates_and_proxies(tmp_path: Path) -> None:
    authority, certificate = certificate_for(tmp_path)
    body = {"model": "one"}
    trusting = ssl.create_default_context(cafile=str(authority))

    def asks(url: str, transport: HttpTransport) -> int:
        found: list[int] = []

        async def talk(client: httpx.AsyncClient) -> None:
            found.append((await client.post(f"{url}/v1", json=body)).status_code)

        run(talk, transport)
        return found[0]

    with (
        chat_server(certificate=certificate) as secure,
        chat_server() as plain,
        proxy_server(password="dTpwdw==") as proxy,
    ):
        login = proxy.url.replace("http://", "http://u:pw@")
        assert asks(secure.url, HttpTransport(verify=authority)) == 200
        assert asks(secure.url, HttpTransport(verify=trusting, proxy=login)) == 200
        assert asks(plain.url, HttpTransport(proxy=lambda url: login)) == 200
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            asks(secure.url, HttpTransport())
        with pytest.raises(httpx.ProxyError, match="the proxy answered HTTP 407"):
            asks(secure.url, HttpTransport(verify=False, proxy=proxy.url))
        with pytest.raises(httpx.ProxyError):
            asks(secure.url, HttpTransport(verify=False, proxy="http://127.0.0.1:9"))
    assert sorted(line.partition(" ")[0] for line in proxy.lines) == ["CONNECT", "CONNECT", "POST"], "one was refused"
    with pytest.raises(UsageError, match="no certificates can be read"):
        HttpTransport(verify=tmp_path / "nothing.pem")


def test_connections_are_used_again_and_each_loop_has_its_own() -> None:
    ours = HttpTransport()

    async def talk(url: str) -> None:
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT, transport=ours)
        for _ in range(3):
            assert (await collect(provider)).text == "a"
        await provider.aclose()
        assert (await collect(provider)).text == "a", "a transport that was given is not closed"
        await ours.aclose()

    with shared_double([Turn("a")] * 8) as server:
        for _ in range(2):
            asyncio.run(talk(server.base_url()))
        assert server.traffic().connections == 2


def test_a_fetch_is_carried_too() -> None:
    async def talk() -> int:
        transport = httpx.MockTransport(lambda request: httpx.Response(404, content=b"nothing here"))
        provider = HttpProvider(OpenAIChat(base_url="http://model.test/v1"), transport=transport)
        answer = await provider.fetch(WireRequest("GET", "http://model.test/v1/models", {}, b""))
        assert answer.body == b"nothing here"
        return answer.status

    assert asyncio.run(talk()) == 404

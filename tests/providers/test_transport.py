"""The transport against a real HTTP server in another process."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
import uvloop
from msgspec.structs import replace
from support.shared_double import cut, shared_double, stall
from support.wire import sse

from callboard.actors.testing.wire_double import Answer, Call, Fault, FaultKind, RawAnswer, Turn, WireDouble
from callboard.protocol.content import AssistantMessage, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind, ProviderError, UsageError
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.model import Error, FinishReason, ModelRequest, ModelResponse, Sampling, TextDelta
from callboard.providers.adapter import Timeouts, WireRequest
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import ResponseBuilder
from callboard.providers.transport import HttpProvider

KEY = "sk-very-secret-1234567890"
ASKED = ModelRequest("fake-1", (UserMessage.of("Hi"),))
CALLS = tuple(Call("lookup", f'{{"city":"town number {n}"}}', f"call_{n}") for n in range(4))
#: Long enough for a busy machine, short enough to wait for.
PATIENT = Timeouts(connect_seconds=5, idle_seconds=10, total_seconds=20)


async def ask(server_url: str, request: ModelRequest = ASKED, timeouts: Timeouts = PATIENT) -> ModelResponse:
    provider = HttpProvider(OpenAIChat(base_url=server_url, api_key=KEY), timeouts=timeouts)
    try:
        return await collect(provider, request)
    finally:
        await provider.aclose()


async def collect(provider: HttpProvider, request: ModelRequest = ASKED) -> ModelResponse:
    builder = ResponseBuilder()
    async for events in provider.stream(request):
        builder.feed(events)
    return builder.response()


@pytest.fixture
def unused_url() -> str:
    with WireDouble() as server:
        url = server.base_url()
    return url


def test_four_parallel_calls_in_fragments_then_the_answer() -> None:
    async def talk(url: str) -> ModelResponse:
        provider = HttpProvider(OpenAIChat(base_url=url, api_key=KEY), timeouts=PATIENT)
        turn = await collect(provider)
        told = tuple(Call(call.name, call.arguments, call.call_id) for call in turn.tool_calls)
        assert told == CALLS
        results = tuple(ToolMessage(call.call_id, call.name, "rain") for call in turn.tool_calls)
        answer = await collect(
            provider, ModelRequest("fake-1", (*ASKED.messages, AssistantMessage(turn.parts), *results))
        )
        await provider.aclose()
        return answer

    with shared_double([Turn(calls=CALLS), Turn(text="It rains everywhere.")], by_turn=True) as server:
        answer = asyncio.run(talk(server.base_url()))
        assert (answer.text, answer.finish_reason, answer.usage.total_tokens) == (
            "It rains everywhere.",
            FinishReason.STOP,
            18,
        )
        traffic = server.traffic()
    assert [message.get("tool_call_id") for message in traffic.bodies[1]["messages"][2:]] == [call.id for call in CALLS]
    assert traffic.connections == 1, "the connection of a finished stream is used again"
    assert traffic.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (RawAnswer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401), ErrorKind.AUTHENTICATION, "***"),
        (RawAnswer({"error": {"message": "slow"}}, 429, {"retry-after": "7"}), ErrorKind.RATE_LIMITED, "slow"),
        (RawAnswer("<html>Welcome to nginx</html>"), ErrorKind.MALFORMED, "not JSON"),
        (RawAnswer("<html>Bad gateway</html>", 502), ErrorKind.SERVER, "HTTP 502"),
        (RawAnswer("moved", 302, {"location": "https://elsewhere.example/"}), ErrorKind.NOT_FOUND, "elsewhere.example"),
        (RawAnswer(headers={"content-type": "text/event-stream"}), ErrorKind.TRUNCATED, "without an answer"),
        (cut("half"), ErrorKind.CONNECTION, "127.0.0.1"),
        (stall("half"), ErrorKind.TIMEOUT, "sent nothing for 0.2 s"),
    ],
)  # fmt: skip
def test_whatever_goes_wrong_is_one_error_event(answer: Answer, kind: ErrorKind, words: str) -> None:
    with shared_double([answer]) as server:
        response = asyncio.run(ask(server.base_url(), timeouts=Timeouts(5, 0.2, 10)))
        host = urlsplit(server.base_url()).netloc
    found = response.error
    assert found is not None
    assert host in found.message
    assert not found.status or f"{host} answered HTTP {found.status}: " in found.message
    assert found.kind is kind
    assert words in found.message
    assert KEY not in repr(found)
    if kind is ErrorKind.RATE_LIMITED:
        assert found.retry_after == 7.0


def test_a_stream_that_never_ends_is_ended_at_the_total_timeout() -> None:
    drip = Turn("x", pause=0.05, fault=Fault(FaultKind.ENDLESS))
    with shared_double([drip]) as server:
        found = asyncio.run(ask(server.base_url(), timeouts=Timeouts(5, 5, 0.3))).error
        assert found is not None
        assert (found.kind, "0.3 s" in found.message) == (ErrorKind.TIMEOUT, True)


def test_nobody_listens_there(unused_url: str) -> None:
    found = asyncio.run(ask(unused_url)).error
    assert found is not None
    assert (found.kind, found.retryable) == (ErrorKind.CONNECTION, True)
    assert "127.0.0.1" in found.message


def test_cancelling_the_reader_closes_the_connection_at_once() -> None:
    async def cancel(server: WireDouble) -> None:
        provider = HttpProvider(OpenAIChat(base_url=server.base_url(), api_key=KEY), timeouts=PATIENT)
        started = asyncio.Event()

        async def read() -> None:
            async for _ in provider.stream(ASKED):
                started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(server.wait_until, lambda traffic: traffic.abandoned == 1)
        await provider.aclose()

    with shared_double([stall("half")]) as server:
        asyncio.run(cancel(server))
        assert server.traffic().open_connections == 0


def test_one_list_of_events_a_read_and_the_end_is_the_last_event() -> None:
    async def batches(url: str) -> list[list[object]]:
        provider = HttpProvider(OpenAIChat(base_url=url, api_key=KEY), timeouts=PATIENT)
        found = [list[object](events) async for events in provider.stream(ASKED)]
        await provider.aclose()
        return found

    with shared_double([Turn("abcdefgh", fragment=1)]) as server:
        found = asyncio.run(batches(server.base_url()))
    assert all(found)
    assert "".join(event.text for events in found for event in events if isinstance(event, TextDelta)) == "abcdefgh"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_of_many_fast_streams_each_is_read_once_in_a_while(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """What came meanwhile comes together; nothing of it is lost, and the connections are used again."""
    streams, words = 50, 40

    async def read(provider: HttpProvider) -> tuple[str, float, int]:
        builder, began, lists = ResponseBuilder(), time.monotonic(), 0
        async for events in provider.stream(ASKED):
            builder.feed(events)
            lists += 1
        return builder.response().text, time.monotonic() - began, lists

    async def talk(url: str) -> None:
        provider = HttpProvider(OpenAIChat(base_url=url, api_key=KEY), timeouts=PATIENT)
        try:
            text, _, _ = await read(provider)  # alone
            for _ in range(2):
                for answer, seconds, lists in await asyncio.gather(*(read(provider) for _ in range(streams))):
                    assert answer == text == "word " * words
                    # The first two come at once, and the end; how long a stream takes is its machine's affair.
                    assert lists <= 3 + seconds / (streams * 0.0004)
                    assert lists < words
        finally:
            await provider.aclose()

    with shared_double([Turn("word " * words, fragment=5, pause=0.01)], by_turn=True) as server:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(talk(server.base_url()))
        assert server.traffic().connections == streams


def test_a_stream_that_is_cut_while_its_reader_rests_says_so() -> None:
    async def talk(url: str) -> list[Error | None]:
        provider = HttpProvider(OpenAIChat(base_url=url, api_key=KEY), timeouts=PATIENT)
        responses = await asyncio.gather(*(collect(provider) for _ in range(20)))
        await provider.aclose()
        return [response.error for response in responses]

    with shared_double(
        [Turn("word " * 20, fragment=5, pause=0.002, fault=Fault(FaultKind.CUT, after=15))], by_turn=True
    ) as server:
        errors = asyncio.run(talk(server.base_url()))
    assert {error and error.kind for error in errors} == {ErrorKind.CONNECTION}


def test_headers_are_told_to_whoever_listens() -> None:
    heard: list[tuple[int, str]] = []

    async def talk(url: str) -> None:
        provider = HttpProvider(
            OpenAIChat(base_url=url), on_headers=lambda status, headers: heard.append((status, headers["retry-after"]))
        )
        await collect(provider)
        await provider.aclose()

    with shared_double([RawAnswer({}, 429, {"Retry-After": "3"})]) as server:
        asyncio.run(talk(server.base_url()))
    assert heard == [(429, "3")]


def test_no_cookie_is_kept() -> None:
    async def talk(url: str) -> None:
        provider = HttpProvider(OpenAIChat(base_url=url))
        for _ in range(2):
            await collect(provider)
        await provider.aclose()

    with shared_double([RawAnswer({}, 429, {"Set-Cookie": "who=it; Path=/"}), Turn("Hi.")]) as server:
        # By name: of a bare address aiohttp's own jar would keep none either.
        asyncio.run(talk(server.base_url().replace("127.0.0.1", "localhost")))
        assert ["cookie" in asked.headers for asked in server.traffic().requests] == [False, False]


def test_an_answer_that_is_not_streamed() -> None:
    document = {"choices": [{"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}]}
    with shared_double([RawAnswer(document)]) as server:
        response = asyncio.run(ask(server.base_url(), ModelRequest("m", ASKED.messages, stream=False)))
    assert response.text == "whole"


def test_a_request_that_cannot_be_asked_is_the_callers_fault() -> None:
    with pytest.raises(UsageError, match="no messages"):
        asyncio.run(ask("http://127.0.0.1:1", ModelRequest("m", ())))
    with pytest.raises(UsageError, match="cannot be sent"):
        asyncio.run(ask("http://127.0.0.1:port"))


@pytest.mark.parametrize("key", ["sk-key\n", "sk-\u2026"])
def test_a_key_that_cannot_be_sent_is_named_and_not_shown(key: str) -> None:
    provider = HttpProvider(OpenAIChat(base_url="http://127.0.0.1:1", api_key=key))
    with pytest.raises(UsageError, match="header of openai-chat") as caught:
        asyncio.run(collect(provider))
    assert "sk-" not in str(caught.value)


def test_one_provider_serves_several_loops_one_after_the_other() -> None:
    with shared_double([Turn("a"), Turn("b")]) as server:
        provider = HttpProvider(OpenAIChat(base_url=server.base_url()), timeouts=PATIENT)

        async def once() -> str:
            response = await collect(provider)
            await provider.aclose()
            await provider.aclose()
            return response.text

        assert [asyncio.run(once()), asyncio.run(once())] == ["a", "b"]


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    """Found with llama.cpp, which closes each connection after a stream while it promises to keep it."""
    answer = Turn("a", fault=Fault(FaultKind.HANGUP))

    async def talk(url: str) -> list[ModelResponse]:
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT)
        found = [await collect(provider) for _ in range(6)]
        await provider.aclose()
        return found

    with shared_double([answer] * 6) as server:
        found = asyncio.run(talk(server.base_url()))
        asked = len(server.traffic().bodies)
    errors = [response.error for response in found if response.error is not None]
    assert len(errors) <= 1, "after one that was closed, none is used again for a while"
    assert all(error.at_once and error.retryable for error in errors)
    assert [response.text for response in found if response.error is None] == ["a"] * (6 - len(errors))
    assert asked <= 6, "a model call is one request"


@pytest.mark.parametrize("kind", [FaultKind.CLOSE, FaultKind.RESET])
def test_a_model_call_is_one_request_also_where_no_answer_comes(kind: FaultKind) -> None:
    async def talk(url: str) -> list[bool]:
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT)
        errors = [(await collect(provider)).error for _ in range(3)]
        await provider.aclose()
        assert all(error is not None and error.kind is ErrorKind.CONNECTION for error in errors)
        return [error.at_once for error in errors if error is not None]

    with shared_double([Turn(fault=Fault(kind))] * 9) as server:
        assert asyncio.run(talk(server.base_url())) == [False] * 3, "no connection was used again"
        assert [asked.path for asked in server.requests()] == ["/v1/chat/completions"] * 3


def test_a_last_try_is_not_sent_over_a_kept_connection() -> None:
    async def talk(url: str) -> list[str]:
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT)
        texts = [
            (await collect(provider, replace(ASKED, is_last_try=last))).text for last in (False, True, True, False)
        ]
        await provider.aclose()
        return texts

    with shared_double([Turn("a")] * 4) as server:
        assert asyncio.run(talk(server.base_url())) == ["a"] * 4
        assert server.traffic().connections == 3, "the first one's, kept for the fourth, and one for each last try"


def test_what_the_api_cannot_express_comes_with_the_end_of_the_answer() -> None:
    seeded = ModelRequest("m", ASKED.messages, sampling=Sampling(seed=7))

    async def talk(url: str) -> list[ModelResponse]:
        provider = HttpProvider(OpenAIResponses(base_url=url), timeouts=PATIENT)
        found = [await collect(provider, seeded), await collect(provider, seeded), await collect(provider)]
        await provider.aclose()
        return found

    with shared_double([Turn("a"), RawAnswer({"error": {"message": "down"}}, 500), Turn("b")]) as server:
        answered, failed, plain = asyncio.run(talk(server.base_url()))
    assert answered.notes == failed.notes == ("seed: the API has none; left out",)
    assert (failed.error is not None, plain.notes) == (True, ())


def test_a_broken_connection_is_told_in_plain_words(unused_url: str) -> None:
    def told(url: str) -> str:
        error = asyncio.run(ask(url)).error
        assert error is not None
        assert error.kind is ErrorKind.CONNECTION
        return error.message

    host = urlsplit(unused_url).netloc
    assert told(unused_url) == f"{host} refused the connection."
    with pytest.raises(UsageError, match="holds a user, and there is a key too") as caught:
        told(f"http://user:geheim@{host}/v1")
    assert "geheim" not in str(caught.value)
    assert told("http://no.such.host.invalid/v1") == "The name of no.such.host.invalid cannot be found."
    with shared_double([Turn("a")]) as server:
        host = urlsplit(server.base_url()).netloc
        told_of_tls = told(f"https://{host}/v1")
    assert told_of_tls == f"{host} does not speak TLS as it should (https:// to a server of http://?)."


def test_fetch_gets_a_whole_answer_or_says_why_not(unused_url: str) -> None:
    async def fetch(url: str) -> tuple[int, bytes]:
        provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT)
        try:
            answer = await provider.fetch(WireRequest("POST", url, {}, b"{}"))
            return answer.status, answer.body
        finally:
            await provider.aclose()

    with shared_double([RawAnswer("nothing here", 404)]) as server:
        assert asyncio.run(fetch(server.base_url())) == (404, b"nothing here")
    with pytest.raises(ProviderError, match=r"127\.0\.0\.1:\d+ refused the connection"):
        asyncio.run(fetch(unused_url))


def test_the_deadline_does_not_swallow_a_cancellation_of_somebody_elses() -> None:
    async def cancelled() -> None:
        with shared_double([stall()]) as server:
            provider = HttpProvider(OpenAIChat(base_url=server.base_url()), timeouts=Timeouts(5, 5, 5))
            try:
                async with asyncio.timeout(0.1):
                    response = await collect(provider)
                    assert not isinstance(response.error, Error)
            finally:
                await provider.aclose()

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())


# Servers that speak no HTTP, or do not end


async def served(raw: bytes, *, more: bytes = b"", timeouts: Timeouts = PATIENT) -> ModelResponse:
    """What a model call says to a server that sends `raw`, then `more` over and over until the connection is closed."""
    left = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(raw)
            while more:
                writer.write(more)
                await writer.drain()
            if timeouts is not PATIENT:
                await reader.read()
        except OSError:
            pass
        finally:
            left.set()
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        response = await ask(f"http://{host}:{port}/v1", timeouts=timeouts)
        async with asyncio.timeout(5):
            await left.wait()
    return response


@pytest.mark.parametrize("size", [8_000, 9_000, 32_000, 65_000])
def test_headers_of_up_to_64_kb_are_read(size: int) -> None:
    """aiohttp alone refuses one above 8,190 bytes; an answer is not lost over a header that nobody reads."""
    body = sse([{"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}]}])
    raw = HEAD + b"x-trace: " + b"t" * size + b"\r\n\r\n" + body
    assert asyncio.run(served(raw)).text == "Hi."


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
GARBAGE_HEADS = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status of five digits": b"HTTP/1.1 99999 OK\r\n\r\n",
    "a version": b"HTTP/9.9 200 OK\r\n\r\n",
    "a length that is no number": HEAD + b"content-length: many\r\n\r\n",
    "a negative length": HEAD + b"content-length: -5\r\n\r\n",
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    "a header without a colon": HEAD + b"nonsense\r\n\r\n",
    "a header of bytes": HEAD + b"x-\xff\xfe: \x00\x01\r\n\r\n",
    "a header of 100 kB": HEAD + b"x: " + b"y" * 100_000 + b"\r\n\r\n",
    "chunks that are none": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nhello\r\n",
    "an unknown compression": HEAD + b"content-encoding: gzip\r\n\r\nnot gzip at all",
    "a redirect into nothing": b"HTTP/1.1 302 Found\r\nlocation: http://[::\r\ncontent-length: 0\r\n\r\n",
    "only zeros": b"\x00" * 64 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE_HEADS)
def test_a_garbage_head_is_one_error_of_that_call(name: str) -> None:
    response = asyncio.run(served(GARBAGE_HEADS[name]))
    assert response.error is not None
    assert response.error.kind in (
        ErrorKind.CONNECTION, ErrorKind.MALFORMED, ErrorKind.TRUNCATED, ErrorKind.NOT_FOUND
    )  # fmt: skip


def test_an_answer_that_a_server_compresses_unasked_is_read() -> None:
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "squeezed"}, "finish_reason": "stop"}]})
    body = gzip.compress(f"data: {event}\n\ndata: [DONE]\n\n".encode())
    head = HEAD + f"content-encoding: gzip\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    response = asyncio.run(served(head + body))
    assert (response.text, response.error) == ("squeezed", None)


def test_an_error_body_that_never_ends_is_cut_at_its_bound() -> None:
    head = b"HTTP/1.1 503 Busy\r\ncontent-type: text/html\r\n\r\n"
    response = asyncio.run(served(head, more=b"<p>sorry</p>" * 1_000))
    assert response.error is not None
    assert (response.error.kind, response.error.status) == (ErrorKind.OVERLOADED, 503)


def test_an_error_body_that_does_not_come_is_not_waited_for() -> None:
    head = b'HTTP/1.1 401 No\r\ncontent-length: 1000\r\n\r\n{"error": {"mess'
    response = asyncio.run(served(head, timeouts=Timeouts(5, 30, 30, error_body_seconds=0.1)))
    assert response.error is not None
    assert (response.error.kind, response.error.status) == (ErrorKind.AUTHENTICATION, 401)


def test_an_error_body_that_breaks_off_is_still_an_error_of_its_status() -> None:
    response = asyncio.run(served(b"HTTP/1.1 429 Slow\r\nretry-after: 3\r\ncontent-length: 1000\r\n\r\nhalf"))
    assert response.error is not None
    assert (response.error.kind, response.error.retry_after) == (ErrorKind.RATE_LIMITED, 3.0)


def test_an_endless_answer_is_broken_off_and_its_connection_closed() -> None:
    piece = json.dumps({"choices": [{"index": 0, "delta": {"content": "y" * 60_000}}]})
    response = asyncio.run(served(HEAD + b"\r\n", more=f"data: {piece}\n\n".encode()))
    assert response.error is not None
    assert (response.error.kind, response.error.retryable) == (ErrorKind.MALFORMED, False)
    assert len(response.text) <= MAX_ANSWER_BYTES


def test_a_fetched_answer_is_bounded() -> None:
    async def fetch() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_000)
                    await writer.drain()
            except OSError:
                writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            provider = HttpProvider(OpenAIChat(base_url=url), timeouts=PATIENT)
            try:
                await provider.fetch(WireRequest("GET", url, {}, b""))
            finally:
                await provider.aclose()

    with pytest.raises(ProviderError, match="longer than 16777216 bytes"):
        asyncio.run(fetch())

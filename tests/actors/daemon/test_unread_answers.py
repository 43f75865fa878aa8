"""Clients that do not read their answers, or hardly: each costs bounded memory, and is cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import httpx
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from support.conditions import wait_until
from support.running_daemon import RunningDaemon
from support.scripted_daemon import scripted_daemon
from uvicorn.server import ServerState

from callboard.actors.daemon.bounded_http import BoundedHttp
from callboard.actors.daemon.http_server import UNSENT_BYTES
from callboard.actors.daemon.server_events import EventStream

ANSWER_SECONDS = 20.0
HIGH_WATER_BYTES = 64 * 1024


# -- at its socket


class Impatient(BoundedHttp):
    """One that waits for a moment only."""

    unread_seconds = 0.05


class Demanding(Impatient):
    """One for which hardly any client reads fast enough."""

    min_read_bytes = 1 << 40


async def with_client(
    app: ASGIApp,
    act: Callable[[socket.socket, ServerState], Awaitable[None]],
    http: type[BoundedHttp] = Impatient,
    connection: str = "keep-alive",
) -> None:
    """`act` has asked, and may read. In the end its connection must go."""
    server = uvicorn.Server(uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None))
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as client:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        serving = asyncio.create_task(server.serve([listening]))
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.to_thread(wait_until, lambda: server.started)
            client.connect(listening.getsockname())
            client.sendall(f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n".encode())
            state = server.server_state
            await act(client, state)
            await asyncio.to_thread(wait_until, lambda: not state.connections)
            server.should_exit = True
            await serving


async def is_answered(client: socket.socket, state: ServerState) -> None:
    await asyncio.to_thread(wait_until, lambda: state.total_requests)


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_client_that_does_not_read_is_cut_at_its_socket(connection: str) -> None:
    """Closing alone waits for the last byte to be taken: such a connection stayed for as long as its client liked."""

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * 20_000_000)(scope, receive, send)

    asyncio.run(with_client(large, is_answered, connection=connection))


def test_a_client_that_reads_too_slowly_is_cut() -> None:
    """A byte now and then kept a large answer in memory."""
    size = 64_000_000

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * size)(scope, receive, send)

    async def read_slowly(client: socket.socket, state: ServerState) -> None:
        pause, read = asyncio.Event(), 0
        client.settimeout(ANSWER_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            while found := await asyncio.to_thread(client.recv, 65_536):
                read += len(found)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(pause.wait(), 0.005)
        assert 0 < read < size

    asyncio.run(with_client(large, read_slowly, Demanding))


class Endless:
    """Events without end; and how much of them waited at once for their client."""

    def __init__(self) -> None:
        self.most_waiting = 0
        self.is_closed = False
        self.protocols: set[object] = set()

    async def events(self) -> AsyncIterator[bytes]:
        try:
            while True:
                waiting = [each.transport.get_write_buffer_size() for each in self.protocols]  # type: ignore[attr-defined]
                self.most_waiting = max(self.most_waiting, *waiting, 0)
                yield b"data: " + b"x" * 1_000 + b"\n\n"
        finally:
            self.is_closed = True


def test_a_stream_without_end_costs_a_client_that_does_not_read_little() -> None:
    endless = Endless()

    async def follow(client: socket.socket, state: ServerState) -> None:
        endless.protocols = state.connections  # type: ignore[assignment]
        await asyncio.to_thread(wait_until, lambda: endless.is_closed)

    asyncio.run(with_client(EventStream(endless.events()), follow))
    assert 0 < endless.most_waiting < HIGH_WATER_BYTES + 2_000


def test_the_last_write_of_a_stream_has_a_deadline() -> None:
    async def one_event() -> AsyncIterator[bytes]:
        yield b"x" * 20_000_000

    async def nothing(client: socket.socket, state: ServerState) -> None:
        await asyncio.to_thread(wait_until, lambda: state.connections)

    asyncio.run(with_client(EventStream(one_event()), nothing))


# -- what becomes of the request


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    with scripted_daemon(tmp_path_factory.mktemp("daemon"), daemon="limits = {unread_seconds = 0.3}") as found:
        yield found


@contextlib.contextmanager
def unread(daemon: RunningDaemon, method: str, path: str, body: object = None) -> Iterator[str]:
    """A client that reads the head of its answer, which it gives, and no more."""
    request = httpx.Request(method, daemon.url + path, headers=daemon.headers, json=body)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(ANSWER_SECONDS)
        client.connect((request.url.host, request.url.port))
        client.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        read = b""
        while not read.endswith(b"\r\n\r\n"):
            read += client.recv(1)
        yield read.decode()


def cuts(daemon: RunningDaemon) -> int:
    return daemon.stderr().count("a client that does not read was cut")


def test_a_request_goes_on_when_its_follower_is_cut(daemon: RunningDaemon) -> None:
    before = cuts(daemon)
    request_id = daemon.post("/api/requests", {"prompt": "talk put_off"}).json()["request_id"]
    path = f"/api/requests/{request_id}"
    with unread(daemon, "GET", f"{path}/events") as head:
        assert head.startswith("HTTP/1.1 200")
        wait_until(lambda: cuts(daemon) > before)
    shown = daemon.get(path).json()
    assert shown["reply"] is None
    assert daemon.post(f"{path}/cancel", {}).json() == {"done": True}


STREAMED = {
    "/v1/chat/completions": {},
    "/v1/messages": {"max_tokens": 100},
}


@pytest.mark.parametrize("path", STREAMED)
def test_a_question_ends_when_its_client_is_cut(daemon: RunningDaemon, path: str) -> None:
    before = cuts(daemon)
    said = [{"role": "user", "content": "talk put_off"}]
    body = {"model": "scripted/model", "messages": said, "stream": True, **STREAMED[path]}
    with unread(daemon, "POST", path, body) as head:
        request_id = next(
            line.split(": ")[1] for line in head.lower().splitlines() if line.startswith("x-callboard-request-id")
        )
        wait_until(lambda: cuts(daemon) > before)
        wait_until(lambda: daemon.get(f"/api/requests/{request_id}").json()["reply"] is not None)
    assert daemon.get(f"/api/requests/{request_id}").json()["reply"]["outcome"] == "cancelled"

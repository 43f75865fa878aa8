"""Server-sent events to one client: heartbeats, the client that leaves, the source that always has more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from callboard.actors.daemon.server_events import EventStream

ANSWER_SECONDS = 20.0
BEAT = b":\n\n"


class Client:
    """What it was sent, and what it does."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.may_leave, self.reads, self.has_read = asyncio.Event(), asyncio.Event(), asyncio.Condition()
        self.reads.set()
        self.has_ended = False

    async def receive(self) -> Message:
        await self.may_leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.body":
            assert not self.has_ended
            self.has_ended = not message["more_body"]
            self.bodies.append(message["body"])
            async with self.has_read:
                self.has_read.notify_all()

    async def is_sent(self, body: bytes, times: int) -> None:
        async with self.has_read:
            await self.has_read.wait_for(lambda: self.bodies.count(body) >= times)


async def answer(client: Client, source: AsyncIterator[bytes], beats: float = 600.0) -> None:
    stream = EventStream(source, heartbeat_seconds=beats)
    await asyncio.wait_for(stream({"type": "http"}, client.receive, client.send), ANSWER_SECONDS)


def test_heartbeats_come_while_the_source_is_silent() -> None:
    async def run() -> None:
        client = Client()

        async def silent_at_times() -> AsyncIterator[bytes]:
            await client.is_sent(BEAT, 2)
            yield b"one"
            yield b"two"
            await client.is_sent(BEAT, 4)
            yield b"three"

        await answer(client, silent_at_times(), 0.005)
        assert [each for each in client.bodies if each != BEAT] == [b"one", b"two", b"three", b""]
        assert client.has_ended

    asyncio.run(run())


def test_no_heartbeat_waits_behind_a_write_that_waits() -> None:
    """Each would cost memory until the client reads on."""

    async def run() -> None:
        client = Client()
        waiting: list[int] = []

        async def one() -> AsyncIterator[bytes]:
            client.reads.clear()
            asyncio.get_running_loop().call_later(0.05, client.reads.set)
            yield b"one"
            waiting.append(client.bodies.count(BEAT))

        await answer(client, one(), 0.005)
        assert waiting == [0]

    asyncio.run(run())


def test_the_source_is_closed_when_the_client_leaves() -> None:
    async def run() -> None:
        client = Client()
        closed: list[bool] = []

        async def one_and_no_more() -> AsyncIterator[bytes]:
            try:
                yield b"one"
                client.may_leave.set()
                await asyncio.Event().wait()
            finally:
                closed.append(True)

        await answer(client, one_and_no_more())
        assert (client.bodies, closed) == ([b"one"], [True])

    asyncio.run(run())


def test_a_source_that_always_has_more_lets_others_run() -> None:
    """So that its client can leave."""

    async def run() -> None:
        client = Client()

        async def endless() -> AsyncIterator[bytes]:
            while len(client.bodies) < 1_000:
                if len(client.bodies) == 10:
                    client.may_leave.set()
                yield b"more"

        await answer(client, endless())
        assert len(client.bodies) < 100

    asyncio.run(run())


def test_what_the_source_raises_ends_the_answer() -> None:
    async def run() -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield b"one"
            raise ValueError("broken")

        with pytest.raises(ValueError, match="broken"):
            await answer(Client(), broken())

    asyncio.run(run())

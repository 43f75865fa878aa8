"""Server-sent events to a client (WHATWG HTML, "Server-sent events").

A write waits until the client has taken what was written before, and bounded_http.py cuts a client that does not: until
then it costs what its connection and its source hold. A comment line is sent when nothing else was for a while, so that
proxies keep the connection and a client that is gone is noticed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from itertools import count
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

#: nginx and others end a connection that is silent for 60 s.
HEARTBEAT_SECONDS: Final = 15.0
#: A source with much to send, to a client that takes it at once, lets other tasks run after this many writes.
WRITES_IN_A_ROW: Final = 16
_LAST: Final = {"type": "http.response.body", "body": b"", "more_body": False}
_HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


def server_event(data: bytes, *, name: str = "", event_id: str = "") -> bytes:
    """One event. `data` may have no line break but "\\n"."""
    lines = [f"id: {event_id}".encode()] if event_id else []
    if name:
        lines.append(f"event: {name}".encode())
    lines += [b"data: " + line for line in data.split(b"\n")]
    return b"\n".join((*lines, b"", b""))


class EventStream(Response):
    """An answer of events: `source` gives the bytes of one or several at a time.

    `source` is closed when the client leaves, is cut, or the stream has ended, by itself or by `end`.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        heartbeat: bytes = b":\n\n",
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._source = source
        self._heartbeat = heartbeat
        self._heartbeat_seconds = heartbeat_seconds
        self._is_sending = True
        self._sent_at = 0.0
        self._over: asyncio.Future[None] | None = None

    def end(self) -> None:
        """Once it has begun: say no more than what was said; the source is closed."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        over = self._over = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(_until_gone(receive))
        writing = asyncio.ensure_future(self._write(send))
        try:
            await self._beat_until((gone, writing, over), send)
            if writing.done():
                await writing
        finally:
            for each in (gone, writing):
                each.cancel()
            await asyncio.gather(gone, writing, return_exceptions=True)
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
        if over.done() and self._sent_at:
            await self._send(send, _LAST)

    async def _write(self, send: Send) -> None:
        await self._send(send, {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        numbers = count(1)
        async for data in self._source:
            await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})
            if next(numbers) % WRITES_IN_A_ROW == 0:
                await asyncio.sleep(0)
        await self._send(send, _LAST)

    async def _send(self, send: Send, message: Message) -> None:
        self._is_sending = True
        await send(message)
        self._is_sending = False
        self._sent_at = time.monotonic()

    async def _beat_until(self, ends: tuple[asyncio.Future[None], ...], send: Send) -> None:
        """Send heartbeats until one of these is done."""
        while True:
            done, _ = await asyncio.wait(ends, timeout=max(self._beat_in(), 0.0), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            if self._beat_in() <= 0:
                await self._send(send, {"type": "http.response.body", "body": self._heartbeat, "more_body": True})

    def _beat_in(self) -> float:
        """Seconds until the next heartbeat. None is sent while a write waits for the client."""
        silent = 0.0 if self._is_sending else time.monotonic() - self._sent_at
        return self._heartbeat_seconds - silent


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

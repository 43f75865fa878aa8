"""Server-sent events to a client (WHATWG HTML, "Server-sent events").

Each write has a deadline: a client that stops reading is cut after it, and costs until then what the socket and its own
source hold. A comment line is sent when nothing else was for a while, so that proxies keep the connection and a client
that is gone is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: nginx and others end a connection that is silent for 60 s.
HEARTBEAT_SECONDS: Final = 15.0
#: A client that has not taken what one write holds by then does not read.
WRITE_SECONDS: Final = 30.0
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

    `source` is closed when the client leaves, is cut, or the stream has ended.
    """

    def __init__(
        self,
        source: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        heartbeat: bytes = b":\n\n",
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        super().__init__(headers={**_HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._source = source
        self._heartbeat = heartbeat
        self._heartbeat_seconds, self._write_seconds = heartbeat_seconds, write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        writing = asyncio.ensure_future(self._write(send))
        try:
            await asyncio.wait({gone, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                await writing
        finally:
            for each in (gone, writing):
                each.cancel()
            await asyncio.gather(gone, writing, return_exceptions=True)
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _write(self, send: Send) -> None:
        async with asyncio.timeout(self._write_seconds):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        following = asyncio.ensure_future(anext(self._source, None))
        try:
            while True:
                await asyncio.wait({following}, timeout=self._heartbeat_seconds)
                data = self._heartbeat
                if following.done():
                    found = following.result()
                    if found is None:
                        break
                    data = found
                    following = asyncio.ensure_future(anext(self._source, None))
                async with asyncio.timeout(self._write_seconds):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        async with asyncio.timeout(self._write_seconds):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

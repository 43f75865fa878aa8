"""uvicorn's HTTP/1.1 by httptools, with bounds on heads that come slowly, and on answers that are read slowly.

uvicorn has none (0.54): a client that sends a header without end, or sends or reads a byte now and then, would cost
memory or a connection for as long as it likes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from callboard.actors.daemon.api_errors import Api, ApiError, error_response
from callboard.actors.daemon.daemon_settings import DaemonLimits

logger = logging.getLogger("callboard.daemon")

#: The request line comes on top of the headers: a path of this length.
MAX_TARGET_BYTES: Final = 8 * 1024


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    max_header_bytes = 64 * 1024
    head_seconds = 20.0
    unread_seconds = 30.0
    min_read_bytes = 16 * 1024
    """In each `unread_seconds` a client must take this much of an answer that waits for it, or all that is left: at a
    byte now and then, a large answer would be held for days."""
    _head_bytes = 0
    _is_in_head = True
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def bound_by(self, limits: DaemonLimits) -> None:
        """Before the connection is made."""
        self.max_header_bytes, self.head_seconds = limits.max_header_bytes, limits.head_seconds
        self.unread_seconds, self.limit_concurrency = limits.unread_seconds, limits.max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The head of the first request is due."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            # What a client has not read the kernel keeps for minutes when we have closed the connection.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self.unread_seconds * 1_000))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._head_came()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than is written, or not at all."""
        super().pause_writing()
        self._must_read(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It reads."""
        self._is_read()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """The rest of an answer is sent while a connection closes: a client that does not read it would keep it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._must_read(self.transport.get_write_buffer_size())

    def timeout_keep_alive_handler(self) -> None:
        """Likewise, where the connection was kept for another request."""
        super().timeout_keep_alive_handler()
        self._must_read(self.transport.get_write_buffer_size())

    def _must_read(self, left_bytes: int) -> None:
        """A part of what is left must be taken in time. Closing alone would wait for its last byte."""
        self._is_read()
        if left_bytes:
            self._unread = self.loop.call_later(self.unread_seconds, self._was_read, left_bytes)

    def _was_read(self, before_bytes: int) -> None:
        left = self.transport.get_write_buffer_size()
        if before_bytes - left >= self.min_read_bytes:
            self._must_read(left)
            return
        path = self.cycle.scope["path"] if self.cycle is not None else ""
        logger.info("a client that does not read was cut", extra={"path": path, "left_bytes": left})
        self.transport.abort()

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def data_received(self, data: bytes) -> None:
        """Bytes of a head are counted before they are read."""
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > self.max_header_bytes + MAX_TARGET_BYTES and b"\r\n\r\n" not in data:
                self._refuse(ApiError(431, "headers_too_large", f"at most {self.max_header_bytes:,} bytes of headers"))
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a request, also of one that was sent behind another."""
        super().on_message_begin()
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """The target of a request, or a part of it."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._refuse(ApiError(414, "path_too_long", f"a path may have at most {MAX_TARGET_BYTES:,} bytes"))

    def on_headers_complete(self) -> None:
        """The head is there; what follows is the guard's, which takes the server's name from Host alone."""
        self._head_came()
        if not self.url.startswith(b"/"):
            self._refuse(ApiError(400, "invalid_path", "the target of a request must be a path that begins with /"))
        if not self.transport.is_closing():
            super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(ApiError(400, "invalid_http", "this is not HTTP/1.1"))

    def _await_head(self) -> None:
        self._head_came()
        self._is_in_head, self._head_bytes = True, 0  # with what one read brings, which is bounded
        self._late = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _head_came(self) -> None:
        self._is_in_head = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _head_is_late(self) -> None:
        self._refuse(ApiError(408, "headers_too_slow", f"the headers did not come within {self.head_seconds:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Answer in the native shape and hang up: the path, and so the API, may not be known."""
        self._head_came()
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # in the middle of an answer, whose reader sees that it was cut
            return
        body = bytes(error_response(Api.NATIVE, error).body)
        head = f"HTTP/1.1 {error.status} {error.code}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

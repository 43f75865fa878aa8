"""uvicorn's HTTP/1.1 by httptools, with bounds on heads that come slowly, and on answers that are read slowly; and what
of a head could mean one thing to us and another to a proxy before us is refused.

uvicorn has none (0.54): a client that sends a header without end, or sends or reads a byte now and then, would cost
memory or a connection for as long as it likes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Iterable
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from callboard.actors.daemon.api_errors import SAFE_HEADERS, Api, ApiError, error_response
from callboard.actors.daemon.daemon_settings import DaemonLimits

logger = logging.getLogger("callboard.daemon")

#: The request line comes on top of the headers: a path of this length.
MAX_TARGET_BYTES: Final = 8 * 1024
#: Fields of which two would leave open which one counts.
_ONCE: Final = frozenset(
    (b"authorization", b"content-length", b"content-type", b"host", b"origin", b"transfer-encoding", b"x-api-key")
)
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
#: A name or an address, and a port (RFC 9110, 7.2); nothing before an "@", and no second port.
_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?")


def head_fault(version: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What is wrong with a head besides what httptools refuses (RFC 9112, 3.2 and 6); "" where nothing is.

    `headers`: names in lower case, values without the blanks around them.
    """
    rows = [(name, value) for name, value in headers if name in _ONCE]
    found = dict(rows)
    coding, length = found.get(b"transfer-encoding"), found.get(b"content-length")
    faults = (
        (version not in ("1.0", "1.1"), "this server speaks HTTP/1.1"),
        (len(found) < len(rows), "one of the headers is there twice, and may be there once"),
        (_HOST.fullmatch(found.get(b"host", b"")) is None, "the header Host must name this server, and its port"),
        (coding is not None and coding.lower() != b"chunked", "the only Transfer-Encoding here is chunked"),
        (coding is not None and length is not None, "a request has a Content-Length or a Transfer-Encoding, not both"),
        (coding is not None and version == "1.0", "HTTP/1.0 has no Transfer-Encoding"),
        (length is not None and _LENGTH.fullmatch(length) is None, "Content-Length must be a number"),
    )
    return next((fault for is_so, fault in faults if is_so), "")


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
    _is_in_body = False
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
        self._is_in_body = False
        self._await_head()

    def on_url(self, url: bytes) -> None:
        """The target of a request, or a part of it."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._refuse(ApiError(414, "path_too_long", f"a path may have at most {MAX_TARGET_BYTES:,} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """The blanks around a value are no part of it (RFC 9110, 5.5), and a field behind the body is none of the
        head's."""
        if not self._is_in_body:
            super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """The head is there; what follows is the guard's, which takes the server's name from Host alone."""
        self._head_came()
        if not self.url.startswith(b"/"):
            self._refuse(ApiError(400, "invalid_path", "the target of a request must be a path that begins with /"))
        elif fault := head_fault(self.parser.get_http_version(), self.headers):
            self._refuse(ApiError(400, "invalid_http", fault))
        if not self.transport.is_closing():
            self._is_in_body = True
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of a request is there."""
        self._is_in_body = False
        super().on_message_complete()

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
            if not self._is_in_body or self.cycle.response_started or self.pipeline:
                self.transport.close()  # in the middle of an answer, whose reader sees that it was cut
                return
            self.cycle.disconnected = True  # its body is wrong: what its handler would answer has no reader
            self.cycle.message_event.set()
        logger.info("a request was refused: %s", error.message, extra={"status": error.status})
        body = bytes(error_response(Api.NATIVE, error).body)
        fields = {"content-type": "application/json", "connection": "close", **SAFE_HEADERS}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"HTTP/1.1 {error.status} {error.code}\r\n{lines}"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()

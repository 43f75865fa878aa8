"""The two ways by which MCP clients reach our tools: pipes (stdio), and HTTP on this machine.

Over HTTP any program that can connect could call tools, so: the loopback address unless another is named, a token that
is compared in constant time, Host and Origin checked (a web page that has a name of its own point here is refused), and
bounds on bodies and sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from callboard.actors.mcp.tool_server import ToolServer
from callboard.protocol.errors import UsageError

PATH: Final = "/mcp"
DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8_340
#: Arguments of a call; the SDK reads a body whole.
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
#: Of the revisions that have sessions; each is a task and some queues.
MAX_SESSIONS: Final = 100
SESSION_IDLE_SECONDS: Final = 30 * 60.0
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: For streams that are open when the server ends.
GRACE_SECONDS: Final = 2
#: Bytes of randomness; what fewer characters than this hold is not taken from a file.
TOKEN_BYTES: Final = 32
MIN_TOKEN_CHARS: Final = 16


class Address(Struct, frozen=True):
    """Where to listen."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    """0: any that is free."""

    @classmethod
    def of(cls, text: str) -> Address:
        """Of "HOST:PORT", "HOST", ":PORT" or "". Raises UsageError."""
        host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host, port = (text, "")
        host = host.removeprefix("[").removesuffix("]") or DEFAULT_HOST
        if port and not (port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise UsageError(f"--http: {port!r:.40} is not a port; give HOST:PORT with a port from 0 to 65535")
        if host in ("0.0.0.0", "::", "*"):
            raise UsageError(
                f"--http: {host} would answer under any name, which cannot be checked; give the one address by which "
                "clients reach it"
            )
        return cls(host, int(port) if port else DEFAULT_PORT)

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def names(self) -> list[str]:
        """By which a client may call it in its Host header."""
        named = f"[{self.host}]" if ":" in self.host else self.host
        return ["127.0.0.1", "localhost", "[::1]"] if self.is_loopback else [named]

    def url(self, port: int) -> str:
        """Of the server, on the port that it got."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}{PATH}"


def token_of(path: Path | None) -> str:
    """The token of this file, which only its owner may read; made, and kept there, where there is none yet.

    Without a file it is a new one. Raises UsageError.
    """
    if path is None:
        return secrets.token_urlsafe(TOKEN_BYTES)
    try:
        with contextlib.suppress(FileExistsError), open(path, "x", opener=_for_owner) as new:
            new.write(token := secrets.token_urlsafe(TOKEN_BYTES))
            return token
        with open(path) as held:
            mode = stat.S_IMODE(os.fstat(held.fileno()).st_mode)
            token = held.read(4_096).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(
            f"--token-file: {path} cannot be used: {why}; name a file, or one that is to be made"
        ) from None
    if mode & 0o077:
        raise UsageError(f"--token-file: others may read {path}; run `chmod 600 {path}`, or remove it for a new token")
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"--token-file: {path} holds no token of {MIN_TOKEN_CHARS} or more characters; remove it")
    return token


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class TokenCheck:
    """ASGI: answers 401 to a request without the token, before anything of it is read."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not secrets.compare_digest(given, self._expected):
                refusal = PlainTextResponse("This server needs a bearer token.", 401, {"WWW-Authenticate": "Bearer"})
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def http_app(tools: ToolServer, address: Address, token: str) -> ASGIApp:
    """The server for uvicorn. With token "" all requests are taken."""
    names = address.names
    # Without an event_store, so no connection is resumed: the SDK keeps what it would send again for all sessions in
    # one place, where one client could read the results of another.
    app = tools.server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        session_idle_timeout=SESSION_IDLE_SECONDS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[*names, *(f"{name}:*" for name in names)],
            allowed_origins=[f"http://{name}{port}" for name in names for port in ("", ":*")],
        ),
    )
    return TokenCheck(app, token) if token else app


async def serve_http(tools: ToolServer, address: Address, token: str, started: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. `started` is called with the URL. Raises UsageError."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listening = socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        why = error.strerror if error.errno is None or error.errno < 0 else os.strerror(error.errno)
        said = f"--http: {address.host}:{address.port} cannot be listened on: {why}; name another HOST:PORT"
        raise UsageError(said) from None
    config = uvicorn.Config(
        http_app(tools, address, token),
        http="h11",  # httptools, where it is installed, refuses a header's value that begins with a space (SEP-2243)
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    with listening:
        started(address.url(listening.getsockname()[1]))
        async with _watched(tools):
            await _Uvicorn(config).serve(sockets=[listening])


async def serve_stdio(tools: ToolServer) -> None:
    """Serve one client over stdin and stdout until it closes stdin.

    A signal ends it at once, as `kill -9` does: stdin is read on a thread that nothing else would wake. Its tools end
    with it. While it runs, file descriptor 1 is stderr (the SDK moves the pipe away) and so is sys.stdout, whose
    buffer would be written to the pipe at the end: what is printed reaches no client.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    options = tools.server.create_initialization_options()
    async with stdio_server() as (reading, writing), _watched(tools):
        with contextlib.redirect_stdout(sys.stderr):
            await tools.server.run(reading, writing, options)


class _Uvicorn(uvicorn.Server):
    """uvicorn, which kills itself by the signal that has ended it: here what is around it ends in order, too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in ENDING_SIGNALS:
                loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _watched(tools: ToolServer) -> AsyncIterator[None]:
    watching = asyncio.ensure_future(tools.watch())
    try:
        yield
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

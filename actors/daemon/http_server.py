"""The server before a daemon's tenants, from its start to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Final

import uvicorn

from callboard.actors.daemon.app import make_app
from callboard.actors.daemon.daemon import Daemon
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.daemon")

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Connections that wait to be taken.
BACKLOG: Final = 4_096
#: For answers under way once the tenants have drained.
GRACE_SECONDS: Final = 2


async def serve(daemon: Daemon, started: Callable[[str], object]) -> None:
    """Until SIGINT or SIGTERM. `started` is called with the URL once requests are taken. Raises UsageError."""
    with _listening(daemon) as sockets:
        await daemon.tenants.start()
        try:
            daemon.state = "running"
            port = sockets.getsockname()[1]
            host = f"[{daemon.settings.host}]" if ":" in daemon.settings.host else daemon.settings.host
            await _Uvicorn(daemon, _config(daemon), lambda: started(f"http://{host}:{port}")).serve(sockets=[sockets])
        finally:
            daemon.state = "stopping"
            await daemon.tenants.stop()


def _listening(daemon: Daemon) -> socket.socket:
    host, port = daemon.settings.host, daemon.settings.port
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(f"{host}:{port} cannot be listened on ({error.strerror or error})") from None


def _config(daemon: Daemon) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(daemon),
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        limit_concurrency=daemon.settings.limits.max_connections,
        timeout_graceful_shutdown=GRACE_SECONDS,
        backlog=BACKLOG,
    )


class _Uvicorn(uvicorn.Server):
    """uvicorn, which would end the process by the signal that has ended it: here what is around it ends in order."""

    def __init__(self, daemon: Daemon, config: uvicorn.Config, has_started: Callable[[], object]) -> None:
        super().__init__(config)
        self._daemon = daemon
        self._has_started = has_started
        self._tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """`has_started` is called once requests are taken."""
        await super().startup(sockets)
        if self.started:
            self._has_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._begin, self._reload)
        try:
            yield
        finally:
            for number in (*ENDING_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)
            for task in self._tasks:
                task.cancel()

    def _end(self, number: int) -> None:
        """The first signal drains, the second ends at once."""
        if self._daemon.state == "draining":
            self.handle_exit(number, None)
        else:
            self._daemon.state = "draining"
            self._begin(self._drain)

    def _begin(self, act: Callable[[], Coroutine[None, None, None]]) -> None:
        task = asyncio.get_running_loop().create_task(act())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        try:
            await self._daemon.drain()
        finally:
            self.should_exit = True

    async def _reload(self) -> None:
        try:
            await self._daemon.reload()
        except UsageError as error:
            logger.error("not reloaded, and nothing has changed: %s", error)

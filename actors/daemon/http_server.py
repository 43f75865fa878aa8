"""The server before a daemon's tenants, from its start to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Final

import uvicorn

from callboard.actors.daemon.app import make_app
from callboard.actors.daemon.bounded_http import BoundedHttp
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.reloads import reload_daemon
from callboard.actors.daemon.service_notify import ServiceNotify
from callboard.actors.daemon.tenants import Tenant
from callboard.actors.environment import notify_socket_of_environment
from callboard.protocol.errors import CallboardError, RuntimeFailure, UsageError

logger = logging.getLogger("callboard.daemon")

ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
#: Connections that wait to be taken.
BACKLOG: Final = 4_096
#: What the kernel holds of an answer until its client has taken it (it counts twice as much, socket(7)). By itself
#: Linux goes up to 4 MB (tcp(7), tcp_wmem). It is enough for 20 Mbit/s at a round trip of 100 ms.
SEND_BUFFER_BYTES: Final = 256 * 1024
#: More is not handed to the kernel before so little of it is left to send: else a client that reads seems not to until
#: it has read 1.5 MiB (measured on Linux).
UNSENT_BYTES: Final = 64 * 1024
#: For answers under way once the tenants have drained.
GRACE_SECONDS: Final = 2
#: For probes and clients to read why, before a daemon ends whose actors have.
TELL_SECONDS: Final = 2.0


async def serve(daemon: Daemon, started: Callable[[str], object]) -> None:
    """Until SIGINT or SIGTERM. `started` is called with the URL once requests are taken. Raises UsageError, and
    RuntimeFailure once the tree of a tenant has ended by itself: whoever watches the process starts it again."""
    with listening_socket(daemon.settings.host, daemon.settings.port) as sockets:
        await daemon.tenants.start()
        try:
            daemon.state = "running"
            port = sockets.getsockname()[1]
            host = f"[{daemon.settings.host}]" if ":" in daemon.settings.host else daemon.settings.host
            server = _Uvicorn(_config(daemon), daemon, lambda: started(f"http://{host}:{port}"))
            await server.serve(sockets=[sockets])
            if daemon.failure:
                raise RuntimeFailure(daemon.failure)
        finally:
            daemon.state = "stopping"
            await daemon.tenants.stop()


async def drain(daemon: Daemon) -> None:
    """Take no new requests; those that run may end within `drain_seconds`, and the journals keep what is left."""
    if not daemon.failure:
        daemon.state = "draining"
    logger.info("draining: %s s at the most", daemon.settings.drain_seconds)
    draining = (each.runtime.drain(daemon.settings.drain_seconds) for each in daemon.tenants)
    drained = await asyncio.gather(*draining, return_exceptions=True)  # raised by one whose tree has ended
    is_empty = all(each is True for each in drained)
    logger.info("drained" if is_empty else "not all requests have ended; the journal keeps the others")


def cannot_listen(address: str, error: OSError) -> UsageError:
    """With what to do about it."""
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    if error.errno == errno.EADDRINUSE:
        why = "another program listens there; name another port, or 0 for any that is free"
    elif error.errno is not None and error.errno < 0:  # of getaddrinfo
        why = "there is no machine of that name; 127.0.0.1 is this one, 0.0.0.0 all its addresses"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = "it is no address of this machine; 127.0.0.1 is, 0.0.0.0 means all that it has"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "ports below 1024 are not for everyone; name another"
    return UsageError(f"{address} cannot be listened on: {why}")


def listening_socket(host: str, port: int) -> socket.socket:
    """One that listens there. Raises UsageError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise cannot_listen(f"{host}:{port}", error) from None
    # Each connection inherits these.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
    return listening


def _config(daemon: Daemon) -> uvicorn.Config:
    class Bounded(BoundedHttp):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.bound_by(daemon.settings.limits)  # which a reload may have changed
            super().connection_made(transport)

    return uvicorn.Config(
        make_app(daemon),
        http=Bounded,
        ws="none",
        proxy_headers=False,  # an address that a client claims is used for nothing
        log_config=None,
        lifespan="off",
        access_log=False,
        server_header=False,
        date_header=True,
        timeout_graceful_shutdown=GRACE_SECONDS,
        backlog=BACKLOG,
    )


class _Uvicorn(uvicorn.Server):
    """uvicorn, which would end the process by the signal that has ended it: here what is around it ends in order.

    The first SIGTERM or SIGINT drains, a second one ends at once. SIGHUP reads the configuration again.
    """

    def __init__(self, config: uvicorn.Config, daemon: Daemon, has_started: Callable[[], object]) -> None:
        super().__init__(config)
        self._daemon = daemon
        self._has_started = has_started
        self._manager = ServiceNotify(notify_socket_of_environment())
        daemon.numbers.connections = self.server_state.connections
        self._tasks: set[asyncio.Task[None]] = set()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if counter % 10 == 0:
            self._daemon.look_at_tokens()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """`has_started` is called once requests are taken."""
        await super().startup(sockets)
        if self.started:
            for each in self._daemon.tenants:
                self._do(partial(self._watch, each))
            self._has_started()
            self._manager.ready()

    async def _watch(self, tenant: Tenant) -> None:
        """OTP's rule: where the tree ends that was to keep all else alive, the program does, and is started again."""
        if await tenant.runtime.failed is None or self._daemon.failure:
            return
        self._daemon.fails(tenant.name)
        logger.critical("the daemon ends, to be started again: %s", self._daemon.failure)
        self._manager.status(self._daemon.failure)
        await asyncio.gather(drain(self._daemon), asyncio.sleep(TELL_SECONDS))
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDING_SIGNALS:
            loop.add_signal_handler(number, self._end)
        loop.add_signal_handler(signal.SIGHUP, self._do, self._reload)
        try:
            yield
        finally:
            for number in (*ENDING_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _do(self, what: Callable[[], Coroutine[object, object, None]]) -> None:
        task = asyncio.ensure_future(what())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        if self._daemon.state in ("draining", "failed"):
            self.should_exit = self.force_exit = True
        else:
            self._do(self._drain)

    async def _drain(self) -> None:
        self._manager.stopping()
        try:
            await drain(self._daemon)
        finally:
            self.should_exit = True

    async def _reload(self) -> None:
        self._manager.reloading()
        try:
            await reload_daemon(self._daemon)
        except CallboardError as error:
            logger.error("the configuration was not taken, and nothing has changed: %s", error)
        finally:
            self._manager.ready()

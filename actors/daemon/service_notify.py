"""Messages to systemd (sd_notify(3)): the daemon is ready, reloads, or stops."""

from __future__ import annotations

import logging
import socket
import time
from typing import Final

logger = logging.getLogger("callboard.daemon")

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
#: What a service manager takes a datagram in; it never waits longer than that on the daemon's loop.
SEND_SECONDS: Final = 1.0


class ServiceNotify:
    """Sends to the socket that the service manager has named in NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        """`address`: a path, or "@" and a name of Linux' abstract namespace; "" sends nothing."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self) -> None:
        """Requests are taken, or a reload has ended."""
        self._send(READY)

    def reloading(self) -> None:
        """A reload begins. systemd takes it for the one it waits for by the time, in us of the monotonic clock."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")

    def stopping(self) -> None:
        """The daemon drains, and ends then."""
        self._send(STOPPING)

    def status(self, line: str) -> None:
        """What `systemctl status` shows of it."""
        self._send(f"STATUS={line}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_manager:
                to_manager.settimeout(SEND_SECONDS)
                to_manager.sendto(message.encode(), self._address)
        except OSError as error:
            logger.warning("the service manager was not reached: %s", error.strerror or error)

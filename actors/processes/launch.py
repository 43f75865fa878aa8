"""The runtime's end of the fork server: starts it, asks it, hears from it, sees it end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final

from callboard.actors.processes.frames import REPORT, REQUEST, Ask, Told
from callboard.actors.processes.linux import IS_LINUX

logger = logging.getLogger("callboard.tools")

#: All that children get of our environment: where things are and which language and time zone. Keys stay with us.
ENVIRONMENT: Final = frozenset(
    """PATH LD_LIBRARY_PATH VIRTUAL_ENV HOME USER LOGNAME SHELL TMPDIR
    LANG LANGUAGE TZ SSL_CERT_FILE SSL_CERT_DIR""".split()  # noqa: SIM905 - to be read as a list
)
#: The variable by which a pool's processes are known when all else is lost.
POOL: Final = "CALLBOARD_POOL"
#: Reports read in one go.
BATCH: Final = 256
#: A fork server that has been told to end and has not after this is killed; it kills everything within 2 s.
CLOSE_SECONDS: Final = 3.0

#: `sys.path` is set before the first import of ours, so that an editable or `.pth` install works as it does here.
_CODE: Final = """
import sys
sys.path[:] = {path!r}
from callboard.actors.processes.fork_server import main
main({fd}, {memory}, {heir_of!r})
"""


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The allowed part of our environment, and `extra`."""
    allowed = {name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith("LC_")}
    return {**allowed, **extra}


def why_not() -> str:
    """Why there can be no process isolation here, and what to do; empty where there can."""
    remedy = "give the tool isolation='thread', or make it an `async def`"
    if not IS_LINUX:
        return f"process isolation needs Linux, this is {sys.platform}: {remedy}"
    if not sys.executable:
        return f"process isolation needs sys.executable, which is empty in this embedded interpreter: {remedy}"
    return ""


class ForkServerProcess:
    """Lives from its making until `lost` is called, once, when the process is gone and reaped.

    `pool` names the pool in the environment of all its processes. An `heir` follows one that was lost, and first ends
    what that one has left: with it, its children died, but not what these had put into other sessions.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        memory_bytes: int,
        environment: Mapping[str, str],
        pool: str,
        heir: bool,
        told: Callable[[Told, int, int], None],
        lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._told = told
        self._lost = lost
        self._closing = False
        self.listens = True
        """False from the moment that it is known to be lost."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        loop.add_reader(self._control.fileno(), self._readable)
        code = _CODE.format(
            path=sys.path, fd=theirs.fileno(), memory=memory_bytes, heir_of=f"{POOL}={pool}" if heir else ""
        )
        # On a thread of its own: starting a process waits for its exec, 1 ms at rest and 100 on a busy machine. What is
        # sent to it until then waits in the socket.
        start = threading.Thread(
            target=self._launch,
            args=(theirs, code, {**child_environment(environment), POOL: pool}),
            name="callboard-launch",
            daemon=True,
        )
        start.start()

    def spawn(self, number: int, descriptors: tuple[int, int]) -> None:
        """Fork a child with this call socket and this output pipe."""
        self._send(Ask.SPAWN, number, descriptors)

    def ask(self, ask: Ask, number: int) -> None:
        """Terminate or kill a child; nothing happens when it has ended meanwhile."""
        self._send(ask, number, ())

    def close(self) -> None:
        """Let it kill everything and end; `lost` tells when. Asking again does nothing."""
        if self._closing:
            return
        self._closing = True
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._loop.call_later(CLOSE_SECONDS, self.kill)

    def kill(self) -> None:
        """End it now; its children die with it. Only when it does not listen."""
        self.listens = False
        if self._process is not None:
            self._process.kill()  # does nothing once it has been reaped

    def _launch(self, theirs: socket.socket, code: str, environment: Mapping[str, str]) -> None:
        process = None
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                )
            except OSError:
                logger.exception("the fork server of the tool workers could not be started")
        with contextlib.suppress(RuntimeError):  # the loop is closed; what has been started sees our end closed too
            self._loop.call_soon_threadsafe(self._launched, process)

    def _launched(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is None:
            self._end_of_it("it could not be started")
            return
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._gone)
        if not self.listens:
            process.kill()

    def _send(self, ask: Ask, number: int, descriptors: tuple[int, ...]) -> None:
        if self._closing:
            return
        try:
            socket.send_fds(self._control, [REQUEST.pack(ask, number)], descriptors)
        except OSError as error:  # it is gone, which we are about to hear, or it has not listened for 200 messages
            if self.listens:
                logger.warning("the fork server of the tool workers does not listen (%s); it is replaced", error)
            self.kill()

    def _readable(self) -> None:
        for _ in range(BATCH):
            try:
                report = self._control.recv(REPORT.size)
            except BlockingIOError:
                return
            except OSError:
                report = b""
            if len(report) != REPORT.size:
                self._loop.remove_reader(self._control.fileno())  # it has ended; its pidfd tells the rest
                self.listens = False
                return
            told, number, value = REPORT.unpack(report)
            self._told(Told(told), number, value)
            if self._closing:
                return

    def _gone(self) -> None:
        process = self._process
        assert process is not None
        assert process.stderr is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        status = process.wait()
        with process.stderr as stderr:
            os.set_blocking(stderr.fileno(), False)
            complaint = b""
            with contextlib.suppress(BlockingIOError):
                complaint = os.read(stderr.fileno(), 65_536)
        self._end_of_it(f"it ended with status {status}\n{complaint.decode(errors='replace')}")

    def _end_of_it(self, why: str) -> None:
        self.listens = False
        if not self._closing:
            self._closing = True
            self._loop.remove_reader(self._control.fileno())
            self._control.close()
            logger.error("the fork server of the tool workers is lost: %s", why)
        self._lost()

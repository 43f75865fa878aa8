"""The process that forks, reaps and kills the children in which tools run. It runs no tool itself.

It stands between the runtime and the children for four reasons. A fork of it takes 1-3 ms, where a new interpreter
with pydantic takes 90; it inherits nothing of the host (threads, locks, handlers, descriptors, environment); it is the
parent of the children, so that the host's own child handling is untouched; and it is the subreaper of everything a
tool may start: processes that leave their group and their session fall to it when their child dies, and are killed.
When the runtime's end of the socket closes, also by kill -9, it kills everything and ends.

    host --SPAWN (socket, output pipe) / TERMINATE / KILL--> fork server --SPAWNED / EXITED--> host
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Final, NoReturn

from callboard.actors.processes.child import CallEnded
from callboard.actors.processes.child import run as run_child
from callboard.actors.processes.frames import REPORT, REQUEST, Ask, Told
from callboard.actors.processes.linux import children, die_with_parent, inherit_orphans, marked
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Invoker
from callboard.actors.tools.schema import read_signature
from callboard.protocol.ids import MessageId, RequestId, Tag

#: Orphans that do not die of SIGKILL at once (they are in an uninterruptible system call) are asked again this often.
SWEEP_SECONDS: Final = 0.005
#: The last sweep, when the runtime is gone, gives up after this: nobody waits any more.
LAST_SWEEP_SECONDS: Final = 2.0


class ForkServer:
    """One runs per process pool."""

    def __init__(self, control: socket.socket, memory_bytes: int) -> None:
        self._control = control
        self._pid = os.getpid()
        self._memory_bytes = memory_bytes
        self._numbers: dict[int, int] = {}
        """Child number by process id, of those alive."""
        self._pids: dict[int, int] = {}
        self._exited: dict[int, int] = {}
        """Wait status by number, of those whose orphans are not all gone yet."""
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()

    def run(self) -> None:
        """Serve until the runtime is gone."""
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        parent = os.getppid()
        while os.getppid() == parent:
            ready = {key.fileobj for key, _ in self._selector.select(SWEEP_SECONDS if self._exited else None)}
            if self._woken in ready:
                self._woken.recv(4096)
            self._reap()
            self._sweep()
            if self._control in ready and not self._obey():
                break
        self._end()

    def _obey(self) -> bool:
        request, descriptors, _, _ = socket.recv_fds(self._control, REQUEST.size, 2)
        if not request:
            return False
        ask, number = REQUEST.unpack(request)
        if ask == Ask.SPAWN:
            self._spawn(number, *descriptors)
        elif number in self._pids:
            self._signal(self._pids[number], Ask(ask))
        return True

    def _spawn(self, number: int, call_socket: int, output: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(Told.NOT_SPAWNED, number, error.errno or errno.EAGAIN)
        else:
            if pid == 0:
                self._become_child(call_socket, output)
            self._numbers[pid] = number
            self._pids[number] = pid
            self._tell(Told.SPAWNED, number, pid)
        os.close(call_socket)
        os.close(output)

    def _become_child(self, call_socket: int, output: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            self._selector.close()
            run_child(call_socket, output, self._memory_bytes, self._pid)
        except CallEnded:
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the fork must not return into the server's loop
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _signal(self, pid: int, ask: Ask) -> None:
        # The pid cannot have passed to somebody else: it is ours until we reap it.
        with contextlib.suppress(ProcessLookupError):
            if ask is Ask.TERMINATE:
                os.kill(pid, signal.SIGTERM)
            else:
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (waited := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = waited
                if (number := self._numbers.pop(pid, None)) is not None:
                    del self._pids[number]
                    self._exited[number] = status

    def _sweep(self) -> None:
        """Kill what the dead have left us. Orphans of the living are with them: each child is a subreaper itself."""
        if not self._exited:
            return
        orphans = children() - self._numbers.keys()
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        if orphans:
            # Their own children come to us in turn; SIGCHLD or the next round finds them.
            self._reap()
            orphans = children() - self._numbers.keys()
        if not orphans:
            for number, status in self._exited.items():
                self._tell(Told.EXITED, number, status)
            self._exited.clear()

    def _tell(self, told: Told, number: int, value: int) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the runtime is gone; run() will see it
            self._control.send(REPORT.pack(told, number, value))

    def _end(self) -> None:
        for pid in self._numbers:
            self._signal(pid, Ask.KILL)
        self._selector.unregister(self._control)  # its end would be reported for ever
        until = time.monotonic() + LAST_SWEEP_SECONDS
        while (left := children()) and time.monotonic() < until:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            self._reap()
            self._selector.select(SWEEP_SECONDS)


def _warm_up() -> None:
    """Call a tool once: pydantic loads half of itself when first used, 12 ms that each child would pay for."""

    def sample(text: str, number: int = 1, flag: bool = False, items: list[str] | None = None) -> dict[str, object]:
        return {"text": text}

    invoker = Invoker("sample", sample, read_signature(sample, "sample"))
    invoker.call('{"text": ""}', ToolContext(Tag(RequestId(""), MessageId("")), "", 0.0))


def _end_what_was_left(mark: str) -> None:
    """Kill the orphans of a fork server that was killed itself; they are init's children now."""
    until = time.monotonic() + LAST_SWEEP_SECONDS
    while (left := marked(mark)) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(SWEEP_SECONDS)


def main(control: int, memory_bytes: int, heir_of: str) -> None:
    """Run by launch.py in a new interpreter."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # only to wake the selector
    inherit_orphans()
    # A hint to look whether the parent has changed; SIGTERM and not SIGKILL, since there is something left to do then.
    die_with_parent(signal.SIGTERM)
    if heir_of:
        _end_what_was_left(heir_of)
    _warm_up()
    # What is loaded now is shared with every child until somebody writes to it; the collector would.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=control) as end:
        ForkServer(end, memory_bytes).run()
    sys.stdout.flush()

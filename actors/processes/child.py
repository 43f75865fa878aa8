"""A child process: takes one call at a time from its socket, runs it on its main thread, and replies."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType

from callboard.actors.processes.frames import LENGTH, Order, Reply, decode_order, encode_reply
from callboard.actors.processes.linux import die_with_parent, inherit_orphans
from callboard.actors.processes.surroundings import Surroundings
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Invoker, shortened
from callboard.actors.tools.shipping import unpack
from callboard.protocol.tools import FailureCode, ToolFailure


class CallEnded(BaseException):
    """Raised in a tool by SIGTERM: its time is up, or nobody wants its result. Time for a `finally`, no more."""


def run(call_socket: int, output: int, memory_bytes: int, parent: int) -> None:
    """Become a worker. Called in the fork, on its only thread; returns when the runtime has closed the socket."""
    os.setsid()
    die_with_parent(signal.SIGKILL)
    inherit_orphans()
    if os.getppid() != parent:  # it ended before we could ask to end with it
        return
    _take_descriptors(call_socket, output)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit_memory(memory_bytes)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _end_call)
    faulthandler.enable()
    gc.enable()
    with socket.socket(fileno=3) as calls:
        Child(calls).serve()


def _limit_memory(wanted_bytes: int) -> None:
    """Of data (heap, private mappings), not of address space: numpy and its like reserve far more than they use."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted_bytes if hard == resource.RLIM_INFINITY else min(wanted_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _take_descriptors(call_socket: int, output: int) -> None:
    """0 reads nothing, 1 and 2 are the output pipe, 3 is the socket; there is no other."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if call_socket != 3:
        os.dup2(call_socket, 3, inheritable=False)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    # By lines, so that what was printed before a crash is not lost with the buffer.
    sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115


def _end_call(_signal: int, _frame: FrameType | None) -> None:
    raise CallEnded("the call was ended")


class Child:
    """The tools that have come so far, and the calls one after the other."""

    def __init__(self, calls: socket.socket) -> None:
        self._calls = calls
        self._packed: dict[int, bytes] = {}
        self._tools: dict[int, Invoker] = {}
        self._surroundings = Surroundings()

    def serve(self) -> None:
        """Run calls until the runtime closes the socket."""
        for order in self._orders():
            if order.packed is not None:
                self._packed[order.tool] = order.packed
            if order.context is None:
                # What goes wrong now goes wrong again in the call, which is told of it.
                with contextlib.suppress(BaseException):
                    self._invoker(order)
                continue
            reply = self._run(order, order.context)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(ValueError, OSError):  # the tool has closed or replaced it
                    stream.flush()
            self._calls.sendall(encode_reply(reply))

    def _run(self, order: Order, context: ToolContext) -> Reply:
        try:
            invoker = self._invoker(order)
        except BaseException as error:  # noqa: BLE001 - importing the tool's module runs anybody's code
            text = shortened(f"{type(error).__name__}: {error}")
            failure = ToolFailure(
                order.name, FailureCode.CRASHED, f"the tool could not be loaded in its child process: {text}"
            )
            return Reply(order.number, failure, spent=True)
        result = invoker.call(order.arguments, context)
        crashed = isinstance(result, ToolFailure) and result.code is FailureCode.CRASHED
        return Reply(order.number, result, spent=crashed or _left_processes() or not self._restored())

    def _invoker(self, order: Order) -> Invoker:
        invoker = self._tools.get(order.tool)
        if invoker is None:
            invoker = self._tools[order.tool] = Invoker(*unpack(self._packed[order.tool]))
            del self._packed[order.tool]
            self._surroundings = Surroundings()
        return invoker

    def _restored(self) -> bool:
        try:
            return self._surroundings.restore()
        except BaseException:  # noqa: BLE001 - whatever the tool has done to this process, the next gets another
            return False

    def _orders(self) -> Iterator[Order]:
        while len(head := self._read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            yield decode_order(self._read(length))

    def _read(self, size: int) -> bytes:
        return self._calls.recv(size, socket.MSG_WAITALL)


def _left_processes() -> bool:
    """Has the tool started processes that still run? One system call where it has none at all."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True

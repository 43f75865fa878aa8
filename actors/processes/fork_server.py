"""A fork server: forks children in which calls run, from an interpreter that has loaded what they need.

The first one has the modules of ours that a child needs; of it are forked the templates, each of which loads one tool.
A fork takes about 1 ms, where a new interpreter with pydantic takes 90, and inherits nothing of the runtime: no
threads, locks, handlers, descriptors, environment.

A tool whose module starts threads or opens sockets when it is loaded cannot be forked with them. Its template says so
and ends; each of its children is forked of the first fork server and loads the tool itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import stat
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from msgspec import Struct

from callboard.actors.processes import confined
from callboard.actors.processes.child import (
    LOST_COVER,
    CallEnded,
    Child,
    limit_memory,
    limit_processes,
    pack_load_error,
    watching_generators,
)
from callboard.actors.processes.control import Kind, Message, pair, receive, send
from callboard.actors.processes.linux import inherit_orphans, reaped, signal_only_own
from callboard.actors.tools.invoke import Invoker
from callboard.actors.tools.shipping import unpack

#: The control socket of a fork server, and the call socket of a child: what a tool opens comes after it.
CONTROL: Final = 3


class Limits(Struct, frozen=True):
    """What a child may do."""

    memory_bytes: int
    """Data (heap and private mappings) of each process."""
    namespaces: bool
    """It runs in namespaces of its own: let it signal its own descendants only, where the kernel knows how, and give it
    mounts of its own where it is confined."""
    scratch: str = ""
    """A folder for the scratch folders of confined tools."""
    places: int = -1
    """A file in which templates share where secret files are."""
    stacks: int = -1
    """The writing end of a pipe, for where a child's code is when it is asked. A pipe: what is in a file in memory
    could be run as a program, which no confinement sees."""


class ForkServer:
    """The first one, or with a `tool` the template of it."""

    def __init__(self, registry: int, limits: Limits, tool: Invoker | None = None, own_kb: int = 0) -> None:
        self._control = socket.socket(fileno=CONTROL)
        self._registry = socket.socket(fileno=registry)
        self._woken, self._waker = pair()
        self._limits = limits
        self._tool = tool
        self._own_kb = own_kb
        """Memory of its own."""
        self._numbers: dict[int, int] = {}
        """Number by process id, of its children."""

    def run(self) -> None:
        """Serve until the runtime closes the control socket."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the runtime, or the init process, has ended
            self._serve()

    def _serve(self) -> None:
        send(self._control, Message(Kind.READY, 0, self._own_kb))
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, wake)
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
                if self._reap():
                    return
            if CONTROL in ready:
                order = receive(self._control)
                if order is None:
                    return
                self._fork(*order)

    def _reap(self) -> bool:
        """Whether one of them has found that this template is not to be used any more."""
        is_outdated = False
        for pid, status in reaped():
            if (number := self._numbers.pop(pid, None)) is not None:
                confined.forget_child(pid)
                send(self._registry, Message(Kind.EXITED, number, status))
                is_outdated |= os.waitstatus_to_exitcode(status) == LOST_COVER
        return is_outdated and self._tool is not None

    def _fork(self, order: Message, descriptors: list[int]) -> None:
        become = self._become_template if order.kind is Kind.TEMPLATE else self._become_child
        try:
            pid = os.fork()
        except OSError as error:
            send(self._control, Message(Kind.NOT_FORKED, order.number, error.errno or 0))
        else:
            if pid == 0:
                self._leave(lambda: become(descriptors))
            self._numbers[pid] = order.number
            send(self._registry, Message(order.kind, order.number, pid, str(os.getpid())))
            send(self._control, Message(Kind.FORKED, order.number))
        for descriptor in descriptors:
            os.close(descriptor)

    # -- in the fork ----------------------------------------------------------------------------------------------

    def _leave(self, become: Callable[[], None]) -> NoReturn:
        """Do in the fork what it is for, and end: it must not return into this loop."""
        try:
            signal.set_wakeup_fd(-1)
            os.setsid()
            limit_memory(self._limits.memory_bytes)
            become()
        except CallEnded:
            os._exit(0)
        except BaseException:  # noqa: BLE001 - see above
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _become_child(self, descriptors: list[int]) -> None:
        calls, output, *tool = descriptors
        for end in (self._registry, self._woken, self._waker):
            end.close()
        if self._limits.namespaces:
            limit_processes()
        take_place(calls, self._control.detach())
        inherit_orphans()
        Child(output, self._loader(*tool), self._limits.stacks).serve()

    def _loader(self, *tool: int) -> Callable[[], Invoker]:
        """Of a child, which is held to what its tool may do. It raises what went wrong with that."""
        try:
            loaded = self._tool
            load = self._confine(*tool) if loaded is None else lambda: loaded
            confined.enter_child()
            self._limit_signals()
        except OSError as error:
            return _fails_with(error)
        return load

    def _limit_signals(self) -> None:
        # What confines a tool does so too; and beside it, a layer of Landlock that knows no files would keep files from
        # being moved to another folder.
        if self._limits.namespaces and not confined.is_held():
            signal_only_own()

    def _confine(self, tool: int) -> Callable[[], Invoker]:
        """Hold this process to what the tool in this file may do. Returns what loads it, and raises what its module
        raises. Raises OSError."""
        limits = self._limits
        data = os.pread(tool, os.fstat(tool).st_size, 0)
        os.close(tool)
        walls, packed = confined.unpack_walls(data)
        try:
            if walls is not None:
                confined.enter(walls, limits.scratch, limits.places, has_mounts=limits.namespaces)
        finally:
            os.close(limits.places)
        return lambda: Invoker(*unpack(packed), explain=confined.explain)

    def _become_template(self, descriptors: list[int]) -> None:
        control, tool = descriptors
        for end in (self._woken, self._waker):
            end.close()
        take_place(control, self._control.detach())
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        refusal, memory = None, _open_memory()  # before it is confined
        try:
            load = self._confine(tool)
            self._limit_signals()
            with watching_generators():
                invoker = load()
        except BaseException as error:  # noqa: BLE001 - importing the tool's module runs code that is not ours
            refusal = Message(Kind.FAILED, 0, 0, pack_load_error(error, confined.explain(error)))
        else:
            if why := _why_unfit({CONTROL, self._registry.fileno()}):
                refusal = Message(Kind.UNFIT, 0, 0, why)
        if refusal is not None:
            with socket.socket(fileno=CONTROL) as runtime:
                send(runtime, refusal)
            return
        gc.collect()
        gc.freeze()
        ForkServer(self._registry.detach(), self._limits, invoker, _own_kb(memory)).run()


def _open_memory() -> int | None:
    """What the kernel says of this process's memory, open; None where it does not say."""
    with contextlib.suppress(OSError):
        return os.open("/proc/self/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC)
    return None


def _own_kb(memory: int | None) -> int:
    """In kB: what no other process shares, and so what its end gives back. Not what it has in sum, which a fork shares
    with the one that it is forked of."""
    if memory is None:
        return 0
    with open(memory, encoding="ascii") as told:
        return sum(int(line.split()[1]) for line in told if line.startswith("Private_"))


def wake(_signal: int, _frame: object) -> None:
    """A handler that does nothing: the signal is only to end a wait."""


def take_place(descriptor: int, place: int) -> None:
    """Give a descriptor this number, and close what had it."""
    if descriptor != place:
        os.dup2(descriptor, place, inheritable=False)
        os.close(descriptor)


def _fails_with(error: OSError) -> Callable[[], Invoker]:
    def load() -> Invoker:
        raise error

    return load


def _why_unfit(ours: set[int]) -> str:
    """What must not be shared by forks: what the tool's module has started when it was loaded."""
    threads = len(os.listdir("/proc/self/task")) - 1
    if threads:
        return f"{threads} {'threads run' if threads > 1 else 'thread runs'} once its module is loaded"
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself
            if descriptor not in ours and stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                return "a socket is open once its module is loaded"
    return ""

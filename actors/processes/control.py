"""What the runtime, the init process and the fork servers say to each other. Small: the init process loads no more.

    runtime --START / TERMINATE / KILL / END--> init process --CONTAINED / EXITED / NOT_SIGNALLED--> runtime
    runtime --FORK / TEMPLATE-----------------> fork server  --READY / UNFIT / FORKED / NOT_FORKED-> runtime
                                                fork server  --FORK / TEMPLATE / EXITED-----------> init process

Every process below the init process has a number, given by the runtime: in a namespace of its own its process id means
nothing outside.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
from enum import IntEnum
from typing import Final, NamedTuple

#: Length of what follows, before everything that goes over a stream.
LENGTH: Final = struct.Struct("!I")
#: Before what a child says of a call: the call's number, what follows (`Says`), must the child be replaced.
REPLY: Final = struct.Struct("!IB?")
#: Kind, number of the process, a value.
_MESSAGE: Final = struct.Struct("!BIi")
#: Of a message, text included; and the descriptors that may come with one.
_MESSAGE_BYTES: Final = 8_192
_MAX_DESCRIPTORS: Final = 3


class Says(IntEnum):
    """What a child says of a call. All but a result are JSON."""

    RESULT = 0
    FAILURE = 1
    DEFERRED = 2
    PROGRESS = 3
    """It goes on, as after STATEMENTS; the others end it."""
    STATEMENTS = 4
    """What is to be committed with its result, which follows."""


class Kind(IntEnum):
    """What a message says."""

    START = 1
    """Start a fork server with this control socket."""
    TERMINATE = 2
    KILL = 3
    END = 4
    """Kill everything and end."""
    STACK = 7
    """`value` 1: have the process write down where its code is. 0: tell what it has written. Answered by the same, with
    the text; `value` -1 where the text says why there is none."""
    FORK = 5
    """Fork a child with this call socket and output pipe; and with this tool, which it loads, from a fork server that
    has none. To the init process: it is forked; `value` is the process id, the text that of its fork server."""
    TEMPLATE = 6
    """Fork a fork server with this control socket, and load this tool in it. To the init process: as above."""

    STARTED = 10
    """It is Python that was started, and it runs our code. The first word, before anything of ours is loaded."""
    CONTAINED = 11
    """The init process is ready. The text names its namespaces, or says why it has none."""
    READY = 12
    """This fork server has loaded what it is for, and forks from now on. `value`: a template's own memory, in kB."""
    UNFIT = 13
    """This fork server has loaded its tool but must not be forked; the text says why. It ends."""
    FAILED = 14
    """The tool could not be loaded; the text says why (child.py: pack_load_error). It ends."""
    FORKED = 15
    """A receipt."""
    NOT_FORKED = 16
    """`value` is an errno."""
    EXITED = 17
    """`value` is the wait status. To the runtime: the process and all that it had started are gone; the text says why,
    where the init process has killed it."""
    NOT_SIGNALLED = 18
    """The process runs as another user and cannot be ended from here; it is left alone."""


#: The wait status of a process whose parent ended together with it.
UNKNOWN_STATUS: Final = -1


class Message(NamedTuple):
    """One message, without its descriptors."""

    kind: Kind
    number: int
    value: int = 0
    text: str = ""


def send(end: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Raises OSError: the other side has ended, or (BlockingIOError) does not read."""
    data = packed(message)
    if descriptors:
        socket.send_fds(end, [data], descriptors)
    else:
        end.send(data)


def packed(message: Message) -> bytes:
    """As it is sent."""
    kind, number, value, text = message
    return _MESSAGE.pack(kind, number, value) + text.encode(errors="replace")[: _MESSAGE_BYTES - _MESSAGE.size]


def send_if_heard(end: socket.socket, message: Message) -> None:
    """Send, unless the other side has ended: then there is nothing to say."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send(end, message)


def receive(end: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message and its descriptors; None when the other side has ended. Raises BlockingIOError."""
    try:
        data, descriptors, _, _ = socket.recv_fds(end, _MESSAGE_BYTES, _MAX_DESCRIPTORS)
    except ConnectionResetError:
        return None
    return (_decoded(data), descriptors) if data else None


def hear(end: socket.socket) -> Message | None:
    """The next message of one that sends no descriptors; None when it has ended. Raises BlockingIOError."""
    try:
        data = end.recv(_MESSAGE_BYTES)
    except ConnectionResetError:
        return None
    return _decoded(data) if data else None


def _decoded(data: bytes) -> Message:
    kind, number, value = _MESSAGE.unpack_from(data)
    return Message(Kind(kind), number, value, data[_MESSAGE.size :].decode(errors="replace"))


def pair(kind: int = socket.SOCK_SEQPACKET) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection, by default one that keeps messages apart. The other one is for another process, which
    waits when it reads. Raises OSError."""
    one, other = socket.socketpair(socket.AF_UNIX, kind)
    return _socket_above_standard(one), waiting(_socket_above_standard(other))


def waiting(end: socket.socket) -> socket.socket:
    """The same: reading it waits in whichever process reads. gevent and eventlet make all sockets ones that do not."""
    os.set_blocking(end.fileno(), True)
    return end


def pipe() -> tuple[int, int]:
    """The reading and the writing end. Raises OSError."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    return above_standard(read_end), above_standard(write_end)


def above_standard(descriptor: int) -> int:
    """The same under a number above 2: a host that has closed its standard descriptors is given these like others.

    Raises OSError.
    """
    if descriptor > 2:
        return descriptor
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(descriptor)


def _socket_above_standard(end: socket.socket) -> socket.socket:
    return end if end.fileno() > 2 else socket.socket(fileno=above_standard(end.detach()))


def how_it_ended(status: int) -> str:
    """A wait status in words: "was killed by SIGSEGV", "exited with status 1"."""
    if status == UNKNOWN_STATUS:
        return "ended, it is not known how"
    if os.WIFEXITED(status):
        return f"exited with status {os.waitstatus_to_exitcode(status)} (os._exit?)"
    if not os.WIFSIGNALED(status):  # no end; what a template sends may be its tool's
        return f"ended, with a status that is none ({status})"
    number = os.WTERMSIG(status)
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    why = " (a system call that is refused to confined tools)" if number == signal.SIGSYS else ""
    return f"was killed by {name}{why}"

"""The runtime's ends of one child: its call socket and its output. Nothing here ever waits for the child.

Calls go to a child as pickles, since they carry functions and the child trusts us. Nothing that comes back is ever
unpickled: a reply is a number, a kind and JSON text, even if the tool has changed its process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from callboard.actors.processes.control import LENGTH, REPLY, Says, pair, pipe
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Result
from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.transaction import MAX_STATEMENTS_BYTES, Statements
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES, MAX_TOOL_OUTPUT_BYTES
from callboard.protocol.tools import Deferred, FailureCode, ToolFailure

#: One read of a child's socket or pipe; the default capacity of a pipe.
READ_BYTES: Final = 65_536
#: The largest pipe that an ordinary user gets (/proc/sys/fs/pipe-max-size).
FLOOD_PIPE_BYTES: Final = 1_048_576
#: A reply cannot be longer: the result's limit and room for a failure's texts.
MAX_REPLY_BYTES: Final = max(MAX_RESULT_BYTES, MAX_STATEMENTS_BYTES) + 65_536


class Reply(NamedTuple):
    """What a child says of one call."""

    number: int
    result: Result | CallProgress | Statements
    """CallProgress and Statements: the call goes on."""
    spent: bool
    """The child must be ended before the result is passed on: processes or threads are left, memory ran out."""


class BrokenFrame(Exception):
    """A child sent something other than a reply: its tool wrote to our socket."""


class ReplyDecoder:
    """Bytes in any portions to replies."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Reply]:
        """The replies that are complete now. Raises BrokenFrame."""
        buffer = self._buffer
        buffer += data
        replies = []
        while len(buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer)
            if not REPLY.size <= length <= MAX_REPLY_BYTES:
                raise BrokenFrame(f"a frame of {length:,} bytes")
            end = LENGTH.size + length
            if len(buffer) < end:
                break
            replies.append(_decode_reply(bytes(buffer[LENGTH.size : end])))
            del buffer[:end]
        return replies


def _decode_reply(body: bytes) -> Reply:
    try:
        number, says, spent = REPLY.unpack_from(body)
        text = body[REPLY.size :]
        if says == Says.RESULT:
            return Reply(number, text.decode(), spent)
        if says == Says.STATEMENTS:
            return Reply(number, Statements.from_json(text), spent)
        return Reply(number, _READ[Says(says)](orjson.loads(text)), spent)
    except (ValueError, TypeError, KeyError, AttributeError, UsageError) as error:
        raise BrokenFrame(f"a frame that cannot be decoded: {error}") from error


def _read_failure(fields: dict[str, str]) -> ToolFailure:
    return ToolFailure(ToolName(fields.pop("tool")), FailureCode(fields.pop("code")), **fields)


_READ: Final[Mapping[Says, Callable[[dict[str, Any]], Result | CallProgress]]] = {
    Says.FAILURE: _read_failure,
    Says.DEFERRED: lambda fields: Deferred(**fields),
    Says.PROGRESS: lambda fields: CallProgress.of(**fields),
}


class PrintedOutput:
    """What a child has printed during its call: the last of it, since errors come last."""

    __slots__ = ("_kept", "total_bytes")

    def __init__(self) -> None:
        self._kept = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Keep the newest."""
        self.total_bytes += len(data)
        self._kept += data[-MAX_TOOL_OUTPUT_BYTES:]
        if len(self._kept) > 2 * MAX_TOOL_OUTPUT_BYTES:
            del self._kept[:-MAX_TOOL_OUTPUT_BYTES]

    def text(self) -> str:
        """All that is kept, with a word on what is not."""
        kept = bytes(self._kept[-MAX_TOOL_OUTPUT_BYTES:])
        left_out = self.total_bytes - len(kept)
        text = kept.decode(errors="replace")
        return f"({left_out:,} bytes before this were left out)\n{text}" if left_out else text


class ChildEnds:
    """From before the fork of a child until after its end. Raises OSError when made: out of descriptors."""

    __slots__ = (
        "_calls",
        "_decoder",
        "_loop",
        "_output_end",
        "_pipe_bytes",
        "_theirs",
        "_unsent",
        "number",
        "orders",
        "output",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._loop = loop
        self.number = number
        self.orders = 0
        self.output = PrintedOutput()
        self._pipe_bytes = READ_BYTES
        self._decoder = ReplyDecoder()
        self._unsent = bytearray()
        self._calls, theirs = pair(socket.SOCK_STREAM)
        try:
            self._output_end, write_end = pipe()
        except OSError:
            self._calls.close()
            theirs.close()
            raise
        self._calls.setblocking(False)
        os.set_blocking(self._output_end, False)
        self._theirs = (theirs.detach(), write_end)

    def hand_over(self, give: Callable[[tuple[int, int]], bool]) -> bool:
        """Give the child's ends away; ours of them are closed."""
        try:
            return give(self._theirs)
        finally:
            for descriptor in self._theirs:
                os.close(descriptor)

    def order(self, context: ToolContext, *, more: bool) -> bool:
        """Send the child its next call, and whether `more` may follow. False while not all of it fits: `send_on` when
        `when_writable` says so."""
        self.orders += 1
        body = pickle.dumps((self.orders, context, more), protocol=pickle.HIGHEST_PROTOCOL)
        self._unsent += LENGTH.pack(len(body)) + body
        return self.send_on()

    def send_on(self) -> bool:
        """Send what has not been sent yet; whether that is all."""
        try:
            del self._unsent[: self._calls.send(self._unsent)]
        except BlockingIOError:
            return False
        except OSError:  # it has just ended, which its socket and the init process will say
            self._unsent.clear()
        return not self._unsent

    def replies(self) -> list[Reply]:
        """What it has sent. Raises BrokenFrame for anything but replies, EOFError when it has closed its socket."""
        try:
            data = self._calls.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError("the child has closed its socket")
        return self._decoder.feed(data)

    def drain(self) -> bool:
        """Take in what it has printed. False when nothing more can come: all who could write have closed the pipe."""
        try:
            data = os.read(self._output_end, self._pipe_bytes)
        except BlockingIOError:
            return True
        self.output.add(data)
        return bool(data)

    def widen_output(self) -> None:
        """Let what prints a lot wait less often. Again: nothing."""
        if self._pipe_bytes < FLOOD_PIPE_BYTES:
            self._pipe_bytes = FLOOD_PIPE_BYTES
            with contextlib.suppress(OSError):  # this user's pipes take too much memory already
                fcntl.fcntl(self._output_end, fcntl.F_SETPIPE_SZ, FLOOD_PIPE_BYTES)

    def begin_output(self) -> None:
        """What was printed before a call belongs to none, and must not get into it."""
        self.drain()
        self.output = PrintedOutput()

    # -- one wait each: the callback is called once, and only posts

    def when_writable(self, post: Callable[[], None]) -> None:
        """Call once when there is room for more of an order."""
        self._once(self._loop.add_writer, self._loop.remove_writer, self._calls.fileno(), post)

    def when_it_speaks(self, post: Callable[[], None]) -> None:
        """Call once when there is something to read for `replies`."""
        self._once(self._loop.add_reader, self._loop.remove_reader, self._calls.fileno(), post)

    def when_it_prints(self, post: Callable[[], None]) -> None:
        """Call once when there is something to `drain`."""
        self._once(self._loop.add_reader, self._loop.remove_reader, self._output_end, post)

    def let_go(self) -> None:
        """Wait for nothing any more."""
        if self._output_end >= 0:
            self._loop.remove_reader(self._calls.fileno())
            self._loop.remove_writer(self._calls.fileno())
            self._loop.remove_reader(self._output_end)

    def close(self) -> None:
        """Let go of the descriptors. Again: nothing."""
        self.let_go()
        self._calls.close()
        if self._output_end >= 0:
            os.close(self._output_end)
            self._output_end = -1

    @staticmethod
    def _once(
        add: Callable[..., object], remove: Callable[[int], bool], descriptor: int, post: Callable[[], None]
    ) -> None:
        def ready() -> None:
            remove(descriptor)
            post()

        add(descriptor, ready)

"""The runtime's end of one child: its socket, its output, the call it runs. Nothing here ever waits for the child."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from typing import Final

from callboard.actors.processes.frames import BrokenFrame, Order, Reply, ReplyDecoder, encode_order
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Result
from callboard.actors.workers.call import Call
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES

#: One read of a child's socket or pipe; the default capacity of a pipe.
READ_BYTES: Final = 65_536
#: A child that prints more than this in a call is read from a timer from then on, at most 6 MB/s, so that a flood
#: slows down whoever makes it and not the control loop.
FLOOD_BYTES: Final = 1_048_576
FLOOD_PAUSE_SECONDS: Final = 0.01


class Output:
    """What a child has printed during its call: the last of it, since an error stands at the end."""

    __slots__ = ("_kept", "total_bytes")

    def __init__(self) -> None:
        self._kept = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Keep the newest."""
        self.total_bytes += len(data)
        self._kept += data
        if len(self._kept) > 2 * MAX_TOOL_OUTPUT_BYTES:
            del self._kept[:-MAX_TOOL_OUTPUT_BYTES]

    def take(self) -> str:
        """All that is kept, as text, with a word on what is not; begin anew."""
        if not self.total_bytes:
            return ""
        kept = bytes(self._kept[-MAX_TOOL_OUTPUT_BYTES:])
        left_out = self.total_bytes - len(kept)
        self._kept.clear()
        self.total_bytes = 0
        text = kept.decode(errors="replace")
        return f"({left_out:,} bytes before this were left out)\n{text}" if left_out else text


class ChildHandle:
    """One child process, from before its fork until after its end."""

    __slots__ = (
        "_calls",
        "_decoder",
        "_descriptors",
        "_flooding",
        "_loop",
        "_output",
        "_output_end",
        "_shipped",
        "_unsent",
        "broken",
        "call",
        "dying",
        "number",
        "orders",
        "replied",
        "verdict",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        number: int,
        replied: Callable[[ChildHandle, Reply], None],
        broken: Callable[[ChildHandle], None],
    ) -> None:
        self._loop = loop
        self.number = number
        self.replied = replied
        self.broken = broken
        self.call: Call | None = None
        self.verdict: Result | None = None
        """The call's result, while the child is ended before anybody is told of it."""
        self.dying = False
        self.orders = 0
        self._shipped: dict[Tool, int] = {}
        self._decoder = ReplyDecoder()
        self._output = Output()
        self._flooding = False
        self._unsent = bytearray()
        self._calls, theirs = socket.socketpair()
        self._calls.setblocking(False)
        self._output_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._output_end, False)
        self._descriptors = (theirs.detach(), write_end)
        loop.add_reader(self._calls.fileno(), self._readable)
        loop.add_reader(self._output_end, self._printed)

    def hand_over(self, give: Callable[[int, tuple[int, int]], None]) -> None:
        """Give the child's ends away; ours of them are closed."""
        give(self.number, self._descriptors)
        for descriptor in self._descriptors:
            os.close(descriptor)

    def load(self, tools: Iterable[Tool]) -> None:
        """Have it load tools before it is needed: an import of pandas takes longer than most calls."""
        for tool in tools:
            number = self._shipped.setdefault(tool, len(self._shipped))
            self._send(encode_order(Order(0, tool.name, number, tool.packed, "", None)))

    def run(self, call: Call) -> None:
        """Send the child its order. Raises UsageError when the tool cannot be shipped; nothing was sent then."""
        tool = call.tool
        packed = None if tool in self._shipped else tool.packed
        number = self._shipped.setdefault(tool, len(self._shipped))
        self.orders += 1
        order = Order(self.orders, tool.name, number, packed, call.run.arguments, call.context)
        self.call = call
        self._send(encode_order(order))

    @property
    def loaded(self) -> int:
        """Different tools it has been sent."""
        return len(self._shipped)

    def take_output(self) -> str:
        """What it has printed since it was last asked."""
        self._drain()
        return self._output.take()

    def close(self) -> None:
        """Let go of its descriptors."""
        self._loop.remove_reader(self._calls.fileno())
        self._loop.remove_writer(self._calls.fileno())
        self._loop.remove_reader(self._output_end)
        self._calls.close()
        os.close(self._output_end)
        self._output_end = -1

    # -- calls ----------------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        if self._unsent:  # in its turn
            self._unsent += frame
            return
        try:
            sent = self._calls.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:  # it has just ended; the fork server will say how
            return
        if sent < len(frame):
            self._unsent += frame[sent:]
            self._loop.add_writer(self._calls.fileno(), self._writable)

    def _writable(self) -> None:
        try:
            sent = self._calls.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._calls.fileno())

    def _readable(self) -> None:
        try:
            data = self._calls.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            replies = self._decoder.feed(data) if data else None
        except BrokenFrame:
            replies = None
        if replies is None:
            self._loop.remove_reader(self._calls.fileno())
            self.broken(self)
            return
        for reply in replies:
            self.replied(self, reply)

    # -- output ---------------------------------------------------------------------------------------------------

    def _printed(self) -> None:
        self._drain()
        if self._output.total_bytes > FLOOD_BYTES and not self._flooding:
            self._flooding = True
            self._loop.remove_reader(self._output_end)
            self._loop.call_later(FLOOD_PAUSE_SECONDS, self._read_flood)

    def _read_flood(self) -> None:
        if self._output_end == -1:
            return
        self._drain()
        if self._output.total_bytes > FLOOD_BYTES:
            self._loop.call_later(FLOOD_PAUSE_SECONDS, self._read_flood)
        else:
            self._flooding = False
            self._loop.add_reader(self._output_end, self._printed)

    def _drain(self) -> None:
        try:
            data = os.read(self._output_end, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._output_end)  # all who could write have closed it
        elif self.call is not None:  # what comes between calls belongs to none, and must not get into the next
            self._output.add(data)

"""The runtime's end of one child, with the test in the place of the child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

import pytest

from callboard.actors.processes.control import LENGTH
from callboard.actors.processes.frames import Order, decode_order
from callboard.actors.processes.handle import ChildEnds, Output
from callboard.actors.tools.context import ToolContext
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

ORDERS = 2_000


def order(number: int) -> Order:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
    return Order(number, ToolName("add"), '{"a": 1, "b": 2}', ToolContext(tag, "e", 1.5), more=True)


def test_small_orders_to_a_child_that_does_not_read_yet_all_arrive() -> None:
    """The socket is full between two orders, not within one: the next one is not sent at all, and must be kept."""

    async def story() -> int:
        loop = asyncio.get_running_loop()
        ends = ChildEnds(loop, 1)
        theirs: list[int] = []
        assert ends.hand_over(lambda descriptors: theirs.extend(map(os.dup, descriptors)) is None)
        with socket.socket(fileno=theirs[0]) as child, os.fdopen(theirs[1]), contextlib.closing(ends):
            child.setblocking(False)

            def send_on() -> None:
                if not ends.send_on():
                    ends.when_writable(send_on)

            for number in range(ORDERS):
                ends.order(order(number))
            ends.when_writable(send_on)
            arrived, received = 0, bytearray()
            while arrived < ORDERS:
                received += await asyncio.wait_for(loop.sock_recv(child, 65_536), 5)
                while len(received) >= LENGTH.size and len(received) >= (end := LENGTH.size + frame_length(received)):
                    assert decode_order(bytes(received[LENGTH.size : end])).number == arrived
                    arrived += 1
                    del received[:end]
        return arrived

    assert asyncio.run(story()) == ORDERS


def test_of_what_a_child_prints_the_end_is_kept() -> None:
    output = Output()
    output.add(b"x" * (2 * MAX_TOOL_OUTPUT_BYTES))
    output.add(b"the end")
    assert output.text().startswith(f"({MAX_TOOL_OUTPUT_BYTES + 7:,} bytes before this were left out)\nx")
    assert output.text().endswith("the end")


def frame_length(received: bytearray) -> int:
    (length,) = LENGTH.unpack_from(received)
    return int(length)

"""The runtime's end of one child, with the test in the place of the child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys

import pytest

from callboard.actors.processes.frames import LENGTH, decode_order
from callboard.actors.processes.handle import ChildHandle
from callboard.actors.tools.decorator import tool

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

ORDERS = 2_000


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_small_orders_to_a_child_that_does_not_read_yet_all_arrive() -> None:
    """The socket is full between two orders, not within one: the next one is not sent at all, and must be kept."""

    async def story() -> int:
        loop = asyncio.get_running_loop()
        handle = ChildHandle(loop, 1, replied=lambda handle, reply: None, broken=lambda handle: None)
        theirs: list[int] = []
        handle.hand_over(lambda number, descriptors: theirs.extend(map(os.dup, descriptors)))
        with socket.socket(fileno=theirs[0]) as child, os.fdopen(theirs[1]), contextlib.closing(handle):
            child.setblocking(False)
            for _ in range(ORDERS):
                handle.load([add])
            arrived, received = 0, bytearray()
            while arrived < ORDERS:
                received += await asyncio.wait_for(loop.sock_recv(child, 65_536), 5)
                while len(received) >= LENGTH.size and len(received) >= (end := LENGTH.size + frame_length(received)):
                    assert decode_order(bytes(received[LENGTH.size : end])).name == "add"
                    arrived += 1
                    del received[:end]
        return arrived

    assert asyncio.run(story()) == ORDERS


def frame_length(received: bytearray) -> int:
    (length,) = LENGTH.unpack_from(received)
    return int(length)

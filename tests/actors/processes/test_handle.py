"""The runtime's end of one child, with the test in the place of the child: any portions of bytes, and never trust in
what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.processes.child import encode_reply
from callboard.actors.processes.control import LENGTH, REPLY
from callboard.actors.processes.handle import (
    MAX_REPLY_BYTES,
    BrokenFrame,
    ChildEnds,
    PrintedOutput,
    Reply,
    ReplyDecoder,
)
from callboard.actors.tools.context import ToolContext
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES
from callboard.protocol.tools import FailureCode, ToolFailure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

ORDERS = 2_000


TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
CONTEXT = ToolContext(RunTool(TAG, ToolName("add"), '{"a": 1, "b": 2}', 1.5, "e"), "words", Path("/w"))

texts = st.text(st.characters(exclude_categories=["Cs"]))
failures = st.builds(ToolFailure, texts.map(ToolName), st.sampled_from(FailureCode), texts, texts, texts, texts, texts)
replies = st.builds(Reply, st.integers(0, 2**32 - 1), texts | failures, st.booleans())


@given(st.lists(replies), st.lists(st.integers(0, 60)))
def test_replies_survive_any_fragmentation(sent: list[Reply], cuts: list[int]) -> None:
    stream = b"".join(encode_reply(*reply) for reply in sent)
    decoder, received, position = ReplyDecoder(), [], 0
    for size in [*cuts, len(stream)]:
        received += decoder.feed(stream[position : position + size])
        position += size
    assert received == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_replies_or_a_broken_frame(data: bytes) -> None:
    try:
        found = ReplyDecoder().feed(data)
    except BrokenFrame:
        return
    assert all(isinstance(reply, Reply) for reply in found)


BAD_FAILURES = {
    "no JSON": b"{",
    "no object": b"[1]",
    "no code": b'{"tool": "t", "message": "m"}',
    "an unknown code": b'{"tool": "t", "code": "x", "message": "m"}',
    "an unknown field": b'{"tool": "t", "code": "crashed", "message": "m", "x": 1}',
}


@pytest.mark.parametrize("what", BAD_FAILURES)
def test_a_failure_that_is_none_is_a_broken_frame(what: str) -> None:
    body = REPLY.pack(1, True, False) + BAD_FAILURES[what]
    with pytest.raises(BrokenFrame):
        ReplyDecoder().feed(LENGTH.pack(len(body)) + body)


def test_a_result_that_is_no_text_is_a_broken_frame() -> None:
    body = REPLY.pack(1, False, False) + b"\xff"
    with pytest.raises(BrokenFrame):
        ReplyDecoder().feed(LENGTH.pack(len(body)) + body)


@pytest.mark.parametrize("length", [0, REPLY.size - 1, MAX_REPLY_BYTES + 1, 2**32 - 1])
def test_an_impossible_length_is_refused_before_anything_is_buffered(length: int) -> None:
    with pytest.raises(BrokenFrame):
        ReplyDecoder().feed(LENGTH.pack(length))


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

            for _ in range(ORDERS):
                ends.order(CONTEXT, more=True)
            ends.when_writable(send_on)
            arrived, received = 0, bytearray()
            while arrived < ORDERS:
                received += await asyncio.wait_for(loop.sock_recv(child, 65_536), 5)
                while len(received) >= LENGTH.size and len(received) >= (end := LENGTH.size + frame_length(received)):
                    arrived += 1
                    assert pickle.loads(bytes(received[LENGTH.size : end])) == (arrived, CONTEXT, True)
                    del received[:end]
        return arrived

    assert asyncio.run(story()) == ORDERS


def test_of_what_a_child_prints_the_end_is_kept() -> None:
    output = PrintedOutput()
    output.add(b"x" * (2 * MAX_TOOL_OUTPUT_BYTES))
    output.add(b"the end")
    assert output.text().startswith(f"({MAX_TOOL_OUTPUT_BYTES + 7:,} bytes before this were left out)\nx")
    assert output.text().endswith("the end")


def frame_length(received: bytearray) -> int:
    (length,) = LENGTH.unpack_from(received)
    return int(length)

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

from callboard.actors.processes.child import PROGRESS_BURST, ProgressSender, encode_reply
from callboard.actors.processes.control import LENGTH, REPLY, Says
from callboard.actors.processes.handle import (
    MAX_REPLY_BYTES,
    BrokenFrame,
    ChildEnds,
    PrintedOutput,
    Reply,
    ReplyDecoder,
)
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.progress import CallProgress
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import MAX_TOOL_OUTPUT_BYTES, MAX_WAIT_SECONDS
from callboard.protocol.tools import Deferred, FailureCode, ToolFailure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

ORDERS = 2_000


TAG = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
CONTEXT = ToolContext(RunTool(TAG, ToolName("add"), '{"a": 1, "b": 2}', 1.5, "e"), "words", Path("/w"))

texts = st.text(st.characters(exclude_categories=["Cs"]))
failures = st.builds(ToolFailure, texts.map(ToolName), st.sampled_from(FailureCode), texts, texts, texts, texts, texts)
deferrals = st.builds(Deferred, st.floats(0, MAX_WAIT_SECONDS, exclude_min=True), texts)
replies = st.builds(Reply, st.integers(0, 2**32 - 1), texts | failures | deferrals, st.booleans())


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


@pytest.mark.parametrize(
    ("says", "text"),
    [
        (Says.DEFERRED, b'{"timeout_seconds": 0}'),
        (Says.DEFERRED, b'{"timeout_seconds": 1e300}'),
        (Says.DEFERRED, b'{"timeout_seconds": 1, "note": 5}'),
        (Says.DEFERRED, b"[]"),
        (Says.PROGRESS, b'{"message": "m", "fraction": 2}'),
        (Says.PROGRESS, b'{"message": 1, "fraction": null}'),
        (Says.PROGRESS, b'{"fraction": 0.5}'),
        (4, b"{}"),
    ],
)
def test_a_deferral_and_progress_of_a_child_are_not_trusted(says: int, text: bytes) -> None:
    body = REPLY.pack(1, says, False) + text
    with pytest.raises(BrokenFrame):
        ReplyDecoder().feed(LENGTH.pack(len(body)) + body)


@given(st.lists(texts, min_size=1, max_size=3 * PROGRESS_BURST))
def test_what_a_tool_says_of_its_progress_comes_in_order_and_the_last_always(messages: list[str]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = ProgressSender(theirs, 7)
        for message in messages:
            sender.send(CallProgress(message, 0.5))
        theirs.sendall(sender.close())
        sender.send(CallProgress("after the end", None))
        theirs.shutdown(socket.SHUT_WR)
        data = b"".join(iter(lambda: ours.recv(65_536), b""))
    said = [reply.result.message for reply in ReplyDecoder().feed(data) if isinstance(reply.result, CallProgress)]
    assert said[-1] == messages[-1]
    assert said[:-1] == messages[: len(said) - 1]


def test_progress_never_waits_for_a_runtime_that_does_not_read() -> None:
    """Frames that do not fit are not sent, and a half one is finished before the result."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_608)
        sender = ProgressSender(theirs, 7)
        for number in range(PROGRESS_BURST):
            sender.send(CallProgress(f"{number} " + "x" * 1_000, 0.5))
        rest = sender.close() + encode_reply(7, "done", False)
        ours.setblocking(False)
        data = ours.recv(1_000_000)
        results = [reply.result for reply in ReplyDecoder().feed(data + rest)]
    said = [result.message for result in results if isinstance(result, CallProgress)]
    assert len(said) < PROGRESS_BURST
    assert said[-1].startswith(f"{PROGRESS_BURST - 1} ")
    assert results[-1] == "done"


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

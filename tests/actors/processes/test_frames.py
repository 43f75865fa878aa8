"""Frames between the runtime and its children: any portions of bytes, and never trust in what comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.processes.control import LENGTH, Kind, Message, hear, pair, receive, send
from callboard.actors.processes.frames import (
    MAX_REPLY_BYTES,
    REPLY,
    BrokenFrame,
    Order,
    Reply,
    ReplyDecoder,
    decode_order,
    encode_order,
    encode_reply,
)
from callboard.actors.tools.context import ToolContext
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure

texts = st.text(st.characters(exclude_categories=["Cs"]))
failures = st.builds(ToolFailure, texts.map(ToolName), st.sampled_from(FailureCode), texts, texts, texts, texts, texts)
replies = st.builds(Reply, st.integers(0, 2**32 - 1), texts | failures, st.booleans())


@given(st.lists(replies), st.lists(st.integers(0, 60)))
def test_replies_survive_any_fragmentation(sent: list[Reply], cuts: list[int]) -> None:
    stream = b"".join(map(encode_reply, sent))
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


@given(st.integers(1, 2**31), texts, texts, st.booleans())
def test_orders_arrive(number: int, name: str, arguments: str, more: bool) -> None:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
    context = ToolContext(tag, "e", 1.5, "words", Path("/w"))
    order = Order(number, ToolName(name), arguments, context, more)
    frame = encode_order(order)
    assert LENGTH.unpack_from(frame) == (len(frame) - LENGTH.size,)
    assert decode_order(frame[LENGTH.size :]) == order


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.text(max_size=50))
def test_messages_of_the_fork_servers_arrive(kind: Kind, number: int, value: int, text: str) -> None:
    message = Message(kind, number, value, text.encode(errors="replace").decode())
    one, other = pair()
    with one, other:
        send(one, message)
        assert hear(other) == message
        send(one, message, (0, 1))
        received = receive(other)
        assert received is not None
        assert received[0] == message
        for descriptor in received[1]:
            os.close(descriptor)
        assert len(received[1]) == 2
        one.close()
        assert hear(other) is None
        assert receive(other) is None


def test_no_two_kinds_of_message_have_one_number() -> None:
    assert [member.name for member in Kind] == list(Kind.__members__)

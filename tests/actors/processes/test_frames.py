"""Frames between the runtime and its children: any portions of bytes, and never trust in what comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.processes.frames import (
    LENGTH,
    MAX_REPLY_BYTES,
    REPLY,
    Ask,
    BrokenFrame,
    Order,
    Reply,
    ReplyDecoder,
    Told,
    decode_order,
    encode_order,
    encode_reply,
)
from callboard.actors.tools.context import ToolContext
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure

#: The names of what goes between the runtime and the fork server, aliases too.
FORK_SERVER_MESSAGES = (*Ask.__members__.items(), *Told.__members__.items())

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


@given(st.integers(1, 2**31), texts, st.none() | st.binary(), texts)
def test_orders_arrive(number: int, name: str, packed: bytes | None, arguments: str) -> None:
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
    context = ToolContext(tag, "e", 1.5, "words", Path("/w"))
    order = Order(number, ToolName(name), 0, packed, arguments, context)
    frame = encode_order(order)
    assert LENGTH.unpack_from(frame) == (len(frame) - LENGTH.size,)
    assert decode_order(frame[LENGTH.size :]) == order


@pytest.mark.parametrize(("name", "member"), FORK_SERVER_MESSAGES)
def test_no_two_messages_of_the_fork_server_have_one_number(name: str, member: Ask | Told) -> None:
    assert member.name == name

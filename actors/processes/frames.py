"""What goes between the runtime and its children. No I/O.

Calls go to a child as pickles, since they carry functions and the child trusts us. Nothing that comes back is ever
unpickled: a reply is a number, a kind and JSON text, whatever the tool did to its process.
"""

from __future__ import annotations

import pickle
import struct
from typing import Final, NamedTuple

import orjson

from callboard.actors.processes.control import LENGTH
from callboard.actors.tools.context import ToolContext
from callboard.actors.tools.invoke import Result
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.tools import FailureCode, ToolFailure

#: Call number, is it a failure, must the child be replaced.
REPLY: Final = struct.Struct("!I??")
#: A reply cannot be longer: the result's limit and room for a failure's texts.
MAX_REPLY_BYTES: Final = MAX_RESULT_BYTES + 65_536


class Order(NamedTuple):
    """One call, as a child gets it."""

    number: int
    name: ToolName
    arguments: str
    context: ToolContext
    more: bool
    """Whether further orders follow; else the child ends after its reply."""


class Reply(NamedTuple):
    """What a child says of one call."""

    number: int
    result: Result
    spent: bool
    """The child must be ended before the result is told: processes or threads are left, memory ran out."""


class BrokenFrame(Exception):
    """What came from a child is no reply: its tool wrote to our socket."""


def encode_order(order: Order) -> bytes:
    """One frame."""
    body = pickle.dumps(order, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def decode_order(body: bytes) -> Order:
    """The frame's body, without its length."""
    order: Order = pickle.loads(body)
    return order


def encode_reply(reply: Reply) -> bytes:
    """One frame."""
    result = reply.result
    failed = isinstance(result, ToolFailure)
    body = result.encode() if isinstance(result, str) else orjson.dumps(result)
    return LENGTH.pack(REPLY.size + len(body)) + REPLY.pack(reply.number, failed, reply.spent) + body


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
        number, failed, spent = REPLY.unpack_from(body)
        text = body[REPLY.size :]
        if not failed:
            return Reply(number, text.decode(), spent)
        fields = orjson.loads(text)
        tool, code = ToolName(fields.pop("tool")), FailureCode(fields.pop("code"))
        return Reply(number, ToolFailure(tool, code, **fields), spent)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BrokenFrame(f"a frame that is no reply: {error}") from error

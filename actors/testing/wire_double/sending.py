"""How an answer is put on its connection, piece by piece, and how the connection ends."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiohttp import web

from callboard.actors.testing.wire_double.answers import SILENT_ENDS, End, WireAnswer
from callboard.actors.testing.wire_double.pacing import Pacer
from callboard.actors.testing.wire_double.traffic import Exchange

#: Of one answer that the client reads at once, before the others have their turn: two milliseconds of small ones.
#: Counted, not timed: uvloop's clock stands still while a coroutine goes on.
TURN_PIECES: Final = 256
#: SO_LINGER: on, with no time: closing the socket sends RST.
_LINGER_NONE: Final = struct.pack("ii", 1, 0)


async def send(request: web.BaseRequest, answer: WireAnswer, exchange: Exchange, pacer: Pacer) -> web.StreamResponse:
    """Send the answer, and set `exchange.ended_at` when its last byte is written.

    Where the client leaves before, the server cancels this, or ConnectionResetError is raised.
    """
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    if answer.end not in SILENT_ENDS:
        response.enable_chunked_encoding()
        await response.prepare(request)
        if answer.pause:
            await pacer.write(_transport(request), answer.pieces, answer.pause)
        else:
            await _write(response, answer.pieces)
    await _END[answer.end](request, response, exchange)
    return response


async def _write(response: web.StreamResponse, pieces: Iterable[bytes]) -> None:
    """As fast as the client reads. An endless answer to one that reads at once would never let the other clients in."""
    for number, piece in enumerate(pieces, 1):
        await response.write(piece)
        if number % TURN_PIECES == 0:
            await asyncio.sleep(0)


def _ended(exchange: Exchange) -> None:
    exchange.ended_at = time.monotonic()


async def _end_well(request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange) -> None:
    _ended(exchange)
    await response.write_eof()


async def _hang_up(request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange) -> None:
    await _end_well(request, response, exchange)
    _transport(request).close()


async def _wait_for_client_to_leave(request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange) -> None:
    # The server cancels a handler whose client has disconnected.
    await asyncio.get_running_loop().create_future()


async def _cut(request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange) -> None:
    _ended(exchange)
    _transport(request).abort()


async def _reset(request: web.BaseRequest, response: web.StreamResponse, exchange: Exchange) -> None:
    connection: socket.socket = _transport(request).get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
    await _cut(request, response, exchange)


def _transport(request: web.BaseRequest) -> asyncio.Transport:
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client has disconnected")
    return transport


_END: Final[Mapping[End, Callable[[web.BaseRequest, web.StreamResponse, Exchange], Awaitable[None]]]] = {
    End.WELL: _end_well,
    End.HANGUP: _hang_up,
    End.STALL: _wait_for_client_to_leave,
    End.DEAF: _wait_for_client_to_leave,
    End.CUT: _cut,
    End.CLOSE: _cut,
    End.RESET: _reset,
}

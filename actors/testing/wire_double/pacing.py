"""Answers with a pause between their pieces, all fed by one timer a pause.

A task and a timer for each answer cost four times the CPU, which a benchmark with a thousand streams would measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

#: A client that reads slower than this much behind gets nothing until it has caught up.
_MAX_BEHIND_BYTES: Final = 1 << 20


class _Paced(Struct, eq=False):
    """One answer: what is next, and what comes after it."""

    transport: asyncio.Transport
    upcoming: bytes | None
    pieces: Iterator[bytes]
    done: asyncio.Future[None]

    def step(self) -> bool:
        """Write one piece as an HTTP chunk; False when the answer is over."""
        if self.done.done():  # its handler was cancelled: the client has disconnected
            return False
        if self.transport.is_closing():
            self.done.set_exception(ConnectionResetError("the client has disconnected"))
            return False
        if self.transport.get_write_buffer_size() > _MAX_BEHIND_BYTES:
            return True
        piece, self.upcoming = self.upcoming, next(self.pieces, None)
        if piece:
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if self.upcoming is None:
            self.done.set_result(None)
            return False
        return True


class Pacer:
    """Writes the pieces of paced answers to their transports."""

    def __init__(self) -> None:
        self._paced: dict[float, list[_Paced]] = {}

    async def write(self, transport: asyncio.Transport, pieces: Iterable[bytes], pause: float) -> None:
        """Write a piece every `pause` seconds, the first within that time. ConnectionResetError: the client left."""
        loop = asyncio.get_running_loop()
        iterator = iter(pieces)
        paced = _Paced(transport, next(iterator, None), iterator, loop.create_future())
        if pause not in self._paced:
            self._paced[pause] = []
            loop.call_later(pause, self._tick, loop, pause)
        self._paced[pause].append(paced)
        await paced.done

    def _tick(self, loop: asyncio.AbstractEventLoop, pause: float) -> None:
        going_on = [paced for paced in self._paced.pop(pause) if paced.step()]
        if going_on:
            self._paced[pause] = going_on
            loop.call_later(pause, self._tick, loop, pause)

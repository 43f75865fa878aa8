"""From one loop to another: items in order, one wake-up for as many as come before it is served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class LoopQueue(Generic[Item]):
    """Any thread sends, `receive` runs on the loop. A wake-up costs a write to a self-pipe, so it is shared."""

    __slots__ = ("_items", "_loop", "_receive", "batches", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Callable[[Item], None]) -> None:
        self._loop = loop
        self._receive = receive
        self._items: deque[Item] = deque()
        self.woken = False
        """The loop has been asked to come and has not come yet."""
        self.batches = 0
        """How often it has come."""

    def send(self, item: Item) -> None:
        """Hand it over. What a closed loop is sent is never received."""
        self._items.append(item)
        if not self.woken:
            self.woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._serve)

    def take_back(self) -> list[Item]:
        """What has not been received. The loop may be receiving meanwhile: each item goes to one of the two."""
        items = []
        with contextlib.suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items

    def _serve(self) -> None:
        # Before the first look: who sends after it will wake us again.
        self.woken = False
        self.batches += 1
        with contextlib.suppress(IndexError):
            while True:
                self._receive(self._items.popleft())

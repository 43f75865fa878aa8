"""The three tools that every runtime gets. They write down when they begin, have their effect, and end.

This module imports nothing of callboard: the processes in which tools run import it, and start the faster.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct


def write_down(log: Path, what: str, number: int = 0, detail: str = "") -> None:
    """Add an observation to the log, in one write: threads and processes may do so side by side."""
    line = orjson.dumps({"at": time.monotonic(), "what": what, "number": number, "detail": detail})
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line + b"\n")
    finally:
        os.close(descriptor)


class Tools(Struct, frozen=True):
    """The functions; an adapter makes tools of its framework of them."""

    look: Callable[[int, str, float], Awaitable[str]]
    again: Callable[[int, str, float], str]
    write: Callable[[int, str, float], str]

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """The functions by the names that a model calls them."""
        return {"look": self.look, "again": self.again, "write": self.write}


def tools_for(log: Path, hang_seconds: float, hard_exit: bool) -> Tools:
    """The tools, which write to `log`. With `hard_exit` the plain ones end their process when they are to exit."""

    async def look(call: int, does: str, seconds: float) -> str:
        """Look at something.

        Args:
            call: The number of the call.
            does: What becomes of it.
            seconds: How long it takes.
        """
        with _noted(log, call, does, seconds):
            if does == "blocks":
                time.sleep(hang_seconds)  # noqa: ASYNC251 - the fault that is played
            else:
                await asyncio.sleep(hang_seconds if does == "hangs" else seconds)
            return _end(log, call, does, hard_exit=False)

    def again(call: int, does: str, seconds: float) -> str:
        """Look at something again.

        Args:
            call: The number of the call.
            does: What becomes of it.
            seconds: How long it takes.
        """
        with _noted(log, call, does, seconds):
            time.sleep(hang_seconds if does == "hangs" else seconds)
            return _end(log, call, does, hard_exit)

    def write(call: int, does: str, seconds: float) -> str:
        """Change something; a person must allow it.

        Args:
            call: The number of the call.
            does: What becomes of it.
            seconds: How long it takes.
        """
        with _noted(log, call, does, seconds):
            time.sleep(seconds)
            return _end(log, call, does, hard_exit)

    return Tools(look, again, write)


@contextmanager
def _noted(log: Path, call: int, does: str, seconds: float) -> Iterator[None]:
    arguments = orjson.dumps({"call": call, "does": does, "seconds": seconds}).decode()
    write_down(log, "started", call, arguments)
    ended = "cancelled or exited"
    try:
        yield
        ended = "returned"
    except Exception as error:
        ended = f"raised {type(error).__name__}"
        raise
    finally:
        write_down(log, "stopped", call, ended)


def _end(log: Path, call: int, does: str, hard_exit: bool) -> str:
    if does == "raises":
        raise RuntimeError(f"planned for call {call}")
    if does == "exits" and hard_exit:
        write_down(log, "stopped", call, "exited")
        os._exit(3)
    if does == "exits":
        sys.exit(3)
    write_down(log, "effect", call)
    return f"did {call}"

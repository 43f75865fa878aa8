"""The misbehaving tools of compared.py, and the well-behaved one beside them.

It runs in the environments of other frameworks and in worker processes, so it imports next to nothing.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callboard.actors.testing.runtimes.tools import Tools, write_down

#: In the command line of what a tool leaves behind, before the folder of its case.
MARKER = "compared-left-behind"
#: What is left behind ends by itself.
LEFT_SECONDS = 60
PIECE_BYTES = 16 * 1024**2
#: The tool that eats ends by itself where nothing stops it.
MAX_PIECES = 128
FLOOD_BYTES = 8 * 1024**2


class Row:
    """A value of a class of one's own, as from a database: no JSON."""


# -- async ones


async def blocks(_: Path, seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - the fault that is played
    return "done"


async def ignores_cancellation(_: Path, seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue
    return "done"


async def raises_base_exception(_: Path, seconds: float) -> str:
    sys.exit(3)


# -- plain ones


def sleeps_in_c(_: Path, seconds: float) -> str:
    # PyDLL does not let go of the GIL: as an extension that computes, or a regular expression that never ends.
    ctypes.PyDLL(None).sleep(int(seconds))
    return "done"


def exits(_: Path, seconds: float) -> str:
    os._exit(3)


def segfaults(_: Path, seconds: float) -> str:
    ctypes.string_at(0)
    return "done"


def forks_and_leaves(folder: Path, seconds: float) -> str:
    waits = f"import time; time.sleep({LEFT_SECONDS})"
    command = [sys.executable, "-S", "-c", waits, MARKER, str(folder)]
    subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return "done"


def eats_memory(_: Path, seconds: float) -> str:
    eaten = [b"x" * PIECE_BYTES for _ in range(MAX_PIECES)]
    return f"ate {len(eaten)}"


def returns_no_json(_: Path, seconds: float) -> Any:
    return Row()


def floods_output(_: Path, seconds: float) -> str:
    for _line in range(FLOOD_BYTES // 64):
        sys.stdout.write("x" * 63 + "\n")
    sys.stdout.flush()
    return "x" * FLOOD_BYTES


def returns(_: Path, seconds: float) -> str:
    return "done"


ASYNC: dict[str, Callable[[Path, float], Awaitable[Any]]] = {
    each.__name__: each for each in (blocks, ignores_cancellation, raises_base_exception)
}
PLAIN: dict[str, Callable[[Path, float], Any]] = {
    each.__name__: each
    for each in (
        sleeps_in_c,
        exits,
        segfaults,
        forks_and_leaves,
        eats_memory,
        returns_no_json,
        floods_output,
        returns,
    )
}


def tool_of(does: str) -> str:
    """The name of the tool that does this."""
    return "look" if does in ASYNC else "again"


def misbehaving(folder: Path) -> Tools:
    """The tools, which write down in `folder` when they begin and end, and hold a lock there while they run."""

    async def look(call: int, does: str, seconds: float) -> Any:
        """Look at something.

        Args:
            call: The number of the call.
            does: What becomes of it.
            seconds: How long it takes.
        """
        with _noted(folder, call):
            return await ASYNC[does](folder, seconds) if does in ASYNC else PLAIN[does](folder, seconds)

    def again(call: int, does: str, seconds: float) -> Any:
        """Look at something again.

        Args:
            call: The number of the call.
            does: What becomes of it.
            seconds: How long it takes.
        """
        with _noted(folder, call):
            return PLAIN[does](folder, seconds)

    def write(call: int, does: str, seconds: float) -> str:
        """Change something."""
        return "done"

    return Tools(look, again, write)


@contextmanager
def _noted(folder: Path, call: int) -> Iterator[None]:
    """Call 0 is the well-behaved one; of it nothing is noted. A lock is let go of when its process dies, too."""
    if call == 0:
        yield
        return
    with (folder / "running").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        write_down(folder / "log", "started", call)
        yield


def still_runs(folder: Path) -> bool:
    """Does a call of a misbehaving tool run in any process now?"""
    with (folder / "running").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False

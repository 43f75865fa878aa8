"""The tools of the requests that stir: each reaches messages that no healthy call does.

A module of their own, since each of those in processes has a template that loads it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from typing import Final

from callboard.actors.tools import tool

#: The tools of the requests that stir end by this; those in processes are loaded first, beside all others.
STIR_SECONDS: Final = 0.3
STIR_PROCESS_SECONDS: Final = 1.5


@tool(name="stir_process", timeout=STIR_PROCESS_SECONDS)
def stir_process() -> None:
    """Hangs."""
    time.sleep(5)


@tool(name="stir_task", timeout=STIR_SECONDS)
async def stir_task() -> None:
    """Hangs, and can be cancelled."""
    await asyncio.sleep(5)


@tool(name="stir_caller", isolation="caller", timeout=STIR_SECONDS)
async def stir_caller() -> None:
    """Hangs on the loop of the one who asks, and can be cancelled."""
    await asyncio.sleep(5)


@tool(name="stir_thread", isolation="thread", timeout=STIR_SECONDS)
def stir_thread() -> None:
    """Holds its thread for a while."""
    time.sleep(2 * STIR_SECONDS)


@tool(name="stir_blocking", timeout=STIR_SECONDS)
async def stir_blocking() -> None:
    """Blocks the loop of the tasks for a while."""
    time.sleep(2 * STIR_SECONDS)  # noqa: ASYNC251 - that is what it is for


@tool(name="stir_approval", needs_approval=True)
def stir_approval() -> int:
    """A person is asked."""
    return 1


@tool(name="stir_denial", needs_approval=True)
def stir_denial() -> int:
    """A person is asked, and says no."""
    return 1


@tool(name="stir_deaf", timeout=STIR_PROCESS_SECONDS)
def stir_deaf() -> None:
    """Hangs, and ignores that it is asked to end."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(5)


@tool(name="stir_failure")
def stir_failure() -> None:
    """Prints something, and fails."""
    sys.stdout.write("about to fail\n")
    raise ValueError("stirred")


STIRRING: Final = (
    stir_process,
    stir_task,
    stir_caller,
    stir_thread,
    stir_blocking,
    stir_approval,
    stir_denial,
    stir_deaf,
    stir_failure,
)

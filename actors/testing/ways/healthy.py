"""The tools of healthy requests, one for each isolation."""

from __future__ import annotations

import asyncio
from typing import Final

from callboard.actors.tools import Tool, tool


@tool(name="healthy_process", concurrency=64)
def in_process(x: int) -> int:
    """Twice x."""
    return x * 2


@tool(name="healthy_task", concurrency=256)
async def in_task(x: int) -> int:
    """Three times x, a moment later."""
    await asyncio.sleep(0.01)
    return x * 3


@tool(name="healthy_thread", isolation="thread", concurrency=64)
def in_thread(x: int) -> int:
    """Five times x."""
    return x * 5


HEALTHY: Final[tuple[Tool, ...]] = (in_process, in_task, in_thread)

"""Tools that `callboard mcp` serves in these tests."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

from callboard import ToolContext, ToolError, tool
from callboard.actors.mcp.callers import caller

print("printed while the file is loaded")  # noqa: T201 - what must not reach a client


@dataclass
class Sum:
    total: int


@tool(risk="read", effect="repeat")
def add(a: int, b: int = 2) -> Sum:
    """Add two numbers."""
    return Sum(a + b)


@tool(risk="read")
def words(count: int) -> list[str]:
    """Some words."""
    return ["word"] * count


@tool(risk="write")
def write(path: str) -> str:
    """Write a file."""
    Path(path).write_text("written")
    return "written"


@tool(risk="read")
async def noisy() -> str:
    """Print where only messages may go."""
    print("printed by a task")  # noqa: T201 - likewise
    os.write(1, b"written to the descriptor\n")
    return "quiet"


@tool(risk="read")
async def steps(context: ToolContext, fractions: list[float | None]) -> str:
    """Say how far it is."""
    for number, fraction in enumerate(fractions):
        context.progress(f"step {number}", fraction)
        await asyncio.sleep(0.12)
    return "done"


@tool  # without a risk it is not confined, and may write outside of the workspace
def hold(marker: str) -> str:
    """Hold a lock on the file until it is ended."""
    with open(marker, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("held")
        held.flush()
        time.sleep(60)
    return "never"


@tool(risk="read")
def crash() -> str:
    """Take the process down."""
    os._exit(3)


@tool(risk="read")
async def greet() -> str:
    """Ask who is there."""
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = await caller().elicit("Who is there?", schema, "who")
    if answer.action != "accept" or answer.content is None:
        raise ToolError("no name was given")
    return f"Hello {answer.content['name']}"

"""One of several processes that share a journal: run by itself, this file is the process.

It asks its own requests, goes on with those of processes that have ended, and says on its standard output what came of
its own. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from callboard import Runtime, Settings, ToolContext, tool
from callboard.actors.journal import postgres_journal
from callboard.protocol.content import AssistantMessage, UserMessage
from callboard.protocol.errors import CallboardError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

STEPS = 3
KINDS = ("repeat", "once", "transaction")
EFFECTS_FILE = "effects.log"
#: Long enough that a process can be killed or stopped in the middle of it.
MODEL_SECONDS = 0.02
TOOL_SECONDS = 0.02


def request_ids(daemon: str, count: int) -> list[str]:
    return [f"{daemon}-{number:03}" for number in range(count)]


def key(request_id: str, step: int, kind: str) -> str:
    return f"{request_id} {step} {kind}"


def _leave_effect(folder: str, call_key: str) -> None:
    file = os.open(Path(folder) / EFFECTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{call_key} {os.getpid()}\n".encode())
    finally:
        os.close(file)


async def _act(folder: str, call_key: str) -> str:
    await asyncio.sleep(TOOL_SECONDS)
    _leave_effect(folder, call_key)
    await asyncio.sleep(TOOL_SECONDS)
    return "done"


@tool(effect="repeat", concurrency=200)
async def repeat(folder: str, call_key: str) -> str:
    """Harmless to run again."""
    return await _act(folder, call_key)


@tool(effect="once", concurrency=200)
async def once(folder: str, call_key: str) -> str:
    """At most once."""
    return await _act(folder, call_key)


@tool(effect="transaction", concurrency=200)
async def transaction(folder: str, call_key: str, context: ToolContext) -> str:
    """Exactly once: a row that is committed with the outcome of the call."""
    await asyncio.sleep(TOOL_SECONDS)
    await context.transaction.execute("INSERT INTO public.booked VALUES (%s)", (call_key,))
    await asyncio.sleep(TOOL_SECONDS)
    return "done"


def model(folder: str) -> Callable[[ModelRequest], ScriptedTurn]:
    def turn(request: ModelRequest) -> ScriptedTurn:
        step = sum(isinstance(each, AssistantMessage) for each in request.messages) + 1
        if step > STEPS:
            return ScriptedTurn("All is done.", first_delay_seconds=MODEL_SECONDS)
        request_id = next(each.text for each in request.messages if isinstance(each, UserMessage))
        calls = tuple(
            ScriptedCall(kind, {"folder": folder, "call_key": key(request_id, step, kind)}, f"{step}-{kind}")
            for kind in KINDS
        )
        return ScriptedTurn("", calls, first_delay_seconds=MODEL_SECONDS)

    return turn


def _say(**told: object) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


async def _own(runtime: Runtime, request_id: str) -> None:
    _say(asked=request_id)
    try:
        reply = await runtime.ask(request_id, request_id=request_id)
        _say(over=request_id, text=reply.text)
    except CallboardError as error:
        _say(over=request_id, error=str(error))


async def _main(url: str, folder: str, lease_seconds: float, own: list[str]) -> None:
    postgres_journal.PostgresJournal = partial(  # type: ignore[misc,assignment]  # a lease that a test can wait for
        postgres_journal.PostgresJournal, lease_seconds=lease_seconds
    )
    settings = Settings(
        model="scripted/model",
        script=model(folder),
        journal=url,
        max_attempts=20,
        request_timeout_seconds=120.0,
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def read() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=read, daemon=True).start()
    async with Runtime(settings, [repeat, once, transaction]) as runtime:
        _say(ready=os.getpid())
        asking = [asyncio.create_task(_own(runtime, each)) for each in own]
        await stopped.wait()
        await asyncio.gather(*asking)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:]))

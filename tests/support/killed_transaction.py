"""A process with a journal that kills itself at a point of one call; run again, it goes on with what it left open.

Run by itself, this file is the process: its journal, the kind of its tool, and the point ("" for none).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from callboard import Runtime, Settings, ToolContext, tool
from callboard.actors.journal.journal_records import Change, EffectWrite, Write
from callboard.actors.journal.sql_writer import SqlWriter
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import ToolCallCompleted, ToolCallStarted
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

REQUEST = "rent"


def _write(context: ToolContext, runs: str) -> str:
    with Path(runs).open("a") as file:
        file.write(f"{context.effect_id}\n")
    context.transaction.execute("CREATE TABLE IF NOT EXISTS payments (effect_id TEXT)")
    context.transaction.execute("INSERT INTO payments VALUES (?)", (context.effect_id,))
    return "paid"


@tool(effect="transaction")
def process(runs: str, context: ToolContext) -> str:
    return _write(context, runs)


@tool(effect="transaction", isolation="thread")
def thread(runs: str, context: ToolContext) -> str:
    return _write(context, runs)


@tool(effect="transaction")
async def task(runs: str, context: ToolContext) -> str:
    return _write(context, runs)


TOOLS = {each.name: each for each in (process, thread, task)}


def _has(kind: type) -> Callable[[Change], bool]:
    return lambda change: isinstance(change, Write) and any(isinstance(event, kind) for event in change.events)


#: At each, a batch with such a change is about to be written.
POINTS: dict[str, Callable[[Change], bool]] = {
    "before its begin is written": _has(ToolCallStarted),
    "before its effect is committed": lambda change: isinstance(change, EffectWrite),
    "before its outcome is written": _has(ToolCallCompleted),
    "": lambda _: False,
}


def _kill_at(point: str) -> None:
    commit, is_it = SqlWriter.commit, POINTS[point]

    def commits(self: SqlWriter, batch: Sequence[Change]) -> Sequence[object]:
        if any(map(is_it, batch)):
            os.kill(os.getpid(), signal.SIGKILL)
        return commit(self, batch)

    SqlWriter.commit = commits  # type: ignore[method-assign,assignment]


async def _main(journal: str, kind: str, point: str) -> None:
    _kill_at(point)
    runs = f"{journal}.runs"

    def model(request: ModelRequest) -> ScriptedTurn:
        results = [each.content for each in request.messages if isinstance(each, ToolMessage)]
        return ScriptedTurn(" ".join(results)) if results else ScriptedTurn("", (ScriptedCall(kind, {"runs": runs}),))

    settings = Settings(model="scripted/model", script=model, journal=journal)
    async with Runtime(settings, [TOOLS[kind]]) as runtime:
        if point:
            await runtime.ask("Pay the rent.", request_id=REQUEST)
        reply = await runtime.result(REQUEST)
        os.write(1, json.dumps({"text": reply.text}).encode())


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))

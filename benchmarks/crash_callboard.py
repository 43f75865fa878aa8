"""callboard under the load of crashes.py: what runs in the process that is killed.

It takes up what an earlier process left open, asks what was never asked, and reports what it is shown, until all has
ended. The tools have the three effects; `blocking` has the effect `once` too, in a thread or in a child process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from crash_load import (
    ANSWER,
    BOOK,
    KINDS,
    MODEL_SECONDS,
    STEPS,
    TABLE,
    TOOL_SECONDS,
    act,
    act_in_a_thread,
    key,
    report,
    request_ids,
)

from callboard import Reply, Runtime, Settings, ToolContext, UsageError, tool
from callboard.actors.journal import journal_store, sqlite_database
from callboard.actors.requests import write_ahead
from callboard.protocol.content import AssistantMessage, UserMessage
from callboard.protocol.errors import CallboardError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: What a kill at a point of the journal is aimed at: each line of these files.
JOURNAL_FOLDER = str(Path(journal_store.__file__).parent) + os.sep
TRACED = {write_ahead.__file__}
#: A request is lost with each kill and asked again; by default that ends it after three.
MAX_ATTEMPTS = 50
DEADLINE_SECONDS = 300.0
#: Whether a request that a killed process had was taken over.
LOOK_AGAIN_SECONDS = 0.5


@tool(effect="repeat", concurrency=400)
async def repeat(folder: str, call_key: str) -> str:
    """Harmless to run again."""
    return await act(folder, call_key)


@tool(effect="once", concurrency=400)
async def once(folder: str, call_key: str) -> str:
    """At most once."""
    return await act(folder, call_key)


def blocking(folder: str, call_key: str) -> str:
    """At most once, and no coroutine."""
    return act_in_a_thread(folder, call_key)


@tool(effect="transaction", concurrency=400)
async def transaction(call_key: str, context: ToolContext) -> str:
    """Exactly once: a row that is committed with the outcome of the call."""
    await asyncio.sleep(TOOL_SECONDS)
    context.transaction.execute(TABLE)
    context.transaction.execute(BOOK, (call_key,))
    await asyncio.sleep(TOOL_SECONDS)
    return f"done {call_key}"


@tool(effect="transaction", concurrency=400, name="transaction")
async def transaction_on_postgres(call_key: str, context: ToolContext) -> str:
    """The same, with the connection of its own transaction."""
    await asyncio.sleep(TOOL_SECONDS)
    await context.transaction.execute(BOOK.replace("?", "%s"), (call_key,))
    await asyncio.sleep(TOOL_SECONDS)
    return f"done {call_key}"


def model(folder: str) -> Callable[[ModelRequest], ScriptedTurn]:
    """Steps of four calls, then the answer."""

    def turn(request: ModelRequest) -> ScriptedTurn:
        step = sum(isinstance(each, AssistantMessage) for each in request.messages) + 1
        if step > STEPS:
            return ScriptedTurn(ANSWER, first_delay_seconds=MODEL_SECONDS)
        request_id = next(each.text for each in request.messages if isinstance(each, UserMessage))
        told = {"folder": folder}
        calls = tuple(
            ScriptedCall(
                kind,
                {"call_key": key(request_id, step, kind), **({} if kind == "transaction" else told)},
                f"{step}-{kind}",
            )
            for kind in KINDS
        )
        return ScriptedTurn("", calls, first_delay_seconds=MODEL_SECONDS)

    return turn


@dataclass(frozen=True)
class Start:
    """One start of the program."""

    folder: str
    journal: str
    requests: int
    durability: str = "process"
    point: tuple[str, int, int] | None = None
    """End at this line of this file, when it is reached for the so-and-so-many-th time."""
    in_processes: bool = False
    """Does `blocking` run in child processes? They make a start three times as dear."""
    counts_points: bool = False
    """Report at the end how often each line was reached."""
    checkpoint_pages: int = 0
    """Of SQLite's log, which is written into the file so often; 0 as it is."""

    def runtime(self) -> Runtime:
        on_postgres = self.journal.startswith("postgres")
        book = transaction_on_postgres if on_postgres else transaction
        settings = Settings(
            model="scripted/model",
            script=model(self.folder),
            journal=self.journal,
            durability=self.durability,
            max_attempts=MAX_ATTEMPTS,
            request_timeout_seconds=DEADLINE_SECONDS,
            max_concurrent_requests=max(self.requests, 100),
        )
        isolated = tool(effect="once", isolation="process" if self.in_processes else "thread", concurrency=16)(blocking)
        return Runtime(settings, [repeat, once, isolated, book])


def run(start: Start) -> None:
    """Until all have ended, or until it is killed."""
    if start.checkpoint_pages:
        sqlite_database._CHECKPOINT_PAGES = start.checkpoint_pages
    points = Points(start.point) if start.point is not None or start.counts_points else None
    report(begun=True)
    asyncio.run(everything(start))
    if points is not None and start.counts_points:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        for (file, line), times in sorted(points.reached.items()):
            report(point=[file, line, times])
    report(all=True)


async def everything(start: Start) -> None:
    async with start.runtime() as runtime:
        report(ready=len(runtime.open_requests()))
        await asyncio.gather(*(one(runtime, each) for each in request_ids(start.requests)))


async def one(runtime: Runtime, request_id: str) -> None:
    try:
        report(ended=request_id, text=(await answer_of(runtime, request_id)).text)
    except CallboardError as error:
        report(failed=request_id, error=str(error))


async def answer_of(runtime: Runtime, request_id: str) -> Reply:
    """Of an earlier process's request, or of one that is asked now."""
    while True:
        with suppress(UsageError):  # it was never asked, or is still of a process whose lease has not run out
            return await runtime.result(request_id)
        with suppress(UsageError):  # the second
            return await asked(runtime, request_id)
        await asyncio.sleep(LOOK_AGAIN_SECONDS)


async def asked(runtime: Runtime, request_id: str) -> Reply:
    """A new request, with a line for each thing that it shows."""
    async for event in runtime.stream(request_id, request_id=request_id):
        if isinstance(event, Reply):
            return event
        tag = getattr(event, "tag", None)
        if tag is not None:
            report(shown=request_id, event=type(event).__name__, step=tag.step, call=tag.call_id)
    raise AssertionError("a stream ends with its Reply, or raises")


class Points:
    """Follows the lines of the journal's code in all threads, and ends the process at one of them."""

    def __init__(self, aim: tuple[str, int, int] | None) -> None:
        self.reached = Counter[tuple[str, int]]()
        self._aim = aim
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        file = frame.f_code.co_filename
        return self._line if file in TRACED or file.startswith(JOURNAL_FOLDER) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            place = (frame.f_code.co_filename, frame.f_lineno)
            self.reached[place] += 1
            if self._aim is not None and (*place, self.reached[place]) == self._aim:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line

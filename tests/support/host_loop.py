"""A program: it awaits every member of a Runtime that runs on its caller's event loop, and prints what the thread of
that loop did meanwhile that may take long (watched_thread)."""

from __future__ import annotations

import asyncio
import io
import json
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from pydantic import BaseModel
from support.watched_thread import offences, watched

from callboard.actors import Runtime, Settings
from callboard.actors.connection import Connection
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import ModelCallFailed
from callboard.actors.tools import tool
from callboard.protocol.content import Image, ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


class Weather(BaseModel):
    """An answer that is an object."""

    city: str


@tool
async def lookup(city: str) -> str:
    """Of a city."""
    return city


def script(request: ModelRequest) -> ScriptedTurn:
    """What the question asks for: an edit, a call, an object, or words."""
    last = max(place for place, each in enumerate(request.messages) if isinstance(each, UserMessage))
    results = [each for each in request.messages[last:] if isinstance(each, ToolMessage)]
    question = request.messages[last]
    assert isinstance(question, UserMessage)
    if question.text.startswith("edit") and not results:
        return ScriptedTurn(calls=(ScriptedCall("create_file", {"path": f"{question.text}.txt", "content": "x"}),))
    if question.text.startswith("call") and not results:
        return ScriptedTurn(calls=(ScriptedCall("lookup", {"city": "Oslo"}),))
    return ScriptedTurn('{"city": "Oslo"}')


async def ask(runtime: Runtime, settings: Settings) -> None:
    await runtime.ask("call")
    await runtime.ask("named", request_id="named")
    await runtime.ask("picture", request_id="picture", model="scripted/other", tools=["lookup"], metadata={"a": "b"})
    await runtime.ask([Image("image/png", "iVBORw0KGgo=")])
    await runtime.ask("object", output=Weather)
    await not_reached(runtime.ask("another model", model="openai/gpt-5"))
    conversation = Conversation()
    await runtime.ask("edit of ask", conversation=conversation)
    await runtime.approve_edits()
    await runtime.ask("and then", conversation=conversation)
    assert any("was applied" in str(each) for each in conversation.messages)
    await refused(runtime.ask("named again", request_id="named"), "choose another")


async def not_reached(asked: Awaitable[object]) -> None:
    """There is no server."""
    with pytest.raises(ModelCallFailed):
        await asked


async def refused(asked: Awaitable[object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        await asked


async def stream(runtime: Runtime, settings: Settings) -> None:
    assert [each async for each in runtime.stream("call of stream", request_id="streamed")]
    assert [each async for each in runtime.stream("words", model="scripted/third").texts()]
    conversation = Conversation()
    assert [each async for each in runtime.stream("edit of stream", conversation=conversation)]
    await runtime.approve_edits()
    assert [each async for each in runtime.stream("and then", conversation=conversation, request_id="then")]
    assert any("was applied" in str(each) for each in conversation.messages)

    async def again() -> None:
        async for _ in runtime.stream("named again", request_id="streamed"):
            raise AssertionError("an id of the journal was taken twice")

    await refused(again(), "choose another")


async def follow(runtime: Runtime, settings: Settings) -> None:
    asked = runtime.stream("call and be followed", request_id="followed")
    items = aiter(asked)
    assert await anext(items)  # it has begun
    assert [each async for each in runtime.follow("followed")]
    assert [each async for each in items]
    assert [each async for each in runtime.follow("named")]


async def result(runtime: Runtime, settings: Settings) -> None:
    assert (await runtime.result("named")).text
    await refused(runtime.result("nowhere"), "neither this runtime nor its journal")


async def call_tool(runtime: Runtime, settings: Settings) -> None:
    assert (await runtime.call_tool("lookup", {"city": "Oslo"}, on_progress=print)).ok
    assert (await runtime.call_tool("lookup", {"city": "Oslo"}, request_id="called")).ok


async def reload(runtime: Runtime, settings: Settings) -> None:
    await runtime.reload(settings.model_copy(update={"max_steps": 7}))


async def refresh_index(runtime: Runtime, settings: Settings) -> None:
    await runtime.refresh_index()


async def approve_edits(runtime: Runtime, settings: Settings) -> None:
    await runtime.ask("edit to be approved")
    assert len(await runtime.approve_edits()) == 1


async def deny_edits(runtime: Runtime, settings: Settings) -> None:
    await runtime.ask("edit to be denied")
    assert len(await runtime.deny_edits()) == 1


async def drain(runtime: Runtime, settings: Settings) -> None:
    assert await runtime.drain(10)


#: In this order, on one runtime. Those that start and stop it are awaited around them.
MEMBERS = (ask, stream, follow, result, call_tool, reload, refresh_index, approve_edits, deny_edits, drain)
AROUND = ("__aenter__", "__aexit__")


async def main(folder: Path) -> None:
    (folder / "work").mkdir()
    settings = Settings(
        model="scripted/x",
        script=script,
        workspace=folder / "work",
        state_dir=folder / "state",
        index_dir=folder / "index",
        journal=folder / "journal",
        warm_workers=0,
        connections={"openai": Connection(base_url="http://127.0.0.1:9/v1", api_key="none")},
        max_attempts=1,
    )
    runtime = Runtime(settings, tools=[lookup])
    with watched("__aenter__"):
        await runtime.__aenter__()
    try:
        for member in MEMBERS:
            with watched(member.__name__):
                await member(runtime, settings)
    finally:
        with watched("__aexit__"):
            await runtime.__aexit__(None, None, None)


def run() -> None:
    """In the folder that the command line names."""
    asyncio.run(main(Path(sys.argv[1])))
    json.dump({"members": [*AROUND, *(each.__name__ for each in MEMBERS)], "offences": offences()}, sys.stdout)


# -- the instrument itself


def run_faults() -> None:
    """Each kind of waiting, and what is seen of it."""
    held, slow, told = threading.Lock(), threading.Lock(), threading.Event()
    holds = threading.Event()

    def hold() -> None:
        with slow:
            Path(__file__).exists()
        with held:
            holds.set()
            told.wait()

    def take_slow() -> None:
        with slow:
            """Which another thread had."""

    holder = threading.Thread(target=hold)
    holder.start()
    holds.wait()
    database = sqlite3.connect(":memory:")
    faults: dict[str, Callable[[], object]] = {
        "nothing": lambda: [threading.Lock().acquire(), sum(range(9)), io.BytesIO(b"x").read()],
        "file": lambda: [Path(__file__).exists(), Path(__file__).read_bytes()],
        "database": lambda: database.execute("SELECT 1"),
        "lock": lambda: held.acquire(timeout=0.01),
        "slow lock": take_slow,
        "answer": lambda: threading.Event().wait(0.01),
    }
    for name, fault in faults.items():
        with watched(name):
            fault()
    told.set()
    holder.join()
    seen: dict[str, list[str]] = {name: [] for name in faults}
    for each in offences():
        seen[each.member].append(each.what)
    json.dump({name: sorted(set(found)) for name, found in seen.items()}, sys.stdout)

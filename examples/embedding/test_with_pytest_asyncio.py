"""Tests of your own with pytest-asyncio: one runtime for all of them, on which loop each may run.

    pip install pytest-asyncio
    pytest examples/embedding/test_with_pytest_asyncio.py

A runtime belongs to no event loop, so the loop scopes of tests and fixtures do not matter to it. The model is the
shipped scripted one: no key, no network.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from weather import weather

from callboard import Conversation, Reply, RequestEnded, Runtime, Settings, TextDelta
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


def model(request: ModelRequest) -> ScriptedTurn:
    """Asks the tool, then says what it gave."""
    last = request.messages[-1]
    if isinstance(last, ToolMessage):
        return ScriptedTurn(last.content)
    return ScriptedTurn(calls=(ScriptedCall("weather", {"city": "Oslo"}),))


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    """Started once; no event loop is needed."""
    with Runtime(Settings(model="scripted/model", script=model), tools=[weather]) as runtime:
        yield runtime


@pytest_asyncio.fixture(loop_scope="module")
async def own_runtime() -> AsyncIterator[Runtime]:
    """One for a test that stops it, or needs other settings."""
    async with Runtime(Settings(model="scripted/model", script=model), tools=[weather]) as runtime:
        yield runtime


@pytest.mark.asyncio
async def test_on_a_loop_of_its_own(runtime: Runtime) -> None:
    conversation = Conversation()
    assert (await runtime.ask("And in Oslo?", conversation=conversation)).text == "It rains in Oslo."
    assert len(conversation.messages) == 4


@pytest.mark.asyncio(loop_scope="session")
async def test_on_the_loop_of_the_session(runtime: Runtime) -> None:
    items = [item async for item in runtime.stream("And in Oslo?")]
    assert "".join(item.text for item in items if isinstance(item, TextDelta)) == "It rains in Oslo."
    assert isinstance(items[-1], Reply)


@pytest.mark.asyncio(loop_scope="module")
async def test_many_at_once(runtime: Runtime) -> None:
    replies = await asyncio.gather(*(runtime.ask("And in Oslo?") for _ in range(20)))
    assert {reply.text for reply in replies} == {"It rains in Oslo."}


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stopped_runtime_ends_its_requests(own_runtime: Runtime) -> None:
    asking = asyncio.ensure_future(own_runtime.ask("And in Oslo?"))
    await asyncio.sleep(0)
    await asyncio.to_thread(own_runtime.stop)
    with pytest.raises(RequestEnded, match="stopping"):
        await asking

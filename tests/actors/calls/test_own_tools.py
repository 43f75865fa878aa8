"""Tools that one question brings with it: they run, do not mix with others of their name, and leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.calls.dispatcher import OfferTools, ToolDispatcher
from callboard.actors.calls.ledger import Ledger
from callboard.actors.calls.registry import MAX_HELD_THREADS, Registry, name_of
from callboard.actors.requests.replies import RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.chaos.crashing import Target, crashing
from callboard.actors.tools import Tool, tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


def calls_look(request: ModelRequest) -> ScriptedTurn:
    results = [message for message in request.messages if isinstance(message, ToolMessage)]
    return ScriptedTurn(results[0].content) if results else ScriptedTurn(calls=(ScriptedCall("look", {}),))


@tool(isolation="thread")
def other() -> str:
    """The runtime's own tool."""
    return "other"


def look_that(says: str, isolation: str = "thread") -> Tool[..., Any]:
    def look() -> str:
        """Look."""
        return says

    made: Tool[..., Any] = tool(isolation=isolation)(look)  # type: ignore[call-overload]
    return made


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(Settings(model="scripted/one", script=calls_look, max_steps=3), tools=[other]) as running:
        yield running


def kept(runtime: Runtime) -> tuple[set[str], int, int]:
    """What the dispatcher has of tools: names in its registry, lanes, sessions that have brought some."""
    running = runtime._running
    assert running is not None
    dispatcher: Any = running.peers.dispatcher._cell.actor
    keys = list(dispatcher._registry.entries)
    return {str(name_of(key)) for key in keys}, len(dispatcher.ledger.lanes), len(dispatcher.ledger.brought)


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_it_runs_wherever_tools_run_and_is_gone_afterwards(isolation: str, runtime: Runtime, until: Until) -> None:
    reply = runtime.ask_sync("?", tools=["other", look_that("a tower", isolation)])
    assert reply.text == "a tower"
    until(lambda: kept(runtime) == ({"other"}, 0, 0))


def test_an_async_one_runs_as_a_task(runtime: Runtime) -> None:
    @tool
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "a task"

    assert runtime.ask_sync("?", tools=[look]).text == "a task"


def test_questions_side_by_side_have_each_its_own_of_the_name(runtime: Runtime, until: Until) -> None:
    async def ask_all() -> list[str]:
        replies = await asyncio.gather(*(runtime.ask("?", tools=[look_that(f"tower {n}")]) for n in range(20)))
        return [reply.text for reply in replies]

    assert asyncio.run(ask_all()) == [f"tower {n}" for n in range(20)]
    until(lambda: kept(runtime) == ({"other"}, 0, 0))


def test_another_question_is_told_that_there_is_no_such_tool(runtime: Runtime) -> None:
    assert runtime.ask_sync("?", tools=[look_that("mine")]).text == "mine"
    reply = runtime.ask_sync("?")
    assert [failure.code for failure in reply.failures] == [FailureCode.UNKNOWN_TOOL]


@pytest.mark.parametrize("end", ["cancel", "deadline", "crash of the dispatcher"])
def test_nothing_of_it_is_left_whichever_way_the_question_ends(end: str, runtime: Runtime, until: Until) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @tool(isolation="thread", timeout=30)
    def look() -> str:
        """Look."""
        begun.set()
        go_on.wait(20)
        return "late"

    ended: list[object] = []

    def ask() -> None:
        try:
            ended.append(
                runtime.ask_sync("?", tools=[look], request_id="one", timeout=2.0 if end == "deadline" else 20)
            )
        except RequestEnded as error:
            ended.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert begun.wait(10)
    assert kept(runtime) == ({"other", "look"}, 1, 1)
    if end == "cancel":
        runtime.cancel("one")
    if end == "crash of the dispatcher":
        with crashing(Target(ToolDispatcher, OfferTools), 1) as crashes:
            assert runtime.ask_sync("?", tools=[look_that("of another question")]).text == "of another question"
        assert crashes.left == 0
        go_on.set()
    asking.join(15)
    go_on.set()
    assert len(ended) == 1
    until(lambda: kept(runtime) == ({"other"}, 0, 0))


# -- the bookkeeping


#: What sessions bring.
THREE = [look_that(str(n)).owned for n in range(3)]


@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 2))), max_size=30))
def test_registry_and_ledger_are_as_before_when_every_session_has_ended(steps: list[tuple[int, int | None]]) -> None:
    registry, ledger = Registry([other]), Ledger()
    sessions: Any = [object() for _ in range(4)]
    expected: dict[int, set[Tool]] = {}
    for session, brought in [*steps, *((n, None) for n in range(4))]:
        if brought is None:
            expected.pop(session, None)
            for left in ledger.leave(sessions[session]):
                registry.forget(left)
        else:
            chosen = THREE[brought]
            assert ledger.bring(chosen, sessions[session]) is (session not in expected)
            registry.bring(chosen)
            expected.setdefault(session, set()).add(chosen)
        alive = set().union(*expected.values()) if expected else set()
        assert {key for key in registry.entries if isinstance(key, Tool)} == alive
        assert [offer.definition.name for offer in registry.offers(0.0)] == ["other"]
    assert (ledger.brought, ledger.lanes, set(registry.entries)) == ({}, {}, {"other"})


def test_health_is_that_of_the_tool_and_a_forgotten_one_changes_nothing() -> None:
    registry, (mine, yours, _) = Registry([other]), THREE
    registry.bring(mine)
    registry.bring(yours)
    registry.hold("worker", (mine,) * MAX_HELD_THREADS, 0.0)
    refusal = registry.refusal(mine, 0.0)
    assert refusal is not None
    assert (refusal.tool, refusal.code) == ("look", FailureCode.WITHDRAWN)
    assert registry.refusal(yours, 0.0) is None
    registry.forget(mine)
    assert registry.hold("worker", (), 1.0) == []
    assert registry.judge(mine, worked=False, now=1.0) is None

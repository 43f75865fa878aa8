"""A runtime that is changed while requests run, and one that drains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.actors.reloading import RELOADABLE
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Call, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.errors import RuntimeFailure, UsageError

REQUESTS, RELOADS = 50, 20


@pytest.fixture
def double() -> Iterator[WireDouble]:
    with WireDouble([Turn(calls=(Call("pause", {}),)), Turn("done")], by_turn=True) as server:
        yield server


def settings_of(server: WireDouble, **more: object) -> Settings:
    base = {"model": "openai-chat/any", "base_url": server.base_url(Api.CHAT), "api_key": "key-0"}
    return Settings.model_validate({**base, **more})


class Gate:
    """Of the tool `pause`, whose calls end when it opens."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = asyncio.Semaphore(0)

    def tool(self, answer: str = "paused") -> Callable[..., object]:
        async def pause() -> str:
            loop_of_gate = self.loop
            loop_of_gate.call_soon_threadsafe(self.entered.release)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.open.wait(), loop_of_gate))
            return answer

        self.loop = asyncio.get_running_loop()
        return tool(concurrency=REQUESTS)(pause)

    async def wait_for(self, calls: int) -> None:
        for _ in range(calls):
            await asyncio.wait_for(self.entered.acquire(), 20)


async def test_no_request_fails_across_many_reloads_and_the_next_model_turn_has_the_new_key(double: WireDouble) -> None:
    gate = Gate()
    async with Runtime(settings_of(double), [gate.tool()]) as runtime:
        asked = [asyncio.ensure_future(runtime.ask("go")) for _ in range(REQUESTS)]
        await gate.wait_for(REQUESTS)
        for number in range(1, RELOADS + 1):
            await runtime.reload(settings_of(double, api_key=f"key-{number}"), tools=[gate.tool("new")])
        gate.open.set()
        replies = await asyncio.wait_for(asyncio.gather(*asked), 30)
    assert [reply.text for reply in replies] == ["done"] * REQUESTS
    keys = [each.headers["authorization"] for each in double.traffic().requests]
    assert keys == ["Bearer key-0"] * REQUESTS + [f"Bearer key-{RELOADS}"] * REQUESTS


async def test_streams_under_way_end_while_their_provider_is_retired(double: WireDouble) -> None:
    async with Runtime(settings_of(double, api_key="key-a"), [_at_once()]) as runtime:
        ending = asyncio.Event()

        async def keep_asking() -> int:
            count = 0
            while not ending.is_set():
                assert (await runtime.ask("go")).text == "done"
                count += 1
            return count

        askers = [asyncio.ensure_future(keep_asking()) for _ in range(8)]
        for number in range(RELOADS):
            await runtime.reload(settings_of(double, api_key=f"key-{number}"), tools=[_at_once()])
            assert (await runtime.ask("go")).text == "done"
        ending.set()
        assert min(await asyncio.wait_for(asyncio.gather(*askers), 30)) > 0


def _at_once() -> Callable[..., object]:
    @tool(concurrency=REQUESTS)
    async def pause() -> str:
        return "paused"

    return pause


async def test_a_tool_that_is_gone_is_refused_to_a_request_that_was_offered_it(double: WireDouble) -> None:
    double.play([Turn(calls=(Call("pause", {}),)), Turn(calls=(Call("pause", {}),)), Turn("done")], by_turn=True)
    gate = Gate()
    async with Runtime(settings_of(double), [gate.tool()]) as runtime:
        asked = asyncio.ensure_future(runtime.ask("go"))
        await gate.wait_for(1)
        await runtime.reload(tools=[])
        assert runtime.tools() == ()
        gate.open.set()
        reply = await asyncio.wait_for(asked, 30)
    sent = [message for message in double.traffic().bodies[-1]["messages"] if message["role"] == "tool"]
    assert sent[0]["content"] == "paused"  # the call that ran has ended as it began
    assert "pause" in sent[1]["content"]
    assert sent[1]["content"] != "paused"
    assert reply.text == "done"


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"journal": Path("other.db")}, "journal cannot be changed"), ({"warm_workers": 3}, "restart")],
)
async def test_what_needs_a_new_start_changes_nothing(
    double: WireDouble, changed: dict[str, object], said: str
) -> None:
    async with Runtime(settings_of(double), [_at_once()]) as runtime:
        before = runtime.settings
        with pytest.raises(UsageError, match=said):
            await runtime.reload(settings_of(double, api_key="key-1", **changed), tools=[])
        assert runtime.settings is before
        assert (await runtime.ask("go")).text == "done"
    assert {each.headers["authorization"] for each in double.traffic().requests} == {"Bearer key-0"}


async def test_a_faulty_setting_changes_nothing(double: WireDouble) -> None:
    async with Runtime(settings_of(double), [_at_once()]) as runtime:
        with pytest.raises(UsageError, match="two tools"):
            await runtime.reload(settings_of(double, api_key="key-1"), tools=[_at_once(), _at_once()])
        assert (await runtime.ask("go")).text == "done"
    assert {each.headers["authorization"] for each in double.traffic().requests} == {"Bearer key-0"}


def test_the_table_names_settings() -> None:
    assert set(Settings.model_fields) > RELOADABLE


async def test_draining_refuses_new_requests_and_waits_for_those_that_run(double: WireDouble) -> None:
    gate = Gate()
    async with Runtime(settings_of(double), [gate.tool()]) as runtime:
        asked = asyncio.ensure_future(runtime.ask("go"))
        await gate.wait_for(1)
        assert await runtime.drain(0.01) is False
        assert runtime.is_draining
        with pytest.raises(RuntimeFailure, match="draining"):
            await runtime.ask("go")
        draining = asyncio.ensure_future(runtime.drain(30))
        gate.open.set()
        assert await draining is True
        assert (await asked).text == "done"

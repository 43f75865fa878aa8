"""The whole runtime against a real HTTP server in another process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from support.shared_double import cut, shared_double, stall

from callboard.actors.requests.replies import ModelCallFailed, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Call, RawAnswer, Tokens, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.errors import ErrorKind
from callboard.protocol.model import Usage
from callboard.providers.catalog import Catalog, ModelInfo, Prices
from callboard.providers.local.scripted import ScriptedTurn

Until = Callable[[Callable[[], bool]], None]
KEY = "sk-a-key-that-nobody-may-see"


@tool(isolation="thread")
def double(x: int) -> int:
    return 2 * x


CALL = Turn(calls=(Call("double", {"x": 21}, "call_1"),))


def runtime_for(server: WireDouble, **more: object) -> Runtime:
    settings = Settings(model="openai-compatible/fake-1", base_url=server.base_url(), api_key=KEY, **more)
    return Runtime(settings, tools=[double])


def test_a_call_its_result_and_the_answer_and_again_after_a_restart() -> None:
    with shared_double([CALL, Turn("It is 42.")], by_turn=True) as server:
        runtime = runtime_for(server)
        for _ in range(2):
            with runtime:
                assert runtime.ask_sync("twice 21?").text == "It is 42."
        bodies = server.traffic().bodies
    assert len(bodies) == 4
    assert bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    assert bodies[0]["tools"][0]["function"]["name"] == "double"


REFUSED = RawAnswer({"error": {"message": "no money", "code": "insufficient_quota"}}, 402)
LISTED = {"openai-chat/gpt-4o": 9 * 2.5e-6 + 3 * 1e-5}


@pytest.mark.parametrize(
    ("model", "fallback", "cost"),
    [
        ("openai-chat/gpt-4o", (), LISTED["openai-chat/gpt-4o"]),
        ("openai-chat/gpt-4o", ("scripted/free",), 0.0),
        ("openai-compatible/gpt-4o", (), None),
        ("openai-compatible/gpt-4o", ("scripted/free",), 0.0),
        ("vllm/gpt-4o", (), 0.0),
        ("openai-chat/unheard-of", (), None),
    ],
)
def test_a_cost_is_that_of_the_model_that_answered_free_or_unknown(
    model: str, fallback: tuple[str, ...], cost: float | None
) -> None:
    turn = Turn("It is 42.", usage=Tokens(9, 3))
    script = [ScriptedTurn("It is 42.", usage=Usage(1_000, 1_000))]
    with shared_double([REFUSED] if fallback else [turn]) as server:
        settings = Settings(model=model, fallback_models=fallback, base_url=server.base_url(), script=script)
        with Runtime(settings) as runtime:
            reply = runtime.ask_sync("twice 21?")
            assert reply.text == "It is 42."
            assert reply.cost == (cost if cost is None else pytest.approx(cost))
            assert runtime.metrics().cost == reply.cost
            if cost is not None:
                return
            assert runtime.metrics().count("callboard.requests.cost_unknown") == 1


def test_a_cost_budget_stops_before_it_is_passed_also_with_a_dearer_fallback() -> None:
    """The first model is free; the fallback would cost more than there is: by its price, no step is asked."""
    prices = Catalog({"scripted/dear": ModelInfo(prices=Prices(1.0, 1.0))})
    settings = Settings(model="scripted/free", fallback_models=("scripted/dear",), catalog=prices, cost_budget=0.5)
    with (
        Runtime(settings) as runtime,
        pytest.raises(RequestEnded, match=r"costs about \$\d+.*budget of \$0.5") as ended,
    ):
        runtime.ask_sync("Hi")
    reply = ended.value.reply
    assert (reply.outcome, reply.cost, reply.steps) == (Outcome.COST_LIMIT, 0.0, ())


def test_a_passing_failure_and_a_cut_stream_are_tried_again() -> None:
    overloaded = RawAnswer({"error": {"message": "try later"}}, 503, {"retry-after": "0.01"})
    with (
        shared_double([overloaded, cut("half an ans"), Turn("whole answer")]) as server,
        runtime_for(server) as runtime,
    ):
        reply = runtime.ask_sync("go")
        assert reply.text == "whole answer"
        assert len(server.traffic().bodies) == 3
        assert reply.messages[-1].text == "whole answer"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (RawAnswer({"error": {"message": f"Incorrect API key provided: {KEY}"}}, 401), ErrorKind.AUTHENTICATION),
        (RawAnswer({"error": {"message": "no such parameter"}}, 400), ErrorKind.INVALID_REQUEST),
    ],
)
def test_a_failure_is_told_without_the_key(
    answer: RawAnswer, kind: ErrorKind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with shared_double([answer]) as server, runtime_for(server) as runtime:
        with pytest.raises(ModelCallFailed) as caught:
            runtime.ask_sync("go")
        letters = repr(runtime.dead_letters())
        tree = repr(runtime.tree())
    assert caught.value.kind is kind
    shown = f"{caught.value!r} {caught.value} {caught.value.reply!r} {caplog.text} {letters} {tree}"
    assert KEY not in shown


async def test_cancelling_hangs_up() -> None:
    with shared_double([stall("thinking")]) as server:
        async with runtime_for(server) as runtime:
            events = runtime.stream("go")
            async for item in events:
                if getattr(item, "text", "") == "thinking":
                    break
            await asyncio.to_thread(server.wait_until, lambda traffic: traffic.abandoned == 1)


async def test_stopping_hangs_up() -> None:
    with shared_double([stall("thinking")] * 5) as server:
        runtime = runtime_for(server).start()
        asking = [asyncio.create_task(runtime.ask("go")) for _ in range(5)]
        await asyncio.to_thread(server.wait_until, lambda traffic: len(traffic.bodies) == 5)
        await asyncio.to_thread(runtime.stop)
        await asyncio.gather(*asking, return_exceptions=True)
        traffic = await asyncio.to_thread(server.wait_until, lambda traffic: traffic.open_connections == 0)
        assert traffic.abandoned == 5


def test_a_stalled_stream_is_an_error_and_not_a_wait() -> None:
    with (
        shared_double([stall("hm")] * 9) as server,
        runtime_for(server, stream_idle_timeout_seconds=0.2, max_attempts=1) as runtime,
        pytest.raises(ModelCallFailed) as caught,
    ):
        runtime.ask_sync("go")
    assert caught.value.kind is ErrorKind.TIMEOUT


def test_two_hundred_requests_side_by_side() -> None:
    async def ask_all(runtime: Runtime) -> list[str]:
        replies = await asyncio.gather(*(runtime.ask(f"question {n}") for n in range(200)))
        return [reply.text for reply in replies]

    with shared_double([CALL, Turn("done")], by_turn=True) as server, runtime_for(server) as runtime:
        assert asyncio.run(ask_all(runtime)) == ["done"] * 200
        assert runtime.metrics().count("callboard.tool.calls", tool="double", outcome="ok") == 200

"""New settings and tools while requests run, and a runtime that takes no more requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard import AskApproval, Runtime, RuntimeFailure, Settings, UsageError, tool
from callboard.actors.builtins.asking_user import UserQuestion
from callboard.actors.testing.wire_double import Call, Turn, WireDouble
from callboard.protocol.options import ToolFallback

Until = Callable[[Callable[[], bool]], None]
ASKS = Turn(calls=(Call("look", {"city": "Oslo"}),))
SAYS = Turn("It rains.")


def settings(double: WireDouble, key: str = "first", **more: object) -> Settings:
    return Settings(model="openai-compatible/any", base_url=double.base_url(), api_key=key, **more)  # type: ignore[arg-type]


def keys(double: WireDouble) -> list[str]:
    return [each.headers["authorization"].removeprefix("Bearer ") for each in double.requests()]


class Gate:
    """A tool that waits until it is let go."""

    def __init__(self) -> None:
        self.has_begun, self.let_go = threading.Event(), threading.Event()

        @tool(risk="read", isolation="thread")
        def look(city: str) -> str:
            """Look."""
            self.has_begun.set()
            assert self.let_go.wait(30)
            return f"rain in {city}"

        self.tool = look


def test_a_request_that_runs_asks_its_model_with_the_new_key() -> None:
    gate = Gate()
    with WireDouble([ASKS, SAYS]) as double, Runtime(settings(double), tools=[gate.tool]) as runtime:
        replies: list[str] = []
        asking = threading.Thread(target=lambda: replies.append(str(runtime.ask_sync("Rain?"))))
        asking.start()
        assert gate.has_begun.wait(30)
        runtime.reload_sync(settings(double, "second"))
        gate.let_go.set()
        asking.join(30)
        assert replies == ["It rains."]
        assert keys(double) == ["first", "second"]


def test_no_request_fails_across_many_reloads() -> None:
    @tool(risk="read", isolation="task")
    async def look(city: str) -> str:
        """Look."""
        return city

    with WireDouble([ASKS, SAYS], by_turn=True) as double, Runtime(settings(double), tools=[look]) as runtime:
        replies: list[str] = []

        def ask() -> None:
            for _ in range(10):
                replies.append(str(runtime.ask_sync("Rain?")))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for each in asking:
            each.start()
        for number in range(20):
            runtime.reload_sync(settings(double, f"key-{number}"))
        for each in asking:
            each.join(60)
        assert replies == ["It rains."] * 40


def test_tools_come_and_go_and_a_request_that_runs_reads_of_a_tool_that_is_gone() -> None:
    gate = Gate()

    @tool(risk="read", isolation="task")
    async def listen() -> str:
        """Listen."""
        return "quiet"

    turns = [ASKS, ASKS, SAYS, Turn(calls=(Call("listen", {}),)), SAYS]
    with WireDouble(turns) as double, Runtime(settings(double), tools=[gate.tool]) as runtime:
        asking = threading.Thread(target=lambda: runtime.ask_sync("Rain?"))
        asking.start()
        assert gate.has_begun.wait(30)
        runtime.reload_sync(settings(double), tools=[listen])
        gate.let_go.set()
        asking.join(30)
        results = [each["content"] for each in double.traffic().bodies[2]["messages"] if each["role"] == "tool"]
        assert results[0] == "rain in Oslo"
        assert "unknown_tool" in results[1]
        assert [each.name for each in runtime.ask_sync("And now?").steps[0].calls] == ["listen"]


def test_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    with WireDouble([SAYS]) as double, Runtime(settings(double)) as runtime:
        before = runtime.settings
        with pytest.raises(UsageError, match="workspace cannot change while the runtime runs"):
            runtime.reload_sync(settings(double, workspace=tmp_path))
        with pytest.raises(UsageError, match="nowhere"):
            runtime.reload_sync(Settings(model="nowhere/x"))
        assert runtime.settings is before
        assert str(runtime.ask_sync("Rain?")) == "It rains."
        assert keys(double) == ["first"]


def test_a_draining_runtime_finishes_what_runs_and_takes_nothing_new() -> None:
    gate = Gate()
    with WireDouble([ASKS, SAYS]) as double, Runtime(settings(double), tools=[gate.tool]) as runtime:
        replies: list[str] = []
        asking = threading.Thread(target=lambda: replies.append(str(runtime.ask_sync("Rain?"))))
        asking.start()
        assert gate.has_begun.wait(30)
        assert not runtime.drain_sync(0.05)
        assert runtime.is_draining
        with pytest.raises(RuntimeFailure, match="draining"):
            runtime.ask_sync("Another?")
        threading.Timer(0.2, gate.let_go.set).start()
        assert runtime.drain_sync(30)
        asking.join(30)
        assert replies == ["It rains."]


def test_with_a_journal_it_does_not_wait_for_a_person(tmp_path: Path, until: Until) -> None:
    asked = threading.Event()

    def approve(question: AskApproval) -> bool:
        asked.set()
        return threading.Event().wait(60)

    @tool(risk="write", isolation="thread")
    def write(text: str) -> str:
        """Write."""
        return text

    def ask(runtime: Runtime) -> None:
        with pytest.raises(RuntimeFailure, match="kept in the journal"):
            runtime.ask_sync("Write.")

    turns = [Turn(calls=(Call("write", {"text": "x"}),)), SAYS]
    with WireDouble(turns) as double:
        given = settings(double, journal=tmp_path / "j.db")
        with Runtime(given, tools=[write], approve=approve) as runtime:
            asking = threading.Thread(target=ask, args=(runtime,))
            asking.start()
            assert asked.wait(30)
            assert not runtime.drain_sync(60)
        with Runtime(given, tools=[write], approve=lambda _: True) as runtime:
            until(lambda: not runtime.open_requests())
        asking.join(30)


def test_what_was_learned_of_a_model_is_forgotten_as_its_name_may_stand_for_another() -> None:
    with WireDouble([SAYS]) as double, Runtime(settings(double)) as runtime:
        wiring, name = runtime._wiring, "openai-compatible/any"
        for _ in range(2):
            wiring._refusals.learn_window(name, 5_000, 0.0)
            wiring._refusals.learn_no_tools(name, 0.0)
            wiring._token_ratios.learn(name, 30_000, 10_000)
            learned = wiring.options_now(wiring.model, 0.0, {})
            assert learned.context_tokens == 5_000
            assert learned.takes_tools is (runtime.settings.tool_fallback is ToolFallback.FAIL)
            assert learned.token_ratio > 1
            runtime.reload_sync(settings(double, tool_fallback=ToolFallback.FAIL))
            learned = wiring.options_now(wiring.model, 0.0, {})
            assert (learned.context_tokens, learned.takes_tools, learned.token_ratio) == (None, True, 1.0)


def test_a_window_is_asked_for_again_of_the_server_that_the_name_stands_for_now() -> None:
    with WireDouble([SAYS]) as double, Runtime(settings(double)) as runtime:
        assert runtime._running is not None
        windows = runtime._running.windows
        assert str(runtime.ask_sync("Rain?")) == "It rains."
        assert windows._found
        runtime.reload_sync(settings(double))
        runtime.offered()  # on the loop, behind it
        assert not windows._found


def test_a_reload_gives_no_new_minute_of_a_limit_that_stays_as_it_is() -> None:
    def limiter(runtime: Runtime) -> object:
        return runtime._wiring.model.routes[0].limiter

    limits = {"openai-compatible": (1.0, None)}
    with WireDouble([SAYS]) as double, Runtime(settings(double, rate_limits=limits)) as runtime:
        before = limiter(runtime)
        runtime.reload_sync(settings(double, instructions="Be brief.", rate_limits=limits))
        assert limiter(runtime) is before
        runtime.reload_sync(settings(double, rate_limits={"openai-compatible": (2.0, None)}))
        assert limiter(runtime) is not before


def test_ask_user_has_the_patience_of_the_new_settings() -> None:
    async def never(_: UserQuestion) -> str:
        await asyncio.sleep(600)
        return "yes"

    turns = [Turn(calls=(Call("ask_user", {"question": "Well?"}),)), SAYS]
    with WireDouble(turns) as double:
        before = settings(double, approval_timeout_seconds=600.0)
        with Runtime(before, ask_user=never) as runtime:
            runtime.reload_sync(settings(double, approval_timeout_seconds=0.05), tools=[])
            assert str(runtime.ask_sync("Rain?")) == "It rains."
            told = next(each for each in double.traffic().bodies[1]["messages"] if each["role"] == "tool")
            assert "timed_out" in told["content"]

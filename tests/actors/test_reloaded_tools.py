"""A tool that is replaced while the runtime runs, by one of its name with another contract; real children."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest

from callboard import Runtime, Settings, Tool, tool
from callboard.actors.calls.registry import FAILURE_BUDGET
from callboard.actors.kernel import ActorInfo
from callboard.actors.requests.direct_calls import CallResult
from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import Risk
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]
HOST = os.getpid()
TEXT = "Say where it runs."


def script(request: ModelRequest) -> ScriptedTurn:
    """As many calls of `f` in one turn as the question says, then one more for each "again", then the results."""
    told = [each for each in request.messages if isinstance(each, ToolMessage)]
    question = next(each.text for each in reversed(request.messages) if isinstance(each, UserMessage))
    calls, _, again = question.partition(" ")
    if isinstance(request.messages[-1], UserMessage):
        return ScriptedTurn(calls=tuple(ScriptedCall("f", {}) for _ in range(int(calls))))
    if again and len(told) == int(calls):
        return ScriptedTurn(calls=(ScriptedCall("f", {}),))
    return ScriptedTurn(" | ".join(each.content for each in told))


SETTINGS = Settings(model="scripted/x", script=script)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(SETTINGS) as runtime:
        yield runtime


def where() -> str:
    """Where it runs: in the host's process or not, and on which kind of thread."""
    kind = "main" if threading.current_thread() is threading.main_thread() else threading.current_thread().name
    return f"{os.getpid() == HOST} {kind.rstrip('0123456789')}"


def named_f(function: Callable[..., Any], **options: Any) -> Tool[..., Any]:
    make: Any = tool
    made: Tool[..., Any] = make(**{"name": "f", "description": TEXT, **options})(function)
    return made


async def where_async() -> str:
    return where()


def runs_in(isolation: str, **options: Any) -> Tool[..., Any]:
    return named_f(where_async if isolation == "task" else where, isolation=isolation, **options)


def below_root(runtime: Runtime) -> dict[str, ActorInfo]:
    return {each.name.removeprefix("root/"): each for each in runtime.tree()[0].children}


def pools(runtime: Runtime) -> set[str]:
    return {each.name.removeprefix("root/tools/") for each in below_root(runtime)["tools"].children}


def asked(runtime: Runtime, question: str, **options: Any) -> tuple[threading.Thread, list[str]]:
    """The question, on a thread, and where its answer comes."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(runtime.ask_sync(question, **options).text))
    thread.start()
    return thread, answers


class Gate:
    """A tool called f whose calls say that they have begun, then wait."""

    def __init__(self, **options: Any) -> None:
        self.let_go = threading.Event()
        self.begun = 0
        self.most = 0
        self._running = 0
        self._lock = threading.Lock()
        self.tool = named_f(self._run, isolation="thread", **options)

    def _run(self) -> str:
        with self._lock:
            self.begun += 1
            self._running += 1
            self.most = max(self.most, self._running)
        assert self.let_go.wait(30)
        with self._lock:
            self._running -= 1
        return "gate"


RUNS = {"process": "False main", "thread": "True callboard-tool", "task": "True callboard-tools-"}


def test_a_tool_runs_where_its_new_contract_says_and_its_old_pool_goes(runtime: Runtime, until: Until) -> None:
    for before, after in permutations(RUNS, 2):
        for isolation in (before, after):
            runtime.reload_sync(SETTINGS, [runs_in(isolation)])
            assert runtime.ask_sync("1").text == RUNS[isolation], (before, after)
        until(lambda: {each.partition("-")[0] for each in pools(runtime)} == {after})  # noqa: B023


def test_latency_and_reuse_move_it_too(runtime: Runtime, until: Until) -> None:
    for options, pool in (
        ({}, "process-short"),
        ({"latency": "long"}, "process-long"),
        ({"reuse": True}, "process-short-reuse"),
        ({}, "process-short-2"),
    ):
        runtime.reload_sync(SETTINGS, [runs_in("process", **options)])
        assert runtime.ask_sync("1").text == RUNS["process"]
        until(lambda: pools(runtime) == {pool})  # noqa: B023


def test_a_pool_that_comes_back_goes_on_at_further_reloads(runtime: Runtime, until: Until) -> None:
    for tools in ([runs_in("process")], [], [runs_in("process")]):
        runtime.reload_sync(SETTINGS, tools)
        if tools:
            assert runtime.ask_sync("1").text == RUNS["process"]
        else:
            until(lambda: not pools(runtime))
    source = runtime._running.system.ref("root/tools/process-short-2/source")  # type: ignore[union-attr]
    for _ in range(3):
        runtime.reload_sync(SETTINGS, tools)
        assert runtime.ask_sync("2 again").text == " | ".join([RUNS["process"]] * 3)
    assert pools(runtime) == {"process-short-2"}
    assert source.is_alive()


def test_more_calls_run_at_once_where_the_new_contract_allows_it(runtime: Runtime, until: Until) -> None:
    for concurrency in (1, 8, 2):
        gate = Gate(concurrency=concurrency)
        runtime.reload_sync(SETTINGS, [gate.tool])
        thread, answers = asked(runtime, "8")
        until(lambda: gate.begun == concurrency)  # noqa: B023
        gate.let_go.set()
        thread.join(30)
        assert answers == [" | ".join(["gate"] * 8)]
        assert gate.most <= concurrency


def test_a_call_that_has_begun_counts_and_what_waits_runs_by_the_new_contract(runtime: Runtime, until: Until) -> None:
    gate = Gate(concurrency=1)
    runtime.reload_sync(SETTINGS, [gate.tool])
    thread, answers = asked(runtime, "3")
    until(lambda: gate.begun == 1)
    runtime.reload_sync(SETTINGS, [runs_in("process", concurrency=1)])
    other, more = asked(runtime, "1")
    until(lambda: len(runtime.open_requests()) == 2)
    assert (answers, more) == ([], []), "a tool that may run once at a time still runs"
    gate.let_go.set()
    for each in (thread, other):
        each.join(30)
    process = RUNS["process"]
    assert (answers, more) == ([f"gate | {process} | {process}"], [process])
    until(lambda: pools(runtime) == {"process-short"})


def test_what_waits_for_a_tool_that_is_gone_is_refused(runtime: Runtime, until: Until) -> None:
    gate = Gate(concurrency=1)
    runtime.reload_sync(SETTINGS, [gate.tool])
    thread, answers = asked(runtime, "2")
    until(lambda: gate.begun == 1)
    runtime.reload_sync(SETTINGS, [])
    gate.let_go.set()
    thread.join(30)
    assert answers[0].startswith("gate | ")
    assert "taken away" in answers[0]
    assert runtime.ask_sync("1").text.count("no tool named") == 1
    assert not pools(runtime)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"risk": "execute"}, "its risk (read, now execute)"),
        ({"effect": "repeat"}, "its effect (once, now repeat)"),
        ({"needs_approval": True}, "its needs_approval (False, now True)"),
        ({"trusted": True}, "its is_trusted (False, now True)"),
        ({"description": "Another."}, "its description or its parameters"),
    ],
)
def test_a_request_does_not_run_what_it_has_not_judged(
    runtime: Runtime, until: Until, now: dict[str, Any], told: str
) -> None:
    """Its next call of the tool is refused, and so is one that waits; the next request is asked with the new tool."""
    gate = Gate(concurrency=1, risk="read")
    runtime.reload_sync(SETTINGS, [gate.tool])
    thread, answers = asked(runtime, "2 again")
    until(lambda: gate.begun == 1)
    runtime.reload_sync(SETTINGS, [named_f(gate._run, **{"isolation": "thread", "risk": "read", **now})])
    gate.let_go.set()
    thread.join(30)
    first, *others = answers[0].split(" | ")
    assert first == "gate"
    assert len(others) == 2
    assert all(told in each and "has changed since this request began" in each for each in others)
    assert gate.begun == 1
    offers = {each.definition.name: each.contract.risk for each in runtime.tools()}
    assert offers == {"f": Risk(now.get("risk", "read"))}


def test_a_shorter_time_holds_for_requests_that_run_and_a_longer_one_for_the_next(
    runtime: Runtime, until: Until
) -> None:
    gate = Gate(timeout=30)
    runtime.reload_sync(SETTINGS, [gate.tool])
    thread, answers = asked(runtime, "1 again")
    until(lambda: gate.begun == 1)
    endless = Gate(timeout=0.05)
    runtime.reload_sync(SETTINGS, [endless.tool])
    gate.let_go.set()
    thread.join(30)
    endless.let_go.set()
    assert "timed_out" in answers[0]
    runtime.reload_sync(SETTINGS, [gate.tool])
    assert runtime.ask_sync("1").text == "gate"


def test_a_dispatcher_that_is_started_again_has_the_tools_of_the_last_reload(runtime: Runtime, until: Until) -> None:
    runtime.reload_sync(SETTINGS, [runs_in("thread")])
    assert runtime.ask_sync("1").text == RUNS["thread"]
    runtime.reload_sync(SETTINGS, [runs_in("process")])
    runtime.restart_actor("root/dispatcher")
    until(lambda: below_root(runtime)["dispatcher"].restarts == 1)
    assert runtime.ask_sync("1").text == RUNS["process"]


def test_questions_bring_tools_of_one_name_at_the_same_time(runtime: Runtime, until: Until) -> None:
    gate = Gate(concurrency=1)
    thread, answers = asked(runtime, "1", tools=[gate.tool])
    until(lambda: gate.begun == 1)
    for isolation, place in RUNS.items():
        assert runtime.ask_sync("1", tools=[runs_in(isolation, concurrency=1)]).text == place
    runtime.reload_sync(SETTINGS, [])
    gate.let_go.set()
    thread.join(30)
    assert answers == ["gate"], "a question keeps what it has brought"

    def are_gone() -> bool:
        runtime.reload_sync(SETTINGS, [])
        return not pools(runtime)

    until(are_gone)


async def test_a_tool_of_the_hosts_loop_moves_as_well() -> None:
    @tool(name="f", isolation="caller")
    async def on_the_hosts_loop() -> bool:
        return asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()
    async with Runtime(SETTINGS, tools=[runs_in("task")]) as runtime:
        assert (await runtime.ask("1")).text == RUNS["task"]
        await runtime.reload(SETTINGS, [on_the_hosts_loop])
        assert (await runtime.ask("1")).text == "true"
        await runtime.reload(SETTINGS, [runs_in("thread")])
        assert (await runtime.ask("1")).text == RUNS["thread"]


def test_nothing_holds_a_tool_that_was_replaced(runtime: Runtime, until: Until) -> None:
    gone: list[weakref.ref[Tool[..., Any]]] = []
    for isolation in ("process", "thread", "task", "process"):
        for _ in range(3):
            replaced = runs_in(isolation)
            gone.append(weakref.ref(replaced))
            gone.append(weakref.ref(replaced.owned))
            runtime.reload_sync(SETTINGS.model_copy(), [replaced])
            del replaced
            runtime.ask_sync("1")
    runtime.reload_sync(SETTINGS, [])

    def are_gone() -> bool:
        gc.collect()
        return not any(each() for each in gone)

    until(are_gone)


def test_call_tool_goes_by_the_new_contract(runtime: Runtime) -> None:
    def result() -> CallResult:
        return asyncio.run(runtime.call_tool("f"))

    runtime.reload_sync(SETTINGS, [runs_in("thread")])
    assert result().content == RUNS["thread"]
    runtime.reload_sync(SETTINGS, [runs_in("process")])
    assert result().content == RUNS["process"]


def test_a_tool_that_was_withdrawn_and_is_mended_is_offered_again(runtime: Runtime) -> None:
    def breaks() -> str:
        os._exit(1)

    runtime.reload_sync(SETTINGS, [named_f(breaks)])
    for _ in range(FAILURE_BUDGET + 1):
        assert "crashed" in runtime.ask_sync("1").text
    assert not runtime.offered()
    runtime.reload_sync(SETTINGS, [runs_in("process")])
    assert runtime.ask_sync("1").text == RUNS["process"]

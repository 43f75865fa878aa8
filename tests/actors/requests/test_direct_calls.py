"""`Runtime.call_tool`: a call without a model, in a real runtime."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import pytest

from callboard import (
    AskApproval,
    CallResult,
    Deferred,
    Runtime,
    ToolContext,
    ToolProgressed,
    UsageError,
    tool,
)
from callboard.protocol.tools import FailureCode

WHO = ContextVar("WHO", default="no one")
BEGUN = threading.Event()


@tool(risk="read")
def add(a: int, b: int = 2) -> dict[str, int]:
    return {"sum": a + b}


@tool(risk="write")
async def write(text: str) -> str:
    return f"{WHO.get()} wrote {text}"


@tool(timeout=0.2)
async def slow(context: ToolContext) -> str:
    context.progress("waiting", 0.5)
    await asyncio.sleep(60)
    return "never"


@tool
async def endless() -> str:
    BEGUN.set()
    await asyncio.Event().wait()
    return "never"


@tool
def dies() -> str:
    os._exit(3)


@tool
async def asks(context: ToolContext) -> str | Deferred:
    return Deferred(600.0)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with Runtime(tools=[add, write, slow, endless, dies, asks], approve=allowed) as running:
        yield running


def allowed(question: AskApproval) -> bool:
    return WHO.get() == "Ann"


def code(result: CallResult) -> FailureCode | None:
    return None if result.failure is None else result.failure.code


async def test_a_result_is_what_a_model_would_read(runtime: Runtime) -> None:
    result = await runtime.call_tool("add", {"a": 1})
    assert (result.ok, result.content, result.data, result.failure) == (True, '{"sum":3}', {"sum": 3}, None)
    assert (result.name, bool(result.request_id)) == ("add", True)


async def test_failures_are_results(runtime: Runtime) -> None:
    wrong = await runtime.call_tool("add", {"a": "x", "c": 1})
    assert code(wrong) is FailureCode.INVALID_ARGUMENTS
    assert isinstance(wrong.data, dict)
    assert (wrong.data["ok"], wrong.data["field"]) == (False, "a")
    assert code(await runtime.call_tool("nothing")) is FailureCode.UNKNOWN_TOOL
    assert code(await runtime.call_tool("dies")) is FailureCode.CRASHED
    late = await runtime.call_tool("slow")
    assert code(late) is FailureCode.TIMED_OUT
    assert late.failure is not None
    assert "deadline" in late.failure.message


async def test_the_policy_asks_in_the_callers_context(runtime: Runtime) -> None:
    denied = await runtime.call_tool("write", {"text": "x"})
    assert code(denied) is FailureCode.DENIED
    WHO.set("Ann")
    granted = await runtime.call_tool("write", {"text": "x"})
    assert granted.content == "Ann wrote x"


async def test_progress_is_told_on_the_callers_loop(runtime: Runtime) -> None:
    heard: list[tuple[ToolProgressed, bool]] = []
    here = threading.get_ident()
    await runtime.call_tool("slow", on_progress=lambda made: heard.append((made, threading.get_ident() == here)))
    assert [(made.message, made.fraction, is_here) for made, is_here in heard] == [("waiting", 0.5, True)]


async def test_cancelling_the_waiting_task_cancels_the_call(
    runtime: Runtime, until: Callable[[Callable[[], bool]], None]
) -> None:
    BEGUN.clear()
    calling = asyncio.ensure_future(runtime.call_tool("endless"))
    await asyncio.to_thread(BEGUN.wait, 20)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await asyncio.to_thread(until, lambda: runtime.metrics().count("callboard.requests.open") == 0)


async def test_a_call_that_is_cancelled_by_its_name_has_a_failure(runtime: Runtime) -> None:
    BEGUN.clear()
    calling = asyncio.ensure_future(runtime.call_tool("endless", request_id="mine"))
    await asyncio.to_thread(BEGUN.wait, 20)
    assert runtime.cancel("mine", "enough")
    result = await calling
    assert code(result) is FailureCode.CANCELLED
    assert result.request_id == "mine"


async def test_a_deferred_call_is_completed_from_outside(
    runtime: Runtime, until: Callable[[Callable[[], bool]], None]
) -> None:
    calling = asyncio.ensure_future(runtime.call_tool("asks", request_id="later"))
    await asyncio.to_thread(until, lambda: runtime.complete_call("later", 1, "call", "from outside"))
    assert (await calling).content == "from outside"


async def test_many_calls_at_the_same_time(runtime: Runtime) -> None:
    results = await asyncio.gather(*(runtime.call_tool("add", {"a": number}) for number in range(50)))
    assert [result.data for result in results] == [{"sum": number + 2} for number in range(50)]


async def test_a_runtime_that_stops_ends_its_calls() -> None:
    async with Runtime(tools=[endless]) as stopping:
        BEGUN.clear()
        calling = asyncio.ensure_future(stopping.call_tool("endless"))
        await asyncio.to_thread(BEGUN.wait, 20)
    assert code(await calling) is FailureCode.CANCELLED


async def test_what_was_called_wrongly_is_said_before_anything_is_sent(runtime: Runtime) -> None:
    before = runtime.statistics().sent
    with pytest.raises(UsageError, match="call_tool needs the name of a tool, not 3"):
        await runtime.call_tool(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="add: arguments must be a mapping of names to values, not list"):
        await runtime.call_tool("add", [1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="add: the arguments cannot be written as JSON"):
        await runtime.call_tool("add", {"a": object()})
    with pytest.raises(UsageError, match="there is no option 'model'; there are timeout, approval_timeout"):
        await runtime.call_tool("add", {"a": 1}, model="x/y")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="timeout"):
        await runtime.call_tool("add", {"a": 1}, timeout=-1)
    assert runtime.statistics().sent == before


async def test_no_model_is_counted(runtime: Runtime) -> None:
    await runtime.call_tool("add", {"a": 1})
    shown = str(runtime.metrics())
    assert "callboard.tool.calls{tool=add, outcome=ok}" in shown
    assert "gen_ai.client.token.usage" not in shown
    assert "cost" not in shown


async def test_a_stopped_runtime_calls_nothing() -> None:
    with pytest.raises(UsageError, match="not running"):
        await Runtime(tools=[add]).call_tool("add", {"a": 1})

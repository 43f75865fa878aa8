"""Context travels with the request: 200 of them, staggered, from tasks and threads, and none sees another's."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import attach
from opentelemetry.sdk.trace import TracerProvider
from support.tracing import SpansInMemory

from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import ToolContext, tool
from callboard.protocol.commands import AskApproval
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

REQUESTS = 200
OWNER: ContextVar[str] = ContextVar("owner", default="nobody")
SEEN: Counter[tuple[str, bool]] = Counter()
"""How often the owner was right, or wrong, by place."""


def see(place: str, request_id: str) -> None:
    SEEN[place, OWNER.get() == request_id] += 1


@tool
async def on_a_task(context: ToolContext) -> str:
    see("task tool", context.tag.request_id)
    await asyncio.sleep(0)
    see("task tool after a wait", context.tag.request_id)
    OWNER.set("changed by a tool")
    return "ok"


@tool(isolation="thread", concurrency=16)
def on_a_thread(context: ToolContext) -> str:
    see("thread tool", context.tag.request_id)
    OWNER.set("changed by a tool")
    return "ok"


@tool(risk="write")
async def asked_for(context: ToolContext) -> str:
    return "ok"


async def approve(question: AskApproval) -> bool:
    see("async approval", question.tag.request_id)
    await asyncio.sleep(0)
    see("async approval after a wait", question.tag.request_id)
    return True


def approve_blocking(question: AskApproval) -> bool:
    see("sync approval", question.tag.request_id)
    return True


def script(request: ModelRequest) -> ScriptedTurn:
    number = int(str(request.messages[-1] if len(request.messages) == 1 else request.messages[0]).split("#")[1][:3])
    if any(isinstance(message, ToolMessage) for message in request.messages):
        return ScriptedTurn("done", first_delay_seconds=(number * 13 % 7) / 1_000)
    calls = tuple(ScriptedCall(name) for name in ("on_a_task", "on_a_thread", "asked_for"))
    return ScriptedTurn(calls=calls, first_delay_seconds=(number * 17 % 11) / 1_000)


@pytest.fixture
def records() -> Any:
    """Looks at the context in which the records of requests are made, as a logging filter of the host's would."""
    logger = logging.getLogger("callboard")
    handler = logging.Handler(logging.INFO)

    def emit(record: logging.LogRecord) -> None:
        if request_id := getattr(record, "request_id", ""):
            see("log record", request_id)

    handler.emit = emit  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("approver", [approve, approve_blocking])
def test_two_hundred_staggered_requests_and_none_sees_anothers_context(records: None, approver: Any) -> None:
    SEEN.clear()
    spans, hosts = SpansInMemory(), TracerProvider().get_tracer("host")
    traces: dict[str, int] = {}

    def begin(number: int) -> tuple[str, str]:
        name = f"request-{number}"
        OWNER.set(name)
        span = hosts.start_span(name)
        attach(trace.set_span_in_context(span))
        traces[name] = span.get_span_context().trace_id
        return name, f"go #{number:03}"

    async def ask(runtime: Runtime, number: int) -> None:
        name, text = begin(number)
        for _ in range(number * 7 % 13):
            await asyncio.sleep(0)
        if number % 4:
            await runtime.ask(text, request_id=name)
        else:
            async for _ in runtime.stream(text, request_id=name):
                see("reader of a stream", name)

    def ask_sync(runtime: Runtime, number: int) -> None:
        name, text = begin(number)
        runtime.ask_sync(text, request_id=name)

    async def main() -> None:
        runtime = Runtime(
            Settings(model="scripted/model", script=script), (on_a_task, on_a_thread, asked_for), approve=approver
        )
        spans.trace(runtime)
        async with runtime:
            threads = [threading.Thread(target=ask_sync, args=(runtime, number)) for number in range(0, REQUESTS, 2)]
            for thread in threads:
                thread.start()
            async with asyncio.TaskGroup() as group:
                for number in range(1, REQUESTS, 2):
                    group.create_task(ask(runtime, number), context=contextvars.copy_context())
            for thread in threads:
                await asyncio.to_thread(thread.join)

    asyncio.run(main())
    for span in spans.finished():
        assert span.attributes is not None
        assert span.context is not None
        SEEN["span", span.context.trace_id == traces[str(span.attributes["callboard.request_id"])]] += 1
    check()


def check() -> None:
    assert {place: count for (place, right), count in SEEN.items() if not right} == {}
    right = {place: count for (place, right), count in SEEN.items() if right}
    for place in ("task tool", "task tool after a wait", "thread tool"):
        assert right[place] == REQUESTS
    assert right["log record"] >= REQUESTS * 6
    assert right["span"] == REQUESTS * 7, "the request, two model calls, three tools and the approval of one"
    approvals = [count for place, count in right.items() if "approval" in place]
    assert set(approvals) == {REQUESTS}

"""Progress of calls, in a real runtime: from processes, tasks, threads and outside, to the reader of the stream."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import orjson
import pytest

from callboard import (
    Deferred,
    RequestEnded,
    Runtime,
    Settings,
    ToolCallDeferred,
    ToolContext,
    ToolProgressed,
    UsageError,
    tool,
)
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import Answer, EventReader
from callboard.actors.testing.tool_stage import ToolStage
from callboard.protocol.commands import ReportFailure
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import ToolCallCompleted, ToolCallEnd, ToolCallStarted
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import MAX_PROGRESS_BYTES, PROGRESS_PAUSE_SECONDS
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: For what a test waits for: longer than a loaded machine takes.
PATIENCE_SECONDS = 20.0
STEPS = 5


def _say(context: ToolContext) -> str:
    for step in range(1, STEPS + 1):
        context.progress(f"step {step}", step / STEPS)
    return "done"


@tool
def in_process(context: ToolContext) -> str:
    return _say(context)


@tool(isolation="thread")
def in_thread(context: ToolContext) -> str:
    return _say(context)


@tool
async def in_task(context: ToolContext) -> str:
    return _say(context)


@tool
def floods(context: ToolContext) -> str:
    for number in range(200_000):
        context.progress("x" * 5_000, number / 200_000)
    context.progress("the last", 1.0)
    return "done"


@tool(isolation="thread")
def floods_from_a_thread(context: ToolContext) -> str:
    for number in range(200_000):
        context.progress("x" * 5_000, number / 200_000)
    context.progress("the last", 1.0)
    return "done"


@tool
def wrong(fraction: str, context: ToolContext) -> str:
    context.progress("so far", float(fraction))
    return "done"


@tool
async def any_result() -> Deferred:
    return Deferred(600.0)


TOOLS = {each.name: each for each in (in_process, in_thread, in_task)}


def settings_for(*calls: ScriptedCall, **more: Any) -> Settings:
    def script(request: ModelRequest) -> ScriptedTurn:
        results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
        return ScriptedTurn(" ".join(results)) if results else ScriptedTurn(calls=calls)

    return Settings(model="scripted/model", script=script, **more)


async def read(runtime: Runtime) -> list[Any]:
    async with asyncio.timeout(PATIENCE_SECONDS * 2):
        return [event async for event in runtime.stream("go")]


@pytest.mark.parametrize("name", TOOLS)
async def test_the_reader_of_a_stream_sees_it_before_the_end_of_the_call(name: str) -> None:
    async with Runtime(settings_for(ScriptedCall(name, {})), tools=[TOOLS[name]]) as runtime:
        seen = await read(runtime)
    shown = [event for event in seen if isinstance(event, ToolProgressed)]
    assert (shown[-1].message, shown[-1].fraction) == (f"step {STEPS}", 1.0), "the last, whatever was left out"
    fractions = [event.fraction for event in shown]
    assert fractions == sorted(set(fractions))
    kinds = [type(event) for event in seen if isinstance(event, ToolCallStarted | ToolProgressed | ToolCallEnd)]
    assert kinds == [ToolCallStarted, *[ToolProgressed] * len(shown), ToolCallCompleted]
    assert {event.tag.call_id for event in shown} == {seen[-1].steps[0].calls[0].call_id}
    assert "step" not in seen[-1].text, "the model reads nothing of it"
    assert all("step" not in str(message) for message in seen[-1].messages)


@pytest.mark.parametrize("flooding", [floods, floods_from_a_thread], ids=["process", "thread"])
async def test_a_flood_is_cut_to_some_a_second_and_slows_no_one(flooding: Any) -> None:
    calls = (ScriptedCall(flooding.name, {}),)
    async with Runtime(settings_for(*calls), tools=[flooding]) as runtime:
        began = time.monotonic()
        seen = await read(runtime)
        seconds = time.monotonic() - began
    shown = [event for event in seen if isinstance(event, ToolProgressed)]
    assert shown[-1].message == "the last"
    assert len(shown) <= seconds / PROGRESS_PAUSE_SECONDS + 3
    assert all(len(event.message) <= MAX_PROGRESS_BYTES for event in shown)
    assert seen[-1].text == "done"


async def test_without_a_reader_nothing_of_it_leaves_the_tool() -> None:
    received: list[object] = []

    @tool(isolation="thread")
    def looks(context: ToolContext) -> str:
        context.progress("half", 0.5)
        received.append((context.is_read_along, context._report is not None))
        return "done"

    async with Runtime(settings_for(ScriptedCall("looks", {})), tools=[looks]) as runtime:
        assert (await runtime.ask("go")).text == "done"
        await read(runtime)
    assert received == [(False, False), (True, True)]


@pytest.mark.parametrize("fraction", ["nan", "inf", "-0.1", "1.1"])
async def test_a_fraction_that_is_none_is_an_error_of_the_tool(fraction: str) -> None:
    async with Runtime(settings_for(ScriptedCall("wrong", {"fraction": fraction})), tools=[wrong]) as runtime:
        told = orjson.loads((await runtime.ask("go")).text)
    assert told["code"] == "tool_error"
    assert "fraction must be a number from 0 to 1" in told["message"]


async def test_progress_from_outside() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        shown: list[ToolProgressed] = []
        seen_two = asyncio.Event()
        deferred: asyncio.Future[Tag] = asyncio.get_running_loop().create_future()

        async def follow() -> Any:
            last = None
            async for last in runtime.stream("go"):
                if isinstance(last, ToolCallDeferred):
                    deferred.set_result(last.tag)
                if isinstance(last, ToolProgressed):
                    shown.append(last)
                    if len(shown) == 2:
                        seen_two.set()
            return last

        following = asyncio.ensure_future(follow())
        async with asyncio.timeout(PATIENCE_SECONDS):
            tag = await deferred
            ids = (tag.request_id, tag.step, tag.call_id)
            assert runtime.report_progress(*ids, "printing", 0.25)
            assert runtime.report_progress(*ids, fraction=0.5)
            with pytest.raises(UsageError, match="fraction must be"):
                runtime.report_progress(*ids, "x", float("nan"))
            await seen_two.wait()
            assert runtime.complete_call(*ids, "printed")
            assert (await following).text == "printed"
        assert not runtime.report_progress(*ids, "after the end")
    assert [(each.message, each.fraction) for each in shown] == [("printing", 0.25), ("", 0.5)]


async def test_the_last_is_shown_before_the_end_of_a_call_that_is_cancelled() -> None:
    seen: list[Any] = []

    async def read(runtime: Runtime) -> None:
        async for event in runtime.stream("go"):
            seen.append(event)
            if isinstance(event, ToolCallDeferred):
                ids = (event.tag.request_id, event.tag.step, event.tag.call_id)
                assert runtime.report_progress(*ids, "first")
                assert runtime.report_progress(*ids, "last")
                assert runtime.cancel(event.tag.request_id)

    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        with pytest.raises(RequestEnded):
            await read(runtime)
    told = [each for each in seen if isinstance(each, ToolProgressed | ReportFailure)]
    assert [type(each) for each in told[-2:]] == [ToolProgressed, ReportFailure]
    assert told[-2].message == "last"


async def test_after_the_end_of_its_call_it_is_ignored() -> None:
    """A thread that a tool has left behind, or that outlived its call, goes on talking."""
    contexts: list[ToolContext] = []

    @tool(isolation="thread")
    def keeps(context: ToolContext) -> str:
        contexts.append(context)
        context.progress("inside", 0.5)
        return "done"

    async with Runtime(settings_for(ScriptedCall("keeps", {})), tools=[keeps]) as runtime:
        seen = await read(runtime)
        contexts[0].progress("outside", 1.0)
        again = await read(runtime)
        contexts[0].progress("outside", 1.0)
    shown = [event.message for event in (*seen, *again) if isinstance(event, ToolProgressed)]
    assert shown == ["inside", "inside"]


@tool
def forks_and_talks(context: ToolContext) -> str:
    child = os.fork()
    if not child:
        context.progress("from a copy of the process", 0.1)
        os._exit(0)
    os.waitpid(child, 0)
    threads = [threading.Thread(target=_talk, args=(context, number)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    context.progress("own", 1.0)
    return "done"


def _talk(context: ToolContext, number: int) -> None:
    for step in range(2_000):
        context.progress(f"thread {number} " + "y" * 200, step / 2_000)


def test_threads_and_forks_of_a_process_tool_do_not_break_its_frames() -> None:
    with ToolStage() as stage:
        call = stage.start(forks_and_talks, "{}")
        event = call.wait()
    assert isinstance(event, ToolCallCompleted)
    assert event.content == "done"
    said = [each.message for each in call.progress]
    assert said[-1] == "own"
    assert not [message for message in said if message.startswith("from a copy")]


@tool
def writes_frames(context: ToolContext) -> str:
    """A tool that writes well-formed frames of its own, as fast as it can."""
    import struct  # noqa: PLC0415 - in the child

    body = struct.pack("!IB?", 1, 3, False) + b'{"message":"m","fraction":0.5}'
    frames = (struct.pack("!I", len(body)) + body) * 1_000
    for _ in range(50):
        os.write(3, frames)
    return "done"


def test_a_child_that_speaks_without_end_is_read_from_a_timer() -> None:
    with ToolStage() as stage:
        event = stage.start(writes_frames, "{}", timeout_seconds=PATIENCE_SECONDS).wait()
    assert isinstance(event, ToolCallCompleted)


def test_of_unread_progress_the_latest_is_kept() -> None:
    """One who does not read for an hour does not lose the request for it."""

    class Unread(EventReader[str]):
        def _notify(self) -> None:
            """No one reads."""

    tag = Tag(RequestId("r"), MessageId("m"), 1)
    conversation = Conversation()
    conversation.take(tag.request_id)
    cancelled: list[object] = []
    reader = Unread(Answer(conversation, tag, 60.0), lambda *why: cancelled.append(why))
    for number in range(50_000):
        reader(ToolProgressed(tag, float(number), "x" * MAX_PROGRESS_BYTES, 0.5))
    assert not cancelled
    [last] = reader._take()
    assert isinstance(last, ToolProgressed)
    assert last.at == 49_999.0

"""Calls whose results come from outside, in a real runtime: tools in processes, tasks and threads, webhooks, people."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from callboard import Deferred, RequestEnded, Runtime, Settings, ToolCallDeferred, ToolContext, UsageError, tool
from callboard.actors.kernel import DeadLetterReason
from callboard.actors.requests import backstop
from callboard.actors.requests.outside import ResolveCall
from callboard.protocol.commands import Outcome
from callboard.protocol.content import ToolMessage, history_faults
from callboard.protocol.errors import RuntimeFailure
from callboard.protocol.events import ToolCallEnd
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_RESULT_BYTES
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: Of each test that waits for something: longer than a loaded machine takes.
PATIENCE_SECONDS = 20.0


@tool(concurrency=1)
def in_process(job: str) -> dict[str, int] | Deferred:
    return Deferred(600.0, note=job)


@tool(concurrency=1)
async def in_task(job: str) -> dict[str, int] | Deferred:
    await asyncio.sleep(0)
    return Deferred(600.0, note=job)


@tool(isolation="thread", concurrency=1)
def in_thread(job: str) -> dict[str, int] | Deferred:
    return Deferred(600.0, note=job)


@tool
async def any_result() -> Deferred:
    return Deferred(600.0)


@tool
async def impatient() -> Deferred:
    return Deferred(0.1)


@tool(risk="write")
async def write() -> str:
    return "written"


@tool
async def block() -> str:
    await asyncio.Event().wait()
    return ""


ISOLATIONS = {each.name: each for each in (in_process, in_task, in_thread)}


def calling(*calls: ScriptedCall) -> Any:
    """The model asks for these calls, and then answers with the results that it was sent."""

    def script(request: ModelRequest) -> ScriptedTurn:
        results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
        return ScriptedTurn(" ".join(results)) if results else ScriptedTurn(calls=calls)

    return script


def settings_for(*calls: ScriptedCall, **more: Any) -> Settings:
    return Settings(model="scripted/model", script=calling(*calls), **more)


async def until_true(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - what the runtime does on its own threads sets no event of this loop
            await asyncio.sleep(0.005)


class Reader:
    """Reads a stream on a task, so that what was read can be looked at meanwhile."""

    def __init__(self, stream: Any) -> None:
        self.seen: list[Any] = []
        self._read = asyncio.ensure_future(self._all(stream))

    async def _all(self, stream: Any) -> None:
        async for event in stream:
            self.seen.append(event)

    async def until(self, kind: type[Any], count: int = 1) -> list[Any]:
        await until_true(lambda: len(self.all(kind)) >= count or self._read.done())
        return self.all(kind)

    def all(self, kind: Any) -> list[Any]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def end(self) -> Any:
        """What came last. Raises what the stream raises."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._read
        return self.seen[-1]


def ids(tag: Tag) -> tuple[str, int, str]:
    return tag.request_id, tag.step, tag.call_id


@pytest.mark.parametrize("name", ISOLATIONS)
async def test_a_call_ends_with_the_result_from_outside_and_holds_no_worker_meanwhile(name: str) -> None:
    """One call of the tool may run at a time, in one process: all three are open, since none of them runs."""
    calls = [ScriptedCall(name, {"job": job}) for job in ("a", "b", "c")]
    async with Runtime(settings_for(*calls, process_workers=1), tools=[ISOLATIONS[name]]) as runtime:
        reader = Reader(runtime.stream("go"))
        events = await reader.until(ToolCallDeferred, 3)
        assert [(event.timeout_seconds, event.note) for event in events] == [(600.0, "a"), (600.0, "b"), (600.0, "c")]
        for pages, event in reversed([*enumerate(events, 1)]):
            assert runtime.complete_call(*ids(event.tag), {"pages": pages})
        reply = await reader.end()
    assert reply.text == '{"pages":1} {"pages":2} {"pages":3}', "in the order of the calls"
    assert not history_faults(reply.messages)
    assert [type(end).__name__ for end in reader.all(ToolCallEnd)] == ["ToolCallCompleted"] * 3


async def test_from_any_thread_and_once() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        taken = await asyncio.gather(
            *(asyncio.to_thread(runtime.complete_call, *ids(event.tag), number) for number in range(20))
        )
        reply = await reader.end()
        assert sum(taken) == 1
        assert reply.text == str(taken.index(True)), "the one that was taken"
        letters = [each for each in runtime.dead_letters() if "Call" in type(each.message).__name__]
        assert len(letters) >= 19
        assert all(each.note or each.reason is not DeadLetterReason.REJECTED for each in letters)


async def test_what_there_is_no_call_for_is_a_dead_letter_with_the_reason() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        reader = Reader(runtime.stream("go", request_id="mine"))
        [event] = await reader.until(ToolCallDeferred)
        step, call_id = event.tag.step, event.tag.call_id
        assert not runtime.complete_call("another", step, call_id, 1)
        assert not runtime.complete_call("mine", step + 1, call_id, 1)
        assert not runtime.complete_call("mine", step, "unknown", 1)
        assert not runtime.fail_call("another", step, call_id, "no")
        assert not runtime.report_progress("mine", step, "unknown", "half")
        letters = runtime.dead_letters()
        assert [each.note for each in letters] == [
            "no request with the id 'another' is running",
            "its call has ended, or the request has no such call",
            "its call has ended, or the request has no such call",
            "no request with the id 'another' is running",
            "its call has ended, or the request has no such call",
        ]
        assert runtime.complete_call("mine", step, call_id, 7)
        assert (await reader.end()).text == "7"
        assert not runtime.complete_call("mine", step, call_id, 8), "late"
        statistics = runtime.statistics()
        assert statistics.unaccounted == 0


async def test_fail_call_tells_the_model_why() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        for wrong in ("", " ", 7):
            with pytest.raises(UsageError, match="needs a message"):
                runtime.fail_call(*ids(event.tag), wrong)  # type: ignore[arg-type]
        assert runtime.fail_call(*ids(event.tag), "the printer is out of paper")
        told = orjson.loads((await reader.end()).text)
    assert (told["code"], told["message"]) == ("tool_error", "the printer is out of paper")


@pytest.mark.parametrize(
    ("result", "why"),
    [
        ("not a dict", "did not return what it declares"),
        ({"pages": "many"}, "did not return what it declares"),
        ({"pages": 1, "x" * MAX_RESULT_BYTES: 2}, "at most 1,000,000 can be sent"),
        (Deferred(1.0), "only a tool defers its call"),
    ],
)
async def test_a_result_that_could_not_be_sent_is_refused_and_the_call_stays_open(result: object, why: str) -> None:
    async with Runtime(settings_for(ScriptedCall("in_task", {"job": "x"})), tools=[in_task]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        with pytest.raises(UsageError, match=why):
            runtime.complete_call(*ids(event.tag), result)
        assert runtime.complete_call(*ids(event.tag), {"pages": 3})
        assert (await reader.end()).text == '{"pages":3}'


async def test_a_tool_that_only_one_question_has_may_defer_too() -> None:
    @tool
    async def own() -> int | Deferred:
        return Deferred(60.0)

    async with Runtime(settings_for(ScriptedCall("own", {}))) as runtime:
        reader = Reader(runtime.stream("go", tools=[own]))
        [event] = await reader.until(ToolCallDeferred)
        with pytest.raises(UsageError, match="did not return what it declares"):
            runtime.complete_call(*ids(event.tag), "no number")
        assert runtime.complete_call(*ids(event.tag), 5)
        assert (await reader.end()).text == "5"


async def test_what_cannot_be_written_as_json_is_refused_where_the_tool_declares_nothing() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        for wrong in (object(), float("nan"), {1: object()}):
            with pytest.raises(UsageError, match="JSON"):
                runtime.complete_call(*ids(event.tag), wrong)
        assert runtime.complete_call(*ids(event.tag), [1, None, "ü"])
        assert (await reader.end()).text == '[1,null,"ü"]'


async def test_a_result_may_come_before_the_tool_has_returned() -> None:
    """A webhook can be faster than the tool that has ordered it."""
    hold = threading.Event()

    @tool(isolation="thread")
    def orders(context: ToolContext) -> str | Deferred:
        ordered.append(context.tag)
        hold.wait(PATIENCE_SECONDS)
        return Deferred(60.0)

    ordered: list[Tag] = []
    async with Runtime(settings_for(ScriptedCall("orders", {})), tools=[orders]) as runtime:
        asked = asyncio.ensure_future(runtime.ask("go"))
        await until_true(lambda: ordered)
        assert runtime.complete_call(*ids(ordered[0]), "early")
        assert not runtime.complete_call(*ids(ordered[0]), "twice")
        hold.set()
        assert (await asked).text == "early"


async def test_an_early_result_of_a_tool_that_returns_its_own_is_a_dead_letter() -> None:
    hold = threading.Event()

    @tool(isolation="thread")
    def orders(context: ToolContext) -> str | Deferred:
        ordered.append(context.tag)
        hold.wait(PATIENCE_SECONDS)
        return "its own"

    ordered: list[Tag] = []
    async with Runtime(settings_for(ScriptedCall("orders", {})), tools=[orders]) as runtime:
        asked = asyncio.ensure_future(runtime.ask("go"))
        await until_true(lambda: ordered)
        assert runtime.complete_call(*ids(ordered[0]), "early")
        hold.set()
        assert (await asked).text == "its own"
        await until_true(lambda: any(isinstance(each.message, ResolveCall) for each in runtime.dead_letters()))


async def test_a_deferred_call_has_a_time_of_its_own() -> None:
    async with Runtime(settings_for(ScriptedCall("impatient", {})), tools=[impatient]) as runtime:
        reader = Reader(runtime.stream("go"))
        told = orjson.loads((await reader.end()).text)
        [event] = reader.all(ToolCallDeferred)
        assert not runtime.complete_call(*ids(event.tag), "late")
    assert (told["code"], told["tool"]) == ("timed_out", "impatient")


# -- the time of the request stands still


async def test_the_request_outlives_its_deadline_while_it_waits_for_a_result() -> None:
    async with Runtime(
        settings_for(ScriptedCall("any_result", {}), request_timeout_seconds=2.0), tools=[any_result]
    ) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        resumes_at = event.at + 2.5
        await asyncio.sleep(max(0.0, resumes_at - time.monotonic()))
        assert runtime.complete_call(*ids(event.tag), "after its deadline")
        assert (await reader.end()).text == "after its deadline"


async def test_a_tool_that_hangs_beside_it_makes_the_time_run() -> None:
    calls = (ScriptedCall("any_result", {}), ScriptedCall("block", {}))
    async with Runtime(settings_for(*calls, request_timeout_seconds=0.5), tools=[any_result, block]) as runtime:
        with pytest.raises(RequestEnded) as caught:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await runtime.ask("go")
    assert caught.value.reply.outcome is Outcome.TIMED_OUT
    assert not history_faults(caught.value.reply.messages)


async def test_a_person_may_take_longer_than_the_request() -> None:
    answers: asyncio.Queue[bool] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    async def approve(_: object) -> bool:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answers.get(), loop))

    settings = settings_for(ScriptedCall("write", {}), request_timeout_seconds=2.0)
    async with Runtime(settings, tools=[write], approve=approve) as runtime:
        asked = asyncio.ensure_future(runtime.ask("go"))
        done, _ = await asyncio.wait([asked], timeout=2.5)
        assert not done
        answers.put_nowait(True)
        assert (await asked).text == "written"


async def test_an_approval_that_does_not_come_in_its_time_is_denied() -> None:
    async def approve(_: object) -> bool:
        await asyncio.Event().wait()
        return True

    settings = settings_for(ScriptedCall("write", {}), approval_timeout_seconds=0.1)
    async with Runtime(settings, tools=[write], approve=approve) as runtime:
        told = orjson.loads((await runtime.ask("go")).text)
        assert (told["code"], "was not approved within 0.1 s" in told["message"]) == ("denied", True)
        told = orjson.loads((await runtime.ask("go", approval_timeout=0.2)).text)
        assert "within 0.2 s" in told["message"]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), 604_801])
def test_the_time_for_an_approval_has_bounds(seconds: float) -> None:
    with pytest.raises(UsageError, match="approval_timeout_seconds"):
        Settings(model="scripted/model", approval_timeout_seconds=seconds)
    with Runtime(settings_for()) as runtime, pytest.raises(UsageError, match="approval_timeout"):
        runtime.ask_sync("go", approval_timeout=seconds)


# -- ends


async def test_cancel_and_a_reader_that_leaves_end_what_waits() -> None:
    async with Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]) as runtime:
        reader = Reader(runtime.stream("go", request_id="cancelled"))
        [event] = await reader.until(ToolCallDeferred)
        assert runtime.cancel("cancelled")
        with pytest.raises(RequestEnded) as caught:
            await reader.end()
        assert caught.value.reply.outcome is Outcome.CANCELLED
        assert not history_faults(caught.value.reply.messages)
        assert not runtime.complete_call(*ids(event.tag), "late")

        async with asyncio.timeout(PATIENCE_SECONDS):
            stream = runtime.stream("go", request_id="left")
            iterator = aiter(stream)
            while not isinstance(left := await anext(iterator), ToolCallDeferred):
                pass
            await iterator.aclose()
        await until_true(lambda: "left" not in runtime._live().sessions)
        assert not runtime.complete_call(*ids(left.tag), "no one reads it")


async def test_stop_cancels_what_waits() -> None:
    runtime = await asyncio.to_thread(Runtime(settings_for(ScriptedCall("any_result", {})), tools=[any_result]).start)
    reader = Reader(runtime.stream("go"))
    [event] = await reader.until(ToolCallDeferred)
    began = time.monotonic()
    await asyncio.to_thread(runtime.stop)
    assert time.monotonic() - began < PATIENCE_SECONDS
    with pytest.raises(RequestEnded, match="stopping"):
        await reader.end()
    with pytest.raises(UsageError, match="not running"):
        runtime.complete_call(*ids(event.tag), "late")


@pytest.mark.parametrize("name", ISOLATIONS)
async def test_a_crash_of_the_dispatcher_does_not_touch_a_deferred_call(name: str) -> None:
    async with Runtime(settings_for(ScriptedCall(name, {"job": "x"})), tools=[ISOLATIONS[name]]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        for peer in ("dispatcher", "llm_manager", "telemetry"):
            runtime._live().system.ref(f"root/{peer}")._cell.kill()
        await until_true(lambda: runtime.statistics().restarts >= 3)
        assert runtime.complete_call(*ids(event.tag), {"pages": 1})
        assert (await reader.end()).text == '{"pages":1}'
        assert len(reader.all(ToolCallDeferred)) == 1, "it did not run again"


@tool
def killed_then_deferred(x: int) -> Deferred:
    if x:
        os.kill(os.getpid(), 9)
    return Deferred(60.0)


async def test_a_process_that_dies_beside_a_deferred_call_is_one_failed_result() -> None:
    calls = (ScriptedCall("killed_then_deferred", {"x": 0}), ScriptedCall("killed_then_deferred", {"x": 1}))
    async with Runtime(settings_for(*calls), tools=[killed_then_deferred]) as runtime:
        reader = Reader(runtime.stream("go"))
        [event] = await reader.until(ToolCallDeferred)
        await reader.until(ToolCallEnd)
        assert runtime.complete_call(*ids(event.tag), "fine")
        first, second = (await reader.end()).text.split(" ", 1)
    assert first == "fine"
    assert orjson.loads(second)["code"] == "crashed"


# -- the backstop of the asker


async def test_an_asker_that_only_waits_is_told_when_the_loop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backstop, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(backstop, "ANSWER_GRACE_SECONDS", 2.0)
    free = threading.Event()
    async with Runtime(
        settings_for(ScriptedCall("any_result", {}), request_timeout_seconds=5.0), tools=[any_result]
    ) as runtime:
        stream = runtime.stream("go", request_id="streamed")
        reader = Reader(stream)
        await reader.until(ToolCallDeferred)
        await asyncio.sleep(0.5)  # several looks: the loop answers each
        assert not stream.answer.future.done
        asked = asyncio.ensure_future(runtime.ask("go", request_id="asked"))
        in_thread = asyncio.ensure_future(asyncio.to_thread(runtime.ask_sync, "go", request_id="sync"))
        await until_true(lambda: runtime.metrics().count("callboard.tool.deferred", tool="any_result") == 3)
        runtime._live().system.scheduler.call_soon(lambda: free.wait(PATIENCE_SECONDS))
        try:
            for waiting in (asked, in_thread, asyncio.ensure_future(reader.end())):
                with pytest.raises(RuntimeFailure, match="loop is blocked"):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        await waiting
        finally:
            free.set()

"""Each end of a call that is not a result stands in `Reply.failures`, once, in the order of the ends, with its tool."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from callboard import Deferred, Policy, Reply, RequestEnded, Rule, Runtime, Settings, tool
from callboard.actors.requests.replies import failure_told
from callboard.protocol.commands import ReportFailure
from callboard.protocol.content import ToolMessage
from callboard.protocol.events import CALL_FAILS, ToolCallCancelled, ToolCallFailed, ToolCallStarted, ToolCallTimedOut
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")

TAG = Tag(RequestId("r"), MessageId("m"))


@tool(risk="read", isolation="process", timeout=0.3)
def slow_in_a_process() -> str:
    signal.pause()
    return ""


@tool(risk="read", isolation="thread", timeout=0.05)
def slow_on_a_thread() -> str:
    threading.Event().wait(1.0)
    return ""


@tool(risk="read", timeout=0.05)
async def slow_on_the_loop() -> str:
    await asyncio.sleep(600)
    return ""


@tool(risk="read", timeout=0.05)
async def disobeys() -> str:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        return "finished all the same"
    return ""


@tool(risk="read", isolation="process")
def exits() -> str:
    os._exit(3)


@tool(risk="read", isolation="process")
def is_killed() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@tool(risk="read", isolation="process")
def takes_too_much() -> str:
    return str(len(bytearray(200_000_000_000)))


@tool(risk="read", isolation="thread")
def raises() -> str:
    raise LookupError("nothing")


@tool(risk="read", isolation="thread")
def gives_another_type() -> int:
    return "many"  # type: ignore[return-value]


@tool(risk="read", isolation="thread")
def gives_too_much() -> str:
    return "x" * 30_000_000


@tool(risk="read", isolation="thread")
def takes_a_number(n: int) -> int:
    return n


@tool(risk="write", isolation="thread")
def writes() -> str:
    return "written"


@tool(risk="execute", isolation="thread")
def is_asked_about() -> str:
    return "ran"


@tool(risk="read")
async def is_answered_outside() -> Deferred:
    return Deferred(0.05)


@tool(risk="read", timeout=600)
async def forever() -> str:
    await asyncio.sleep(600)
    return ""


async def never(_: object) -> bool:
    await asyncio.sleep(600)
    return True


TOOLS = (
    slow_in_a_process, slow_on_a_thread, slow_on_the_loop, disobeys, exits, is_killed, takes_too_much, raises,
    gives_another_type, gives_too_much, takes_a_number, writes, is_asked_about, is_answered_outside,
)  # fmt: skip
#: The call (by default without arguments), and the code that it ends with.
ENDS: tuple[tuple[ScriptedCall, FailureCode], ...] = (
    (ScriptedCall("slow_in_a_process", {}), FailureCode.TIMED_OUT),
    (ScriptedCall("slow_on_a_thread", {}), FailureCode.TIMED_OUT),
    (ScriptedCall("slow_on_the_loop", {}), FailureCode.TIMED_OUT),
    (ScriptedCall("disobeys", {}), FailureCode.TIMED_OUT),
    (ScriptedCall("exits", {}), FailureCode.CRASHED),
    (ScriptedCall("is_killed", {}), FailureCode.CRASHED),
    (ScriptedCall("takes_too_much", {}), FailureCode.CRASHED),
    (ScriptedCall("raises", {}), FailureCode.TOOL_ERROR),
    (ScriptedCall("gives_another_type", {}), FailureCode.INVALID_RESULT),
    (ScriptedCall("gives_too_much", {}), FailureCode.RESULT_TOO_LARGE),
    (ScriptedCall("takes_a_number", {"n": "many"}), FailureCode.INVALID_ARGUMENTS),
    (ScriptedCall("writes", {}), FailureCode.DENIED),
    (ScriptedCall("is_asked_about", {}), FailureCode.DENIED),
    (ScriptedCall("is_answered_outside", {}), FailureCode.TIMED_OUT),
    (ScriptedCall("is_nowhere", {}), FailureCode.UNKNOWN_TOOL),
    (ScriptedCall("takes_a_number", '{"n": 1'), FailureCode.INCOMPLETE_CALL),
)


def ends(reply: Reply) -> list[tuple[str, FailureCode]]:
    """As its steps report them: of calls that failed."""
    return sorted((call.name, call.code) for step in reply.steps for call in step.calls if call.code is not None)


def told(reply: Reply) -> list[tuple[str, FailureCode]]:
    return sorted((failed.tool, failed.code) for failed in reply.failures)


def script_of(*calls: ScriptedCall) -> list[ScriptedTurn]:
    return [*(ScriptedTurn(calls=(call,)) for call in calls), ScriptedTurn("done")]


def settings(*calls: ScriptedCall, **more: object) -> Settings:
    policy = Policy(rules=(Rule("writes", decision="deny"), Rule("is_asked_about", decision="ask")))
    return Settings(model="scripted/m", script=script_of(*calls), policy=policy, max_steps=50, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("journalled", [False, True])
def test_every_end_that_is_no_result_is_told_once_in_its_order(journalled: bool, tmp_path: Path) -> None:
    """With a journal what is told is what it keeps, and is read of it again."""
    place = {"journal": tmp_path / "j.db"} if journalled else {}
    with Runtime(settings(*(call for call, _ in ENDS), **place), tools=TOOLS) as runtime:
        reply = runtime.ask_sync("go", timeout=100)
        again = runtime.result_sync(reply.request_id) if journalled else reply
    assert [(failed.tool, failed.code) for failed in reply.failures] == [(call.name, code) for call, code in ENDS]
    assert ends(reply) == told(reply)
    read = [json.loads(each.content) for each in reply.messages if isinstance(each, ToolMessage) and each.is_error]
    assert [failed.to_wire() for failed in reply.failures] == read, "it is what the model reads"
    assert again.failures == reply.failures


def test_a_repeated_call_is_told_of() -> None:
    same = [ScriptedCall("takes_a_number", {"n": 1})] * 5
    with Runtime(settings(*same), tools=TOOLS) as runtime, pytest.raises(RequestEnded) as ended:
        runtime.ask_sync("go")
    assert ("takes_a_number", FailureCode.REPEATED) in told(ended.value.reply)
    assert ends(ended.value.reply) == told(ended.value.reply)


def test_what_the_deadline_of_the_request_ends_is_told_of() -> None:
    with (
        Runtime(settings(ScriptedCall("forever", {})), tools=[forever]) as runtime,
        pytest.raises(RequestEnded) as ended,
    ):
        runtime.ask_sync("go", timeout=0.3)
    assert told(ended.value.reply) == ends(ended.value.reply) == [("forever", FailureCode.TIMED_OUT)]


def test_what_no_one_has_approved_in_time_is_told_of() -> None:
    with Runtime(settings(ScriptedCall("is_asked_about", {})), tools=TOOLS, approve=never) as runtime:
        reply = runtime.ask_sync("go", approval_timeout=0.05)
    assert told(reply) == ends(reply) == [("is_asked_about", FailureCode.DENIED)]


async def test_what_a_cancelled_request_gives_up_is_told_of() -> None:
    async with Runtime(settings(ScriptedCall("forever", {})), tools=[forever]) as runtime:

        async def cancel() -> None:
            async for seen in runtime.stream("go", request_id="r"):
                if isinstance(seen, ToolCallStarted):
                    runtime.cancel("r")

        with pytest.raises(RequestEnded) as ended:
            await cancel()
    assert told(ended.value.reply) == ends(ended.value.reply) == [("forever", FailureCode.CANCELLED)]


async def test_a_direct_call_that_ran_into_its_deadline_has_that_failure() -> None:
    async with Runtime(settings(), tools=TOOLS) as runtime:
        result = await runtime.call_tool("slow_on_the_loop", {})
    assert result.failure is not None
    assert (result.failure.tool, result.failure.code) == ("slow_on_the_loop", FailureCode.TIMED_OUT)


@pytest.mark.parametrize("code", sorted(FailureCode))
def test_whatever_event_says_that_a_call_has_failed_is_told_of_with_its_tool(code: FailureCode) -> None:
    failed = ToolFailure(ToolName("t"), code, "why")
    for seen in (ToolCallFailed(TAG, 0.0, failed), ReportFailure(TAG, failed)):
        assert failure_told(seen) == failed


def test_each_event_by_which_a_call_fails_is_known() -> None:
    by_kind = {
        ToolCallTimedOut: ToolCallTimedOut(TAG, 0.0, failure=ToolFailure(ToolName("t"), FailureCode.TIMED_OUT, "")),
        ToolCallCancelled: ToolCallCancelled(TAG, 0.0, failure=ToolFailure(ToolName("t"), FailureCode.CANCELLED, "")),
        ToolCallFailed: ToolCallFailed(TAG, 0.0, ToolFailure(ToolName("t"), FailureCode.CRASHED, "")),
    }
    assert set(by_kind) == set(CALL_FAILS)
    assert {failed.tool for each in by_kind.values() if (failed := failure_told(each)) is not None} == {"t"}

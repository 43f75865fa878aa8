"""What an operator does to a running runtime: restart, kill, replay, and look where a tool's code is; real children."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from support.conditions import wait_until

from callboard import Deferred, Reply, RequestEnded, Runtime, Settings, UsageError, tool
from callboard.actors.kernel import ActorInfo, DeadLetterReason
from callboard.actors.requests.outside import ResolveCall
from callboard.actors.running import tag_of_call
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import RuntimeFailure
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn


@tool(timeout=60)
def sleeps_in_process(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


@tool(timeout=60)
def computes_in_c() -> str:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        sum(range(10_000_000))
    return "computed"


@tool(timeout=60)
def ignores_the_signal() -> str:
    signal.signal(signal.SIGRTMAX, signal.SIG_DFL)
    time.sleep(20)
    return "slept"


@tool(timeout=60)
def is_stopped() -> str:
    os.kill(os.getpid(), signal.SIGSTOP)
    return "went on"


async def _waits() -> None:
    await asyncio.sleep(20)


@tool(timeout=60)
async def sleeps_in_task() -> str:
    await _waits()
    return "slept"


HELD = threading.Event()


@tool(isolation="thread", timeout=60)
def sleeps_in_thread() -> str:
    HELD.wait(20)
    return "slept"


@tool
async def put_off() -> Deferred:
    return Deferred(60.0)


TOOLS: list[Callable[..., object]] = [
    sleeps_in_process, computes_in_c, ignores_the_signal, is_stopped, sleeps_in_task, sleeps_in_thread, put_off,
]  # fmt: skip


@contextmanager
def runtime_that_calls(name: str, **arguments: object) -> Iterator[tuple[Runtime, threading.Thread, list[Reply]]]:
    script = (ScriptedTurn(calls=(ScriptedCall(name, arguments, id="c1"),)), ScriptedTurn(text="done"))
    replies: list[Reply] = []
    with Runtime(Settings(model="scripted/model", script=script), tools=TOOLS, approve=lambda _: True) as runtime:

        def ask() -> None:
            with suppress(RequestEnded):  # as the test is over
                replies.append(runtime.ask_sync("go", request_id="r1"))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        yield runtime, asking, replies
        runtime.cancel("r1")
        HELD.set()
    HELD.clear()


def results(reply: Reply) -> str:
    """What the model has read of its calls."""
    return "".join(each.content for each in reply.messages if isinstance(each, ToolMessage))


def stack(runtime: Runtime) -> str:
    """Of the call, once its code runs."""
    found: list[str] = []

    def look() -> bool:
        try:
            text = runtime.stack_of("r1", 1, "c1")
        except UsageError:
            return False
        if "def" in text or "in " in text:
            found.append(text)
        return bool(found)

    wait_until(look)
    return found[0]


@pytest.mark.parametrize(
    ("name", "arguments", "innermost"),
    [
        ("sleeps_in_process", {"seconds": 20.0}, "in sleeps_in_process"),
        ("computes_in_c", {}, "in computes_in_c"),
        ("sleeps_in_task", {}, "in _waits"),
        ("sleeps_in_thread", {}, "in sleeps_in_thread"),
    ],
)
def test_the_stack_of_a_running_tool(name: str, arguments: dict[str, object], innermost: str) -> None:
    with runtime_that_calls(name, **arguments) as (runtime, _, _replies):
        wait_until(lambda: innermost in stack(runtime))
        assert "test_operating.py" in stack(runtime)


def test_a_call_goes_on_when_its_stack_was_read() -> None:
    with runtime_that_calls("sleeps_in_process", seconds=3.0) as (runtime, asking, replies):
        wait_until(lambda: "sleeps_in_process" in stack(runtime))  # its process may not have begun it
        for _ in range(5):
            runtime.stack_of("r1", 1, "c1")
        asking.join(timeout=20)
        (reply,) = replies
        assert reply.text == "done"
        assert "slept" in results(reply)


def test_a_tool_that_has_removed_the_handler_is_spared() -> None:
    with runtime_that_calls("ignores_the_signal") as (runtime, _, _replies):

        def is_refused() -> bool:
            try:
                runtime.stack_of("r1", 1, "c1")
            except UsageError as error:
                return "removed the handler" in str(error)
            except RuntimeFailure:  # it has been removed between the look at it and the signal
                return False
            return False

        wait_until(is_refused)


def test_a_tool_that_is_stopped_costs_the_deadline_and_no_more() -> None:
    with runtime_that_calls("is_stopped") as (runtime, _, _replies):

        def is_late() -> bool:
            try:
                runtime.stack_of("r1", 1, "c1")
            except RuntimeFailure as error:
                return "has not said within" in str(error)
            except UsageError:
                return False
            return False

        wait_until(is_late)


def test_no_stack_of_what_does_not_run() -> None:
    with runtime_that_calls("put_off") as (runtime, _, _replies):
        wait_until(lambda: any(each.waits_for for each in runtime.open_requests()))
        with pytest.raises(UsageError, match="no stack of c1"):
            runtime.stack_of("r1", 1, "c1")
        with pytest.raises(UsageError, match="no such call"):
            runtime.stack_of("unknown", 1, "c1")


# -- actors


def actor(runtime: Runtime, path: str) -> ActorInfo | None:
    def walk(infos: tuple[ActorInfo, ...]) -> Iterator[ActorInfo]:
        for each in infos:
            yield each
            yield from walk(each.children)

    return next((each for each in walk(runtime.tree()) if each.name == path), None)


def restarts(runtime: Runtime, path: str) -> int:
    found = actor(runtime, path)
    return found.restarts if found is not None and found.state == "running" else -1


@pytest.mark.parametrize("path", ["root/telemetry", "root/llm_manager", "root/dispatcher", "root/tools"])
def test_an_actor_that_is_killed_or_restarted_runs_again(path: str) -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"), ScriptedTurn(text="b")))) as runtime:
        runtime.restart_actor(path)
        assert restarts(runtime, path) == 1
        runtime.kill_actor(path)
        wait_until(lambda: restarts(runtime, path) == 2)
        assert runtime.ask_sync("still there?").text


def test_many_restarts_are_no_failures() -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"),))) as runtime:
        for _ in range(12):
            runtime.restart_actor("root/telemetry")
        assert runtime.ask_sync("still there?").text == "a"


@pytest.mark.parametrize("path", ["root", "root/sessions", "root/nothing", "", "../root", "root/"])
def test_what_cannot_be_ended_is_refused(path: str) -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"),))) as runtime:
        for act in (runtime.kill_actor, runtime.restart_actor):
            with pytest.raises(UsageError):
                act(path)
        assert runtime.ask_sync("still there?").text == "a"


def test_the_session_of_a_request_is_cancelled_and_not_restarted() -> None:
    script = (ScriptedTurn(calls=(ScriptedCall("put_off", {}, id="c1"),)),)
    with Runtime(Settings(model="scripted/model", script=script), tools=TOOLS) as runtime:
        ended: list[str] = []

        def ask() -> None:
            try:
                runtime.ask_sync("go", request_id="r1")
            except Exception as error:  # noqa: BLE001 - what the asker sees
                ended.append(str(error))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        wait_until(lambda: any(each.waits_for for each in runtime.open_requests()))
        with pytest.raises(UsageError, match="cancel it"):
            runtime.restart_actor("root/sessions/r1")
        runtime.kill_actor("root/sessions/r1")
        asking.join(timeout=20)
        assert "cancelled" in ended[0]


def test_a_worker_that_is_killed_costs_its_call() -> None:
    with runtime_that_calls("sleeps_in_process", seconds=20.0) as (runtime, asking, replies):
        stack(runtime)
        tools = actor(runtime, "root/tools")
        assert tools is not None
        (worker,) = (
            each.name for pool in tools.children for each in pool.children if each.handled and "source" not in each.name
        )
        with pytest.raises(UsageError, match="temporary"):
            runtime.restart_actor(worker)
        runtime.kill_actor(worker)
        asking.join(timeout=20)
        assert "lost" in results(replies[0])


# -- dead letters


def test_a_dead_letter_is_sent_again_once() -> None:
    with runtime_that_calls("put_off") as (runtime, asking, replies):
        wait_until(lambda: any(each.waits_for for each in runtime.open_requests()))
        tag = tag_of_call("r1", 1, "c1")
        running = runtime._live()
        running.system.dead_letters.add(ResolveCall(tag, '"late"'), DeadLetterReason.CRASHED, "root/sessions/r1")
        (letter,) = runtime.dead_letters()
        assert runtime.may_replay(letter)
        assert runtime.replay_dead_letter(letter.serial) == letter
        asking.join(timeout=20)
        assert replies[0].text == "done"
        with pytest.raises(UsageError, match="sent again already"):
            runtime.replay_dead_letter(letter.serial)


def test_a_letter_to_an_actor_that_has_ended_is_kept() -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"),))) as runtime:
        assert runtime.complete_call("gone", 1, "c1", "late") is False
        (letter,) = runtime.dead_letters()
        for _ in range(2):
            with pytest.raises(UsageError):
                runtime.replay_dead_letter(letter.serial)
        assert runtime.dead_letters() == (letter,)


def test_a_message_that_would_do_its_work_twice_is_not_sent_again() -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"),))) as runtime:
        running = runtime._live()
        running.system.dead_letters.add(ctypes, DeadLetterReason.CRASHED, "root/dispatcher")
        (letter,) = runtime.dead_letters()
        assert not runtime.may_replay(letter)
        with pytest.raises(UsageError, match="could do its work twice"):
            runtime.replay_dead_letter(letter.serial)
        assert runtime.dead_letters() == (letter,)


def test_an_actor_that_waits_for_its_restart_is_started_at_once() -> None:
    with Runtime(Settings(model="scripted/model", script=(ScriptedTurn(text="a"),))) as runtime:
        for _ in range(3):
            runtime.kill_actor("root/telemetry")
            runtime.restart_actor("root/telemetry")
            assert restarts(runtime, "root/telemetry") > 0

"""Cancelled is over: when a cancelled question returns its request has ended, and its conversation takes another."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress

import anyio
import pytest

from callboard.actors.requests import replies
from callboard.actors.requests.conversation import Conversation
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.commands import RunTool
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

_inner: list[Runtime] = []
_started = threading.Event()


@tool(timeout=60)
async def by_task() -> str:
    """Work until it is cancelled."""
    _started.set()
    await asyncio.sleep(50)
    return "done"


@tool(timeout=60)
async def by_stubborn_task() -> str:
    """Work on for a while when it is cancelled."""
    _started.set()
    try:
        await asyncio.sleep(50)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        raise
    return "done"


@tool(timeout=60)
def by_process() -> str:
    """Work until it is killed."""
    time.sleep(50)
    return "done"


@tool(timeout=60)
async def by_agent() -> str:
    """Ask a model that works until it is cancelled."""
    return (await _inner[0].ask("by_task")).text


TOOLS = [by_task, by_stubborn_task, by_process, by_agent]


def answer(request: ModelRequest) -> ScriptedTurn | str:
    """Call the tool that the question names, stream without an end, or answer."""
    last = request.messages[-1]
    question = last.text if isinstance(last, UserMessage) else ""
    if question.startswith("by_"):
        return ScriptedTurn(calls=(ScriptedCall(question),))
    return ScriptedTurn("a" * 100, chunk_chars=1, delay_seconds=0.01, stall=True) if question == "stream" else "hello"


@pytest.fixture(scope="module", params=["memory", "journal"])
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    journal = str(tmp_path_factory.mktemp("journal") / "journal.sqlite") if request.param == "journal" else None
    with Runtime(Settings(model="scripted/model", script=answer, journal=journal), tools=TOOLS) as running:
        _inner.append(running)
        yield running
        _inner.clear()


async def until_open(runtime: Runtime, requests: int = 1) -> None:
    while len(runtime.open_requests()) != requests:  # noqa: ASYNC110 - no event comes of another thread
        await asyncio.sleep(0.001)


# -- ways to cancel a question: each returns when the asker's own code would go on


async def by_cancel(runtime: Runtime, question: str, conversation: Conversation) -> None:
    task = asyncio.create_task(runtime.ask(question, conversation=conversation))
    await until_open(runtime)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


async def by_wait_for(runtime: Runtime, question: str, conversation: Conversation) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(runtime.ask(question, conversation=conversation), 0.1)


async def by_timeout(runtime: Runtime, question: str, conversation: Conversation) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await runtime.ask(question, conversation=conversation)


async def by_task_group(runtime: Runtime, question: str, conversation: Conversation) -> None:
    async def fail() -> None:
        await until_open(runtime)
        raise ValueError("a sibling failed")

    with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):  # noqa: PT012
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.ask(question, conversation=conversation))
            group.create_task(fail())


async def by_anyio_scope(runtime: Runtime, question: str, conversation: Conversation) -> None:
    with anyio.move_on_after(0.1) as scope:
        await runtime.ask(question, conversation=conversation)
    assert scope.cancelled_caught


async def by_anyio_group(runtime: Runtime, question: str, conversation: Conversation) -> None:
    """As Starlette ends a response whose client has gone."""

    async def ask() -> None:
        await runtime.ask(question, conversation=conversation)

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await until_open(runtime)
        group.cancel_scope.cancel()


async def by_gather(runtime: Runtime, question: str, conversation: Conversation) -> None:
    """It is cancelled as soon as the first of its tasks is."""
    both = asyncio.gather(runtime.ask(question, conversation=conversation), asyncio.sleep(50))
    await until_open(runtime)
    both.cancel()
    with suppress(asyncio.CancelledError):
        await both


async def by_closing(runtime: Runtime, question: str, conversation: Conversation) -> None:
    async with aclosing(aiter(runtime.stream(question, conversation=conversation))) as items:
        await anext(items)


async def by_wait_for_of_a_piece(runtime: Runtime, question: str, conversation: Conversation) -> None:
    with pytest.raises(TimeoutError):  # noqa: PT012
        async with asyncio.timeout(0.1):
            async for _ in runtime.stream(question, conversation=conversation):
                pass


async def by_closing_texts(runtime: Runtime, question: str, conversation: Conversation) -> None:
    texts = runtime.stream(question, conversation=conversation).texts()
    with suppress(TimeoutError):
        await asyncio.wait_for(anext(texts), 0.1)
    await texts.aclose()


RETURNS_WHEN_OVER = [
    by_cancel, by_wait_for, by_timeout, by_task_group, by_anyio_scope, by_anyio_group, by_closing,
    by_wait_for_of_a_piece, by_closing_texts,
]  # fmt: skip


@pytest.mark.parametrize("question", ["by_task", "by_stubborn_task", "by_process", "stream"])
def test_the_request_is_over_when_its_asker_goes_on(runtime: Runtime, question: str) -> None:
    async def main() -> None:
        for way in RETURNS_WHEN_OVER:
            conversation = Conversation()
            # In a task of its own: before Python 3.13 a task group leaves its task's count of cancellations at one, and
            # asyncio.timeout takes no later one for its own.
            await asyncio.create_task(way(runtime, question, conversation))
            assert runtime.open_requests() == (), way.__name__
            assert (await runtime.ask("next", conversation=conversation)).text == "hello", way.__name__

    asyncio.run(main())


async def by_leaving(runtime: Runtime, question: str, conversation: Conversation) -> None:
    async for event in runtime.stream(question, conversation=conversation):
        if question == "stream" or isinstance(event, RunTool):
            break


async def by_leaving_texts(runtime: Runtime, question: str, conversation: Conversation) -> None:
    async for _ in runtime.stream("stream", conversation=conversation).texts():
        break


async def by_its_id(runtime: Runtime, question: str, conversation: Conversation) -> None:
    request_id = await runtime.start_request(question, conversation=conversation)
    await until_open(runtime)
    assert runtime.cancel(request_id, "the user pressed stop")


async def by_a_second_cancel(runtime: Runtime, question: str, conversation: Conversation) -> None:
    task = asyncio.create_task(runtime.ask(question, conversation=conversation))
    await until_open(runtime)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@pytest.mark.parametrize("question", ["by_task", "by_stubborn_task", "by_process", "stream"])
def test_who_does_not_wait_for_the_end_can_ask_at_once_nevertheless(runtime: Runtime, question: str) -> None:
    """Both `ask` and `stream`: the next question waits for the end of the cancelled one."""

    async def main() -> None:
        for way in (by_leaving, by_leaving_texts, by_its_id, by_gather, by_a_second_cancel):
            conversation = Conversation()
            await way(runtime, question, conversation)
            assert (await runtime.ask("next", conversation=conversation)).text == "hello", way.__name__
            await way(runtime, question, conversation)
            texts = [text async for text in runtime.stream("next", conversation=conversation).texts()]
            assert "".join(texts) == "hello", way.__name__

    asyncio.run(main())


def test_a_request_that_was_not_cancelled_keeps_its_conversation(runtime: Runtime) -> None:
    conversation = Conversation()
    request_id = runtime.start_request_sync("by_task", conversation=conversation)
    with pytest.raises(UsageError, match="has a request running"):
        runtime.ask_sync("next", conversation=conversation)
    runtime.cancel(request_id)
    assert runtime.ask_sync("next", conversation=conversation).text == "hello"


def test_a_cancelled_call_of_a_tool_is_over(runtime: Runtime) -> None:
    async def main(name: str) -> None:
        _started.clear()
        task = asyncio.create_task(runtime.call_tool(name))
        await asyncio.to_thread(_started.wait, 20)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert runtime.open_requests() == ()

    for name in ("by_task", "by_stubborn_task"):
        asyncio.run(main(name))


def test_the_questions_of_a_tool_are_over_too(runtime: Runtime) -> None:
    async def main() -> None:
        _started.clear()
        task = asyncio.create_task(runtime.ask("by_agent"))
        await asyncio.to_thread(_started.wait, 20)
        task.cancel()
        await asyncio.wait({task})
        conversation = Conversation()
        assert (await runtime.ask("next", conversation=conversation)).text == "hello"
        await until_open(runtime, 0)  # the tool was told to stop; it is given up where it does not

    asyncio.run(main())


def test_leaving_a_stream_without_a_loop_is_over(runtime: Runtime) -> None:
    conversation = Conversation()
    for _ in range(3):
        for _text in runtime.stream_sync("stream", conversation=conversation).texts():
            break
        assert runtime.open_requests() == ()
        assert runtime.ask_sync("next", conversation=conversation).text == "hello"


INTERRUPTED = """
import sys, threading, _thread, time
from callboard import Conversation, Runtime, Settings, tool
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

@tool(isolation="thread", timeout=60)
def wait() -> str:
    '''Say that it runs, and wait.'''
    print("runs", flush=True)
    time.sleep(0.5)
    return "x"

script = [ScriptedTurn(calls=(ScriptedCall("wait"),)), "hello"]
with Runtime(Settings(model="scripted/m", script=script), tools=[wait]) as runtime:
    conversation = Conversation()
    try:
        runtime.ask_sync("?", conversation=conversation)
    except KeyboardInterrupt:
        print(len(runtime.open_requests()), runtime.ask_sync("next", conversation=conversation).text, flush=True)
"""


def test_an_interrupted_ask_is_over() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=40)
    assert (rest, process.returncode) == ("0 hello\n", 0)


# -- where the end does not come


class Held:
    """callboard's loop does nothing for a while."""

    def __init__(self, runtime: Runtime) -> None:
        assert runtime._running is not None
        self._post = runtime._running.post
        self._free = threading.Event()

    def __enter__(self) -> None:
        held = threading.Event()
        self._post(lambda: (held.set(), self._free.wait(20)))
        assert held.wait(20)

    def __exit__(self, *_: object) -> None:
        self._free.set()


@pytest.fixture
def lone() -> Iterator[Runtime]:
    with Runtime(Settings(model="scripted/model", script=answer), tools=TOOLS) as running:
        yield running


def test_a_second_cancel_does_not_wait(lone: Runtime) -> None:
    async def main() -> None:
        task = asyncio.create_task(lone.ask("by_task"))
        await until_open(lone)
        with Held(lone):
            task.cancel()
            for _ in range(100):
                await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            await asyncio.wait({task}, timeout=2)
            assert task.cancelled()

    asyncio.run(main())


async def _ask(runtime: Runtime, conversation: Conversation) -> object:
    return await runtime.ask("by_task", conversation=conversation)


async def _read(runtime: Runtime, conversation: Conversation) -> object:
    return [item async for item in runtime.stream("by_task", conversation=conversation)]


@pytest.mark.parametrize("begin", [_ask, _read])
def test_the_wait_is_bounded(
    lone: Runtime, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Runtime, Conversation], Awaitable[object]]
) -> None:
    monkeypatch.setattr(replies, "OVER_SECONDS", 0.05)

    async def main() -> None:
        conversation = Conversation()
        task = asyncio.ensure_future(begin(lone, conversation))
        await until_open(lone)
        with Held(lone):
            task.cancel()
            await asyncio.wait({task}, timeout=10)
            assert task.cancelled()
            with pytest.raises(UsageError, match="has a request running"):
                await lone.ask("next", conversation=conversation)
        await until_open(lone, 0)
        assert (await lone.ask("next", conversation=conversation)).text == "hello"

    asyncio.run(main())

"""Streams for readers without an event loop: the same items and the same end, bounded, and cancelled when left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard.actors.requests import replies
from callboard.actors.requests.replies import ModelCallFailed, Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, ModelRequest, TextDelta
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


@tool(isolation="thread")
def double(x: int) -> int:
    """Twice a number."""
    return 2 * x


def doubling(request: ModelRequest) -> ScriptedTurn:
    results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
    if results:
        return ScriptedTurn(f"It is {results[-1]}.", chunk_chars=2)
    return ScriptedTurn(calls=(ScriptedCall("double", {"x": 4}),))


ENDLESS = ScriptedTurn("a" * 100, chunk_chars=1, delay_seconds=0.01, stall=True)


def runtime_with(script: Any) -> Runtime:
    return Runtime(Settings(model="scripted/m", script=script), tools=[double])


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with runtime_with(doubling) as running:
        yield running


def open_requests(runtime: Runtime) -> int:
    running = runtime._running
    assert running is not None
    return len(running.sessions)


def shape(items: list[object]) -> list[str]:
    """The kinds of what came, and its text: how many pieces it came in is not the same twice."""
    text = "".join(item.text for item in items if isinstance(item, TextDelta))
    return [*dict.fromkeys(type(item).__name__ for item in items), text]


def test_it_gives_what_the_asynchronous_one_gives(runtime: Runtime) -> None:
    async def read() -> list[object]:
        return [item async for item in runtime.stream("twice 4?")]

    asynchronous, here = asyncio.run(read()), list(runtime.stream_sync("twice 4?"))
    assert shape(here) == shape(asynchronous)
    last = here[-1]
    assert isinstance(last, Reply)
    assert (last.text, last.outcome) == ("It is 8.", Outcome.ANSWERED)


def test_many_threads_read_their_own(runtime: Runtime) -> None:
    read: list[str] = []

    def one(number: int) -> None:
        *_, reply = runtime.stream_sync("twice 4?", request_id=f"r{number}")
        assert isinstance(reply, Reply)
        read.append(f"{reply.request_id} {reply.text}")

    threads = [threading.Thread(target=one, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(read) == sorted(f"r{number} It is 8." for number in range(20))


def test_leaving_the_loop_early_cancels_the_request(until: Until) -> None:
    with runtime_with([ENDLESS]) as runtime:
        for item in runtime.stream_sync("?"):
            if isinstance(item, TextDelta):
                break
        until(lambda: open_requests(runtime) == 0)


def test_closing_the_iterator_and_cancelling_end_it(until: Until) -> None:
    with runtime_with([ENDLESS, ENDLESS]) as runtime:
        reading: Any = iter(runtime.stream_sync("?"))
        next(reading)
        reading.close()
        until(lambda: open_requests(runtime) == 0)
        stream = runtime.stream_sync("?", request_id="one")
        assert runtime.cancel("one", "no longer wanted")
        with pytest.raises(RequestEnded, match="no longer wanted"):
            list(stream)


def test_a_second_reading_is_refused_and_does_not_wait(runtime: Runtime) -> None:
    stream = runtime.stream_sync("?")
    assert "".join(stream.texts()) == "It is 8."
    with pytest.raises(UsageError, match="this stream was read before"):
        list(stream)

    async def read_twice() -> None:
        stream = runtime.stream("?")
        assert "".join([text async for text in stream.texts()]) == "It is 8."
        with pytest.raises(UsageError, match="this stream was read before"):
            await anext(aiter(stream))

    asyncio.run(asyncio.wait_for(read_twice(), 10))


def test_a_request_without_an_answer_raises_what_ask_would() -> None:
    failing = [ScriptedTurn(error=Error(ErrorKind.AUTHENTICATION, "no such key", retryable=False))]
    with runtime_with(failing) as runtime:
        with pytest.raises(ModelCallFailed, match="no such key"):
            list(runtime.stream_sync("?"))
        with pytest.raises(UsageError, match="no option 'modle'"):
            runtime.stream_sync("?", modle="x")  # type: ignore[call-overload]
    with runtime_with([ScriptedTurn(stall=True, chunk_chars=1)]) as runtime:
        with pytest.raises(RequestEnded) as ended:
            list(runtime.stream_sync("?", timeout=0.05))
        assert ended.value.reply.outcome is Outcome.TIMED_OUT


def test_a_reader_that_leaves_too_much_unread_loses_the_request(monkeypatch: pytest.MonkeyPatch, until: Until) -> None:
    monkeypatch.setattr(replies, "MAX_UNREAD_BYTES", 2_000)
    with runtime_with([ENDLESS]) as runtime:
        stream = runtime.stream_sync("?")
        until(lambda: open_requests(runtime) == 0)
        with pytest.raises(RequestEnded, match="of its events unread"):
            list(stream)


INTERRUPTED = """
import sys
from callboard import Runtime, Settings, TextDelta
from callboard.providers.local.scripted import ScriptedTurn

with Runtime(Settings(model="scripted/m", script=[ScriptedTurn("ab", chunk_chars=1, stall=True)])) as runtime:
    try:
        for item in runtime.stream_sync("?"):
            if isinstance(item, TextDelta):
                print("reading", flush=True)
    except KeyboardInterrupt:
        print("interrupted", len(runtime._running.sessions) <= 1, flush=True)
print("stopped", flush=True)
"""


def test_ctrl_c_ends_the_reading_and_the_request() -> None:
    process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert rest.splitlines()[-2:] == ["interrupted True", "stopped"]
    assert process.returncode == 0

"""Runtime.start_request: an id is given out when the journal has its request. And what becomes of what is dropped."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.conditions import wait_until

from callboard import (
    Conversation,
    OutcomeUnknown,
    Reply,
    RequestEnded,
    Runtime,
    RuntimeFailure,
    Settings,
    UsageError,
    tool,
)
from callboard.actors.journal.journal_store import JournalFailed, JournalUnsure
from callboard.actors.journal.sql_writer import SqlWriter
from callboard.actors.journal.sqlite_journal import SqliteReader
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import RequestId
from callboard.protocol.model import Error, ModelRequest
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

STALLS = ScriptedTurn("never", stall=True)


class Model:
    """Answers at once, but a question with "wait" in it never; it counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        text = request.messages[-1].text  # type: ignore[union-attr]
        self.asked.append(text)
        return STALLS if "wait" in text else ScriptedTurn("done")


class Disk:
    """Commits wait while it is `held`; where there is `trouble`, that is raised for each that begins a request."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        self.trouble: Exception | None = None
        self.writes_first = False
        commit = SqlWriter.commit

        def commits(writer: SqlWriter, batch: Any) -> Any:
            self.free.wait(20.0)
            trouble = self.trouble if any(getattr(each, "begins", None) for each in batch) else None
            if trouble is None or self.writes_first:
                done = commit(writer, batch)
            if trouble is not None:
                raise trouble
            return done

        patch.setattr(SqlWriter, "commit", commits)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def runtime(tmp_path: Path, model: Model, disk: Disk) -> Iterator[Runtime]:
    with Runtime(Settings(model="scripted/m", script=model, journal=tmp_path / "journal.db")) as runtime:
        yield runtime
        disk.free.set()


def recorded(runtime: Runtime, request_id: str) -> bool:
    return any(each.request_id == request_id for each in runtime.journal.requests())


# -- an id is a promise

HOST = """
import asyncio, os, sys
from callboard import Runtime, Settings
from callboard.providers.local.scripted import ScriptedTurn
script = lambda request: ScriptedTurn("x", first_delay_seconds=60)
runtime = Runtime(Settings(model="scripted/m", script=script, journal="journal.db")).start()

def tell(request_id):
    os.write(1, (request_id + "\\n").encode())

async def awaits():
    for each in await asyncio.gather(*(runtime.start_request("q") for _ in range(5))):
        tell(each)

if sys.argv[1] == "awaits":
    asyncio.run(awaits())
elif sys.argv[1] == "waits":
    for _ in range(5):
        tell(runtime.start_request_sync("q"))
else:
    for _ in range(5):
        tell(runtime.start_request("q"))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("way", ["awaits", "waits", "without a loop"])
def test_no_id_is_lost_by_a_kill_right_behind(tmp_path: Path, way: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HOST, way], capture_output=True, text=True, timeout=50, cwd=tmp_path, check=False
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    told = ran.stdout.split()
    assert len(told) == 5
    reader = SqliteReader(tmp_path / "journal.db")
    assert all(reader.request(RequestId(each)) is not None for each in told)
    reader.close()


async def test_it_waits_for_a_slow_disk(runtime: Runtime, model: Model, disk: Disk) -> None:
    disk.free.clear()
    starting = asyncio.ensure_future(runtime.start_request("q"))
    await asyncio.to_thread(wait_until, lambda: bool(runtime.open_requests()))
    assert not starting.done()
    disk.free.set()
    request_id = await starting
    assert recorded(runtime, request_id)
    assert (await runtime.result(request_id)).text == "done"


async def test_one_who_does_not_wait_for_that_ends_the_request(runtime: Runtime, disk: Disk) -> None:
    disk.free.clear()
    starting = asyncio.ensure_future(runtime.start_request("wait", request_id="r"))
    await asyncio.to_thread(wait_until, lambda: bool(runtime.open_requests()))
    starting.cancel()
    threading.Timer(0.05, disk.free.set).start()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(RequestEnded, match="cancelled by the caller"):
        await runtime.result("r")


async def test_without_a_journal_it_is_there_once_it_is_accepted() -> None:
    async with Runtime(Settings(model="scripted/m", script=Model())) as runtime:
        request_id = await runtime.start_request("wait")
        assert runtime.is_running(request_id)
        assert await runtime.start_request("wait", request_id=request_id) == request_id


def test_a_full_disk_is_a_refusal(runtime: Runtime, model: Model, disk: Disk) -> None:
    disk.trouble = JournalFailed("the disk is full: make room")
    for _ in range(3):
        with pytest.raises(RuntimeFailure, match="the disk is full: make room") as refused:
            runtime.start_request_sync("q", request_id="r")
        assert not isinstance(refused.value, OutcomeUnknown)
    with pytest.raises(RuntimeFailure, match="the disk is full") as refused:
        runtime.ask_sync("q")
    assert not isinstance(refused.value, OutcomeUnknown)
    assert not model.asked
    disk.trouble = None
    assert runtime.start_request_sync("q", request_id="r") == "r"
    assert runtime.result_sync("r").text == "done"


@pytest.mark.parametrize("was_written", [False, True])
def test_what_may_have_been_written_is_no_refusal_and_asked_again_it_is_there_once(
    runtime: Runtime, model: Model, disk: Disk, was_written: bool
) -> None:
    disk.trouble, disk.writes_first = JournalUnsure("the connection was cut in the commit"), was_written
    with pytest.raises(OutcomeUnknown, match=r"connection was cut.*ask again with request_id='r'") as unknown:
        runtime.start_request_sync("q", request_id="r")
    assert unknown.value.request_id == "r"
    with pytest.raises(OutcomeUnknown) as unknown:
        runtime.ask_sync("another")
    assert unknown.value.request_id
    disk.trouble = None
    assert runtime.start_request_sync("q", request_id="r") == "r"
    assert len([each for each in runtime.journal.requests() if each.request_id == "r"]) == 1
    assert model.asked.count("q") <= 1


def test_a_journal_that_is_not_written_in_time_may_have_it(
    runtime: Runtime, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "callboard.actors.requests.request_session"
    monkeypatch.setattr(f"{module}.WRITTEN_WITHIN_SECONDS", 0.1)
    monkeypatch.setattr(f"{module}.SECOND_LOOK_SECONDS", 0.1)
    monkeypatch.setattr("callboard.actors.requests.write_ahead.WRITTEN_WITHIN_SECONDS", 0.1)
    disk.free.clear()
    with pytest.raises(OutcomeUnknown, match="the journal did not write for"):
        runtime.start_request_sync("q", request_id="r")


async def test_asked_again_it_is_begun_once(runtime: Runtime, model: Model) -> None:
    conversation = Conversation()
    asks = [runtime.start_request("wait", request_id="r") for _ in range(8)]
    assert set(await asyncio.gather(*asks)) == {"r"}
    runtime.cancel("r")
    with pytest.raises(RequestEnded):
        await runtime.result("r")
    assert await runtime.start_request("wait", request_id="r", conversation=conversation) == "r"
    assert len(model.asked) <= 1
    with pytest.raises(UsageError, match="choose another"):
        await runtime.start_request("another question", request_id="r")
    with pytest.raises(UsageError, match="choose another"):
        await runtime.ask("wait", request_id="r")


async def test_asked_again_it_is_no_refused_one_where_others_would_be(tmp_path: Path, model: Model) -> None:
    settings = Settings(model="scripted/m", script=model, journal=tmp_path / "journal.db", max_concurrent_requests=1)
    async with Runtime(settings) as runtime:
        assert await runtime.start_request("wait", request_id="r") == "r"
        with pytest.raises(RuntimeFailure, match="overloaded"):
            await runtime.start_request("q", request_id="another")
        assert await runtime.start_request("wait", request_id="r") == "r"
        assert not await runtime.drain(0.01)
        assert await runtime.start_request("wait", request_id="r") == "r"
        with pytest.raises(RuntimeFailure, match="draining"):
            await runtime.start_request("q")


async def test_none_is_taken_from_the_moment_of_a_drain(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    held = asyncio.Event()

    async def later(*_: Any) -> bool:
        return await held.wait()

    async with Runtime(Settings(model="scripted/m", script=model)) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", later)  # every thread of the host is busy
            draining = asyncio.ensure_future(runtime.drain(10))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeFailure, match="draining"):
                await runtime.ask("q")
            held.set()
            assert await draining


def test_a_runtime_that_stops_refuses_or_keeps_it(tmp_path: Path, model: Model, disk: Disk) -> None:
    settings = Settings(model="scripted/m", script=model, journal=tmp_path / "journal.db")
    runtime = Runtime(settings).start()
    known: list[str] = []

    def begins() -> None:
        while True:
            try:
                known.append(runtime.start_request_sync("wait"))
            except (RuntimeFailure, UsageError):
                return

    threads = [threading.Thread(target=begins) for _ in range(3)]
    for each in threads:
        each.start()
    wait_until(lambda: len(known) > 20)
    runtime.stop()
    for each in threads:
        each.join(20)
    with Runtime(settings) as runtime:
        assert all(recorded(runtime, each) for each in known[:100])


# -- what is not waited for


def is_over(runtime: Runtime) -> Callable[[], bool]:
    return lambda: not runtime.open_requests()


def drops_the_stream(runtime: Runtime) -> object:
    runtime.stream("wait")
    return None


def drops_the_iterator(runtime: Runtime) -> object:
    aiter(runtime.stream("wait"))
    return None


def drops_the_texts(runtime: Runtime) -> object:
    runtime.stream("wait").texts()
    return None


def drops_what_it_has_begun_to_read(runtime: Runtime) -> object:
    return asyncio.ensure_future(asyncio.wait_for(anext(aiter(runtime.stream("wait"))), 10.0))


def drops_one_that_reads_first(runtime: Runtime) -> object:
    runtime.stream("wait", request_id="r")
    return None


def drops_it_in_a_circle(runtime: Runtime) -> object:
    circle: list[object] = [runtime.stream("wait")]
    circle.append(circle)
    del circle
    return None


@pytest.mark.parametrize(
    "drops",
    [
        drops_the_stream,
        drops_the_iterator,
        drops_the_texts,
        drops_what_it_has_begun_to_read,
        drops_one_that_reads_first,
        drops_it_in_a_circle,
    ],
)
async def test_a_stream_that_is_dropped_ends_its_request(runtime: Runtime, drops: Callable[[Runtime], Any]) -> None:
    if (left := drops(runtime)) is not None:
        await left
        del left
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.to_thread(wait_until, is_over(runtime))


def test_a_sync_stream_that_is_dropped_ends_its_request(runtime: Runtime) -> None:
    runtime.stream_sync("wait")
    wait_until(is_over(runtime))
    iter(runtime.stream_sync("wait"))
    wait_until(is_over(runtime))
    iter(runtime.stream_sync("wait").texts())
    wait_until(is_over(runtime))
    next(iter(runtime.stream_sync("wait")))
    wait_until(is_over(runtime))


async def test_a_stream_that_is_held_goes_on_and_is_read_later(runtime: Runtime) -> None:
    stream = runtime.stream("q")
    stream.texts()  # dropped, and never begun
    await asyncio.to_thread(wait_until, is_over(runtime))
    assert [item.text async for item in stream if isinstance(item, Reply)] == ["done"]


def test_a_stream_whose_loop_stands_still_is_ended_with_it(runtime: Runtime) -> None:
    loop = asyncio.new_event_loop()

    async def begins() -> object:
        items = aiter(runtime.stream("wait"))
        await anext(items)
        return items

    items = loop.run_until_complete(begins())
    assert runtime.open_requests()
    del items
    wait_until(is_over(runtime))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_an_ask_whose_coroutine_is_closed_ends_its_request(runtime: Runtime) -> None:
    async def closes() -> None:
        for call in (runtime.ask, runtime.start_request):
            asking: Any = call("wait")
            asking.send(None)
            asking.close()

    asyncio.run(closes())
    wait_until(is_over(runtime))


def test_one_that_was_never_awaited_begins_nothing(runtime: Runtime, model: Model) -> None:
    async def forgets() -> None:
        for call in (runtime.ask, runtime.start_request):
            never: Any = call("wait")
            never.close()

    asyncio.run(forgets())
    assert runtime.open_requests() == ()
    assert not model.asked


def test_a_conversation_is_free_again(runtime: Runtime) -> None:
    async def asks() -> None:
        conversation = Conversation()
        runtime.stream("wait", conversation=conversation)
        assert (await runtime.ask("next", conversation=conversation)).text == "done"

    asyncio.run(asks())


# -- on callboard's own loops


def test_what_waits_is_refused_on_a_loop_of_callboards_own(tmp_path: Path) -> None:
    said: list[str] = []
    held: list[Runtime] = []

    @tool
    async def asks() -> str:
        """Asks with what waits."""
        runtime = held[0]
        for call in (runtime.ask_sync, runtime.stream_sync, runtime.start_request_sync, runtime.result_sync):
            try:
                call("inner")
            except UsageError as error:
                said.append(str(error))
        said.append((await runtime.ask("inner")).text)
        return "asked"

    def model(request: ModelRequest) -> ScriptedTurn:
        if isinstance(request.messages[-1], ToolMessage) or request.messages[-1].text == "inner":
            return ScriptedTurn("done")
        return ScriptedTurn(calls=(ScriptedCall("asks", {}),))

    with Runtime(Settings(model="scripted/m", script=model), [asks]) as runtime:
        held.append(runtime)
        assert runtime.ask_sync("outer").text == "done"

        def on_the_loop() -> None:
            try:
                runtime.ask_sync("inner")
            except UsageError as error:
                said.append(str(error))
            done.set()

        done = threading.Event()
        runtime._live().post(on_the_loop)
        assert done.wait(10)
    assert [each.partition(" waits, and holds the event loop of callboard's own")[0] for each in said] == [
        "ask_sync", "stream_sync", "start_request_sync", "result_sync", "done", "ask_sync",
    ]  # fmt: skip


# -- the reason of a request that ran out of time


async def test_a_request_out_of_time_says_what_its_tries_failed_with() -> None:
    turns = iter([ScriptedTurn(error=Error(ErrorKind.OVERLOADED, "busy", retryable=True, status=503)), STALLS])
    settings = Settings(model="scripted/m", script=lambda request: next(turns))
    async with Runtime(settings) as runtime:
        told = r"deadline of 3 s passed; scripted/m failed \(overloaded, status 503\) after 1 of 4 requests\.$"
        with pytest.raises(RequestEnded, match=told):
            await runtime.ask("q", timeout=3.0)


def test_restarts_that_never_come_to_ask_the_model_are_no_lost_calls(tmp_path: Path, model: Model) -> None:
    """Neither the 32 calls that may be lost nor the 10 starts that may come to nothing."""
    settings = Settings(model="scripted/m", script=model, journal=tmp_path / "journal.db")
    with Runtime(settings) as runtime:
        runtime.start_request_sync("wait", request_id="r")
        wait_until(lambda: model.asked)
    for _ in range(40):
        with Runtime(settings):
            pass  # stopped within the pause before a lost call is asked again
    answers = Settings(model="scripted/m", script=["done"], journal=tmp_path / "journal.db")
    with Runtime(answers) as runtime:
        assert runtime.result_sync("r").text == "done"

"""Task workers: async tools share a loop, and none of them can take it from the others for good."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import itertools
import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from support.patience import timed_out_while_hanging
from support.strikes import Late, Strike

from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool, tool
from callboard.actors.workers.messages import WorkerKind
from callboard.actors.workers.task import TaskWorker
from callboard.protocol.errors import ToolError
from callboard.protocol.events import (
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallEnd,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
)
from callboard.protocol.tools import FailureCode

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def stage() -> Iterator[ToolStage]:
    with ToolStage() as stage:
        yield stage
    for thread in threading.enumerate():
        if thread.name.startswith("callboard-tools"):
            thread.join(5)
            assert not thread.is_alive()


@tool
async def add(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@tool
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def content_of(event: ToolCallEnd) -> object:
    assert isinstance(event, ToolCallCompleted), event
    try:
        return json.loads(event.content)
    except json.JSONDecodeError:
        return event.content  # a text is no JSON


def test_a_hundred_calls_side_by_side(stage: ToolStage) -> None:
    barrier = asyncio.Barrier(100)

    @tool
    async def meet(number: int) -> int:
        await barrier.wait()
        return number

    calls = [stage.start(meet, json.dumps({"number": number})) for number in range(100)]
    assert [content_of(call.wait()) for call in calls] == list(range(100))
    assert all([type(event) for event in call.events] == [ToolCallStarted, ToolCallCompleted] for call in calls)


def fail(error: BaseException) -> None:
    raise error


DEATHS: dict[str, tuple[Callable[[], object], FailureCode, str]] = {
    "an exception": (lambda: fail(ValueError("wrong")), FailureCode.TOOL_ERROR, "ValueError: wrong"),
    "sys.exit": (lambda: sys.exit(3), FailureCode.CRASHED, "the tool called sys.exit(3)"),
    "KeyboardInterrupt": (lambda: fail(KeyboardInterrupt()), FailureCode.TOOL_ERROR, "KeyboardInterrupt"),
    "CancelledError": (lambda: fail(asyncio.CancelledError()), FailureCode.TOOL_ERROR, "CancelledError"),
    "GeneratorExit": (lambda: fail(GeneratorExit()), FailureCode.TOOL_ERROR, "GeneratorExit"),
}


@pytest.mark.parametrize("how", DEATHS)
def test_each_way_to_die_is_one_failure_and_its_neighbour_goes_on(stage: ToolStage, how: str) -> None:
    raise_it, code, message = DEATHS[how]
    go = asyncio.Event()

    @tool
    async def neighbour() -> str:
        await go.wait()
        return "well"

    @tool
    async def die() -> None:
        try:
            raise_it()
        finally:
            go.set()

    beside = stage.start(neighbour, "{}")
    event = stage.call(die)
    assert isinstance(event, ToolCallFailed)
    assert (event.failure.code, event.failure.message) == (code, message)
    assert content_of(beside.wait()) == "well"


def test_a_call_is_cancelled_at_its_deadline_and_cleans_up(stage: ToolStage) -> None:
    begun, cleaned = threading.Event(), threading.Event()

    @tool
    async def careful() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    timed_out_while_hanging(lambda seconds: stage.start(careful, "{}", seconds), lambda _: begun.is_set())
    assert cleaned.is_set()


def test_a_tool_that_stops_the_loop_stops_nobody(stage: ToolStage) -> None:
    go = asyncio.Event()

    @tool
    async def neighbour() -> str:
        await go.wait()
        return "well"

    @tool
    async def saboteur() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        go.set()
        return "done"

    beside = stage.start(neighbour, "{}")
    assert content_of(stage.call(saboteur)) == "done"
    assert content_of(beside.wait()) == "well"


def test_stopping_cancels(stage: ToolStage) -> None:
    call = stage.start(wait_for_ever, "{}", timeout_seconds=30)
    stage.stop(call)
    assert isinstance(call.wait(), ToolCallCancelled)


def test_wrong_arguments_are_found_on_the_tool_loop(stage: ToolStage) -> None:
    event = stage.call(add, a="x", b=1)
    assert isinstance(event, ToolCallFailed)
    assert event.failure.field == "a"


async def swallow_cancellation() -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def spin() -> None:
    while True:
        pass


@pytest.mark.parametrize("misbehave", [swallow_cancellation, spin])
def test_a_call_that_will_not_end_costs_its_loop_and_no_thread(
    stage: ToolStage, misbehave: Callable[[], Any], until: Until
) -> None:
    begun = threading.Event()

    @tool
    async def stubborn() -> None:
        begun.set()
        await misbehave()

    assert content_of(stage.call(add, a=1, b=2)) == 3
    threads = threading.active_count()
    timed_out_while_hanging(lambda seconds: stage.start(stubborn, "{}", seconds), lambda _: begun.is_set())
    assert content_of(stage.call(add, a=1, b=2)) == 3
    until(lambda: threading.active_count() <= threads)


def test_a_blocked_loop_is_left_in_time_and_its_calls_go_on_afterwards(stage: ToolStage) -> None:
    release, blocked = threading.Event(), threading.Event()

    @tool
    async def block() -> str:
        blocked.set()
        return "released" if release.wait(20) else "forgotten"

    @tool
    async def begun_before() -> str:
        await asyncio.sleep(0.01)
        return "to its end"

    beside = stage.start(begun_before, "{}", timeout_seconds=30)
    blocker = stage.start(block, "{}", timeout_seconds=30)
    assert blocked.wait(10)
    waiting = stage.start(add, '{"a":1,"b":2}', timeout_seconds=4)
    assert content_of(waiting.wait()) == 3, "on another loop, while this one is blocked"
    assert waiting.ended_at - waiting.started_at > 1.9, "it has waited for half of its time"
    release.set()
    assert content_of(blocker.wait()) == "released"
    assert content_of(beside.wait()) == "to its end"


# -- what tools have open belongs to the loop on which they made it


class OnLoop:
    """As the clients of databases and servers are: it can be used on the loop on which it was first used."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None

    async def use(self) -> str:
        self.loop = self.loop or asyncio.get_running_loop()
        if self.loop is not asyncio.get_running_loop():
            raise RuntimeError("it is bound to a different event loop")
        await asyncio.sleep(0)
        return "used"


def spin_for(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "done"


def sleep_for(seconds: float) -> str:
    """In C, with the interpreter free for others."""
    threading.Event().wait(seconds)
    return "done"


def load_json(_: float) -> str:
    json.loads("[" + ",".join(map(str, range(300_000))) + "]")
    return "done"


def compile_for(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        compile("x = [" + "1," * 20_000 + "]", "made", "exec")
    return "done"


def collect_for(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        gc.collect()
    return "done"


@pytest.mark.parametrize("hold", [spin_for, sleep_for, load_json, compile_for, collect_for])
def test_a_call_that_holds_the_loop_in_its_time_costs_the_others_that_time_and_nothing_else(
    stage: ToolStage, hold: Callable[[float], str]
) -> None:
    client, begun = OnLoop(), threading.Event()

    @tool
    async def use() -> str:
        return await client.use()

    @tool
    async def busy() -> str:
        begun.set()
        return hold(0.7)

    assert content_of(stage.call(use)) == "used"
    holding = stage.start(busy, "{}", timeout_seconds=30)
    assert begun.wait(10)
    beside = [stage.start(use, "{}", timeout_seconds=20) for _ in range(3)]
    assert content_of(holding.wait()) == "done"
    assert [content_of(call.wait()) for call in beside] == ["used"] * 3
    assert [content_of(stage.call(use)) for _ in range(3)] == ["used"] * 3


def test_a_tool_that_has_something_open_waits_longer_than_half_its_time(stage: ToolStage) -> None:
    client, begun = OnLoop(), threading.Event()

    @tool
    async def use() -> str:
        return await client.use()

    @tool
    async def busy() -> str:
        begun.set()
        return sleep_for(2.0)

    stage.call(use)
    holding = stage.start(busy, "{}", timeout_seconds=30)
    assert begun.wait(10)
    assert content_of(stage.start(use, "{}", timeout_seconds=3.5).wait()) == "used"
    assert content_of(holding.wait()) == "done"


def test_a_tool_that_went_elsewhere_stays_there(stage: ToolStage) -> None:
    client, begun, release = OnLoop(), threading.Event(), threading.Event()

    @tool
    async def use() -> str:
        return await client.use()

    @tool
    async def block() -> str:
        begun.set()
        return "released" if release.wait(20) else "forgotten"

    blocker = stage.start(block, "{}", timeout_seconds=30)
    assert begun.wait(10)
    assert content_of(stage.start(use, "{}", timeout_seconds=3).wait()) == "used"
    release.set()
    assert content_of(blocker.wait()) == "released"
    assert content_of(stage.call(add, a=1, b=2)) == 3
    assert [content_of(stage.call(use)) for _ in range(5)] == ["used"] * 5


def test_a_call_past_its_deadline_does_not_cost_the_loop_that_another_holds_in_time(stage: ToolStage) -> None:
    client, begun, entered, release = OnLoop(), threading.Event(), threading.Event(), threading.Event()

    @tool
    async def use() -> str:
        return await client.use()

    @tool
    async def innocent() -> None:
        entered.set()
        await asyncio.Event().wait()

    @tool
    async def block() -> str:
        begun.set()
        return "released" if release.wait(20) else "forgotten"

    stage.call(use)
    late = stage.start(innocent, "{}", timeout_seconds=1.5)
    assert entered.wait(10)
    blocker = stage.start(block, "{}", timeout_seconds=30)
    assert begun.wait(10)
    assert isinstance(late.wait(), ToolCallTimedOut)
    release.set()
    assert content_of(blocker.wait()) == "released"
    assert [content_of(stage.call(use)) for _ in range(3)] == ["used"] * 3


def test_any_number_of_calls_have_one_loop(stage: ToolStage) -> None:
    loops: set[int] = set()

    @tool
    async def one(number: int) -> None:
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0.05)

    @tool
    async def other() -> None:
        loops.add(id(asyncio.get_running_loop()))
        await asyncio.sleep(0.05)

    calls = [stage.start(each, arguments, 30) for each, arguments in [(one, '{"number":1}'), (other, "{}")] * 1_200]
    for call in calls:
        assert isinstance(call.wait(), ToolCallCompleted)
    assert len(loops) == 1


def taken(lock: asyncio.Lock) -> asyncio.Lock:
    asyncio.run(lock.acquire())  # type: ignore[arg-type]
    return lock


def filled(queue: asyncio.Queue[str]) -> asyncio.Queue[str]:
    queue.put_nowait("it")
    return queue


def set_event(event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the tool's loop may take its waiter out while this goes over all of them
        event.set()


#: Made, waited for by the tool, woken by the program; and what has those that wait for it.
WAKERS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], object], str]] = {
    "an event": (asyncio.Event, lambda event: event.wait(), set_event, "_waiters"),
    "a queue": (asyncio.Queue, lambda queue: queue.get(), lambda queue: queue.put_nowait("it"), "_getters"),
    "a full queue": (lambda: filled(asyncio.Queue(1)), lambda q: q.put("more"), lambda q: q.get_nowait(), "_putters"),
    "a lock": (lambda: taken(asyncio.Lock()), lambda lock: lock.acquire(), lambda lock: lock.release(), "_waiters"),
    "a semaphore": (lambda: asyncio.Semaphore(0), lambda each: each.acquire(), lambda each: each.release(), "_waiters"),
}


@pytest.mark.parametrize("what", WAKERS)
def test_what_the_program_shares_with_a_tool_wakes_it_and_a_warning_says_what_is_better(
    stage: ToolStage, what: str, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    make, wait, wake, waiters = WAKERS[what]
    shared = make()

    @tool
    async def by_hand() -> str:
        await wait(shared)
        return "woken"

    call = stage.start(by_hand, "{}", timeout_seconds=30)
    until(lambda: bool(getattr(shared, waiters)))
    wake(shared)
    assert content_of(call.wait()) == "woken"
    assert 'isolation="caller"' in caplog.text


def contended_lock() -> Callable[[], Any]:
    """It knows a loop that is not the tool's."""
    lock = asyncio.Lock()

    async def contend() -> None:
        await lock.acquire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await lock.acquire()

    asyncio.run(contend())
    return lock.acquire


def future_of_another_loop() -> Callable[[], Any]:
    async def make() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    future = asyncio.run(make())

    async def wait() -> None:
        await future

    return wait


def futures_of_two_loops() -> Callable[[], Any]:
    async def make() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    futures = asyncio.run(make()), asyncio.run(make())

    async def gather() -> None:
        await asyncio.gather(*futures)

    return gather


def closed_loop() -> Callable[[], Any]:
    loop = asyncio.new_event_loop()
    loop.close()

    async def use() -> None:
        loop.call_soon(print)

    return use


def says(text: str, kind: type[Exception] = RuntimeError) -> Callable[[], Callable[[], Any]]:
    """What a library says that is not installed here."""

    async def use() -> None:
        raise kind(text)

    return lambda: use


def wrapped() -> Callable[[], Any]:
    async def use() -> None:
        try:
            raise RuntimeError("Event loop is closed")
        except RuntimeError as error:
            raise ConnectionError("the pool is broken") from error

    return use


def grouped() -> Callable[[], Any]:
    async def use() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(contended_in_thread())

    async def contended_in_thread() -> None:
        await (await asyncio.to_thread(contended_lock))()

    return use


OTHER_LOOPS: dict[str, Callable[[], Callable[[], Any]]] = {
    "a lock": contended_lock,
    "a future": future_of_another_loop,
    "futures": futures_of_two_loops,
    "a loop that is closed": closed_loop,
    "aiohttp": says("Timeout context manager should be used inside a task"),
    "asyncpg": says("cannot perform operation: another operation is in progress", ConnectionError),
    "pymongo": says("Cannot use AsyncMongoClient in different event loop."),
    "anyio": says("Attempted to exit cancel scope in a different task than it was entered in"),
    "a debug loop": says("Non-thread-safe operation invoked on an event loop other than the current one"),
    "a cause": wrapped,
    "in a group": grouped,
}


@pytest.mark.parametrize("what", OTHER_LOOPS)
def test_an_error_about_another_loop_says_where_async_tools_run(stage: ToolStage, what: str) -> None:
    use = OTHER_LOOPS[what]()

    @tool
    async def by_hand() -> None:
        await use()

    event = stage.call(by_hand)
    assert isinstance(event, ToolCallFailed)
    assert "async tools run on one of callboard's own" in event.failure.message
    assert '@tool(isolation="caller")' in event.failure.message
    assert "@tool(resource=...)" in event.failure.message


@pytest.mark.parametrize("error", [ValueError("no such loop"), ToolError("another operation is in progress: wait")])
def test_other_errors_are_told_as_they_are(stage: ToolStage, error: Exception) -> None:
    @tool
    async def by_hand() -> None:
        raise error

    event = stage.call(by_hand)
    assert isinstance(event, ToolCallFailed)
    assert "caller" not in event.failure.message


def test_calls_that_came_together_with_one_that_blocks_go_elsewhere(stage: ToolStage) -> None:
    """Their tasks were made in the same turn of the loop; they waited for the blocker, at most to their deadline."""
    gate, holding, release = threading.Event(), threading.Event(), threading.Event()

    @tool
    async def hold() -> None:
        holding.set()
        gate.wait(20)

    @tool
    async def block() -> str:
        return "released" if release.wait(20) else "forgotten"

    stage.start(hold, "{}")
    assert holding.wait(10)
    blocker = stage.start(block, "{}", timeout_seconds=30)
    others = [stage.start(add, '{"a":1,"b":2}', timeout_seconds=5) for _ in range(3)]
    gate.set()
    assert [content_of(call.wait()) for call in others] == [3, 3, 3]
    assert [len(call.events) for call in others] == [2, 2, 2]
    assert len(blocker.events) == 1, "it still blocks its loop"
    release.set()
    assert content_of(blocker.wait()) == "released"


def test_a_call_that_never_began_holds_no_thread(stage: ToolStage) -> None:
    release, blocked = threading.Event(), threading.Event()

    @tool
    async def block() -> None:
        blocked.set()
        release.wait(20)

    blocker = stage.start(block, "{}", timeout_seconds=30)
    assert blocked.wait(10)
    assert isinstance(stage.start(add, '{"a":1,"b":2}', timeout_seconds=0.01).wait(), ToolCallTimedOut)
    assert content_of(stage.start(add, '{"a":1,"b":2}', timeout_seconds=4).wait()) == 3
    assert not stage.held_threads.get(add.name)
    release.set()
    blocker.wait()


def test_a_call_that_blocks_in_c_is_counted_until_it_returns(stage: ToolStage, until: Until) -> None:
    release, blocked = threading.Event(), threading.Event()

    @tool
    async def block() -> None:
        blocked.set()
        release.wait(20)

    timed_out_while_hanging(lambda seconds: stage.start(block, "{}", seconds), lambda _: blocked.is_set())
    assert stage.held_threads == {"block": 1}
    release.set()
    until(lambda: stage.held_threads == {"block": 0})


def test_stopping_the_pool_ends_its_calls_with_one_outcome() -> None:
    with ToolStage() as stage:
        call = stage.start(wait_for_ever, "{}", timeout_seconds=30)
        stage.call(add, a=1, b=2)
    assert isinstance(call.wait(), ToolCallCancelled)
    assert len(call.events) == 2


def test_no_more_calls_run_at_once_than_the_loop_takes() -> None:
    two = WorkerKind(lambda reports, _pool: TaskWorker(reports), room=2)
    running: list[int] = []
    seen: list[int] = []

    @tool(isolation="task")
    async def crowd(number: int) -> None:
        running.append(number)
        for _ in range(100):  # the others get their turn, if they have begun
            await asyncio.sleep(0)
            seen.append(len(running))
        running.remove(number)

    with ToolStage(kind=lambda _: two) as stage:
        calls = [stage.start(crowd, json.dumps({"number": number})) for number in range(6)]
        assert all(isinstance(call.wait(), ToolCallCompleted) for call in calls)
    assert max(seen) == 2


# -- one tool against the others on its loop


async def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(0)


async def cancel_all_in_a_callback() -> None:
    loop = asyncio.get_running_loop()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[operator]
        loop.call_soon(task.cancel)
    await asyncio.sleep(0.01)


async def end_what_the_loop_needs() -> None:
    loop = asyncio.get_running_loop()
    await loop.shutdown_default_executor()
    await loop.shutdown_asyncgens()


async def take_the_loop() -> None:
    asyncio.get_running_loop().run_until_complete(asyncio.sleep(0))


async def close_the_loop() -> None:
    asyncio.get_running_loop().close()


async def set_another_loop() -> None:
    other = asyncio.new_event_loop()
    asyncio.set_event_loop(other)
    other.close()


async def refuse_all_tasks() -> None:
    def refuse(loop: asyncio.AbstractEventLoop, coroutine: Any, **given: Any) -> Any:
        coroutine.close()
        raise MemoryError("no tasks any more")

    asyncio.get_running_loop().set_task_factory(refuse)


async def swallow_all_errors() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)


@pytest.mark.parametrize(
    "attack",
    [
        cancel_all,
        cancel_all_in_a_callback,
        end_what_the_loop_needs,
        take_the_loop,
        close_the_loop,
        set_another_loop,
        refuse_all_tasks,
        swallow_all_errors,
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'sleep' was never awaited")
def test_what_a_tool_does_to_the_loop_does_not_reach_its_neighbours(
    stage: ToolStage, attack: Callable[[], Any]
) -> None:
    go, waiting = asyncio.Event(), threading.Semaphore(0)

    @tool
    async def neighbour(number: int) -> int:
        waiting.release()
        await go.wait()
        counted = await asyncio.gather(asyncio.to_thread(lambda: number), asyncio.sleep(0.001, number))
        return sum(counted)

    @tool
    async def attacker() -> None:
        try:
            await attack()
        finally:
            go.set()

    beside = [stage.start(neighbour, json.dumps({"number": number})) for number in range(5)]
    for _ in beside:
        assert waiting.acquire(timeout=10)
    stage.start(attacker, "{}").wait()
    assert [content_of(call.wait()) for call in beside] == [0, 2, 4, 6, 8]
    assert content_of(stage.call(add, a=1, b=2)) == 3


def test_a_tool_may_cancel_its_own_tasks(stage: ToolStage) -> None:
    @tool
    async def impatient() -> str:
        child = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        child.cancel()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return f"{child.cancelled()}"
        return "never"

    assert content_of(stage.call(impatient)) == "True"


def test_a_call_that_a_thread_of_another_tool_cancels_is_our_failure_and_not_its_own(stage: ToolStage) -> None:
    """A thread has no context by which the attacker could be known; the call ends, and is not blamed."""
    waiting = threading.Event()

    @tool
    async def neighbour() -> None:
        waiting.set()
        await asyncio.Event().wait()

    @tool
    async def attacker() -> str:
        loop, others = asyncio.get_running_loop(), asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[operator]

        def cancel() -> None:
            for task in others:
                loop.call_soon_threadsafe(task.cancel)

        thread = threading.Thread(target=cancel)
        thread.start()
        thread.join()
        return "done"

    beside = stage.start(neighbour, "{}")
    assert waiting.wait(10)
    assert content_of(stage.call(attacker)) == "done"
    event = beside.wait()
    assert isinstance(event, ToolCallFailed)
    assert event.failure.code is FailureCode.INTERNAL_ERROR
    assert event.failure.message == "neighbour was cancelled by another tool on its loop"


@tool(isolation="thread")
def add_on_a_thread(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("plus", [add, add_on_a_thread], ids=["task", "thread"])
def test_a_host_without_threads_refuses_all_calls_and_none_of_the_next(
    stage: ToolStage, monkeypatch: pytest.MonkeyPatch, plus: Tool
) -> None:
    """Many at once: a call that waits is not given to a worker that ends for want of a thread."""

    def no_threads(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_threads)
        refused = [stage.start(plus, '{"a": 1, "b": 2}') for _ in range(100)]
        ended = [call.wait() for call in refused]
    assert {(type(event), event.failure.code) for event in ended if isinstance(event, ToolCallFailed)} == {
        (ToolCallFailed, FailureCode.OVERLOADED)
    }
    assert all(isinstance(event, ToolCallFailed) and "new thread" in event.failure.message for event in ended)
    assert not any(stage.held_threads.values())
    assert content_of(stage.call(plus, a=1, b=2)) == 3


# -- whose context


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.mark.parametrize("isolation", ["task", "thread"])
def test_a_call_runs_in_a_copy_of_its_askers_context(stage: ToolStage, isolation: str) -> None:
    def seen() -> str:
        before = WHO.get()
        WHO.set("changed by the tool")
        return before

    async def seen_async() -> str:
        await asyncio.sleep(0.001)
        return seen()

    look = tool(isolation=isolation)(seen_async if isolation == "task" else seen)  # type: ignore[type-var]

    def asker(name: str) -> contextvars.Context:
        context = contextvars.Context()
        context.run(WHO.set, name)
        return context

    askers = [asker(f"asker {number}") for number in range(20)]
    calls = [stage.start(look, "{}", asker=context) for context in askers * 2]
    assert [content_of(call.wait()) for call in calls] == [f"asker {number}" for number in range(20)] * 2
    assert [context[WHO] for context in askers] == [f"asker {number}" for number in range(20)]
    assert content_of(stage.call(look)) == "nobody"


# -- exceptions that come when their call is over


def of_loop(frame: FrameType) -> bool:
    """Not of the kernel's mailboxes (tests/actors/kernel/ is for them), and not of the call that is begun next."""
    of = frame.f_code.co_filename
    return "/tests/" not in of and ("/kernel/" not in of or frame.f_code.co_qualname.startswith("SteadyLoop"))


@pytest.fixture
def unheard() -> Iterator[None]:
    """Nothing keeps what is logged: coroutines of tasks that were struck while they were made go at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
        logging.disable()
        yield
        logging.disable(logging.NOTSET)
        gc.collect()


@pytest.mark.usefixtures("unheard")
def test_an_exception_that_strikes_the_loop_between_two_calls_costs_neither(stage: ToolStage) -> None:
    """At each point at which CPython looks for one: from the end of a call's code to the begin of the next one's."""
    strike = Strike(0, of_loop, lambda frame: frame.f_code.co_name == "_run")

    @tool
    async def over() -> str:
        strike.arm()
        return "over"

    @tool
    async def innocent() -> str:
        sys.settrace(None)
        return "innocent"

    found = []
    for at in itertools.count():
        strike = Strike(at, of_loop, lambda frame: frame.f_code.co_name == "_run")
        events = [stage.call(over), stage.call(innocent)]
        if not strike.has_struck:
            break
        if not isinstance(events[1], ToolCallCompleted):
            found.append((strike.where, events))
    assert not found
    assert at > 50, "there are more points"


def test_an_exception_that_strikes_the_loop_is_nothing_to_calls_that_wait_on_it(stage: ToolStage, until: Until) -> None:
    idents: list[int] = []

    @tool
    async def wait_for_turn(seconds: float) -> str:
        idents.append(threading.get_ident())
        await asyncio.sleep(seconds)
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0)
        return "undisturbed"

    calls = [stage.start(wait_for_turn, json.dumps({"seconds": 0.5 + at / 100}), 30) for at in range(60)]
    until(lambda: len(idents) == 60)
    for _ in range(20):
        until(lambda: sys._current_frames()[idents[0]].f_code.co_name == "select")
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(idents[0]), ctypes.py_object(Late))
        assert content_of(stage.call(add, a=1, b=2)) == 3, "it wakes the loop"
    assert [content_of(call.wait()) for call in calls] == ["undisturbed"] * 60

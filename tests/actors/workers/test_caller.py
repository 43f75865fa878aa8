"""Tools with isolation="caller": on the loop from which their question was asked, with what the program has there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from support.patience import timed_out_while_hanging

from callboard import Runtime, Settings, ToolContext, UsageError, tool
from callboard.actors.requests.direct_calls import CallResult
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool
from callboard.actors.tools.context import asked_by_others, context_of_asker
from callboard.protocol.tools import FailureCode
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]


def asks(name: str, arguments: dict[str, object] | None = None) -> list[Any]:
    """The script of a model that calls the tool once and says what it got."""
    return [ScriptedTurn(calls=(ScriptedCall(name, arguments or {}),)), ScriptedTurn("done")]


def runtime_with(*tools: Tool, loop: asyncio.AbstractEventLoop | None = None, script: Any = None) -> Runtime:
    return Runtime(Settings(model="scripted/model", script=script or ["x"]), tools=tools, loop=loop)


async def call(given: Tool, **arguments: object) -> CallResult:
    async with runtime_with(given) as runtime:
        return await runtime.call_tool(given.name, arguments)


def text_of(result: CallResult) -> str:
    assert result.ok, result.failure
    return result.content


# -- what a program has on its own loop


async def _lock(found: list[object]) -> Callable[[], Awaitable[object]]:
    lock = asyncio.Lock()
    await lock.acquire()
    waiting = asyncio.ensure_future(lock.acquire())  # now the lock knows its loop
    await asyncio.sleep(0)
    lock.release()
    await waiting
    asyncio.get_running_loop().call_later(0.02, lock.release)
    return lock.acquire


async def _event(found: list[object]) -> Callable[[], Awaitable[object]]:
    event = asyncio.Event()
    found.append(waiting := asyncio.ensure_future(event.wait()))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.02, event.set)
    assert not waiting.done()
    return event.wait


async def _queue(found: list[object]) -> Callable[[], Awaitable[object]]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    asyncio.get_running_loop().call_later(0.02, queue.put_nowait, "it")
    return queue.get


async def _future(found: list[object]) -> Callable[[], Awaitable[object]]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.02, future.set_result, "it")

    async def wait() -> object:
        return await future

    return wait


async def _task(found: list[object]) -> Callable[[], Awaitable[object]]:
    task = asyncio.create_task(asyncio.sleep(0.02, "it"))

    async def wait() -> object:
        return await task

    return wait


async def _semaphore(found: list[object]) -> Callable[[], Awaitable[object]]:
    semaphore = asyncio.Semaphore(1)
    await semaphore.acquire()
    found.append(asyncio.ensure_future(semaphore.acquire()))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.02, lambda: (semaphore.release(), semaphore.release()))
    return semaphore.acquire


async def _condition(found: list[object]) -> Callable[[], Awaitable[object]]:
    condition = asyncio.Condition()

    async def tell() -> None:
        async with condition:
            condition.notify_all()

    async def wait() -> bool:
        async with condition:
            found.append(asyncio.ensure_future(tell()))
            return await condition.wait()

    return wait


async def _connection(found: list[object]) -> Callable[[], Awaitable[object]]:
    """As every client has them, and a pool keeps."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await reader.read()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1")
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    found += [server, writer]

    async def ask() -> str:
        writer.write(b"it\n")
        await writer.drain()
        answer = await reader.readline()
        writer.close()
        server.close()
        return answer.decode().strip()

    return ask


HAVE = (_lock, _event, _queue, _future, _task, _semaphore, _condition, _connection)


@pytest.mark.parametrize("make", HAVE, ids=lambda make: make.__name__[1:])
def test_it_may_use_what_the_program_has_on_its_loop(make: Callable[[list[object]], Awaitable[Any]]) -> None:
    async def main() -> str:
        found: list[object] = []
        use = await make(found)

        @tool(isolation="caller")
        async def by_hand() -> str:
            return str(await use())

        return text_of(await call(by_hand))

    assert asyncio.run(main()) in ("it", "True")


@tool(isolation="caller")
async def where() -> str:
    return f"{id(asyncio.get_running_loop())} {threading.current_thread().name}"


def here() -> str:
    return f"{id(asyncio.get_running_loop())} {threading.current_thread().name}"


async def by_call_tool(runtime: Runtime) -> None:
    await runtime.call_tool("note")


async def by_ask(runtime: Runtime) -> None:
    await runtime.ask("go")


async def by_stream(runtime: Runtime) -> None:
    async for _ in runtime.stream("go"):
        pass


async def by_start_request(runtime: Runtime) -> None:
    await runtime.result(await runtime.start_request("go"))


async def by_follow(runtime: Runtime) -> None:
    async for _ in runtime.follow(await runtime.start_request("go")):
        pass


async def by_a_task_of_its_own(runtime: Runtime) -> None:
    await asyncio.create_task(by_ask(runtime))


async def by_a_tool_on_our_loop(runtime: Runtime) -> None:
    await runtime.call_tool("go_on")


async def by_a_tool_on_a_thread(runtime: Runtime) -> None:
    await runtime.call_tool("go_on_by_thread")


ASKED = (
    by_call_tool, by_ask, by_stream, by_start_request, by_follow, by_a_task_of_its_own, by_a_tool_on_our_loop,
    by_a_tool_on_a_thread,
)  # fmt: skip


@pytest.mark.parametrize("ask", ASKED, ids=lambda ask: ask.__name__)
def test_it_runs_on_the_loop_from_which_it_was_asked(ask: Callable[[Runtime], Awaitable[None]]) -> None:
    async def main() -> None:
        seen: list[str] = []

        @tool(isolation="caller")
        async def note() -> None:
            seen.append(here())

        @tool
        async def go_on() -> None:
            await runtime.ask("go")

        @tool(isolation="thread")
        def go_on_by_thread() -> None:
            runtime.ask_sync("go")

        async with runtime_with(note, go_on, go_on_by_thread, script=asks("note")) as runtime:
            await ask(runtime)
        assert seen == [here()]

    asyncio.run(main())


def test_each_question_has_the_loop_from_which_it_was_asked() -> None:
    with runtime_with(where) as runtime:

        async def main() -> None:
            assert text_of(await runtime.call_tool("where")) == here()

        for _ in range(3):
            asyncio.run(main())


@contextlib.contextmanager
def loop_of_the_program() -> Iterator[asyncio.AbstractEventLoop]:
    """On a thread, as a sync host has one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="the program's")
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_a_sync_host_names_the_loop() -> None:
    with loop_of_the_program() as loop, runtime_with(where, loop=loop, script=asks("where")) as runtime:
        reply = runtime.ask_sync("go")
        assert f"{id(loop)} the program's" in str(reply.messages)

        async def main() -> str:
            return text_of(await runtime.call_tool("where"))

        assert asyncio.run(main()) == f"{id(loop)} the program's", "the named one is for all questions"


def test_what_is_no_loop_is_refused() -> None:
    with pytest.raises(UsageError, match="takes an event loop"):
        Runtime(Settings(), loop=asyncio)  # type: ignore[arg-type]


def test_without_a_loop_the_call_says_what_to_do() -> None:
    with runtime_with(where, script=asks("where")) as runtime:
        (failure,) = runtime.ask_sync("go").failures
    assert "where was not run: " in failure.message
    assert "It had no effect" in failure.retry_hint
    assert "Runtime(loop=...)" in failure.message


def test_on_a_loop_that_waits_for_it_the_call_says_so_at_once() -> None:
    async def main() -> None:
        with runtime_with(where, script=asks("where") * 2) as runtime:
            for reply in (runtime.ask_sync("go"), [*runtime.stream_sync("go")][-1]):
                (failure,) = reply.failures  # type: ignore[union-attr]
                assert "await runtime.ask" in failure.message

    asyncio.run(main())


def test_over_http_a_question_has_no_loop() -> None:
    async def main() -> CallResult:
        async with runtime_with(where) as runtime:
            with asked_by_others():
                result = await runtime.call_tool("where")
            assert (await runtime.call_tool("where")).ok
            return result

    failure = asyncio.run(main()).failure
    assert failure is not None
    assert "Runtime(loop=...)" in failure.message


def test_on_a_closed_loop_the_call_says_so() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with runtime_with(where, loop=loop, script=asks("where")) as runtime:
        (failure,) = runtime.ask_sync("go").failures
    assert "is closed" in failure.message


def test_where_the_loop_is_blocked_the_call_says_so_at_its_deadline() -> None:
    @tool(isolation="caller", timeout=0.2)
    async def never() -> None:
        raise AssertionError("it has run")

    loop = asyncio.new_event_loop()  # which never runs
    with runtime_with(never, loop=loop, script=asks("never")) as runtime:
        (failure,) = runtime.ask_sync("go").failures
    loop.close()
    assert failure.code is FailureCode.TIMED_OUT
    assert "it is blocked, or does not run" in failure.message
    assert "It had no effect" in failure.retry_hint


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(UsageError, match="runs an `async def`"):

        @tool(isolation="caller")
        def plain() -> None: ...


# -- supervision


def context_with(loop: asyncio.AbstractEventLoop) -> contextvars.Context:
    """As a question asked from this loop has it."""

    async def asked() -> contextvars.Context:
        return context_of_asker(asyncio.get_running_loop(), is_waiting=False)

    return asyncio.run_coroutine_threadsafe(asked(), loop).result(10)


def test_a_call_is_cancelled_at_its_deadline_and_cleans_up() -> None:
    begun, cleaned = threading.Event(), threading.Event()

    @tool(isolation="caller")
    async def careful() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    with loop_of_the_program() as loop, ToolStage() as stage:
        asker = context_with(loop)
        timed_out_while_hanging(lambda seconds: stage.start(careful, "{}", seconds, asker), lambda _: begun.is_set())
        assert cleaned.is_set()


def test_a_call_ends_though_its_task_does_not_which_is_counted_until_it_does(until: Until) -> None:
    begun, release = threading.Event(), threading.Event()

    @tool(isolation="caller")
    async def deaf() -> None:
        begun.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    with loop_of_the_program() as loop, ToolStage() as stage:
        asker = context_with(loop)
        timed_out_while_hanging(lambda seconds: stage.start(deaf, "{}", seconds, asker), lambda _: begun.is_set())
        assert stage.held_threads == {"deaf": 1}
        assert stage.start(where, "{}", asker=asker).wait()
        release.set()
        until(lambda: stage.held_threads["deaf"] == 0)  # type: ignore[index]


def test_cancelling_the_question_cancels_the_task() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        @tool(isolation="caller")
        async def long() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        async with runtime_with(long) as runtime:
            asking = asyncio.create_task(runtime.call_tool("long"))
            await begun.wait()
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.wait_for(ended.wait(), 10)

    asyncio.run(main())


def test_stopping_the_runtime_waits_for_the_clean_up() -> None:
    async def main() -> list[str]:
        begun, seen = asyncio.Event(), list[str]()

        @tool(isolation="caller")
        async def long() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                seen.append("cleaned up")

        async with runtime_with(long) as runtime:
            asking = asyncio.create_task(runtime.call_tool("long"))
            await begun.wait()
        seen.append("stopped")
        await asyncio.wait([asking])
        return seen

    assert asyncio.run(main()) == ["cleaned up", "stopped"]


def test_a_program_that_cancels_its_tasks_ends_the_call() -> None:
    async def main() -> CallResult:
        begun = asyncio.Event()

        @tool(isolation="caller")
        async def long() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with runtime_with(long) as runtime:
            asking = asyncio.create_task(runtime.call_tool("long"))
            await begun.wait()
            for task in asyncio.all_tasks() - {asking, asyncio.current_task()}:
                task.cancel()
            return await asking

    failure = asyncio.run(main()).failure
    assert failure is not None
    assert "CancelledError" in failure.message


FAILS: dict[str, tuple[Callable[[], object], FailureCode]] = {
    "an exception": (lambda: 1 / 0, FailureCode.TOOL_ERROR),
    "sys.exit": (lambda: _raise(SystemExit(3)), FailureCode.CRASHED),
    "KeyboardInterrupt": (lambda: _raise(KeyboardInterrupt()), FailureCode.TOOL_ERROR),
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("how", FAILS)
def test_what_it_raises_is_one_failure_and_the_program_goes_on(how: str) -> None:
    raise_it, code = FAILS[how]

    @tool(isolation="caller")
    async def fail() -> None:
        raise_it()

    failure = asyncio.run(call(fail)).failure
    assert failure is not None
    assert failure.code is code


def test_what_is_of_yet_another_loop_is_told_without_the_advice_to_run_here() -> None:
    @tool(isolation="caller")
    async def fail() -> None:
        raise RuntimeError("it is bound to a different event loop")

    failure = asyncio.run(call(fail)).failure
    assert failure is not None
    assert failure.message == "RuntimeError: it is bound to a different event loop"


def test_ctrl_c_reaches_a_program_that_runs_its_loop_itself() -> None:
    @tool(isolation="caller")
    async def works() -> None:
        signal.raise_signal(signal.SIGINT)

    loop = asyncio.new_event_loop()
    with runtime_with(works) as runtime:
        asking = loop.create_task(runtime.call_tool("works"))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asking)
        asking.cancel()
        loop.run_until_complete(asyncio.wait({asking}))
        assert asking.cancelled() or asking.result().failure is not None
    loop.close()


# -- what goes with a call

_variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


def test_context_variables_and_progress() -> None:
    @tool(isolation="caller")
    async def look(context: ToolContext) -> str:
        context.progress("half", 0.5)
        before = _variable.get()
        _variable.set("of the tool")
        return f"{before} {context.metadata['of']}"

    async def main() -> tuple[str, list[str]]:
        said: list[str] = []
        _variable.set("of the host")
        async with runtime_with(look) as runtime:
            result = await runtime.call_tool(
                "look", on_progress=lambda made: said.append(made.message), metadata={"of": "it"}
            )
        assert _variable.get() == "of the host"
        return text_of(result), said

    assert asyncio.run(main()) == ("of the host it", ["half"])


def test_a_hundred_calls_side_by_side() -> None:
    async def main() -> list[str]:
        barrier = asyncio.Barrier(100)

        @tool(isolation="caller")
        async def meet(number: int) -> int:
            await barrier.wait()
            return number

        async with runtime_with(meet) as runtime:
            calls = [runtime.call_tool("meet", {"number": number}) for number in range(100)]
            return [text_of(each) for each in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [str(number) for number in range(100)]


def test_what_it_opens_is_closed_on_its_loop() -> None:
    seen: list[str] = []

    async def opened() -> AsyncIterator[str]:
        seen.append(f"open {here()}")
        yield "it"
        await asyncio.sleep(0)
        seen.append(f"closed {here()}")

    @tool(isolation="caller", resource=opened)
    async def use(resource: str) -> str:
        return resource

    async def main() -> None:
        async with runtime_with(use) as runtime:
            assert [text_of(await runtime.call_tool("use")) for _ in range(3)] == ["it"] * 3
        assert seen == [f"open {here()}", f"closed {here()}"]

    asyncio.run(main())


def test_a_stop_that_blocks_the_loop_leaves_nothing_open_there() -> None:
    async def main() -> None:
        begun, is_over, is_closed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        closed: list[str] = []

        async def opened() -> AsyncIterator[None]:
            yield
            await asyncio.sleep(0)
            closed.append("opened")
            is_closed.set()

        @tool(isolation="caller", resource=opened)
        async def long(resource: None) -> None:
            begun.set()
            try:
                await is_over.wait()
            finally:
                await asyncio.sleep(0)
                closed.append("call")

        with runtime_with(long) as runtime:
            asking = asyncio.create_task(runtime.call_tool("long"))
            await begun.wait()
        gc.collect()
        await asyncio.wait_for(is_closed.wait(), 60)
        assert closed == ["call", "opened"]
        await asyncio.wait({asking})

    asyncio.run(main())


def test_a_loop_that_ends_takes_what_was_opened_on_it_and_the_next_one_opens_its_own() -> None:
    seen: list[str] = []

    async def opened() -> AsyncIterator[int]:
        seen.append("open")
        try:
            yield id(asyncio.get_running_loop())
        finally:
            seen.append("closed")

    @tool(isolation="caller", resource=opened)
    async def use(resource: int) -> bool:
        return resource == id(asyncio.get_running_loop())

    with runtime_with(use) as runtime:

        async def main() -> None:
            assert text_of(await runtime.call_tool("use")) == "true"

        asyncio.run(main())
        asyncio.run(main())
    assert seen == ["open", "closed"] * 2

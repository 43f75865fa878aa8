"""`@tool(resource=...)`: what a tool keeps open is opened once where it runs, opened anew after that was replaced, and
closed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from support.patience import timed_out_while_hanging

from callboard import Runtime, Settings, UsageError, tool
from callboard.actors.testing.tool_stage import ToolStage
from callboard.actors.tools import Tool
from callboard.protocol.events import ToolCallCompleted, ToolCallEnd, ToolCallFailed, ToolCallTimedOut
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]
#: For a call in a process: the first of a stage starts an interpreter, on a machine that may be busy.
SECONDS = 50.0
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="process isolation is made of Linux's system calls")


@pytest.fixture(scope="module")
def stage() -> Iterator[ToolStage]:
    with ToolStage() as stage:
        yield stage


@contextlib.contextmanager
def ended_loops() -> Iterator[None]:
    """Around a stage: at its end, the loops of its tools have ended too."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def content_of(event: ToolCallEnd) -> str:
    assert isinstance(event, ToolCallCompleted), event
    return event.content


def message_of(event: ToolCallEnd) -> str:
    assert isinstance(event, ToolCallFailed), event
    return event.failure.message


class Log:
    """What was opened and closed, and on which thread."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.threads: set[int] = set()

    def open(self) -> str:
        self.opened += 1
        self.threads.add(threading.get_ident())
        return f"number {self.opened}"

    def close(self) -> None:
        self.closed += 1
        self.threads.add(threading.get_ident())


class Closes:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.value = log.open()

    def __enter__(self) -> str:
        return self.value

    def __exit__(self, *_: object) -> None:
        self.log.close()


class ClosesLater:
    def __init__(self, log: Log) -> None:
        self.log = log
        self.value = ""

    async def __aenter__(self) -> str:
        await asyncio.sleep(0)
        self.value = self.log.open()
        return self.value

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self.log.close()


def sync_forms(log: Log) -> dict[str, Callable[[], object]]:
    def generator() -> Iterator[str]:
        yield log.open()
        log.close()

    @contextlib.contextmanager
    def managed() -> Iterator[str]:
        try:
            yield log.open()
        finally:
            log.close()

    class Made(Closes):
        def __init__(self) -> None:
            super().__init__(log)

    return {
        "a generator": generator,
        "a context manager": managed,
        "a class": Made,
        "a lambda": lambda: Closes(log),
        "a lambda to a generator": lambda: generator(),
        "a partial": functools.partial(Closes, log),
    }


def async_forms(log: Log) -> dict[str, Callable[[], object]]:
    async def generator() -> AsyncIterator[str]:
        yield log.open()
        log.close()

    @contextlib.asynccontextmanager
    async def managed() -> AsyncIterator[str]:
        async with ClosesLater(log) as value:
            yield value

    class Made(ClosesLater):
        def __init__(self) -> None:
            super().__init__(log)

    return {
        "an async generator": generator,
        "an async context manager": managed,
        "an async class": Made,
        "a lambda to an async one": lambda: ClosesLater(log),
        "a lambda to an async generator": lambda: generator(),
        "a partial to an async one": functools.partial(ClosesLater, log),
    }


@pytest.mark.parametrize("form", [*sync_forms(Log()), *async_forms(Log())])
def test_async_tools_share_one_that_is_closed_at_the_end(form: str) -> None:
    log = Log()
    opens: Any = {**sync_forms(log), **async_forms(log)}[form]

    @tool(resource=opens)
    async def one(resource: str) -> str:
        await asyncio.sleep(0)
        return resource

    @tool(resource=opens)
    async def other(resource: str, again: bool = True) -> str:
        return f"{resource} {again}"

    with ended_loops(), ToolStage() as stage:
        calls = [stage.start(one, "{}") for _ in range(20)] + [stage.start(other, "{}") for _ in range(2)]
        assert [content_of(call.wait()) for call in calls] == ["number 1"] * 20 + ["number 1 True"] * 2
        assert (log.opened, log.closed) == (1, 0)
    assert (log.opened, log.closed, len(log.threads)) == (1, 1, 1)


@pytest.mark.parametrize("form", sync_forms(Log()))
def test_a_thread_keeps_its_own(form: str) -> None:
    log = Log()

    @tool(isolation="thread", resource=sync_forms(log)[form])
    def one(resource: str) -> str:
        return resource

    with ToolStage() as stage:
        assert [content_of(stage.call(one)) for _ in range(5)] == ["number 1"] * 5
        assert (log.opened, log.closed) == (1, 0)
    assert log.closed == 1, "the stop has waited for it"
    assert len(log.threads) == 1


@on_linux
@pytest.mark.parametrize("reuse", [False, True])
def test_a_child_keeps_its_own(reuse: bool, tmp_path: Path, until: Until) -> None:
    log = tmp_path / "log"

    def opened() -> Iterator[int]:
        with log.open("a") as file:
            threading.Thread(target=threading.Event().wait, daemon=True).start()  # as the pools of databases do
            file.write("open ")
            file.flush()
            yield os.getpid()
            file.write("closed ")

    @tool(reuse=reuse, resource=opened)
    def one(resource: int) -> bool:
        return resource == os.getpid()

    with ToolStage() as stage:
        assert [content_of(stage.start(one, "{}", SECONDS).wait()) for _ in range(3)] == ["true"] * 3
        assert log.read_text().split() == (["open"] if reuse else ["open", "closed"] * 3)
    until(lambda: log.read_text().split().count("closed") == (1 if reuse else 3))


def test_it_is_entered_and_left_in_one_task_of_its_own() -> None:
    """Else task groups and cancel scopes, of which clients are made, complain."""
    tasks: list[object] = []

    async def opened() -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group:
            helper = group.create_task(asyncio.Event().wait())
            yield "it"
            helper.cancel()
        tasks.append(asyncio.current_task())

    @tool(resource=opened)
    async def use(resource: str) -> str:
        tasks.append(asyncio.current_task())
        return resource

    with ended_loops(), ToolStage() as stage:
        assert content_of(stage.call(use)) == "it"
    opener, user, closer = tasks
    assert opener is closer
    assert opener is not user


def test_a_loop_that_was_replaced_takes_its_own_with_it(stage: ToolStage, until: Until) -> None:
    log, begun = Log(), threading.Event()

    @tool(resource=lambda: ClosesLater(log))
    async def use(resource: str) -> str:
        return resource

    @tool
    async def deaf() -> None:
        begun.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    assert content_of(stage.call(use)) == "number 1"
    timed_out_while_hanging(lambda seconds: stage.start(deaf, "{}", seconds), lambda _: begun.is_set())
    assert content_of(stage.call(use)) == "number 2"
    until(lambda: log.closed == 1)


def test_tools_cannot_cancel_what_keeps_it_open(stage: ToolStage) -> None:
    log = Log()

    @tool(resource=lambda: ClosesLater(log))
    async def attack(resource: str) -> str:
        for task in asyncio.all_tasks():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return resource

    assert [content_of(stage.call(attack)) for _ in range(2)] == ["number 1"] * 2
    assert log.closed == 0


ISOLATIONS = [
    "task",
    "thread",
    pytest.param("process", marks=on_linux),
]


def tool_of(isolation: str, opened: Callable[[], object]) -> Tool:
    if isolation == "task":

        @tool(resource=opened)
        async def use_async(resource: str) -> str:
            return resource

        return use_async

    @tool(isolation=isolation, resource=opened)  # type: ignore[arg-type]
    def use(resource: str) -> str:
        return resource

    return use


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_one_that_does_not_open_fails_the_call_and_is_tried_again(
    stage: ToolStage, isolation: str, tmp_path: Path
) -> None:
    switch = tmp_path / "up"

    def opened() -> Iterator[str]:
        if not switch.exists():
            raise ConnectionRefusedError("the server is down")
        yield "it"

    use = tool_of(isolation, opened)
    for _ in range(2):
        event = stage.start(use, "{}", SECONDS).wait()
        assert "opened, could not be opened: ConnectionRefusedError: the server is down" in message_of(event)
        assert "The tool's code did not run" in event.failure.retry_hint  # type: ignore[union-attr]
    switch.touch()
    assert content_of(stage.start(use, "{}", SECONDS).wait()) == "it"


WRONG: dict[str, Callable[[], object]] = {
    "str, which is no context manager": lambda: "it",
    "generator didn't yield": lambda: contextlib.contextmanager(lambda: iter(()))(),
    "SystemExit": lambda: sys.exit(3),
}


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("what", WRONG)
def test_what_opens_nothing_is_told(stage: ToolStage, isolation: str, what: str) -> None:
    message = message_of(stage.start(tool_of(isolation, WRONG[what]), "{}", SECONDS).wait())
    assert "could not be opened" in message
    assert what in message


def test_one_that_hangs_while_it_opens_is_tried_again(stage: ToolStage) -> None:
    hangs, begun = [True], threading.Event()

    async def opened() -> AsyncIterator[str]:
        begun.set()
        if hangs[0]:
            await asyncio.Event().wait()
        yield "it"

    @tool(resource=opened)
    async def use(resource: str) -> str:
        return resource

    call = timed_out_while_hanging(lambda seconds: stage.start(use, "{}", seconds), lambda _: begun.is_set())
    assert isinstance(call.wait(), ToolCallTimedOut)
    hangs[0] = False
    assert content_of(stage.call(use)) == "it"


def test_wrong_arguments_open_nothing(stage: ToolStage) -> None:
    log = Log()

    @tool(resource=lambda: ClosesLater(log))
    async def use(number: int, resource: str) -> str:
        return f"{number} {resource}"

    assert isinstance(stage.call(use, number="x"), ToolCallFailed)
    assert isinstance(stage.call(use, number=1, resource="mine"), ToolCallFailed), "the model cannot pass one"
    assert log.opened == 0
    assert content_of(stage.call(use, number=1)) == "1 number 1"


def test_what_closes_badly_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def opened() -> AsyncIterator[str]:
        yield "it"
        raise OSError("gone already")

    @tool(resource=opened)
    async def use(resource: str) -> str:
        return resource

    with ended_loops(), ToolStage() as stage:
        assert content_of(stage.call(use)) == "it"
    assert "could not be closed" in caplog.text


@pytest.mark.parametrize("is_generator", [False, True])
def test_a_tool_of_one_question_is_not_kept_for_what_it_has_opened(is_generator: bool, until: Until) -> None:
    log, gone = Log(), threading.Event()

    async def ask(runtime: Runtime) -> None:
        def returned() -> ClosesLater:
            return ClosesLater(log)

        async def yielded() -> AsyncIterator[str]:
            async with ClosesLater(log) as value:
                yield value

        opened: Any = yielded if is_generator else returned

        @tool(resource=opened)
        async def use(resource: str) -> str:
            return resource

        weakref.finalize(opened, gone.set)
        assert "number 1" in str((await runtime.ask("go", tools=[use])).messages)

    async def main() -> None:
        script = [ScriptedTurn(calls=(ScriptedCall("use", {}),)), ScriptedTurn("done")]
        async with Runtime(Settings(model="scripted/model", script=script)) as runtime:
            await ask(runtime)

            def is_gone() -> bool:
                gc.collect()
                return gone.is_set() and log.closed == 1

            await asyncio.to_thread(until, is_gone)

    asyncio.run(main())


def test_what_a_method_opens_stays_open_for_the_other_tools_of_its_object(stage: ToolStage) -> None:
    log = Log()

    class Service:
        def open(self) -> ClosesLater:
            return ClosesLater(log)

    def made() -> Tool:
        @tool(resource=service.open)
        async def use(resource: str) -> str:
            return resource

        return use

    service = Service()
    first, second = made(), made()
    assert content_of(stage.call(first)) == "number 1"
    del first
    gc.collect()
    assert content_of(stage.call(second)) == "number 1"
    assert log.closed == 0


# -- what the model sees, and what is refused


def test_the_model_does_not_see_it() -> None:
    @tool(resource=lambda: Closes(Log()))
    async def use(city: str, resource: Pool) -> str:  # type: ignore[name-defined]  # noqa: F821
        return city

    assert list(use.definition.parameters["properties"]) == ["city"]  # type: ignore[call-overload]


def test_a_parameter_of_that_name_is_the_models_where_nothing_opens_it() -> None:
    @tool
    async def use(resource: str) -> str:
        return resource

    assert list(use.definition.parameters["properties"]) == ["resource"]  # type: ignore[call-overload]


async def _coroutine() -> str:
    return "it"


async def _async_generator() -> AsyncIterator[str]:
    yield "it"


class _OnlyAsync:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


def _with_argument(url: str) -> Iterator[str]:
    yield url


REFUSED: dict[str, tuple[object, str]] = {
    "no function": ("a pool", "is no function"),
    "a coroutine function": (_coroutine, "nothing would close"),
    "one with an argument": (_with_argument, "takes url"),
    "an async generator for a def": (_async_generator, "the tool is a plain `def`"),
    "an async context manager for a def": (
        contextlib.asynccontextmanager(_async_generator),
        "the tool is a plain `def`",
    ),
    "an async class for a def": (_OnlyAsync, "the tool is a plain `def`"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_open_one_is_refused_at_once(what: str) -> None:
    given, why = REFUSED[what]
    with pytest.raises(UsageError, match=why):

        @tool(resource=given)  # type: ignore[call-overload]
        def use(resource: str) -> str:
            return resource


def test_a_tool_without_the_parameter_is_refused() -> None:
    with pytest.raises(UsageError, match="a parameter called 'resource'"):

        @tool(resource=_async_generator)
        async def use(pool: str) -> str:
            return pool


def test_a_tool_is_tested_with_one_of_the_tests_own() -> None:
    @tool(resource=_async_generator)
    async def use(resource: str) -> str:
        return resource

    assert asyncio.run(use(resource="fake")) == "fake"

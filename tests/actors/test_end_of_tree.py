"""The end of the tree is told: by one error of every member, by `failed`, by what was open; and then it starts anew."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from callboard import Runtime, RuntimeFailure, Settings, UsageError
from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.journal.journal_store import JournalFailed
from callboard.actors.kernel import NoSuchActor
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.protocol.errors import CallboardError
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedTurn

#: Longer than a loaded machine takes for it.
SECONDS: Final = 40.0
GiveUp = Callable[[Runtime, pytest.MonkeyPatch], object]


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    settings = Settings(
        model="scripted/model",
        script=lambda _: ScriptedTurn("done"),
        workspace=tmp_path,
        journal=tmp_path / "journal.sqlite",
        warm_workers=0,
    )
    return Runtime(settings)


def kill(runtime: Runtime, path: str) -> None:
    """As what is wrong with an actor ends it."""
    assert runtime._running is not None
    with contextlib.suppress(NoSuchActor):
        cell: Any = runtime._running.system.ref(path)._cell
        cell.executor.call_soon(cell.kill)


def killed(*names: str) -> GiveUp:
    """These end, each time they have been started again."""

    def give_up(runtime: Runtime, _: pytest.MonkeyPatch) -> None:
        pause, failed = threading.Event(), runtime.failed
        for name in itertools.cycle(names):
            if failed.done():
                return
            kill(runtime, f"root/{name}")
            pause.wait(0.005)

    return give_up


def crashing(*kinds: type) -> GiveUp:
    """These cannot be started any more."""

    def give_up(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
        def on_start(_: object) -> None:
            raise OSError("no more descriptors")

        for kind in kinds:
            monkeypatch.setattr(kind, "on_start", on_start)
        for name in ("telemetry", "llm_manager", "dispatcher"):
            kill(runtime, f"root/{name}")
        runtime.failed.result(SECONDS)
        monkeypatch.undo()

    return give_up


def by_operator(runtime: Runtime, _: pytest.MonkeyPatch) -> None:
    """Through the public face."""
    with contextlib.suppress(CallboardError):
        for name in itertools.cycle(("telemetry", "llm_manager", "editor")):
            with contextlib.suppress(UsageError):  # it is about to be started again
                runtime.kill_actor(f"root/{name}")


def shut_down(runtime: Runtime, _: pytest.MonkeyPatch) -> None:
    """Not by `stop`."""
    assert runtime._running is not None
    runtime._running.system.shutdown(SECONDS)


WAYS: Final[dict[str, tuple[GiveUp, str]]] = {
    "two actors that are killed": (killed("telemetry", "llm_manager"), "failed too often.*killed"),
    "the supervisors below it": (killed("tools", "sessions"), "failed too often"),
    "the dispatcher and the editor of files": (killed("dispatcher", "editor"), "failed too often"),
    "threads": (killed("journal", "rag", "indexer"), "failed too often"),
    "all that are left": (killed("telemetry", "journal", "llm_manager", "jobs", "sessions"), "failed too often"),
    "three that crash when they start": (crashing(Telemetry, LlmManager, ToolDispatcher), "no more descriptors"),
    "an operator who kills": (by_operator, "failed too often"),
    "the root itself": (lambda runtime, _: kill(runtime, "root"), "ended .killed"),
    "a shutdown from behind": (shut_down, "ended .normal"),
}


#: What a host can call, and what it needs to be called with.
ARGUMENTS: Final[dict[str, tuple[object, ...]]] = {
    "ask": ("Hello?",),
    "ask_sync": ("Hello?",),
    "stream": ("Hello?",),
    "stream_sync": ("Hello?",),
    "start_request": ("Hello?",),
    "start_request_sync": ("Hello?",),
    "follow": ("r",),
    "result": ("r",),
    "result_sync": ("r",),
    "cancel": ("r",),
    "open_request": ("r",),
    "is_running": ("r",),
    "call_tool": ("look",),
    "complete_call": ("r", 1, "c", "x"),
    "fail_call": ("r", 1, "c", "x"),
    "report_progress": ("r", 1, "c"),
    "stack_of": ("r", 1, "c"),
    "reload": (Settings(),),
    "reload_sync": (Settings(),),
    "drain": (1.0,),
    "drain_sync": (1.0,),
    "mcp": ("files",),
    "tool": ("look",),
    "restart_actor": ("root/telemetry",),
    "kill_actor": ("root/telemetry",),
    "replay_dead_letter": (1,),
    "start": (),
}
#: What says something of an ended tree, too, or needs none.
OTHERS: Final = {"stop", "failed", "is_draining", "may_replay", "prometheus_collector"}
MEMBERS: Final = sorted({name for name in dir(Runtime) if not name.startswith("_")} - OTHERS)


async def called(runtime: Runtime, name: str) -> object:
    """What a member comes to."""
    if isinstance(inspect.getattr_static(Runtime, name), property):
        return await asyncio.to_thread(getattr, runtime, name)
    call, given = getattr(runtime, name), ARGUMENTS.get(name, ())
    if name in ("stream", "follow"):
        async for item in call(*given):
            return item
    if inspect.iscoroutinefunction(call):
        return await call(*given)
    return await asyncio.to_thread(call, *given)


@pytest.mark.parametrize("way", WAYS)
async def test_every_member_names_why_and_it_can_be_started_anew(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    give_up, why = WAYS[way]
    await asyncio.to_thread(runtime.start)
    journal = runtime.journal
    with caplog.at_level(logging.ERROR, "callboard"):
        await asyncio.to_thread(give_up, runtime, monkeypatch)
        failure = await asyncio.wait_for(runtime.failed, SECONDS)
    assert isinstance(failure, RuntimeFailure)
    with pytest.raises(RuntimeFailure, match=why):
        raise failure
    assert str(failure) in caplog.messages
    told: dict[str, list[object]] = {}
    for name in MEMBERS:
        try:
            told.setdefault(f"nothing: {await called(runtime, name)!r}", []).append(name)
        except Exception as error:  # noqa: BLE001 - whatever it raises is compared
            told.setdefault(f"{type(error).__name__}: {error}", []).append(name)
    assert told == {f"RuntimeFailure: {failure}": MEMBERS}
    assert runtime.prometheus_collector() is not None
    await asyncio.to_thread(runtime.stop)
    with pytest.raises(JournalFailed, match="does not answer"):
        await asyncio.to_thread(journal.conversations)
    async with runtime:
        assert (await runtime.ask("And now?")).text == "done"
        assert not runtime.failed.done()


def test_those_who_ask_while_it_ends_get_errors_of_callboard_only(runtime: Runtime) -> None:
    """Not what the kernel raises where an actor has ended since the member looked."""
    names = ("metrics", "offered", "open_requests", "proposals", "ask_sync", "restart_actor", "usage")
    wrong: list[BaseException] = []
    begun = threading.Barrier(len(names) + 1)

    def asking(name: str) -> None:
        begun.wait(SECONDS)
        while True:
            try:
                if name == "usage":
                    runtime.journal.usage()
                else:
                    getattr(runtime, name)(*ARGUMENTS.get(name, ()))
            except CallboardError:
                if runtime.failed.done():
                    return
            except BaseException as error:  # noqa: BLE001 - the test compares it
                wrong.append(error)
                return

    with runtime:
        threads = [threading.Thread(target=asking, args=(name,)) for name in names]
        for each in threads:
            each.start()
        begun.wait(SECONDS)
        killed("telemetry", "dispatcher", "editor", "journal")(runtime, pytest.MonkeyPatch())
        for each in threads:
            each.join(SECONDS)
        assert not any(each.is_alive() for each in threads)
    assert wrong == []


async def test_a_request_that_was_open_says_why_it_has_ended() -> None:
    begun = threading.Event()

    def stalls(_: ModelRequest) -> ScriptedTurn:
        begun.set()
        return ScriptedTurn("late", stall=True)

    async with Runtime(Settings(model="scripted/model", script=stalls)) as runtime:
        asking = asyncio.ensure_future(runtime.ask("Hello?"))
        assert await asyncio.to_thread(begun.wait, SECONDS)
        await asyncio.to_thread(killed("telemetry", "tools"), runtime, pytest.MonkeyPatch())
        with pytest.raises(RuntimeFailure, match="ended by itself, since its actors failed too often"):
            await asking


# -- those who wait for it


async def test_a_callback_may_stop_it_and_start_it_again(runtime: Runtime) -> None:
    anew = threading.Event()

    def again(_: object) -> None:
        runtime.stop()
        runtime.start()
        anew.set()

    await asyncio.to_thread(runtime.start)
    runtime.failed.add_done_callback(again)
    await asyncio.to_thread(kill, runtime, "root")
    assert await asyncio.to_thread(anew.wait, SECONDS)
    assert (await runtime.ask("Hello?")).text == "done"
    await asyncio.to_thread(runtime.stop)


async def test_one_who_waits_no_longer_takes_it_from_nobody(runtime: Runtime) -> None:
    async with runtime:
        first, second = (asyncio.ensure_future(_why(runtime)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        await asyncio.to_thread(kill, runtime, "root")
        assert isinstance(await asyncio.wait_for(second, SECONDS), RuntimeFailure)


def test_a_loop_that_was_closed_meanwhile_costs_nothing(runtime: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    async def waits_a_moment() -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_why(runtime), 0.001)

    with runtime:
        asyncio.run(waits_a_moment())
        kill(runtime, "root")
        assert runtime.failed.result(SECONDS) is not None
    assert not [each for each in caplog.records if each.name.startswith(("concurrent", "asyncio"))]


async def test_a_runtime_that_is_stopped_has_not_failed(runtime: Runtime) -> None:
    with pytest.raises(UsageError, match="not running"):
        _ = runtime.failed
    async with runtime:
        waiting, failed = asyncio.ensure_future(_why(runtime)), runtime.failed
    assert await asyncio.wait_for(waiting, SECONDS) is None
    assert failed.result(0) is None
    with pytest.raises(UsageError, match="not running"):
        _ = runtime.failed


async def _why(runtime: Runtime) -> RuntimeFailure | None:
    return await runtime.failed

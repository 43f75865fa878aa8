"""The window of a model: asked once, remembered, said where it is only assumed; in the runtime, from real servers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.model_servers import ModelServers, model_servers

from callboard.actors.models import windows
from callboard.actors.models.llm_manager import Route
from callboard.actors.models.windows import ASSUMED_CONTEXT_TOKENS, Window, Windows
from callboard.actors.requests.replies import ModelCallFailed, Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.commands import Note
from callboard.protocol.events import RequestStarted
from callboard.providers.adapter import Provider
from callboard.providers.catalog import Catalog, ModelInfo
from callboard.providers.local.scripted import Scripted

ROUTE = Route(Scripted(), "m", listed_as="mine/m")


class Server:
    """Tells these windows in turn, when it is let."""

    def __init__(self, *tells: int | BaseException | None) -> None:
        self.tells = list(tells)
        self.asked: list[tuple[str, str]] = []
        self.let = asyncio.Event()
        self.let.set()

    async def __call__(self, provider: Provider, name: str, model: str) -> int | None:
        self.asked.append((name, model))
        told = self.tells.pop(0)
        await self.let.wait()
        if isinstance(told, BaseException):
            raise told
        return told


async def found(of: Windows, route: Route = ROUTE) -> Window:
    told: asyncio.Future[Window] = asyncio.get_running_loop().create_future()
    of.find(route, told.set_result)
    return await told


def run(test: Callable[[], Any]) -> None:
    asyncio.run(test())


def test_a_window_is_asked_once_and_remembered() -> None:
    async def test() -> None:
        server = Server(8_000, 9_000)
        of = Windows(server)
        assert [await found(of) for _ in range(3)] == [Window(8_000)] * 3
        assert await found(of, Route(Scripted(), "n", listed_as="mine/n")) == Window(9_000)
        assert server.asked == [("mine", "m"), ("mine", "n")]

    run(test)


def test_requests_that_need_it_at_the_same_time_share_one_question() -> None:
    async def test() -> None:
        server = Server(8_000)
        server.let.clear()
        of = Windows(server)
        all_found = asyncio.gather(*(found(of) for _ in range(20)))
        await asyncio.sleep(0)
        server.let.set()
        assert await all_found == [Window(8_000)] * 20
        assert len(server.asked) == 1

    run(test)


@pytest.mark.parametrize("told", [None, RuntimeError("a fault of the provider")])
def test_what_is_not_told_is_assumed_and_said_and_asked_again_later(
    told: Exception | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        server = Server(told, told, 8_000)
        of = Windows(server)
        first = await found(of)
        assert first.tokens == ASSUMED_CONTEXT_TOKENS
        assert "mine/m" in first.note
        assert f"{ASSUMED_CONTEXT_TOKENS:,}" in first.note
        assert "context_tokens" in first.note, "it names the setting"
        assert await found(of) == first
        assert len(server.asked) == 1, "a server that does not tell is not asked for each request"
        monkeypatch.setattr(windows, "ASK_AGAIN_SECONDS", -1.0)
        of = Windows(server)
        assert await found(of) == first
        assert await found(of) == Window(8_000), "a model that is loaded by now"

    with caplog.at_level(logging.WARNING, "callboard"):
        run(test)
    assert [record.getMessage() for record in caplog.records].count(windows._assumed("mine/m").note) == 2, (
        "once for each runtime"
    )


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_whatever_a_provider_raises_the_window_is_told(raised: BaseException) -> None:
    async def test() -> None:
        window = await asyncio.wait_for(found(Windows(Server(raised))), 5.0)
        assert window.tokens == ASSUMED_CONTEXT_TOKENS

    run(test)


def test_a_stopped_runtime_asks_no_longer() -> None:
    async def test() -> None:
        server = Server(8_000)
        server.let.clear()
        of = Windows(server)
        waiting = asyncio.ensure_future(found(of))
        await asyncio.sleep(0)
        asking = next(iter(of._asking.values()))
        of.cancel()
        await asyncio.wait({asking}, timeout=5.0)
        assert asking.cancelled()
        assert not waiting.done()
        waiting.cancel()

    run(test)


# -- in the runtime


@pytest.fixture(scope="module")
def servers() -> Iterator[ModelServers]:
    with model_servers() as running:
        yield running


def started(runtime: Runtime, question: str = "Hi") -> tuple[RequestStarted, list[Note], Reply]:
    async def ask() -> list[object]:
        return [item async for item in runtime.stream(question)]

    items = asyncio.run(ask())
    [start] = [item for item in items if isinstance(item, RequestStarted)]
    [reply] = [item for item in items if isinstance(item, Reply)]
    return start, [item for item in items if isinstance(item, Note)], reply


def settings_for(servers: ModelServers, kind: str, **more: Any) -> Settings:
    name = more.pop("name", "openai-compatible")
    return Settings(model=f"{name}/m", base_url=f"{servers.url}/{kind}/v1", api_key="k", **more)


@pytest.mark.parametrize(("kind", "tokens"), [("vllm", 40_960), ("llamacpp", 6_144), ("lmstudio", 7_168)])
def test_a_request_lives_within_what_its_server_says(servers: ModelServers, kind: str, tokens: int) -> None:
    with Runtime(settings_for(servers, kind)) as runtime:
        before = len(servers.asked(kind))
        for _ in range(2):
            start, notes, reply = started(runtime)
            assert (start.options.context_tokens, notes, reply.text) == (tokens, [], "Hello")
        asked = servers.asked(kind)[before:]
    assert [path for path in asked if "chat" in path] == ["POST /v1/chat/completions"] * 2
    assert asked[-1] == asked[-2], "the second request asked for nothing but the answer"


@pytest.mark.parametrize(
    ("given", "tokens"),
    [({"context_tokens": 5_000}, 5_000), ({"catalog": Catalog({"openai-compatible/m": ModelInfo(9_000)})}, 9_000)],
)
def test_what_the_owner_says_is_not_asked(servers: ModelServers, given: dict[str, Any], tokens: int) -> None:
    with Runtime(settings_for(servers, "silent", **given)) as runtime:
        before = len(servers.asked("silent"))
        start, notes, _ = started(runtime)
        assert (start.options.context_tokens, notes) == (tokens, [])
        assert servers.asked("silent")[before:] == ["POST /v1/chat/completions"]


def test_an_assumed_window_is_said_with_each_answer_and_logged_once(
    servers: ModelServers, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "callboard"), Runtime(settings_for(servers, "silent")) as runtime:
        for _ in range(2):
            start, [note], reply = started(runtime)
            assert start.options.context_tokens == ASSUMED_CONTEXT_TOKENS
            assert "32,768 are assumed" in note.text
            assert reply.text == "Hello"
            assert reply.notes == (note.text,)
        assert runtime.ask_sync("Hi").notes == (note.text,), "also where no reader follows"
    assert len([record for record in caplog.records if "are assumed" in record.getMessage()]) == 1


def test_a_server_that_hangs_holds_up_neither_the_start_nor_the_end_of_the_runtime(servers: ModelServers) -> None:
    runtime = Runtime(settings_for(servers, "hanging"))
    runtime.start()
    before = len(servers.asked("hanging"))
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(runtime.ask_sync("Hi", request_id="r"))
        except Exception as error:  # noqa: BLE001 - looked at below
            answers.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    while len(servers.asked("hanging")) == before:
        asking.join(0.01)
    assert runtime.cancel("r"), "a request that waits for its window can be cancelled"
    asking.join(10)
    assert "cancelled by the caller" in str(answers[0])
    runtime.stop()


def test_the_fake_and_the_offline_provider_have_no_window() -> None:
    with Runtime(Settings(model="scripted/m", script=["Hello"])) as runtime:
        start, notes, _ = started(runtime)
    assert (start.options.context_tokens, notes) == (None, [])


def test_a_window_that_is_found_after_its_request_has_ended_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """The question for the window waits for the key; the request does not wait for it."""
    has_asked, may_answer = threading.Event(), threading.Event()

    def key() -> str:
        has_asked.set()
        may_answer.wait(30)
        return "k"

    settings = Settings(model="openai-chat/x", base_url="http://127.0.0.1:9/v1", api_key=key, max_attempts=1)
    with Runtime(settings) as runtime, ThreadPoolExecutor() as threads:
        first = threads.submit(runtime.ask_sync, "?", request_id="first")
        assert has_asked.wait(30)
        assert runtime.cancel("first")
        assert isinstance(first.exception(30), RequestEnded)
        second = threads.submit(runtime.ask_sync, "?")
        may_answer.set()
        assert isinstance(second.exception(30), ModelCallFailed)  # it heard of the window after the first one did
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []

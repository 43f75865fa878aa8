"""A question on its way to a request: what it needs is read on a thread, and until then it can still be given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from callboard import Conversation, Reply, RequestEnded, Runtime, RuntimeFailure, Settings, Stream, UsageError
from callboard.actors.journal.records_of_runtime import JournalRecords
from callboard.providers.local.scripted import ScriptedTurn


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def made(**more: object) -> Settings:
        given = {"model": "scripted/x", "script": lambda _: ScriptedTurn("yes"), "journal": tmp_path / "journal.db"}
        return Settings.model_validate({**given, "warm_workers": 0, **more})

    return made


async def whole(stream: Stream) -> list[object]:
    return [each async for each in stream]


class Reading:
    """A journal that is read when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        read = JournalRecords.request

        def slowly(records: JournalRecords, request_id: str) -> object:
            self.begun.set()
            self.may_end.wait()
            return read(records, request_id)  # type: ignore[arg-type]

        monkeypatch.setattr(JournalRecords, "request", slowly)

    async def has_begun(self) -> None:
        await asyncio.to_thread(self.begun.wait)


def test_a_stream_with_an_id_of_the_journal_is_refused_as_it_is_read(settings: Callable[..., Settings]) -> None:
    async def play() -> None:
        async with Runtime(settings()) as runtime:
            await runtime.ask("first", request_id="r1")
            conversation = Conversation()
            stream = runtime.stream("second", request_id="r1", conversation=conversation)
            with pytest.raises(UsageError, match="the journal has a request with the id 'r1' already"):
                await anext(aiter(stream))
            assert (await runtime.ask("third", conversation=conversation)).text == "yes"
            assert (await runtime.result("r1")).messages != ()

    asyncio.run(play())


def test_what_is_wrong_with_a_stream_and_needs_no_reading_is_raised_at_once(settings: Callable[..., Settings]) -> None:
    async def play() -> None:
        async with Runtime(settings()) as runtime:
            wrong = ({"request_id": "a/b"}, {"timeout": -1}, {"max_steps": 0}, {"no_option": 1}, {"model": "nowhere/x"})
            for options in wrong:
                with pytest.raises(UsageError):
                    runtime.stream("?", **{"request_id": "r1", **options})  # type: ignore[arg-type]

    asyncio.run(play())


def test_a_stream_is_cancelled_before_it_has_begun(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with Runtime(settings()) as runtime:
            reading = Reading(monkeypatch)
            stream = runtime.stream("?", request_id="r1")
            await reading.has_begun()
            assert runtime.cancel("r1", "enough")
            reading.may_end.set()
            with pytest.raises(RequestEnded, match="enough"):
                await whole(stream)
            assert not runtime.cancel("r1")

    asyncio.run(play())


def test_an_ask_that_is_cancelled_while_the_journal_is_read_gives_its_conversation_back(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with Runtime(settings()) as runtime:
            reading, conversation = Reading(monkeypatch), Conversation()
            asking = asyncio.ensure_future(runtime.ask("?", request_id="r1", conversation=conversation))
            await reading.has_begun()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert not runtime.is_running("r1")
            reading.may_end.set()
            await runtime.ask("its id is free", request_id="r1")
            assert (await runtime.ask("and now?", conversation=conversation)).text == "yes"
            assert len(conversation.messages) == 2

    asyncio.run(play())


def test_those_that_wait_for_the_journal_do_not_pass_the_limit_of_requests(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    still = ScriptedTurn("late", first_delay_seconds=60)

    async def play() -> None:
        async with Runtime(settings(max_concurrent_requests=1, script=lambda _: still)) as runtime:
            reading = Reading(monkeypatch)
            asks = [asyncio.ensure_future(runtime.ask("?", request_id=f"r{number}")) for number in range(3)]
            await reading.has_begun()
            reading.may_end.set()
            ended: set[asyncio.Future[Reply]] = set()
            running = set(asks)
            while len(running) > 1:
                over, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended |= over
            for ask in ended:
                with pytest.raises(RuntimeFailure, match="overloaded: 1 requests are running"):
                    await ask
            running.pop().cancel()

    asyncio.run(play())

"""One model call as a task: whatever the provider does, its end is told once, and nothing else is held up."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from typing import Any

import pytest

from callboard.actors.kernel import Held, LoopScheduler, MailboxFull, Watchdog
from callboard.actors.kernel.scheduler import EventLoop
from callboard.actors.models import llm_manager
from callboard.actors.models.llm_manager import Emit, read_stream, start_on
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Done, Error, FinishReason, ModelRequest, ModelResponse, StreamEvent, TextDelta
from callboard.providers.local.scripted import Scripted, ScriptedTurn

REQUEST = ModelRequest("m", ())


def read(provider: Any, emit: Emit = lambda _: None) -> ModelResponse:
    ends: list[ModelResponse] = []
    asyncio.run(read_stream(provider, REQUEST, emit, ends.append))
    (response,) = ends
    return response


class Rogue:
    name = "rogue"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def stream(self, request: ModelRequest, /) -> Any:
        yield [TextDelta("so far")]
        raise self._error


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError("mine"), SystemExit(2), KeyboardInterrupt(), GeneratorExit(), OSError("no"), Unspeakable()],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_provider_raises_is_a_failed_answer(error: BaseException) -> None:
    response = read(Rogue(error))
    assert response.error is not None
    assert response.error.kind is ErrorKind.INTERNAL
    assert f"the provider rogue failed: {type(error).__name__}" in response.error.message


def test_a_usage_error_of_a_provider_is_an_invalid_request() -> None:
    response = read(Rogue(UsageError("no images here")))
    assert response.error == Error(ErrorKind.INVALID_REQUEST, "no images here")


def test_a_stream_without_an_end_is_no_answer() -> None:
    class Endless(Rogue):
        async def stream(self, request: ModelRequest, /) -> Any:
            yield [TextDelta("so far")]

    assert read(Endless(OSError())).error is not None


def test_a_cancelled_attempt_tells_nobody() -> None:
    ends: list[ModelResponse] = []

    async def main() -> None:
        provider = Scripted([ScriptedTurn("late", first_delay_seconds=60.0)])
        task = asyncio.ensure_future(read_stream(provider, REQUEST, lambda _: None, ends.append))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not ends


def test_a_full_session_holds_up_its_stream_and_loses_nothing() -> None:
    taken: list[StreamEvent] = []
    turned_away: list[list[StreamEvent]] = []

    def emit(events: list[StreamEvent]) -> None:
        if len(turned_away) < 3:
            turned_away.append(events)
            raise MailboxFull("full")
        taken.extend(events)

    response = read(Scripted([ScriptedTurn("abc", chunk_chars=1)]), emit)
    assert response.text == "abc"
    assert [event.text for event in taken if isinstance(event, TextDelta)] == ["a", "b", "c"]
    assert len(turned_away) == 3


# -- providers that do not behave


class Yields:
    """Yields what it is given."""

    name = "yields"

    def __init__(self, *batches: Any) -> None:
        self._batches = batches

    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[Any, None]:
        for batch in self._batches:
            yield batch


@pytest.mark.parametrize("garbage", [None, "text", 5, [None], ["text"], [object()], [[TextDelta("nested")]]])
def test_garbage_instead_of_events_is_a_failed_answer(garbage: Any) -> None:
    emitted: list[Any] = []
    response = read(Yields([TextDelta("so far")], garbage), emitted.append)
    assert response.error is not None
    assert response.error.kind is ErrorKind.INTERNAL
    assert "the provider yields failed" in response.error.message
    assert emitted == [[TextDelta("so far")]]


def test_an_empty_batch_is_nothing() -> None:
    emitted: list[Any] = []
    whole = [TextDelta("all"), Done(FinishReason.STOP, "stop")]
    assert read(Yields([], whole), emitted.append).text == "all"
    assert emitted == [whole]


@pytest.mark.parametrize("make_loop", [asyncio.SelectorEventLoop, EventLoop])
@pytest.mark.parametrize("batch", [[TextDelta("x")], [TextDelta("x")] * 300, []], ids=["one", "many", "empty"])
def test_a_stream_that_always_has_more_lets_its_neighbours_run(
    batch: list[StreamEvent], make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    turns: list[int] = []
    yielded = 0

    class AlwaysMore:
        name = "always more"

        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
            nonlocal yielded
            while len(turns) < 5 and yielded < 5_000:
                yielded += 1
                yield batch
            yield [Done(FinishReason.STOP, "stop")]

    async def main() -> None:
        async def neighbour() -> None:
            while True:
                turns.append(yielded)
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(neighbour())
        await read_stream(AlwaysMore(), REQUEST, lambda _: None, lambda _: None)
        beside.cancel()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())
    assert len(turns) >= 5
    assert yielded < 5_000


def test_a_stream_that_raises_when_it_is_made_and_a_name_that_raises() -> None:
    class Nameless:
        @property
        def name(self) -> str:
            raise OSError("no name")

        def stream(self, request: ModelRequest, /) -> Any:
            raise KeyError("no stream")

    response = read(Nameless())
    assert response.error is not None
    assert response.error.message == "the provider Nameless failed: KeyError: 'no stream'"


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm_manager, "MAX_ANSWER_BYTES", 10_000)
    batches = 0

    class Endless:
        name = "endless"

        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
            nonlocal batches
            while True:
                batches += 1
                yield [TextDelta("\N{EURO SIGN}" * 100)]

    response = read(Endless())
    assert response.error is not None
    assert response.error.kind is ErrorKind.MALFORMED
    assert "longer than" in response.error.message
    assert batches == 34, "300 bytes each"


@pytest.mark.parametrize("seconds", [60.0, 0.01])
async def test_the_end_is_told_at_once_when_the_turn_is_whole(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a provider does after it, or does not do, holds nothing up, and is ended when its time is over."""
    monkeypatch.setattr(llm_manager, "CLOSE_STREAM_SECONDS", seconds)
    hangs = asyncio.Event()

    class Lingers:
        name = "lingers"

        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
            yield [TextDelta("whole"), Done(FinishReason.STOP, "stop")]
            hangs.set()
            await asyncio.Event().wait()

    told = asyncio.Event()
    ends: list[ModelResponse] = []

    def end(response: ModelResponse) -> None:
        ends.append(response)
        told.set()

    task = asyncio.ensure_future(read_stream(Lingers(), REQUEST, lambda _: None, end))
    await asyncio.wait_for(told.wait(), 10)
    await asyncio.wait_for(hangs.wait(), 10)
    assert [response.text for response in ends] == ["whole"]
    if seconds == 60.0:
        task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()


class Stubborn:
    """Goes on after it was cancelled, and after it was closed."""

    name = "stubborn"

    def __init__(self, ending: type[BaseException]) -> None:
        self._ending = ending
        self.begun = asyncio.Event()
        self.yielded = 0

    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
        for _ in range(3):
            try:
                self.begun.set()
                self.yielded += 1
                yield [TextDelta("more")]
                await asyncio.Event().wait()
            except self._ending:
                continue


# Python itself complains of a generator that goes on after it was closed, when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallows", [asyncio.CancelledError, GeneratorExit, BaseException])
async def test_a_cancelled_attempt_ends_also_where_the_provider_goes_on(swallows: type[BaseException]) -> None:
    provider = Stubborn(swallows)
    ends: list[ModelResponse] = []
    emitted: list[Any] = []
    task = asyncio.ensure_future(read_stream(provider, REQUEST, emitted.append, ends.append))
    await provider.begun.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=10)
    assert task.cancelled()
    assert not ends
    assert len(emitted) == 1, "nothing was told after the cancel"
    del provider, task
    gc.collect()  # so that the complaint comes here, and not in another test


# -- on the runtime's loop


COLOUR: ContextVar[str] = ContextVar("colour")


@pytest.fixture
def scheduler() -> Any:
    held: list[Held] = []
    scheduler = LoopScheduler("model-stream", watchdog=Watchdog(0.05, held.append))
    scheduler.start()
    yield scheduler, held
    scheduler.stop(10.0)


def start(scheduler: LoopScheduler, provider: Any, asker: Any) -> ModelResponse:
    done, ends = threading.Event(), list[ModelResponse]()

    def end(response: ModelResponse) -> None:
        ends.append(response)
        done.set()

    begin = start_on(scheduler.loop)
    scheduler.call_soon(lambda: begin(provider, REQUEST, lambda _: None, end, asker))
    assert done.wait(10)
    return ends[0]


def test_a_provider_that_blocks_the_loop_is_named_by_the_watchdog(scheduler: Any, until: Any) -> None:
    loop, held = scheduler
    free = threading.Event()

    class Blocks:
        name = "blocks"

        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
            assert free.wait(10)
            yield [TextDelta("at last"), Done(FinishReason.STOP, "stop")]

    threading.Thread(target=lambda: (until(lambda: bool(held)), free.set())).start()
    assert start(loop, Blocks(), None).text == "at last"
    assert [each.actor for each in held] == ["the provider blocks"]


def test_a_provider_runs_in_a_copy_of_its_askers_context(scheduler: Any) -> None:
    loop, _ = scheduler

    class Says:
        name = "says"

        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[list[StreamEvent], None]:
            colour = COLOUR.get("none")
            COLOUR.set("changed")
            yield [TextDelta(colour), Done(FinishReason.STOP, "stop")]

    COLOUR.set("red")
    asker = contextvars.copy_context()
    assert start(loop, Says(), asker).text == "red"
    assert asker[COLOUR] == "red"
    assert start(loop, Says(), None).text == "none"

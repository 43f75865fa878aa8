"""One model call as a task: whatever the provider does, its end is told once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callboard.actors.kernel import MailboxFull
from callboard.actors.models.llm_manager import Emit, read_stream
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, ModelRequest, ModelResponse, StreamEvent, TextDelta
from callboard.providers.local.scripted import Scripted, ScriptedTurn


def read(provider: Any, emit: Emit = lambda _: None) -> ModelResponse:
    ends: list[ModelResponse] = []
    asyncio.run(read_stream(provider, ModelRequest("m", ()), emit, ends.append))
    (response,) = ends
    return response


class Rogue:
    name = "rogue"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def stream(self, request: ModelRequest, /) -> Any:
        yield [TextDelta("so far")]
        raise self._error


@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), SystemExit(2), KeyboardInterrupt(), OSError("no")])
def test_whatever_a_provider_raises_is_a_failed_answer(error: BaseException) -> None:
    response = read(Rogue(error))
    assert response.error is not None
    assert response.error.kind is ErrorKind.OTHER
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
        task = asyncio.ensure_future(read_stream(provider, ModelRequest("m", ()), lambda _: None, ends.append))
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

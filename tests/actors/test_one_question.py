"""ask_sync and stream_sync without a Runtime of one's own: same answers, same errors, and nothing is left running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from callboard.actors.one_question import ask_sync, stream_sync
from callboard.actors.requests.replies import Conversation, ModelCallFailed, Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, ModelRequest, TextDelta
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn, echo


def settings_for(script: Any = echo) -> Settings:
    return Settings(model="scripted/model", script=script)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for each in set(threading.enumerate()) - before:
        if each.name.startswith("callboard"):
            each.join(5.0)
            assert not each.is_alive(), each.name


def double(x: int) -> int:
    """Twice a number."""
    return 2 * x


def doubling(request: ModelRequest) -> ScriptedTurn:
    results = [message.content for message in request.messages if isinstance(message, ToolMessage)]
    return ScriptedTurn(f"It is {results[-1]}.") if results else ScriptedTurn(calls=(ScriptedCall("double", {"x": 4}),))


def test_a_conversation_lasts_over_several_of_them() -> None:
    conversation = Conversation()
    for text in ("one", "two"):
        ask_sync(text, settings=settings_for(), conversation=conversation)
    assert len(conversation.messages) == 4


def test_what_went_wrong_is_raised_and_nothing_is_left() -> None:
    failing = settings_for([ScriptedTurn(error=Error(ErrorKind.AUTHENTICATION, "no such key", retryable=False))])
    with pytest.raises(ModelCallFailed, match="no such key"):
        ask_sync("?", settings=failing)
    with pytest.raises(UsageError, match="is empty"):
        ask_sync("", settings=settings_for())
    with pytest.raises(RequestEnded) as ended:
        ask_sync("?", settings=settings_for(doubling), tools=[double], max_steps=1)
    assert len(ended.value.reply.steps) == 1


def test_a_stream_ends_with_its_reply() -> None:
    script = [ScriptedTurn("It rains in Oslo.", chunk_chars=4)]
    *events, reply = stream_sync("?", settings=settings_for(script))
    assert isinstance(reply, Reply)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == reply.text == "It rains in Oslo."


def test_texts_are_the_pieces_and_leaving_early_stops_all() -> None:
    script = [ScriptedTurn("It rains in Oslo.", chunk_chars=4)]
    assert list(stream_sync("?", settings=settings_for(script)).texts()) == ["It r", "ains", " in ", "Oslo", "."]
    for text in stream_sync("?", settings=settings_for([ScriptedTurn("a" * 400, chunk_chars=1)])).texts():
        assert text == "a"
        break


def test_nothing_is_asked_before_a_stream_is_read_and_what_is_wrong_is_raised_then() -> None:
    asked: list[ModelRequest] = []

    def script(request: ModelRequest) -> ScriptedTurn:
        asked.append(request)
        return ScriptedTurn("yes")

    stream = stream_sync("?", settings=settings_for(script))
    assert asked == []
    assert [list(stream.texts()), list(stream.texts()), len(asked)] == [["yes"], ["yes"], 2]
    with pytest.raises(UsageError, match="is empty"):
        list(stream_sync("", settings=settings_for()))


def test_the_same_function_is_the_same_tool_for_the_runtime_and_its_question() -> None:
    with Runtime(settings_for(doubling), [double]) as runtime:
        assert runtime.ask_sync("Twice four?", tools=[double, "*"]).text == "It is 8."
        with pytest.raises(UsageError, match="is not a tool; give a function"):
            runtime.ask_sync("?", tools=[3])  # type: ignore[list-item]


def test_texts_of_a_stream_of_an_async_host() -> None:
    async def read() -> list[str]:
        async with Runtime(settings_for([ScriptedTurn("It rains.", chunk_chars=4)])) as runtime:
            return [text async for text in runtime.stream("?").texts()]

    assert asyncio.run(read()) == ["It r", "ains", "."]

"""ask_user: the answer of a person reaches the model, at no cost of deadlines, and only where one can be asked."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from callboard import RequestEnded, Runtime, Settings, ToolCallDeferred, UserQuestion
from callboard.actors.builtins.asking_user import UserQuestions
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ToolError
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.providers.local.scripted import Scripted, ScriptedCall, ScriptedTurn

WHO = ContextVar("WHO", default="nobody")


def asks(**arguments: object) -> Scripted:
    call = ScriptedCall("ask_user", {"question": "Which one?", **arguments})
    return Scripted([ScriptedTurn(calls=(call,)), ScriptedTurn("Good.")])


def settings(**more: object) -> Settings:
    return Settings(model="mine/x", **more)


def result_in(messages: object) -> str:
    (result,) = [each for each in messages if isinstance(each, ToolMessage)]  # type: ignore[attr-defined]
    return str(result.content)


async def test_an_async_callback_is_asked_and_its_answer_read() -> None:
    asked: list[UserQuestion] = []

    async def answer(question: UserQuestion) -> str:
        asked.append(question)
        await asyncio.sleep(0)
        return "the second"

    provider = asks(choices=["the first", "the second"])
    async with Runtime(settings(), ask_user=answer, providers={"mine": provider}) as runtime:
        reply = await runtime.ask("Choose.")
    assert reply.text == "Good."
    assert result_in(reply.messages) == '{"version":1,"answer":"the second"}'
    assert [(each.question, each.choices) for each in asked] == [("Which one?", ("the first", "the second"))]
    assert asked[0].tag.request_id == reply.request_id


def test_a_sync_callback_sees_the_context_of_its_asker() -> None:
    WHO.set("ann")
    with Runtime(settings(), ask_user=lambda _: WHO.get(), providers={"mine": asks()}) as runtime:
        assert result_in(runtime.ask_sync("Choose.").messages) == '{"version":1,"answer":"ann"}'


def test_no_answer_and_a_broken_callback_are_told() -> None:
    with Runtime(settings(), ask_user=lambda _: None, providers={"mine": asks()}) as runtime:
        assert result_in(runtime.ask_sync("Choose.").messages) == '{"version":1,"answer":null}'

    def breaks(_: UserQuestion) -> str:
        raise KeyError("secret words")

    for broken in (breaks, lambda _: 7):
        with Runtime(settings(), ask_user=broken, providers={"mine": asks()}) as runtime:  # type: ignore[arg-type]
            reply = runtime.ask_sync("Choose.")
        assert "the user could not be asked" in result_in(reply.messages)
        assert "secret words" not in result_in(reply.messages)


def test_the_wait_costs_no_deadline_and_has_its_own_limit() -> None:
    """The request has less time than the question, which the model is told is over."""
    never = threading.Event()

    def waits(_: UserQuestion) -> None:
        never.wait()

    limited = settings(approval_timeout_seconds=2.5, request_timeout_seconds=2.0)
    with Runtime(limited, ask_user=waits, providers={"mine": asks()}) as runtime:
        events = list(runtime.stream_sync("Choose."))
        reply = events[-1]
    never.set()
    (deferred,) = [event for event in events if isinstance(event, ToolCallDeferred)]
    assert deferred.note == "the user is asked"
    assert getattr(reply, "text", "") == "Good."
    assert '"timed_out"' in result_in(reply.messages)  # type: ignore[union-attr]


def test_without_a_callback_the_tool_is_not_offered() -> None:
    with Runtime(settings(), providers={"mine": asks()}) as runtime:
        assert runtime.tool("ask_user") is None
    with Runtime(settings(), ask_user=lambda _: "x", providers={"mine": asks()}) as runtime:
        assert runtime.tool("ask_user") is not None


def test_a_stop_ends_what_waits() -> None:
    ended = threading.Event()
    asked = threading.Event()

    async def waits(_: UserQuestion) -> str:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async def main() -> None:
        async with Runtime(settings(), ask_user=waits, providers={"mine": asks()}) as runtime:
            asking = asyncio.ensure_future(runtime.ask("Choose."))
            await asyncio.to_thread(asked.wait, 20)
        with pytest.raises(RequestEnded):
            await asking

    asyncio.run(main())
    assert ended.wait(20)


def test_a_stopped_runtime_asks_nothing() -> None:
    questions = UserQuestions(lambda _: "x", 10)
    with pytest.raises(ToolError, match="the runtime is stopping"):
        questions.put(UserQuestion(Tag(RequestId("r"), MessageId("m")), "?"))

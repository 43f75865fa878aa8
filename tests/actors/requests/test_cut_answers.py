"""An answer that was cut at the limit of output tokens is gone on with where that is asked for, and its text joined."""

from __future__ import annotations

import asyncio

import pytest

from callboard import Conversation, RequestEnded, Runtime, Settings, UsageError, tool
from callboard.protocol.content import AssistantMessage, SystemMessage
from callboard.protocol.cut_answer import GO_ON_TOLD
from callboard.protocol.model import FinishReason, ModelRequest, TextDelta, Usage
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

LENGTH = FinishReason.LENGTH


def cut(text: str) -> ScriptedTurn:
    return ScriptedTurn(text, finish_reason=LENGTH, usage=Usage(10, 5))


def scripted(*turns: ScriptedTurn, **more: object) -> tuple[Settings, list[ModelRequest]]:
    left, asked = iter(turns), list[ModelRequest]()

    def script(request: ModelRequest) -> ScriptedTurn:
        asked.append(request)
        return next(left)

    return Settings.model_validate({"model": "scripted/x", "script": script, **more}), asked


def test_the_texts_are_joined_and_the_model_reads_why_it_is_asked() -> None:
    settings, asked = scripted(cut("The mod"), cut("el runs "), ScriptedTurn("on."))
    conversation = Conversation()
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("?", conversation=conversation, continue_cut_answers=2)
    assert (reply.text, reply.finish_reason, len(reply.steps)) == ("The model runs on.", FinishReason.STOP, 3)
    assert [note for note in reply.notes if "go on" in note] == [
        f"The answer was cut off at the limit of output tokens; the model is asked to go on ({n} of 2)." for n in (1, 2)
    ]
    assert [type(each) for each in asked[2].messages[1:]] == [AssistantMessage, SystemMessage] * 2
    assert [each.text for each in asked[2].messages[2::2]] == [GO_ON_TOLD] * 2  # type: ignore[union-attr]
    assert conversation.messages[1:] == (*asked[2].messages[1:], AssistantMessage(conversation.messages[-1].parts))  # type: ignore[union-attr]


@pytest.mark.parametrize(("most", "text", "steps"), [(0, "a", 1), (1, "ab", 2), (2, "abc", 3), (3, "abcd", 4)])
def test_it_is_gone_on_with_so_often_at_most(most: int, text: str, steps: int) -> None:
    settings, _ = scripted(*map(cut, "abcde"), continue_cut_answers=most)
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("?")
    assert (reply.text, len(reply.steps), reply.finish_reason) == (text, steps, LENGTH)
    assert any("raise it" in note for note in reply.notes)


def test_a_stream_shows_one_part_behind_the_other() -> None:
    settings, _ = scripted(cut("one "), ScriptedTurn("two"))

    async def read() -> str:
        async with Runtime(settings) as runtime:
            stream = runtime.stream("?", continue_cut_answers=1)
            return "".join([item.text async for item in stream if isinstance(item, TextDelta)])

    assert asyncio.run(read()) == "one two"


@tool(risk="read", isolation="thread")
def look() -> str:
    """Look."""
    return "seen"


def test_a_turn_with_calls_begins_another_answer() -> None:
    called = ScriptedTurn("I look.", calls=(ScriptedCall("look", {}),))
    settings, _ = scripted(cut("It"), called, cut("Now "), ScriptedTurn("I know."), continue_cut_answers=5)
    with Runtime(settings, [look]) as runtime:
        assert runtime.ask_sync("?").text == "Now I know."


@pytest.mark.parametrize("limit", [{"max_steps": 2}, {"token_budget": 60}])
def test_limits_hold_and_what_there_is_is_kept(limit: dict[str, int]) -> None:
    settings, _ = scripted(*map(cut, ("a" * 20, "b" * 20, "c" * 20, "d")), continue_cut_answers=9)
    with Runtime(settings) as runtime, pytest.raises(RequestEnded) as ended:
        runtime.ask_sync("?", **limit)  # type: ignore[call-overload]
    assert ended.value.reply.text.startswith("a" * 20)


def test_an_answer_of_a_certain_form_is_not_gone_on_with() -> None:
    settings, asked = scripted(cut('{"a": '), ScriptedTurn("1}"), continue_cut_answers=2)
    with Runtime(settings) as runtime, pytest.raises(RequestEnded):
        runtime.ask_sync("?", output=dict[str, int])
    assert len(asked) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_what_is_no_number_of_times_is_refused(wrong: object) -> None:
    settings, _ = scripted()
    with Runtime(settings) as runtime, pytest.raises(UsageError, match="continue_cut_answers must be a whole number"):
        runtime.ask_sync("?", continue_cut_answers=wrong)  # type: ignore[call-overload]

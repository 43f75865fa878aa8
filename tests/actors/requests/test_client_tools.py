"""Tools of the one who asks: their calls end a request, and the next one answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard import Conversation, RequestEnded, Runtime, Settings, UsageError, tool
from callboard.actors.requests.client_tools import WENT_ON, CallAnswer, CallResults, ClientTool
from callboard.actors.telemetry.metrics import ASKERS_TOOL
from callboard.actors.testing.wire_double import Call, Turn, WireDouble
from callboard.protocol.commands import CallOutside, Outcome
from callboard.protocol.content import AssistantMessage, Image, ToolMessage, UserMessage

CALENDAR = ClientTool("calendar", "What is in the calendar.", {"properties": {"day": {"type": "string"}}})
BOTH = Turn(calls=(Call("calendar", {"day": "Monday"}, "c1"), Call("weather", {"city": "Oslo"}, "c2")))
ONE = Turn(calls=(Call("calendar", {"day": "Monday"}, "c1"),))
SAYS = Turn("You are free, and it rains.")


@tool(risk="read", isolation="task")
async def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


def runtime(double: WireDouble, journal: Path | None = None) -> Runtime:
    settings = Settings(model="openai-compatible/any", base_url=double.base_url(), api_key="k", journal=journal)
    return Runtime(settings, tools=[weather])


def test_a_call_of_the_askers_tool_ends_the_request_and_its_result_goes_on() -> None:
    talk = Conversation()
    with WireDouble([BOTH, SAYS]) as double, runtime(double) as running:
        reply = running.ask_sync("Am I free on Monday?", tools=["*", CALENDAR], conversation=talk)
        assert reply.outcome is Outcome.CALLS_OUTSIDE
        assert [(call.call_id, call.name) for call in reply.outside_calls] == [("c1", "calendar")]
        assert [type(each) for each in talk.messages] == [UserMessage]
        assert talk.open_turn is not None
        assert talk.open_turn.results[0].content == "rain in Oslo"
        kept = Conversation.from_json(talk.to_json())
        assert kept == talk
        answers = CallResults((CallAnswer("c1", "nothing on Monday"),))
        reply = running.ask_sync(answers, tools=["*", CALENDAR], conversation=kept)
        assert (reply.text, reply.outcome) == ("You are free, and it rains.", Outcome.ANSWERED)
        kinds = [type(each) for each in kept.messages]
        assert kinds == [UserMessage, AssistantMessage, ToolMessage, ToolMessage, AssistantMessage]
        results = [each for each in kept.messages if isinstance(each, ToolMessage)]
        assert [each.content for each in results] == ["nothing on Monday", "rain in Oslo"]
        sent = double.traffic().bodies[-1]["messages"]
        assert [each["role"] for each in sent] == ["user", "assistant", "tool", "tool"]


def test_a_request_that_hands_its_calls_out_is_counted_and_over() -> None:
    with WireDouble([BOTH]) as double, runtime(double) as running:
        running.ask_sync("Am I free on Monday?", tools=["*", CALENDAR])
        metrics = running.metrics()
    assert metrics.counts("callboard.requests") == {("calls_outside",): 1}
    assert metrics.count("callboard.requests.open") == 0
    assert metrics.counts("callboard.tool.calls") == {("weather", "ok"): 1, (ASKERS_TOOL, "handed_out"): 1}


def test_a_conversation_of_the_journal_goes_on_in_another_process(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    with WireDouble([BOTH, SAYS]) as double:
        with runtime(double, journal) as running:
            talk = Conversation()
            asked = running.ask_sync("Am I free?", tools=["*", CALENDAR], conversation=talk)
        with runtime(double, journal) as running:
            again = running.journal.conversation(talk.id)
            assert again.open_turn == talk.open_turn
            assert running.result_sync(asked.request_id) == asked
            reply = running.ask_sync(CallResults((CallAnswer("c1", "no"),)), tools=[CALENDAR], conversation=again)
            assert reply.text == "You are free, and it rains."
        with runtime(double, journal) as running:
            assert running.journal.conversation(talk.id).messages == again.messages


def test_a_turn_waits_in_the_journal_though_its_request_has_added_no_message(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    looks = Turn(calls=(Call("weather", {"city": "Oslo"}, "c0"),))
    with WireDouble([looks, ONE, SAYS]) as double:
        with runtime(double, journal) as running:
            talk = Conversation()
            with pytest.raises(RequestEnded, match="step"):
                running.ask_sync("Am I free?", max_steps=1, conversation=talk)
            before = talk.messages
            running.ask_sync(CallResults(), tools=[CALENDAR], conversation=talk)
            assert talk.messages == before
        with runtime(double, journal) as running:
            again = running.journal.conversation(talk.id)
            assert again.open_turn == talk.open_turn is not None
            reply = running.ask_sync(CallResults((CallAnswer("c1", "no"),)), tools=[CALENDAR], conversation=again)
            assert reply.text == SAYS.text


def test_messages_that_end_with_results_go_on_without_a_question() -> None:
    with WireDouble([ONE, SAYS, SAYS]) as double, runtime(double) as running:
        talk = Conversation()
        running.ask_sync("Am I free?", tools=[CALENDAR], conversation=talk)
        turn = talk.open_turn
        assert turn is not None
        results = [ToolMessage(call.call_id, call.name, "free") for call in turn.outside]
        given = Conversation([*talk.messages, turn.message, *results])
        assert running.ask_sync(CallResults(), tools=[CALENDAR], conversation=given).text == SAYS.text
        with pytest.raises(UsageError, match="does not end with any"):
            running.ask_sync(CallResults(), conversation=given)


def test_another_question_leaves_the_calls_unanswered_and_the_model_reads_so() -> None:
    with WireDouble([ONE, SAYS]) as double, runtime(double) as running:
        talk = Conversation()
        running.ask_sync("Am I free?", tools=[CALENDAR], conversation=talk)
        reply = running.ask_sync("Never mind. The weather?", conversation=talk)
        assert reply.notes == (WENT_ON,)
        told = next(each for each in talk.messages if isinstance(each, ToolMessage))
        assert "cancelled" in told.content
        assert talk.open_turn is None


def test_results_that_do_not_fit_change_nothing() -> None:
    with WireDouble([ONE, SAYS]) as double, runtime(double) as running:
        talk = Conversation()
        running.ask_sync("Am I free?", tools=[CALENDAR], conversation=talk)
        before = talk.to_json()
        wrong: tuple[tuple[Any, str], ...] = (
            ((), "'c1' has no result"),
            ((CallAnswer("c9", "x"),), "no call 'c9' waits"),
            ((CallAnswer("c1", "x"), CallAnswer("c1", "y")), "two results"),
            ((CallAnswer("c1", {"a": 1}),), "answer 0, CallAnswer.content: Expected `str`, got `object`"),
            ((CallAnswer(["c1"], "x"),), "CallAnswer.call_id: Expected `str`, got `array`"),
            ((CallAnswer("c1", "x", media=(Image("image/png", 3),)),), r"CallAnswer.media\[0\].data_base64: Expected"),
            (("x",), "answer 0, str"),
        )
        for answers, told in wrong:
            with pytest.raises(UsageError, match=told):
                running.ask_sync(CallResults(answers), conversation=talk)
        assert talk.to_json() == before
        with pytest.raises(UsageError, match="no call of this conversation"):
            running.ask_sync(CallResults((CallAnswer("c1", "x"),)))


def test_a_stream_shows_the_call() -> None:
    with WireDouble([BOTH]) as double, runtime(double) as running:
        seen = [*running.stream_sync("Am I free?", tools=["*", CALENDAR])]
    shown = [event.call.call_id for event in seen if isinstance(event, CallOutside)]
    assert shown == ["c1"]


def test_a_cut_call_is_not_handed_out() -> None:
    cut = Turn(calls=(Call("calendar", '{"day": "Mon', "c1"),))
    with WireDouble([cut, SAYS]) as double, runtime(double) as running:
        reply = running.ask_sync("Am I free?", tools=[CALENDAR])
        assert reply.outcome is Outcome.ANSWERED
        assert [each.code for each in reply.failures] == ["incomplete_call"]
        assert running.metrics().counts("callboard.tool.calls") == {(ASKERS_TOOL, "incomplete_call"): 1}


def test_tools_that_cannot_be_offered_are_refused() -> None:
    with pytest.raises(UsageError, match="a tool's name"):
        ClientTool("a tool")
    with WireDouble() as double, runtime(double) as running, pytest.raises(UsageError, match="two tools are called"):
        running.ask_sync("?", tools=["*", ClientTool("weather")])

"""Long conversations through a whole runtime: summaries, cleared results, and the tool that reads them back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.shared_double import shared_double

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Turn
from callboard.actors.tools import tool
from callboard.protocol.compaction import READ_TOOL, Compaction
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolMessage,
    UserMessage,
    history_faults,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import Error, FinishReason, ModelRequest, TextDelta, Usage
from callboard.protocol.prompt_tokens import estimate_tokens, message_tokens, tools_tokens
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

WINDOW = 8_192
LONG_ANSWER = "It is sunny there, with some clouds in the afternoon and a light wind from the sea. " * 4


@tool(risk="read", isolation="task")
async def weather(city: str) -> str:
    """The weather."""
    return f"In {city}: " + "rain, wind from the west, 12 degrees; " * 40


def asks_for_a_summary(request: ModelRequest) -> bool:
    first = request.messages[0]
    return isinstance(first, SystemMessage) and first.text.startswith("You write the summary")


def tokens(request: ModelRequest, messages: tuple[Message, ...] | None = None) -> int:
    shown = request.messages if messages is None else messages
    return tools_tokens(request.tools, estimate_tokens) + sum(message_tokens(each, estimate_tokens) for each in shown)


class Model:
    """Answers every question, every second one with a call first; notes what it was asked."""

    def __init__(self, summary: Callable[[int], ScriptedTurn]) -> None:
        self._summary = summary
        self.summaries: list[ModelRequest] = []
        self.turns: list[ModelRequest] = []

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        if asks_for_a_summary(request):
            self.summaries.append(request)
            return replace(self._summary(len(self.summaries)), usage=Usage(tokens(request), 50))
        self.turns.append(request)
        usage = Usage(tokens(request), 60)
        if len(self.turns) % 3 == 1 and not isinstance(request.messages[-1], ToolMessage):
            return ScriptedTurn(calls=(ScriptedCall("weather", {"city": f"city {len(self.turns)}"}),), usage=usage)
        return ScriptedTurn(LONG_ANSWER, usage=usage)

    def stable_share(self) -> float:
        """Of all prompt tokens, those that the prompt before began with too: what a provider's cache can hold."""
        same = whole = 0
        for before, now in zip(self.turns, self.turns[1:], strict=False):
            shared = 0
            while (
                shared < min(len(before.messages), len(now.messages))
                and before.messages[shared] == now.messages[shared]
            ):
                shared += 1
            same += tokens(now, now.messages[:shared])
            whole += tokens(now)
        return same / whole


def made(number: int) -> ScriptedTurn:
    return ScriptedTurn(f"- summary {number}: " + "the user asked for the weather in several cities. " * 5)


def settings_for(model: Callable[[ModelRequest], ScriptedTurn], compaction: Compaction | None, **more: Any) -> Settings:
    known = {"context_tokens": WINDOW, "instructions": "Be brief.", **more}
    return Settings(model="scripted/m", script=model, compaction=compaction, **known)


def talk(model: Model, compaction: Compaction | None, questions: int) -> tuple[Conversation, list[str]]:
    conversation, notes = Conversation(), []
    with Runtime(settings_for(model, compaction), [weather]) as runtime:
        for number in range(questions):
            asked = f"What is the weather in city {number}, and should I take an umbrella?"
            reply = runtime.ask_sync(asked, conversation=conversation, request_id=f"q{number}")
            assert reply.text == LONG_ANSWER
            notes += reply.notes
    return conversation, notes


def test_a_conversation_of_200_questions_stays_answerable_in_8k_tokens() -> None:
    model, plain = Model(made), Model(made)
    conversation, notes = talk(model, Compaction(), 200)
    talk(plain, None, 200)
    assert len([each for each in conversation.messages if isinstance(each, UserMessage)]) == 200
    assert history_faults(conversation.messages) == []
    assert all(tokens(request) + (request.sampling.max_output_tokens or 0) <= WINDOW for request in model.turns)
    assert 10 <= len(model.summaries) <= 60, "rarely: about every fifth question"
    assert len([note for note in notes if "replaced by a summary" in note]) == len(model.summaries)
    last = model.turns[-1].messages
    assert f"summary {len(model.summaries)}" in last[1].text if isinstance(last[1], UserMessage) else False
    # 0.76 and 0.64: where the history is only cut, it is cut at another place at each question.
    assert model.stable_share() > plain.stable_share() + 0.1


@pytest.mark.parametrize(
    ("summary", "told"),
    [
        (ScriptedTurn("I cannot.", finish_reason=FinishReason.REFUSAL), "the model did not write it (refusal)"),
        (ScriptedTurn(""), "the model wrote nothing"),
        (ScriptedTurn(calls=(ScriptedCall("weather", {"city": "x"}),)), "the model asked for a tool call in its place"),
        (ScriptedTurn(error=Error(ErrorKind.NOT_FOUND, "no such model")), "the model call failed (not_found)"),
    ],
    ids=["refused", "empty", "a-call", "no-model"],
)
def test_a_summary_that_cannot_be_had_costs_no_answer(summary: ScriptedTurn, told: str) -> None:
    model = Model(lambda _: summary)
    conversation, notes = talk(model, Compaction(), 40)
    assert any(f"could not be summarised: {told}" in note for note in notes)
    assert any(note.startswith("Older messages and results of about") for note in notes), "cut instead"
    assert all(tokens(request) + (request.sampling.max_output_tokens or 0) <= WINDOW for request in model.turns)
    failed = len([note for note in notes if "could not be summarised" in note])
    assert failed <= 10, "not tried again at each question"
    assert "no such model" not in repr(notes)
    assert conversation.compacted.summarised == 0


def test_a_summary_that_is_too_long_is_cut_to_its_share() -> None:
    model = Model(lambda _: ScriptedTurn("word " * 20_000))
    conversation, _ = talk(model, Compaction(), 40)
    assert estimate_tokens(conversation.compacted.summary) <= WINDOW * 0.75 * 0.1


def test_a_cleared_result_is_read_back_by_the_tool() -> None:
    """The model is asked about an old result, reads it by the number in the line that took its place, and answers."""
    seen: list[ModelRequest] = []

    def model(request: ModelRequest) -> ScriptedTurn:
        seen.append(request)
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            return ScriptedTurn(last.content[:80])
        assert isinstance(last, UserMessage)
        if not last.text.startswith("again"):
            return ScriptedTurn(calls=(ScriptedCall("weather", {"city": last.text}),))
        line = next(each for each in request.messages if isinstance(each, ToolMessage))
        assert line.content.startswith("[The result of this call (")
        number = int(line.content.partition("(first=")[2].partition(")")[0])
        return ScriptedTurn(calls=(ScriptedCall(READ_TOOL, {"first": number}),))

    conversation = Conversation()
    compaction = Compaction(clear_at=0.3, keep_results=1, summarise_at=None)
    with Runtime(settings_for(model, compaction, context_tokens=4_096), [weather]) as runtime:
        for city in ("Oslo", "Rome", "Lima", "Bern", "Cork"):
            runtime.ask_sync(city, conversation=conversation)
        reply = runtime.ask_sync("again: what was it in Oslo?", conversation=conversation)
        assert [offer.definition.name for offer in runtime.tools()] == ["weather", READ_TOOL]
    assert reply.text.startswith("[3] result of weather: In Oslo: rain, wind")
    assert [tuple(tool.name for tool in request.tools) for request in seen] == [("weather", READ_TOOL)] * len(seen)


def test_no_tool_is_offered_where_compaction_is_off_or_reads_nothing_back() -> None:
    for compaction in (None, Compaction(read_back=False)):
        with Runtime(settings_for(Model(made), compaction), [weather]) as runtime:
            assert [offer.definition.name for offer in runtime.tools()] == ["weather"]


def test_a_question_that_chooses_its_tools_has_the_reading_one_too_unless_it_wants_none() -> None:
    model = Model(made)
    with Runtime(settings_for(model, Compaction()), [weather]) as runtime:
        runtime.ask_sync("x", tools=["weather"])
        runtime.ask_sync("x", tools=[])
    names = [[each.name for each in request.tools] for request in model.turns]
    assert names == [["weather", READ_TOOL], ["weather", READ_TOOL], []]


OLD = tuple(
    message
    for number in range(60)
    for message in (UserMessage.of(f"question {number}"), AssistantMessage((Text(LONG_ANSWER),)))
)


def test_what_a_summary_takes_is_in_the_reply_and_no_reader_sees_it() -> None:
    model = Model(lambda _: ScriptedTurn("SECRET SUMMARY", chunk_chars=3))

    async def streamed() -> tuple[list[str], Any]:
        async with Runtime(settings_for(model, Compaction(read_back=False))) as runtime:
            items = [item async for item in runtime.stream("and now?", conversation=Conversation(OLD))]
        return [item.text for item in items if isinstance(item, TextDelta)], items[-1]

    model.turns.append(ModelRequest("m", (UserMessage.of("x"),)))  # so that the next one makes no call
    texts, reply = asyncio.run(streamed())
    assert "".join(texts) == reply.text == LONG_ANSWER
    assert [(step.is_turn, step.step) for step in reply.steps] == [(False, 1), (True, 2)]
    assert reply.model == "scripted/m"
    assert reply.usage == sum((step.usage for step in reply.steps if step.usage), Usage())
    assert [type(message) for message in reply.messages] == [UserMessage, AssistantMessage]


def test_a_cancel_during_a_summary_leaves_the_conversation_as_it_was() -> None:
    conversation = Conversation(OLD)
    asked = asyncio.Event()

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def model(request: ModelRequest) -> ScriptedTurn:
            assert asks_for_a_summary(request)
            loop.call_soon_threadsafe(asked.set)
            return ScriptedTurn("half a sum", stall=True)

        async with Runtime(settings_for(model, Compaction())) as runtime:
            waiting = asyncio.ensure_future(runtime.ask("and now?", conversation=conversation, request_id="r"))
            await asyncio.wait_for(asked.wait(), 20)
            assert runtime.cancel("r")
            with pytest.raises(RequestEnded) as ended:
                await waiting
            assert ended.value.reply.text == ""

    asyncio.run(run())
    assert conversation == Conversation(OLD)


def test_a_conversation_goes_on_in_another_runtime_with_its_summary() -> None:
    model = Model(made)
    conversation, _ = talk(model, Compaction(clear_at=None), 40)
    again = Conversation.from_json(conversation.to_json())
    summaries, shown = len(model.summaries), model.turns[-1].messages
    with Runtime(settings_for(model, Compaction(clear_at=None)), [weather]) as runtime:
        runtime.ask_sync("and now?", conversation=again)
        runtime.ask_sync("and in the beginning?", conversation=again.fork("q0/2"))
    assert len(model.summaries) == summaries, "neither is summarised again"
    assert model.turns[-2].messages[: len(shown)] == shown
    assert "summary" not in repr(model.turns[-1].messages)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"compaction": Compaction(clear_at=2)}, "setting 'compaction': clear_at must be a share above 0 and up to 1"),
        ({"compaction": {"model": "m"}}, "setting 'compaction': model must be \"provider/model\""),
        ({"compaction": {"sumarise_at": 0.5}}, "setting 'compaction': there is no 'sumarise_at' in it"),
        ({"history_share": 0}, "setting 'history_share'"),
        ({"result_share": 1.5}, "setting 'result_share'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_settings_that_cannot_be_meant_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings(**given)
    assert str(caught.value).startswith(told)


def test_a_model_for_summaries_that_no_provider_has_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UsageError, match="nowhere"):
        Runtime(settings_for(Model(made), Compaction(model="nowhere/m")))


def test_over_http_a_summary_is_asked_of_its_own_model_without_tools() -> None:
    """A real server: what it is sent, and that the summary's answer is not recorded."""
    with shared_double([Turn("They spoke of the weather."), Turn("fine")]) as server:
        settings = Settings(
            model="openai-compatible/large",
            base_url=server.base_url(Api.CHAT),
            api_key="a-key-of-nobody",
            context_tokens=6_000,
            compaction=Compaction(model="openai-compatible/small"),
        )
        conversation = Conversation(OLD)
        with Runtime(settings, [weather]) as runtime:
            reply = runtime.ask_sync("the last question", conversation=conversation)
        first, second = (asked.body for asked in server.requests())
    assert (first["model"], second["model"]) == ("small", "large")
    assert "tools" not in first
    assert [each["function"]["name"] for each in second["tools"]] == ["weather", READ_TOOL]
    assert "question 0" in json.dumps(first)
    assert "They spoke of the weather." in json.dumps(second)
    assert "question 0" not in json.dumps(second)
    assert (reply.text, conversation.messages[-1]) == ("fine", AssistantMessage((Text("fine"),)))
    assert conversation.messages[:-2] == OLD
    assert conversation.compacted.summary == "They spoke of the weather."

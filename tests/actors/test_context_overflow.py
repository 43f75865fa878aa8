"""A prompt that the model refuses as too long, over a real HTTP server: cut harder once, asked again, and told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import ModelCallFailed
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Answer, Api, Call, Fault, FaultKind, RawAnswer, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.content import AssistantMessage, Message, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName

#: 40 exchanges of 50 words, some 3,000 tokens.
HISTORY: tuple[Message, ...] = tuple(
    message
    for number in range(40)
    for message in (UserMessage.of(f"question {number} " + "word " * 50), AssistantMessage((Text(f"answer {number}"),)))
)
LONG_RESULT = "line of a log file\n" * 400


@tool(isolation="thread")
def log(x: int) -> str:
    return LONG_RESULT


def named(window: int) -> str:
    return (
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {window + 1} "
        "tokens. Please reduce the length of the messages."
    )


def refusal(message: str, status: int = 400) -> RawAnswer:
    return RawAnswer({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


#: By the API: its own words for it, without a code.
REFUSALS: dict[Api, tuple[str, RawAnswer]] = {
    Api.CHAT: ("openai-compatible", refusal(named(2000))),
    Api.RESPONSES: (
        "openai",
        RawAnswer({"error": {"message": "m", "type": "invalid_request_error", "code": "context_length_exceeded"}}, 400),
    ),
    Api.ANTHROPIC: (
        "anthropic",
        RawAnswer(
            {"type": "error", "error": {"type": "invalid_request_error",
                                        "message": "prompt is too long: 2100 tokens > 2000 maximum"}}, 400
        ),
    ),
    Api.GEMINI: (
        "gemini",
        RawAnswer(
            {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "The input token count (2100) exceeds the "
                       "maximum number of tokens allowed (2000)."}}, 400
        ),
    ),
    Api.OPENROUTER: (
        "openrouter",
        RawAnswer(
            {"error": {"code": 400, "message": "Provider returned error", "metadata": {
                "provider_name": "Anthropic", "raw": json.dumps({"type": "error", "error": {
                    "type": "invalid_request_error",
                    "message": "prompt is too long: 2100 tokens > 2000 maximum"}})}}}, 400
        ),
    ),
}  # fmt: skip


def settings_for(server: WireDouble, api: Api = Api.CHAT, **more: Any) -> Settings:
    known = {"model": f"{REFUSALS[api][0]}/m", "context_tokens": 100_000, **more}
    return Settings(base_url=server.base_url(api), api_key="a-key-of-nobody", **known)


def sizes(server: WireDouble) -> list[int]:
    return [len(json.dumps(asked.body)) for asked in server.requests()]


@pytest.mark.parametrize("api", REFUSALS, ids=str)
def test_every_api_is_asked_again_with_a_shorter_prompt(api: Api) -> None:
    with shared_double([REFUSALS[api][1], Turn("fine")]) as server, Runtime(settings_for(server, api)) as runtime:
        reply = runtime.ask_sync("the last question", conversation=Conversation(HISTORY))
        first, second = server.requests()
        metrics = runtime.metrics()
    assert reply.text == "fine"
    assert len(json.dumps(second.body)) < 0.76 * len(json.dumps(first.body))
    assert "the last question" in json.dumps(second.body)
    assert (metrics.count("callboard.notes", kind="asked_again"), metrics.count("callboard.notes", kind="trimmed")) == (
        1,
        1,
    )
    again, trimmed = reply.notes
    assert "the prompt was too long for " in again
    assert trimmed.startswith("Older messages and results of about ")


@pytest.mark.parametrize("after", [0, 2], ids=["at-once", "after-text"])
def test_an_overflow_inside_the_stream_is_one_too(after: int) -> None:
    error = Turn("half an answer", fault=Fault(FaultKind.STREAM_ERROR, after=after, status=400, message=named(2000)))
    with shared_double([error, Turn("fine")]) as server, Runtime(settings_for(server)) as runtime:
        reply = runtime.ask_sync("go", conversation=Conversation(HISTORY))
        first, second = sizes(server)
    assert (reply.text, second < first) == ("fine", True)


def test_the_instructions_and_the_question_stay() -> None:
    with (
        shared_double([refusal(named(2000)), Turn("fine")]) as server,
        Runtime(settings_for(server, instructions="Answer in rhyme.")) as runtime,
    ):
        runtime.ask_sync("the last question", conversation=Conversation(HISTORY))
        messages = server.requests()[1].body["messages"]
    assert messages[0] == {"role": "system", "content": "Answer in rhyme."}
    assert messages[-1] == {"role": "user", "content": "the last question"}
    assert messages[1]["role"] == "user", "whole exchanges are left out"


def test_results_are_shortened_before_anything_is_left_out() -> None:
    history = (
        UserMessage.of("what does the log say?"),
        AssistantMessage((ToolCall(CallId("c"), ToolName("log"), '{"x":1}'),)),
        ToolMessage(CallId("c"), ToolName("log"), LONG_RESULT),
        AssistantMessage((Text("Nothing."),)),
    )
    with (
        shared_double([refusal(named(2000)), Turn("fine")]) as server,
        Runtime(settings_for(server), tools=[log]) as runtime,
    ):
        runtime.ask_sync("and now?", conversation=Conversation(history))
        first, second = (asked.body["messages"] for asked in server.requests())
    assert [message["role"] for message in second] == [message["role"] for message in first]
    assert "characters" in json.dumps(second)
    assert len(json.dumps(second)) < len(json.dumps(first)) / 4


def test_a_result_of_this_request_is_shortened_too() -> None:
    call = Turn(calls=(Call("log", {"x": 1}, "call_1"),))
    answers: Sequence[Answer] = [call, refusal(named(2500)), Turn("fine")]
    with shared_double(answers) as server, Runtime(settings_for(server), tools=[log]) as runtime:
        reply = runtime.ask_sync("read it")
        *_, last = server.requests()
    assert reply.text == "fine"
    assert "are left out here" in json.dumps(last.body)
    assert len(reply.messages[2].content) > 7_000, "it is recorded whole"


def test_the_window_that_was_named_counts_for_the_next_request() -> None:
    answers = [refusal(named(2000)), Turn("one"), Turn("two")]
    with shared_double(answers) as server, Runtime(settings_for(server)) as runtime:
        runtime.ask_sync("go", conversation=Conversation(HISTORY))
        reply = runtime.ask_sync("go", conversation=Conversation(HISTORY))
        refused, _, third = sizes(server)
    assert (reply.text, third < 0.76 * refused) == ("two", True)
    assert [note for note in reply.notes if "too long" in note] == []
    assert "to fit into the 2,000 of the model's context" in reply.notes[-1]


def test_it_is_cut_once_and_then_the_error_says_what_to_do() -> None:
    advice = "; ask for less at once, begin a new conversation, or use a model with a larger context"
    with shared_double([refusal(named(2000)), refusal(named(1000)), Turn("never")]) as server:
        with Runtime(settings_for(server)) as runtime, pytest.raises(ModelCallFailed) as caught:
            runtime.ask_sync("go", conversation=Conversation(HISTORY))
        assert len(server.requests()) == 2
    assert caught.value.kind is ErrorKind.CONTEXT_LENGTH
    assert "This model's maximum context length is 1000 tokens" in str(caught.value)
    assert str(caught.value).endswith(advice)
    assert caught.value.reply.reason.startswith("context_length: after 2 tries: ")
    assert caught.value.reply.reason.endswith(advice)


def test_where_nothing_can_be_left_out_it_fails_at_once() -> None:
    with shared_double([refusal("Input is too long for requested model."), Turn("never")]) as server:
        with Runtime(settings_for(server)) as runtime, pytest.raises(ModelCallFailed, match="ask for less at once"):
            runtime.ask_sync("a question " * 500)
        assert len(server.requests()) == 1


def test_the_try_with_less_comes_out_of_the_same_requests() -> None:
    with shared_double([refusal(named(2000)), Turn("never")]) as server:
        with Runtime(settings_for(server, max_attempts=1)) as runtime, pytest.raises(ModelCallFailed):
            runtime.ask_sync("go", conversation=Conversation(HISTORY))
        assert len(server.requests()) == 1


def test_the_prompt_is_cut_before_another_model_is_asked() -> None:
    fallback = ("openai-compatible/larger",)
    answers = [refusal(named(2000)), Turn("fine")]
    with shared_double(answers) as server, Runtime(settings_for(server, fallback_models=fallback)) as runtime:
        runtime.ask_sync("go", conversation=Conversation(HISTORY))
        assert [asked.body["model"] for asked in server.requests()] == ["m", "m"]


def test_a_fallback_whose_window_is_smaller_is_named() -> None:
    no_money = Turn(fault=Fault(FaultKind.STATUS, status=402))
    answers = [no_money, refusal(named(2000)), no_money, Turn("fine")]
    fallback = ("openai-compatible/small",)
    with shared_double(answers) as server, Runtime(settings_for(server, fallback_models=fallback)) as runtime:
        reply = runtime.ask_sync("go", conversation=Conversation(HISTORY))
        asked = [asked.body["model"] for asked in server.requests()]
    assert (reply.text, asked) == ("fine", ["m", "small", "m", "small"])
    assert any("too long for openai-compatible/small, which takes 2,000 tokens" in note for note in reply.notes)

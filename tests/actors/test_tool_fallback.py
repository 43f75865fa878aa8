"""A model that takes no tools, over a real HTTP server: asked without them, remembered, told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.models.refusals import NO_TOOLS_SECONDS
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.replies import ModelCallFailed
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Call, Fault, FaultKind, RawAnswer, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.content import AssistantMessage, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName

FIRST = "openai-compatible/m0"
TOLD = f"{FIRST} takes no tools; it is asked again without them."
REMEMBERED = f"{FIRST} takes no tools, as it has said before; it is asked without them."
DOWN = Turn(fault=Fault(FaultKind.STATUS, status=402))
HISTORY: tuple[Message, ...] = (
    UserMessage.of("twice 21?"),
    AssistantMessage((Thinking("hm"), Text("I ask."), ToolCall(CallId("a"), ToolName("double"), '{"x":21}'),
                      ToolCall(CallId("b"), ToolName("double"), '{"x":2}'))),
    ToolMessage(CallId("a"), ToolName("double"), "42"),
    ToolMessage(CallId("b"), ToolName("double"), "it broke", is_error=True),
    AssistantMessage((Text("42."),)),
)  # fmt: skip


@tool(isolation="thread")
def double(x: int) -> int:
    return 2 * x


def refusal(message: str = "m0 does not support tools", status: int = 400) -> RawAnswer:
    return RawAnswer({"error": {"message": message, "type": "invalid_request_error", "code": None}}, status)


def runtime_for(server: WireDouble, models: int = 1, **more: Any) -> Runtime:
    names = [f"openai-compatible/m{number}" for number in range(models)]
    known = {"context_tokens": 100_000, **more}
    settings = Settings(
        model=names[0], fallback_models=tuple(names[1:]), base_url=server.base_url(), api_key="k", **known
    )
    return Runtime(settings, tools=[double])


def offered(server: WireDouble) -> list[tuple[str, bool]]:
    """Each request: of which model, and whether it offers tools."""
    return [(asked.body["model"], "tools" in asked.body) for asked in server.requests()]


@pytest.mark.parametrize(
    "said",
    [
        refusal(),
        refusal("`tool calling` is not supported with this model"),
        refusal('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        RawAnswer(
            {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}}, 500
        ),
    ],
    ids=["ollama", "groq", "vllm", "llamacpp"],
)
def test_the_next_requests_go_out_without_tools_at_once(said: RawAnswer) -> None:
    with shared_double([said, Turn("one"), Turn("two"), Turn("three")]) as server, runtime_for(server) as runtime:
        replies = [runtime.ask_sync("go") for _ in range(3)]
        assert offered(server) == [("m0", True), ("m0", False), ("m0", False), ("m0", False)]
        metrics = runtime.metrics()
    assert [reply.text for reply in replies] == ["one", "two", "three"]
    assert [reply.notes for reply in replies] == [(TOLD,), (REMEMBERED,), (REMEMBERED,)]
    assert metrics.count("callboard.notes", kind="tool_fallback") == 3


def test_after_an_hour_it_is_asked_with_tools_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_double([refusal(), Turn("one"), Turn("two"), Turn("three")]) as server, runtime_for(server) as runtime:
        runtime.ask_sync("go")
        runtime.ask_sync("go")
        system = runtime._running.system
        real = system.now
        monkeypatch.setattr(system, "now", lambda: real() + NO_TOOLS_SECONDS)
        reply = runtime.ask_sync("go")
        assert offered(server) == [("m0", True), ("m0", False), ("m0", False), ("m0", True)]
    assert reply.notes == ()


def test_another_runtime_has_not_heard_of_it() -> None:
    with shared_double([refusal(), Turn("one"), Turn("two")]) as server:
        for _ in range(2):
            with runtime_for(server) as runtime:
                runtime.ask_sync("go")
        assert offered(server) == [("m0", True), ("m0", False), ("m0", True)]


def test_it_costs_no_request_of_the_step_once_it_is_known() -> None:
    with shared_double([refusal(), Turn("one"), Turn("two")]) as server:
        with runtime_for(server, max_attempts=2) as runtime:
            runtime.ask_sync("go")
            assert runtime.ask_sync("go").text == "two"
        assert len(server.requests()) == 3


def test_a_fallback_that_takes_no_tools_is_the_one_that_is_named_and_asked() -> None:
    answers = [DOWN, refusal("m1 does not support tools"), Turn("one"), DOWN, Turn("two"), Turn("three")]
    with shared_double(answers) as server, runtime_for(server, 2) as runtime:
        first = runtime.ask_sync("go")
        second = runtime.ask_sync("go")
        third = runtime.ask_sync("go")
        assert offered(server) == [
            ("m0", True), ("m1", True), ("m1", False),  # refused
            ("m0", True), ("m1", False),  # remembered: it is not asked with tools once more
            ("m0", True),  # the first model takes tools, as before
        ]  # fmt: skip
    assert [first.text, second.text, third.text] == ["one", "two", "three"]
    told = "openai-compatible/m1 takes no tools; it is asked again without them."
    assert first.notes[-1] == told
    assert second.notes[-1] == told
    assert third.notes == ()


def test_the_calls_of_the_history_are_told_in_words() -> None:
    with shared_double([refusal(), Turn("fine")]) as server, runtime_for(server) as runtime:
        runtime.ask_sync("and thrice?", conversation=Conversation(HISTORY))
        with_tools, without = (asked.body["messages"] for asked in server.requests())
    assert [message["role"] for message in with_tools] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    assert [message["role"] for message in without] == ["user", "assistant", "user", "assistant", "user"]
    assert not any("tool_calls" in message for message in without)
    assert without[1]["content"] == 'I ask.\n[Called double with {"x":21}]\n[Called double with {"x":2}]'
    assert [part["text"] for part in without[2]["content"]] == ["[double returned]\n42", "[double failed]\nit broke"]
    assert without[0] == with_tools[0]


def test_the_conversation_keeps_its_calls() -> None:
    conversation = Conversation(HISTORY)
    with shared_double([refusal(), Turn("fine")]) as server, runtime_for(server) as runtime:
        runtime.ask_sync("and thrice?", conversation=conversation)
    assert conversation.messages[: len(HISTORY)] == HISTORY


def test_a_refusal_in_the_middle_of_a_request() -> None:
    """The route changed: what the calls gave is not lost."""
    answers = [Turn(calls=(Call("double", {"x": 21}, "call_1"),)), refusal(), Turn("42")]
    with shared_double(answers) as server, runtime_for(server) as runtime:
        reply = runtime.ask_sync("twice 21?")
        last = server.requests()[-1].body
    assert (reply.text, "tools" in last) == ("42", False)
    assert "[double returned]" in json.dumps(last["messages"])
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"]


def test_what_the_default_instructions_say_of_tools_goes_with_them(tmp_path: Any) -> None:
    (tmp_path / "code.py").write_text("def f(): ...\n")
    with shared_double([refusal(), Turn("fine"), Turn("again")]) as server:
        with runtime_for(server, workspace=tmp_path) as runtime:
            runtime.ask_sync("what is f?")
            runtime.ask_sync("what is f?")
        first, second, third = (asked.body["messages"][0]["content"] for asked in server.requests())
    assert "request_code_context" in first
    assert second == third
    assert first.startswith(second)
    assert "You answer questions about the code in" in second
    assert not any(word in second for word in ("request_code_context", "read_file", "list_dir", "tools"))


def test_instructions_of_the_user_stay(tmp_path: Any) -> None:
    with shared_double([refusal(), Turn("fine")]) as server:
        with runtime_for(server, instructions="Use your tools.") as runtime:
            runtime.ask_sync("go")
        assert [asked.body["messages"][0]["content"] for asked in server.requests()] == ["Use your tools."] * 2


def test_fail_says_what_to_do_and_asks_each_time() -> None:
    with shared_double([refusal(), refusal()]) as server, runtime_for(server, tool_fallback="fail") as runtime:
        for _ in range(2):
            with pytest.raises(ModelCallFailed) as caught:
                runtime.ask_sync("go")
        assert offered(server) == [("m0", True), ("m0", True)]
    assert caught.value.kind is ErrorKind.TOOLS_UNSUPPORTED
    assert "m0 does not support tools; use a model that takes tools, or tool_fallback" in str(caught.value)


def test_a_refusal_of_something_else_is_not_about_tools() -> None:
    """Said of a request that offers none, it is a bad request, and what was remembered is forgotten."""
    with shared_double([refusal(), refusal(), Turn("with tools")]) as server, runtime_for(server) as runtime:
        with pytest.raises(ModelCallFailed) as caught:
            runtime.ask_sync("go")
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
        assert runtime.ask_sync("go").text == "with tools"
        assert offered(server) == [("m0", True), ("m0", False), ("m0", True)]

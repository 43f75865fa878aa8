"""Structured output through the whole runtime: over HTTP by each API and in each way, the rest by a scripted model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.request import Request, urlopen

import pytest
from pydantic import BaseModel, Field, field_validator
from support.shared_double import cut, shared_double

from callboard.actors.models.refusals import NO_SCHEMA_SECONDS
from callboard.actors.requests.outputs import Output
from callboard.actors.requests.partial_outputs import PartialOutput
from callboard.actors.requests.replies import Conversation, ModelCallFailed, Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, Call, RawAnswer, Turn, WireDouble
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.content import ToolMessage, history_faults
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.model import FinishReason, Restarted
from callboard.protocol.output import OUTPUT_TOOL, OutputMode
from callboard.protocol.policy import Policy
from callboard.protocol.tools import Decision, Risk
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

Until = Callable[[Callable[[], bool]], None]
KNOWN = {"context_tokens": 100_000}
ALLOW = Policy({Risk.UNDECLARED: Decision.ALLOW})


class Place(BaseModel):
    """A place on a map."""

    name: str
    people: Annotated[int, Field(ge=0)] = 0


OSLO = Place(name="Oslo", people=700_000)
TEXT = OSLO.model_dump_json()
WRONG = '{"name": "Oslo", "people": -1}'

ENTERED, LEAVE = threading.Event(), threading.Event()


class Checked(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def check(cls, name: str) -> str:
        if name == "boom":
            raise KeyError("boom")
        if name == "hang":
            ENTERED.set()
            LEAVE.wait(30)
        return name


@tool(isolation="thread")
def double(x: int) -> int:
    return 2 * x


#: A model of each API that takes a schema.
MODELS = {
    Api.CHAT: "openai-chat/gpt-5",
    Api.RESPONSES: "openai/gpt-5",
    Api.ANTHROPIC: "anthropic/claude-sonnet-4-5",
    Api.GEMINI: "gemini/gemini-3-pro",
    Api.OPENROUTER: "openrouter/openai/gpt-5",
    Api.COPILOT: "copilot/gpt-5",
}


def key_for(server: WireDouble, api: Api) -> str:
    """Copilot's is handed out by the server."""
    if api is not Api.COPILOT:
        return "k"
    asked = Request(server.base_url(api) + "/copilot_internal/v2/token", headers={"authorization": "token secret"})
    with urlopen(asked, timeout=10) as answer:
        found: str = json.load(answer)["token"]
    return found


def by_call(arguments: str = TEXT) -> Turn:
    return Turn(calls=(Call(OUTPUT_TOOL, json.loads(arguments), "call_1"),))


def scripted(*turns: ScriptedTurn | str, tools: tuple[Any, ...] = (), **more: Any) -> Runtime:
    return Runtime(Settings(model="scripted/m", script=list(turns), policy=ALLOW, **more), tools=tools)


# -- each API, each way


@pytest.mark.parametrize("mode", OutputMode)
@pytest.mark.parametrize("api", Api)
def test_an_answer_that_does_not_fit_and_one_that_does_by_each_api_and_in_each_way(api: Api, mode: OutputMode) -> None:
    is_tool = mode is OutputMode.TOOL
    turns = [by_call(WRONG), by_call()] if is_tool else [Turn(WRONG), Turn(TEXT)]
    with shared_double(turns) as server:
        settings = Settings(model=MODELS[api], base_url=server.base_url(api), api_key=key_for(server, api), **KNOWN)
        with Runtime(settings) as runtime:
            reply = runtime.ask_sync("Where?", output=Annotated[Place, Output(mode=mode)])
        first, second = (json.dumps(request.body) for request in server.requests() if request.method == "POST")
    assert reply.output == OSLO
    assert json.loads(reply.text) == OSLO.model_dump()
    assert len(reply.steps) == 2
    assert reply.notes[-1] == "The answer does not fit Place (try 1 of 3)."
    assert "people" in first  # the schema, wherever this way puts it
    assert (OUTPUT_TOOL in first) == is_tool
    assert "greater than or equal to 0, received -1" in second.replace("\\", "")


@pytest.mark.parametrize("api", Api)
def test_tools_and_an_answer_by_a_schema_go_together_as_the_table_says(api: Api) -> None:
    """Calls first; the final answer is JSON, or a call of the output tool where no schema is taken beside tools."""
    answer = by_call() if api is Api.COPILOT else Turn(TEXT)
    with shared_double([Turn(calls=(Call("double", {"x": 2}, "call_0"),)), answer]) as server:
        key = key_for(server, api)
        settings = Settings(model=MODELS[api], base_url=server.base_url(api), api_key=key, policy=ALLOW, **KNOWN)
        with Runtime(settings, tools=[double]) as runtime:
            reply = runtime.ask_sync("Where?", output=Place)
    assert reply.output == OSLO
    assert [call.name for step in reply.steps for call in step.calls][:1] == ["double"]


# -- a refusal


SAYS_NO = RawAnswer(
    {"error": {"message": "This response_format type is unavailable now", "type": "invalid_request_error"}}, 400
)


def test_a_model_that_refuses_the_schema_is_asked_in_the_next_way_and_so_for_an_hour() -> None:
    with shared_double([SAYS_NO, by_call(), by_call(), Turn("plain")]) as server:
        settings = Settings(model="openai-compatible/m", base_url=server.base_url(), api_key="k", **KNOWN)
        with Runtime(settings) as runtime:
            first = runtime.ask_sync("Where?", output=Place)
            second = runtime.ask_sync("Where?", output=Place)
            plain = runtime.ask_sync("Where?")
        bodies = [request.body for request in server.requests()]
    assert first.output == second.output == OSLO
    assert first.notes == (
        "openai-compatible/m takes no schema of the answer, or not this one; it is asked to answer by a tool call.",
    )
    assert second.notes == ()
    assert plain.output == "plain"
    assert [("response_format" in body, "tools" in body) for body in bodies] == [
        (True, False), (False, True), (False, True), (False, False),
    ]  # fmt: skip
    assert NO_SCHEMA_SECONDS == 3_600


#: (the model, the type that is asked for, the status and the words): each is asked in the next way at once.
IN_OTHER_WORDS = [
    ("cerebras/gpt-oss-120b", Place, 422, "'additionalProperties' is required to be supplied and set to false."),
    ("openai-compatible/m", dict, 400, "'response_format.type' must be 'json_schema' or 'text'"),  # no json_object
    ("vllm/m", Place, 500, 'Grammar error: Unimplemented keys: ["propertyNames"]'),  # club-3090 45
    ("vllm/m", Place, 400, 'Grammar error: Unimplemented keys: ["propertyNames"]'),
    ("fireworks/m", Place, 400, "JSON Schema not supported: could not understand the instance `{}`."),  # pi 5352
    ("groq/openai/gpt-oss-120b", Place, 400, "response_format` does not support streaming"),  # langchain 23629
    ("mistral/m", Place, 422, "body.response_format.json_schema: Value error, invalid schema"),
]


@pytest.mark.parametrize(("model", "form", "status", "words"), IN_OTHER_WORDS)
def test_each_servers_words_have_it_asked_in_the_next_way(model: str, form: Any, status: int, words: str) -> None:
    refused = RawAnswer({"error": {"message": words, "type": "invalid_request_error"}}, status)
    with shared_double([refused, by_call()]) as server:
        settings = Settings(model=model, base_url=server.base_url(), api_key="k", **KNOWN)
        with Runtime(settings) as runtime:
            reply = runtime.ask_sync("Where?", output=form)
        bodies = [request.body for request in server.requests()]
    assert reply.output == (OSLO if form is Place else OSLO.model_dump())
    assert len(reply.notes) == 1, "it is not tried again in the same way"
    assert [("response_format" in body, "tools" in body) for body in bodies] == [(True, False), (False, True)]


def test_a_mode_that_was_chosen_is_not_left_and_the_error_says_what_to_do() -> None:
    with shared_double([SAYS_NO]) as server:
        settings = Settings(model="openai-compatible/m", base_url=server.base_url(), api_key="k", **KNOWN)
        with (
            Runtime(settings) as runtime,
            pytest.raises(ModelCallFailed, match="leave the output's mode open") as failed,
        ):
            runtime.ask_sync("Where?", output=Annotated[Place, Output(mode="native")])
    assert failed.value.kind is ErrorKind.SCHEMA_UNSUPPORTED
    assert failed.value.reply.output is None


def test_a_model_that_takes_neither_schema_nor_tools_is_asked_in_words() -> None:
    no_tools = RawAnswer({"error": {"message": "m does not support tools", "type": "invalid_request_error"}}, 400)
    with shared_double([SAYS_NO, no_tools, Turn(f"Here:\n```json\n{TEXT}\n```")]) as server:
        settings = Settings(model="openai-compatible/m", base_url=server.base_url(), api_key="k", **KNOWN)
        with Runtime(settings) as runtime:
            reply = runtime.ask_sync("Where?", output=Place)
        last = server.requests()[-1].body
    assert reply.output == OSLO
    assert len(reply.notes) == 2
    assert not {"response_format", "tools"} & set(last)
    assert "JSON Schema" in last["messages"][0]["content"]


# -- before anything is sent


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"output": Callable[[], int]}, "has no JSON Schema"),
        ({"output": 5}, "5 has no JSON Schema"),
        ({"output": Annotated[Place, Output(mode="tool")], "tool_choice": "none"}, "needs tool_choice"),
        ({"output": Place, "model": "offline/index"}, "answers from the code index"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(asked: dict[str, Any], told: str) -> None:
    conversation = Conversation()
    with scripted("never") as runtime:
        with pytest.raises(UsageError, match=told):
            runtime.ask_sync("Where?", conversation=conversation, **asked)
        assert runtime.statistics().sent == runtime.statistics().handled
        assert conversation.messages == ()
        assert runtime.ask_sync("Where?", conversation=conversation).text == "never"


# -- what is taken and what is not


def test_types_of_all_kinds_come_back_as_objects() -> None:
    script = (TEXT, "[1, 2]", '{"value": "b"}', '{"value": null}', '{"value": "no idea"}')
    with scripted(*script) as runtime:
        assert runtime.ask_sync("q", output=Place).output == OSLO
        assert runtime.ask_sync("q", output=list[int]).output == [1, 2]
        assert runtime.ask_sync("q", output=Literal["a", "b"]).output == "b"
        assert runtime.ask_sync("q", output=int | None).output is None
        assert runtime.ask_sync("q", output=Place | str).output == "no idea"


def test_a_bare_text_is_any_text() -> None:
    with scripted("anything") as runtime:
        assert runtime.ask_sync("q", output=str).output == "anything"


def test_it_is_given_up_after_three_tries_and_the_text_is_kept() -> None:
    with scripted(WRONG, "no", "still no") as runtime, pytest.raises(RequestEnded) as ended:
        runtime.ask_sync("q", output=Place)
    reply = ended.value.reply
    assert (reply.outcome, reply.text, reply.output) == (Outcome.FAILED, "still no", None)
    assert str(ended.value) == "The answer does not fit Place, after 3 tries: it holds no JSON."
    assert len(reply.steps) == 3


@pytest.mark.parametrize("tries", [1, 2])
def test_the_number_of_tries_can_be_said(tries: int) -> None:
    with scripted(*["no"] * 9) as runtime, pytest.raises(RequestEnded) as ended:
        runtime.ask_sync("q", output=Annotated[Place, Output(tries=tries)])
    assert len(ended.value.reply.steps) == tries


def test_a_failed_model_call_before_does_not_name_the_end() -> None:
    """It did not fit in the end; that the first call was refused is only a note."""
    with shared_double([SAYS_NO, *[Turn("no")] * 3]) as server:
        settings = Settings(model="openai-compatible/m", base_url=server.base_url(), api_key="k", **KNOWN)
        with Runtime(settings) as runtime, pytest.raises(RequestEnded, match="does not fit Place"):
            runtime.ask_sync("q", output=Place)


@pytest.mark.parametrize(
    ("reason", "told"),
    [(FinishReason.LENGTH, "cut off at the limit of output tokens"), (FinishReason.REFUSAL, "The model refused")],
)
def test_a_cut_and_a_refused_answer_are_said_to_be_that(reason: FinishReason, told: str) -> None:
    with scripted(ScriptedTurn('{"name": ', finish_reason=reason)) as runtime:
        with pytest.raises(RequestEnded, match=told) as ended:
            runtime.ask_sync("q", output=Place)
        assert len(ended.value.reply.steps) == 1


def test_the_output_tool_is_never_asked_about_nor_run_and_its_name_never_clashes() -> None:
    @tool(name=OUTPUT_TOOL, isolation="thread")
    def theirs() -> str:
        """A tool of the user's, by the name that the output tool has where it is free."""
        return "from theirs"

    own = ScriptedCall(f"{OUTPUT_TOOL}_2", TEXT, "a")
    turns = (ScriptedTurn(calls=(ScriptedCall(OUTPUT_TOOL, "{}", "b"), own)),)
    asked: list[object] = []
    settings = Settings(model="scripted/m", script=list(turns), policy=ALLOW)
    with Runtime(settings, tools=[theirs], approve=lambda question: bool(asked.append(question))) as runtime:
        reply = runtime.ask_sync("q", output=Annotated[Place, Output(mode="tool")])
    assert reply.output == OSLO
    assert not asked
    results = [message.content for message in reply.messages if isinstance(message, ToolMessage)]
    assert results == ["from theirs", "The answer was taken."]


def test_the_conversation_goes_on_with_another_form_and_with_none() -> None:
    conversation = Conversation()
    call = ScriptedTurn(calls=(ScriptedCall(OUTPUT_TOOL, TEXT, "a"),))
    with scripted(call, WRONG, TEXT, "plain", '{"value": [3]}') as runtime:
        runtime.ask_sync("q", output=Annotated[Place, Output(mode="tool")], conversation=conversation)
        runtime.ask_sync("q", output=Place, conversation=conversation)
        assert runtime.ask_sync("q", conversation=conversation).text == "plain"
        assert runtime.ask_sync("q", output=list[int], conversation=conversation).output == [3]
    assert not history_faults(conversation.messages)


# -- code of the user's


def test_a_validator_that_raises_something_else_ends_its_request_and_is_named() -> None:
    with scripted('{"name": "boom"}', '{"name": "fine"}') as runtime:
        with pytest.raises(RequestEnded, match=r"could not be checked: the check of Checked raised KeyError: 'boom'"):
            runtime.ask_sync("q", output=Checked)
        assert runtime.ask_sync("q", output=Checked).output == Checked(name="fine")


def test_a_validator_that_hangs_holds_nothing_up_but_its_own_request() -> None:
    ENTERED.clear()
    LEAVE.clear()
    with scripted('{"name": "hang"}', "meanwhile") as runtime:
        hung = runtime.stream_sync("q", output=Checked, timeout=30)
        reading = threading.Thread(target=lambda: _drain(hung), daemon=True)
        reading.start()
        assert ENTERED.wait(10)
        assert runtime.ask_sync("q").text == "meanwhile"
        assert runtime.cancel(hung.request_id)
        reading.join(10)
        assert not reading.is_alive()
        LEAVE.set()


def _drain(stream: Any) -> None:
    with pytest.raises(RequestEnded, match="cancelled"):
        list(stream)


def test_a_deadline_ends_a_request_whose_check_hangs() -> None:
    ENTERED.clear()
    LEAVE.clear()
    with scripted('{"name": "hang"}') as runtime:
        with pytest.raises(RequestEnded) as ended:
            runtime.ask_sync("q", output=Checked, timeout=0.3)
        assert ended.value.reply.outcome is Outcome.TIMED_OUT
        LEAVE.set()


# -- streamed


def test_the_object_grows_while_it_is_written_and_the_last_one_is_the_answer() -> None:
    async def run() -> list[Any]:
        async with Runtime(Settings(model="scripted/m", script=[ScriptedTurn(TEXT, chunk_chars=5)])) as runtime:
            return [item async for item in runtime.stream("q", output=Place)]

    items = asyncio.run(run())
    parts = [item.value for item in items if isinstance(item, PartialOutput)]
    assert len(parts) > 3
    assert parts[-1] == OSLO.model_dump()
    assert isinstance(items[-1], Reply)
    assert items[-1].output == OSLO


def test_by_a_tool_and_with_a_wrong_try_before_the_last_one_is_the_answer() -> None:
    turns = [ScriptedTurn(calls=(ScriptedCall(OUTPUT_TOOL, text, "a"),), chunk_chars=5) for text in (WRONG, TEXT)]
    with scripted(*turns) as runtime:
        items = list(runtime.stream_sync("q", output=Annotated[Place, Output(mode="tool")]))
    parts = [item.value for item in items if isinstance(item, PartialOutput)]
    assert {"name": "Oslo", "people": -1} in parts
    assert parts[-1] == OSLO.model_dump()


def test_what_was_cut_is_void() -> None:
    with shared_double([cut('{"name": "Rome'), Turn(TEXT, fragment=4)]) as server:
        settings = Settings(model="openai-compatible/m", base_url=server.base_url(), api_key="k", **KNOWN)
        with Runtime(settings) as runtime:
            items = list(runtime.stream_sync("q", output=Place))
    parts = [item.value for item in items if isinstance(item, PartialOutput)]
    assert parts[0] == {"name": "Rome"}
    assert parts[-1] == OSLO.model_dump()
    again = next(place for place, item in enumerate(items) if isinstance(item, Restarted))
    after = [item.value for item in items[again:] if isinstance(item, PartialOutput)]
    assert {"name": "Rome"} not in after


def test_a_question_without_output_has_no_partial_objects() -> None:
    with scripted(ScriptedTurn(TEXT, chunk_chars=5)) as runtime:
        items = list(runtime.stream_sync("q"))
    assert not any(isinstance(item, PartialOutput) for item in items)
    assert items[-1].output == TEXT

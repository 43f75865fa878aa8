"""What one question may say: each option reaches the model, and what is wrong is refused before anything is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.requests.asking import MAX_METADATA_CHARS, OPTIONS, Prompt, user_message
from callboard.actors.requests.outputs import Output
from callboard.actors.requests.replies import Conversation, ModelCallFailed, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.commands import Outcome
from callboard.protocol.content import (
    Audio,
    Document,
    Image,
    Replay,
    SystemMessage,
    Text,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import (
    AudioOut,
    ModelRequest,
    PromptCache,
    ResponseStorage,
    Sampling,
    ToolChoice,
    ToolChoiceMode,
)
from callboard.protocol.policy import Policy
from callboard.protocol.provider_options import AnthropicOptions, ExtraFields, OpenAIOptions
from callboard.protocol.server_tools import CodeExecution, WebFetch, WebSearch
from callboard.protocol.tools import Decision, FailureCode, Risk
from callboard.providers.catalog import FREE, Catalog, ModelInfo
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

PICTURE = Image("image/png", "iVBORw0KGgo=")


@tool(isolation="thread", risk="read")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sun in {city}"


@tool(isolation="thread", risk="write")
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


class Model:
    """A scripted model that remembers what it was asked, and calls the tools it is told to."""

    def __init__(self, *calls: ScriptedCall) -> None:
        self.asked: list[ModelRequest] = []
        self._calls = calls

    def __call__(self, request: ModelRequest) -> ScriptedTurn:
        self.asked.append(request)
        results = [message for message in request.messages if isinstance(message, ToolMessage)]
        if self._calls and not results:
            return ScriptedTurn(calls=self._calls)
        return ScriptedTurn(" ".join(result.content for result in results) or "fine")


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def runtime(model: Model) -> Iterator[Runtime]:
    settings = Settings(model="scripted/one", script=model, sampling=Sampling(temperature=0.5, seed=7))
    with Runtime(settings, tools=[weather, pay]) as running:
        yield running


# -- the prompt


@pytest.mark.parametrize(
    ("prompt", "parts"),
    [
        ("hello", (Text("hello"),)),
        (PICTURE, (PICTURE,)),
        (Text("hello"), (Text("hello"),)),
        (["what is this?", PICTURE], (Text("what is this?"), PICTURE)),
        ((PICTURE, "", "and this?"), (PICTURE, Text(""), Text("and this?"))),
        ([Document(text="a"), Audio("audio/wav", "AA=="), Video(url="https://h/v")], None),
    ],
    ids=["text", "part", "text part", "both", "blank between", "media"],
)
def test_a_prompt_is_text_or_parts(prompt: Prompt, parts: tuple[Any, ...] | None) -> None:
    assert user_message(prompt).parts == (tuple(prompt) if parts is None else parts)


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("", "the question is empty"),
        (" \n\t", "the question is empty"),
        ([], "the question is empty"),
        (["", " "], "the question is empty"),
        (5, "must be a str, a part or a list of them, not an int"),
        (None, "not a NoneType"),
        (b"bytes", "not a bytes"),
        ({"a": 1}, "not a dict"),
        ("a\ud800", "the question holds '\\ud800' at 1, which is half a character and cannot be sent"),
        (["what?", "\udfff"], "part 1 of the question holds '\\udfff' at 0"),
        (["what?", Text("\udfff")], "part 1 of the question holds '\\udfff' at 0"),
        (Image("image/png", b"\x89PNG"), "data_base64 of an Image must be base64, as base64.b64encode(data).decode()"),  # type: ignore[arg-type]
        (Image("image/png", "data:image/png;base64,AAAA"), "part 0 of the question: data_base64 of an Image must be"),
        (["a", Document("application/pdf", "AAA")], "part 1 of the question: data_base64 of a Document must be base64"),
        (Audio("audio/wav", "AAAA\nAAA"), "data_base64 of an Audio must be base64"),
        (Image("image/png", 3), "data_base64 of an Image must be base64"),  # type: ignore[arg-type]
        (Image(7, "AAAA"), "part 0 of the question, Image.media_type: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (Image("image/png", url=b"http://a"), "Image.url: Expected `str`, got `bytes`"),  # type: ignore[arg-type]
        (["a", Text(3)], "part 1 of the question, Text.text: Expected `str`, got `int`"),  # type: ignore[arg-type]
        (Text("a", citations=3), "Text.citations: Expected `array`, got `int`"),  # type: ignore[arg-type]
        (Text("a", replay="b"), "Text.replay: Expected `object | null`, got `str`"),  # type: ignore[arg-type]
        (Text("a", replay=Replay("b", {"c": 1j})), "Text: complex cannot be written"),
        (Document("text/plain", text=["a"]), "Document.text: Expected `str`, got `array`"),  # type: ignore[arg-type]
        (["what?", 5], "part 1 of the question is an int; it must be a str or one of Text, Image, Document"),
        ([UserMessage.of("a")], "part 0 of the question is a UserMessage"),
    ],
    ids=repr,
)
def test_what_is_no_prompt_is_refused_by_name(prompt: Any, says: str, runtime: Runtime, model: Model) -> None:
    with pytest.raises(UsageError) as caught:
        runtime.ask_sync(prompt)
    assert says in str(caught.value)
    assert model.asked == []


@given(st.one_of(st.text(), st.lists(st.one_of(st.text(), st.just(PICTURE), st.integers(), st.none())), st.integers()))
def test_a_prompt_is_a_message_or_a_usage_error(prompt: Any) -> None:
    try:
        message = user_message(prompt)
    except UsageError:
        return
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    assert texts == [each for each in ([prompt] if isinstance(prompt, str) else prompt) if isinstance(each, str)]


# -- each option


@pytest.mark.parametrize(
    ("options", "field", "sent"),
    [
        ({"sampling": Sampling(temperature=0.1)}, "sampling", Sampling(temperature=0.1, seed=7)),
        ({"sampling": Sampling(stop=("END",))}, "sampling", Sampling(temperature=0.5, seed=7, stop=("END",))),
        ({"tool_choice": "required"}, "tool_choice", ToolChoice(ToolChoiceMode.REQUIRED)),
        ({"tool_choice": "none"}, "tool_choice", ToolChoice(ToolChoiceMode.NONE)),
        ({"tool_choice": "weather"}, "tool_choice", ToolChoice(ToolChoiceMode.NAMED, weather.name)),
        (
            {"tool_choice": ToolChoice(allowed=(weather.name,))},
            "tool_choice",
            ToolChoice(ToolChoiceMode.AUTO, allowed=(weather.name,)),
        ),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"server_tools": [WebSearch(), CodeExecution()]}, "server_tools", (WebSearch(), CodeExecution())),
        ({"prompt_cache": "1h"}, "prompt_cache", PromptCache.ONE_HOUR),
        ({"storage": ResponseStorage(store=True)}, "storage", ResponseStorage(store=True)),
        ({"service_tier": "flex"}, "service_tier", "flex"),
        ({"images_out": True}, "images_out", True),
        ({"audio_out": AudioOut("echo")}, "audio_out", AudioOut("echo")),
        ({"provider_options": OpenAIOptions(user="u")}, "provider_options", (OpenAIOptions(user="u"),)),
        ({"extra_body": {"knob": 1}}, "provider_options", (ExtraFields({"knob": 1}),)),
        ({"extra_headers": {"x-knob": "1"}}, "provider_options", (ExtraFields(headers={"x-knob": "1"}),)),
        ({"model": "scripted/other"}, "model", "other"),
    ],
    ids=str,
)
def test_an_option_reaches_the_model(
    options: dict[str, Any], field: str, sent: object, runtime: Runtime, model: Model
) -> None:
    assert runtime.ask_sync("?", **options).outcome is Outcome.ANSWERED
    assert getattr(model.asked[0], field) == sent
    runtime.ask_sync("?")
    assert getattr(model.asked[1], field) != sent, "the next question is as the settings have it"


def test_instructions_of_a_question_take_the_place_of_those_of_the_settings(model: Model) -> None:
    with Runtime(Settings(model="scripted/one", script=model, instructions="Be brief.")) as runtime:
        runtime.ask_sync("?")
        runtime.ask_sync("?", instructions="Be long.")
        runtime.ask_sync("?", instructions="")
    assert [request.messages[0] for request in model.asked] == [
        SystemMessage("Be brief."), SystemMessage("Be long."), UserMessage.of("?"),
    ]  # fmt: skip


def test_budgets_of_a_question_end_it() -> None:
    asking = Model(ScriptedCall("weather", {"city": "Oslo"}))
    free = Catalog({"scripted/*": ModelInfo(prices=FREE)})
    with Runtime(Settings(model="scripted/one", script=asking, catalog=free), tools=[weather]) as runtime:
        for options, outcome in (
            ({"max_steps": 1}, Outcome.STEP_LIMIT),
            ({"token_budget": 30}, Outcome.TOKEN_LIMIT),
        ):
            with pytest.raises(RequestEnded) as ended:
                runtime.ask_sync("?", **options)
            assert ended.value.reply.outcome is outcome
        assert runtime.ask_sync("?", cost_budget=0.01).text == "sun in Oslo"


def test_a_question_has_its_own_time() -> None:
    settings = Settings(model="scripted/one", script=[ScriptedTurn(stall=True, chunk_chars=1)])
    with Runtime(settings) as runtime, pytest.raises(RequestEnded) as ended:
        runtime.ask_sync("?", timeout=0.05)
    assert ended.value.reply.outcome is Outcome.TIMED_OUT


def test_a_question_can_have_a_name_and_a_conversation(runtime: Runtime) -> None:
    conversation = Conversation()
    assert runtime.ask_sync("?", conversation=conversation, request_id="mine").request_id == "mine"
    assert len(conversation.messages) == 2


# -- tools


def test_exactly_the_tools_that_are_named_are_offered(runtime: Runtime, model: Model) -> None:
    for given_tools in (["weather"], [weather], [], ["*"], ("pay", "weather")):
        runtime.ask_sync("?", tools=given_tools)
    offered = [[each.name for each in request.tools] for request in model.asked]
    assert offered == [["weather"], ["weather"], [], ["weather", "pay"], ["weather", "pay"]]


def test_a_call_of_a_tool_that_a_question_does_not_offer_is_told_that_there_is_none() -> None:
    asking = Model(ScriptedCall("pay", {"amount": 3}))
    with Runtime(Settings(model="scripted/one", script=asking), tools=[weather, pay]) as runtime:
        reply = runtime.ask_sync("?", tools=["weather"])
    assert [failure.code for failure in reply.failures] == [FailureCode.UNKNOWN_TOOL]


def test_a_policy_holds_for_the_tools_of_one_question() -> None:
    @tool(isolation="thread", risk="execute")
    def erase() -> str:
        """Erase."""
        raise AssertionError("it must not run")

    asking = Model(ScriptedCall("erase", {}))
    policy = Policy({Risk.READ: Decision.ALLOW, Risk.EXECUTE: Decision.DENY})
    with Runtime(Settings(model="scripted/one", script=asking, policy=policy), tools=[weather]) as runtime:
        reply = runtime.ask_sync("?", tools=["*", erase])
    assert [each.name for each in asking.asked[0].tools] == ["weather"]
    assert [failure.code for failure in reply.failures] == [FailureCode.DENIED]


# -- what is wrong


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "misspelt": ({"modle": "x"}, "there is no option 'modle'; did you mean 'model'?"),
    "unknown": ({"colour": 1}, "there is no option 'colour'; known are: model, instructions, tools"),
    "model type": ({"model": 3}, 'model must be "provider/model", not 3'),
    "provider": ({"model": "nowhere/x"}, "There is no provider 'nowhere'"),
    "no model": ({"model": "openai"}, "names no model"),
    "no key": ({"model": "groq/llama"}, "groq needs a key"),
    "instructions": ({"instructions": 3}, "instructions must be a text, not an int"),
    "timeout zero": ({"timeout": 0}, "timeout must be a number above 0, not 0"),
    "timeout nan": ({"timeout": float("nan")}, "timeout must be a number above 0, not nan"),
    "timeout endless": ({"timeout": float("inf")}, "timeout must be a number above 0, not inf"),
    "timeout true": ({"timeout": True}, "timeout must be a number above 0, not True"),
    "steps": ({"max_steps": 0}, "max_steps must be a whole number from 1 on, not 0"),
    "steps half": ({"max_steps": 1.5}, "max_steps must be a whole number from 1 on, not 1.5"),
    "tokens": ({"token_budget": -5}, "token_budget must be a whole number from 1 on, not -5"),
    "too few tokens": ({"token_budget": 3}, "no question fits a token_budget of 3"),
    "cost": ({"cost_budget": 0}, "cost_budget must be a number above 0, not 0"),
    "sampling": ({"sampling": {"temperature": 1}}, "sampling must be a Sampling, not a dict"),
    "temperature": ({"sampling": Sampling(temperature=9)}, "sampling: temperature must be a number from 0 to 2, got 9"),
    "choice of none": ({"tool_choice": "wether"}, "not offered; did you mean 'weather'?; offered are: weather, pay"),
    "choice left out": (
        {"tool_choice": "pay", "tools": ["weather"]},
        "'pay', which is not offered; offered are: weath",
    ),
    "allowed, not offered": (
        {"tool_choice": ToolChoice(allowed=(ToolName("pay"),)), "tools": ["weather"]},
        "tool_choice allows 'pay', which is not offered; offered are: weather",
    ),
    "required of none": ({"tool_choice": "required", "tools": []}, "required, but no tool is offered"),
    "parallel of none": ({"parallel_tool_calls": True, "tools": []}, "parallel_tool_calls is about tools"),
    "parallel type": ({"parallel_tool_calls": "yes"}, "parallel_tool_calls must be True or False, not 'yes'"),
    "no such tool": ({"tools": ["wether"]}, "there is no tool 'wether'; did you mean 'weather'?; the tools of this"),
    "tools as text": ({"tools": "weather"}, r"tools must be a list of tools and names of tools, such as tools=['w"),
    "tool twice": ({"tools": ["pay", "pay"]}, "tools names 'pay' twice"),
    "no tool": ({"tools": [3]}, "3 is not a tool"),
    "cache": ({"prompt_cache": "2h"}, "prompt_cache must be one of 'off', '5m', '1h', not '2h'"),
    "server tool class": ({"server_tools": [WebSearch]}, r"not the class WebSearch; write WebSearch(...)"),
    "server tool": ({"server_tools": ["web"]}, "server_tools takes WebSearch, WebFetch"),
    "server tools": ({"server_tools": WebSearch()}, "server_tools must be a list, not a WebSearch"),
    "options": ({"provider_options": {"top_k": 3}}, "provider_options must be a list, not a dict"),
    "options twice": ({"provider_options": [OpenAIOptions(), OpenAIOptions()]}, "has OpenAIOptions twice"),
    "storage": ({"storage": True}, "storage must be a ResponseStorage, not a bool"),
    "storage of steps": ({"storage": ResponseStorage(previous_response_id="r")}, "add store=True, or offer no tools"),
    "metadata": ({"metadata": ["a"]}, "metadata must be a mapping of texts to texts, not a list"),
    "metadata number": ({"metadata": {"user": 3}}, "the entry 'user' is an int"),
    "metadata many": ({"metadata": {str(n): "" for n in range(17)}}, "metadata has 17 entries; at most 16 go along"),
    "metadata long": ({"metadata": {"a": "b" * (MAX_METADATA_CHARS + 1)}}, "the metadata 'a' is too long"),
    "metadata key": ({"metadata": {"a" * 65: ""}}, "is too long: a key has 1 to 64 characters"),
    "body": ({"extra_body": {"messages": []}}, "extra_body has 'messages', which callboard writes itself; say it with"),
    "body stream": ({"extra_body": {"stream": False}}, "nothing: every answer is streamed"),
    "body nan": ({"extra_body": {"a": [float("nan")]}}, "extra_body holds nan at a.0"),
    "headers": ({"extra_headers": {"Authorization": "x"}}, "which carries a credential; give it as api_key"),
    "header line": ({"extra_headers": {"x-a": "a\r\nb: c"}}, "the value of 'x-a' cannot be sent"),
    "header name": ({"extra_headers": {"x a": "b"}}, "'x a' is no name of a header"),
    "header ours": ({"extra_headers": {"Content-Type": "a/b"}}, "which callboard sets itself"),
    "conversation": ({"conversation": "c"}, "conversation must be a Conversation, not a str"),
    "request id": ({"request_id": "a/b"}, "has a slash in it"),
    "request id lines": ({"request_id": "a\nb"}, "request_id must be at most 256 characters that can be printed"),
    "request id long": ({"request_id": "a" * 257}, "request_id must be at most 256 characters"),
    "timeout long": ({"timeout": 1e308}, "timeout must be at most 31,536,000 (seconds, a year), not 1e+308"),
    "timeout huge": ({"timeout": 10**5_000}, "timeout must be a number above 0"),
    "cost huge": ({"cost_budget": 10**400}, "cost_budget must be a number above 0, not 1000"),
    "half a letter": ({"instructions": "a\ud800"}, r"instructions holds '\ud800' at 1, which is half a character"),
    "half a model": ({"model": "openai-compatible/\ud800"}, r"model holds '\ud800' at 18"),
    "half a metadata": ({"metadata": {"a": "\udfff"}}, r"metadata holds '\udfff'"),
    "choice mode": ({"tool_choice": ToolChoice("any")}, "tool_choice must be"),
    "choice without name": ({"tool_choice": ToolChoice(ToolChoiceMode.NAMED)}, "tool_choice must be"),
    "header letters": (
        {"extra_headers": {"x-a": "\xfc"}},
        "the value of 'x-a' cannot be sent; it must be one line",
    ),
    "header twice": ({"extra_headers": {"x-a": "1", "X-A": "2"}}, "extra_headers has a header twice"),
    "output": ({"output": Output(mode="tool")}, "goes beside a type; write output=Annotated[YourType, Output(...)]"),
    "output class": ({"output": Annotated[int, Output]}, "Output beside the type is a class; write Output(...)"),
    "output name": ({"output": Annotated[int, Output(name=3)]}, "output: name must be a text, not 3"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_one_sentence_and_nothing_is_sent(
    name: str, runtime: Runtime, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    options, says = WRONG[name]
    conversation = Conversation()
    with pytest.raises(UsageError) as caught:
        runtime.ask_sync("?", **{"conversation": conversation, **options})
    assert says in str(caught.value)
    assert model.asked == []
    runtime.ask_sync("?", conversation=conversation)  # it is free, and nothing was recorded in it
    assert len(conversation.messages) == 2


VALUES = st.one_of(st.none(), st.integers(), st.text(), st.floats(), st.booleans())


def test_no_value_of_an_option_raises_anything_else() -> None:
    with Runtime(Settings(model="scripted/one")) as runtime:

        @given(st.dictionaries(st.sampled_from(OPTIONS), VALUES))
        def ask(options: dict[str, Any]) -> None:
            with contextlib.suppress(UsageError, RequestEnded):
                runtime.ask_sync("?", **options)

        ask()


# -- what a model cannot be asked


@pytest.fixture
def openai(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(variable, "k")
    settings = Settings(model="openai/gpt-5", base_url="http://127.0.0.1:9/v1", max_attempts=1)
    with Runtime(settings, tools=[weather]) as running:
        yield running


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        (Audio("audio/wav", "AA=="), {}, "gpt-5 takes no Audio (audio/wav) here; it takes text, Image, Document"),
        ("?", {"server_tools": [WebFetch()]}, "gpt-5 has no WebFetch of its own on this API; it has: WebSearch"),
        ("?", {"sampling": Sampling(stop=("a",))}, "takes no stop sequences"),
        ("?", {"audio_out": AudioOut()}, "answers without sound"),
        (
            "?",
            {"provider_options": AnthropicOptions(top_k=1)},
            "AnthropicOptions are of another API",
        ),
        ("?", {"provider_options": OpenAIOptions(logit_bias={"1": 1})}, "OpenAIOptions.logit_bias: the Responses API"),
        (Video(url="https://h/v"), {"model": "anthropic/claude-opus-4-6"}, "claude-opus-4-6 takes no Video"),
        ("?", {"model": "gemini/gemini-3-pro", "provider_options": OpenAIOptions(user="u")}, "it takes GeminiOptions"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_model_cannot_do_is_refused_before_anything_is_sent(
    prompt: Prompt, options: Any, says: str, openai: Runtime
) -> None:
    sent = openai.statistics().sent
    with pytest.raises(UsageError) as caught:
        openai.ask_sync(prompt, **options)
    assert says in str(caught.value)
    assert openai.statistics().sent == sent, "no actor has heard of it"


def test_settings_that_the_model_cannot_do_are_refused_when_the_runtime_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(UsageError, match="has no WebFetch"):
        Runtime(Settings(model="openai/gpt-5", server_tools=(WebFetch(),)))
    with pytest.raises(UsageError, match="of another API"):
        Runtime(Settings(model="openai/gpt-5", provider_options=(AnthropicOptions(top_k=1),)))


def test_a_fallback_that_cannot_be_asked_this_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    settings = Settings(
        model="anthropic/claude-opus-4-6", base_url="http://127.0.0.1:9", fallback_models=("openai/gpt-5",)
    )
    with Runtime(settings) as runtime, pytest.raises(ModelCallFailed) as failed:
        runtime.ask_sync("?", server_tools=[WebFetch()], timeout=20.0)
    notes = failed.value.reply.notes
    assert notes[0].startswith("openai/gpt-5 is no fallback for this question: gpt-5 has no WebFetch")
    assert not any("is asked now" in note for note in notes)

"""Requests as each Chat Completions server takes them: the columns of the table of dialects."""

from __future__ import annotations

from typing import Any

import pytest
from support.wire import body

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Message,
    Replay,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
    Video,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import (
    AudioOut,
    ModelRequest,
    PromptCache,
    ResponseStorage,
    Sampling,
    ToolChoice,
    ToolChoiceMode,
)
from callboard.protocol.server_tools import CodeExecution, FileSearch, RemoteMcp, ServerToolOffer, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter
from callboard.providers.copilot.copilot_api import DIALECT as COPILOT
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.chat_requests import BRIDGE
from callboard.providers.openai.dialects import SERVERS, ChatDialect, StrictTools
from callboard.providers.openrouter import DIALECT as OPENROUTER
from callboard.providers.openrouter import OpenRouter
from callboard.providers.provider_registry import adapter_for
from callboard.providers.request_encoding import BLANK_USER, NO_OUTPUT, TRIMMED_START, stand_in

ROWS: dict[str, ChatDialect] = {**SERVERS, "openrouter": OPENROUTER, "copilot": COPILOT}
BLIND = ChatDialect("blind", parts={})
COMPATIBLE = [name for name in ROWS if name != "openai-chat"]
HI, GO = UserMessage.of("Hi"), UserMessage.of("Go on")
NOTE = SystemMessage("Two calls are left.")
LOOK = ToolName("look")
CALL = ToolCall(CallId("call_1"), LOOK, "{}")
RESULT = ToolMessage(CallId("call_1"), LOOK, "seen")
ASKED: tuple[Message, ...] = (HI, AssistantMessage((CALL,)), RESULT)
OPEN = {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
CLOSED = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
LAX, STRICT = ToolDefinition(LOOK, "Looks.", CLOSED), ToolDefinition(ToolName("see"), "Sees.", CLOSED, strict=True)


def server(name: str) -> Adapter:
    return OpenAIChat(base_url="http://localhost:1/v1", dialect=BLIND if name == "blind" else ROWS[name])


def sent(name: str, *messages: Message, **fields: Any) -> dict[str, Any]:
    return body(server(name), *messages, **fields)


def notes(name: str, *messages: Message, **fields: Any) -> str:
    request = ModelRequest(fields.pop("model", "m"), messages or (HI,), **fields)
    return "\n".join(server(name).encode(request).notes)


# The order of messages.


def test_quirk_75_notes_in_the_middle_are_the_users_text_but_at_openai() -> None:
    marked = "<system>\nTwo calls are left.\n</system>"
    for name in COMPATIBLE:
        *_, last = sent(name, SystemMessage("Be kind."), *ASKED, NOTE)["messages"]
        assert last == {"role": "user", "content": marked}, name
    assert sent("openai-chat", *ASKED, NOTE)["messages"][-1] == {"role": "system", "content": NOTE.text}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_quirk_75_there_is_one_system_message_and_it_is_the_first(name: str) -> None:
    history = (SystemMessage("One."), SystemMessage("Two."), HI, NOTE, AssistantMessage((Text("a"),)), NOTE, GO)
    roles = [message["role"] for message in sent(name, *history)["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert sent(name, *history)["messages"][0]["content"] == "One.\n\nTwo."


@pytest.mark.parametrize("name", COMPATIBLE)
def test_messages_of_the_user_follow_each_other_as_parts_of_one(name: str) -> None:
    (message,) = sent(name, HI, NOTE, GO)["messages"]
    texts = ["Hi", "<system>\nTwo calls are left.\n</system>", "Go on"]
    parts = "\n\n".join(texts) if not ROWS[name].text_parts else [{"type": "text", "text": text} for text in texts]
    assert message == {"role": "user", "content": parts}


@pytest.mark.parametrize("name", COMPATIBLE)
def test_a_conversation_begins_with_the_user(name: str) -> None:
    start = sent(name, SystemMessage("Be kind."), AssistantMessage((Text("a"),)), HI)["messages"][:3]
    assert [message["role"] for message in start] == ["system", "user", "assistant"]
    assert start[1]["content"] == TRIMMED_START
    assert sent(name, SystemMessage("Be kind."))["messages"][-1]["role"] == "user"


def test_quirk_74_a_bridge_between_results_and_the_user_where_it_is_demanded() -> None:
    bridge = {"role": "assistant", "content": BRIDGE}
    for name, model in (
        ("mistral", "any-name"),
        ("nvidia", "mistralai/mistral-small-4"),
        ("vllm", "mistralai/Devstral-Small-2"),
        ("openrouter", "mistralai/codestral"),
    ):
        for last in (GO, NOTE):
            messages = sent(name, *ASKED, last, model=model)["messages"]
            assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant", "user"], name
            assert messages[3] == bridge
        assert bridge not in sent(name, *ASKED, AssistantMessage((Text("a"),)), GO, model=model)["messages"]
    assert bridge not in sent("vllm", *ASKED, GO, model="Qwen3")["messages"]
    assert bridge not in sent("openai-chat", *ASKED, GO, model="mistral")["messages"]


def test_quirk_81_two_texts_stay_apart_everywhere() -> None:
    two = UserMessage((Text("one"), Text("two")))
    for name, row in ROWS.items():
        (message,) = sent(name, two)["messages"]
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        assert message["content"] == (parts if row.text_parts else "one\n\ntwo"), name


@pytest.mark.parametrize("name", COMPATIBLE)
def test_no_message_is_empty(name: str) -> None:
    history = (
        UserMessage.of(""),
        AssistantMessage((Thinking("hm"),)),
        UserMessage((Text(" "), Text("x"))),
        AssistantMessage((CALL,)),
        ToolMessage(CALL.call_id, LOOK, ""),
    )
    messages = sent(name, *history)["messages"]
    assert [bool(message["content"]) for message in messages] == [True, True, True, False, True]
    assert (messages[0]["content"], messages[4]["content"]) == (BLANK_USER, NO_OUTPUT)
    assert messages[2]["content"] == "x"
    assert messages[3]["content"] is None


# Tools.


def test_quirk_76_strict_is_the_same_for_all_tools_of_a_request() -> None:
    def strict(name: str, *tools: ToolDefinition) -> list[bool]:
        return [tool["function"].get("strict", False) for tool in sent(name, tools=tools)["tools"]]

    both = ToolDefinition(LOOK, "Looks.", CLOSED, strict=True)
    assert ROWS["cerebras"].strict is StrictTools.SAME
    assert strict("cerebras", LAX, STRICT) == [False, False]
    assert strict("cerebras", both, STRICT) == [True, True]
    # One that cannot be strict (an open object) makes all lax.
    assert strict("cerebras", ToolDefinition(LOOK, "Looks.", OPEN, strict=True), STRICT) == [False, False]
    assert strict("groq", LAX, STRICT) == [False, True]
    assert strict("moonshot", both, STRICT) == strict("cohere", both, STRICT) == [False, False]
    (lax, _) = sent("cerebras", tools=(STRICT, LAX))["tools"]
    assert lax["function"]["parameters"] == CLOSED
    assert "strict: it must be the same for all tools" in notes("cerebras", tools=(LAX, STRICT))
    assert notes("cerebras", tools=(LAX,)) == ""
    everything = notes("cerebras", tools=(LAX, STRICT), storage=ResponseStorage(store=True))
    assert [note.partition(":")[0] for note in everything.splitlines()] == ["storage", "strict"]


def choice(name: str, mode: ToolChoiceMode, *tools: ToolDefinition) -> tuple[list[str], Any, str]:
    """The names of the tools sent, tool_choice, and the notes."""
    asked = ToolChoice(mode, LOOK if mode is ToolChoiceMode.NAMED else None)
    made = sent(name, tools=tools, tool_choice=asked)
    names = [tool["function"]["name"] for tool in made.get("tools", [])]
    return names, made.get("tool_choice"), notes(name, tools=tools, tool_choice=asked)


def test_a_choice_that_has_no_field_is_told_by_what_is_offered() -> None:
    named = {"type": "function", "function": {"name": "look"}}
    both = ["look", "see"]
    lax = ToolDefinition(ToolName("see"), "Sees.", CLOSED)
    assert choice("mistral", ToolChoiceMode.REQUIRED, LAX, lax) == (both, "any", "")
    assert choice("groq", ToolChoiceMode.REQUIRED, LAX, lax) == (both, "required", "")
    assert choice("llamacpp", ToolChoiceMode.NAMED, LAX, lax) == (["look"], "required", "")
    assert choice("cohere", ToolChoiceMode.NAMED, LAX, lax) == (["look"], "required", "")
    assert choice("moonshot", ToolChoiceMode.NAMED, LAX, lax) == (both, named, "")
    assert choice("moonshot", ToolChoiceMode.REQUIRED, LAX) == (["look"], named, "")
    names, field, noted = choice("moonshot", ToolChoiceMode.REQUIRED, LAX, lax)
    assert (names, field) == (both, None)
    assert "tool_choice required: moonshot has none" in noted
    assert choice("zai", ToolChoiceMode.NONE, LAX) == ([], None, "")
    names, field, noted = choice("zai", ToolChoiceMode.NAMED, LAX, lax)
    assert (names, field) == (["look"], None)
    assert "the model may answer without a call" in noted


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("mode", list(ToolChoiceMode))
def test_no_server_is_sent_a_choice_that_it_does_not_take(name: str, mode: ToolChoiceMode) -> None:
    row = ROWS[name]
    _, field, noted = choice(name, mode, LAX, STRICT)
    spoken = {None: ToolChoiceMode.AUTO, "none": ToolChoiceMode.NONE, row.required_word: ToolChoiceMode.REQUIRED}
    said = ToolChoiceMode.NAMED if isinstance(field, dict) else spoken[field]
    assert said in row.tool_choices
    assert said is mode or mode not in row.tool_choices or "tool_choice" in noted


def test_parallel_tool_calls_only_where_it_is_taken() -> None:
    for name, row in ROWS.items():
        made = sent(name, tools=(LAX,), parallel_tool_calls=False)
        assert ("parallel_tool_calls" in made) is row.parallel_flag, name
        assert ("parallel_tool_calls" in notes(name, tools=(LAX,), parallel_tool_calls=False)) is not row.parallel_flag


# Knobs.


@pytest.mark.parametrize(
    ("name", "effort", "fields"),
    [
        ("groq", "high", {"reasoning_effort": "high"}),
        ("openrouter", "high", {"reasoning": {"effort": "high"}}),
        ("deepseek", "low", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
        ("deepseek", "none", {"thinking": {"type": "disabled"}}),
        ("moonshot", "high", {"reasoning_effort": "high"}),
        ("moonshot", "none", {"thinking": {"type": "disabled"}}),
        ("zai", "high", {"thinking": {"type": "enabled"}}),
        ("zai", "none", {"thinking": {"type": "disabled"}}),
        ("alibaba", "low", {"enable_thinking": True}),
        ("alibaba", "none", {"enable_thinking": False}),
        (
            "llamacpp",
            "high",
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
        ),
        (
            "vllm",
            "high",
            {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}, "reasoning_effort": "high"},
        ),
        ("vllm", "none", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
        ("nvidia", "none", {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}}),
    ],
)
def test_how_hard_to_think(name: str, effort: str, fields: dict[str, object]) -> None:
    plain, asked = sent(name), sent(name, sampling=Sampling(reasoning_effort=effort))
    assert {key: asked[key] for key in asked.keys() - plain.keys()} == fields
    form = ROWS[name].effort
    assert form is not None
    lost = not form.levels and effort != "none"
    assert ("reasoning effort" in notes(name, sampling=Sampling(reasoning_effort=effort))) is lost


def test_a_schema_where_a_server_only_knows_json() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    for name in ("deepseek", "moonshot", "zai", "alibaba"):
        made = sent(name, SystemMessage("Be kind."), HI, response_schema=schema)
        assert made["response_format"] == {"type": "json_object"}, name
        instructions = made["messages"][0]
        assert instructions["role"] == "system"
        assert instructions["content"].startswith("Be kind.\n\nAnswer with one JSON object")
        assert '{"city":{"type":"string"}}' in instructions["content"]
        assert "response_schema" in notes(name, response_schema=schema)
        assert sent(name, response_schema=schema)["messages"][0]["role"] == "system"
    assert sent("cohere", response_schema=schema)["response_format"] == {"type": "json_object", "schema": schema}
    assert sent("vllm", response_schema=schema)["response_format"]["json_schema"]["schema"] == schema


def test_knobs_that_a_server_has_not_are_noted() -> None:
    sampling = Sampling(seed=7, logprobs=2)
    assert sent("openai-chat", sampling=sampling)["top_logprobs"] == 2
    assert sent("openai-chat", sampling=Sampling(logprobs=0)).keys() >= {"logprobs"}
    assert "top_logprobs" not in sent("openai-chat", sampling=Sampling(logprobs=0))
    assert sent("together", sampling=sampling)["logprobs"] == 2
    assert (sent("cohere", sampling=sampling)["logprobs"], "top_logprobs" in sent("cohere", sampling=sampling)) == (
        True,
        False,
    )
    made = sent("zai", sampling=sampling, service_tier="flex")
    assert not made.keys() & {"seed", "", "logprobs", "top_logprobs", "service_tier"}
    noted = notes("zai", sampling=sampling, service_tier="flex")
    assert [word in noted for word in ("seed: zai has none", "logprobs: zai", "service_tier: zai")] == [True] * 3
    assert sent("openai-chat", service_tier="flex")["service_tier"] == "flex"
    capped = Sampling(max_output_tokens=9)
    assert sent("copilot", sampling=capped)["max_completion_tokens"] == 9
    assert sent("moonshot", sampling=capped)["max_completion_tokens"] == 9


def test_answers_that_are_kept_belong_to_the_responses_api() -> None:
    assert "storage" in notes("openai-chat", storage=ResponseStorage(store=True))
    assert notes("openai-chat", storage=ResponseStorage()) == ""
    with pytest.raises(UsageError, match=r"previous_response_id.*whole conversation"):
        sent("openai-chat", storage=ResponseStorage(store=True, previous_response_id="resp_1"))


def test_the_path_and_the_header_of_the_key_are_columns() -> None:
    row = ChatDialect("azure", path="/deployments/{model}/chat?api-version=1", key_header="api-key")
    wire = OpenAIChat(base_url="https://x.example/openai", api_key="secret-key", dialect=row).encode(
        ModelRequest("gpt/4", (HI,))
    )
    assert wire.url == "https://x.example/openai/deployments/gpt%2F4/chat?api-version=1"
    assert wire.headers["api-key"] == "secret-key"
    assert "authorization" not in wire.headers


# Media.

PNG = Image("image/png", "aGk=")
PDF = Document("application/pdf", "aGk=", name="a.pdf")
WAV = Audio("audio/wav", "aGk=")
FILM = Video("video/mp4", "aGk=")
PAGE = "https://x.example/y"
PDF_URL = "data:application/pdf;base64,aGk="


def sound(data: str, form: str) -> dict[str, object]:
    return {"type": "input_audio", "input_audio": {"data": data, "format": form}}


@pytest.mark.parametrize(
    ("name", "part", "written"),
    [
        ("openai-chat", PDF, {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}}),
        ("openai-chat", Document(file_id="file-1"), {"type": "file", "file": {"file_id": "file-1"}}),
        ("openai-chat", WAV, sound("aGk=", "wav")),
        ("openai-chat", Audio("audio/mpeg", "aGk="), sound("aGk=", "mp3")),
        ("openrouter", Document(url=PAGE, name="y"), {"type": "file", "file": {"filename": "y", "file_data": PAGE}}),
        ("openrouter", FILM, {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,aGk="}}),
        ("openrouter", Audio("audio/flac", "aGk="), sound("aGk=", "flac")),
        ("vllm", Video(url=PAGE), {"type": "video_url", "video_url": {"url": PAGE}}),
        ("moonshot", Video(file_id="f1"), {"type": "video_url", "video_url": {"url": "ms://f1"}}),
        ("moonshot", Image(file_id="f1"), {"type": "image_url", "image_url": {"url": "ms://f1"}}),
        ("alibaba", WAV, sound("data:audio/wav;base64,aGk=", "wav")),
        ("mistral", PDF, {"type": "document_url", "document_url": PDF_URL, "document_name": "a.pdf"}),
        ("mistral", Document(file_id="f1"), {"type": "file", "file_id": "f1"}),
        ("mistral", WAV, {"type": "input_audio", "input_audio": "aGk="}),
        ("perplexity", PDF, {"type": "file_url", "file_url": {"url": "aGk="}, "file_name": "a.pdf"}),
        ("zai", Document(url=PAGE), {"type": "file_url", "file_url": {"url": PAGE}}),
    ],
)  # fmt: skip
def test_a_medium_in_its_servers_form(name: str, part: Any, written: dict[str, object]) -> None:
    (message,) = sent(name, UserMessage((Text("What?"), part)))["messages"]
    assert message["content"] == [{"type": "text", "text": "What?"}, written]


@pytest.mark.parametrize("name", ROWS)
def test_a_document_that_is_text_is_read_by_every_server(name: str) -> None:
    (message,) = sent(name, UserMessage((Text("What?"), Document(text="Words.", name="a.txt"))))["messages"]
    assert '<document name="a.txt">\nWords.\n</document>' in str(message["content"]).replace("\\n", "\n")


@pytest.mark.parametrize(
    ("name", "part", "says"),
    [
        ("blind", PNG, r"blind/m takes no Image \(image/png\) here; it takes text\. Leave the part out"),
        ("cerebras", Image("image/webp", "aGk="), r"Image by data_base64 \(image/png, image/jpeg\)\."),
        (
            "groq",
            PDF,
            r"groq/m takes no Document \(application/pdf\) here; it takes text, Image by data_base64 or url\.",
        ),
        ("openai-chat", Document(url=PAGE), "Document by data_base64 or file_id"),
        ("openai-chat", Audio("audio/flac", "aGk="), r"Audio by data_base64 \(audio/wav, .*audio/mpeg"),
        ("openai-chat", FILM, "takes no Video"),
        ("moonshot", Image(url=PAGE), "Image by data_base64 or file_id"),
        ("ollama", Image(url=PAGE), "Image by data_base64"),
        ("zai", FILM, "Video by url"),
        ("vllm", Image(), "takes no Image here"),
    ],
)
def test_what_a_server_does_not_take_is_refused_before_it_is_sent(name: str, part: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sent(name, UserMessage((Text("What?"), part)))


def test_media_of_results() -> None:
    shown = ToolMessage(CALL.call_id, LOOK, "a chart", media=(PNG, Document(text="Words.")))
    history = (*ASKED[:2], shown)
    text = stand_in(PNG)
    assert (
        sent("openai-chat", *history)["messages"][-1]["content"] == f"a chart\n{text}\n<document>\nWords.\n</document>"
    )
    assert "Image (image/png) in the result of look: openai-chat/m takes none there" in notes("openai-chat", *history)
    *_, last = sent("openrouter", *history, model="openai/gpt")["messages"]
    assert last["content"] == [
        {"type": "text", "text": "a chart\n<document>\nWords.\n</document>"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
    assert notes("openrouter", *history) == ""


def test_what_an_answer_had_goes_back_or_is_noted() -> None:
    own, foreign = Replay("openai-chat", {"audio": {"id": "audio_1"}}), Replay("gemini", {"x": 1})
    spoken = AssistantMessage((Text("Hello.", own), Audio("audio/wav", "aGk=", replay=own)))
    assert sent("openai-chat", HI, spoken)["messages"][1] == {"role": "assistant", "audio": {"id": "audio_1"}}
    assert notes("openai-chat", HI, spoken) == ""
    said = f"Hello.\n{stand_in(spoken.parts[1])}"  # type: ignore[arg-type]
    assert sent("groq", HI, spoken)["messages"][1] == {"role": "assistant", "content": said}
    assert "Audio (audio/wav) of an earlier answer: groq/m takes none there" in notes("groq", HI, spoken)
    searched = AssistantMessage((ServerTool("executed_tools", foreign, "search"), Text("a"), PNG))
    noted = notes("groq", HI, searched, searched)
    assert noted.count("search (a tool of its server) of an earlier answer: groq/m takes none back; left out") == 1
    assert "Image (image/png) of an earlier answer: groq/m takes none there" in noted


def test_thinking_goes_back_in_its_servers_form() -> None:
    for name, field in (("zai", "reasoning_content"), ("cerebras", "reasoning"), ("copilot", "reasoning_text")):
        turn = AssistantMessage((Thinking("hm", Replay(name, {})), Text("a")))
        assert sent(name, HI, turn)["messages"][1][field] == "hm"
    turn = AssistantMessage((Thinking("hm", Replay("mistral", {})), Text("a"), CALL))
    assert sent("mistral", HI, turn, ToolMessage(CALL.call_id, LOOK, "x"))["messages"][1]["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "a"},
    ]
    opaque = AssistantMessage((Thinking("hm", Replay("copilot", {"reasoning_opaque": "T1A="})), Text("a")))
    message = sent("copilot", HI, opaque)["messages"][1]
    assert (message["reasoning_text"], message["reasoning_opaque"]) == ("hm", "T1A=")


def test_reasoning_of_claudes_that_was_cut_before_its_signature_is_left_out() -> None:
    signed = {"type": "reasoning.text", "text": "a", "signature": "c2ln", "format": "anthropic-claude-v1"}
    cut = {"type": "reasoning.text", "text": "b", "signature": None, "format": "anthropic-claude-v1"}
    turn = AssistantMessage((Thinking("ab", Replay("openrouter", {"reasoning_details": [signed, cut]})), Text("x")))
    assert sent("openrouter", HI, turn)["messages"][1]["reasoning_details"] == [signed]


# What the answer is made of.


def test_sound_and_pictures_are_asked_for_where_they_can_be() -> None:
    spoken = sent("openai-chat", audio_out=AudioOut("ash", "wav"), stream=False)
    assert (spoken["modalities"], spoken["audio"]) == (["text", "audio"], {"voice": "ash", "format": "wav"})
    assert sent("openai-chat", audio_out=AudioOut())["audio"] == {"voice": "alloy", "format": "pcm16"}
    assert "it comes as pcm16" in notes("openai-chat", audio_out=AudioOut())
    assert sent("openrouter", images_out=True)["modalities"] == ["image", "text"]
    assert sent("alibaba", audio_out=AudioOut("Cherry"))["audio"] == {"voice": "Cherry", "format": "wav"}
    assert "modalities" not in sent("groq", images_out=True)
    assert "images_out: groq has none" in notes("groq", images_out=True)
    with pytest.raises(UsageError, match="groq/m answers without sound on this API"):
        sent("groq", audio_out=AudioOut())


PARIS = {"country": "FR", "city": "Paris"}


@pytest.mark.parametrize(
    ("name", "model", "offer", "fields"),
    [
        ("openai-chat", "m", WebSearch(), {"web_search_options": {}}),
        (
            "openai-chat",
            "m",
            WebSearch(country="FR", city="Paris"),
            {"web_search_options": {"user_location": {"type": "approximate", "approximate": PARIS}}},
        ),
        ("openrouter", "m", WebSearch(), {"tools": [{"type": "openrouter:web_search"}]}),
        (
            "openrouter",
            "m",
            WebSearch(allowed_domains=("a.org",)),
            {"tools": [{"type": "openrouter:web_search", "parameters": {"allowed_domains": ["a.org"]}}]},
        ),
        (
            "openrouter",
            "m",
            WebFetch(max_uses=2),
            {"tools": [{"type": "openrouter:web_fetch", "parameters": {"max_uses": 2}}]},
        ),
        ("perplexity", "sonar", WebSearch(), {}),
        (
            "perplexity",
            "sonar",
            WebSearch(allowed_domains=("a.org",), blocked_domains=("b.org",), country="FR"),
            {"search_domain_filter": ["a.org", "-b.org"], "web_search_options": {"user_location": {"country": "FR"}}},
        ),
        ("groq", "openai/gpt-oss-120b", WebSearch(), {"tools": [{"type": "browser_search"}]}),
        ("groq", "openai/gpt-oss-120b", CodeExecution(), {"tools": [{"type": "code_interpreter"}]}),
        (
            "groq",
            "groq/compound",
            WebSearch(blocked_domains=("b.org",)),
            {
                "compound_custom": {"tools": {"enabled_tools": ["web_search"]}},
                "search_settings": {"exclude_domains": ["b.org"]},
            },
        ),
        ("alibaba", "qwen-plus", WebSearch(), {"enable_search": True}),
        (
            "zai",
            "glm-5",
            WebSearch(allowed_domains=("a.org",)),
            {
                "tools": [
                    {
                        "type": "web_search",
                        "web_search": {
                            "enable": True,
                            "search_engine": "search-prime",
                            "search_result": True,
                            "search_domain_filter": "a.org",
                        },
                    }
                ]
            },
        ),
    ],
)  # fmt: skip
def test_server_tools(name: str, model: str, offer: ServerToolOffer, fields: dict[str, object]) -> None:
    plain, asked = sent(name, model=model), sent(name, model=model, server_tools=(offer,))
    assert {key: asked[key] for key in asked.keys() - plain.keys()} == fields
    assert notes(name, model=model, server_tools=(offer,)) == ""


def test_server_tools_join_ours_and_each_other() -> None:
    made = sent("openrouter", tools=(LAX,), server_tools=(WebSearch(), WebFetch()))
    assert [tool["type"] for tool in made["tools"]] == ["function", "openrouter:web_search", "openrouter:web_fetch"]
    compound = sent("groq", model="groq/compound", server_tools=(WebSearch(), CodeExecution(), WebFetch()))
    enabled = ["web_search", "code_interpreter", "visit_website"]
    assert compound["compound_custom"] == {"tools": {"enabled_tools": enabled}}


def test_server_tools_that_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"xai/grok has no WebSearch of its own on this API; it has: none\."):
        sent("xai", model="grok", server_tools=(WebSearch(),))
    with pytest.raises(UsageError, match=r"openrouter/m has no FileSearch.*it has: WebSearch, WebFetch"):
        sent("openrouter", server_tools=(FileSearch(("store",)),))
    mcp = RemoteMcp("docs", "https://x.example", authorization="a-secret-token")
    with pytest.raises(UsageError, match="no RemoteMcp") as refused:
        sent("groq", server_tools=(mcp,))
    assert "a-secret-token" not in str(refused.value)
    with pytest.raises(UsageError, match="groq/compound can"):
        sent("groq", model="openai/gpt-oss-20b", server_tools=(WebFetch(),))
    with pytest.raises(UsageError, match="no include_domains can be set"):
        sent("groq", model="openai/gpt-oss-20b", server_tools=(WebSearch(allowed_domains=("a.org",)),))
    with pytest.raises(UsageError, match="one allowed domain, not 2"):
        sent("zai", server_tools=(WebSearch(allowed_domains=("a.org", "b.org")),))
    assert "WebSearch.max_uses: the API has none" in notes("openai-chat", server_tools=(WebSearch(max_uses=3),))
    with pytest.raises(UsageError, match=r"WebSearch\.blocked_domains: openai-chat/m has none"):
        sent("openai-chat", server_tools=(WebSearch(blocked_domains=("b.org",)),))


def test_openrouter_marks_what_claude_is_to_keep() -> None:
    router, claude = OpenRouter(), "anthropic/claude-sonnet-4.5"
    mark = {"type": "ephemeral"}
    messages = body(router, SystemMessage("Be kind."), HI, AssistantMessage((Text("a"),)), GO, model=claude)["messages"]
    assert messages[0]["content"] == [{"type": "text", "text": "Be kind.", "cache_control": mark}]
    assert messages[-1]["content"] == [{"type": "text", "text": "Go on", "cache_control": mark}]
    assert messages[1]["content"] == "Hi"
    hour = body(router, *ASKED, model=claude, prompt_cache=PromptCache.ONE_HOUR)["messages"]
    assert hour[-1]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    for model, cache in ((claude, PromptCache.OFF), ("openai/gpt-5", PromptCache.FIVE_MINUTES)):
        assert "cache_control" not in str(body(router, HI, GO, model=model, prompt_cache=cache)["messages"])


# The rows.


@pytest.mark.parametrize(
    "name", ["cohere", "nvidia", "zai", "moonshot", "cerebras", "fireworks", "together", "perplexity"]
)
def test_a_row_has_an_address_and_a_key(name: str) -> None:
    row = SERVERS[name]
    assert row.base_url.startswith("https://")
    assert row.key_variable
    wire = adapter_for(name, api_key="k").encode(ModelRequest("m", (HI,)))
    assert wire.url == f"{row.base_url}/chat/completions"
    assert wire.headers["authorization"] == "Bearer k"


def test_quirk_73_thinking_that_a_server_takes_none_of_is_noted_once() -> None:
    """What was received goes back, or a note says that it did not."""
    turns = [
        message for _ in range(2) for message in (UserMessage.of("Hi"), AssistantMessage((Thinking("Hm"), Text("a"))))
    ]
    told = server("groq").encode(ModelRequest("m", (*turns, UserMessage.of("And?")))).notes
    assert told == ("thinking of an earlier answer: groq takes none back; left out",)
    own = Replay("deepseek", {})
    kept = AssistantMessage((Thinking("Hm", own), Text("a")))
    assert (
        server("deepseek").encode(ModelRequest("m", (UserMessage.of("Hi"), kept, UserMessage.of("And?")))).notes == ()
    )


def test_an_answer_s_schema_is_closed_for_servers_that_keep_only_such_and_goes_as_it_is_to_others() -> None:
    open_one = {"type": "object", "properties": {"a": {"type": "string", "minLength": 2}, "b": {"type": "integer"}}}
    for name, model in (("openai-chat", "m"), ("groq", "openai/gpt-oss-20b"), ("cerebras", "m")):
        answer = sent(name, HI, model=model, response_schema=open_one)["response_format"]["json_schema"]
        assert answer["strict"] is True
        assert answer["schema"]["additionalProperties"] is False
        assert answer["schema"]["required"] == ["a", "b"]
        assert "response_schema" in notes(name, model=model, response_schema=open_one)  # minLength, in words
    for name in ("vllm", "ollama", "llamacpp", "openai-compatible"):
        answer = sent(name, HI, response_schema=open_one)["response_format"]["json_schema"]
        assert (answer["schema"], answer["strict"]) == (open_one, False)
    a_dict = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert sent("openai-chat", HI, response_schema=a_dict)["response_format"]["json_schema"]["strict"] is False

"""Requests of the Converse API, held against Bedrock's own service model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples
from support.histories import histories
from support.rules_bedrock import bedrock
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
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.server_tools import CodeExecution, WebFetch, WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.bedrock.converse_api import Bedrock

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ADAPTIVE = "global.anthropic.claude-opus-4-6-v1"
NOVA = "us.amazon.nova-2-lite-v1:0"
OTHERS = ("openai.gpt-oss-120b-1:0", "deepseek.v3-v1:0", "meta.llama4-scout-17b-instruct-v1:0")
MODELS = (CLAUDE, ADAPTIVE, NOVA, *OTHERS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (
    ToolDefinition(ToolName("lookup"), "Looks up.", SCHEMA, strict=True),
    ToolDefinition(ToolName("now"), "", {"type": "object"}),
)
CALL = ToolCall(CallId("call.1:a"), ToolName("lookup"), '{"city": "Rome", "big": 123456789012345678901234567890}')
RESULT = ToolMessage(CallId("call.1:a"), ToolName("lookup"), "sunny")
ASKED = UserMessage.of("Hi")
LOOP: tuple[Message, ...] = (ASKED, AssistantMessage((Text("Looking."), CALL)), RESULT)
BYTES = "aWcK"


def sent(*messages: Message, model: str = CLAUDE, **fields: Any) -> dict[str, Any]:
    """The body of a request, which must be one that Bedrock accepts."""
    found = body(Bedrock(), *messages, model=model, **fields)
    assert bedrock(found, model) == []
    return found


def notes(*messages: Message, model: str = CLAUDE, **fields: Any) -> tuple[str, ...]:
    return Bedrock().encode(ModelRequest(model, messages or (ASKED,), **fields)).notes


def with_bytes(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Pictures by their bytes, where the history has them by an address on the web."""
    return tuple(
        UserMessage(tuple(Image("image/png", BYTES) if isinstance(part, Image) else part for part in message.parts))
        if isinstance(message, UserMessage)
        else message
        for message in messages
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    histories(),
    st.booleans(),
    st.sampled_from([ToolChoiceMode.AUTO, ToolChoiceMode.NONE]),
    st.sampled_from(list(PromptCache)),
    st.sampled_from([None, "none", "low", "high"]),
)
def test_any_legal_history_is_accepted(
    messages: tuple[Message, ...], tools: bool, mode: ToolChoiceMode, cache: PromptCache, effort: str | None
) -> None:
    for model in MODELS:  # to draw a history takes longer than to encode it for all of them
        sent(
            *with_bytes(messages),
            model=model,
            tools=TOOLS if tools else (),
            tool_choice=ToolChoice(mode),
            prompt_cache=cache,
            sampling=Sampling(reasoning_effort=effort, max_output_tokens=40_000),
        )


def test_the_check_does_refuse() -> None:
    found = sent(*LOOP, tools=TOOLS)
    for change in (
        {"toolConfig": {"tools": [{"toolSpec": {"name": "no such tool!", "inputSchema": {"json": {}}}}]}},
        {"system": [{"text": 7}]},
        {"inferenceConfig": {"maxToken": 7}},
        {"messages": found["messages"][:2]},
        {"toolConfig": {"tools": [{}]}},
    ):
        assert bedrock({**found, **change}, CLAUDE), change


def test_a_request_with_everything() -> None:
    found = sent(
        SystemMessage("Be brief."),
        *LOOP,
        tools=TOOLS,
        tool_choice=ToolChoice(ToolChoiceMode.NAMED, ToolName("now")),
        response_schema=SCHEMA,
        service_tier="flex",
        sampling=Sampling(top_p=0.9, max_output_tokens=100, stop=("END",)),
        prompt_cache=PromptCache.OFF,
        provider_options=(ExtraFields({"requestMetadata": {"team": "a"}}),),
    )
    call, result = found["messages"][1]["content"][1], found["messages"][2]["content"][0]
    call_id = call["toolUse"]["toolUseId"]
    assert call_id == result["toolResult"]["toolUseId"] != CALL.call_id
    assert found == {
        "messages": [
            {"role": "user", "content": [{"text": "Hi"}]},
            {"role": "assistant", "content": [{"text": "Looking."}, call]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": call_id, "content": [{"text": "sunny"}]}}]},
        ],
        "system": [{"text": "Be brief."}],
        "toolConfig": {
            "tools": [
                {
                    "toolSpec": {
                        "name": "lookup",
                        "inputSchema": {"json": {**SCHEMA, "additionalProperties": False}},
                        "description": "Looks up.",
                        "strict": True,
                    }
                },
                {"toolSpec": {"name": "now", "inputSchema": {"json": {"type": "object"}}}},
            ],
            "toolChoice": {"tool": {"name": "now"}},
        },
        "inferenceConfig": {"topP": 0.9, "maxTokens": 100, "stopSequences": ["END"]},
        "outputConfig": {
            "textFormat": {
                "type": "json_schema",
                "structure": {
                    "jsonSchema": {
                        "schema": json.dumps({**SCHEMA, "additionalProperties": False}, separators=(",", ":")),
                        "name": "answer",
                    }
                },
            }
        },
        "serviceTier": {"type": "flex"},
        "requestMetadata": {"team": "a"},
    }
    # Claude from 4.1 to 4.6 takes one of the two.
    assert sent(sampling=Sampling(temperature=0.5, top_p=0.9))["inferenceConfig"] == {"temperature": 0.5}


def test_the_model_is_in_the_address_and_the_digits_of_arguments_are_kept() -> None:
    arn = "arn:aws:bedrock:eu-west-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
    adapter = Bedrock(region="eu-west-1", api_key="bedrock-api-key-abc")
    wire = adapter.encode(ModelRequest(arn, LOOP))
    assert wire.url == (
        "https://bedrock-runtime.eu-west-1.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aeu-west-1%3A123456789012%3A"
        "inference-profile%2Feu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    )
    assert wire.headers["authorization"] == "Bearer bedrock-api-key-abc"
    assert wire.headers["accept"] == "application/vnd.amazon.eventstream"
    assert b"123456789012345678901234567890" in wire.body
    whole = adapter.encode(ModelRequest(arn, LOOP, stream=False))
    assert (whole.url[-9:], whole.headers["accept"], whole.body) == ("/converse", "application/json", wire.body)


PARTS: list[tuple[Any, dict[str, Any]]] = [
    (Image("image/png", BYTES), {"image": {"format": "png", "source": {"bytes": BYTES}}}),
    (
        Image("image/jpeg", url="s3://bucket-1/a.jpg"),
        {"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket-1/a.jpg"}}}},
    ),
    (Video("video/mp4", BYTES), {"video": {"format": "mp4", "source": {"bytes": BYTES}}}),
    (Audio("audio/mpeg", BYTES), {"audio": {"format": "mp3", "source": {"bytes": BYTES}}}),
    (
        Document("application/pdf", BYTES, name="Q3/report (final).pdf", citations=True),
        {
            "document": {
                "format": "pdf",
                "source": {"bytes": BYTES},
                "name": "Q3 report (final) pdf",
                "citations": {"enabled": True},
            }
        },
    ),
    (
        Document(text="plain words"),
        {"document": {"format": "txt", "source": {"bytes": "cGxhaW4gd29yZHM="}, "name": "document"}},
    ),
]


@pytest.mark.parametrize(
    ("part", "wire"), PARTS, ids=[f"{place}-{type(p).__name__}" for place, (p, _) in enumerate(PARTS)]
)
def test_parts_of_a_question(part: Any, wire: dict[str, Any]) -> None:
    found = sent(UserMessage((Text("Look"), part)), prompt_cache=PromptCache.OFF)
    assert found["messages"][0]["content"] == [{"text": "Look"}, wire]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            Image("image/tiff", BYTES),
            r"takes no Image \(image/tiff\) here; it takes text, Image \(image/png, image/jpeg",
        ),
        (
            Image("image/png", url="https://example.org/a.png"),
            "takes no Image .* by its url here; give its data_base64",
        ),
        (Document("application/pdf", file_id="file_1"), "by a file_id here"),
        (Document("application/zip", BYTES), r"takes no Document \(application/zip\)"),
        (Image("image/png"), "needs a url"),
    ],
)
def test_a_part_that_bedrock_does_not_take_is_refused_by_name(part: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        sent(UserMessage((part,)))
    assert CLAUDE in str(caught.value) or "needs" in str(caught.value)


def test_documents_get_a_text_beside_them_and_names_of_their_own() -> None:
    documents = (Document("application/pdf", BYTES, name="a"), Document("application/pdf", BYTES, name="a"))
    (message,) = sent(UserMessage(documents))["messages"]
    text, first, second = message["content"][:1] + [b for b in message["content"] if "document" in b]
    assert text == {"text": "(The document is attached.)"}
    assert (first["document"]["name"], second["document"]["name"]) == ("a", "a (2)")


def test_media_in_results_and_a_stand_in_for_sound() -> None:
    result = replace(RESULT, media=(Image("image/png", BYTES), Audio("audio/wav", BYTES, name="a.wav")), is_error=True)
    messages = (*LOOP[:2], result)
    (block,) = [b for b in sent(*messages, tools=TOOLS)["messages"][2]["content"] if "toolResult" in b]
    content = block["toolResult"]["content"]
    assert content[:2] == [{"text": "sunny"}, {"image": {"format": "png", "source": {"bytes": BYTES}}}]
    assert "Audio (audio/wav) a.wav" in content[2]["text"]
    assert block["toolResult"]["status"] == "error"
    assert any("Audio" in note for note in notes(*messages, tools=TOOLS))


# What goes back.


def test_signed_and_opaque_reasoning_goes_back_and_foreign_reasoning_does_not() -> None:
    turn = AssistantMessage(
        (
            Thinking("Hm.", Replay("bedrock", {"signature": "c2ln"})),
            Thinking("", Replay("bedrock", {"redactedContent": "b3BhcXVl"})),
            Thinking("Elsewhere.", Replay("anthropic", {"signature": "c2ln"})),
            CALL,
        )
    )
    found = sent(ASKED, turn, RESULT, tools=TOOLS)["messages"][1]["content"]
    assert found[:2] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "b3BhcXVl"}},
    ]
    assert len(found) == 3


@pytest.mark.parametrize(("model", "goes_back"), [(NOVA, True), (OTHERS[0], True), (OTHERS[1], False), (CLAUDE, False)])
def test_unsigned_reasoning_goes_back_where_it_is_taken_and_else_a_note_says_so(model: str, goes_back: bool) -> None:
    turn = AssistantMessage((Thinking("Hm.", Replay("bedrock", {})), Text("Yes.")))
    messages = (ASKED, turn, UserMessage.of("Sure?"))
    found = sent(*messages, model=model)["messages"][1]["content"]
    assert ({"reasoningContent": {"reasoningText": {"text": "Hm."}}} in found) is goes_back
    assert any("reasoning" in note for note in notes(*messages, model=model)) is not goes_back


def test_tools_that_a_conversation_has_used_are_declared_also_where_none_is_offered() -> None:
    """Measured by many: "The toolConfig field must be defined when using toolUse and toolResult content blocks"."""
    assert sent(*LOOP, prompt_cache=PromptCache.OFF)["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "lookup", "inputSchema": {"json": {"type": "object"}}}}]
    }
    assert any("no tools" in note for note in notes(*LOOP))
    use = {"toolUseId": "t1", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "Rome"}}
    called = ServerTool("toolUse", Replay("bedrock", {"toolUse": use}), call_id="t1")
    result = {"toolUseId": "t1", "type": "nova_grounding_result", "content": [{"text": "Sunny"}]}
    found_out = ServerTool("toolResult", Replay("bedrock", {"toolResult": result}), call_id="t1")
    searched = AssistantMessage((called, found_out, Text("Sunny.")))
    found = sent(ASKED, searched, ASKED, model=NOVA, prompt_cache=PromptCache.OFF)["toolConfig"]
    assert found == {"tools": [{"systemTool": {"name": "nova_grounding"}}]}


def test_tool_choice_none_leaves_the_tools_out_where_it_can() -> None:
    none = ToolChoice(ToolChoiceMode.NONE)
    assert "toolConfig" not in sent(tools=TOOLS, tool_choice=none)
    assert len(sent(*LOOP, tools=TOOLS, tool_choice=none, prompt_cache=PromptCache.OFF)["toolConfig"]["tools"]) == 2
    assert "the tools were left out" in notes(tools=TOOLS, tool_choice=none)[0]
    assert "the model may call one" in " ".join(notes(*LOOP, tools=TOOLS, tool_choice=none))


# Thinking.


@pytest.mark.parametrize(
    ("model", "effort", "more", "output"),
    [
        (CLAUDE, "low", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, None),
        (ADAPTIVE, "high", {"thinking": {"type": "adaptive"}}, {"effort": "high"}),
        (ADAPTIVE, "none", {"thinking": {"type": "disabled"}}, None),
        (CLAUDE, "none", None, None),
        (NOVA, "medium", {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": "medium"}}, None),
        (NOVA, "none", {"reasoningConfig": {"type": "disabled"}}, None),
        (OTHERS[0], "minimal", {"reasoning_effort": "low"}, None),
        (OTHERS[1], "high", None, None),
    ],
)
def test_reasoning_effort(model: str, effort: str, more: object, output: object) -> None:
    found = sent(model=model, sampling=Sampling(reasoning_effort=effort))
    assert (found.get("additionalModelRequestFields"), found.get("outputConfig")) == (more, output)
    if model == CLAUDE and effort != "none":
        assert found["inferenceConfig"] == {"maxTokens": 8192 + 2048}
    if model == OTHERS[1]:
        assert any(
            "reasoning_effort" in note for note in notes(model=model, sampling=Sampling(reasoning_effort=effort))
        )


def test_thinking_that_cannot_be_asked_for() -> None:
    forced = ToolChoice(ToolChoiceMode.REQUIRED)
    with pytest.raises(UsageError, match="forced"):
        sent(tools=TOOLS, tool_choice=forced, sampling=Sampling(reasoning_effort="low"))
    with pytest.raises(UsageError, match="temperature"):
        sent(sampling=Sampling(reasoning_effort="low", temperature=0.2))
    with pytest.raises(UsageError, match="must be above 1024"):
        sent(sampling=Sampling(reasoning_effort="low", max_output_tokens=1000))
    with pytest.raises(UsageError, match="'extreme' is unknown"):
        sent(model=NOVA, sampling=Sampling(reasoning_effort="extreme"))
    assert "additionalModelRequestFields" not in sent(*LOOP, tools=TOOLS, sampling=Sampling(reasoning_effort="low"))


def test_newer_claude_takes_no_sampling_parameters() -> None:
    model = "us.anthropic.claude-opus-4-7-v1:0"
    sampling = Sampling(temperature=0.5, max_output_tokens=9)
    assert sent(model=model, sampling=sampling)["inferenceConfig"] == {"maxTokens": 9}
    assert notes(model=model, sampling=sampling) == (f"temperature: {model} takes none; left out",)


# Caching.

POINT = {"cachePoint": {"type": "default"}}


def test_claude_caches_tools_instructions_and_the_last_two_turns() -> None:
    found = sent(
        SystemMessage("Be brief."), *LOOP, AssistantMessage((Text("Sunny."),)), UserMessage.of("And now?"), tools=TOOLS
    )
    assert found["toolConfig"]["tools"][-1] == found["system"][-1] == POINT
    marked = [place for place, message in enumerate(found["messages"]) if POINT in message["content"]]
    assert marked == [2, 4]
    hour = sent(SystemMessage("Be brief."), ASKED, prompt_cache=PromptCache.ONE_HOUR)
    assert hour["system"][-1] == {"cachePoint": {"type": "default", "ttl": "1h"}}
    off = sent(SystemMessage("Be brief."), *LOOP, tools=TOOLS, prompt_cache=PromptCache.OFF)
    assert "cachePoint" not in json.dumps(off)


def test_nova_caches_instructions_and_questions_and_never_tools() -> None:
    found = sent(SystemMessage("Be brief."), *LOOP, tools=TOOLS, model=NOVA, prompt_cache=PromptCache.ONE_HOUR)
    assert POINT not in found["toolConfig"]["tools"]
    assert found["system"][-1] == found["messages"][0]["content"][-1] == POINT
    assert POINT not in found["messages"][2]["content"]
    assert "prompt_cache 1h: this model keeps its cache for five minutes" in notes(
        SystemMessage("Be brief."), ASKED, model=NOVA, prompt_cache=PromptCache.ONE_HOUR
    )


@pytest.mark.parametrize(
    "model",
    ["anthropic.claude-3-haiku-20240307-v1:0", "anthropic.claude-3-5-sonnet-20240620-v1:0", *OTHERS, "amazon.titan-x"],
)
def test_no_cache_points_for_models_that_refuse_them(model: str) -> None:
    assert "cachePoint" not in json.dumps(sent(SystemMessage("Be brief."), ASKED, model=model, tools=TOOLS))


def test_a_cache_point_never_follows_a_document_directly() -> None:
    found = sent(UserMessage((Text("Read"), Document("application/pdf", BYTES), Document("text/csv", BYTES))))
    assert [next(iter(block)) for block in found["messages"][0]["content"]] == [
        "text",
        "cachePoint",
        "document",
        "document",
    ]


# Tools of the provider's, and what is not there.


def test_novas_own_tools() -> None:
    offered = (WebSearch(), CodeExecution())
    found = sent(model=NOVA, server_tools=offered, tools=TOOLS)["toolConfig"]["tools"]
    assert found[2:] == [{"systemTool": {"name": "nova_grounding"}}, {"systemTool": {"name": "nova_code_interpreter"}}]
    with pytest.raises(UsageError, match=r"has no WebSearch of its own on this API; it has: none.*Amazon Nova 2"):
        sent(model=CLAUDE, server_tools=offered)
    with pytest.raises(UsageError, match="has no WebFetch"):
        sent(model=NOVA, server_tools=(WebFetch(),))
    with pytest.raises(UsageError, match=r"WebSearch\.allowed_domains"):
        sent(model=NOVA, server_tools=(WebSearch(allowed_domains=("a.org",)),))
    told = notes(model=NOVA, server_tools=(WebSearch(max_uses=2),))
    assert told == ("WebSearch.max_uses: the API has none; left out",)


def test_what_the_api_has_not_is_noted_or_refused() -> None:
    said = notes(
        sampling=Sampling(seed=7, logprobs=3),
        parallel_tool_calls=False,
        storage=ResponseStorage(store=True),
        images_out=True,
    )
    names = ["seed", "logprobs", "parallel_tool_calls", "images_out"]
    assert said == (
        "storage: this API keeps no answers; left out",
        *(f"{name}: the API has none; left out" for name in names),
    )
    with pytest.raises(UsageError, match="answers without sound on this API"):
        notes(audio_out=AudioOut())
    with pytest.raises(UsageError, match="keeps no answers; send the whole conversation"):
        notes(storage=ResponseStorage(previous_response_id="resp_1"))
    assert notes(model=OTHERS[0], prompt_cache=PromptCache.ONE_HOUR)[0].startswith("prompt_cache: the server decides")


@pytest.mark.parametrize("half", ["toolUse", "toolResult"])
def test_one_half_of_a_server_tool_is_left_out_with_a_note(half: str) -> None:
    """A turn that was cut behind the call; sent back, it would be refused as a call without its result."""
    own = Replay("bedrock", {half: {"toolUseId": "t1", "name": "nova_grounding", "type": "server_tool_use"}})
    turn = AssistantMessage((ServerTool(half, own, "web_search", "t1"), Text("So far")))
    history = (UserMessage.of("Hi"), turn, UserMessage.of("Go on"))
    assert sent(*history, model=NOVA)["messages"][1]["content"] == [{"text": "So far"}]
    assert notes(*history, model=NOVA) == (f"{half}: its call and its result are not both there; left out",)

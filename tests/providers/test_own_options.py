"""The options that only one API has: each is where the official SDK has it, and others are left out with a note."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from pydantic import TypeAdapter
from support.sdk_types import Lazy, adapter_of

from callboard.protocol.content import UserMessage
from callboard.protocol.model import ModelRequest, Sampling
from callboard.protocol.provider_options import (
    AnthropicOptions,
    BedrockOptions,
    ExtraFields,
    GeminiOptions,
    OpenAIOptions,
    OpenRouterOptions,
    ProviderOptions,
)
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.openrouter import OpenRouter
from callboard.providers.own_options import OptionTable, merged

genai = Lazy("google.genai.types")
ANTHROPIC = AnthropicOptions(
    ("a-beta-2026", "b-beta-2026"), "adaptive", "summarized", "max", "user-1", None, "container_1", {"edits": []}, "us",
    "fast",
)  # fmt: skip
RESPONSES = OpenAIOptions(
    "low", "hash", "key", "24h", "user-1", {"team": "a"}, "detailed", "auto", 3,
    ({"type": "compaction", "compact_threshold": 200_000},),
)  # fmt: skip
CHAT = OpenAIOptions(
    "low", "hash", "key", "24h", "user-1", {"team": "a"}, frequency_penalty=0.5, presence_penalty=-0.5,
    logit_bias={"50256": -100}, prediction="the same text",
)  # fmt: skip
GEMINI = GeminiOptions(
    {"HARM_CATEGORY_HARASSMENT": "BLOCK_ONLY_HIGH"}, None, "low", True, 40, 0.5, 0.5, "MEDIA_RESOLUTION_LOW",
    "cachedContents/1",
)  # fmt: skip
OPENROUTER = OpenRouterOptions(
    ("a",), ("b",), ("c",), ("fp8",), True, False, "price", "deny", True, {"prompt": 1.0}, ("x/y",), ("middle-out",),
    ({"id": "web"},), "low", True, "user-1",
)  # fmt: skip
BEDROCK = BedrockOptions("guard", "1", "optimized", {"team": "a"}, {"top_k": 3})


def sent(adapter: Adapter, *options: ProviderOptions, **more: Any) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """(body, headers, notes)"""
    request = ModelRequest("gpt-4.1", (UserMessage.of("Hi"),), provider_options=options, **more)
    wire = adapter.encode(request)
    return json.loads(wire.body), dict(wire.headers), list(wire.notes)


@pytest.mark.parametrize(
    ("adapter", "options", "place"),
    [
        (
            OpenAIResponses(),
            RESPONSES,
            "openai.types.responses.response_create_params.ResponseCreateParamsStreaming",
        ),
        (OpenAIChat(), CHAT, "openai.types.chat.completion_create_params.CompletionCreateParamsStreaming"),
        (Anthropic(), ANTHROPIC, "anthropic.types.beta.message_create_params.MessageCreateParamsStreaming"),
    ],
    ids=["responses", "chat", "anthropic"],
)
def test_what_is_sent_is_valid_by_the_sdks_types(adapter: Adapter, options: ProviderOptions, place: str) -> None:
    body, _, notes = sent(adapter, options)
    plain, _, _ = sent(adapter)
    adapter_of(place).validate_python(body)
    assert notes == sent(adapter)[2]
    assert len(json.dumps(body)) > len(json.dumps(plain))


def test_gemini_by_the_sdks_types() -> None:
    body, _, _ = sent(Gemini(), GEMINI)
    genai.GenerationConfig.model_validate_json(json.dumps(body["generationConfig"]))
    TypeAdapter(list[genai.SafetySetting]).validate_python(body["safetySettings"])
    assert body["generationConfig"]["thinkingConfig"] == {"thinkingLevel": "low", "includeThoughts": True}
    assert (body["cachedContent"], body["generationConfig"]["topK"]) == ("cachedContents/1", 40)


def test_openrouter_and_bedrock() -> None:
    body, _, _ = sent(OpenRouter(), OPENROUTER)
    assert body["provider"] == {
        "order": ["a"], "only": ["b"], "ignore": ["c"], "quantizations": ["fp8"], "allow_fallbacks": True,
        "require_parameters": False, "sort": "price", "data_collection": "deny", "zdr": True,
        "max_price": {"prompt": 1.0},
    }  # fmt: skip
    assert (body["models"], body["transforms"], body["reasoning"]) == (["x/y"], ["middle-out"], {"exclude": True})
    body, _, _ = sent(Bedrock(), BEDROCK)
    assert body["guardrailConfig"] == {"guardrailIdentifier": "guard", "guardrailVersion": "1"}
    assert body["performanceConfig"] == {"latency": "optimized"}
    assert (body["requestMetadata"], body["additionalModelRequestFields"]) == ({"team": "a"}, {"top_k": 3})


@pytest.mark.parametrize(
    ("adapter", "options"),
    [
        (OpenAIResponses(), RESPONSES), (OpenAIChat(), CHAT), (Anthropic(), ANTHROPIC), (Gemini(), GEMINI),
        (OpenRouter(), OPENROUTER), (Bedrock(), BEDROCK),
    ],
    ids=["responses", "chat", "anthropic", "gemini", "openrouter", "bedrock"],
)  # fmt: skip
def test_each_field_that_is_set_changes_the_request_and_no_other_api_takes_any(
    adapter: Any, options: ProviderOptions
) -> None:
    table: OptionTable = adapter.own_options
    for each in fields(options):
        value = getattr(options, each.name)
        if value not in (None, (), {}) and each.name not in table.missing(options):
            only = type(options)(**{each.name: value})
            assert sent(adapter, only)[:2] != sent(adapter)[:2], each.name
    others = [other for other in (ANTHROPIC, GEMINI, RESPONSES, OPENROUTER, BEDROCK) if not table.takes(other)]
    body, headers, notes = sent(adapter, *others)
    assert (body, headers) == sent(adapter)[:2]
    assert [note for note in notes if "they are of another API; left out" in note] == [
        f"{type(other).__name__}: they are of another API; left out" for other in others
    ]


def test_what_an_api_has_not_is_noted() -> None:
    _, _, notes = sent(OpenAIChat(), OpenAIOptions(truncation="auto"))
    assert notes == ["OpenAIOptions.truncation: Chat Completions has none; left out"]


def test_thinking_takes_the_place_of_what_the_effort_would_set() -> None:
    effort = Sampling(reasoning_effort="high", max_output_tokens=20_000)
    body, _, _ = sent(Anthropic(), AnthropicOptions(thinking=2_048), sampling=effort)
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2_048}
    body, _, _ = sent(Anthropic(), AnthropicOptions(thinking="disabled"), sampling=effort)
    assert body["thinking"] == {"type": "disabled"}
    body, _, _ = sent(Gemini(), GeminiOptions(thinking_budget=0), sampling=effort)
    assert body["generationConfig"]["thinkingConfig"] == {"thinkingBudget": 0}


def test_names_of_betas_are_added_to_those_that_are_there() -> None:
    adapter = Anthropic(headers={"Anthropic-Beta": "of-the-owner, a-beta-2026"})
    _, headers, _ = sent(adapter, ANTHROPIC)
    assert headers["anthropic-beta"] == "of-the-owner,a-beta-2026,b-beta-2026"
    assert "Anthropic-Beta" not in headers


def test_extra_fields_come_last_and_headers_in_any_case() -> None:
    adapter = OpenAIResponses(headers={"X-Team": "blue"})
    body, headers, notes = sent(
        adapter,
        ExtraFields({"text": {"knob": 1}, "include": ["a"]}, {"x-team": "red"}),
        ExtraFields({"not": "sent"}, {"x-secret": "of another"}, "groq"),
        OpenAIOptions(verbosity="low"),
    )
    assert (body["text"], body["include"]) == ({"verbosity": "low", "knob": 1}, ["a"])
    assert (headers.get("x-team"), headers.get("X-Team"), "x-secret" in headers) == ("red", None, False)
    assert "extra_body and extra_headers: they are for groq; left out" in notes


JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.text()), lambda inner: st.dictionaries(st.text(), inner), max_leaves=8
)
OBJECTS = st.dictionaries(st.text(max_size=2), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_merging_keeps_all_of_the_second_and_what_it_does_not_name(one: dict[str, Any], two: dict[str, Any]) -> None:
    before = json.dumps(one)
    both = merged(one, two)
    assert merged(both, two) == both
    assert {name: value for name, value in both.items() if name not in two} == {
        name: value for name, value in one.items() if name not in two
    }
    assert all(both[name] == value for name, value in two.items() if not isinstance(value, dict))
    assert json.dumps(one) == before

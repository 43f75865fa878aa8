"""What follows from a model's name behind any host: reasoning that it wants back, options and calls that it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.wire import answer, sse

from callboard.protocol.content import (
    AssistantMessage,
    Message,
    Replay,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.provider_options import AnthropicOptions, ExtraFields, OpenAIOptions
from callboard.protocol.tools import ToolDefinition
from callboard.providers.model_rules import _REFUSED, family_of, is_bare, thinking_of
from callboard.providers.provider_registry import adapter_for

TOOLS = tuple(ToolDefinition(ToolName(name), "F.", {"type": "object", "properties": {}}) for name in ("f", "g"))
REQUIRED, NAMED = ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NAMED, ToolName("f"))
HI = UserMessage.of("Hi")
CALL, RESULT = ToolCall(CallId("call00001"), ToolName("f"), "{}"), ToolMessage(CallId("call00001"), ToolName("f"), "1")


def sent(provider: str, model: str, *messages: Message, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    address = {"base_url": "http://localhost:1/v1"} if provider in ("openai-compatible", "azure") else {}
    adapter = adapter_for(provider, api_key="k", **address, **fields.pop("adapter", {}))
    wire = adapter.encode(ModelRequest(model, messages or (HI,), **fields))
    return json.loads(wire.body), wire.notes


def chunk(delta: dict[str, Any], model: str, reason: str | None = None) -> dict[str, Any]:
    return {"id": "r", "model": model, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def turn_of(provider: str, model: str, reasoning: str = "", **more: Any) -> AssistantMessage:
    """A turn with a call, as it is read of this server's answer."""
    call = {"index": 0, "id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [chunk({"reasoning_content": reasoning, **more}, model)] if reasoning else []
    body = sse([*said, chunk({"tool_calls": [call]}, model), chunk({}, model, "tool_calls")])
    return answer(adapter_for(provider, api_key="k", base_url="http://localhost:1/v1"), body).message


def back(provider: str, model: str, turn: AssistantMessage, **fields: Any) -> dict[str, Any]:
    """The turn as it goes back with its result."""
    found: dict[str, Any] = sent(provider, model, HI, turn, RESULT, tools=TOOLS, **fields)[0]["messages"][1]
    return found


# -- reasoning that goes back

#: Names as hosts write them: their lists of models.
BLANK = [
    ("deepseek", "deepseek-v4-pro"), ("deepseek", "deepseek-flash"), ("deepseek", "deepseek-reasoner"),
    ("deepseek", "deepseek-chat"), ("moonshot", "kimi-k2.6"), ("moonshot", "kimi-k2-thinking"),
    ("moonshot", "kimi-k3"), ("moonshot", "kimi-for-coding"), ("zai", "glm-5.2"), ("zai", "glm-4.6"),
    ("openai-compatible", "deepseek-v4-flash"), ("openai-compatible", "mimo-v2.5-pro"),
    ("openai-compatible", "deepseek-v3-2-251201"), ("openai-compatible", "k3-256k"),
    ("nvidia", "deepseek-ai/deepseek-v4-pro-0813"), ("nvidia", "moonshotai/kimi-k2.6"), ("nvidia", "z-ai/glm-5.1"),
    ("openrouter", "deepseek/deepseek-v4-flash"), ("openrouter", "moonshotai/kimi-k2.5"),
    ("openrouter", "z-ai/glm-4.7"),
    ("openrouter", "xiaomi/mimo-v2-flash:free"), ("fireworks", "accounts/fireworks/models/deepseek-v3p2"),
    ("fireworks", "accounts/fireworks/models/kimi-k2p5"), ("fireworks", "accounts/fireworks/models/glm-4p7"),
    ("together", "deepseek-ai/DeepSeek-V4-Pro"), ("together", "zai-org/GLM-5.3-Flash"),
    ("huggingface", "moonshotai/Kimi-K2.5:novita"), ("alibaba", "kimi-k2.5"), ("alibaba", "glm-4.7"),
    ("azure", "DeepSeek-V3.2"), ("lmstudio", "zai-org/glm-4.7-flash"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "model"), BLANK)
def test_a_turn_with_calls_has_its_reasoning_or_none(provider: str, model: str) -> None:
    """400 "The `reasoning_content` in the thinking mode must be passed back to the API."; "thinking is enabled but
    reasoning_content is missing in assistant tool call message at index 2"."""
    foreign = turn_of("openai-chat", "gpt-4.1")
    assert back(provider, model, foreign)["reasoning_content"] == ""
    assert back(provider, model, turn_of(provider, model))["reasoning_content"] == ""
    assert back(provider, model, turn_of(provider, model, "Hm"))["reasoning_content"] == "Hm"
    # The answer behind results belongs to the turn with calls (MoonshotAI/kimi-cli#2141); one without any does not.
    told = AssistantMessage((Text("So."),))
    messages = sent(provider, model, HI, foreign, RESULT, told, HI, told, HI, tools=TOOLS)[0]["messages"]
    assert ["reasoning_content" in each for each in messages if each["role"] == "assistant"] == [True, True, False]


@pytest.mark.parametrize(
    ("provider", "model", "field"),
    [
        ("vllm", "deepseek-ai/DeepSeek-V4-Flash", "reasoning"),  # vllm-project/vllm#27755
        ("vllm", "zai-org/GLM-4.7", "reasoning"),
        ("ollama", "deepseek-v3.2:cloud", "reasoning"),
        ("cerebras", "zai-glm-4.7", "reasoning"),
        ("groq", "moonshotai/kimi-k2.6", "reasoning"),
        ("llamacpp", "GLM-4.6-Q4", "reasoning_content"),
        ("deepseek", "whatever-is-served", None),
    ],
)
def test_a_server_has_its_own_name_for_the_field(provider: str, model: str, field: str | None) -> None:
    turn = back(provider, model, turn_of("openai-chat", "gpt-4.1"))
    assert {name: turn[name] for name in ("reasoning", "reasoning_content") if name in turn} == (
        {field: ""} if field else {}
    )


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai-compatible", "deepseek-r1"),
        ("openai-compatible", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("openai-compatible", "deepseek-v3-250324"),
        ("openai-compatible", "deepseek-coder-v2"),
        ("groq", "moonshotai/kimi-k2-instruct-0905"),
        ("openai-compatible", "chatglm3-6b"),
        ("openai-compatible", "glm-4-9b-chat"),
        ("moonshot", "moonshot-v1-8k"),
        ("openai-chat", "gpt-5.2"),
        ("openrouter", "anthropic/claude-opus-4.6"),
        ("openai-compatible", "Qwen/Qwen3-32B"),
        ("openai-compatible", "MiniMaxAI/MiniMax-M2.5"),
    ],
)
def test_other_models_get_no_such_field(provider: str, model: str) -> None:
    """The first deepseek-reasoner answered 400 to it; Groq: "property 'reasoning_content' is unsupported"."""
    turn = back(provider, model, turn_of("openai-chat", "gpt-4.1"))
    assert not {"reasoning", "reasoning_content"} & set(turn)


SAME_MODEL = [
    ("openrouter", "deepseek/deepseek-v4-pro", "deepseek", "deepseek-v4-pro"),
    ("deepseek", "deepseek-v4-pro", "nvidia", "deepseek-ai/deepseek-v4-pro"),
    ("nvidia", "moonshotai/kimi-k2.6", "moonshot", "kimi-k2.6"),
    ("moonshot", "kimi-k2.6", "openai-compatible", "kimi-k2.6"),
    ("vllm", "zai-org/GLM-5", "zai", "glm-5.2"),
    ("together", "MiniMaxAI/MiniMax-M2.5", "fireworks", "accounts/fireworks/models/minimax-m2p5"),
    ("alibaba", "qwen3.5-plus", "openai-compatible", "Qwen/Qwen3.5-397B-A17B"),
]


@pytest.mark.parametrize(("first", "its_model", "then", "model"), SAME_MODEL)
def test_reasoning_of_the_same_model_goes_back_to_another_host(
    first: str, its_model: str, then: str, model: str
) -> None:
    assert back(then, model, turn_of(first, its_model, "Hm"))["reasoning_content"] == "Hm"


@pytest.mark.parametrize(
    ("first", "its_model", "then", "model"),
    [
        ("moonshot", "kimi-k2.6", "deepseek", "deepseek-v4-pro"),
        ("groq", "openai/gpt-oss-120b", "deepseek", "deepseek-v4-pro"),
        ("openai-compatible", "Qwen/Qwen3-32B", "moonshot", "kimi-k2.6"),
        ("deepseek", "deepseek-v4-pro", "zai", "glm-5.2"),
        ("fireworks", "accounts/fireworks/models/glm-5", "fireworks", "accounts/fireworks/models/kimi-k2p5"),
        ("vllm", "zai-org/GLM-5", "vllm", "deepseek-ai/DeepSeek-V4-Pro"),
    ],
)
def test_another_models_reasoning_is_never_its_own(first: str, its_model: str, then: str, model: str) -> None:
    turn = back(then, model, turn_of(first, its_model, "Hm"))
    assert turn["reasoning" if then == "vllm" else "reasoning_content"] == ""


def test_what_a_client_says_without_a_mark_is_taken_for_the_models_own() -> None:
    turn = AssistantMessage((Thinking("Hm"), CALL))
    assert back("deepseek", "deepseek-v4-pro", turn)["reasoning_content"] == "Hm"
    assert "reasoning_content" not in back("openai-compatible", "gpt-4.1", turn)


def test_openrouters_blocks_go_back_beside_it() -> None:
    blocks = [{"type": "reasoning.text", "text": "Hm", "index": 0}]
    turn = turn_of("openrouter", "deepseek/deepseek-v4-pro", "Hm", reasoning_details=blocks)
    found = back("openrouter", "deepseek/deepseek-v4-pro", turn)
    assert (found["reasoning_content"], found["reasoning_details"]) == ("Hm", blocks)
    assert "family" not in found
    assert back("deepseek", "deepseek-v4-pro", turn)["reasoning_content"] == "Hm"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_server_that_nothing_is_known_of_is_told_of_by_a_setting(field: str) -> None:
    told = {"adapter": {"reasoning": field}}
    assert back("openai-compatible", "prod", turn_of("openai-chat", "gpt-4.1"), **told)[field] == ""
    assert back("openai-compatible", "prod", turn_of("openai-compatible", "prod", "Hm"), **told)[field] == "Hm"
    assert back("openai-compatible", "prod", turn_of("deepseek", "deepseek-v4-pro", "Hm"), **told)[field] == ""


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("deepseek-anthropic", "deepseek-v4-pro"),
        ("moonshot-anthropic", "kimi-k2.6"),
        ("zai-anthropic", "glm-5.2"),
        ("openrouter-anthropic", "deepseek/deepseek-v4-pro"),
        ("openrouter-anthropic", "xiaomi/mimo-v2.5"),
    ],
)
def test_by_the_messages_api_too(provider: str, model: str) -> None:
    """400 "The `content[].thinking` in the thinking mode must be passed back to the API." (NousResearch/hermes-agent
    #22313); an empty signature is taken (anomalyco/opencode PR 44713)."""
    blank = {"type": "thinking", "thinking": "", "signature": ""}
    assert back(provider, model, turn_of("openai-chat", "gpt-4.1"))["content"][0] == blank
    assert back(provider, model, turn_of("moonshot", "kimi-k2-0905", "Hm"))["content"][0]["thinking"] in ("", "Hm")
    family = family_of(model)
    assert family is not None
    own = AssistantMessage((Thinking("Hm", Replay("together", {"family": family.name})), CALL))
    assert back(provider, model, own)["content"][0] == {**blank, "thinking": "Hm"}
    assert back("anthropic", "claude-sonnet-4-6", own)["content"][0]["type"] == "tool_use"


# -- options that a model refuses


@pytest.mark.parametrize(
    ("provider", "model", "sampling", "left_out"),
    [
        ("anthropic", "claude-opus-4-1-20250805", Sampling(temperature=0.5, top_p=0.9), {"top_p"}),
        ("vertex", "claude-sonnet-4-5@20250929", Sampling(temperature=0.5, top_p=0.9), {"top_p"}),
        ("openrouter", "anthropic/claude-haiku-4.5", Sampling(temperature=0.5, top_p=0.9), {"top_p"}),
        ("copilot", "claude-sonnet-4.6", Sampling(temperature=0.5, top_p=0.9), {"top_p"}),
        ("anthropic", "claude-sonnet-4-6", Sampling(top_p=0.9), set()),
        ("anthropic", "claude-opus-4-20250514", Sampling(temperature=0.5, top_p=0.9), set()),
        ("openrouter", "anthropic/claude-opus-4.7", Sampling(temperature=0.5, top_p=0.9), {"temperature", "top_p"}),
        ("openai", "gpt-5", Sampling(temperature=0.2), {"temperature"}),
        ("openai", "gpt-5-mini-2025-08-07", Sampling(top_p=0.2), {"top_p"}),
        ("openai", "o3", Sampling(temperature=0.2), {"temperature"}),
        ("openai-chat", "o4-mini", Sampling(temperature=0.2, stop=("END",)), {"temperature", "stop"}),
        ("openai-chat", "gpt-5-nano", Sampling(logprobs=2), {"logprobs"}),
        ("openai", "gpt-5.2-codex", Sampling(temperature=0.2), {"temperature"}),
        ("openai", "gpt-5.2-pro", Sampling(temperature=0.2), {"temperature"}),
        ("openai", "gpt-5.2", Sampling(temperature=0.2, reasoning_effort="low"), {"temperature"}),
        ("azure", "gpt-5-mini", Sampling(temperature=0.2), {"temperature"}),
        ("openrouter", "openai/o3-mini", Sampling(temperature=0.2), {"temperature"}),
        # Their guide: with effort none, which is the default from 5.1 to 5.4, all three are taken.
        ("openai", "gpt-5.1", Sampling(temperature=0.2), set()),
        ("openai", "gpt-5.2", Sampling(temperature=0.2, top_p=0.5, logprobs=1), set()),
        ("openai", "gpt-5.4", Sampling(temperature=0.2, reasoning_effort="none"), set()),
        ("openai-chat", "gpt-5-chat-latest", Sampling(temperature=0.2), set()),
        ("openai-chat", "gpt-4.1", Sampling(temperature=0.2, top_p=0.5), set()),
        ("groq", "openai/gpt-oss-120b", Sampling(temperature=0.2), set()),
        # "denied on 'o' reasoning models unless exactly 1"
        ("openai", "o3", Sampling(temperature=1, top_p=1.0), set()),
        ("moonshot", "kimi-k2.6", Sampling(temperature=0.2, top_p=0.5), {"temperature", "top_p"}),
        ("moonshot", "moonshot-v1-8k", Sampling(temperature=0.2), set()),
        ("fireworks", "accounts/fireworks/models/kimi-k2p5", Sampling(temperature=0.2), set()),
        ("xai", "grok-4", Sampling(stop=("END",), reasoning_effort="low"), {"stop", "reasoning_effort"}),
        ("xai", "grok-4-1-fast-non-reasoning", Sampling(stop=("END",)), set()),
    ],
)
def test_sampling_that_a_model_refuses_is_left_out_and_told(
    provider: str, model: str, sampling: Sampling, left_out: set[str]
) -> None:
    if provider == "vertex":
        adapter = adapter_for("vertex", project="p", location="l", publisher="anthropic")
        wire = adapter.encode(ModelRequest(model, (HI,), sampling=sampling))
        body, notes = json.loads(wire.body), wire.notes
    else:
        body, notes = sent(provider, model, sampling=sampling)
    told = {note.partition(":")[0] for note in notes if model in note}
    assert told == left_out
    fields = {"temperature", "top_p", "stop", "logprobs", "reasoning_effort"}
    given = {name for name in fields if getattr(sampling, name) not in (None, ())}
    names = {"logprobs": "top_logprobs"} if provider == "openai" else {}
    for name in given - {"reasoning_effort"}:
        assert (names.get(name, name) in body) is (name not in left_out), name


def test_options_of_one_api_are_refused_by_the_model_too() -> None:
    options = OpenAIOptions(frequency_penalty=0.5, presence_penalty=0, logit_bias={"1": 5}, verbosity="low")
    body, notes = sent("openai-chat", "gpt-5", provider_options=(options,))
    assert {"frequency_penalty", "logit_bias"} & set(body) == set()
    assert (body["presence_penalty"], body["verbosity"]) == (0, "low")
    assert [note.partition(":")[0] for note in notes] == ["frequency_penalty", "logit_bias"]
    body, notes = sent("anthropic", "claude-opus-5", provider_options=(AnthropicOptions(top_k=5, speed="fast"),))
    assert (body.get("top_k"), body["speed"], notes) == (None, "fast", ("top_k: claude-opus-5 takes none; left out",))
    # What is sent as it is, is sent as it is.
    body, _ = sent("openai-chat", "gpt-5", provider_options=(ExtraFields({"temperature": 0.2}),))
    assert body["temperature"] == 0.2


@pytest.mark.parametrize(
    ("provider", "model", "effort", "field", "value"),
    [
        ("openai", "gpt-5", "minimal", "reasoning", {"effort": "minimal"}),
        ("openai-chat", "o4-mini", "low", "reasoning_effort", "low"),
        ("openai", "gpt-5-pro", "high", "reasoning", {"effort": "high"}),
        ("openai", "gpt-5.1", "", "reasoning", {"effort": "none"}),
        ("moonshot", "kimi-k3", "low", "reasoning_effort", "low"),
        ("moonshot", "kimi-k2-thinking", "left out", "thinking", None),
        ("moonshot", "kimi-k2.6", "", "thinking", {"type": "disabled"}),
        ("anthropic", "claude-opus-5-5", "low", "output_config", {"effort": "low"}),
        ("anthropic", "claude-fable-5", "low", "thinking", {"type": "adaptive", "display": "summarized"}),
        ("anthropic", "claude-opus-5", "", "thinking", {"type": "disabled"}),
    ],
)
def test_one_that_cannot_be_kept_from_thinking_thinks_least(
    provider: str, model: str, effort: str, field: str, value: object
) -> None:
    body, notes = sent(provider, model, sampling=Sampling(reasoning_effort="none"))
    assert body.get(field) == value
    assert any("cannot be kept from thinking" in note and effort in note for note in notes) is bool(effort)


# -- one option for thinking, in each server's words


def gemini_thinking(**config: object) -> dict[str, object]:
    return {"generationConfig": {"thinkingConfig": config}}


@pytest.mark.parametrize(
    ("provider", "model", "effort", "fields"),
    [
        ("openai-compatible", "deepseek-v4-pro", "none", {"thinking": {"type": "disabled"}}),
        (
            "openai-compatible",
            "deepseek-v4-pro",
            "high",
            {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
        ),
        ("openai-compatible", "kimi-k2.6", "none", {"thinking": {"type": "disabled"}}),
        ("openai-compatible", "glm-5.2", "none", {"thinking": {"type": "disabled"}}),
        ("openai-compatible", "mimo-v2.5", "low", {"thinking": {"type": "enabled"}}),
        ("openai-compatible", "MiniMax-M3", "none", {"thinking": {"type": "disabled"}}),
        ("openai-compatible", "qwen3.5-plus", "none", {"enable_thinking": False}),
        ("openai-compatible", "prod", "low", {"reasoning_effort": "low"}),
        ("openai-chat", "gpt-5.2", "none", {"reasoning_effort": "none"}),
        ("ollama", "qwen3", "none", {"reasoning_effort": "none"}),
        ("openrouter", "deepseek/deepseek-v4-pro", "none", {"reasoning": {"effort": "none"}}),
        (
            "nvidia",
            "deepseek-ai/deepseek-v4-pro",
            "none",
            {"chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        ("gemini", "gemini-2.5-flash", "none", gemini_thinking(includeThoughts=False, thinkingBudget=0)),
        ("gemini", "gemini-3-pro", "low", gemini_thinking(includeThoughts=True, thinkingLevel="low")),
        ("openai", "gpt-5.2", "none", {"reasoning": {"effort": "none"}}),
        ("deepseek-anthropic", "deepseek-v4-pro", "none", {"thinking": {"type": "disabled"}}),
    ],
)  # fmt: skip
def test_effort_is_the_one_option_for_all_switches_of_thinking(
    provider: str, model: str, effort: str, fields: dict[str, object]
) -> None:
    plain, asked = sent(provider, model)[0], sent(provider, model, sampling=Sampling(reasoning_effort=effort))[0]
    assert {name: asked[name] for name in asked if name not in plain} == fields


# -- forced calls

THINKING_TEMPLATE = ExtraFields({"chat_template_kwargs": {"thinking": True}})
OFF = {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("provider", "model", "choice", "field", "switch"),
    [
        ("deepseek", "deepseek-v4-pro", REQUIRED, "required", OFF),
        ("deepseek", "deepseek-v4-flash", NAMED, {"type": "function", "function": {"name": "f"}}, OFF),
        ("moonshot", "kimi-k2.6", NAMED, {"type": "function", "function": {"name": "f"}}, OFF),
        ("moonshot", "kimi-k2.5", NAMED, {"type": "function", "function": {"name": "f"}}, OFF),
        ("openai-compatible", "deepseek-v4-pro", REQUIRED, "required", OFF),
        ("openrouter", "deepseek/deepseek-v4-pro", REQUIRED, "required", {"reasoning": {"effort": "none"}}),
        ("alibaba", "qwen3.5-plus", REQUIRED, "required", {"enable_thinking": False}),
        ("deepseek-anthropic", "deepseek-v4-pro", REQUIRED, {"type": "any"}, OFF),
        ("anthropic", "claude-opus-5", NAMED, {"type": "tool", "name": "f"}, OFF),
        # They always think.
        ("moonshot", "kimi-k2-thinking", NAMED, None, {}),
        ("deepseek", "deepseek-reasoner", REQUIRED, None, {}),
        ("anthropic", "claude-opus-5-5", REQUIRED, {"type": "auto"}, {}),
        ("openrouter", "anthropic/claude-fable-5.1", REQUIRED, None, {}),
    ],
)
def test_a_forced_call_is_sent_as_the_model_takes_it(
    provider: str, model: str, choice: ToolChoice, field: object, switch: dict[str, object]
) -> None:
    """400 "Thinking mode does not support this tool_choice"; "tool_choice 'specified' is incompatible with thinking
    enabled"; "The tool_choice parameter does not support being set to required or object in thinking mode"."""
    body, notes = sent(provider, model, tools=TOOLS, tool_choice=choice)
    plain = sent(provider, model, tools=TOOLS)[0]
    changed = {name: body[name] for name in body if name not in plain and name != "tool_choice"}
    assert (body.get("tool_choice"), changed) == (field, switch)
    (note,) = [note for note in notes if note.startswith("tool_choice")]
    assert model in note
    assert ("asked not to think" if switch else "it may answer without a call") in note


@pytest.mark.parametrize(
    ("provider", "model", "fields"),
    [
        ("deepseek", "deepseek-chat", {}),
        ("deepseek", "deepseek-v4-pro", {"sampling": Sampling(reasoning_effort="none")}),
        ("deepseek", "deepseek-v4-pro", {"provider_options": (ExtraFields({"thinking": {"type": "disabled"}}),)}),
        ("vllm", "Qwen/Qwen3-32B", {}),
        ("openai-chat", "gpt-5.2", {"sampling": Sampling(reasoning_effort="high")}),
        ("anthropic", "claude-sonnet-4-6", {}),
    ],
)
def test_a_forced_call_is_sent_as_it_is_where_the_model_does_not_think(
    provider: str, model: str, fields: dict[str, Any]
) -> None:
    body, notes = sent(provider, model, tools=TOOLS, tool_choice=REQUIRED, **fields)
    assert body["tool_choice"] in ("required", {"type": "any"})
    assert notes == ()


@pytest.mark.parametrize(
    ("provider", "model", "fields"),
    [
        ("deepseek", "deepseek-v4-pro", {"sampling": Sampling(reasoning_effort="high")}),
        ("moonshot", "kimi-k2.6", {"sampling": Sampling(reasoning_effort="low")}),
        ("alibaba", "qwen-plus", {"sampling": Sampling(reasoning_effort="low")}),
        ("nvidia", "deepseek-ai/deepseek-v4-pro", {"provider_options": (THINKING_TEMPLATE,)}),
        ("anthropic", "claude-sonnet-4-6", {"provider_options": (AnthropicOptions(thinking="adaptive"),)}),
        ("anthropic", "claude-sonnet-4-5", {"provider_options": (AnthropicOptions(thinking=2_000),)}),
        ("openrouter", "anthropic/claude-opus-4.6", {"sampling": Sampling(reasoning_effort="low")}),
    ],
)  # fmt: skip
def test_who_asks_for_both_is_told_before_anything_is_sent(provider: str, model: str, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"tool_choice f: .*{model} takes no forced call while it thinks; drop"):
        sent(provider, model, tools=TOOLS, tool_choice=NAMED, **fields)


def test_kimi_k3_takes_a_call_that_is_forced_but_not_named() -> None:
    """UKGovernmentBEIS/inspect_ai PR 5152."""
    body, notes = sent("openrouter", "moonshotai/kimi-k3", tools=TOOLS, tool_choice=REQUIRED)
    assert (body["tool_choice"], notes) == ("required", ())
    body, (note,) = sent("openrouter", "moonshotai/kimi-k3", tools=TOOLS, tool_choice=NAMED)
    assert "tool_choice" not in body
    assert note.startswith("tool_choice f: openrouter/moonshotai/kimi-k3")


def test_a_name_is_looked_up_once() -> None:
    for model in ("deepseek-v4-pro", "gpt-4.1", "claude-opus-5"):
        assert family_of(model) is family_of(model)
        assert thinking_of(model) is thinking_of(model)


@pytest.mark.parametrize(
    "option", sorted({name for row in _REFUSED for name in row.options} & {*Sampling.__struct_fields__})
)
def test_a_request_with_an_option_that_some_model_refuses_is_looked_at(option: str) -> None:
    values = {"stop": ("x",), "reasoning_effort": "none", "temperature": 0.5, "top_p": 0.5}
    assert is_bare(Sampling())
    assert not is_bare(Sampling(**{option: values.get(option, 1)}))

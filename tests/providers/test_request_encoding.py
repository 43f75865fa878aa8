"""What all APIs can be asked, each in its own words: JSON without a schema, and some of the tools on offer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer, events, sse

from callboard.protocol.content import SystemMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import Done, ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.output import OutputMode, is_any_object
from callboard.protocol.provider_options import AnthropicOptions, OpenAIOptions
from callboard.protocol.tools import ToolDefinition
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.output_modes import output_modes
from callboard.providers.provider_registry import adapter_for

A, B, C = (ToolDefinition(ToolName(name), "F.", {"type": "object", "properties": {}}) for name in "abc")
ANY_OBJECT = {"type": "object", "additionalProperties": True}
AUTO, REQUIRED = ToolChoiceMode.AUTO, ToolChoiceMode.REQUIRED
ALLOWED = (ToolName("a"), ToolName("c"))
OPTIONS: dict[str, dict[str, Any]] = {
    "openai-compatible": {"base_url": "http://localhost:1/v1"},
    "azure": {"base_url": "https://r.openai.azure.com"},
    "vertex": {"project": "p", "location": "l", "publisher": "google"},
    "bedrock": {"region": "us-east-1"},
}


def sent(provider: str, model: str, *messages: Any, **fields: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    key = {} if provider == "vertex" else {"api_key": "k"}
    adapter = adapter_for(provider, **key, **OPTIONS.get(provider, {}))
    wire = adapter.encode(ModelRequest(model, messages or (UserMessage.of("Hi"),), **fields))
    return json.loads(wire.body), wire.notes


# -- JSON without a schema


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai-chat", "gpt-4.1"),
        ("azure", "prod"),
        ("mistral", "mistral-large-latest"),
        ("deepseek", "deepseek-v4-pro"),
        ("moonshot", "kimi-k2.6"),
        ("zai", "glm-5.2"),
        ("alibaba", "qwen-plus"),
        ("groq", "llama-3.3-70b-versatile"),
        ("cohere", "command-a"),
        ("openrouter", "deepseek/deepseek-v4-pro"),
        ("ollama", "qwen3"),
        ("vllm", "qwen3"),
        ("openai-compatible", "prod"),
    ],
)
def test_json_mode_by_chat_completions(provider: str, model: str) -> None:
    """API reference, "response_format"; 400 "'messages' must contain the word 'json' in some form, to use
    'response_format' of type 'json_object'." """
    messages = (SystemMessage("Be brief."), UserMessage.of("Hi"))
    body, notes = sent(provider, model, *messages, response_schema=ANY_OBJECT)
    assert body["response_format"] == {"type": "json_object"}
    assert any("JSON" in str(each["content"]) for each in body["messages"] if each["role"] == "system")
    assert notes == ()


@pytest.mark.parametrize("provider", ["lmstudio", "perplexity"])
def test_a_server_without_json_mode_gets_the_open_schema(provider: str) -> None:
    """ "'response_format.type' must be 'json_schema' or 'text'" (lmstudio-ai/lmstudio-bug-tracker#189)."""
    body, _ = sent(provider, "m", response_schema=ANY_OBJECT)
    assert body["response_format"]["type"] == "json_schema"


def test_json_mode_by_responses() -> None:
    """ "Response input messages must contain the word 'json' in some form": the instructions are no input."""
    body, _ = sent("openai", "gpt-4.1", SystemMessage("JSON!"), UserMessage.of("Hi"), response_schema=ANY_OBJECT)
    assert body["text"] == {"format": {"type": "json_object"}}
    assert "JSON" in body["input"][0]["content"]


@pytest.mark.parametrize("provider", ["gemini", "vertex"])
def test_json_mode_by_gemini(provider: str) -> None:
    """ai.google.dev, "Structured outputs": the MIME type alone."""
    body, _ = sent(provider, "gemini-3-pro", response_schema=ANY_OBJECT)
    assert body["generationConfig"] == {"responseMimeType": "application/json"}
    body, _ = sent(provider, "gemini-2.5-flash", response_schema=ANY_OBJECT, tools=(A,))
    assert "generationConfig" not in body
    assert "JSON" in body["systemInstruction"]["parts"][0]["text"]


@pytest.mark.parametrize(
    ("provider", "model", "first"),
    [
        ("deepseek", "deepseek-v4-pro", OutputMode.NATIVE),
        ("moonshot", "kimi-k2.6", OutputMode.NATIVE),
        ("zai", "glm-5.2", OutputMode.NATIVE),
        ("openai", "gpt-5", OutputMode.NATIVE),
        ("gemini", "gemini-3-pro", OutputMode.NATIVE),
        ("anthropic", "claude-sonnet-4-6", OutputMode.TOOL),
        ("bedrock", "amazon.nova-pro-v1:0", OutputMode.TOOL),
    ],
)
def test_output_dict_is_asked_for_by_json_mode_where_there_is_one(provider: str, model: str, first: OutputMode) -> None:
    assert output_modes(provider, model, ANY_OBJECT)[0][0] is first


def test_a_schema_that_says_more_is_no_json_mode() -> None:
    assert is_any_object({"type": "object"})
    assert is_any_object({"type": "object", "title": "Data", "description": "Anything."})
    for more in ({"properties": {}}, {"additionalProperties": {"type": "string"}}, {"additionalProperties": False}):
        assert not is_any_object({"type": "object", **more})
    assert not is_any_object({})
    assert not is_any_object({"type": "array"})


# -- some of the tools


@pytest.mark.parametrize("mode", [AUTO, REQUIRED])
def test_tools_that_may_be_called_in_the_apis_words(mode: ToolChoiceMode) -> None:
    """The SDK's ChatCompletionAllowedToolChoiceParam and ToolChoiceAllowedParam; Gemini's FunctionCallingConfig: "This
    should only be set when the Mode is ANY or VALIDATED"."""
    choice = ToolChoice(mode, allowed=ALLOWED)
    body, _ = sent("openai-chat", "gpt-4.1", tools=(A, B, C), tool_choice=choice)
    named = [{"type": "function", "function": {"name": name}} for name in ALLOWED]
    told = {"mode": mode.value, "tools": named}
    assert body["tool_choice"] == {"type": "allowed_tools", "allowed_tools": told}
    assert len(body["tools"]) == 3
    body, _ = sent("openai", "gpt-4.1", tools=(A, B, C), tool_choice=choice)
    flat = [{"type": "function", "name": name} for name in ALLOWED]
    assert body["tool_choice"] == {"type": "allowed_tools", "mode": mode.value, "tools": flat}
    assert len(body["tools"]) == 3
    body, _ = sent("gemini", "gemini-3-pro", tools=(A, B, C), tool_choice=choice)
    word = "ANY" if mode is REQUIRED else "VALIDATED"
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": word, "allowedFunctionNames": list(ALLOWED)}
    assert len(body["tools"][0]["functionDeclarations"]) == 3


OTHERS = [
    ("anthropic", "claude-sonnet-4-6"),
    ("bedrock", "anthropic.claude-sonnet-4-6"),
    ("azure", "prod"),
    ("openai-compatible", "prod"),
    ("mistral", "mistral-large-latest"),
    ("deepseek", "deepseek-v4-pro"),
    ("zai", "glm-5.2"),
    ("openrouter", "openai/gpt-5.2"),
]


@pytest.mark.parametrize(("provider", "model"), OTHERS)
def test_elsewhere_only_those_are_offered(provider: str, model: str) -> None:
    choice = ToolChoice(allowed=ALLOWED)
    assert sent(provider, model, tools=(A, B, C), tool_choice=choice) == sent(provider, model, tools=(A, C))


def test_vertex_is_told_only_where_a_call_is_forced() -> None:
    """cloud.google.com, FunctionCallingConfig: "Only set when the Mode is ANY"."""
    body, _ = sent("vertex", "gemini-3-pro", tools=(A, B, C), tool_choice=ToolChoice(allowed=ALLOWED))
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "AUTO"}
    assert [each["name"] for each in body["tools"][0]["functionDeclarations"]] == ["a", "c"]
    choice = ToolChoice(REQUIRED, allowed=ALLOWED)
    body, _ = sent("vertex", "gemini-3-pro", tools=(A, B, C), tool_choice=choice)
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "ANY", "allowedFunctionNames": list(ALLOWED)}


@pytest.mark.parametrize("provider", ["openai", "openai-chat", "gemini", "anthropic"])
def test_an_allowed_tool_that_is_not_offered_is_refused(provider: str) -> None:
    with pytest.raises(UsageError, match="tool_choice allows 'c', which is not offered; offered are: "):
        sent(provider, "m", tools=(A, B), tool_choice=ToolChoice(allowed=ALLOWED))
    named = ToolChoice(ToolChoiceMode.NAMED, ToolName("b"), ALLOWED)
    with pytest.raises(UsageError, match="tool_choice names 'b', which it does not allow"):
        sent(provider, "m", tools=(A, B, C), tool_choice=named)


def test_a_model_that_takes_no_forced_call_is_still_told_what_it_may_call() -> None:
    choice = ToolChoice(REQUIRED, allowed=ALLOWED)
    body, (note,) = sent("deepseek", "deepseek-v4-pro", tools=(A, B, C), tool_choice=choice)
    assert (body["tool_choice"], body["thinking"], len(body["tools"])) == ("required", {"type": "disabled"}, 2)
    assert note.startswith("tool_choice required: deepseek/deepseek-v4-pro")


# -- context that the server manages


@pytest.mark.parametrize(
    ("kinds", "betas"),
    [
        (["clear_tool_uses_20250919"], "context-management-2025-06-27"),
        (["clear_thinking_20251015", "clear_tool_uses_20250919"], "context-management-2025-06-27"),
        (["compact_20260112"], "compact-2026-01-12"),
        (["clear_tool_uses_20250919", "compact_20260112"], "context-management-2025-06-27,compact-2026-01-12"),
        ([], ""),
    ],
)
def test_the_beta_of_an_edit_is_asked_for(kinds: list[str], betas: str) -> None:
    """platform.claude.com, "Context editing" and "Compaction"."""
    managed = {"edits": [{"type": kind} for kind in kinds]}
    options = AnthropicOptions(context_management=managed)
    request = ModelRequest("claude-sonnet-4-6", (UserMessage.of("Hi"),), provider_options=(options,))
    wire = Anthropic(api_key="k").encode(request)
    assert json.loads(wire.body)["context_management"] == managed
    assert wire.headers.get("anthropic-beta", "") == betas
    both = AnthropicOptions(("a-beta",), context_management=managed)
    wire = Anthropic(api_key="k").encode(ModelRequest("c", (UserMessage.of("Hi"),), provider_options=(both,)))
    assert wire.headers["anthropic-beta"] == ",".join(filter(None, ("a-beta", betas)))


def test_openais_compaction_is_an_option_of_responses() -> None:
    """developers.openai.com, "Compaction"."""
    managed = {"type": "compaction", "compact_threshold": 200_000}
    options = (OpenAIOptions(context_management=(managed,)),)
    assert sent("openai", "gpt-5.2", provider_options=options)[0]["context_management"] == [managed]
    assert "context_management: " in sent("openai-chat", "gpt-5.2", provider_options=options)[1][0]


EDIT = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": 8, "cleared_input_tokens": 50000}


def test_what_the_server_cleared_is_told() -> None:
    """platform.claude.com, "Context editing", "Context editing response": in the message, or in `message_delta`."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"type": "message", "id": "m", "model": "c", "role": "assistant", "content": [], "usage": usage}
    whole = {**message, "stop_reason": "end_turn", "context_management": {"applied_edits": [EDIT]}}
    told = (f"context_management: {json.dumps(EDIT, separators=(',', ':'))}",)
    assert answer(Anthropic(api_key="k"), json.dumps(whole).encode(), streaming=False).notes == told
    ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    stream = [
        {"type": "message_start", "message": message},
        {**ends, "context_management": {"applied_edits": [EDIT]}},
        {"type": "message_stop"},
    ]
    assert answer(Anthropic(api_key="k"), sse(stream, named=True)).notes == told


@given(st.recursive(st.none() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)))
def test_what_it_says_of_that_never_costs_the_answer(said: Any) -> None:
    ends = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    for managed in (said, {"applied_edits": said}):
        stream = [{"type": "message_start", "message": {"usage": {}}}, {**ends, "context_management": managed}]
        found = events(Anthropic(api_key="k"), sse([*stream, {"type": "message_stop"}], named=True))
        assert isinstance(found[-1], Done)


def test_effort_none_beside_json_mode_is_sent_with_it() -> None:
    sampling = Sampling(reasoning_effort="none")
    body, notes = sent("deepseek", "deepseek-v4-pro", response_schema=ANY_OBJECT, sampling=sampling)
    assert (body["thinking"], body["response_format"], notes) == ({"type": "disabled"}, {"type": "json_object"}, ())

"""What we send is valid by the official SDKs' own typed models (openai, anthropic, google-genai)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import TypeAdapter, ValidationError
from support.examples import examples
from support.histories import histories
from support.sdk_types import Lazy, check_typed

from callboard.protocol.content import (
    AssistantMessage,
    Image,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import ModelRequest, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses

genai = Lazy("google.genai.types")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}}
TOOLS = (
    ToolDefinition(ToolName("lookup"), "Looks up.", {**SCHEMA, "required": ["city"]}, strict=True),
    ToolDefinition(ToolName("now"), "The time."),
)
CALLS = (
    ToolCall(CallId("call_1"), ToolName("lookup"), '{"city": "Rome"}'),
    ToolCall(CallId("call_2"), ToolName("now"), '{"cut', complete=False),
)
HISTORY: tuple[Message, ...] = (
    SystemMessage("Be brief."),
    UserMessage((Text("Look"), Image("image/png", "aWcK"), Image("image/png", url="https://example.org/a.png"))),
    AssistantMessage((Text("Looking."), *CALLS)),
    ToolMessage(CallId("call_1"), ToolName("lookup"), '{"ok": true}'),
    ToolMessage(CallId("call_2"), ToolName("now"), '{"ok": false}', is_error=True),
    SystemMessage("Careful now."),
)


def check_gemini(body: dict[str, Any]) -> None:
    """google-genai has no model of the whole body; its parts forbid unknown fields."""
    parts: dict[str, Any] = {
        "contents": list[genai.Content],
        "systemInstruction": genai.Content,
        "tools": list[genai.Tool],
        "toolConfig": genai.ToolConfig,
        "generationConfig": genai.GenerationConfig,
    }
    assert set(body) <= set(parts)
    for name, value in body.items():
        TypeAdapter(parts[name]).validate_json(json.dumps(value))


RESPONSES = partial(check_typed, place="openai.types.responses.response_create_params.ResponseCreateParamsStreaming")
MESSAGES = partial(check_typed, place="anthropic.types.message_create_params.MessageCreateParamsStreaming")
ROUTES: dict[str, tuple[Adapter, str, Callable[[Any], None]]] = {
    "responses": (OpenAIResponses(), "gpt-5", RESPONSES),
    "anthropic": (Anthropic(), "claude-sonnet-4-5", MESSAGES),
    "anthropic-adaptive": (Anthropic(), "claude-opus-4-6", MESSAGES),
    "gemini": (Gemini(), "gemini-3-pro", check_gemini),
}


def check(route: str, messages: tuple[Message, ...], **fields: Any) -> None:
    adapter, model, validate = ROUTES[route]
    validate(json.loads(adapter.encode(ModelRequest(model, messages, **fields)).body))


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "choice",
    [*(ToolChoice(mode) for mode in list(ToolChoiceMode)[:3]), ToolChoice(ToolChoiceMode.NAMED, ToolName("now"))],
    ids=lambda choice: str(choice.mode),
)
@pytest.mark.parametrize("parallel", [None, True, False])
def test_a_request_with_everything(route: str, choice: ToolChoice, parallel: bool | None) -> None:
    forced = choice.mode in (ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED)
    effort = None if forced else "medium"
    # The SDK from 2.0 on models API version 2026-10-21, which has no sampling parameters; we speak 2023-06-01.
    top_p = None if route.startswith("anthropic") else 0.95
    check(
        route,
        HISTORY,
        tools=TOOLS,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        response_schema=SCHEMA,
        sampling=Sampling(top_p=top_p, max_output_tokens=20_000, reasoning_effort=effort),
    )


@pytest.mark.parametrize("route", ROUTES)
def test_any_history(route: str) -> None:
    @settings(max_examples=examples(25), deadline=None)
    @given(histories())
    def any_history(messages: tuple[Message, ...]) -> None:
        check(route, messages)

    any_history()


@pytest.mark.parametrize("route", ROUTES)
def test_the_models_do_refuse(route: str) -> None:
    """That the check checks: a wrong type deep in the history is found."""
    adapter, model, validate = ROUTES[route]
    text = adapter.encode(ModelRequest(model, HISTORY)).body.replace(b'"Looking."', b"[7]")
    with pytest.raises(ValidationError):
        validate(json.loads(text))

"""What we send to OpenAI's Chat Completions is valid by the official SDK's own types, for every feature."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from pydantic import ValidationError
from support.examples import examples
from support.histories import histories
from support.sdk_types import check_typed
from support.wire import body

from callboard.protocol.content import (
    AssistantMessage,
    Audio,
    Document,
    Image,
    Message,
    Replay,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import AudioOut, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.server_tools import WebSearch
from callboard.protocol.tools import ToolDefinition
from callboard.providers.openai.chat_api import OpenAIChat

PARAMS = "openai.types.chat.completion_create_params.CompletionCreateParams"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = (
    ToolDefinition(ToolName("look"), "Looks.", {**SCHEMA, "required": ["city"]}, strict=True),
    ToolDefinition(ToolName("now"), "The time."),
)
CALLS = (
    ToolCall(CallId("call_1"), ToolName("look"), '{"city": "Rome"}'),
    ToolCall(CallId("call_2"), ToolName("now"), '{"cut', complete=False),
)
SPOKEN = Replay("openai-chat", {"audio": {"id": "audio_1"}})
HISTORY: tuple[Message, ...] = (
    SystemMessage("Be brief."),
    UserMessage(
        (
            Text("Look"),
            Image("image/png", "aWcK"),
            Image(url="https://example.org/a.png"),
            Document("application/pdf", "aWcK", name="a.pdf"),
            Document(file_id="file-1"),
            Document(text="Words."),
            Audio("audio/wav", "aWcK"),
            Audio("audio/mpeg", "aWcK"),
        )
    ),
    AssistantMessage((Text("Looking."), *CALLS)),
    ToolMessage(CallId("call_1"), ToolName("look"), "seen", media=(Image("image/png", "aWcK"),)),
    ToolMessage(CallId("call_2"), ToolName("now"), '{"ok": false}', is_error=True),
    AssistantMessage((Text("Hello.", SPOKEN), Audio("audio/wav", "aWcK", replay=SPOKEN))),
    SystemMessage("Careful now."),
    UserMessage.of("Go on"),
)
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS, "parallel_tool_calls": False},
    "schema": {"response_schema": SCHEMA},
    "knobs": {"sampling": Sampling(0.5, 0.9, 100, ("END",), 7, "low", 3)},
    "tokens": {"sampling": Sampling(logprobs=0)},
    "tier": {"service_tier": "flex"},
    "speech": {"audio_out": AudioOut("ash", "mp3")},
    "search": {"server_tools": (WebSearch(),)},
    "search-somewhere": {
        "server_tools": (WebSearch(country="FR", city="Paris", region="IDF", timezone="Europe/Paris"),)
    },
}


def check(sent: dict[str, Any]) -> None:
    check_typed(sent, f"{PARAMS}{'Streaming' if sent.get('stream', False) else 'NonStreaming'}")


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("stream", [True, False])
def test_every_feature(feature: str, stream: bool) -> None:
    check(body(OpenAIChat(), *HISTORY, model="gpt-5.1", stream=stream, **FEATURES[feature]))


@pytest.mark.parametrize("mode", list(ToolChoiceMode))
def test_every_choice_of_tools(mode: ToolChoiceMode) -> None:
    choice = ToolChoice(mode, ToolName("now") if mode is ToolChoiceMode.NAMED else None)
    check(body(OpenAIChat(), *HISTORY, model="gpt-5.1", tools=TOOLS, tool_choice=choice))


@settings(max_examples=examples(25), deadline=None)
@given(histories())
def test_any_history(messages: tuple[Message, ...]) -> None:
    check(body(OpenAIChat(), *messages, model="gpt-5.1"))


def test_the_types_do_refuse() -> None:
    """That the check checks: a wrong type deep in the history is found, and so is a wrong part."""
    for wrong in ([7], [{"type": "input_audio", "input_audio": {"data": "aWcK", "format": "midi"}}]):
        sent = body(OpenAIChat(), *HISTORY, model="gpt-5.1")
        sent["messages"][1]["content"] = wrong
        with pytest.raises(ValidationError):
            check(sent)

"""callboard's values in the words of the GenAI conventions, whose names are those of their package."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from support.offenders import no_offenders

from callboard.actors.telemetry.conventions import begin_of, metric_attributes, model_of, provider_of, server_attributes
from callboard.actors.telemetry.message_json import MAX_CONTENT_CHARS, MAX_MESSAGES, messages_json, output_json
from callboard.actors.telemetry.metrics import METRICS
from callboard.protocol.commands import CallModel
from callboard.protocol.content import AssistantMessage, Image, Message, Text, Thinking, ToolCall, UserMessage
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import CallPurpose, ModelRequest, ModelResponse
from callboard.providers.provider_table import ROWS

ROOT = Path(__file__).parents[3]
#: Younger than the package: the repository open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md.
YOUNGER = {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}


def test_every_name_of_the_conventions_is_one_of_the_package() -> None:
    package = {
        value
        for module in (gen_ai_attributes, gen_ai_metrics)
        for name, value in vars(module).items()
        if name.startswith("GEN_AI_") and isinstance(value, str)
    }
    ours = {
        name
        for path in (ROOT / "actors" / "telemetry").glob("*.py")
        for name in re.findall(r'"(gen_ai\.[a-z_.]+[a-z])"', path.read_text())
    }
    assert len(ours) > 30
    assert ours - package == YOUNGER


def test_every_provider_has_the_name_of_the_conventions_or_its_own() -> None:
    known = {each.value for each in gen_ai_attributes.GenAiProviderNameValues} | {"moonshot_ai"}
    own = {row: re.sub("-(chat|responses|anthropic)$", "", row) for row in ROWS}
    names = {row: provider_of(f"{row}/m") for row in ROWS}
    no_offenders(f"{row} is {name}" for row, name in names.items() if name not in {*known, own[row]})


def test_apis_of_one_provider_have_one_name() -> None:
    assert {provider_of(f"{name}/m") for name in ("openai", "openai-chat", "openai-responses")} == {"openai"}
    assert {provider_of(f"{name}/m") for name in ("azure", "azure-responses")} == {"azure.ai.openai"}
    assert provider_of("openai-compatible/m") == "openai-compatible"
    assert (provider_of("mine"), model_of("mine"), model_of("openrouter/meta/llama")) == ("mine", "mine", "meta/llama")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://api.openai.com/v1", {"server.address": "api.openai.com", "server.port": 443}),
        ("http://user:secret@localhost:8080/v1", {"server.address": "localhost", "server.port": 8080}),
        ("http://[::1]/v1", {"server.address": "::1", "server.port": 80}),
        ("", {}),
        ("https://host:many/v1", {}),
    ],
)
def test_where_a_model_is_asked(address: str, found: dict[str, object]) -> None:
    assert server_attributes(address) == found


def test_labels_have_the_conventions_names() -> None:
    duration = METRICS["gen_ai.client.operation.duration"]
    assert metric_attributes(duration, ("bedrock/claude", "timeout")) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "aws.bedrock",
        "gen_ai.request.model": "claude",
        "error.type": "timeout",
    }
    assert metric_attributes(METRICS["callboard.tool.calls"], ("look", "ok")) == {"tool": "look", "outcome": "ok"}


@given(st.lists(st.text(max_size=30), max_size=40))
def test_messages_are_json_whatever_they_say(texts: Sequence[str]) -> None:
    messages: list[Message] = [
        AssistantMessage((Thinking(text), ToolCall(CallId("c"), ToolName("look"), text), Text(text)))
        if number % 2
        else UserMessage((Text(text), Image("image/png")))
        for number, text in enumerate(texts)
    ]
    shown = json.loads(messages_json(messages))
    assert len(shown) == min(len(messages), MAX_MESSAGES) + (len(messages) > MAX_MESSAGES)
    assert all(part["type"] for message in shown for part in message["parts"])


def test_a_long_text_and_half_a_character_can_be_exported() -> None:
    (message,) = json.loads(output_json(ModelResponse((Text("\ud83d" + "x" * 10_000),))))
    content = message["parts"][0]["content"]
    assert content.startswith("\\ud83dxxx")
    assert len(content) < MAX_CONTENT_CHARS + 100


@pytest.mark.parametrize(("purpose", "said"), [(CallPurpose.TURN, None), (CallPurpose.SUMMARY, "summary")])
def test_a_model_call_that_asks_for_a_summary_says_so(purpose: CallPurpose, said: str | None) -> None:
    tag = Tag(RequestId("r"), MessageId("r/user"), 1)
    name, attributes = begin_of(CallModel(tag, ModelRequest("openai/m", ()), 1.0, purpose=purpose), log_content=False)
    assert (name, attributes.get("callboard.purpose")) == ("chat m", said)

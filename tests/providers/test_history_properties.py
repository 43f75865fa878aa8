"""Any legal history becomes a request that the API accepts, whoever wrote it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.examples import examples
from support.histories import histories
from support.validators import VALIDATORS

from callboard.protocol.content import AssistantMessage, Message, Text, ToolMessage, UserMessage
from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.model import ModelRequest, PromptCache, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.copilot.copilot_api import Copilot
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.openrouter import OpenRouter

#: adapter, model, validator
ROUTES: dict[str, tuple[Adapter, str, str]] = {
    "chat": (OpenAIChat(api_key="k"), "gpt-4o", "chat"),
    "openrouter": (OpenRouter(api_key="k"), "anthropic/claude-sonnet-4.5", "chat"),
    "copilot": (Copilot(api_key="k"), "gpt-4o", "chat"),
    "copilot-responses": (Copilot(api_key="k", route="responses"), "gpt-5-codex", "responses"),
    "copilot-messages": (Copilot(api_key="k", route="messages"), "claude-sonnet-4.5", "anthropic"),
    "responses": (OpenAIResponses(api_key="k"), "gpt-4o", "responses"),
    "responses-reasoning": (OpenAIResponses(api_key="k"), "gpt-5", "responses"),
    "anthropic": (Anthropic(api_key="k"), "claude-sonnet-4-5", "anthropic"),
    "anthropic-adaptive": (Anthropic(api_key="k"), "claude-opus-4-6", "anthropic"),
    "gemini": (Gemini(api_key="k"), "gemini-2.5-pro", "gemini"),
    "vertex": (Gemini(api_key="k", project="p"), "gemini-3-pro", "gemini"),
}
TOOLS = (
    ToolDefinition(
        ToolName("lookup"), "Looks up.", {"type": "object", "properties": {"city": {"type": "string"}}}, True
    ),
    ToolDefinition(ToolName("now"), "The time."),
)
EXAMPLES = examples(200)

requests = st.builds(
    lambda messages, tools, choice, parallel, effort: (messages, tools, choice, parallel, effort),
    histories(),
    st.booleans(),
    st.sampled_from([ToolChoiceMode.AUTO, ToolChoiceMode.NONE]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, "none", "minimal", "low", "medium", "high"]),
)


def violations(route: str, messages: tuple[Message, ...], **fields: object) -> list[str]:
    adapter, model, validator = ROUTES[route]
    request = ModelRequest(model, messages, **fields)  # type: ignore[arg-type]
    return VALIDATORS[validator](json.loads(adapter.encode(request).body))


# Each history goes by all routes: to draw it takes longer than to encode it a dozen times.


@settings(max_examples=EXAMPLES, deadline=None)
@given(requests)
def test_any_legal_history_is_accepted(
    given_request: tuple[tuple[Message, ...], bool, ToolChoiceMode, bool | None, str | None],
) -> None:
    messages, tools, choice, parallel, effort = given_request
    for route in ROUTES:
        found = violations(
            route,
            messages,
            tools=TOOLS if tools else (),
            tool_choice=ToolChoice(choice),
            parallel_tool_calls=parallel,
            sampling=Sampling(reasoning_effort=effort, max_output_tokens=40_000),
        )
        assert found == [], route


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories(), st.integers(0, 12), st.integers(0, 12))
def test_any_cut_of_a_history_is_refused_or_accepted_never_sent_broken(
    messages: tuple[Message, ...], start: int, stop: int
) -> None:
    for route in ROUTES:
        try:
            found = violations(route, messages[start:stop])
        except UsageError:
            continue
        assert found == [], route


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "choice", [ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NAMED, ToolName("now"))]
)
def test_a_forced_tool_is_accepted(route: str, choice: ToolChoice) -> None:
    assert violations(route, (UserMessage.of("Hi"),), tools=TOOLS, tool_choice=choice) == []


@settings(max_examples=EXAMPLES, deadline=None)
@given(histories())
def test_ids_stay_the_same_as_a_history_grows(messages: tuple[Message, ...]) -> None:
    """Prompt caches hold only for an unchanged beginning. Their marks move on, and are no part of it; and a turn that a
    person breaks off by the next question loses the server tools that it waited for."""
    adapter, model, _ = ROUTES["anthropic"]
    asked = (*messages, UserMessage.of("And?"))
    plain = ModelRequest(model, asked, prompt_cache=PromptCache.OFF)
    whole = json.loads(adapter.encode(plain).body)["messages"]
    longer = (*asked, AssistantMessage((Text("So."),)), UserMessage.of("More"))
    grown = json.loads(adapter.encode(replace(plain, messages=longer)).body)["messages"]
    assert grown[: len(whole)] == whole


@pytest.mark.parametrize("route", ROUTES)
def test_an_orphan_result_is_refused(route: str) -> None:
    adapter, model, _ = ROUTES[route]
    orphan = ToolMessage(TOOLS[0].name, TOOLS[0].name, "{}")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did not ask"):
        adapter.encode(ModelRequest(model, (UserMessage.of("Hi"), orphan)))

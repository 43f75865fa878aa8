"""Round trips against a real llama.cpp server, which speaks three of our wire APIs. Opt in with `-m local_llm`; needs
`pip install xllamacpp gguf`. What these found is marked below."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from support.llama_server import CALLS_AND_STOPS, LlamaServer

from callboard.protocol.content import ToolMessage, UserMessage
from callboard.protocol.ids import ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Provider
from callboard.providers.provider_registry import provider_for
from callboard.providers.response_builder import ResponseBuilder

# A small model on a slow machine takes its time, and the first test waits for the server to load it.
pytestmark = [pytest.mark.local_llm, pytest.mark.timeout(600)]

USER = UserMessage.of("Hi")
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
FLAG = ToolDefinition(ToolName("flag"), "Raises a flag.", SCHEMA)
SHORT, LONG = Sampling(max_output_tokens=8), Sampling(max_output_tokens=400)
#: provider and what stands before its paths
ROUTES = {"llamacpp": "/v1", "openai-responses": "/v1", "anthropic": ""}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp gguf")
    with LlamaServer(tmp_path_factory.mktemp("llama")) as running:
        yield running


def talk(provider: Provider, *requests: ModelRequest) -> list[ModelResponse]:
    async def one(request: ModelRequest) -> ModelResponse:
        builder = ResponseBuilder()
        async for events in provider.stream(request):
            builder.feed(events)
        return builder.response()

    async def all_of_them() -> list[ModelResponse]:
        responses = [await one(request) for request in requests]
        await provider.aclose()
        return responses

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("streaming", [True, False])
def test_texts_one_after_the_other(server: LlamaServer, name: str, streaming: bool) -> None:
    """Found: llama.cpp closes a kept connection after a stream, without a word."""
    provider, model = provider_for(f"{name}/tiny", base_url=server.url + ROUTES[name], api_key="none")
    asked = ModelRequest(model, (USER,), sampling=SHORT, stream=streaming)
    for response in talk(provider, asked, asked, asked):
        assert response.error is None
        assert response.text
        assert response.usage.output_tokens > 0


@pytest.mark.parametrize("name", ["llamacpp", "openai-responses"])
@pytest.mark.parametrize("streaming", [True, False])
def test_a_forced_call_and_its_result(server: LlamaServer, name: str, streaming: bool) -> None:
    """Found: /v1/responses sends no output_index. (/v1/messages does not hold its model to a forced call.)"""
    provider, model = provider_for(f"{name}/tiny", base_url=server.url + ROUTES[name], api_key="none")
    forced = ModelRequest(
        model,
        (USER,),
        (FLAG,),
        ToolChoice(ToolChoiceMode.REQUIRED),
        sampling=LONG,
        stream=streaming,
        options=CALLS_AND_STOPS,
    )
    [turn] = talk(provider, forced)
    assert turn.error is None
    assert turn.finish_reason is FinishReason.TOOL_CALLS
    assert {call.name for call in turn.tool_calls} == {"flag"}
    assert all(call.complete and isinstance(json.loads(call.arguments)["on"], bool) for call in turn.tool_calls)
    results = tuple(ToolMessage(call.call_id, call.name, "done") for call in turn.tool_calls)
    [answer] = talk(provider, ModelRequest(model, (USER, turn.message, *results), (FLAG,), sampling=SHORT))
    assert answer.error is None

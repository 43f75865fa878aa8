"""Round trips against a real llama.cpp server, which speaks three of our wire APIs, streamed and whole.

The model is made on the spot and says what support/llama_server.py says it does, so texts, calls and counts of tokens
are known exactly. What these found is in docs/wire.md: quirks 21, 57, 63 and 84.
"""

from __future__ import annotations

import asyncio
import json
import platform
import urllib.request
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from support.llama_server import ARGUMENTS, CONTEXT, SAYS, THINKS, LlamaServer, answer_tokens, prompt_tokens

from callboard.actors.requests.outputs import Output
from callboard.actors.requests.partial_outputs import PartialOutput
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.protocol.content import (
    AssistantPart,
    Message,
    ServerTool,
    SystemMessage,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import ToolName
from callboard.protocol.model import FinishReason, ModelRequest, ModelResponse, Sampling, ToolChoice, ToolChoiceMode
from callboard.protocol.tools import ToolDefinition
from callboard.providers.provider_registry import adapter_for, provider_for
from callboard.providers.response_builder import ResponseBuilder

# Elsewhere the extra `dev` does not install it, since there is no wheel.
pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="xllamacpp has wheels for x86-64 and 64-bit ARM"
)

SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
FLAG = ToolDefinition(ToolName("flag"), "Raises a flag.", SCHEMA)
FORCED: dict[str, Any] = {"tools": (FLAG,), "tool_choice": ToolChoice(ToolChoiceMode.REQUIRED)}
#: provider and what stands before its paths
ROUTES = {"llamacpp": "/v1", "openai-responses": "/v1", "anthropic": ""}
every_route = pytest.mark.parametrize("name", ROUTES)
both_ways = pytest.mark.parametrize("streaming", [True, False], ids=["streamed", "whole"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("llama")) as running:
        yield running


@pytest.fixture(scope="module")
def thinking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("thinking"), thinking=True) as running:
        yield running


def talk(server: LlamaServer, name: str, *requests: ModelRequest) -> list[ModelResponse]:
    """Each request over a connection that was not kept, since llama.cpp closes kept ones after a stream."""
    return asyncio.run(_talk(server, name, requests))


async def _talk(server: LlamaServer, name: str, requests: tuple[ModelRequest, ...]) -> list[ModelResponse]:
    provider, _ = provider_for(f"{name}/tiny", base_url=server.url + ROUTES[name], api_key="none")
    responses = []
    for request in requests:
        builder = ResponseBuilder()
        async for events in provider.stream(request):
            builder.feed(events)
        responses.append(builder.response())
    await provider.aclose()
    return responses


def request_of(*messages: Message, stream: bool = True, **fields: Any) -> ModelRequest:
    fields = {"sampling": Sampling(max_output_tokens=200), **fields}
    return ModelRequest("tiny", messages, stream=stream, is_last_try=True, **fields)


def ask(server: LlamaServer, name: str, *messages: Message | str, stream: bool = True, **fields: Any) -> ModelResponse:
    given = [UserMessage.of(message) if isinstance(message, str) else message for message in messages]
    [response] = talk(server, name, request_of(*given, stream=stream, **fields))
    return response


def tokens(response: ModelResponse) -> tuple[int, int]:
    assert response.error is None
    assert response.usage is not None
    return response.usage.input_tokens, response.usage.output_tokens


def post(url: str, body: Any) -> bytes:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=30) as answer:
        read: bytes = answer.read()
        return read


def counted(server: LlamaServer, *messages: Message, **fields: Any) -> int:
    """The tokens of the prompt that these messages make, by the server's own template and tokenizer."""
    wire = adapter_for("llamacpp", base_url=f"{server.url}/v1").encode(request_of(*messages, **fields))
    prompt = json.loads(post(f"{server.url}/apply-template", json.loads(wire.body)))["prompt"]
    tokens = json.loads(post(f"{server.url}/tokenize", {"content": prompt, "add_special": True}))["tokens"]
    assert len(tokens) == prompt_tokens(prompt)
    return len(tokens)


@every_route
@both_ways
def test_a_text_and_its_tokens(server: LlamaServer, name: str, streaming: bool) -> None:
    """Asked twice: the second time all of the prompt but its last token comes from the server's cache."""
    hello = UserMessage.of(f"Hello, {name}, {streaming}!")
    asked = request_of(hello, stream=streaming)
    first, second = talk(server, name, asked, asked)
    prompt = counted(server, hello)
    for response in (first, second):
        assert response.error is None
        assert response.parts == (Text(SAYS),)
        assert response.finish_reason is FinishReason.STOP
        assert response.model == "tiny"
        assert tokens(response) == (prompt, answer_tokens(SAYS))
        assert response.response_id
    assert second.usage is not None
    assert second.usage.cached_tokens == prompt - 1


@every_route
def test_quirk_63_and_84_the_stream_and_the_whole_answer_are_equal(thinking_server: LlamaServer, name: str) -> None:
    """Deltas without an index, and finished items that repeat what their deltas said; /v1/messages signs a thought
    behind the text that follows it, with nothing, and /v1/responses ends it there."""
    streamed, whole = (ask(thinking_server, name, "Go", stream=streaming, **FORCED) for streaming in (True, False))
    for turn in (streamed, whole):
        assert [said(part) for part in turn.parts] == [
            (Thinking, THINKS),
            (Text, SAYS),
            (ToolCall, "flag", ARGUMENTS, True),
        ]
    assert streamed.finish_reason is whole.finish_reason is FinishReason.TOOL_CALLS
    assert streamed.raw_finish_reason == whole.raw_finish_reason
    assert [replayed(part) for part in streamed.parts] == [replayed(part) for part in whole.parts]


def said(part: AssistantPart) -> tuple[object, ...]:
    if isinstance(part, ToolCall):
        return ToolCall, part.name, part.arguments, part.complete
    assert isinstance(part, Text | Thinking)
    return type(part), part.text


def replayed(part: AssistantPart) -> object:
    """What must go back, but the ids, which differ in each answer."""
    replay = None if isinstance(part, ServerTool) else part.replay
    return replay and {key: value for key, value in replay.data.items() if key != "id"}


def test_a_streamed_text_is_that_of_its_terminal_object(thinking_server: LlamaServer) -> None:
    adapter = adapter_for("openai-responses", base_url=f"{thinking_server.url}/v1", api_key="none")
    wire = adapter.encode(request_of(UserMessage.of("Hi"), **FORCED))
    body = post(wire.url, json.loads(wire.body))
    builder, decoder = ResponseBuilder(), adapter.decoder()
    builder.feed([*decoder.feed(body), *decoder.finish()])
    turn = builder.response()
    last = json.loads(body.strip().rpartition(b"data: ")[2])["response"]
    reasoning, message, call = last["output"]
    assert [part["text"] for part in reasoning["content"]] == [turn.thinking]
    assert [part["text"] for part in message["content"]] == [turn.text]
    assert [(call["name"], call["arguments"], call["call_id"])] == [
        (each.name, each.arguments, each.call_id) for each in turn.tool_calls
    ]
    assert (last["usage"]["input_tokens"], last["usage"]["output_tokens"]) == tokens(turn)
    assert last["id"] == turn.response_id


@every_route
@both_ways
def test_a_forced_call_and_its_result(server: LlamaServer, name: str, streaming: bool) -> None:
    ask_for = UserMessage.of("Raise it")
    turn = ask(server, name, ask_for, stream=streaming, **FORCED)
    assert turn.error is None
    assert turn.finish_reason is FinishReason.TOOL_CALLS
    assert turn.text == SAYS
    [call] = turn.tool_calls
    assert (call.name, call.arguments, call.complete) == ("flag", ARGUMENTS, True)
    assert call.call_id
    assert tokens(turn) == (counted(server, ask_for, **FORCED), answer_tokens(SAYS, calls=1))
    history = (ask_for, turn.message, ToolMessage(call.call_id, call.name, "raised"))
    answer = ask(server, name, *history, stream=streaming, tools=(FLAG,))
    assert answer.parts == (Text(SAYS),)
    assert tokens(answer) == (counted(server, *history, tools=(FLAG,)), answer_tokens(SAYS))


@both_ways
def test_three_apis_count_alike(server: LlamaServer, streaming: bool) -> None:
    """The same conversation is the same prompt on all three."""
    counts = []
    for name in ROUTES:
        turn = ask(server, name, SystemMessage("Be brief."), "Raise it", stream=streaming, **FORCED)
        [call] = turn.tool_calls
        result = ToolMessage(call.call_id, call.name, "raised")
        then = ask(server, name, SystemMessage("Be brief."), "Raise it", turn.message, result, stream=streaming)
        counts.append([tokens(each) for each in (turn, then)])
    assert counts[0] == counts[1] == counts[2]


@every_route
@both_ways
def test_a_call_that_the_limit_cuts_is_never_complete(server: LlamaServer, name: str, streaming: bool) -> None:
    """Quirks 21 and 57: /v1/responses calls such a turn and its half call "completed"."""
    cut = answer_tokens(SAYS, calls=1) - len("}</tool_call>") - 4
    turn = ask(server, name, "Raise it", stream=streaming, sampling=Sampling(max_output_tokens=cut), **FORCED)
    assert turn.error is None
    assert turn.text == SAYS
    assert tokens(turn)[1] == cut
    assert all(not call.complete for call in turn.tool_calls)
    assert turn.finish_reason in (FinishReason.LENGTH, FinishReason.OTHER, FinishReason.TOOL_CALLS)


@every_route
@both_ways
def test_a_text_that_the_limit_cuts(server: LlamaServer, name: str, streaming: bool) -> None:
    turn = ask(server, name, "Hi", stream=streaming, sampling=Sampling(max_output_tokens=4))
    assert turn.error is None
    assert turn.text == "Wör"
    assert tokens(turn)[1] == 4


@every_route
@both_ways
def test_thinking_and_the_next_turn(thinking_server: LlamaServer, name: str, streaming: bool) -> None:
    turn = ask(thinking_server, name, "Hi", stream=streaming)
    assert turn.error is None
    assert [said(part) for part in turn.parts] == [(Thinking, THINKS), (Text, SAYS)]
    assert tokens(turn)[1] == answer_tokens(SAYS, thinks=True)
    then = ask(thinking_server, name, "Hi", turn.message, "And?", stream=streaming)
    assert then.error is None
    assert (then.thinking, then.text) == (THINKS, SAYS)


@every_route
@both_ways
def test_a_prompt_that_is_too_long(server: LlamaServer, name: str, streaming: bool) -> None:
    error = ask(server, name, "x" * 2 * CONTEXT, stream=streaming).error
    assert error is not None
    assert error.kind is ErrorKind.CONTEXT_LENGTH
    assert not error.retryable


@both_ways
def test_an_answer_by_a_schema(server: LlamaServer, streaming: bool) -> None:
    """Of the three APIs, llama.cpp keeps a schema on /v1/chat/completions only."""
    turn = ask(server, "llamacpp", "Is it on?", stream=streaming, response_schema=SCHEMA)
    assert turn.text == ARGUMENTS


class Switch(BaseModel):
    """What SCHEMA says."""

    on: bool


@pytest.mark.parametrize("mode", ["", "native"])
def test_an_answer_of_a_type_through_the_whole_runtime(server: LlamaServer, mode: str) -> None:
    """The schema becomes the server's grammar: this model, which says always the same, cannot but answer by it."""
    settings = Settings(model="llamacpp/tiny", base_url=f"{server.url}/v1", sampling=Sampling(max_output_tokens=50))
    with Runtime(settings) as runtime:
        reply = runtime.ask_sync("Is it on?", output=Annotated[Switch, Output(mode=mode)])
        assert reply.output == Switch(**json.loads(ARGUMENTS))
        parts = [item.value for item in runtime.stream_sync("?", output=Switch) if isinstance(item, PartialOutput)]
    assert parts[-1] == json.loads(ARGUMENTS)


@both_ways
def test_log_probabilities(server: LlamaServer, streaming: bool) -> None:
    """Each token is as good as certain."""
    sampling = Sampling(max_output_tokens=50, logprobs=2)
    turn = ask(server, "llamacpp", "Hi", stream=streaming, sampling=sampling)
    assert "".join(token.token for token in turn.logprobs) == SAYS
    for token in turn.logprobs:
        assert -1e-6 < token.logprob <= 0
        (_, best), (_, next_best) = token.top
        assert best == token.logprob
        assert next_best < -30


@pytest.mark.parametrize("name", ["llamacpp", "anthropic"])
@both_ways
def test_a_stop_sequence(server: LlamaServer, name: str, streaming: bool) -> None:
    turn = ask(server, name, "Hi", stream=streaming, sampling=Sampling(max_output_tokens=50, stop=("d 🎭",)))
    assert turn.text == "Wörl"
    assert turn.finish_reason is FinishReason.STOP


@every_route
def test_a_kept_connection_that_the_server_closed_fails_at_once(server: LlamaServer, name: str) -> None:
    """llama.cpp closes a kept connection after a stream, without a word: the next try on a new one is not late."""
    asked = ModelRequest("tiny", (UserMessage.of("Hi"),))
    for response in talk(server, name, asked, asked, asked):
        assert response.error is None or response.error.at_once
        assert response.error is not None or response.text == SAYS

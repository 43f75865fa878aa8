"""The official SDKs read the double over real HTTP: text and two calls, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.sdk_types import Lazy

from callboard.actors.testing.wire_double import Api, Call, Tokens, Turn, WireDouble

if TYPE_CHECKING:
    import anthropic
    import openai
    from google import genai
    from google.genai import types as genai_types
else:
    anthropic = Lazy("anthropic")
    openai = Lazy("openai")
    genai = Lazy("google.genai")
    genai_types = Lazy("google.genai.types")

CALLS = (Call("look", {"city": "Oslo", "days": 2}, "call_a"), Call("now", {}, "call_b"))
TURN = Turn("It rains \u2028 in 世界.", CALLS, usage=Tokens(20, 9, 4, 0, 3), fragment=3)


@dataclass(frozen=True)
class Seen:
    """What an SDK made of an answer."""

    text: str
    calls: list[tuple[str | None, str, Any]]
    tokens: tuple[int, int]


EXPECTED = Seen(TURN.text, [(call.id, call.name, call.arguments) for call in CALLS], (20, 9))


@pytest.fixture(scope="module")
def double() -> Iterator[WireDouble]:
    with WireDouble([TURN], by_turn=True) as double:
        yield double


def chat(double: WireDouble, streamed: bool) -> Seen:
    with openai.OpenAI(api_key="k", base_url=double.base_url(Api.CHAT), max_retries=0) as sdk:
        messages: list[Any] = [{"role": "user", "content": "Hi"}]
        if streamed:
            with sdk.chat.completions.stream(
                model="m", messages=messages, stream_options={"include_usage": True}
            ) as stream:
                final: Any = stream.get_final_completion()
        else:
            final = sdk.chat.completions.create(model="m", messages=messages)
    message, usage = final.choices[0].message, final.usage
    assert final.choices[0].finish_reason == "tool_calls"
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
    return Seen(message.content, calls, (usage.prompt_tokens, usage.completion_tokens))


def responses(double: WireDouble, streamed: bool) -> Seen:
    with openai.OpenAI(api_key="k", base_url=double.base_url(Api.RESPONSES), max_retries=0) as sdk:
        if streamed:
            with sdk.responses.stream(model="m", input="Hi") as stream:
                final: Any = stream.get_final_response()
        else:
            final = sdk.responses.create(model="m", input="Hi")
    assert final.status == "completed"
    items = [item for item in final.output if item.type == "function_call"]
    calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in items]
    return Seen(final.output_text, calls, (final.usage.input_tokens, final.usage.output_tokens))


def messages(double: WireDouble, streamed: bool) -> Seen:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Hi"}]}
    with anthropic.Anthropic(api_key="k", base_url=double.base_url(Api.ANTHROPIC), max_retries=0) as sdk:
        if streamed:
            with sdk.messages.stream(**asked) as stream:
                final: Any = stream.get_final_message()
        else:
            final = sdk.messages.create(**asked)
    assert final.stop_reason == "tool_use"
    text = "".join(block.text for block in final.content if block.type == "text")
    calls = [(block.id, block.name, block.input) for block in final.content if block.type == "tool_use"]
    # Anthropic counts the cache beside the input.
    return Seen(text, calls, (final.usage.input_tokens + 4, final.usage.output_tokens))


def gemini(double: WireDouble, streamed: bool) -> Seen:
    options = genai_types.HttpOptions(base_url=double.base_url(Api.GEMINI))
    with genai.Client(api_key="k", http_options=options) as sdk:
        if streamed:
            chunks: list[Any] = list(sdk.models.generate_content_stream(model="m", contents="Hi"))
        else:
            chunks = [sdk.models.generate_content(model="m", contents="Hi")]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    calls = [
        (part.function_call.id, part.function_call.name, part.function_call.args)
        for part in parts
        if part.function_call
    ]
    usage = chunks[-1].usage_metadata
    tokens = (usage.prompt_token_count, usage.candidates_token_count + usage.thoughts_token_count)
    return Seen("".join(part.text for part in parts if part.text), calls, tokens)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("sdk", [chat, responses, messages, gemini])
def test_the_sdk_reads_text_and_two_calls(
    double: WireDouble, sdk: Callable[[WireDouble, bool], Seen], streamed: bool
) -> None:
    assert sdk(double, streamed) == EXPECTED

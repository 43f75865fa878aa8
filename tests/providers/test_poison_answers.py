"""One value anywhere in a legal answer is made senseless: at worst that one call ends with an error event.

The whole way is gone: decoder, builder, cost, rate limit, and the turn sent back to its provider.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple
from support.examples import examples
from support.wire import answer, events, sse

from callboard.protocol.content import (
    AssistantMessage,
    Message,
    Replay,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
    not_finite,
)
from callboard.protocol.errors import ErrorKind, UsageError
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.limits import ANSWER_PART_BYTES, MAX_ANSWER_BYTES, MAX_CALL_COST, MAX_RETRY_AFTER_SECONDS
from callboard.protocol.model import Done, Error, ModelRequest, ModelResponse, Sampling, TextDelta, ThinkingDelta, Usage
from callboard.protocol.provider_options import ExtraFields
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.base_decoder import MAX_ERROR_BODY_BYTES
from callboard.providers.catalog import Catalog
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.http_errors import error_from_body
from callboard.providers.json_values import MAX_TOKEN_COUNT, canonical_arguments
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.openrouter import OpenRouter
from callboard.providers.rate_limit import MAX_BLOCK_SECONDS, RateLimiter
from callboard.providers.retry import RetryPolicy, retry_after_seconds

ADAPTERS: dict[str, Adapter] = {
    "openai/gpt-5": OpenAIResponses(),
    "openai-chat/gpt-4o": OpenAIChat(),
    "openrouter/x/y": OpenRouter(),
    "anthropic/claude-sonnet-4": Anthropic(),
    "gemini/gemini-2.5-pro": Gemini(),
}
_USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cost": 0.01,
          "prompt_tokens_details": {"cached_tokens": 1},
          "completion_tokens_details": {"reasoning_tokens": 1}}  # fmt: skip
_CHAT_CALL = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": "s"}}
_DETAIL = {"type": "reasoning.text", "index": 0, "text": "r", "signature": "s"}
_CHAT: list[Any] = [
    {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "x", "reasoning_details": [_DETAIL]}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [_CHAT_CALL]}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": _USAGE},
]
_ITEM = {"type": "function_call", "id": "i", "call_id": "c", "name": "f", "arguments": "{}"}
_SEARCH = {"type": "web_search_call", "id": "w", "action": {"query": "q"}, "encrypted_content": "e"}
ANSWERS: dict[str, list[Any]] = {
    "openai-chat/gpt-4o": _CHAT,
    "openrouter/x/y": _CHAT,
    "openai/gpt-5": [
        {"type": "response.created", "response": {"id": "r", "model": "g"}},
        {"type": "response.output_item.done", "output_index": 0,
         "item": {"type": "reasoning", "summary": [{"text": "s"}], "encrypted_content": "e"}},
        {"type": "response.output_text.delta", "output_index": 1, "content_index": 0, "delta": "x"},
        {"type": "response.output_item.done", "output_index": 2, "item": _SEARCH},
        {"type": "response.output_item.done", "output_index": 3, "item": _ITEM},
        {"type": "response.completed", "response": {"status": "completed", "model": "g", "usage": {
            "input_tokens": 3, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 1}}, "output": []}},
    ],
    "anthropic/claude-sonnet-4": [
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "t"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "server_tool_use", "input": {"q": 1}}},
        {"type": "content_block_stop", "index": 2},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ],
    "gemini/gemini-2.5-pro": [
        {"candidates": [{"index": 0, "content": {"parts": [{"text": "x", "thoughtSignature": "s"}]}}],
         "responseId": "r", "modelVersion": "g"},
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "id": "i", "args": {"a": 1.5}}}]}}]},
        {"candidates": [{"content": {"parts": [{"executableCode": {"code": "1"}}]}, "finishReason": "STOP"}],
         "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "thoughtsTokenCount": 1}},
    ],
}  # fmt: skip

#: JSON texts that make no sense where a count, a text or an object belongs.
POISON = ["null", "true", "-1", "0.5", "1e308", "-1e308", "1e400", "NaN", "-Infinity", "9" * 25, "9" * 5_000, '"12"',
          '""', '"\\ud800"', '"a\\ud83d"', "[]", "{}", "[null]", '[{"a": NaN}]', '{"a": {"b": -Infinity}}',
          "[" * 240 + "]" * 240, '{"a":' * 300 + "1" + "}" * 300, "[" * 3_000 + "]" * 3_000,
          f'"{"x" * 5_000}"']  # fmt: skip
MARK = "the poisoned place"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def poisoned(documents: list[Any], place: tuple[Any, ...], poison: str) -> bytes:
    """The stream with the value at `place` replaced by this JSON text."""
    copy = json.loads(json.dumps(documents))
    node = copy
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = MARK
    return sse(copy, done=True).replace(f'"{MARK}"'.encode(), poison.encode())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def go_on(adapter: Adapter, turn: ModelResponse) -> None:
    """The turn goes back to its provider; its incomplete calls too, as text."""
    results = [ToolMessage(call.call_id, call.name, call.arguments) for call in turn.tool_calls]
    history: tuple[Message, ...] = (UserMessage.of("Hi"), AssistantMessage(turn.parts), *results)
    orjson.loads(adapter.encode(ModelRequest("m", history)).body)


CASES = [(model, place) for model, documents in ANSWERS.items() for place in places(documents)]


@settings(deadline=None, max_examples=examples(500))
@given(st.sampled_from(CASES), st.sampled_from(POISON), st.sampled_from([1, 40, 65_536]))
def test_a_poisoned_answer_costs_one_call(case: tuple[str, tuple[Any, ...]], poison: str, size: int) -> None:
    model, place = case
    turn = answer(ADAPTERS[model], poisoned(ANSWERS[model], place, poison), [size])
    assert all(0 <= count <= 3 * MAX_TOKEN_COUNT for count in tokens(turn.usage))
    orjson.dumps(dict(turn.raw_usage))
    assert not_finite(turn.raw_usage) == ""
    provider, _, asked = model.partition("/")
    cost = Catalog().cost(provider, asked, turn.usage, turn.raw_usage, turn.model)
    assert cost is None or 0 <= cost < math.inf
    clock = Clock()
    limiter = RateLimiter(clock, 60, 1_000)
    assert limiter.acquire(100) == 0
    limiter.settle(100, turn.usage.total_tokens if turn.usage else 100)
    assert limiter.acquire(100) <= 120
    if turn.error is None:
        go_on(ADAPTERS[model], turn)


def tokens(usage: Usage | None) -> tuple[int, ...]:
    return () if usage is None else astuple(usage)


@pytest.mark.parametrize("model", ANSWERS)
@pytest.mark.parametrize("poison", ["NaN", "-5", '"12"', "1e300", "[]", "{}", "null", "9" * 20])
def test_senseless_usage_is_unknown_and_the_answer_is_kept(model: str, poison: str) -> None:
    places_of_usage = [p for m, p in CASES if m == model and {"usage", "usageMetadata"} & set(p)]
    assert places_of_usage
    whole = answer(ADAPTERS[model], sse(ANSWERS[model], done=True))
    for place in places_of_usage:
        turn = answer(ADAPTERS[model], poisoned(ANSWERS[model], place, poison))
        assert turn.error is None, place
        assert turn.parts == whole.parts


@pytest.mark.parametrize("cost", ["NaN", "-1", "1e300", '"free"', "true", "[]", str(MAX_CALL_COST + 1)])
def test_a_cost_that_makes_no_sense_is_not_believed(cost: str) -> None:
    turn = answer(OpenRouter(), poisoned(_CHAT, (2, "usage", "cost"), cost))
    assert turn.error is None
    assert Catalog().cost("openrouter", "x/y", turn.usage, turn.raw_usage) is None


@pytest.mark.parametrize("model", ANSWERS)
@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": [1e400]}', '{"a": -Infinity}'])
def test_arguments_with_numbers_that_json_has_not_are_never_run(model: str, text: str) -> None:
    assert canonical_arguments(text) == (text, False)
    place = {"gemini/gemini-2.5-pro": (1, "candidates", 0, "content", "parts", 0, "functionCall", "args"),
             "openai/gpt-5": (4, "item", "arguments"), "anthropic/claude-sonnet-4": (5, "delta", "partial_json")}.get(
        model, (1, "choices", 0, "delta", "tool_calls", 0, "function", "arguments"))  # fmt: skip
    turn = answer(ADAPTERS[model], poisoned(ANSWERS[model], place, text if "gemini" in model else json.dumps(text)))
    (call,) = turn.tool_calls
    assert not call.complete
    assert call.arguments.replace(" ", "") in (
        text.replace(" ", ""),
        text.replace(" ", "").replace("1e400", "Infinity"),
    )
    go_on(ADAPTERS[model], turn)


# Bounds


def endless(model: str, what: str) -> Iterator[bytes]:
    """A legal stream that goes on with more of the same."""
    if what == "text":
        piece: Any = {"openai/gpt-5": {"type": "response.output_text.delta", "output_index": 1, "delta": "y" * 4096},
            "anthropic/claude-sonnet-4": {"type": "content_block_delta", "index": 0,
                                          "delta": {"type": "thinking_delta", "thinking": "y" * 4096}},
            "gemini/gemini-2.5-pro": {"candidates": [{"content": {"parts": [{"text": "y" * 4096}]}}]}}.get(
                model, {"choices": [{"index": 0, "delta": {"content": "y" * 4096}}]})  # fmt: skip
        begin = ANSWERS[model][:2] if "anthropic" in model else []
        yield sse(begin)
        chunk = sse([piece] * 16)
        while True:
            yield chunk
    number = 0
    while True:
        number += 1
        part: Any = {
            "openai/gpt-5": {"type": "response.output_item.done", "output_index": number, "item": _SEARCH},
            "anthropic/claude-sonnet-4": {
                "type": "content_block_start",
                "index": number,
                "content_block": {"type": "text", "text": "z"},
            },
            "gemini/gemini-2.5-pro": {
                "candidates": [{"content": {"parts": [{"text": "z", "thoughtSignature": "s" * 40_000}]}}]
            },
        }.get(
            model,
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {
                            "tool_calls": [
                                {
                                    "index": number % 128,
                                    "id": f"c{number % 128}",
                                    "function": {"arguments": "1" * 40_000},
                                }
                            ]
                        },
                    }
                ]
            },
        )
        yield sse([part])  # fmt: skip


@pytest.mark.parametrize("model", ANSWERS)
@pytest.mark.parametrize("what", ["text", "parts"])
def test_an_answer_without_end_is_broken_off(model: str, what: str) -> None:
    decoder, size, parts = ADAPTERS[model].decoder(), 0, 0
    for chunk in endless(model, what):
        found = decoder.feed(chunk)
        size += sum(len(event.text) for event in found if isinstance(event, TextDelta | ThinkingDelta))
        parts += len(found)
        if found and isinstance(found[-1], Error):
            break
        assert not any(isinstance(event, Done) for event in found)
        assert size <= MAX_ANSWER_BYTES
        assert parts <= 2 * MAX_ANSWER_BYTES // ANSWER_PART_BYTES
    error = found[-1]
    assert isinstance(error, Error)
    assert error.kind is ErrorKind.MALFORMED
    assert not error.retryable
    assert "longer than" in error.message
    assert decoder.feed(chunk) == decoder.finish() == []


def test_the_bound_holds_for_a_whole_answer_too() -> None:
    message = {"content": "x" * (MAX_ANSWER_BYTES + 1)}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    (error,) = events(OpenAIChat(), body, streaming=False)
    assert isinstance(error, Error)
    assert (error.kind, error.retryable) == (ErrorKind.MALFORMED, False)


def test_an_answer_as_long_as_allowed_is_whole() -> None:
    text = "é" * (MAX_ANSWER_BYTES // 2 - ANSWER_PART_BYTES)
    stop = {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}
    turn = answer(OpenAIChat(), sse([{"choices": [stop]}], done=True))
    assert turn.error is None
    assert turn.text == text


def test_an_error_body_without_end_is_read_to_its_bound() -> None:
    decoder, fed = OpenAIChat().decoder(500), 0
    while not (found := decoder.feed(b"<p>sorry</p>" * 500)):
        fed += 6_000
        assert fed < 2 * MAX_ERROR_BODY_BYTES
    (error,) = found
    assert isinstance(error, Error)
    assert (error.kind, error.status) == (ErrorKind.SERVER, 500)
    assert decoder.finish() == []


@pytest.mark.parametrize(
    "body", [[], [[]], [None], ["x"], [{"error": [1]}], {"error": [[{}]]}, {"error": 5}, 7, "t", None]
)
def test_an_error_body_of_any_shape(body: Any) -> None:
    error = error_from_body("openai", 429, {}, json.dumps(body).encode())
    assert (error.kind, error.status) == (ErrorKind.RATE_LIMITED, 429)
    assert error.message


# Waits


GARBAGE = ["", "nan", "inf", "-inf", "1e400", "-5", "soon", "9" * 400, "9" * 400 + "s", "0x10", "1e9", "1000000000",
           "Thu, 32 Foo 99999 99:99:99 GMT", "9999-12-31T23:59:59+23:59", "0001-01-01T00:00:00-23:59", "\x00", "१२",
           "1,000"]  # fmt: skip
HEADERS = ["retry-after", "retry-after-ms", "date", "x-should-retry", "x-ratelimit-limit-requests",
           "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "x-ratelimit-remaining-tokens",
           "x-ratelimit-limit-tokens", "x-ratelimit-reset-tokens", "anthropic-ratelimit-tokens-remaining",
           "anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-reset", "x-ratelimit-reset",
           "x-ratelimit-remaining"]  # fmt: skip
garbage = st.sampled_from(GARBAGE) | st.text(max_size=6) | st.floats().map(str) | st.integers().map(str)


@given(st.lists(st.tuples(st.sampled_from([200, 429, 500]), st.dictionaries(st.sampled_from(HEADERS), garbage))))
def test_no_header_closes_a_limiter_for_long(answers: list[tuple[int, dict[str, str]]]) -> None:
    clock = Clock()
    limiter = RateLimiter(clock, 60, 600)
    for status, headers in answers:
        limiter.on_headers(status, headers)
        error = error_from_body("openai", max(status, 400), headers, b"{}")
        assert error.retry_after is None or 0 <= error.retry_after < math.inf
    clock.now += MAX_BLOCK_SECONDS + 120
    limiter.on_headers(200, {"x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "60",
                             "x-ratelimit-limit-tokens": "600", "x-ratelimit-remaining-tokens": "600"})  # fmt: skip
    clock.now += 120
    assert limiter.acquire(10) == 0, "the limits are the configured ones again"


def pause_after(error: Error) -> float | None:
    tries = RetryPolicy().tries(2, float("inf"), lambda: 0.0)
    tries.begin()
    return tries.failed(error)


@pytest.mark.parametrize("value", ["1000000000", "86400", "61", "1e12"])
def test_a_wait_past_the_cap_is_told_and_not_kept(value: str) -> None:
    error = error_from_body("openai", 429, {"retry-after": value}, b'{"error": {"message": "Too busy."}}')
    assert error.retry_after == float(value) > MAX_RETRY_AFTER_SECONDS
    assert pause_after(error) is None
    assert "Too busy." in error.message
    assert f"asks to wait {float(value):,.0f} s; callboard waits 60 s at most" in error.message


def test_a_short_wait_is_kept_and_not_told() -> None:
    error = error_from_body("openai", 429, {"retry-after": "5"}, b'{"error": {"message": "Too busy."}}')
    assert error.message == "Too busy."
    assert (pause_after(error) or 0) >= 5
    assert retry_after_seconds({"retry-after": "1000000000"}) == 1e9


# What we send


NAN = float("nan")
CALL = ToolCall(CallId("c"), ToolName("f"), '{"a": NaN}')


def request_of(**fields: Any) -> ModelRequest:
    return ModelRequest("m", fields.pop("messages", (UserMessage.of("Hi"),)), **fields)


BAD_REQUESTS = {
    "arguments": request_of(messages=(UserMessage.of("Hi"), AssistantMessage((CALL,)),
                                      ToolMessage(CallId("c"), ToolName("f"), "r"))),
    "schema": request_of(tools=(ToolDefinition(ToolName("f"), "", {"type": "object", "properties": {
        "x": {"type": "number", "minimum": NAN}}}),)),
    "answer's schema": request_of(response_schema={"type": "object", "properties": {"x": {"const": math.inf}}}),
    "options": request_of(provider_options=(ExtraFields({"extra": {"bias": [1, NAN]}}),)),
    "sampling": request_of(sampling=Sampling(temperature=NAN)),
}  # fmt: skip


@pytest.mark.parametrize("model", ADAPTERS)
@pytest.mark.parametrize("where", BAD_REQUESTS)
def test_nan_is_refused_by_name(model: str, where: str) -> None:
    with pytest.raises(UsageError, match="temperature" if where == "sampling" else "not a finite number"):
        ADAPTERS[model].encode(BAD_REQUESTS[where])


@pytest.mark.parametrize("model", ADAPTERS)
def test_nan_in_a_result_is_text(model: str) -> None:
    call = ToolCall(CallId("c"), ToolName("f"), "{}")
    for content in ('{"mean": NaN}', "NaN", '{"a": "\\ud800"}', "[" * 2_000):
        for is_error in (False, True):
            result = ToolMessage(CallId("c"), ToolName("f"), content, is_error)
            body = ADAPTERS[model].encode(
                request_of(messages=(UserMessage.of("Hi"), AssistantMessage((call,)), result))
            )
            assert json.dumps(content)[1:-1].encode() in body.body


@pytest.mark.parametrize("model", ADAPTERS)
def test_half_of_a_surrogate_pair_is_a_usage_error_or_goes_out_whole(model: str) -> None:
    for request in (
        request_of(messages=(UserMessage.of("a\ud800"),)),
        request_of(
            messages=(UserMessage.of("Hi"), AssistantMessage((Text("\udfff", Replay("gemini", {"x": "\ud800"})),)))
        ),
        request_of(tools=(ToolDefinition(ToolName("f"), "\ud800"),)),
    ):
        with pytest.raises(UsageError, match="cannot be written as JSON"):
            ADAPTERS[model].encode(request)
    cut_off = ToolCall(CallId("c"), ToolName("f"), '{"a": "\ud800', complete=False)
    results = (ToolMessage(CallId("c"), ToolName("f"), "r"),)
    ADAPTERS[model].encode(request_of(messages=(UserMessage.of("Hi"), AssistantMessage((cut_off,)), *results)))

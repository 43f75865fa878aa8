"""What all decoders do alike: usage that is true or unknown, and what an answer's head says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wire import answer, body, sse

from callboard.protocol.content import Image, Media, UserMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.limits import MAX_ANSWER_BYTES
from callboard.protocol.model import ModelResponse, Usage
from callboard.protocol.step import is_too_long
from callboard.providers import base_decoder
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.json_values import Json, count_at, usage_of
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import build_response

counts = st.none() | st.integers(0, 30)
DETAILS = ("cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "reasoning_tokens", "input_audio_tokens",
           "output_audio_tokens", "output_image_tokens")  # fmt: skip


@given(counts, counts, st.fixed_dictionaries(dict.fromkeys(DETAILS, counts)))
def test_usage_satisfies_its_definition_or_is_unknown(
    asked: int | None, answered: int | None, details: dict[str, Any]
) -> None:
    usage = usage_of(input_tokens=asked, output_tokens=answered, **details)
    if usage is None:
        return
    assert (usage.input_tokens, usage.output_tokens) == (asked or 0, answered or 0)
    assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens
    assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
    assert max(usage.reasoning_tokens, usage.output_audio_tokens, usage.output_image_tokens) <= usage.output_tokens


def test_what_is_not_said_is_unknown() -> None:
    assert usage_of(input_tokens=None, output_tokens=None, cached_tokens=3) is None
    assert usage_of(input_tokens=0, output_tokens=None) == Usage()
    assert usage_of(input_tokens=2, output_tokens=1, cached_tokens=3) is None


@pytest.mark.parametrize("value", ["12", True, -1, float("nan"), float("inf"), 10**12, [], None])
def test_a_count_that_cannot_be_one_is_unknown(value: Json) -> None:
    assert count_at({"n": value}, "n") is None
    assert count_at({}, "n") is None


@pytest.mark.parametrize("name", ["x-request-id", "Request-Id", "apim-request-id"])
@pytest.mark.parametrize("status", [200, 500])
def test_the_providers_id_of_the_request_is_on_answers_and_errors(name: str, status: int) -> None:
    decoder = OpenAIChat().decoder(status, {name: "req_1"})
    told = [{"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}]
    response = build_response([*decoder.feed(sse(told, done=True)), *decoder.finish()])
    assert response.provider_request_id == "req_1"
    assert response.error is None or response.error.provider_request_id == "req_1"


def pictures(*sizes: int) -> bytes:
    """An answer of Gemini's with a picture of so many characters of base64 each."""
    parts = [{"inlineData": {"mimeType": "image/png", "data": "A" * size}} for size in sizes]
    return json.dumps({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}).encode()


def test_a_picture_may_be_larger_than_any_text() -> None:
    size = MAX_ANSWER_BYTES + 4
    turn = answer(Gemini(), pictures(size), streaming=False)
    assert turn.error is None
    assert [len(part.data_base64) for part in turn.parts if isinstance(part, Image)] == [size]
    assert not is_too_long(turn)


def test_pictures_without_end_are_broken_off() -> None:
    stream = b"".join(b"data: " + pictures(MAX_ANSWER_BYTES) + b"\n\n" for _ in range(9))
    error = answer(Gemini(), stream, (1024 * 1024,)).error
    assert error is not None
    assert error.kind is ErrorKind.MALFORMED


def test_fields_without_end_beside_the_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_decoder, "MAX_RESPONSE_BYTES", 10_000)
    long = "x" * 100
    deltas = [{"type": "message_delta", "delta": {}, "usage": {f"k{n}": long}} for n in range(200)]
    turn = answer(Anthropic(), sse([{"type": "message_start", "message": {}}, *deltas], named=True))
    assert turn.error is not None
    assert "more than 10000 bytes" in turn.error.message
    turn = answer(Gemini(), sse([{"usageMetadata": {f"k{n}": long}} for n in range(200)]))
    assert turn.error is not None
    assert "more than 10000 bytes" in turn.error.message


def test_sources_without_end_are_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_decoder, "MAX_RESPONSE_BYTES", 10_000)
    found = [{"candidates": [{"groundingMetadata": {f"k{n}": "x" * 100}}]} for n in range(200)]
    turn = answer(
        Gemini(), sse([*found, {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}]}])
    )
    assert (turn.text, turn.error) == ("Hi", None)
    assert [note for note in turn.notes if note.startswith("the sources of the answer: cannot be read")]


def gemini_said(*parts: dict[str, Any]) -> ModelResponse:
    return answer(Gemini(), sse([{"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}]))


def chat_said(**message: Any) -> ModelResponse:
    document = {"choices": [{"message": {"content": "Hi", **message}, "finish_reason": "stop"}]}
    return answer(OpenAIChat(), json.dumps(document).encode(), streaming=False)


def responses_said(*items: dict[str, Any]) -> ModelResponse:
    said = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}
    document = {"status": "completed", "output": [*items, said]}
    return answer(OpenAIResponses(), json.dumps(document).encode(), streaming=False)


@pytest.mark.parametrize(
    "turn",
    [
        lambda: gemini_said({"inlineData": {"mimeType": "image/png"}}, {"text": "Hi"}),
        lambda: gemini_said({"inlineData": {"mimeType": "image/png", "data": "!!!!"}}, {"text": "Hi"}),
        lambda: gemini_said({"fileData": {"mimeType": "video/mp4"}}, {"text": "Hi"}),
        lambda: chat_said(images=[{"image_url": {"url": "data:image/png;base64,AAA"}}]),
        lambda: chat_said(audio={"id": "a", "data": "!!!!####"}),
        lambda: responses_said({"type": "image_generation_call", "id": "g", "result": "not base64"}),
    ],
)
def test_media_that_no_request_could_carry_is_left_out_and_noted(turn: Callable[[], ModelResponse]) -> None:
    found = turn()
    assert (found.text, found.error) == ("Hi", None)
    assert not [part for part in found.parts if isinstance(part, Media)]
    assert [note for note in found.notes if note.startswith("media: ")]
    for adapter in (Gemini(), OpenAIChat(), OpenAIResponses()):
        assert body(adapter, UserMessage.of("Draw"), found.message, UserMessage.of("Again"))

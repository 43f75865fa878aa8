"""A model that refuses, piece by piece, over each wire API: what the reader sees, and how the request ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from support.shared_double import shared_double

from callboard.actors.requests.replies import Reply, RequestEnded
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.testing.wire_double import Api, RawAnswer
from callboard.protocol.commands import Outcome
from callboard.protocol.model import TextDelta

APIS = {
    "openai-compatible/m": Api.CHAT,
    "openai/m": Api.RESPONSES,
    "anthropic/m": Api.ANTHROPIC,
    "gemini/m": Api.GEMINI,
}
WORDS = ("I cannot ", "help ", "with that.")


def chunk(delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def sse(*documents: Any) -> str:
    return "".join(f"data: {doc if isinstance(doc, str) else json.dumps(doc)}\n\n" for doc in documents)


def chat(*words: str) -> list[Any]:
    said = [chunk({"role": "assistant"}), *(chunk({"refusal": word}) for word in words)]
    return [*said, chunk({}, "stop"), "[DONE]"]


def responses(*words: str) -> list[Any]:
    place = {"output_index": 0, "content_index": 0}
    refusal = {"type": "refusal", "refusal": "".join(words)}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [refusal]}
    response = {"id": "resp_1", "model": "m", "status": "completed", "output": [item]}
    return [
        {"type": "response.created", "response": {"id": "resp_1", "model": "m", "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        *({"type": "response.refusal.delta", **place, "delta": word} for word in words),
        {"type": "response.refusal.done", **place, "refusal": "".join(words)},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]


def anthropic(*words: str) -> list[Any]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    block: list[Any] = []
    if words:
        deltas = [{"type": "text_delta", "text": word} for word in words]
        block = [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
            {"type": "content_block_stop", "index": 0},
        ]
    return [
        {"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": usage}},
        *block,
        {"type": "message_delta", "delta": {"stop_reason": "refusal"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def gemini(*words: str) -> list[Any]:
    said = [{"candidates": [{"content": {"parts": [{"text": word}], "role": "model"}, "index": 0}]} for word in words]
    return [*said, {"candidates": [{"content": {}, "finishReason": "SAFETY", "index": 0}]}]


async def ask(model: str, documents: list[Any]) -> tuple[list[str], Reply]:
    """The pieces that a reader saw, and the reply; of a request that was not answered, the one of its error."""
    seen: list[str] = []
    with shared_double([RawAnswer(sse(*documents), headers={"content-type": "text/event-stream"})]) as server:
        settings = Settings(model=model, base_url=server.base_url(APIS[model]), api_key="a-key")
        async with Runtime(settings) as runtime:
            try:
                async for event in runtime.stream("go"):
                    if isinstance(event, TextDelta):
                        seen.append(event.text)
                    elif isinstance(event, Reply):
                        return seen, event
            except RequestEnded as ended:
                return seen, ended.reply
    raise AssertionError("the stream had no end")


@pytest.mark.parametrize(
    ("model", "speak"),
    [("openai-compatible/m", chat), ("openai/m", responses), ("anthropic/m", anthropic)],
)
async def test_a_streamed_refusal_is_read_along_and_named_in_the_reply(model: str, speak: Any) -> None:
    seen, reply = await ask(model, speak(*WORDS))
    assert seen == list(WORDS)
    assert (reply.outcome, reply.text, reply.reason) == (Outcome.ANSWERED, "".join(WORDS), "The model refused.")
    assert reply.messages[-1].text == "".join(WORDS)  # type: ignore[union-attr]


async def test_a_refusal_without_words_is_no_answer() -> None:
    seen, reply = await ask("anthropic/m", anthropic())
    assert seen == []
    assert (reply.outcome, reply.reason) == (Outcome.FAILED, "The model refused.")


async def test_an_answer_that_a_filter_stops_keeps_what_was_read_and_fails() -> None:
    seen, reply = await ask("gemini/m", gemini(*WORDS))
    assert seen == list(WORDS)
    stopped = "The provider's content filter stopped the answer."
    assert (reply.outcome, reply.text, reply.reason) == (Outcome.FAILED, "".join(WORDS), stopped)
    assert reply.messages[-1].text == "".join(WORDS)  # type: ignore[union-attr]

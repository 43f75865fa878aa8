"""The same bytes, read by us and by the official SDKs' own helpers, where these are right."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import httpx2
import pytest
from support.sdk_types import Lazy
from support.wire import answer, sse

from callboard.protocol.model import ModelResponse
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses

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

ARGUMENTS = '{"city": "Rome", "note": "h\\u00e9 \\"x\\""}'


HEADERS = {"content-type": "text/event-stream"}


def client(body: bytes) -> httpx2.Client:
    """An HTTP client that gets this stream for an answer, whatever it asks."""
    answer = httpx2.Response(200, headers=HEADERS, content=body)
    return httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))


def anthropic_stream() -> bytes:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
    }
    documents: list[dict[str, Any]] = [{"type": "message_start", "message": {**message, "usage": usage}}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [{"type": "thinking_delta", "thinking": "Hm"}, {"type": "signature_delta", "signature": "c2ln"}],
        ),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in ("Look", "ing\u2028", ".🎭")],
        ),
        (
            {"type": "tool_use", "id": "t1", "name": "lookup", "input": {}},
            [{"type": "input_json_delta", "partial_json": piece} for piece in ("", ARGUMENTS[:9], ARGUMENTS[9:])],
        ),
        (
            {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
            [{"type": "input_json_delta", "partial_json": ""}],
        ),
    ]
    for index, (block, deltas) in enumerate(blocks):
        documents.append({"type": "content_block_start", "index": index, "content_block": block})
        documents += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        documents.append({"type": "content_block_stop", "index": index})
    end = {"delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 42}}
    documents += [{"type": "message_delta", **end}, {"type": "message_stop"}]
    return sse(documents, named=True)


def told(turn: ModelResponse) -> dict[str, Any]:
    return {
        "text": turn.text,
        "thinking": turn.thinking,
        "calls": [(call.name, json.loads(call.arguments)) for call in turn.tool_calls],
        "ids": [call.call_id for call in turn.tool_calls],
        "reason": turn.raw_finish_reason,
        "model": turn.model,
    }


def test_anthropic() -> None:
    body = anthropic_stream()
    sdk = anthropic.Anthropic(api_key="k", http_client=client(body))
    with sdk.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]) as stream:
        final = stream.get_final_message()
    thinking, *_ = [block for block in final.content if block.type == "thinking"]
    calls = [block for block in final.content if block.type == "tool_use"]
    turn = answer(Anthropic(), body)
    assert told(turn) == {
        "text": "".join(block.text for block in final.content if block.type == "text"),
        "thinking": thinking.thinking,
        "calls": [(block.name, block.input) for block in calls],
        "ids": [block.id for block in calls],
        "reason": final.stop_reason,
        "model": final.model,
    }
    assert turn.parts[0].replay is not None
    assert turn.parts[0].replay.data["signature"] == thinking.signature
    assert turn.usage.output_tokens == final.usage.output_tokens
    assert turn.usage.input_tokens == final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)


def responses_stream() -> bytes:
    documents: list[dict[str, Any]] = []
    response = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt",
        "status": "in_progress",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }

    def say(kind: str, index: int, **more: Any) -> None:
        documents.append({"type": f"response.{kind}", "output_index": index, **more})

    reasoning = {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    content = [{"type": "output_text", "text": "Looking.", "annotations": []}]
    message = {"id": "msg", "type": "message", "role": "assistant", "status": "completed", "content": content}
    call = {"id": "fc", "type": "function_call", "call_id": "c1", "name": "lookup", "arguments": ARGUMENTS}
    place: dict[str, Any] = {"item_id": "msg", "content_index": 0}
    documents.append({"type": "response.created", "response": response})
    say("output_item.added", 0, item={**reasoning, "summary": []})
    say("reasoning_summary_text.delta", 0, item_id="rs", summary_index=0, delta="Hm")
    say("output_item.done", 0, item=reasoning)
    say("output_item.added", 1, item={**message, "content": []})
    say("content_part.added", 1, **place, part={"type": "output_text", "text": "", "annotations": []})
    for piece in ("Look", "ing."):
        say("output_text.delta", 1, **place, delta=piece, logprobs=[])
    say("output_text.done", 1, **place, text="Looking.", logprobs=[])
    say("output_item.done", 1, item=message)
    say("output_item.added", 2, item={**call, "arguments": ""})
    for piece in (ARGUMENTS[:9], ARGUMENTS[9:]):
        say("function_call_arguments.delta", 2, item_id="fc", delta=piece)
    say("function_call_arguments.done", 2, item_id="fc", arguments=ARGUMENTS)
    say("output_item.done", 2, item=call)
    usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 9, "total_tokens": 29}
    whole = {**response, "status": "completed", "output": [reasoning, message, call], "usage": usage}
    documents.append({"type": "response.completed", "response": whole})
    return sse(({**document, "sequence_number": i} for i, document in enumerate(documents)), named=True)


def test_openai_responses() -> None:
    body = responses_stream()
    sdk = openai.OpenAI(api_key="k", http_client=client(body))
    with sdk.responses.stream(model="m", input="Hi") as stream:
        final = stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    summaries = [part.text for item in final.output if item.type == "reasoning" for part in item.summary]
    turn = answer(OpenAIResponses(), body)
    assert told(turn) == {
        "text": final.output_text,
        "thinking": "".join(summaries),
        "calls": [(item.name, json.loads(item.arguments)) for item in calls],
        "ids": [item.call_id for item in calls],
        "reason": final.status,
        "model": final.model,
    }
    assert final.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (final.usage.input_tokens, final.usage.output_tokens)


def gemini_stream() -> bytes:
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 12}

    def chunk(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini"}

    return sse(
        [
            chunk({"text": "Hm", "thought": True}),
            chunk({"text": "Look"}),
            chunk({"text": "ing\u2028🎭"}),
            chunk({"functionCall": {"id": "g1", "name": "lookup", "args": json.loads(ARGUMENTS)}}, finishReason="STOP"),
        ],
        newline="\r\n",
    )


def test_gemini() -> None:
    body = gemini_stream()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, headers=HEADERS, content=body))
    options = genai_types.HttpOptions(httpx_client=httpx.Client(transport=transport))
    with genai.Client(api_key="k", http_options=options) as sdk:
        chunks = list(sdk.models.generate_content_stream(model="m", contents="Hi"))
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]  # type: ignore[index, union-attr]
    calls = [part.function_call for part in parts if part.function_call]
    turn = answer(Gemini(), body)
    assert told(turn) == {
        "text": "".join(part.text for part in parts if part.text and not part.thought),
        "thinking": "".join(part.text for part in parts if part.text and part.thought),
        "calls": [(call.name, call.args) for call in calls],
        "ids": [call.id for call in calls],
        "reason": "STOP",
        "model": chunks[-1].model_version,
    }
    usage = chunks[-1].usage_metadata
    assert usage is not None
    assert turn.usage.output_tokens == (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)


@pytest.mark.parametrize("adapter", [Anthropic(), OpenAIResponses(), Gemini()])
def test_every_byte_alone_tells_the_same(adapter: Any) -> None:
    body = {"anthropic": anthropic_stream, "openai": responses_stream, "gemini": gemini_stream}[adapter.name]()
    assert answer(adapter, body, [1]) == answer(adapter, body)

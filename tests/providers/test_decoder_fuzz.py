"""Whatever the bytes: no exception, exactly one end, bounded errors. Deep runs: CALLBOARD_FUZZ_ROUNDS=1000000."""

from __future__ import annotations

import json
import os
from random import Random, SystemRandom
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wire import answer, cut, sse

from callboard.protocol.limits import ERROR_SNIPPET_CHARS
from callboard.protocol.model import Done, Error
from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses
from callboard.providers.response_builder import build_response

ADAPTERS: dict[str, Adapter] = {
    "anthropic": Anthropic(),
    "responses": OpenAIResponses(),
    "gemini": Gemini(),
    "chat": OpenAIChat(),
}
DEEP = "CALLBOARD_FUZZ_ROUNDS" in os.environ
ROUNDS = int(os.environ.get("CALLBOARD_FUZZ_ROUNDS", "1500"))

#: The words of all four APIs, so that what is thrown at one is nearly right for it.
_FIELDS = """
type index delta content content_block message usage id name text thinking signature partial_json input arguments item
output_index content_index summary_index item_id call_id output response status error code role choices tool_calls
function finish_reason candidates parts functionCall args partialArgs jsonPath stringValue willContinue thought
thoughtSignature finishReason promptFeedback blockReason usageMetadata promptTokenCount summary phase encrypted_content
incomplete_details reason refusal stop_reason input_tokens output_tokens data responseId reasoning_details numberValue
boolValue nullValue functionResponse executableCode input_tokens_details annotation annotations logprobs token logprob
top_logprobs url action queries result output_format namespace caller sequence_number service_tier
"""
_VALUES = """
message_start message_delta message_stop content_block_start content_block_delta content_block_stop ping error
text_delta thinking_delta signature_delta input_json_delta compaction_delta text thinking redacted_thinking tool_use
server_tool_use mcp_tool_use response.created response.output_item.added response.output_item.done
response.output_text.delta
response.output_text.done response.refusal.delta response.refusal.done response.function_call_arguments.delta
response.function_call_arguments.done response.reasoning_summary_text.delta response.reasoning_text.delta
response.output_text.annotation.added response.content_part.added response.reasoning_summary_part.added response.done
response.error image_generation_call compaction url_citation
response.reasoning_text.done response.completed response.incomplete response.failed message reasoning function_call
web_search_call output_text completed incomplete max_tokens end_turn STOP MAX_TOKENS MALFORMED_FUNCTION_CALL SAFETY $.a
$.a[1].b $['x'] $ $[0] tool_calls stop length {} {"a":1} {"a":
"""
FIELDS, VALUES = _FIELDS.split(), _VALUES.split()


def random_json(dice: Random, depth: int = 0) -> Any:
    """A document of known words in unknown places."""
    kind = dice.randrange(10 if depth < 5 else 6)
    if kind < 3:
        return dice.choice(VALUES)
    if kind == 3:
        return dice.choice([0, 1, -1, 2**70, 1.5, 10**9])
    if kind == 4:
        return dice.choice([None, True, False, "", "\ud800", "é\u2028"])
    if kind == 5:
        return []
    if kind == 6:
        return [random_json(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {dice.choice(FIELDS): random_json(dice, depth + 1) for _ in range(dice.randrange(6))}


def mutate(dice: Random, value: Any) -> Any:
    """`value` with something in it replaced, removed or doubled."""
    if dice.random() < 0.08:
        return random_json(dice, 3)
    if isinstance(value, dict):
        return {key: mutate(dice, child) for key, child in value.items() if dice.random() > 0.04}
    if isinstance(value, list):
        return [mutate(dice, child) for child in value for _ in range(dice.choice([1, 1, 1, 1, 0, 2]))]
    return value


def _block(index: int, block: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _item(index: int, item: dict[str, Any], event: str, **delta: Any) -> list[dict[str, Any]]:
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        {"type": f"response.{event}.delta", "output_index": index, **delta},
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def _candidate(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **more}], "usageMetadata": {"promptTokenCount": 3}}


_INPUT = {"type": "input_json_delta", "partial_json": "{}"}
_SIGNED = {"type": "signature_delta", "signature": "s"}
_PIECE = {"partialArgs": [{"jsonPath": "$.a[1]", "stringValue": "v"}], "willContinue": True}
_CHAT_CALL = {"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}
CORPUS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 1}}},
        *_block(0, {"type": "thinking"}, {"type": "thinking_delta", "thinking": "t"}, _SIGNED),
        *_block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "x"}),
        *_block(2, {"type": "tool_use", "id": "t", "name": "f", "input": {}}, _INPUT),
        *_block(3, {"type": "server_tool_use", "id": "s", "name": "w"}, _INPUT),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "r", "model": "g"}},
        *_item(0, {"type": "reasoning", "summary": []}, "reasoning_summary_text", summary_index=0, delta="s"),
        *_item(1, {"type": "message", "phase": "p"}, "output_text", content_index=0, delta="x"),
        *_item(2, {"type": "function_call", "call_id": "c", "name": "f"}, "function_call_arguments", delta="{}"),
        {"type": "response.completed", "response": {"status": "completed", "usage": {"input_tokens": 1}, "output": []}},
    ],
    "gemini": [
        _candidate({"text": "x", "thought": True}, {"text": "", "thoughtSignature": "s"}),
        _candidate({"functionCall": {"name": "f", "willContinue": True}}),
        _candidate({"functionCall": _PIECE}),
        _candidate({"functionCall": {}}, finishReason="STOP"),
    ],
    "chat": [
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "x"}}]},
        {"choices": [{"delta": {"tool_calls": [_CHAT_CALL]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1}},
    ],
}


def check(api: str, body: bytes, sizes: list[int], status: int, streaming: bool) -> None:
    decoder = ADAPTERS[api].decoder(status, {"content-type": "text/event-stream"}, streaming)
    found = [event for chunk in cut(body, sizes) for event in decoder.feed(chunk)]
    found += decoder.finish()
    ends = [event for event in found if isinstance(event, Done | Error)]
    assert len(ends) == 1
    assert found[-1] is ends[0]
    if isinstance(ends[0], Error):
        assert len(ends[0].raw) <= ERROR_SNIPPET_CHARS
        assert len(ends[0].message) <= 4 * ERROR_SNIPPET_CHARS
    turn = build_response(found)
    assert all(isinstance(json.loads(call.arguments), dict) for call in turn.tool_calls if call.complete)
    assert isinstance(turn.text + turn.thinking, str)


def fuzz_once(dice: Random) -> None:
    api = dice.choice(tuple(ADAPTERS))
    documents = [mutate(dice, document) for document in CORPUS[api]]
    if dice.random() < 0.1:
        documents = [random_json(dice) for _ in range(3)]
    body = sse_of(dice, documents)
    if dice.random() < 0.2 and body:
        place = dice.randrange(len(body))
        body = body[:place] + dice.randbytes(dice.randrange(4)) + body[place + dice.randrange(3) :]
    sizes = [dice.choice([1, 7, 100, 10_000]) for _ in range(3)]
    check(api, body, sizes, dice.choice([200, 200, 200, 400, 429, 500]), dice.random() < 0.8)


def sse_of(dice: Random, documents: list[Any]) -> bytes:
    text = [json.dumps(document) for document in documents]
    shape = dice.randrange(4)
    if shape == 0:
        return ("[" + ",\n".join(text) + "]").encode()
    if shape == 1:
        return dice.choice(text or ["{}"]).encode()
    return "".join(f"data: {line}\n\n" for line in text).encode()


@pytest.mark.parametrize("api", ADAPTERS)
def test_any_bytes(api: str) -> None:
    lines = st.sampled_from(
        [
            b"data: ",
            b"data:",
            b"event: error\n",
            b"\n\n",
            b"[",
            b"{",
            b"}",
            b"<html>",
            b": ping\n",
            b"\r\n",
            b'"',
            b"\\",
        ]
    )

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.one_of(lines, st.binary(max_size=8)), max_size=12).map(b"".join),
        st.sampled_from([200, 404]),
        st.booleans(),
    )
    def any_bytes(body: bytes, status: int, streaming: bool) -> None:
        check(api, body, [3], status, streaming)

    any_bytes()


def test_nearly_right_documents() -> None:
    seed = SystemRandom().getrandbits(32) if DEEP else 20261121
    for number in range(ROUNDS):
        # A failure names what to hand to fuzz_once to see it again.
        fuzz_once(Random(f"{seed}/{number}"))


def test_the_corpus_is_legal() -> None:
    for api, documents in CORPUS.items():
        turn = answer(ADAPTERS[api], sse(documents))
        assert turn.error is None, api
        assert turn.tool_calls, api

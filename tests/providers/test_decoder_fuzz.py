"""Whatever the bytes: no exception, exactly one end, bounded errors. Deep runs: CALLBOARD_FUZZ_ROUNDS=1000000."""

from __future__ import annotations

import json
import os
from random import Random, SystemRandom
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.turns import Manner, Part, Turn, Wire
from support.wire import answer, cut, usage_is_true
from support.wires import WIRES

from callboard.protocol.limits import ERROR_SNIPPET_CHARS
from callboard.protocol.model import Done, Error
from callboard.providers.adapter import Adapter
from callboard.providers.response_builder import build_response

ADAPTERS: dict[str, Adapter] = {api: wire.adapter for api, wire in WIRES.items()}
DEEP = "CALLBOARD_FUZZ_ROUNDS" in os.environ
ROUNDS = int(os.environ.get("CALLBOARD_FUZZ_ROUNDS", "1500"))

#: The words of all four APIs, so that what is thrown at one is nearly right for it.
_FIELDS = """
type index delta content content_block message usage id name text thinking signature partial_json input arguments item
output_index content_index summary_index item_id call_id output response status error code role choices tool_calls
function finish_reason candidates parts functionCall args partialArgs jsonPath stringValue willContinue thought
thoughtSignature finishReason promptFeedback blockReason usageMetadata promptTokenCount summary phase encrypted_content
incomplete_details reason refusal stop_reason input_tokens output_tokens data responseId reasoning_details numberValue
boolValue nullValue functionResponse executableCode codeExecutionResult inlineData mimeType groundingMetadata
groundingChunks groundingSupports segment startIndex endIndex web uri title input_tokens_details output_tokens_details
cached_tokens prompt_tokens completion_tokens total_tokens cache_read_input_tokens cache_creation_input_tokens
cachedContentTokenCount candidatesTokenCount thoughtsTokenCount totalTokenCount citations citation cited_text url
document_index start_char_index annotations annotation annotation_index url_citation start_index end_index audio
transcript images image_url action query result logprobs top_logprobs token logprob bytes service_tier x_groq
queries output_format namespace caller sequence_number
base_resp status_code status_msg detail msg loc errors details violations quotaId
"""
_VALUES = """
message_start message_delta message_stop content_block_start content_block_delta content_block_stop ping error
text_delta thinking_delta signature_delta input_json_delta compaction_delta text thinking redacted_thinking tool_use
server_tool_use mcp_tool_use web_search_tool_result citations_delta web_search_result_location char_location
url_citation image_generation_call code_interpreter_call mcp_call response.output_text.annotation.added
response.image_generation_call.partial_image iVBORw0KGgo= image/png
response.created response.output_item.added response.output_item.done
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


def _documents(wire: Wire) -> list[dict[str, Any]]:
    """A stream with a part of each kind that the API has, two calls, and usage."""
    said = [Part("call", ("{}",), "f", 90), Part("call", ('{"a":', "[1]}"), "g", 91)]
    kinds = [kind for kind in wire.rows if kind != "call"]
    parts = [Part(kind, ("x", "y"), number=number) for number, kind in enumerate(kinds)] + said
    return wire.stream(Turn(tuple(wire.sayable(parts)), wire.usage(5, 4, 3, 2, 1)), Manner())


_PIECE = {"partialArgs": [{"jsonPath": "$.a[1]", "stringValue": "v"}], "willContinue": True}
CORPUS: dict[str, list[dict[str, Any]]] = {api: _documents(wire) for api, wire in WIRES.items()}
# What only Gemini 3 sends: a call in pieces.
CORPUS["gemini"][-1:-1] = [
    {"candidates": [{"content": {"parts": [{"functionCall": piece}]}}]}
    for piece in ({"name": "f", "willContinue": True}, _PIECE, {})
]


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
    assert usage_is_true(turn.usage)


def fuzz_once(dice: Random) -> None:
    api = dice.choice(tuple(ADAPTERS))
    documents = [mutate(dice, document) for document in CORPUS[api]]
    if dice.random() < 0.1:
        documents = [random_json(dice) for _ in range(3)]
    body = framed_somehow(dice, api, documents)
    if dice.random() < 0.2 and body:
        place = dice.randrange(len(body))
        body = body[:place] + dice.randbytes(dice.randrange(4)) + body[place + dice.randrange(3) :]
    sizes = [dice.choice([1, 7, 100, 10_000]) for _ in range(3)]
    check(api, body, sizes, dice.choice([200, 200, 200, 400, 429, 500]), dice.random() < 0.8)


def framed_somehow(dice: Random, api: str, documents: list[Any]) -> bytes:
    text = [json.dumps(document) for document in documents]
    shape = dice.randrange(4)
    if shape == 0:
        return ("[" + ",\n".join(text) + "]").encode()
    if shape == 1:
        return dice.choice(text or ["{}"]).encode()
    if shape == 2 and "\\ud800" not in "".join(text) and all(isinstance(document, dict) for document in documents):
        return WIRES[api].framed(documents, Manner(named=False))
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

    @settings(max_examples=examples(100), deadline=None)
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
        turn = answer(ADAPTERS[api], WIRES[api].framed(documents, Manner()))
        assert turn.error is None, api
        assert turn.tool_calls, api

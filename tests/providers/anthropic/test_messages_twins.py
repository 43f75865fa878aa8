"""A streamed answer tells what its whole twin does, for every kind of block, and what the official SDK reads in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import httpx2
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.mutations import changed
from support.sdk_types import Lazy
from support.wire import answer, body, sse

from callboard.protocol.content import ServerTool, Text, Thinking, ToolMessage, UserMessage
from callboard.protocol.model import PromptCache
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.anthropic.messages_dialects import MESSAGES_SERVERS

if TYPE_CHECKING:
    import anthropic
    from anthropic.types import Message
    from anthropic.types.beta import BetaMessage
else:
    anthropic = Lazy("anthropic")

ADAPTER = Anthropic(api_key="k")

texts = st.text(min_size=1, max_size=12)
objects = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=6), st.booleans()), max_size=4
)


def chop(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces, some of them empty."""
    marks = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in pairwise([0, *marks, len(text)])]


CITATIONS = (
    {
        "type": "char_location",
        "cited_text": "Green.",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 6,
        "file_id": None,
    },
    {
        "type": "page_location",
        "cited_text": "Green.",
        "document_index": 1,
        "document_title": "Facts",
        "start_page_number": 1,
        "end_page_number": 2,
        "file_id": None,
    },
    {
        "type": "web_search_result_location",
        "cited_text": "Green.",
        "url": "https://example.org",
        "title": "Green",
        "encrypted_index": "ENC",
    },
)
FOUND = {"type": "web_search_result", "url": "https://example.org", "title": "Green", "encrypted_content": "E"}
RESULTS = (
    {"type": "web_search_tool_result", "content": [{**FOUND, "page_age": None}]},
    {
        "type": "web_search_tool_result",
        "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    },
    {
        "type": "web_fetch_tool_result",
        "content": {
            "type": "web_fetch_result",
            "url": "https://example.org",
            "retrieved_at": None,
            "content": {
                "type": "document",
                "title": None,
                "citations": None,
                "source": {"type": "text", "media_type": "text/plain", "data": "Green."},
            },
        },
    },
    {
        "type": "code_execution_tool_result",
        "content": {
            "type": "code_execution_result",
            "stdout": "3",
            "stderr": "",
            "return_code": 0,
            "content": [],
        },
    },
)


@st.composite
def blocks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The content of a turn as the API gives it, calls with their results."""
    found: list[dict[str, Any]] = []
    kinds = ["text", "cited", "thinking", "unsigned", "redacted", "call", "server", "mcp", "compaction"]
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), max_size=5))):
        found += _BLOCKS[kind](draw, number)
    return found


def _server(draw: st.DrawFn, number: int) -> list[dict[str, Any]]:
    result, given_ = draw(st.sampled_from(RESULTS)), draw(objects)
    name = result["type"].removesuffix("_tool_result")  # type: ignore[attr-defined]
    call_id = f"srvtoolu_{number}"
    return [
        {"type": "server_tool_use", "id": call_id, "name": name, "input": given_},
        {**result, "tool_use_id": call_id},
    ]


def _mcp(draw: st.DrawFn, number: int) -> list[dict[str, Any]]:
    call_id = f"mcptoolu_{number}"
    said = [{"type": "text", "text": draw(texts), "citations": None}]
    return [
        {"type": "mcp_tool_use", "id": call_id, "name": "find", "server_name": "docs", "input": draw(objects)},
        {"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": draw(st.booleans()), "content": said},
    ]


_BLOCKS: dict[str, Any] = {
    "text": lambda draw, number: [{"type": "text", "text": draw(texts), "citations": None}],
    "cited": lambda draw, number: [
        {"type": "text", "text": draw(texts), "citations": draw(st.lists(st.sampled_from(CITATIONS), min_size=1))}
    ],
    "thinking": lambda draw, number: [{"type": "thinking", "thinking": draw(st.text(max_size=9)), "signature": "SIG"}],
    "unsigned": lambda draw, number: [{"type": "thinking", "thinking": draw(texts), "signature": ""}],
    "redacted": lambda draw, number: [{"type": "redacted_thinking", "data": "RED"}],
    "call": lambda draw, number: [{"type": "tool_use", "id": f"toolu_{number}", "name": "f", "input": draw(objects)}],
    "server": _server,
    "mcp": _mcp,
    "compaction": lambda draw, number: [{"type": "compaction", "content": draw(texts), "encrypted_content": "ENC"}],
}
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 5,
    "cache_creation_input_tokens": 4,
    "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 1},
    "output_tokens": 42,
    "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
    "service_tier": "standard",
}
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "stop_sequence": None}


def whole_of(content: list[dict[str, Any]], reason: str) -> dict[str, Any]:
    return {**MESSAGE, "content": content, "stop_reason": reason, "usage": USAGE}


def _deltas(draw: st.DrawFn, block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins, and what follows."""
    kind = block["type"]
    if kind == "text":
        cited = [{"type": "citations_delta", "citation": each} for each in block["citations"] or ()]
        said = [{"type": "text_delta", "text": piece} for piece in chop(draw, block["text"])]
        return {**block, "text": "", "citations": None}, [*said[:1], *cited, *said[1:]]
    if kind == "thinking":
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in chop(draw, block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*thought, signed]
    if kind.endswith("tool_use"):
        given_ = orjson.dumps(block["input"]).decode() if block["input"] else draw(st.sampled_from(["", "{}"]))
        pieces = ["", *chop(draw, given_)]
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    if kind == "compaction":
        begun = {**block, "content": None, "encrypted_content": None}
        return begun, [{**block, "type": "compaction_delta"}]
    return block, []


def _streamed(draw: st.DrawFn, whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    start = {**whole, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(whole["content"]):
        begun, deltas = _deltas(draw, block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        if draw(st.booleans()):
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    told = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": told, "usage": {"output_tokens": 42}}
    yield {"type": "message_stop"}


@st.composite
def twins(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole answer, and the events of its stream."""
    content = draw(blocks())
    has_calls = any(block["type"] == "tool_use" for block in content)
    whole = whole_of(content, "tool_use" if has_calls else draw(st.sampled_from(["end_turn", "pause_turn", "refusal"])))
    return whole, list(_streamed(draw, whole))


Twin = tuple[dict[str, Any], list[dict[str, Any]]]


@settings(max_examples=examples(150), deadline=None)
@given(twins(), st.sampled_from([(65_536,), (1,), (7, 3)]), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_a_stream_and_its_whole_twin_are_one_turn(
    twin: Twin, sizes: tuple[int, ...], named: bool, newline: str
) -> None:
    whole, documents = twin
    stream = sse(documents, named=named, newline=newline)
    assert answer(ADAPTER, stream, sizes) == answer(ADAPTER, json.dumps(whole).encode(), sizes, streaming=False)


@settings(max_examples=examples(100), deadline=None)
@given(twins())
def test_what_came_goes_back_as_it_was(twin: Twin) -> None:
    whole, documents = twin
    turn = answer(ADAPTER, sse(documents))
    results = [ToolMessage(call.call_id, call.name, "done") for call in turn.tool_calls]
    sent = body(
        ADAPTER, UserMessage.of("Hi"), turn.message, *results, UserMessage.of("More"), prompt_cache=PromptCache.OFF
    )
    back = [block for message in sent["messages"] if message["role"] == "assistant" for block in message["content"]]
    expected = [_as_param(block) for block in whole["content"] if _can_go_back(block)]
    if {block["type"] for block in expected} <= {"text", "tool_use"}:
        expected.sort(key=lambda block: block["type"] == "tool_use")
    assert back == expected


def _can_go_back(block: dict[str, Any]) -> bool:
    if block["type"] == "thinking":
        return bool(block["signature"])
    return block["type"] != "text" or bool(block["text"].strip())


def _as_param(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text" and not block["citations"]:
        return {"type": "text", "text": block["text"]}
    return block


@settings(max_examples=examples(150), deadline=None)
@given(twins(), st.integers(0, 2**32), st.sampled_from(sorted(MESSAGES_SERVERS)))
def test_an_answer_changed_at_random_costs_that_answer_at_most(twin: Twin, seed: int, name: str) -> None:
    """It is read the same however it is cut, its usage is sound, and its turn can be sent back: a field of the wrong
    type would fail every later request of the conversation."""
    adapter, dice = Anthropic(dialect=MESSAGES_SERVERS[name]), Random(seed)
    whole, documents = twin
    for answered, is_stream in (
        (sse(changed(dice, changed(dice, documents))), True),
        (b"".join(json.dumps(each).encode() for each in changed(dice, [whole])), False),
    ):
        turn = answer(adapter, answered, streaming=is_stream)
        assert turn == answer(adapter, answered, [1], streaming=is_stream)
        if (usage := turn.usage) is not None:
            assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens
            assert usage.cache_write_1h_tokens <= usage.cache_write_tokens
        results = [ToolMessage(call.call_id, call.name, "done") for call in turn.tool_calls]
        assert body(adapter, UserMessage.of("Hi"), turn.message, *results, UserMessage.of("More"))


# The official SDK reads the same bytes.


def client(data: bytes) -> anthropic.Anthropic:
    headers = {"content-type": "text/event-stream", "request-id": "req_1"}
    reply = httpx2.Response(200, headers=headers, content=data)
    return anthropic.Anthropic(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(lambda request: reply))
    )


ASKED: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
#: The stable half of the SDK has no types for these.
BETA = {"mcp_tool_use", "mcp_tool_result", "compaction"}


@settings(max_examples=examples(60), deadline=None)
@given(twins())
def test_the_sdks_own_stream_helper_collects_the_same(twin: Twin) -> None:
    whole, documents = twin
    is_beta = any(block["type"] in BETA for block in whole["content"])
    stream_bytes = sse(documents, named=True)
    sdk = client(stream_bytes)
    final: Message | BetaMessage
    if is_beta:
        with sdk.beta.messages.stream(**ASKED) as stream:
            final = stream.get_final_message()
    else:
        with sdk.messages.stream(**ASKED) as stream:
            final = stream.get_final_message()
    turn = answer(ADAPTER, stream_bytes, headers={"request-id": "req_1"})
    said = [block.to_dict() for block in final.content]
    assert [part.text for part in turn.parts if isinstance(part, Text)] == [
        block["text"] for block in said if block["type"] == "text" and block["text"]
    ]
    cited = [[each.raw for each in part.citations] for part in turn.parts if isinstance(part, Text)]
    assert cited == [block.get("citations") or [] for block in said if block["type"] == "text" and block["text"]]
    shown = [part.replay.data for part in turn.parts if isinstance(part, ServerTool)]
    assert shown == [block for block in said if _is_server(block["type"])]
    assert [(call.call_id, json.loads(call.arguments)) for call in turn.tool_calls] == [
        (block["id"], block["input"]) for block in said if block["type"] == "tool_use"
    ]
    assert "".join(part.text for part in turn.parts if isinstance(part, Thinking)) == "".join(
        str(block["thinking"]) for block in said if block["type"] == "thinking"
    )
    assert (turn.response_id, turn.provider_request_id) == (final.id, stream.request_id)
    assert turn.usage is not None
    assert turn.usage.output_tokens == final.usage.output_tokens


def _is_server(kind: str) -> bool:
    return kind not in ("text", "thinking", "redacted_thinking", "tool_use")


@pytest.mark.parametrize("cut", ["max_tokens", "refusal", "model_context_window_exceeded", "compaction"])
def test_a_cut_call_is_cut_in_both(cut: str) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 1}}
    whole = whole_of([call], cut)
    documents = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": call},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": cut}, "usage": {"output_tokens": 42}},
        {"type": "message_stop"},
    ]
    streamed, asked = answer(ADAPTER, sse(documents)), answer(ADAPTER, json.dumps(whole).encode(), streaming=False)
    assert [call.complete for call in streamed.tool_calls] == [call.complete for call in asked.tool_calls] == [False]

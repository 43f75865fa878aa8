"""Legal answers of each API, generated: the bytes of a stream, and the turn that it tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from support.wire import sse

from callboard.protocol.model import FinishReason


@dataclass(frozen=True)
class Told:
    """What a stream tells, told in no API's words."""

    thinking: tuple[str, ...]
    texts: tuple[str, ...]
    calls: tuple[tuple[str, str, str], ...]
    """(id, name, JSON arguments)"""
    finish: FinishReason


@dataclass(frozen=True)
class Stream:
    api: str
    body: bytes
    told: Told


pieces = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4)
objects = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=6), st.booleans()), max_size=4
)
_calls = st.lists(st.tuples(st.sampled_from(["lookup", "now"]), objects), max_size=3)
_prose = st.lists(st.tuples(st.sampled_from(["thinking", "text"]), pieces), max_size=4)


def chop(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces, some of them empty."""
    marks = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]


def _told(prose: list[tuple[str, list[str]]], calls: list[tuple[str, str, str]]) -> Told:
    return Told(
        tuple("".join(text) for kind, text in prose if kind == "thinking"),
        tuple("".join(text) for kind, text in prose if kind == "text"),
        tuple(calls),
        FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
    )


@st.composite
def anthropic_streams(draw: st.DrawFn) -> Stream:
    prose = draw(_prose)
    calls = [(f"toolu_{i}", name, json.dumps(args)) for i, (name, args) in enumerate(draw(_calls))]
    documents = list(_anthropic(draw, prose, calls))
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return Stream("anthropic", sse(documents, named=draw(st.booleans()), newline=newline), _told(prose, calls))


def _anthropic(draw: st.DrawFn, prose: list[tuple[str, list[str]]], calls: list[tuple[str, str, str]]) -> Iterator[Any]:
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "cache_creation_input_tokens": None, "output_tokens": 1}
    yield {"type": "message_start", "message": {"id": "msg_1", "model": "claude", "content": [], "usage": usage}}
    index = draw(st.integers(0, 1))
    for kind, texts in prose:
        yield {"type": "content_block_start", "index": index, "content_block": {"type": kind, kind: ""}}
        for text in texts:
            if draw(st.integers(0, 5)) == 0:
                yield {"type": "ping"}
            yield {"type": "content_block_delta", "index": index, "delta": {"type": f"{kind}_delta", kind: text}}
        if kind == "thinking":
            signature = {"type": "signature_delta", "signature": f"sig{index}"}
            yield {"type": "content_block_delta", "index": index, "delta": signature}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    for call_id, name, arguments in calls:
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for piece in ["", *chop(draw, "" if arguments == "{}" else arguments)]:
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    reason = "tool_use" if calls else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 42}}
    yield {"type": "message_stop"}


@st.composite
def responses_streams(draw: st.DrawFn) -> Stream:
    prose = draw(_prose)
    calls = [(f"call_{i}", name, json.dumps(args)) for i, (name, args) in enumerate(draw(_calls))]
    rotate = draw(st.booleans())
    documents = list(_responses(draw, prose, calls))
    for number, document in enumerate(documents):
        document["sequence_number"] = number
        if rotate and "item_id" in document:
            document["item_id"] = f"rotated_{number}"
    return Stream("responses", sse(documents, named=draw(st.booleans()), done=draw(st.booleans())), _told(prose, calls))


def _responses(draw: st.DrawFn, prose: list[tuple[str, list[str]]], calls: list[tuple[str, str, str]]) -> Iterator[Any]:
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "model": "gpt",
        "status": "in_progress",
        "output": [],
    }
    yield {"type": "response.created", "response": dict(response)}
    output: list[dict[str, Any]] = []
    for kind, texts in prose:
        told = _responses_message(draw, texts) if kind == "text" else _responses_reasoning(draw, texts)
        yield from _responses_item(told, output)
    for call_id, name, arguments in calls:
        yield from _responses_item(_responses_call(draw, call_id, name, arguments), output)
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": output, "usage": usage},
    }


def _responses_item(
    told: tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]], output: list[Any]
) -> Iterator[Any]:
    start, between, end = told
    index = {"output_index": len(output)}
    yield {"type": "response.output_item.added", **index, "item": start}
    for document in between:
        yield {**document, **index, "item_id": end["id"]}
    yield {"type": "response.output_item.done", **index, "item": end}
    output.append(end)


def _texts(draw: st.DrawFn, stem: str, texts: list[str], **place: int) -> list[dict[str, Any]]:
    """Deltas, or only the closing event (LM Studio), or both."""
    deltas = [{"type": f"response.{stem}.delta", **place, "delta": text} for text in texts]
    told = draw(st.integers(0, len(deltas)))
    return [*deltas[:told], {"type": f"response.{stem}.done", **place, "text": "".join(texts)}]


def _responses_message(draw: st.DrawFn, texts: list[str]) -> Any:
    start = {"type": "message", "id": "msg", "role": "assistant", "content": [], "status": "in_progress"}
    content = [{"type": "output_text", "text": "".join(texts), "annotations": []}]
    return (
        start,
        _texts(draw, "output_text", texts, content_index=0),
        {**start, "content": content, "status": "completed"},
    )


def _responses_reasoning(draw: st.DrawFn, texts: list[str]) -> Any:
    start = {"type": "reasoning", "id": "rs", "summary": []}
    summary = [{"type": "summary_text", "text": "".join(texts)}]
    end = {**start, "summary": summary, "encrypted_content": "ZW5j"}
    return start, _texts(draw, "reasoning_summary_text", texts, summary_index=0), end


def _responses_call(draw: st.DrawFn, call_id: str, name: str, arguments: str) -> Any:
    start = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id, "name": name, "arguments": ""}
    deltas = [{"type": "response.function_call_arguments.delta", "delta": piece} for piece in chop(draw, arguments)]
    told = draw(st.integers(0, len(deltas)))
    done = {"type": "response.function_call_arguments.done", "arguments": arguments}
    return start, [*deltas[:told], done], {**start, "arguments": arguments, "status": "completed"}


@st.composite
def gemini_streams(draw: st.DrawFn) -> Stream:
    prose = draw(_prose)
    calls = [(f"g_{i}", name, json.dumps(args)) for i, (name, args) in enumerate(draw(_calls))]
    documents = list(_gemini(draw, prose, calls))
    if draw(st.booleans()):
        body = json.dumps(documents, indent=draw(st.sampled_from([None, 2])), ensure_ascii=draw(st.booleans())).encode()
    else:
        body = sse(documents, newline=draw(st.sampled_from(["\n", "\r\n"])))
    return Stream("gemini", body, _told(prose, calls))


def _gemini(draw: st.DrawFn, prose: list[tuple[str, list[str]]], calls: list[tuple[str, str, str]]) -> Iterator[Any]:
    def chunk(*parts: Any, **more: Any) -> Any:
        usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 12}
        candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini", "responseId": "r1"}

    for kind, texts in prose:
        *early, last = texts
        thought = {"thought": True} if kind == "thinking" else {}
        for text in early:
            yield chunk({"text": text, **thought})
        # The signature keeps the blocks apart in what we compare.
        yield chunk({"text": last, **thought, "thoughtSignature": "c2ln"})
    for call_id, name, arguments in calls:
        yield chunk({"functionCall": {"id": call_id, "name": name, "args": json.loads(arguments)}})
    yield chunk({"text": ""}, finishReason="STOP")


streams = st.one_of(anthropic_streams(), responses_streams(), gemini_streams())

"""Bytes to events for Anthropic, Responses and Gemini: what an event costs at any chunk size, and the memory it takes.

    python benchmarks/decoders_by_api.py

Figures are CPU time an event, the best of several rounds, the rows taking turns; "SSE + JSON" is the least that any
decoder of the same bytes must do. Memory is the peak of this process while 100 MB of one stream pass through.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from typing import Any

import orjson

from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.base_decoder import SseDecoder
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.responses_api import OpenAIResponses

EVENTS = 20_000
ROUNDS = 5
CHUNK_BYTES = 16 * 1024
LONG_BYTES = 100 * 1024 * 1024


def anthropic_text(number: int) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": f" token{number % 100}"}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def anthropic_call(number: int) -> dict[str, Any]:
    delta = {"type": "input_json_delta", "partial_json": "1," if number else '{"a":['}
    return {"type": "content_block_delta", "index": 1, "delta": delta}


def responses_text(number: int) -> dict[str, Any]:
    place = {"item_id": "msg_68b1c0e2f4", "output_index": 0, "content_index": 0, "sequence_number": number}
    text = {"delta": f" token{number % 100}", "logprobs": [], "obfuscation": "x7Gq2LpA"}
    return {"type": "response.output_text.delta", **place, **text}


def gemini_text(number: int) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": f" token{number % 100}"}], "role": "model"}, "index": 0}
    details = [{"modality": "TEXT", "tokenCount": 12}]
    usage = {"promptTokenCount": 12, "candidatesTokenCount": number, "promptTokensDetails": details}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro", "responseId": "aBcDeF"}


def blocks(kind: str, index: int, **more: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


STREAMS: dict[str, tuple[Adapter, list[dict[str, Any]], Any]] = {
    "anthropic, text": (Anthropic(), [blocks("text", 0, text="")], anthropic_text),
    "anthropic, arguments": (Anthropic(), [blocks("tool_use", 1, id="t", name="f", input={})], anthropic_call),
    "responses, text": (OpenAIResponses(), [], responses_text),
    "gemini, text": (Gemini(), [], gemini_text),
}


def stream(name: str, events: int) -> bytes:
    _, start, event = STREAMS[name]
    documents = [*start, *(event(number) for number in range(events))]
    named = not name.startswith("gemini")
    lines = [
        (f"event: {document['type']}\n" if named else "") + f"data: {json.dumps(document, separators=(',', ':'))}\n\n"
        for document in documents
    ]
    return "".join(lines).encode()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def sse_and_json(chunks: list[bytes]) -> int:
    decoder = SseDecoder()
    return sum(1 for chunk in chunks for _, data in decoder.feed(chunk) if orjson.loads(data))


def stream_events(adapter: Adapter, chunks: list[bytes]) -> int:
    decoder = adapter.decoder()
    return sum(len(decoder.feed(chunk)) for chunk in chunks) + len(decoder.finish())


def microseconds(read: Any, *given: Any) -> float:
    started = time.process_time()
    assert read(*given) >= 1
    return (time.process_time() - started) * 1e6


def by_api() -> None:
    print("Microseconds of CPU an event; the first two in chunks of 16 kB.")
    print(f"{'':36}{'SSE + JSON':>12}{'StreamEvents':>14}{'an event a read':>17}{'one-byte chunks':>17}")
    for name, (adapter, _, _) in STREAMS.items():
        data = stream(name, EVENTS)
        small = cut(stream(name, EVENTS // 20), 1)
        chunks = cut(data, CHUNK_BYTES)
        each = [event + b"\n\n" for event in data.split(b"\n\n")]
        best = [float("inf")] * 4
        for _ in range(ROUNDS):
            best[0] = min(best[0], microseconds(sse_and_json, chunks) / EVENTS)
            best[1] = min(best[1], microseconds(stream_events, adapter, chunks) / EVENTS)
            best[2] = min(best[2], microseconds(stream_events, adapter, each) / EVENTS)
            best[3] = min(best[3], microseconds(stream_events, adapter, small) / (EVENTS // 20))
        print(f"{name:36}{best[0]:12.2f}{best[1]:14.2f}{best[2]:17.2f}{best[3]:17.2f}")


def long_chunks(data: bytes) -> Iterator[bytes]:
    for _ in range(LONG_BYTES // len(data) + 1):
        yield from cut(data, CHUNK_BYTES)


def memory() -> None:
    print("\nGrowth of the peak memory while 100 MB pass (MB):")
    for name in ("anthropic, text", "responses, text", "gemini, text"):
        adapter = STREAMS[name][0]
        data = stream(name, 2_000)
        decoder = adapter.decoder()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for chunk in long_chunks(data):
            decoder.feed(chunk)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"  {name:36}{grown:8.1f}")
    data = b"[" + b",\n".join(json.dumps(gemini_text(number), indent=2).encode() for number in range(2_000)) + b","
    decoder = STREAMS["gemini, text"][0].decoder()
    decoder.feed(b"[")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for chunk in long_chunks(data[1:]):
        decoder.feed(chunk)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"  {'gemini, one JSON array':36}{grown:8.1f}")


if __name__ == "__main__":
    by_api()
    memory()

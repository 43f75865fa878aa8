"""Bytes to events: our decoders against the openai SDK's, side by side in one run.

    python benchmarks/decoders.py            # the openai SDK is needed for its rows: pip install openai

Each row reads the same recorded-like Chat Completions stream in 16 kB chunks (what one socket read brings). The figures
are CPU time an event, the best of several rounds, the rows taking turns so that a busy machine treats all alike.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator

import httpx
import orjson

from callboard.providers.base_decoder import SseDecoder
from callboard.providers.openai.chat_api import OpenAIChat

EVENTS = 20_000
ROUNDS = 7
CHUNK_BYTES = 16 * 1024


def recorded_like(events: int) -> bytes:
    """A stream with all the fields that api.openai.com sends."""
    lines = []
    for number in range(events):
        choice = {"index": 0, "delta": {"content": f" token{number % 100}"}, "logprobs": None, "finish_reason": None}
        chunk = {
            "id": "chatcmpl-BqX1m8pKc0aVbQnT5R7yWz2dEfGhI",
            "object": "chat.completion.chunk",
            "created": 1753000000,
            "model": "gpt-4o-2024-08-06",
            "service_tier": "default",
            "system_fingerprint": "fp_07871e2ad8",
            "choices": [choice],
            "usage": None,
            "obfuscation": "x7Gq2LpA",
        }
        lines.append(f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n")
    stop = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return ("".join(lines) + f"data: {json.dumps(stop)}\n\ndata: [DONE]\n\n").encode()


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def sse_and_json(chunks: list[bytes]) -> int:
    decoder, seen = SseDecoder(), 0
    for chunk in chunks:
        for _, data in decoder.feed(chunk):
            if data != b"[DONE]":
                orjson.loads(data)
                seen += 1
    return seen


def stream_events(chunks: list[bytes]) -> int:
    decoder, seen = OpenAIChat(api_key="k").decoder(), 0
    for chunk in chunks:
        seen += len(decoder.feed(chunk))
    return seen + len(decoder.finish())


def sdk_bare(chunks: list[bytes]) -> int:
    """The SDK's own SSE decoder and json.loads: no types, no events."""
    from openai._streaming import SSEDecoder  # noqa: PLC0415 - the row is left out where the SDK is not installed

    seen = 0
    for event in SSEDecoder().iter_bytes(iter(chunks)):
        if event.data != "[DONE]":
            event.json()
            seen += 1
    return seen


def sdk_typed(chunks: list[bytes]) -> int:
    """What a user of the SDK gets: ChatCompletionChunk objects."""
    from openai import OpenAI, Stream  # noqa: PLC0415
    from openai.types.chat import ChatCompletionChunk  # noqa: PLC0415

    class Body(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks

    client = OpenAI(api_key="k", base_url="http://localhost")
    response = httpx.Response(200, stream=Body(), request=httpx.Request("POST", "http://localhost"))
    return sum(1 for _ in Stream(cast_to=ChatCompletionChunk, response=response, client=client))


ROWS: dict[str, Callable[[list[bytes]], int]] = {
    "callboard: SSE + JSON": sse_and_json,
    "callboard: StreamEvents": stream_events,
    "openai SDK: SSE + json.loads": sdk_bare,
    "openai SDK: typed chunks": sdk_typed,
}


def measure(rows: dict[str, Callable[[list[bytes]], int]], chunks: list[bytes], events: int) -> dict[str, float]:
    """Microseconds of CPU an event, the best of the rounds."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(ROUNDS):
        for name, read in rows.items():
            started = time.process_time()
            assert read(chunks) >= events
            best[name] = min(best[name], (time.process_time() - started) / events * 1e6)
    return best


def chunk_sizes() -> None:
    print("\nAny chunking costs what its bytes cost (StreamEvents, us an event):")
    data = recorded_like(2_000)
    for size in (1, 16, 256, 4096, CHUNK_BYTES, len(data)):
        [cost] = measure({"x": stream_events}, cut(data, size), 2_000).values()
        print(f"  chunks of {size:>7} bytes: {cost:8.2f}")
    print("  one line of n bytes in one-byte chunks (ns a byte; flat is linear):")
    for length in (100_000, 400_000, 1_600_000):
        decoder, line = SseDecoder(), b"data: " + b"x" * length + b"\n\n"
        started = time.process_time()
        for byte in line:
            decoder.feed(bytes((byte,)))
        print(f"  n = {length:>9}: {(time.process_time() - started) / length * 1e9:6.0f}")


def memory() -> None:
    part = recorded_like(2_500).rpartition(b'data: {"id": "c"')[0]
    decoder, fed = OpenAIChat(api_key="k").decoder(), 0
    decoder.feed(part)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while fed < 100 * 2**20:
        for chunk in cut(part, CHUNK_BYTES):
            decoder.feed(chunk)
        fed += len(part)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"\nMemory: the peak grew by {grown:.1f} MiB over a stream of {fed / 2**20:.0f} MiB")


def main() -> None:
    rows = dict(ROWS)
    try:
        import openai  # noqa: F401, PLC0415
    except ImportError:
        rows = {name: read for name, read in ROWS.items() if name.startswith("callboard")}
        print("The openai SDK is not installed: its rows are left out.")
    data = recorded_like(EVENTS)
    print(f"{EVENTS} events, {len(data) / 2**20:.1f} MiB, chunks of {CHUNK_BYTES} bytes, best of {ROUNDS} rounds\n")
    cost = measure(rows, cut(data, CHUNK_BYTES), EVENTS)
    ours = cost["callboard: StreamEvents"]
    for name, microseconds in cost.items():
        print(f"  {name:<32} {microseconds:8.2f} us an event   {microseconds / ours:6.2f} x StreamEvents")
    chunk_sizes()
    memory()


if __name__ == "__main__":
    main()

"""Bytes to events for every wire API: our decoders beside the official SDKs, side by side in one run.

    python benchmarks/decoders_by_api.py     # an SDK that is not installed has no figures: pip install -e '.[dev]'

Figures are CPU time an event, the best of several rounds, the contenders taking turns so that a busy machine treats all
alike. "SSE + JSON" is our framing and JSON alone (of Bedrock its binary frames); an SDK's figure is for what its user
gets: the typed objects of a streamed call, over a transport that hands out the same chunks (of botocore, its parsed
events, without HTTP). Memory is the peak of this process while 100 MB of one stream pass through our decoder.
"""

from __future__ import annotations

import json
import resource
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from zlib import crc32

import httpx
import orjson

from callboard.providers.adapter import Adapter
from callboard.providers.anthropic.messages_api import Anthropic
from callboard.providers.base_decoder import SseDecoder
from callboard.providers.bedrock.converse_api import Bedrock
from callboard.providers.bedrock.event_stream import EventStreamDecoder
from callboard.providers.gemini.gemini_api import Gemini
from callboard.providers.openai.chat_api import OpenAIChat
from callboard.providers.openai.responses_api import OpenAIResponses

EVENTS, SDK_EVENTS, SINGLE_EVENTS = 20_000, 2_000, 500
ROUNDS, SDK_ROUNDS = 7, 3
CHUNK_BYTES = 16 * 1024
LONG_BYTES = 100 * 1024 * 1024
HEADERS = {"content-type": "text/event-stream"}

Document = dict[str, Any]
Read = Callable[[list[bytes]], int]
"""Reads a stream in these chunks, and returns how many events came."""


# The events of each stream, with the fields that the services send.


def chat_chunk(number: int, **delta: Any) -> Document:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return {
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


def chat_text(number: int) -> Document:
    return chat_chunk(number, content=f" token{number % 100}")


def chat_call(number: int) -> Document:
    named = {} if number else {"id": "call_1", "type": "function"}
    function = {"arguments": "1,"} if number else {"name": "f", "arguments": '{"a":['}
    return chat_chunk(number, tool_calls=[{"index": 0, **named, "function": function}])


def anthropic_text(number: int) -> Document:
    delta = {"type": "text_delta", "text": f" token{number % 100}"}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


def anthropic_call(number: int) -> Document:
    delta = {"type": "input_json_delta", "partial_json": "1," if number else '{"a":['}
    return {"type": "content_block_delta", "index": 1, "delta": delta}


def responses_text(number: int) -> Document:
    place = {"item_id": "msg_68b1c0e2f4", "output_index": 0, "content_index": 0, "sequence_number": number}
    text = {"delta": f" token{number % 100}", "logprobs": [], "obfuscation": "x7Gq2LpA"}
    return {"type": "response.output_text.delta", **place, **text}


def responses_call(number: int) -> Document:
    place = {"item_id": "fc_68b1c0e2f4", "output_index": 0, "sequence_number": number}
    arguments = {"delta": "1," if number else '{"a":[', "obfuscation": "x7Gq2LpA"}
    return {"type": "response.function_call_arguments.delta", **place, **arguments}


def gemini_text(number: int) -> Document:
    candidate = {"content": {"parts": [{"text": f" token{number % 100}"}], "role": "model"}, "index": 0}
    details = [{"modality": "TEXT", "tokenCount": 12}]
    usage = {"promptTokenCount": 12, "candidatesTokenCount": number, "promptTokensDetails": details}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro", "responseId": "aBcDeF"}


def bedrock_text(number: int) -> Document:
    delta = {"contentBlockIndex": 0, "delta": {"text": f" token{number % 100}"}, "p": "abcdefghijklm"}
    return {"event": "contentBlockDelta", **delta}


def block(kind: str, index: int, **more: Any) -> Document:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


RESPONSES_CALL = {
    "type": "response.output_item.added",
    "output_index": 0,
    "sequence_number": 0,
    "item": {"type": "function_call", "id": "fc_68b1c0e2f4", "call_id": "call_1", "name": "f", "arguments": ""},
}


# What a user of each SDK writes.


class Chunks(httpx.SyncByteStream):
    """The body of an answer, in the chunks of a contest."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        yield from self._chunks


def transport(chunks: list[bytes]) -> httpx.Client:
    answer = httpx.Response(200, headers=HEADERS, stream=Chunks(chunks))
    return httpx.Client(transport=httpx.MockTransport(lambda request: answer))


def transport2(chunks: list[bytes]) -> Any:
    """The same, in the HTTP library that newer SDKs bring with them."""
    import httpx2  # noqa: PLC0415 - comes with the SDKs

    class Chunks2(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks

    answer = httpx2.Response(200, headers=HEADERS, stream=Chunks2())
    return httpx2.Client(transport=httpx2.MockTransport(lambda request: answer))


def openai_client(chunks: list[bytes]) -> Any:
    import openai  # noqa: PLC0415 - no figures where it is not installed

    return openai.OpenAI(api_key="k", base_url="http://localhost", http_client=transport2(chunks))


def sdk_chat(chunks: list[bytes]) -> int:
    messages = [{"role": "user", "content": "Hi"}]
    return counted(openai_client(chunks).chat.completions.create(model="m", messages=messages, stream=True))


def sdk_responses(chunks: list[bytes]) -> int:
    return counted(openai_client(chunks).responses.create(model="m", input="Hi", stream=True))


def sdk_anthropic(chunks: list[bytes]) -> int:
    import anthropic  # noqa: PLC0415

    sdk = anthropic.Anthropic(api_key="k", http_client=transport2(chunks))
    messages: Any = [{"role": "user", "content": "Hi"}]
    return counted(sdk.messages.create(model="m", max_tokens=9, messages=messages, stream=True))


def sdk_gemini(chunks: list[bytes]) -> int:
    from google import genai  # noqa: PLC0415
    from google.genai import types  # noqa: PLC0415

    options = types.HttpOptions(httpx_client=transport(chunks))
    with genai.Client(api_key="k", http_options=options) as sdk:
        return counted(sdk.models.generate_content_stream(model="m", contents="Hi"))


def counted(events: Iterable[object]) -> int:
    return sum(1 for _ in events)


def sdk_bedrock(chunks: list[bytes]) -> int:
    """What botocore does for each event of `converse_stream`, without its HTTP."""
    from botocore.eventstream import EventStreamBuffer  # noqa: PLC0415
    from botocore.loaders import Loader  # noqa: PLC0415
    from botocore.model import ServiceModel  # noqa: PLC0415
    from botocore.parsers import EventStreamJSONParser  # noqa: PLC0415

    model = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    shape = model.operation_model("ConverseStream").output_shape.members["stream"]
    buffer, parser, events = EventStreamBuffer(), EventStreamJSONParser(), 0
    for chunk in chunks:
        buffer.add_data(chunk)
        events += sum(1 for message in buffer if parser.parse(message.to_response_dict(), shape))
    return events


# Framing.


def framed(document: Document) -> bytes:
    name = f"event: {document['type']}\n" if "type" in document else ""
    return f"{name}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def framed_by_aws(document: Document) -> bytes:
    """A frame of the binary event stream; `event` is its type."""
    headers = {":event-type": document["event"], ":content-type": "application/json", ":message-type": "event"}
    fields = {name: value for name, value in document.items() if name != "event"}
    payload = json.dumps(fields, separators=(",", ":")).encode()
    packed = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value)) + value.encode()
        for name, value in headers.items()
    )
    lengths = struct.pack("!II", 16 + len(packed) + len(payload), len(packed))
    frame = lengths + struct.pack("!I", crc32(lengths)) + packed + payload
    return frame + struct.pack("!I", crc32(frame))


def sse_and_json(chunks: list[bytes]) -> int:
    decoder = SseDecoder()
    return sum(1 for chunk in chunks for _, data in decoder.feed(chunk) if orjson.loads(data))


def frames_and_json(chunks: list[bytes]) -> int:
    decoder = EventStreamDecoder()
    return sum(1 for chunk in chunks for frame in decoder.feed(chunk) if orjson.loads(frame.payload))


# The contests.


@dataclass(frozen=True, slots=True)
class Contest:
    """One kind of stream."""

    adapter: Adapter
    event: Callable[[int], Document]
    sdk: Read
    package: str
    start: tuple[Document, ...] = ()
    framed: Callable[[Document], bytes] = framed
    read: Read = sse_and_json
    """Our framing and JSON alone."""

    def stream(self, events: int) -> list[bytes]:
        """So many events, each with its blank line."""
        documents = [*self.start, *map(self.event, range(events))]
        return [self.framed(document) for document in documents]

    def ours(self, chunks: list[bytes]) -> int:
        decoder = self.adapter.decoder()
        return sum(len(decoder.feed(chunk)) for chunk in chunks) + len(decoder.finish())


CONTESTS = {
    "chat, text": Contest(OpenAIChat(), chat_text, sdk_chat, "openai"),
    "chat, arguments": Contest(OpenAIChat(), chat_call, sdk_chat, "openai"),
    "responses, text": Contest(OpenAIResponses(), responses_text, sdk_responses, "openai"),
    "responses, arguments": Contest(OpenAIResponses(), responses_call, sdk_responses, "openai", (RESPONSES_CALL,)),
    "anthropic, text": Contest(Anthropic(), anthropic_text, sdk_anthropic, "anthropic", (block("text", 0, text=""),)),
    "anthropic, arguments": Contest(
        Anthropic(), anthropic_call, sdk_anthropic, "anthropic", (block("tool_use", 1, id="t", name="f", input={}),)
    ),
    "gemini, text": Contest(Gemini(), gemini_text, sdk_gemini, "google.genai"),
    "bedrock, text": Contest(
        Bedrock(), bedrock_text, sdk_bedrock, "botocore", framed=framed_by_aws, read=frames_and_json
    ),
}


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def microseconds(read: Read, chunks: list[bytes], events: int) -> float:
    started = time.process_time()
    assert read(chunks) >= events
    return (time.process_time() - started) * 1e6 / events


def measured(contest: Contest) -> dict[str, float]:
    """The best of the rounds, by column."""
    many, some, few = (contest.stream(count) for count in (EVENTS, SDK_EVENTS, SINGLE_EVENTS))
    runs: dict[str, tuple[Read, list[bytes], int, int]] = {
        "SSE + JSON": (contest.read, cut(b"".join(many), CHUNK_BYTES), EVENTS, ROUNDS),
        "16 kB": (contest.ours, cut(b"".join(many), CHUNK_BYTES), EVENTS, ROUNDS),
        "event": (contest.ours, many, EVENTS, ROUNDS),
        "byte": (contest.ours, cut(b"".join(few), 1), SINGLE_EVENTS, ROUNDS),
    }
    if find_spec(contest.package) is not None:
        runs |= {
            "16 kB SDK": (contest.sdk, cut(b"".join(some), CHUNK_BYTES), SDK_EVENTS, SDK_ROUNDS),
            "event SDK": (contest.sdk, some, SDK_EVENTS, SDK_ROUNDS),
            "byte SDK": (contest.sdk, cut(b"".join(few), 1), SINGLE_EVENTS, SDK_ROUNDS),
        }
    best = dict.fromkeys(runs, float("inf"))
    for turn in range(ROUNDS):
        for column, (read, chunks, events, rounds) in runs.items():
            if turn < rounds:
                best[column] = min(best[column], microseconds(read, chunks, events))
    return best


def by_api() -> None:
    sizes = {"16 kB": "chunks of 16 kB", "event": "an event a read", "byte": "one-byte chunks"}
    print("Microseconds of CPU an event: callboard, the official SDK, and how many times as much the SDK takes.\n")
    print(f"{'':22}{'SSE + JSON':>10}" + "".join(f"{size:>28}" for size in sizes.values()))
    print(f"{'':32}" + f"{'callboard':>12}{'SDK':>9}{'x':>7}" * len(sizes))
    for name, contest in CONTESTS.items():
        found = measured(contest)
        cells = ""
        for size in sizes:
            ours, theirs = found[size], found.get(f"{size} SDK")
            beside = f"{theirs:9.1f}{theirs / ours:7.1f}" if theirs else f"{'-':>9}{'-':>7}"
            cells += f"{ours:12.2f}{beside}"
        print(f"{name:22}{found['SSE + JSON']:10.2f}{cells}", flush=True)


def long_chunks(data: bytes) -> Iterator[bytes]:
    for _ in range(LONG_BYTES // len(data) + 1):
        yield from cut(data, CHUNK_BYTES)


def grown(adapter: Adapter, begin: bytes, data: bytes) -> float:
    """MB by which the peak memory grew while the data passed, over and over."""
    decoder = adapter.decoder()
    decoder.feed(begin)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for chunk in long_chunks(data):
        decoder.feed(chunk)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def memory() -> None:
    print("\nGrowth of the peak memory while 100 MB pass (MB):")
    for name in ("chat, text", "responses, text", "anthropic, text", "gemini, text"):
        contest = CONTESTS[name]
        begin = b"".join(map(framed, contest.start))
        print(f"  {name:36}{grown(contest.adapter, begin, b''.join(contest.stream(2_000)[len(contest.start) :])):8.1f}")
    array = b",\n".join(json.dumps(gemini_text(number), indent=2).encode() for number in range(2_000)) + b","
    print(f"  {'gemini, one JSON array':36}{grown(CONTESTS['gemini, text'].adapter, b'[', array):8.1f}")


if __name__ == "__main__":
    by_api()
    memory()

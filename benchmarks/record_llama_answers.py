"""Record what a llama.cpp server of our own answers, for the answers that `check_provider_adapter` ships.

    pip install -e '.[dev]'
    python benchmarks/record_llama_answers.py

writes protocol/testing/answers/*_llama_cpp.json. The server is the real one, its model says what its weights spell out
(tests/support/llama_server.py), and the framing is llama.cpp's. The events beside each answer are made by our adapters:
read the difference before it is committed, against docs/wire.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callboard.protocol.content import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import Done, Error, ModelRequest, Sampling, StreamEvent, ToolChoice, ToolChoiceMode
from callboard.protocol.testing.answers import FORMAT_VERSION, write_event
from callboard.protocol.tools import ToolDefinition
from callboard.providers.adapter import Adapter, WireRequest
from callboard.providers.provider_registry import adapter_for

ROOT = Path(__file__).resolve().parents[1]
ANSWERS = ROOT / "protocol" / "testing" / "answers"
sys.path.insert(0, str(ROOT / "tests"))
from support.llama_server import CONTEXT, LlamaServer  # noqa: E402 - from the tests' folder

FLAG = ToolDefinition(
    ToolName("flag"), "Set a flag.", {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
)
ASK = UserMessage.of("hello")
BRIEF = Sampling(max_output_tokens=4)
#: After a call and its result, the wire API's history is read by the server too.
CALLED = (
    ASK,
    AssistantMessage((Text("look"), ToolCall(CallId("call00001"), FLAG.name, '{"on":true}'))),
    ToolMessage(CallId("call00001"), FLAG.name, "done"),
)


def forced(max_output_tokens: int, *, stream: bool = True) -> ModelRequest:
    choice, sampling = ToolChoice(ToolChoiceMode.REQUIRED), Sampling(max_output_tokens=max_output_tokens)
    return ModelRequest("tiny", (ASK,), (FLAG,), choice, sampling=sampling, stream=stream)


#: By whether the model thinks.
REQUESTS = {
    False: {
        "a text that the length limit ends": ModelRequest("tiny", (ASK,), sampling=BRIEF),
        "a text after a call and its result": ModelRequest("tiny", CALLED, (FLAG,)),
        "a text, whole": ModelRequest("tiny", (ASK,), stream=False),
        "a call that the length limit cuts off": forced(48),
        "a call that the length limit cuts off, whole": forced(48, stream=False),
        "too long for the context": ModelRequest("tiny", (UserMessage.of("hello " * CONTEXT),)),
    },
    True: {
        "a thought, a text and a forced call": forced(100),
        "a thought, a text and a forced call, whole": forced(100, stream=False),
    },
}
#: The wire APIs that llama.cpp speaks: the kit's name, the adapter's name, the path of its address.
APIS = (
    ("openai-chat", "llamacpp", "/v1"),
    ("openai-responses", "openai-responses", "/v1"),
    ("anthropic", "anthropic", ""),
)


@dataclass(frozen=True, slots=True)
class Received:
    """One HTTP answer."""

    status: int
    content_type: str
    body: bytes


def main() -> None:
    """Record every request on every API."""
    version = importlib.metadata.version("xllamacpp")
    answers: dict[str, list[dict[str, Any]]] = {api: [] for api, _, _ in APIS}
    for thinking, requests in REQUESTS.items():
        with tempfile.TemporaryDirectory() as folder, LlamaServer(Path(folder), thinking=thinking) as server:
            for api, name, path in APIS:
                adapter = adapter_for(name, base_url=f"{server.url}{path}", api_key="none")
                answers[api] += recorded(adapter, requests)
    for api, found in answers.items():
        source = f"recorded from llama.cpp (xllamacpp {version}) by benchmarks/record_llama_answers.py"
        document = {"version": FORMAT_VERSION, "api": api, "source": source, "answers": found}
        target = ANSWERS / f"{api.replace('-', '_')}_llama_cpp.json"
        target.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        print(f"{target.name}: {len(found)} answers")


def recorded(adapter: Adapter, requests: Mapping[str, ModelRequest]) -> Iterator[dict[str, Any]]:
    """Every request, asked, as it is in a file of answers."""
    for name, request in requests.items():
        received = post(adapter.encode(request))
        text = received.body.decode()
        yield {
            "name": f"llama.cpp: {name}",
            "status": received.status,
            "headers": {"content-type": received.content_type},
            "streaming": request.stream,
            "body": text.splitlines(keepends=True) if request.stream else [text],
            "events": [write_event(event) for event in decoded(adapter, received, request.stream)],
        }


def post(wire: WireRequest) -> Received:
    """Ask the server; an error status is an answer too."""
    asked = urllib.request.Request(wire.url, wire.body, dict(wire.headers), method=wire.method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return Received(answer.status, answer.headers["content-type"], answer.read())
    except urllib.error.HTTPError as error:
        return Received(error.code, error.headers["content-type"] or "", error.read())


def decoded(adapter: Adapter, received: Received, streaming: bool) -> Iterator[StreamEvent]:
    """What our adapter makes of it, without what is not compared."""
    decoder = adapter.decoder(received.status, {"content-type": received.content_type}, streaming)
    for event in [*decoder.feed(received.body), *decoder.finish()]:
        if isinstance(event, Done):
            yield Done(event.finish_reason, event.raw_finish_reason, event.usage, model=event.model)
        elif isinstance(event, Error):
            yield Error(event.kind, "", event.retryable, event.retry_after, status=event.status, code=event.code)
        else:
            yield event


if __name__ == "__main__":
    main()

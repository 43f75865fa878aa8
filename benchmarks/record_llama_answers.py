"""Record what a llama.cpp server of our own answers, for the answers that `check_provider_adapter` ships.

    pip install -e '.[local-llm]'
    python benchmarks/record_llama_answers.py

writes protocol/testing/answers/*_llama_cpp.json. The server is the real one, its model has random weights (see
tests/support/llama_server.py), so the texts are babble and the framing is llama.cpp's. The events that stand beside
each answer are made by our adapters, since only this run knows what the model said: read the difference before it is
committed, against docs/wire.md.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from support.llama_server import CALLS_AND_STOPS, LlamaServer  # noqa: E402 - from the tests' folder

FLAG = ToolDefinition(
    ToolName("flag"), "Set a flag.", {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
)
ASK = UserMessage.of("hello")
FORCED = ToolChoice(ToolChoiceMode.REQUIRED)
BRIEF = Sampling(max_output_tokens=8, temperature=0.0, seed=1)
CALLING = Sampling(max_output_tokens=100, seed=1)
#: After a call and its result, the wire API's history is read by the server too.
CALLED = (
    ASK,
    AssistantMessage((Text("look"), ToolCall(CallId("call00001"), FLAG.name, '{"on":true}'))),
    ToolMessage(CallId("call00001"), FLAG.name, "done"),
)
REQUESTS = {
    "a text that the length limit ends": ModelRequest("tiny", (ASK,), sampling=BRIEF),
    "a text after a call and its result": ModelRequest("tiny", CALLED, (FLAG,), sampling=BRIEF),
    "a text, whole": ModelRequest("tiny", (ASK,), sampling=BRIEF, stream=False),
    "a forced call": ModelRequest("tiny", (ASK,), (FLAG,), FORCED, sampling=CALLING, options=CALLS_AND_STOPS),
    "a forced call, whole": ModelRequest(
        "tiny", (ASK,), (FLAG,), FORCED, sampling=CALLING, stream=False, options=CALLS_AND_STOPS
    ),
    "too long for the context": ModelRequest("tiny", (UserMessage.of("hello " * 3_000),), sampling=BRIEF),
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
    with tempfile.TemporaryDirectory() as folder, LlamaServer(Path(folder)) as server:
        for api, name, path in APIS:
            adapter = adapter_for(name, base_url=f"{server.url}{path}", api_key="none")
            document = {
                "version": FORMAT_VERSION,
                "api": api,
                "source": f"recorded from llama.cpp (xllamacpp {version}) by benchmarks/record_llama_answers.py",
                "answers": list(recorded(adapter, f"{folder}/")),
            }
            target = ANSWERS / f"{api.replace('-', '_')}_llama_cpp.json"
            target.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
            print(f"{target.name}: {len(document['answers'])} answers")


def recorded(adapter: Adapter, folder: str) -> Iterator[dict[str, Any]]:
    """Every request, asked, as it stands in a file of answers: without the folder that the model happened to be in."""
    for name, request in REQUESTS.items():
        received = post(adapter.encode(request))
        received = replace(received, body=received.body.replace(folder.encode(), b""))
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

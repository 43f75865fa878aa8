"""Servers that tell how many tokens their models take, each in its own way, in a process of their own.

Run by itself the file is that process: it prints its address and ends with its standard input. The first part of a path
is the kind of server. What each answers was copied from its documentation (providers/context_window.py names it).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar
from urllib.request import urlopen

#: By kind of server, then method and path: what it answers; None never comes.
KINDS: dict[str, dict[str, Any]] = {
    "vllm": {"GET /v1/models": {"object": "list", "data": [
        {"id": "other", "object": "model", "max_model_len": 4096},
        {"id": "m", "object": "model", "owned_by": "vllm", "root": "m", "max_model_len": 40960, "permission": []}]}},
    "groq": {"GET /openai/v1/models": {"data": [{"id": "m", "active": True, "context_window": 131072}]}},
    "mistral": {"GET /v1/models": {"data": [{"id": "m", "max_context_length": 131072, "aliases": []}]}},
    "together": {"GET /v1/models": [{"id": "org/m", "type": "chat", "context_length": 8193, "pricing": {}}]},
    "openrouter": {"GET /api/v1/models": {"data": [
        {"id": "org/m", "context_length": 163840, "top_provider": {"context_length": 65536}},
        {"id": "org/m:free", "context_length": 8192, "top_provider": {"context_length": None}}]}},
    "llamacpp": {
        "GET /v1/models": {"data": [{"id": "m", "meta": {"n_ctx_train": 131072}}]},
        "GET /props": {"default_generation_settings": {"id": 0, "n_ctx": 6144, "params": {}}, "total_slots": 4}},
    "lmstudio": {
        "GET /v1/models": {"data": [{"id": "m", "object": "model", "owned_by": "organization_owner"}]},
        "GET /api/v0/models": {"data": [
            {"id": "m", "state": "loaded", "max_context_length": 131072, "loaded_context_length": 7168},
            {"id": "cold", "state": "not-loaded", "max_context_length": 32768}]}},
    "ollama": {
        "GET /v1/models": {"data": [{"id": "m:latest", "object": "model", "owned_by": "library"}]},
        "GET /api/ps": {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 5120}]},
        "POST /api/show": {"parameters": "stop \"</s>\"\nnum_ctx                        9216\ntemperature 1",
                           "model_info": {"llama.context_length": 131072}}},
    "copilot": {"GET /models": {"data": [
        {"id": "m", "capabilities": {"limits": {"max_context_window_tokens": 128000, "max_prompt_tokens": 64000}}}]}},
    "anthropic": {"GET /v1/models/m": {"id": "m", "type": "model", "max_input_tokens": 200000, "max_tokens": 64000}},
    "gemini": {"GET /v1beta/models/m": {"name": "models/m", "inputTokenLimit": 1048576, "outputTokenLimit": 65536}},
    "silent": {"GET /v1/models": {"data": [{"id": "m", "object": "model"}]}},
    "hanging": {"GET /v1/models": None},
    "nonsense": {
        "GET /v1/models": {"data": [
            {"id": "m", "max_model_len": -5, "context_window": "many", "context_length": 10**12},
            "m", None, {"id": "m", "max_context_length": True}]},
        "GET /props": {"default_generation_settings": [1, 2]},
        "GET /api/v0/models": "<html>", "GET /api/ps": {"models": {"m": 1}},
        "POST /api/show": {"parameters": ["num_ctx 5"]}},
}  # fmt: skip
#: Every kind answers a question like this.
ANSWER = (
    {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {"content": "Hello"}}]},
    {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
     "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}},
)  # fmt: skip


class ModelServers:
    """The address, and what was asked."""

    def __init__(self, url: str) -> None:
        self.url = url

    def asked(self, kind: str) -> list[str]:
        """Method and path of each request to this kind of server so far, in order."""
        with urlopen(f"{self.url}/_asked") as answer:
            paths: list[str] = json.load(answer)
        return [path.replace(f"/{kind}/", "/", 1) for path in paths if f" /{kind}/" in path]


@contextmanager
def model_servers() -> Iterator[ModelServers]:
    process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        yield ModelServers(process.stdout.readline().strip())
    finally:
        process.communicate(timeout=20)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[str]] = []
    ending = Event()

    def do_GET(self) -> None:
        if self.path == "/_asked":
            self._send(self.asked)
            return
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("content-length", "0"))))

    def _answer(self, body: bytes) -> None:
        self.asked.append(f"{self.command} {self.path}")
        kind, _, rest = self.path.removeprefix("/").partition("/")
        if rest.endswith("/chat/completions"):
            lines = [f"data: {json.dumps(each)}\n\n" for each in ANSWER]
            self._send_bytes("".join([*lines, "data: [DONE]\n\n"]).encode(), "text/event-stream")
            return
        key = f"{self.command} /{rest.partition('?')[0]}"
        found = KINDS.get(kind, {}).get(key, self)
        if found is None:
            self.ending.wait()
            return
        if self.command == "POST" and json.loads(body) != {"model": "m"}:
            found = self
        self._send({"error": "not found"} if found is self else found, 404 if found is self else 200)

    def _send(self, document: Any, status: int = 200) -> None:
        self._send_bytes(json.dumps(document).encode(), "application/json", status)

    def _send_bytes(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()

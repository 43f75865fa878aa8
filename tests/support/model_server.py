"""A server that says which models it has, in a process of its own, and answers as the one that it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer


@contextmanager
def model_server(models: object, status: int = 200) -> Iterator[str]:
    """Its address. `models` is the JSON that GET /v1/models answers; a str is sent as it is, None never."""
    command = [sys.executable, __file__, json.dumps({"models": models, "status": status})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


class _Handler(BaseHTTPRequestHandler):
    script: dict[str, object]

    def do_GET(self) -> None:
        models = self.script["models"]
        if models is None:
            self.rfile.read(1)  # the client closes first
            return
        if self.path != "/v1/models":
            self._send(404, "text/plain", b"not here")
            return
        body = models if isinstance(models, str) else json.dumps(models)
        self._send(int(str(self.script["status"])), "application/json", body.encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers.get("authorization", "no key")
        choice = {"index": 0, "delta": {"content": f"I am {asked['model']}, {key}."}, "finish_reason": "stop"}
        body = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        self._send(200, "text/event-stream", body.encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    _Handler.script = json.loads(sys.argv[1])
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()

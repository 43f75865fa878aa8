"""A server of background answers, in a process of its own: it gives one scripted reply after the other.

A reply is JSON: `status`, and either `body` (a document) or `events` (a stream), and how it ends: "end", "cut" (the
connection is closed in the middle), "hang" (nothing more comes). When the script is over, the last reply comes again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.request import urlopen


@contextmanager
def background_server(*replies: dict[str, Any]) -> Iterator[str]:
    """Its address."""
    command = [sys.executable, __file__, json.dumps(replies)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


def asked(url: str) -> list[str]:
    """What was asked so far: method and path, and the body's fields that matter."""
    with urlopen(f"{url}/asked") as answer:
        told: list[str] = json.load(answer)
        return told


class _Handler(BaseHTTPRequestHandler):
    replies: list[dict[str, Any]]
    asked: ClassVar[list[str]] = []
    given = 0
    lock: ClassVar = threading.Lock()

    def do_GET(self) -> None:
        if self.path == "/v1/asked":
            self._send({"status": 200, "body": self.asked})
        else:
            self._answer("")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.endswith("/cancel"):
            with self.lock:
                self.asked.append(f"POST {self.path}")
            self._send({"status": 200, "body": {"id": "resp_1", "status": "cancelled"}})
        else:
            self._answer(f" background={body.get('background')} store={body.get('store')}")

    def _answer(self, more: str) -> None:
        with self.lock:
            self.asked.append(f"{self.command} {self.path}{more}")
            reply = self.replies[min(_Handler.given, len(self.replies) - 1)]
            _Handler.given += 1
        self._send(reply)

    def _send(self, reply: dict[str, Any]) -> None:
        events = reply.get("events")
        text = json.dumps(reply.get("body")) if events is None else "".join(map(_event, events))
        how = reply.get("how", "end")
        self.send_response(reply.get("status", 200))
        self.send_header("content-type", "application/json" if events is None else "text/event-stream")
        self.send_header("content-length", str(len(text.encode()) + (how != "end")))
        self.end_headers()
        self.wfile.write(text.encode())
        self.wfile.flush()
        if how == "hang":
            self.rfile.read(1)  # until the client leaves
        if how != "end":
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def _event(document: dict[str, Any]) -> str:
    return f"event: {document['type']}\ndata: {json.dumps(document)}\n\n"


if __name__ == "__main__":
    _Handler.replies = json.loads(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()

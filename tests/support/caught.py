"""A server that keeps every request as it came, byte for byte, and sends the answers that the test gave it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """With the query, escapes as they came."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Reply:
    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "application/json"})


@dataclass
class Catcher:
    url: str
    requests: list[Request] = field(default_factory=list)


@contextmanager
def caught(replies: Sequence[Reply] = (Reply(),)) -> Iterator[Catcher]:
    """Answers with the replies in turn, with the last one from then on."""
    catcher = Catcher("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            catcher.requests.append(Request(self.command, self.path, headers, body))
            reply = replies[min(len(catcher.requests), len(replies)) - 1]
            self.send_response(reply.status)
            for name, value in {**reply.headers, "content-length": str(len(reply.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    catcher.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield catcher
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

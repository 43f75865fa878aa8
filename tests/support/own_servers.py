"""Two servers in processes of their own: a chat server that says what it was sent, over TLS too, and an HTTP proxy that
writes down what went through it."""

from __future__ import annotations

import json
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

#: Of what a client sends: what tests look at.
_SHOWN = ("authorization", "x-api-key", "x-team", "x-knob", "via")


@dataclass
class Server:
    """One that runs."""

    url: str
    lines: list[str] = field(default_factory=list)
    """Of a proxy: what it was asked for, once it has ended."""


@contextmanager
def chat_server(*, certificate: Path | None = None, expired: tuple[str, ...] = ()) -> Iterator[Server]:
    """Speaks Chat Completions: the answer is the JSON of the model and of some headers that came. `certificate` (with
    its key) makes it HTTPS; the bearer tokens `expired` are refused with a 401."""
    given = {"certificate": str(certificate or ""), "expired": expired}
    with _process("chat", given) as server:
        yield server


@contextmanager
def proxy_server(*, password: str = "") -> Iterator[Server]:
    """An HTTP proxy; with a password, for the user "u" only."""
    with _process("proxy", {"password": password}) as server:
        yield server


@contextmanager
def _process(kind: str, given: object) -> Iterator[Server]:
    command = [sys.executable, __file__, kind, json.dumps(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = Server(process.stdout.readline().strip())
        try:
            yield server
        finally:
            process.terminate()
            server.lines += process.stdout.read().splitlines()


def told(text: str) -> dict[str, Any]:
    """What the chat server's answer says."""
    found: dict[str, Any] = json.loads(text)
    return found


def certificate_for(folder: Path) -> tuple[Path, Path]:
    """(the certificate of an authority of one's own, that of 127.0.0.1 with its key), both in PEM."""
    authority, server = folder / "authority.pem", folder / "server.pem"
    common = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-subj", "/CN=127.0.0.1", "-days", "2"]
    key = folder / "key.pem"
    subprocess.run([*common, *names, "-keyout", key, "-out", authority], check=True, capture_output=True, timeout=60)
    server.write_text(authority.read_text() + key.read_text())
    return authority, server


# -- in the processes


class _Chat(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    given: dict[str, Any]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("authorization", "").removeprefix("Bearer ") in self.given["expired"]:
            self._send(401, "application/json", json.dumps({"error": {"message": "token expired"}}))
            return
        said = {name: self.headers[name] for name in _SHOWN if name in self.headers}
        shown = json.dumps({"model": asked["model"], "body": {k: v for k, v in asked.items() if k[0] == "x"}, **said})
        choice = {"index": 0, "delta": {"content": shown}, "finish_reason": "stop"}
        self._send(200, "text/event-stream", f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")

    def _send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    given: dict[str, Any]

    def _is_let_in(self) -> bool:
        # "u:" and the password, as base64
        wanted = self.given["password"]
        return not wanted or self.headers.get("proxy-authorization") == f"Basic {wanted}"

    def do_CONNECT(self) -> None:
        sys.stdout.write(f"CONNECT {self.path}\n")
        sys.stdout.flush()
        if not self._is_let_in():
            self.send_error(407)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            sides = {self.connection: there, there: self.connection}
            while True:
                for ready in select.select(list(sides), [], [])[0]:
                    if not (data := ready.recv(65_536)):
                        return
                    sides[ready].sendall(data)

    def do_POST(self) -> None:
        sys.stdout.write(f"POST {urlsplit(self.path).netloc}\n")
        sys.stdout.flush()
        if not self._is_let_in():
            self.send_error(407)
            return
        body = self.rfile.read(int(self.headers["content-length"]))
        kept = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        with urlopen(Request(self.path, body, {**kept, "via": "1.1 the-proxy"}), timeout=10) as answer:
            data = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _serve(kind: str, given: dict[str, Any]) -> None:
    handler = _Chat if kind == "chat" else _Proxy
    handler.given = given
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    scheme = "http"
    if given.get("certificate"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(given["certificate"])
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    sys.stdout.write(f"{scheme}://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _serve(sys.argv[1], json.loads(sys.argv[2]))

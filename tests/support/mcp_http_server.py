"""An MCP server made by hand, over streamable HTTP: `python mcp_http_server.py PORT`, PORT 0 for any. Prints its port.

It speaks 2025-11-25, with a session that is gone when the process is. Its tools do to the connection what they are
called.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS = ("echo", "pid", "die", "half", "huge", "no_json", "wrong_type", "redirect", "gone", "error", "empty", "events")
SESSION = uuid.uuid4().hex


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.send_error(405)

    def do_DELETE(self) -> None:
        self.reply(b"", 200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = asked.get("method")
        if method == "initialize":
            info = {"name": "raw-http", "version": "0"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
            self.answer(asked, result, {"mcp-session-id": SESSION})
        elif method == "server/discover" or self.headers.get("mcp-session-id") != SESSION:
            self.reply(b"", 404)
        elif method == "tools/list":
            self.answer(asked, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]})
        elif method == "tools/call":
            getattr(self, f"tool_{asked['params']['name']}")(asked)
        else:
            self.reply(b"", 202)

    def answer(self, asked: dict[str, object], result: object, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        self.reply(body, 200, {"content-type": "application/json", **(headers or {})})

    def reply(self, body: bytes, status: int, headers: dict[str, str] | None = None, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def text(self, asked: dict[str, object], said: str) -> None:
        self.answer(asked, {"content": [{"type": "text", "text": said}]})

    # -- the tools

    def tool_echo(self, asked: dict[str, object]) -> None:
        self.text(asked, "echo")

    def tool_pid(self, asked: dict[str, object]) -> None:
        self.text(asked, str(os.getpid()))

    def tool_die(self, _: dict[str, object]) -> None:
        os._exit(3)

    def tool_half(self, _: dict[str, object]) -> None:
        self.reply(b'{"jsonrpc": "2.0", "id"', 200, {"content-type": "application/json"}, 1_000)
        self.close_connection = True

    def tool_huge(self, _: dict[str, object]) -> None:
        self.reply(b'{"x": "', 200, {"content-type": "application/json"}, 1_000_000_000)
        try:
            for _part in range(1_000):
                self.wfile.write(b"x" * 1_000_000)
        except OSError:
            self.close_connection = True

    def tool_no_json(self, _: dict[str, object]) -> None:
        self.reply(b"{]", 200, {"content-type": "application/json"})

    def tool_wrong_type(self, _: dict[str, object]) -> None:
        self.reply(b"<html>", 200, {"content-type": "text/html"})

    def tool_redirect(self, _: dict[str, object]) -> None:
        self.reply(b"", 307, {"location": "http://169.254.169.254/latest/meta-data"})

    def tool_gone(self, asked: dict[str, object]) -> None:
        """The server forgets the session once, as after a restart."""
        global SESSION
        SESSION, type(self).tool_gone = uuid.uuid4().hex, Handler.tool_echo  # type: ignore[method-assign]
        self.reply(b"", 404)

    def tool_error(self, _: dict[str, object]) -> None:
        self.reply(b"", 500)

    def tool_empty(self, _: dict[str, object]) -> None:
        self.reply(b"", 202)

    def tool_events(self, _: dict[str, object]) -> None:
        """A stream that breaks off, and cannot be taken up again."""
        self.reply(b"event: message\n", 200, {"content-type": "text/event-stream"})
        self.close_connection = True


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()

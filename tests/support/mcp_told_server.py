"""An MCP server that answers as a file says: `python mcp_told_server.py FILE` over stdio, `... FILE http` over HTTP.

FILE is JSON: by method the answers, each `{"result": ...}` or `{"error": ...}`, with "status" and "events" for HTTP. Of
a list they are by cursor, of a call by the tool's name, of a prompt by its name, of a resource by its uri. "hang" does
not answer. Over HTTP it prints its port, and a session that it does not know is answered with "unknown_session".
"""

from __future__ import annotations

import json
import sys
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FILE = Path(sys.argv[1])
SESSIONS: set[str] = set()


def answer(asked: dict[str, Any]) -> dict[str, Any] | None:
    """What is to be sent; None for nothing."""
    told = json.loads(FILE.read_text())  # each time: a test changes it
    method, params = asked.get("method", ""), asked.get("params") or {}
    if "id" not in asked or not method:
        return None
    if method == "initialize":
        capabilities = {"tools": {}, "resources": {}, "prompts": {}}
        info = {"name": "told", "version": "0"}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    of_method = told.get(method)
    if of_method is None:
        return {"error": {"code": -32601, "message": "Method not found"}}
    if method.endswith("/list"):
        found = of_method[params.get("cursor", "")]
    else:
        found = of_method[params["name" if "name" in params else "uri"]]
    if found == "die":
        sys.exit(3)
    return None if found == "hang" else found


def message(asked: dict[str, Any], told: dict[str, Any]) -> str:
    kept = {name: told[name] for name in ("result", "error") if name in told}
    return json.dumps({"jsonrpc": "2.0", "id": asked["id"], **kept})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.send_error(405)

    def do_DELETE(self) -> None:
        self.reply("", 200, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = asked.get("method")
        if method == "server/discover":
            self.reply("", 404, {})
            return
        headers = {"content-type": "application/json"}
        told = answer(asked)
        if method == "initialize":
            SESSIONS.clear()
            SESSIONS.add(uuid.uuid4().hex)
            headers["mcp-session-id"] = next(iter(SESSIONS))
        elif method == "tools/call" and asked["params"]["name"] == "forget":
            SESSIONS.clear()
        elif self.headers.get("mcp-session-id") not in SESSIONS:
            told = json.loads(FILE.read_text())["unknown_session"]
        if told is None:
            self.reply("", 202, {})
        elif told.get("events"):
            said = f"event: message\ndata: {message(asked, told)}\n\n" if len(told) > 1 else ": nothing\n\n"
            self.reply(said, 200, {**headers, "content-type": "text/event-stream"})
            self.close_connection = True
        else:
            self.reply(message(asked, told), told.get("status", 200), headers)

    def reply(self, body: str, status: int, headers: dict[str, str]) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    if sys.argv[2:] == ["http"]:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()
    for line in sys.stdin:
        asked = json.loads(line)
        if (told := answer(asked)) is not None:
            sys.stdout.write(told["raw"] if "raw" in told else message(asked, told) + "\n")
            sys.stdout.flush()


main()

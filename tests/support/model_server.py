"""A small real HTTP server in a process of its own that answers like a model API, from a script.

    with ModelServer([stream(text="Hello")]) as server:
        provider = provider_for("openai-compatible/any", base_url=server.base_url)
        ...
        server.stats().bodies        # what it was asked

Each POST gets the next answer of the script; with `by_turn` the answer is picked by the number of model turns after the
last user message, so that any number of conversations can run the same script side by side. Beyond the end of it the
answer is HTTP 500; below /deaf there is none, the connection closes. Standard library only: the file runs by itself as
the server process.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.request import urlopen

_EXIT_SECONDS = 5.0


@dataclass(frozen=True)
class Answer:
    """One HTTP answer: status, headers and steps."""

    steps: tuple[tuple[str, str | float], ...] = ()
    """("send", text), ("pause", seconds), ("stall", 0): nothing more comes, ("cut", 0): the connection breaks,
    ("hangup", 0): the answer ends in good order, and then the connection is closed without a word."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})


@dataclass(frozen=True)
class Stats:
    """What the server has seen."""

    connections: int
    """Opened in its life."""
    open_connections: int
    """Open now."""
    abandoned: int
    """Answers whose client went away before their end."""
    bodies: list[Any]
    """Request bodies, parsed, in order of arrival."""
    headers: list[dict[str, str]]
    """Their headers, names in lower case."""
    paths: list[str]


def sse(*documents: Any) -> str:
    """Documents as server-sent events; a str is sent as it is."""
    return "".join(f"data: {doc if isinstance(doc, str) else json.dumps(doc)}\n\n" for doc in documents)


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """One Chat Completions chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "fake-1", "choices": [choice], **fields}


def usage(prompt: int = 11, completion: int = 7) -> dict[str, Any]:
    """The trailing chunk with usage."""
    tokens = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "fake-1", "choices": [], "usage": tokens}


def stream(text: str = "", calls: Sequence[tuple[str, str, str]] = (), fragment: int = 4, pause: float = 0.0) -> Answer:
    """A turn of `text` and `calls` (id, name, arguments), the arguments in interleaved fragments of that many chars."""
    documents: list[Any] = [chunk({"role": "assistant", "content": "" if text else None})]
    documents += [chunk({"content": piece}) for piece in _pieces(text, fragment)]
    for index, (call_id, name, _) in enumerate(calls):
        function = {"name": name, "arguments": ""}
        documents.append(
            chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
        )
    cut = [_pieces(arguments, fragment) for _, _, arguments in calls]
    for turn in range(max(map(len, cut), default=0)):
        for index, pieces in enumerate(cut):
            if turn < len(pieces):
                documents.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": pieces[turn]}}]}))
    documents += [chunk(finish="tool_calls" if calls else "stop"), usage(), "[DONE]"]
    steps: list[tuple[str, str | float]] = []
    for document in documents:
        steps.append(("send", sse(document)))
        if pause:
            steps.append(("pause", pause))
    return Answer(tuple(steps))


def error(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """An error answer: a JSON document, or text."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = "text/html" if isinstance(body, str) else "application/json"
    return Answer((("send", text),), status, {"content-type": kind, **(headers or {})})


def stall(text: str = "") -> Answer:
    """Says `text`, then nothing, and keeps the connection open."""
    return Answer((("send", sse(chunk({"content": text}))), ("stall", 0.0)))


def cut(text: str = "") -> Answer:
    """Says `text`, then breaks the connection."""
    return Answer((("send", sse(chunk({"content": text}))), ("cut", 0.0)))


class ModelServer:
    """The server process, as a context manager."""

    def __init__(self, script: Iterable[Answer], by_turn: bool = False) -> None:
        self._settings = {"by_turn": by_turn, "script": [asdict(answer) for answer in script]}

    def __enter__(self) -> ModelServer:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(self._settings) + "\n")
        self._process.stdin.flush()
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        # Closing its standard input ends it: it cannot outlive the test, however that ends.
        self._process.communicate(timeout=_EXIT_SECONDS)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def stats(self) -> Stats:
        """What the server has seen so far."""
        with urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=_EXIT_SECONDS) as answer:
            return Stats(**json.load(answer))

    def wait_until(self, condition: Callable[[Stats], bool]) -> Stats:
        """The figures, as soon as they meet the condition; an AssertionError when they do not in five seconds."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while not condition(stats := self.stats()):
            assert time.monotonic() < deadline, stats
        return stats


def _pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


class _Server:
    """Runs in the child process."""

    def __init__(self, script: list[dict[str, Any]], by_turn: bool) -> None:
        self.script = script
        self.by_turn = by_turn
        self.stats = Stats(0, 0, 0, [], [], [])
        self.counts = {"connections": 0, "open_connections": 0, "abandoned": 0}

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._counted():
            try:
                while await self._request(reader, writer):
                    pass
            except (ConnectionError, asyncio.IncompleteReadError):
                return
            finally:
                writer.close()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.counts["connections"] += 1
        self.counts["open_connections"] += 1
        yield
        self.counts["open_connections"] -= 1

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is to be closed."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        method, path, _ = head.split(" ", 2)
        pairs = [line.split(":", 1) for line in head.split("\r\n")[1:] if ":" in line]
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if method == "GET":
            self.counts["connections"] -= 1  # asking for the figures is not part of them
            self.counts["open_connections"] -= 1
            document = json.dumps({**asdict(self.stats), **self.counts}).encode()
            self.counts["open_connections"] += 1
            length = f"content-length: {len(document)}\r\nconnection: close\r\n\r\n"
            writer.write(f"HTTP/1.1 200 OK\r\n{length}".encode() + document)
            await writer.drain()
            return False
        request = json.loads(body)
        self.stats.bodies.append(request)
        self.stats.headers.append(headers)
        self.stats.paths.append(path)
        if path.startswith("/deaf"):
            return False
        return await self._answer(self._pick(request), reader, writer)

    def _pick(self, request: dict[str, Any]) -> dict[str, Any]:
        number = len(self.stats.bodies) - 1
        if self.by_turn:
            roles = [message["role"] for message in request["messages"]]
            last_user = max((place for place, role in enumerate(roles) if role == "user"), default=0)
            number = roles[last_user:].count("assistant")
        if number < len(self.script):
            return self.script[number]
        return asdict(error(500, {"error": {"message": f"the script has no answer {number}"}}))

    async def _answer(self, answer: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        fields = {**answer["headers"], "transfer-encoding": "chunked"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {answer['status']} Scripted\r\n{lines}\r\n".encode())
        for verb, value in answer["steps"]:
            if verb == "send" and value:
                data = str(value).encode()
                writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                await writer.drain()
            elif verb == "cut":
                writer.transport.abort()
                return False
            elif verb in ("stall", "pause") and await self._client_left(reader, value if verb == "pause" else None):
                self.counts["abandoned"] += 1
                return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return all(verb != "hangup" for verb, _ in answer["steps"])

    @staticmethod
    async def _client_left(reader: asyncio.StreamReader, seconds: float | None) -> bool:
        """Wait, for so long or for ever; True when the client hung up meanwhile."""
        try:
            async with asyncio.timeout(seconds):
                return await reader.read(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


async def _serve() -> None:
    settings = json.loads(await asyncio.to_thread(sys.stdin.readline))
    server = _Server(**settings)
    listener = await asyncio.start_server(server.connection, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{listener.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    listener.close()


if __name__ == "__main__":
    asyncio.run(_serve())

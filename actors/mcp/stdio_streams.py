"""An MCP server as a child process, spoken to over its pipes: one JSON text a line.

The SDK's own transport keeps a line in memory however long it is, and gives the server our stderr. Here a frame is
bounded, what the server writes besides is read at a bounded pace, and its whole process group ends with the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.judged_streams import NOT_READABLE, mended
from callboard.actors.mcp.mcp_servers import McpServer
from callboard.actors.mcp.server_thread import MAX_FRAME_BYTES, mark_sent
from callboard.actors.processes.linux import IS_LINUX
from callboard.actors.processes.spawning import interpreter, is_frozen
from callboard.protocol.errors import UsageError
from callboard.protocol.masking import for_log

logger = logger_of("callboard.mcp")

_READ_BYTES: Final = 65_536
#: Messages that are no answers (notifications, requests) read in a row before others of the loop get PAUSE_SECONDS: a
#: flood comes to 2,000 a second, and a server that floods waits at its pipe.
FLOOD: Final = 100
PAUSE_SECONDS: Final = 0.05
#: Of a line on stderr, and lines that are logged a second; the last of them are kept for the error that a failed start
#: ends with.
MAX_STDERR_LINE: Final = 2_000
STDERR_LINES_A_SECOND: Final = 50
KEPT_STDERR_LINES: Final = 5
#: For a server to end after its stdin was closed, and after SIGTERM (the order of the protocol's page "Lifecycle").
CLOSE_SECONDS: Final = 1.0
TERMINATE_SECONDS: Final = 0.5
_ID: Final = re.compile(rb'"id"\s*:\s*(\d{1,18}|"[^"\\]{1,64}")')
#: Where the id of an answer is looked for that cannot be read: SDKs write it first or last.
_ID_WITHIN: Final = 256


class ServerProcess:
    """The child process and its two streams: an async context manager, as the SDK wants a transport to be."""

    def __init__(self, name: str, server: McpServer, environment: Mapping[str, str]) -> None:
        self._name = name
        self._server = server
        self._environment = {**environment, **server.env}
        self._process: asyncio.subprocess.Process | None = None
        self._errors: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Its stdout has ended."""
        self.last_words: deque[str] = deque(maxlen=KEPT_STDERR_LINES)
        """Of its stderr."""

    async def __aenter__(self) -> TransportStreams:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
            cwd=self._server.cwd,
            start_new_session=True,
            limit=_READ_BYTES,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._errors = asyncio.get_running_loop().create_task(self._read_errors(process.stderr))
        return Frames(process.stdout, self.ended, self._name), FrameWriter(process.stdin)

    async def __aexit__(self, *_: object) -> None:
        """End it, asking first. Does not raise, and takes at most the two times together."""
        process = self._process
        if process is None:
            return
        try:
            if process.stdin is not None:
                process.stdin.close()
            if not await self._has_ended(CLOSE_SECONDS):
                self._signal(signal.SIGTERM)
                await self._has_ended(TERMINATE_SECONDS)
        finally:
            self.kill()
            if self._errors is not None:
                self._errors.cancel()
            process._transport.close()  # type: ignore[attr-defined]  # else it waits for pipes that grandchildren hold

    def kill(self) -> None:
        """End it and all of its process group at once; from any thread."""
        self._signal(signal.SIGKILL)

    def why(self, what: str) -> str:
        """What went wrong, with what the server last said on stderr."""
        said = "; it wrote: " + " | ".join(self.last_words) if self.last_words else ""
        return f"{what}{said}"

    def _command(self) -> list[str]:
        """As it is started: on Linux by way of some lines that have it killed when our thread ends, however it ends,
        and before us where memory runs out."""
        command = shutil.which(self._server.command, path=self._environment.get("PATH"))
        if command is None:
            raise UsageError(f"there is no command {self._server.command!r}; install it, or name it with its path")
        whole = [str(Path(command).absolute()), *self._server.args]
        if not IS_LINUX or is_frozen():
            return whole
        return [*interpreter(_LAUNCH), *whole]

    async def _has_ended(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        """Log what it writes to stderr, a bounded number of lines a second."""
        loop = asyncio.get_running_loop()
        begun, lines, dropped = loop.time(), 0, 0
        async for line, is_whole in _frames(stderr, MAX_STDERR_LINE):
            if loop.time() - begun >= 1:
                if dropped:
                    logger.info("MCP server %s: %d more lines on stderr", self._name, dropped)
                begun, lines, dropped = loop.time(), 0, 0
            if lines >= STDERR_LINES_A_SECOND:
                dropped += 1
                continue
            lines += 1
            text = for_log(line.decode(errors="replace").rstrip()) if is_whole else "(a line that is too long)"
            if text:
                self.last_words.append(text[:200])
                logger.info("MCP server %s: %s", self._name, text)


#: PR_SET_PDEATHSIG counts from the thread that forks, and outlives exec.
_LAUNCH: Final = """\
import os, signal
from callboard.actors.processes.linux import die_with_parent, make_expendable
parent = os.getppid()
die_with_parent(signal.SIGKILL)
make_expendable()
if os.getppid() == parent:
    os.execv(sys.argv[1], sys.argv[1:])
"""


async def _frames(stream: asyncio.StreamReader, most: int) -> AsyncIterator[tuple[bytes, bool]]:
    """The lines of a stream, and whether each is whole; of one longer than `most` only the beginning and the end."""
    kept, is_whole = bytearray(), True
    while data := await stream.read(_READ_BYTES):
        *whole, rest = data.split(b"\n")
        for part in whole:
            kept += part
            yield bytes(kept), is_whole and len(kept) <= most
            kept, is_whole = bytearray(), True
        kept += rest
        if len(kept) > most:
            is_whole = False
            del kept[_ID_WITHIN:-_ID_WITHIN]


class _Stream:
    """What the SDK's streams have in common."""

    async def aclose(self) -> None:
        """The process ends with its ServerProcess."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        return None


class Frames(_Stream):
    """What the server writes to its stdout: messages; a line that is none is left out."""

    def __init__(self, stdout: asyncio.StreamReader, ended: asyncio.Event, name: str) -> None:
        self._messages = self._read(stdout)
        self._ended = ended
        self._name = name

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return await anext(self._messages)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await anext(self._messages)
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _read(self, stdout: asyncio.StreamReader) -> AsyncIterator[SessionMessage]:
        unasked = 0
        try:
            async for line, is_whole in _frames(stdout, MAX_FRAME_BYTES):
                message = self._message(line, is_whole)
                if message is None:
                    continue
                yield SessionMessage(message)
                unasked = unasked + 1 if not hasattr(message, "result") else 0
                if unasked % FLOOD == FLOOD - 1:
                    await asyncio.sleep(PAUSE_SECONDS)
        except ConnectionError as error:
            logger.info("MCP server %s: its stdout broke: %s", self._name, error)
        finally:
            self._ended.set()

    def _message(self, line: bytes, is_whole: bool) -> JSONRPCMessage | None:
        """A line as a message. In place of an answer that cannot be read, an error for what it answers."""
        why = f"the answer has more than {MAX_FRAME_BYTES:,} bytes"
        if is_whole:
            try:
                return jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                if (text := mended(line)) is not None:
                    return jsonrpc_message_adapter.validate_json(text, by_name=False)
                why = "the answer is not valid JSON-RPC"
        if found := _ID.search(line[:_ID_WITHIN]) or _ID.search(line[-_ID_WITHIN:]):
            answered = found[1].decode(errors="replace")
            asked = int(answered) if answered.isdigit() else answered.strip('"')
            return JSONRPCError(
                jsonrpc="2.0", id=asked, error=ErrorData(code=PARSE_ERROR, message=why, data=NOT_READABLE)
            )
        if line.strip():
            logger.debug("MCP server %s: a line on its stdout is no message", self._name)
        return None


class FrameWriter(_Stream):
    """What the server reads from its stdin."""

    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin

    async def send(self, item: SessionMessage) -> None:
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        if self._stdin.is_closing():
            raise anyio.ClosedResourceError
        if isinstance(item.message, JSONRPCRequest):
            mark_sent()
        try:
            self._stdin.write(data)
            await self._stdin.drain()
        except (ConnectionError, RuntimeError):
            raise anyio.BrokenResourceError from None

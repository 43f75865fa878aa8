"""`callboard acp`: callboard in an editor, by the Agent Client Protocol over stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import stat
import sys
from collections.abc import Iterator

import orjson
from acp import run_agent

from callboard.actors.cli.acp_agent import EditorAgent
from callboard.actors.cli.model_choice import with_model
from callboard.actors.cli.terminal import printable
from callboard.actors.cli.workspace_setup import set_up
from callboard.protocol.errors import UsageError
from callboard.protocol.masking import for_log

#: The SDK's own bound of a message (acp.core): pictures come within one.
MAX_MESSAGE_BYTES = 50 * 1024 * 1024


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Serve one editor until it closes stdin. Nothing but the protocol goes to stdout."""
    _check_streams()
    with _protocol_output() as output, _log_on_one_line():
        given = set_up(options)
        settings = await with_model(given.settings)
        if given.note:
            sys.stderr.write(f"callboard: {printable(given.note)}\n")
        agent = EditorAgent(settings, given.tools)
        try:
            reader, writer = await _streams(output)
            await run_agent(agent, JsonLines(reader, writer))  # type: ignore[arg-type]  # it has what we answer
        finally:
            await agent.close()


def _check_streams() -> None:
    """Raises UsageError where nobody can be at the other end."""
    for number, name in enumerate(("stdin", "stdout")):
        kind = os.fstat(number).st_mode
        if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) or os.isatty(number)):
            raise UsageError(f"{name} is no pipe: `callboard acp` is started by an editor, which speaks with it there")


@contextlib.contextmanager
def _protocol_output() -> Iterator[int]:
    """A descriptor of what was stdout; what else is printed, also by files of tools and by children, goes to stderr."""
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        yield output
    finally:
        with contextlib.suppress(OSError):  # the stream of the protocol has closed it
            os.close(output)


async def _streams(output: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    file = os.fdopen(output, "wb", buffering=0, closefd=False)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, file)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


class JsonLines:
    """Messages as lines of JSON. A line that is no object is left out: the SDK's own reader ends at one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: dict[str, object]) -> None:
        """Raises ConnectionError when the editor is gone."""
        self._writer.write(orjson.dumps(message) + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, object] | None:
        """The next message; None at the end."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:  # longer than MAX_MESSAGE_BYTES: the reader has dropped it
                logging.getLogger(__name__).warning("a message of more than %d bytes was left out", MAX_MESSAGE_BYTES)
                continue
            if not line:
                return None
            try:
                found = orjson.loads(line)
            except orjson.JSONDecodeError:
                found = None
            if isinstance(found, dict):
                return found
            logging.getLogger(__name__).warning("a line that is no JSON object was left out")

    async def close(self) -> None:
        """The editor reads the end."""
        self._writer.close()


@contextlib.contextmanager
def _log_on_one_line() -> Iterator[None]:
    """Warnings, also of the SDK about messages that are none: without tracebacks and keys."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainLine())
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class _PlainLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The message without what the SDK appends of an exception."""
        return f"callboard: {record.levelname.lower()}: {printable(for_log(record.getMessage()))}"

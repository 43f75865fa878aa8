"""`callboard mcp`: the tools of a workspace, and of files, for MCP clients."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType

from mcp.server.lowlevel import Server

import callboard
from callboard import Runtime, UsageError
from callboard.actors.cli.terminal import printable
from callboard.actors.cli.workspace_setup import set_up
from callboard.actors.index import IndexWriteError
from callboard.actors.mcp.serving import Address, serve_http, serve_stdio, token_of
from callboard.actors.mcp.tool_server import ToolServer, approve

logger = logging.getLogger("callboard.mcp")


async def run(options: argparse.Namespace, known: dict[str, object]) -> None:
    """Serve until the client closes stdin, or over HTTP until SIGINT or SIGTERM. Only messages of MCP go to stdout."""
    address = None if options.http is None else Address.of(options.http)
    _check(options, address)
    with contextlib.redirect_stdout(sys.stderr):  # what files of tools print while they are loaded
        given = set_up(options)
    modules = [sys.modules[path.stem] for path in options.tools]
    token = "" if address is None or options.no_token else token_of(options.token_file)
    with _log_to_stderr():
        if given.note:
            logger.warning("%s", given.note)
        async with Runtime(given.settings, given.tools, approve=approve) as runtime:
            serving = ToolServer(runtime, _beside(modules), callboard.__version__)
            indexing = asyncio.ensure_future(_refresh(runtime))
            try:
                if address is None:
                    await serve_stdio(serving)
                else:
                    shown = token if options.token_file is None else ""
                    await serve_http(serving, address, token, lambda url: _say(url, shown))
            finally:
                indexing.cancel()


def _check(options: argparse.Namespace, address: Address | None) -> None:
    if address is None:
        for name in ("token_file", "no_token"):
            if getattr(options, name):
                raise UsageError(f"--{name.replace('_', '-')} is about HTTP; give --http, too")
    elif options.no_token and options.token_file is not None:
        raise UsageError("--no-token and --token-file contradict each other; leave one out")
    elif options.no_token and not address.is_loopback:
        raise UsageError(f"--no-token would let anyone who reaches {address.host} call tools; leave it out")


def _beside(modules: list[ModuleType]) -> Server[object] | None:
    """A server of the SDK that a file defines, for its resources and prompts."""
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Server)]
    if len(found) > 1:
        raise UsageError("--tools: more than one MCP server is defined; put their resources and prompts into one")
    return found[0] if found else None


def _say(url: str, token: str) -> None:
    """Where the server is, and the token where it is in no file: once, for the one who has started it."""
    lines = [f"MCP server: {url}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    sys.stderr.write("".join(f"callboard: {line}\n" for line in lines))
    sys.stderr.flush()


async def _refresh(runtime: Runtime) -> None:
    """Code search finds more as it goes on; a full disk is no reason not to serve."""
    try:
        await runtime.refresh_index()
    except (IndexWriteError, UsageError) as error:
        logger.warning("the workspace could not be indexed: %s", error)


@contextlib.contextmanager
def _log_to_stderr() -> Iterator[None]:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


class _OneLine(logging.Formatter):
    """Without tracebacks; what tools and clients wrote cannot move a terminal's cursor."""

    def format(self, record: logging.LogRecord) -> str:
        return f"callboard: {record.levelname.lower()}: {printable(record.getMessage())}"

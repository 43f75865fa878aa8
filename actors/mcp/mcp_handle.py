"""McpHandle: what a program reads of an MCP server besides its tools: resources, prompts, how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from callboard.actors.mcp.remote_values import RemoteTool, ServerStatus
from callboard.actors.mcp.server_link import Connected, ServerLink
from callboard.actors.mcp.server_thread import RemoteError
from callboard.protocol.errors import RuntimeFailure

T = TypeVar("T")

#: For a server to answer.
ANSWER_SECONDS = 30.0


class McpHandle:
    """One MCP server of a runtime: `runtime.mcp("files")`. What it gives are the JSON objects of the protocol.

    Its methods raise RuntimeFailure where the server is not there, does not answer or refuses. What it sends is not
    the owner's own words: show it to a model as untrusted text.
    """

    def __init__(self, link: ServerLink) -> None:
        self._link = link

    @property
    def status(self) -> ServerStatus:
        """How it is now."""
        return self._link.status

    @property
    def tools(self) -> tuple[RemoteTool, ...]:
        """Its tools in its own words, also those that are offered to no model."""
        return self._link.described

    async def resources(self) -> Sequence[Mapping[str, object]]:
        """What it offers to read: `uri`, `name` and what else it says of each."""
        return await self._ask(lambda connection: connection.resources())

    async def read_resource(self, uri: str) -> Sequence[Mapping[str, object]]:
        """The contents of a resource: each with its `uri`, and `text` or `blob` (base64)."""
        result = await self._ask(lambda connection: connection.read_resource(uri))
        contents = result.get("contents")
        return contents if isinstance(contents, list) else []

    async def prompts(self) -> Sequence[Mapping[str, object]]:
        """Its prompts: `name`, `arguments` and what else it says of each."""
        return await self._ask(lambda connection: connection.prompts())

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Sequence[Mapping[str, object]]:
        """The messages of a prompt: each with its `role` and `content`."""
        result = await self._ask(lambda connection: connection.prompt(name, arguments or {}))
        messages = result.get("messages")
        return messages if isinstance(messages, list) else []

    async def _ask(self, run: Callable[[Connected], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await self._link.ask(run)
        except TimeoutError:
            raise RuntimeFailure(f"MCP server {self._link.name} did not answer in {ANSWER_SECONDS:g} s") from None
        except RemoteError as error:
            raise RuntimeFailure(f"MCP server {self._link.name}: {error}") from None

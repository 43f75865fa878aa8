"""What is known of one MCP server, and how its tools reach it: it outlives the connections, which come and go.

The actor says how the connection is (server_actor.py), the tools ask by it, all from threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Awaitable, Callable, Container, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.known_tools import KnownTools
from callboard.actors.mcp.mcp_servers import McpServer
from callboard.actors.mcp.remote_tools import Offered, OfferedTool, RemoteCall, offered_tools
from callboard.actors.mcp.remote_values import Listing, RemoteTool, ServerFacts, ServerState, ServerStatus
from callboard.actors.mcp.server_thread import NotSent, ServerThread
from callboard.actors.tools.context import ToolContext

logger = logger_of("callboard.mcp")

T = TypeVar("T")

#: Connections that one request is given to: each of those before was lost before it was sent.
MAX_SENDS: Final = 3
#: For a server that is being started again; then the call fails, where its own deadline is not sooner.
RECONNECT_SECONDS: Final = 5.0
#: Tools that are left out, in the log; `ServerStatus.left_out` has all.
LOGGED: Final = 10
#: Before a call's deadline: to say that the server is not there is more than to be timed out.
LAST_WORD_SECONDS: Final = 0.2


class Connected(Protocol):
    """A connection, on its thread. Raises RemoteError."""

    async def call(self, call: RemoteCall) -> dict[str, object]: ...
    async def read_resource(self, uri: str) -> dict[str, object]: ...
    async def resources(self) -> list[dict[str, object]]: ...
    async def prompts(self) -> list[dict[str, object]]: ...
    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]: ...


class AskedFor(Struct, frozen=True):
    """For which call something is asked of a server."""

    context: ToolContext
    asker: Context


class _Live(Struct, frozen=True):
    """A connection that takes requests."""

    thread: ServerThread
    connection: Connected


class ServerLink:
    """See the module. `changed` is called, from any thread, when its tools are others than before."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        taken: Callable[[str], Container[str]],
        changed: Callable[[ServerLink], object],
        known: KnownTools,
    ) -> None:
        self.name = name
        self.server = server
        self._taken = taken
        self._changed = changed
        self._lock = threading.RLock()
        self._live: Future[_Live] = Future()
        self._facts = ServerFacts("", "")
        self._listing: Listing | None = None
        self._offered = Offered()
        self._known = known
        self._status = ServerStatus(name, ServerState.STARTING)
        self.settled = threading.Event()
        """Set once it is known whether the first connection succeeds."""

    @property
    def tools(self) -> tuple[OfferedTool, ...]:
        """What is offered of it now."""
        return self._offered.tools

    @property
    def status(self) -> ServerStatus:
        """How it is now."""
        with self._lock:
            names = tuple(tool.name for tool in self._offered.tools)
            facts = self._facts
            return replace(
                self._status,
                title=facts.title,
                revision=facts.revision,
                tools=names,
                left_out=self._offered.left_out,
            )

    @property
    def described(self) -> tuple[RemoteTool, ...]:
        """Its tools as it describes them itself."""
        return self._listing.tools if self._listing is not None else ()

    # -- what the actor says

    def listed(self, thread: ServerThread, connection: Connected, facts: ServerFacts, listing: Listing) -> None:
        """A connection is there, or its server has other tools than before."""
        self._known.meet(listing.tools)  # it writes a file, for which no reader of the status is to wait
        with self._lock:
            self._facts, self._listing = facts, listing
            self._offer(listing)
            if self._status.state is not ServerState.READY:
                made = self._status.connections + 1
                self._status = replace(self._status, state=ServerState.READY, reason="", connections=made)
            if not self._live.done():
                self._live.set_result(_Live(thread, connection))
        self.settled.set()
        self._changed(self)

    def lost(self, thread: ServerThread, why: str) -> None:
        """The connection has ended, or could not be made; another one is being made. Its tools stay offered."""
        with self._lock:
            self._drop(thread)
            self._status = replace(self._status, state=ServerState.STARTING, reason=why)
        self.settled.set()

    def over(self, state: ServerState, why: str = "") -> None:
        """It is not started again: none of its tools is offered, and who waits for it waits no more."""
        with self._lock:
            self._status = replace(self._status, state=state, reason=why or self._status.reason)
            self._offered = Offered()
            if self._live.done():
                self._live = Future()
            self._live.set_exception(NotSent(why or f"the MCP server {self.name} was stopped"))
        self.settled.set()
        self._changed(self)

    def starts_again(self) -> None:
        """The runtime was stopped, and is started once more."""
        with self._lock:
            self._status = replace(self._status, state=ServerState.STARTING)
            self._live = Future()
            self.settled.clear()

    # -- what its tools ask (Remote)

    async def call(self, call: RemoteCall, context: ToolContext) -> Mapping[str, object]:
        return await self.ask(lambda connection: connection.call(call), context)

    async def read_resource(self, uri: str, context: ToolContext) -> Mapping[str, object]:
        return await self.ask(lambda connection: connection.read_resource(uri), context)

    async def resources(self, context: ToolContext) -> list[dict[str, object]]:
        return await self.ask(lambda connection: connection.resources(), context)

    async def accept(self, tool: RemoteTool) -> None:
        """A call of a tool that has changed was approved: from now on it is known as it is now."""
        if not self._known.knows(tool):
            await asyncio.to_thread(self._accept, tool)

    def _accept(self, tool: RemoteTool) -> None:
        self._known.accept(tool)
        with self._lock:
            if self._listing is not None:
                self._offer(self._listing)
        self._changed(self)

    async def ask(self, run: Callable[[Connected], Awaitable[T]], context: ToolContext | None = None) -> T:
        """Ask the server, by the connection that there is or the one that comes next. Raises RemoteError.

        It is sent again only where it was certainly not sent.
        """
        about = AskedFor(context, copy_context()) if context is not None else None
        seconds = RECONNECT_SECONDS
        if context is not None:
            seconds = min(seconds, context.remaining_seconds - LAST_WORD_SECONDS)
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        failed = NotSent(f"the MCP server {self.name} is not there")
        for _ in range(MAX_SENDS):
            live = await self._wait_for_live(until - loop.time())
            try:
                errand = live.thread.do(lambda live=live: run(live.connection), about)  # type: ignore[misc]
                return await asyncio.wrap_future(errand.result)
            except NotSent as error:
                failed = error
                with self._lock:
                    self._drop(live.thread)
        raise failed

    async def _wait_for_live(self, seconds: float) -> _Live:
        with self._lock:
            waiting = self._live
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(asyncio.wrap_future(waiting))
        except TimeoutError:
            reason = self._status.reason
            why = f"the MCP server {self.name} has not come back{f': {reason}' if reason else ''}"
            raise NotSent(why) from None

    def _drop(self, thread: ServerThread) -> None:
        """This connection takes no more."""
        with contextlib.suppress(NotSent):
            if self._live.done() and self._live.result().thread is thread:
                self._live = Future()

    def _offer(self, listing: Listing) -> None:
        changed = self._known.meet(listing.tools)
        self._offered = offered_tools(self, self.server, self._facts, listing, self._taken(self.name), changed)
        left_out = self._offered.left_out
        for name, why in itertools.islice(left_out.items(), LOGGED):
            logger.warning("MCP server %s: its tool %r is left out: %s", self.name, name[:100], why)
        if len(left_out) > LOGGED:
            logger.warning("MCP server %s: %d more are left out", self.name, len(left_out) - LOGGED)
        if changed:
            shown = [f"{name[:100]!r}: {why}" for name, why in sorted(changed.items())]
            logger.warning("MCP server %s: these tools are asked about: %s", self.name, "; ".join(shown))

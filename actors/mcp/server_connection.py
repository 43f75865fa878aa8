"""One connection to an MCP server, through the SDK: from its handshake to its end, in one task of its ServerThread.

Loaded late: the SDK takes 0.8 s to import. What comes out of here are plain values (remote_values.py), and the errors
of server_thread.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from pathlib import Path
from typing import Final, Generic, TypeVar

import mcp_types as types
from mcp.client import Client, ClientRequestContext, ClientSession, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, TypeAdapter, ValidationError

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.http_client import http_client
from callboard.actors.mcp.judged_streams import (
    MAX_NAME_CHARS,
    MAX_NAMED,
    MAX_WHY_CHARS,
    NOT_READABLE,
    FromServer,
    JudgedTransport,
)
from callboard.actors.mcp.mcp_servers import McpServer, inherited_environment
from callboard.actors.mcp.oauth_login import signed_in
from callboard.actors.mcp.remote_tools import RemoteCall
from callboard.actors.mcp.remote_values import Elicit, ElicitForm, Listing, RemoteTool, ServerFacts
from callboard.actors.mcp.server_thread import (
    MAX_FRAME_BYTES,
    AnyErrand,
    BadAnswer,
    ConnectionLost,
    NotSent,
    RemoteError,
    ServerRefused,
    ServerThread,
    errand_of_context,
    first_cause,
    mark_failed,
)
from callboard.actors.mcp.stdio_streams import ServerProcess
from callboard.actors.policy.addresses import NONE_ALLOWED, AllowedAddresses, CheckedAddress, checked_address
from callboard.actors.tools.invoke import shortened
from callboard.protocol.content import json_text

logger = logger_of("callboard.mcp")

T = TypeVar("T")
Named = TypeVar("Named", bound=types.BaseMetadata)

#: Tools of one server, and pages of its list: more are left out, and told so. A model cannot choose among more.
MAX_TOOLS: Final = 512
MAX_PAGES: Final = 64
#: For a list, a resource or a prompt to come.
LIST_SECONDS: Final = 30.0
#: Between two readings of a list that its server says has changed, or may have (ttlMs).
RELIST_SECONDS: Final = 1.0
MIN_TTL_SECONDS: Final = 30.0
#: Of what is left out of an answer, in the log; and of the data that comes with an error.
LOGGED: Final = 10
MAX_DATA_CHARS: Final = 1_000
#: Rounds of questions in one call (2026-07-28), as the SDK has it.
MAX_ROUNDS: Final = 10
_MODES: Final = {"auto": "auto", "2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
#: How the SDK's errors begin that say, over HTTP, that it could not read an answer.
_UNREADABLE: Final = ("Failed to parse ", "SSE stream failed: ")
#: Under which it is told that a list was not read to its end.
_REST: Final = "further pages"

_CallResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_ReadResult: TypeAdapter[types.ReadResourceResult | types.InputRequiredResult] = TypeAdapter(
    types.ReadResourceResult | types.InputRequiredResult
)
_PromptResult: TypeAdapter[types.GetPromptResult | types.InputRequiredResult] = TypeAdapter(
    types.GetPromptResult | types.InputRequiredResult
)


class _Found(Struct, Generic[Named]):
    """What was read of a list."""

    items: list[Named]
    left_out: dict[str, str]
    broke_off: bool = False
    """One of its pages did not come."""


class ServerConnection:
    """See the module. Its coroutines run on the thread."""

    def __init__(
        self,
        name: str,
        server: McpServer,
        listed: Callable[[ServerFacts, Listing], object],
        elicit: Elicit | None = None,
        allowed: AllowedAddresses = NONE_ALLOWED,
        tokens: Path | None = None,
    ) -> None:
        self.name = name
        self._server = server
        self._listed = listed
        self._elicit = elicit
        self._allowed = allowed
        self._tokens_folder = tokens
        self._start: asyncio.Timeout | None = None
        self._thread: ServerThread | None = None
        self._client: Client | None = None
        self._left_out: dict[str, Mapping[str, str]] = {}
        """Of the last answer to each method."""
        self._lists_changed = asyncio.Event()
        self._lost: Exception | None = None
        self._wake = asyncio.Event()
        self._process: ServerProcess | None = None

    # -- its life, the main function of a ServerThread

    async def live(self, thread: ServerThread) -> None:
        """Connect, tell what the server offers, and stay until it is stopped (returns) or has ended (raises)."""
        self._thread = thread
        try:
            async with asyncio.timeout(self._server.start_timeout) as self._start:
                async with self._transport(thread) as transport, self._client_over(self._judged(transport)) as client:
                    self._client = client
                    facts, listing = _facts(client), await self._tools()
                    self._start.reschedule(None)
                    self._listed(facts, listing)
                    await self._stay(thread, facts, listing)
        except TimeoutError:
            raise ConnectionLost(self._why(f"it did not answer within {self._server.start_timeout:g} s")) from None
        except RemoteError:
            raise
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as error:
            cause = first_cause(error)
            raise ConnectionLost(self._why(f"{shortened(str(cause)) or type(cause).__name__}")) from error

    @contextlib.asynccontextmanager
    async def _transport(self, thread: ServerThread) -> AsyncIterator[Transport]:
        server = self._server
        if server.url:
            async with contextlib.AsyncExitStack() as stack:
                auth = None
                if server.oauth is not None and self._tokens_folder is not None:
                    login = signed_in(
                        self.name, server.url, server.oauth, self._tokens_folder, self._judge, self._waits_for_person
                    )
                    auth = await stack.enter_async_context(login)
                client = http_client(server.url, server.headers, self._judge, auth)
                opened = await stack.enter_async_context(client)
                yield streamable_http_client(server.url, http_client=opened, max_sse_event_size=MAX_FRAME_BYTES)
            return
        self._process = process = ServerProcess(self.name, server, inherited_environment())
        thread.kill_server = process.kill
        yield process

    def _judged(self, transport: Transport) -> Transport:
        def told(method: str, left_out: Mapping[str, str]) -> None:
            self._left_out[method] = left_out
            if left_out and method != "tools/list":  # which its status tells
                first = "; ".join(f"{name}: {why}" for name, why in itertools.islice(left_out.items(), LOGGED))
                logger.warning("MCP server %s: %s: %d left out: %s", self.name, method, len(left_out), first)

        return JudgedTransport(transport, lambda: self._client.protocol_version if self._client else None, told)

    async def _judge(self, url: str) -> CheckedAddress:
        return await checked_address(url, self._allowed)

    def _waits_for_person(self, seconds: float) -> None:
        """Someone is to sign in: the connection may take so much longer."""
        if self._start is not None and (due := self._start.when()) is not None:
            self._start.reschedule(max(due, asyncio.get_running_loop().time() + seconds))

    def _client_over(self, transport: Transport) -> Client:
        async def told(message: object) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                self._lists_changed.set()
                self._wake.set()

        return Client(
            transport,
            mode=_MODES[self._server.revision],
            message_handler=told,
            elicitation_callback=self._asked if self._elicit is not None else None,
            client_info=types.Implementation(name="callboard", version="1"),
            cache=None,
        )

    async def _stay(self, thread: ServerThread, facts: ServerFacts, listing: Listing) -> None:
        """Until it is stopped, or the server has ended; read the list of its tools again when it has changed."""
        loop = asyncio.get_running_loop()
        ended = self._process.ended if self._process is not None else asyncio.Event()
        watchers: list[asyncio.Task[object]] = [loop.create_task(each.wait()) for each in (ended, thread.stopping)]
        for watcher in watchers:
            watcher.add_done_callback(lambda _: self._wake.set())
        if facts.revision in MODERN_PROTOCOL_VERSIONS and facts.tells_changes:
            watchers.append(loop.create_task(self._listen()))
        try:
            while True:
                due = None if listing.ttl_seconds is None else max(MIN_TTL_SECONDS, listing.ttl_seconds)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await self._wake.wait()
                self._wake.clear()
                if thread.stopping.is_set():
                    return
                if self._lost is not None:
                    raise self._lost
                if ended.is_set():
                    raise ConnectionLost(self._why("it has ended"))
                if self._lists_changed.is_set() or due is not None:
                    self._lists_changed.clear()
                    listing = await self._read_again(facts, listing)
        finally:
            for watcher in watchers:
                watcher.cancel()

    async def _read_again(self, facts: ServerFacts, last: Listing) -> Listing:
        """The list of tools once more, told if it has changed; a server that cannot give it keeps the last one."""
        await asyncio.sleep(RELIST_SECONDS)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                listing = await self._tools()
        except TimeoutError:
            listing = Listing((), 0.0, {_REST: "no page came"}, broke_off=True)
        if listing.broke_off and last.tools:
            why = listing.left_out.get(_REST)
            logger.warning("MCP server %s: its tools cannot be listed again: %s", self.name, why)
            return replace(last, ttl_seconds=0.0)
        if (listing.tools, listing.left_out) != (last.tools, last.left_out):
            self._listed(facts, listing)
        return listing

    async def _listen(self) -> None:
        """2026-07-28: hear of changes; again after a while where that breaks off."""
        while True:
            with contextlib.suppress(MCPError, SubscriptionLost, TimeoutError):
                async with self._connected.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._lists_changed.set()
                        self._wake.set()
            await asyncio.sleep(MIN_TTL_SECONDS)
            self._lists_changed.set()  # the server cannot have said what changed meanwhile
            self._wake.set()

    def _why(self, what: str) -> str:
        return self._process.why(what) if self._process is not None else what

    # -- what can be asked of it

    async def call(self, call: RemoteCall) -> dict[str, object]:
        """The result of a call, as the protocol has it. Raises RemoteError."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            call.progress(message or "", progress / total if total and 0 <= progress <= total else None)

        async def send(responses: types.InputResponses | None, state: str | None) -> object:
            params = types.CallToolRequestParams(
                name=call.tool, arguments=call.arguments, input_responses=responses, request_state=state
            )
            return await self._session.send_request(
                types.CallToolRequest(params=params), _CallResult, progress_callback=report
            )

        result = await self._answered(send)
        call.check(result)
        return result

    async def read_resource(self, uri: str) -> dict[str, object]:
        """The contents of a resource. Raises RemoteError."""

        async def send(responses: types.InputResponses | None, state: str | None) -> object:
            params = types.ReadResourceRequestParams(uri=uri, input_responses=responses, request_state=state)
            return await self._session.send_request(types.ReadResourceRequest(params=params), _ReadResult)

        return await self._answered(send)

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> dict[str, object]:
        """The messages of a prompt. Raises RemoteError."""

        async def send(responses: types.InputResponses | None, state: str | None) -> object:
            params = types.GetPromptRequestParams(
                name=name, arguments=dict(arguments), input_responses=responses, request_state=state
            )
            return await self._session.send_request(types.GetPromptRequest(params=params), _PromptResult)

        return await self._answered(send)

    async def resources(self) -> list[dict[str, object]]:
        """What it offers to read, bounded. Raises RemoteError."""

        async def page(cursor: str | None) -> tuple[list[types.Resource], str | None]:
            listed = await self._session.list_resources(params=_page(cursor))
            return listed.resources, listed.next_cursor

        return self._all_of(await self._pages("resources/list", page))

    async def prompts(self) -> list[dict[str, object]]:
        """Its prompts, bounded. Raises RemoteError."""

        async def page(cursor: str | None) -> tuple[list[types.Prompt], str | None]:
            listed = await self._session.list_prompts(params=_page(cursor))
            return listed.prompts, listed.next_cursor

        return self._all_of(await self._pages("prompts/list", page))

    def _all_of(self, found: _Found[Named]) -> list[dict[str, object]]:
        if rest := found.left_out.get(_REST):
            logger.warning("MCP server %s: a list of it was not read to its end: %s", self.name, rest)
        return [_plain(each) for each in found.items]

    # -- how it is asked

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise NotSent("it is not connected")
        return self._client

    @property
    def _session(self) -> ClientSession:
        return self._connected.session

    async def _tools(self) -> Listing:
        """What it offers. Each tool is judged by itself, and each page: what is wrong, or too much, is left out."""
        if not _has(self._connected, "tools"):
            return Listing(())
        ttls: list[float] = []

        async def page(cursor: str | None) -> tuple[list[types.Tool], str | None]:
            listed = await self._session.list_tools(params=_page(cursor))
            if self._start is not None:
                self._start.reschedule(None)  # it has answered; the rest of its list has LIST_SECONDS
            if listed.ttl_ms is not None:
                ttls.append(listed.ttl_ms / 1000)
            return listed.tools, listed.next_cursor

        errand_of_context.set(AnyErrand())  # by which the transport tells what has become of a page
        try:
            found = await self._pages("tools/list", page)
        except (ServerRefused, BadAnswer) as error:
            return Listing((), 0.0, {"tools/list": str(error)}, broke_off=True)
        finally:
            errand_of_context.set(None)
        tools: dict[str, RemoteTool] = {}
        for each in found.items:
            if each.name in tools:
                found.left_out.setdefault(
                    each.name[:MAX_NAME_CHARS], "it is listed more than once; the first is offered"
                )
                continue
            try:
                tools[each.name] = RemoteTool.of(_plain(each))
            except (TypeError, ValueError, RecursionError) as error:  # such as a number of more than 64 bits
                found.left_out[each.name[:MAX_NAME_CHARS]] = (
                    f"it cannot be read: {shortened(str(error), MAX_WHY_CHARS)}"
                )
        ttl = 0.0 if found.broke_off else min(ttls, default=None)
        return Listing(tuple(tools.values()), ttl, found.left_out, found.broke_off)

    async def _pages(
        self, method: str, page: Callable[[str | None], Awaitable[tuple[list[Named], str | None]]]
    ) -> _Found[Named]:
        """A list of the server's: what is taken of it, and what is not. Raises RemoteError where its first page does
        not come, and where the connection is lost."""
        found: list[Named] = []
        left_out: dict[str, str] = {}
        cursors: set[str | None] = set()
        cursor, rest, until = None, "", None
        while not rest:
            cursors.add(cursor)
            try:
                async with asyncio.timeout_at(until):
                    items, cursor = await self._said(page(cursor))
            except (ServerRefused, BadAnswer, TimeoutError) as error:
                if until is None:
                    raise
                why = f"page {len(cursors)} could not be read: {str(error) or f'it took more than {LIST_SECONDS:g} s'}"
                return _Found(found, {**left_out, _REST: why}, broke_off=True)
            until = until or asyncio.get_running_loop().time() + LIST_SECONDS
            for name, why in self._left_out.pop(method, {}).items():
                of_page = name if len(cursors) == 1 or not name.endswith("]") else f"page {len(cursors)}: {name}"
                left_out.setdefault(_REST if name == "nextCursor" else of_page, why)
            found += items
            if not cursor:  # some servers end with "" (the TypeScript SDK's example asks `while (cursor)`)
                break
            rest = _rest(len(found), cursor, cursors)
        for each in found[MAX_TOOLS : MAX_TOOLS + MAX_NAMED]:
            left_out.setdefault(each.name[:MAX_NAME_CHARS], f"only the first {MAX_TOOLS} are taken")
        if (more := len(found) - MAX_TOOLS - MAX_NAMED) > 0:
            left_out[f"{more:,} more"] = f"only the first {MAX_TOOLS} are taken"
        if rest:
            left_out[_REST] = rest
        return _Found(found[:MAX_TOOLS], left_out)

    async def _answered(
        self, send: Callable[[types.InputResponses | None, str | None], Awaitable[object]]
    ) -> dict[str, object]:
        """What a request came to; where the server asks something back first (2026-07-28), it is answered."""
        result = await self._said(send(None, None))
        for _ in range(MAX_ROUNDS):
            if not isinstance(result, types.InputRequiredResult):
                return _plain(result)
            responses: types.InputResponses = {}
            for key, request in (result.input_requests or {}).items():
                context = ClientRequestContext(session=self._session, request_id=key)
                answer = await self._session.dispatch_input_request(context, request)
                if isinstance(answer, types.ErrorData):
                    raise ServerRefused(f"it asks for what it does not get: {answer.message}")
                responses[key] = answer
            if not responses:
                await asyncio.sleep(0.05)
            result = await self._said(send(responses or None, result.request_state))
        raise BadAnswer(f"it asked something back more than {MAX_ROUNDS} times")

    async def _said(self, asking: Awaitable[T]) -> T:
        """What was asked, or one of our errors."""
        mark_failed(None)
        try:
            return await asking
        except MCPError as error:
            raise self._error_of(error) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise BadAnswer(f"its answer is not as the protocol has it: {where}: {first['msg']}") from None

    def _error_of(self, error: MCPError) -> RemoteError:
        """By where it comes from: the transport, the server (as the answer to what we asked), or the SDK."""
        message, errand = shortened(error.message), errand_of_context.get()
        if errand is not None and errand.failure is not None:
            if isinstance(errand.failure, NotSent):
                self._lose(str(errand.failure))
            return errand.failure
        if error.data is NOT_READABLE or (self._server.url and message.startswith(_UNREADABLE)):
            return BadAnswer(message)
        if isinstance(error.data, FromServer) or error.code != types.CONNECTION_CLOSED:
            return ServerRefused(_words_of(error))
        if errand is None or errand.is_sent or self._server.url:
            return ConnectionLost(message)
        return NotSent(message)

    def _lose(self, why: str) -> None:
        """The connection is of no use any more; it ends, and is made again."""
        if self._lost is None:
            self._lost = ConnectionLost(why)
            self._wake.set()

    # -- what it asks us

    async def _asked(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """A question for a person, to whom the server has no other way."""
        assert self._elicit is not None
        assert self._thread is not None
        if isinstance(params, types.ElicitRequestURLParams):
            form = ElicitForm(self.name, params.message, {}, params.url)
        else:
            form = ElicitForm(self.name, params.message, dict(params.requested_schema))
        answer = await self._elicit(form, errand_of_context.get() or self._thread.only_errand())
        if answer is None:
            return types.ElicitResult(action="decline")
        content = None if form.url else dict(answer)
        return types.ElicitResult.model_validate({"action": "accept", "content": content})


def _facts(client: Client) -> ServerFacts:
    info, tools = client.server_info, client.server_capabilities.tools
    named = f"{info.name} {info.version}" if info is not None else ""
    return ServerFacts(
        shortened(named, 200),
        client.protocol_version,
        tells_changes=tools is not None and bool(tools.list_changed),
        has_resources=_has(client, "resources"),
        has_prompts=_has(client, "prompts"),
    )


def _words_of(error: MCPError) -> str:
    """An error of the server's in its own words, with what it has told besides."""
    data = error.data.data if isinstance(error.data, FromServer) else error.data
    told = "" if data is None else f", data {shortened(json_text(data), MAX_DATA_CHARS)}"
    return f"{shortened(error.message) or 'without a word'} (code {error.code}{told})"


def _rest(found: int, cursor: str, cursors: Set[str | None]) -> str:
    """Why a list is not read on; "" where it is."""
    if found >= MAX_TOOLS:
        return f"only the first {MAX_TOOLS} are taken, and its list goes on after them"
    if cursor in cursors:
        return f"page {len(cursors)} names one as the next that was read already: its nextCursor is {cursor!r:.50}"
    if len(cursors) >= MAX_PAGES:
        return f"only the first {MAX_PAGES} pages are read"
    return ""


def _plain(value: object) -> dict[str, object]:
    """A model of the SDK as the JSON object that came over the wire."""
    assert isinstance(value, BaseModel)
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def _has(client: Client, capability: str) -> bool:
    return getattr(client.server_capabilities, capability, None) is not None


def _page(cursor: str | None) -> types.PaginatedRequestParams | None:
    return None if cursor is None else types.PaginatedRequestParams(cursor=cursor)

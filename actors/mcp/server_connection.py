"""One connection to an MCP server, through the SDK: from its handshake to its end, in one task of its ServerThread.

Loaded late: the SDK takes 0.8 s to import. What comes out of here are plain values (remote_values.py), and the errors
of server_thread.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import mcp_types as types
from mcp.client import Client, ClientRequestContext, ClientSession, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError

from callboard.actors.kernel import logger_of
from callboard.actors.mcp.http_client import LOST_CODE, NOT_SENT_CODE, http_client
from callboard.actors.mcp.mcp_servers import McpServer, inherited_environment
from callboard.actors.mcp.oauth_login import signed_in
from callboard.actors.mcp.remote_tools import RemoteCall
from callboard.actors.mcp.remote_values import Elicit, ElicitForm, Listing, RemoteTool, ServerFacts
from callboard.actors.mcp.server_thread import (
    BadAnswer,
    ConnectionLost,
    NotSent,
    RemoteError,
    ServerRefused,
    ServerThread,
    errand_of_context,
    first_cause,
)
from callboard.actors.mcp.stdio_streams import ServerProcess
from callboard.actors.policy.addresses import NONE_ALLOWED, AllowedAddresses, CheckedAddress, checked_address
from callboard.actors.tools.invoke import shortened

logger = logger_of("callboard.mcp")

T = TypeVar("T")

#: Tools of one server, and pages of its list: more are left out, and said so. A model cannot choose among more.
MAX_TOOLS: Final = 512
MAX_PAGES: Final = 64
#: For a list, a resource or a prompt to come.
LIST_SECONDS: Final = 30.0
#: Between two readings of a list that its server says has changed, or may have (ttlMs).
RELIST_SECONDS: Final = 1.0
MIN_TTL_SECONDS: Final = 30.0
#: Rounds of questions in one call (2026-07-28), as the SDK has it.
MAX_ROUNDS: Final = 10
_MODES: Final = {"auto": "auto", "2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
#: What a server answers whose session is gone (2025-11-25, over HTTP); the request was not looked at.
_SESSION_GONE: Final = "Session terminated"

_CallResult: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)
_ReadResult: TypeAdapter[types.ReadResourceResult | types.InputRequiredResult] = TypeAdapter(
    types.ReadResourceResult | types.InputRequiredResult
)
_PromptResult: TypeAdapter[types.GetPromptResult | types.InputRequiredResult] = TypeAdapter(
    types.GetPromptResult | types.InputRequiredResult
)


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
                async with self._transport(thread) as transport, self._client_over(transport) as client:
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
                yield streamable_http_client(server.url, http_client=await stack.enter_async_context(client))
            return
        self._process = process = ServerProcess(self.name, server, inherited_environment())
        thread.kill_server = process.kill
        yield process

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
        except (RemoteError, TimeoutError) as error:
            logger.warning("MCP server %s: its tools cannot be listed again: %s", self.name, error)
            return last
        if listing.tools != last.tools:
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

        return [_plain(each) for each in await self._pages("resources", page)]

    async def prompts(self) -> list[dict[str, object]]:
        """Its prompts, bounded. Raises RemoteError."""

        async def page(cursor: str | None) -> tuple[list[types.Prompt], str | None]:
            listed = await self._session.list_prompts(params=_page(cursor))
            return listed.prompts, listed.next_cursor

        return [_plain(each) for each in await self._pages("prompts", page)]

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
        if not _has(self._connected, "tools"):
            return Listing(())
        ttls: list[float] = []

        async def page(cursor: str | None) -> tuple[list[types.Tool], str | None]:
            listed = await self._session.list_tools(params=_page(cursor))
            if listed.ttl_ms is not None:
                ttls.append(listed.ttl_ms / 1000)
            return listed.tools, listed.next_cursor

        found = await self._pages("tools", page)
        tools = {each.name: RemoteTool.of(_plain(each)) for each in found}
        return Listing(tuple(tools.values()), min(ttls, default=None))

    async def _pages(self, what: str, page: Callable[[str | None], Awaitable[tuple[list[T], str | None]]]) -> list[T]:
        found: list[T] = []
        cursors: set[str | None] = set()
        cursor: str | None = None
        while cursor not in cursors:
            cursors.add(cursor)
            items, cursor = await self._said(page(cursor))
            found += items
            if cursor is None:
                return found[:MAX_TOOLS]
            if len(found) >= MAX_TOOLS or len(cursors) >= MAX_PAGES:
                break
        logger.warning("MCP server %s: only the first %d of its %s are taken", self.name, len(found), what)
        return found[:MAX_TOOLS]

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
        try:
            return await asking
        except MCPError as error:
            raise self._error_of(error) from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise BadAnswer(f"its answer is not as the protocol has it: {where}: {first['msg']}") from None

    def _error_of(self, error: MCPError) -> RemoteError:
        code, message = error.code, shortened(error.message)
        errand = errand_of_context.get()
        if code == NOT_SENT_CODE or (code == types.INVALID_REQUEST and message == _SESSION_GONE):
            if errand is not None:
                errand.is_sent = False
            self._lose(f"its session is gone: {message}")
            return NotSent(message)
        if code == types.CONNECTION_CLOSED:
            if self._server.url:
                return ConnectionLost(message)
            return ConnectionLost(message) if errand is None or errand.is_sent else NotSent(message)
        if code == LOST_CODE:
            return ConnectionLost(message)
        if code == types.PARSE_ERROR:
            return BadAnswer(message)
        return ServerRefused(f"{message} (code {code})")

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


def _plain(value: object) -> dict[str, object]:
    """A model of the SDK as the JSON object that came over the wire."""
    assert isinstance(value, BaseModel)
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


def _has(client: Client, capability: str) -> bool:
    return getattr(client.server_capabilities, capability, None) is not None


def _page(cursor: str | None) -> types.PaginatedRequestParams | None:
    return None if cursor is None else types.PaginatedRequestParams(cursor=cursor)

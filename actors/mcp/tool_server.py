"""Our own tools as an MCP server, in both revisions: each call is one of a Runtime, with all its rules.

The SDK speaks the protocol. Here is decided what a client is shown: which tools, how a result and a failure read, what
becomes of progress, and how a call that the policy asks about is asked: by elicitation, of the client's own user. For a
client that has none, such calls are denied with that reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Final, Self, Union, get_args, get_origin

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ServerEvent, ToolsListChanged
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import event_to_notification
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    ListToolsResult,
    LoggingLevel,
    PaginatedRequestParams,
    ResourceLink,
    SetLevelRequestParams,
    SubscriptionsListenRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ShownTool
from msgspec import Struct
from pydantic import TypeAdapter

from callboard.actors.calls.approvals import Approval, ApprovalKind, about_call
from callboard.actors.mcp.callers import CALLER
from callboard.actors.mcp.mcp_caller import APPROVAL, McpCaller, answered_before
from callboard.actors.requests.direct_calls import CallResult
from callboard.actors.runtime import Runtime
from callboard.actors.tools import Tool
from callboard.actors.tools.json_form import json_schema_of
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import AskApproval
from callboard.protocol.errors import RuntimeFailure, ToolError, said
from callboard.protocol.ids import ToolName
from callboard.protocol.options import ToolOffer
from callboard.protocol.readers import ForDecision, for_decision, one_line_for_decision
from callboard.protocol.tools import Effect, FailureCode, Risk

logger = logging.getLogger("callboard.mcp")

Request = ServerRequestContext[object, object]

#: A withdrawn tool may come back after some seconds; else only the tools of other servers change.
LOOK_AGAIN_SECONDS: Final = 1.0
LOOK_SECONDS: Final = 5.0
#: Notes of progress of one call, ten a second at most, that its client has not taken.
MAX_UNSENT: Final = 100
#: How long a client may rely on the list; one that is withdrawn answers so.
LIST_TTL_MS: Final = 60_000
#: Clients of the older revisions that are told of changes; the one heard of longest ago is forgotten.
MAX_CLIENTS: Final = 1_000
SESSION_HEADER: Final = "mcp-session-id"
INSTRUCTIONS: Final = (
    "Tools of a callboard runtime. A failed call says why as JSON: its `code` is what to act on, `retry_hint` what to "
    "do next."
)
#: What another server may serve beside the tools.
BESIDE: Final = (
    "resources/list", "resources/templates/list", "resources/read", "resources/subscribe", "resources/unsubscribe",
    "prompts/list", "prompts/get", "completion/complete",
)  # fmt: skip
#: What a person may answer when a call is asked about.
_CHOICES: Final = {
    "allow": ApprovalKind.ONCE,
    "always allow": ApprovalKind.ALWAYS,
    "deny": ApprovalKind.DENY,
    "always deny": ApprovalKind.DENY_ALWAYS,
}
_APPROVAL_FORM: Final = {
    "type": "object",
    "properties": {"decision": {"type": "string", "title": "Decision", "enum": list(_CHOICES)}},
    "required": ["decision"],
}
_NO_ELICITATION: Final = (
    "it needs the approval of a person, and this MCP client cannot ask one (it has no elicitation); allow it by a rule "
    "of the policy, or use another client"
)
_BLOCKS: Final = (TextContent, ImageContent, AudioContent, ResourceLink, EmbeddedResource)
_CONTENT: Final[TypeAdapter[list[ContentBlock]]] = TypeAdapter(list[ContentBlock])


class _Server(Server[object]):
    """The SDK's, which says on each transport that the list of tools may change."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changes = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)


class _Client(Struct):
    """A connection of the older revisions."""

    session: ServerSession
    level: LoggingLevel = "debug"


class ResultForm(Struct, frozen=True):
    """How the results of a tool are told."""

    is_content: bool = False
    """They are content of MCP (a picture, a resource ...), in the types of the SDK."""
    schema: dict[str, object] | None = None
    """They are objects, which are told as such, too."""

    @classmethod
    def of(cls, tool: Tool | None) -> ResultForm:
        """By the type that the tool declares for its result."""
        if tool is None:
            return cls()
        is_content = _is_content(tool.signature.returns)
        return cls(is_content, None if is_content else _object_schema(tool))


@dataclass(eq=False)
class ToolServer:
    """Serves the tools of a runtime. Make the runtime with `approve=ToolServer.approve`."""

    runtime: Runtime
    beside: Server[object] | None = None
    """Its resources, prompts and completions are served beside the tools."""
    version: str = ""
    """Of the program, as clients are told it."""
    server: Server[object] = field(init=False)
    _forms: dict[ToolName, ResultForm] = field(default_factory=dict)
    _clients: dict[str, _Client] = field(default_factory=dict)
    _bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    _has_called: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        instructions = self.beside.instructions if self.beside is not None else None
        self.server = _Server("callboard", version=self.version, instructions=instructions or INSTRUCTIONS)
        add = self.server.add_request_handler
        for method in BESIDE:
            found = self.beside.get_request_handler(method) if self.beside is not None else None
            if found is not None:
                add(method, found.params_type, found.handler)
        add("tools/list", PaginatedRequestParams, self._list)
        add("tools/call", CallToolRequestParams, self._call)
        add("logging/setLevel", SetLevelRequestParams, self._set_level)
        add("subscriptions/listen", SubscriptionsListenRequestParams, ListenHandler(self._bus))
        security = RequestStateSecurity.ephemeral()
        self.server.middleware.append(RequestStateBoundary(security, default_audience=self.server.name))

    # -- what clients see

    async def _list(self, context: Request, params: PaginatedRequestParams | None) -> ListToolsResult:
        self._client(context)
        offers = await asyncio.to_thread(self.runtime.offered)
        tools = [shown_tool(offer, self._form(offer.definition.name)) for offer in offers]
        return ListToolsResult(tools=tools, ttl_ms=LIST_TTL_MS, cache_scope="private")

    def _form(self, name: ToolName) -> ResultForm:
        """Kept, since it takes a millisecond to make."""
        form = self._forms.get(name)
        if form is None:
            form = self._forms[name] = ResultForm.of(self.runtime.tool(name))
        return form

    def _client(self, context: Request) -> _Client:
        """By its session; one without a session id, as on stdio, is the only one."""
        headers = getattr(context.request, "headers", {})
        key = headers.get(SESSION_HEADER, "")
        client = self._clients.pop(key, None) or _Client(context.session)
        client.session = context.session
        self._clients[key] = client
        while len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return client

    async def _set_level(self, context: Request, params: SetLevelRequestParams) -> EmptyResult:
        client = self._client(context)
        client.level = params.level
        return EmptyResult()

    # -- calls

    async def _call(self, context: Request, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        answers, asked = answered_before(params.request_state, params.input_responses)
        client = self._client(context)
        caller = McpCaller(context, asyncio.get_running_loop(), answers, asked, client.level, self._announce)
        CALLER.set(caller)
        try:
            async with _ProgressNotes(context) as progress:
                result = await self.runtime.call_tool(params.name, params.arguments, on_progress=progress.told)
        except RuntimeFailure as error:  # overloaded, stopping
            return CallToolResult(content=[TextContent(text=said(error))], is_error=True)
        finally:
            self._has_called.set()
        if caller.needs:
            return caller.input_required()
        if caller.lacks and caller.is_modern and not result.ok:
            lacks: dict[str, object] = {"requiredCapabilities": {caller.lacks: {}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, f"the client has no {caller.lacks}", lacks)
        if result.failure is not None and result.failure.code is FailureCode.UNKNOWN_TOOL:
            raise MCPError(
                INVALID_PARAMS, result.failure.message, result.data
            )  # a protocol error, by the specification
        return self._result(result)

    def _result(self, result: CallResult) -> CallToolResult:
        text = TextContent(text=result.content)
        if not result.ok:
            return CallToolResult(content=[text], is_error=True)
        form = self._form(result.name)
        if form.is_content:
            return _content(result.data)
        return CallToolResult(content=[text], structured_content=result.data if form.schema is not None else None)

    # -- changes

    async def watch(self) -> None:
        """Tell clients when tools are withdrawn, restored, added or changed; runs as long as the server does."""
        before = await asyncio.to_thread(self.runtime.offered)
        most = len(before)
        while True:
            with contextlib.suppress(TimeoutError):
                pause = LOOK_AGAIN_SECONDS if len(before) < most else LOOK_SECONDS
                await asyncio.wait_for(self._has_called.wait(), pause)
            self._has_called.clear()
            now = await asyncio.to_thread(self.runtime.offered)
            if now != before:
                before, most = now, max(most, len(now))
                self._forms.clear()
                await self._announce(ToolsListChanged())

    async def _announce(self, change: ServerEvent) -> None:
        await self._bus.publish(change)
        for key, client in tuple(self._clients.items()):
            try:
                await client.session.send_notification(event_to_notification(change, {}))
            except Exception:  # noqa: BLE001 - a client that is gone: what its transport raises is not ours to know
                self._clients.pop(key, None)


class _ProgressNotes:
    """Tells a client how far its call is, in order; what it says must increase. All before the result."""

    def __init__(self, context: Request) -> None:
        self._session = context.session
        self._last = -1.0
        self._unsent: asyncio.Queue[ToolProgressed | None] = asyncio.Queue(MAX_UNSENT)

    async def __aenter__(self) -> Self:
        self._sender = asyncio.ensure_future(self._send())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._unsent.put(None)
            await self._sender
        else:
            self._sender.cancel()

    def told(self, progress: ToolProgressed) -> None:
        """On the server's loop. A client that does not read them misses some."""
        with contextlib.suppress(asyncio.QueueFull):
            self._unsent.put_nowait(progress)

    async def _send(self) -> None:
        while (progress := await self._unsent.get()) is not None:
            share = progress.fraction
            amount = max(0.0, math.floor(self._last + 1)) if share is None else 100 * share
            self._last = max(amount, math.nextafter(self._last, math.inf))
            await self._session.report_progress(self._last, None if share is None else 100.0, progress.message or None)


# -- approvals


async def approve(question: AskApproval) -> Approval:
    """The `approve` of a runtime whose calls come from MCP clients: asks the user of the client that has called."""
    caller = CALLER.get()
    if caller is None or not caller.can("elicitation"):
        return Approval.DENY.because(_NO_ELICITATION)
    try:
        answer = await caller.elicit(_told(question), _APPROVAL_FORM, APPROVAL)
    except ToolError as error:
        return Approval.DENY.because(str(error))
    return _decision(answer)


def _decision(answer: ElicitResult) -> Approval:
    if answer.action != "accept":
        return Approval.DENY.because("the user of the MCP client declined it")
    chosen = (answer.content or {}).get("decision")
    kind = _CHOICES.get(chosen) if isinstance(chosen, str) else None
    if kind is None:
        return Approval.DENY.because("the MCP client gave no decision")
    return Approval(kind)


def _told(question: AskApproval) -> ForDecision:
    """What a person reads before they decide."""
    lines = [f"May {one_line_for_decision(question.name)} ({question.risk}) run?", about_call(question)]
    if question.preview:
        lines += ["changes:", for_decision(question.preview)]
    return ForDecision("\n".join(lines))


# -- what a tool is to MCP


def shown_tool(offer: ToolOffer, form: ResultForm) -> ShownTool:
    """A tool as MCP describes it."""
    definition, contract = offer.definition, offer.contract
    is_read = contract.risk is Risk.READ
    annotations = ToolAnnotations(
        read_only_hint=is_read,
        destructive_hint=None if is_read else contract.risk is not Risk.NETWORK,
        idempotent_hint=contract.effect is Effect.REPEAT,
        open_world_hint=contract.risk in (Risk.NETWORK, Risk.EXECUTE, Risk.UNDECLARED),
    )
    return ShownTool(
        name=definition.name,
        description=definition.description,
        input_schema=dict(definition.parameters),
        output_schema=form.schema,
        annotations=annotations,
    )


def _object_schema(tool: Tool) -> dict[str, object] | None:
    """Of what the tool returns; None for anything but an object, which the older revisions do not take."""
    try:
        schema = json_schema_of(tool.signature.result, "serialization")
    except Exception:  # noqa: BLE001 - a type of the tool's author without a schema: its result is text then
        return None
    while "$ref" in schema and schema.get("type") is None:
        inside = _inside(schema)
        if inside is None:
            return None
        schema = inside
    return schema if schema.get("type") == "object" else None


def _inside(schema: Mapping[str, object]) -> dict[str, object] | None:
    """The definition that the whole schema is a reference to, with the definitions it needs."""
    definitions, reference = schema.get("$defs"), schema["$ref"]
    if not isinstance(definitions, dict) or not isinstance(reference, str):
        return None
    found = definitions.get(reference.rpartition("/")[2])
    return {**found, "$defs": definitions} if isinstance(found, dict) else None


def _is_content(returns: object) -> bool:
    """Does a tool return content of MCP: one block, a list of them, or a whole result?"""
    origin, inner = get_origin(returns), get_args(returns)
    if origin in (list, tuple, Sequence):
        return bool(inner) and all(_is_content(each) for each in inner if each is not ...)
    if origin in (Union, UnionType):
        return all(_is_content(each) for each in inner)
    if origin is Annotated:
        return _is_content(inner[0])
    return isinstance(returns, type) and issubclass(returns, (*_BLOCKS, CallToolResult))


def _content(data: object) -> CallToolResult:
    if isinstance(data, dict) and "content" in data and "type" not in data:
        return CallToolResult.model_validate(data)
    return CallToolResult(content=_CONTENT.validate_python(data if isinstance(data, list) else [data]))

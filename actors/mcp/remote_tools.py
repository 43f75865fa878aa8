"""The tools of an MCP server as tools of callboard: named and described so that every provider takes them.

A call runs as an async tool: with the deadline, the cancellation and the one outcome of any other call.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
import orjson
from msgspec import Struct

from callboard.actors.mcp.mcp_servers import McpServer
from callboard.actors.mcp.remote_results import shown_contents, shown_result
from callboard.actors.mcp.remote_values import Listing, RemoteTool, ServerFacts
from callboard.actors.mcp.server_thread import BadAnswer, ConnectionLost, NotSent, RemoteError
from callboard.actors.tools.context import Report, ToolContext
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.invoke import Invoker, Result, safe_text, shortened
from callboard.actors.tools.progress import CallProgress
from callboard.actors.tools.schema import Signature
from callboard.protocol.ids import ToolName
from callboard.protocol.tools import (
    FailureCode,
    Isolation,
    Latency,
    Origin,
    Risk,
    ToolContract,
    ToolDefinition,
    ToolFailure,
)

#: Of a tool's name at any provider (OpenAI's rule, the narrowest), and what else is not allowed in it.
MAX_NAME: Final = 64
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]+")
#: Of what a server says of one tool, and of one name in a message.
MAX_DESCRIPTION_CHARS: Final = 4_096
#: Calls of one tool that are open at its server at the same time.
CONCURRENCY: Final = 64

ProgressTo = Callable[[str, float | None], object]


class RemoteCall(Struct, frozen=True):
    """One call of a tool, as its server gets it."""

    tool: str
    arguments: dict[str, object]
    progress: ProgressTo
    check: Callable[[Mapping[str, object]], object]
    """Of the result, where it comes in. Raises BadAnswer."""


class Remote(Protocol):
    """What the tools of a server reach it by. Raises RemoteError."""

    @property
    def name(self) -> str:
        """The server's, by the settings."""

    async def call(self, call: RemoteCall, context: ToolContext) -> Mapping[str, object]: ...
    async def read_resource(self, uri: str, context: ToolContext) -> Mapping[str, object]: ...
    async def resources(self, context: ToolContext) -> list[dict[str, object]]: ...
    async def accept(self, tool: RemoteTool) -> None:
        """A call of it was approved: it is known from now on."""


_Run = Callable[[dict[str, object], ToolContext, ProgressTo], Awaitable[Result]]


@dataclass(frozen=True, eq=False)
class OfferedTool(Tool):
    """A tool that is run by asking its server."""

    run: _Run = field(kw_only=True)
    remote_name: str = field(default="", kw_only=True)
    """At its server; "": it is callboard's own, about the server."""

    @cached_property
    def invoker(self) -> Invoker:
        return _Asking(self)


class _Asking(Invoker):
    """Asks the server in place of calling a function."""

    __slots__ = ("_tool",)

    def __init__(self, tool: OfferedTool) -> None:
        super().__init__(tool.name, tool.function, tool.signature)
        self._tool = tool

    async def call_async(self, arguments: str, context: ToolContext, report: Report | None = None) -> Result:
        """Its result, or how it failed. A CancelledError is a failure like any other, as for every async tool."""
        name = self._tool.name

        def progress(message: str, fraction: float | None) -> None:
            if report is not None and context.is_read_along:
                report(CallProgress.of(shortened(message), fraction))

        try:
            given = orjson.loads(arguments or "{}")
            if not isinstance(given, dict):
                return ToolFailure(name, FailureCode.INVALID_ARGUMENTS, "the arguments are no JSON object")
            return await self._tool.run(given, context, progress)
        except RemoteError as error:
            return _failure(name, error)
        except BaseException as error:  # noqa: BLE001 - I10: as in Invoker
            return self._failure_of(error)


def _failure(name: ToolName, error: RemoteError) -> ToolFailure:
    match error:
        case NotSent():
            code, why = FailureCode.WITHDRAWN, f"{name} was not run: its MCP server is not there ({error})"
        case ConnectionLost():
            code = FailureCode.OUTCOME_UNKNOWN
            why = f"the connection to the MCP server of {name} was lost ({error}); it may have had its effect"
        case BadAnswer():
            code, why = FailureCode.INVALID_RESULT, f"the MCP server of {name} gave no valid answer: {error}"
        case _:
            code, why = FailureCode.TOOL_ERROR, f"the MCP server answered with an error: {error}"
    return ToolFailure(name, code, shortened(why))


# -- names ----------------------------------------------------------------------------------------------------------


def fit_name(server: str, tool: str, taken: Container[str]) -> ToolName:
    """`server_tool`, in the letters and the length that every provider takes, and not one that is taken.

    The same pair has the same name in every run, as long as no other tool wants it: what is cut or replaced gets a
    part of a hash at its end.
    """
    wanted = f"{server}_{tool}"
    fitted = _NOT_IN_A_NAME.sub("_", wanted)
    if fitted == wanted and len(fitted) <= MAX_NAME and fitted not in taken:
        return ToolName(fitted)
    marks = hashlib.sha256(f"{server}\0{tool}".encode(errors="surrogatepass")).hexdigest()
    for length in (6, 16, 32):
        name = f"{fitted[: MAX_NAME - length - 1]}_{marks[:length]}"
        if name not in taken:
            return ToolName(name)
    raise ValueError(f"the name of {tool!r:.100} is taken")


# -- from a listing to tools ------------------------------------------------------------------------------------------


class Offered(Struct, frozen=True):
    """What a server's listing comes to."""

    tools: tuple[OfferedTool, ...] = ()
    left_out: Mapping[str, str] = msgspec.field(default_factory=dict)


def offered_tools(
    remote: Remote,
    server: McpServer,
    facts: ServerFacts,
    listing: Listing,
    taken: Container[str],
    changed: Mapping[str, str] = MappingProxyType({}),
) -> Offered:
    """The tools of a server. `changed`: those, by their names there, that are asked about before they are used, and
    why."""
    # jsonschema takes 0.1 s to load; here we are on the connection's own thread.
    from callboard.actors.mcp.remote_schema import Unfit, fit_result_schema, fit_schema  # noqa: PLC0415

    tools: dict[str, OfferedTool] = {}
    left_out = dict(listing.left_out)
    names = _Both(taken, tools)
    for each in listing.tools:
        try:
            name = fit_name(remote.name, each.name, names)
            parameters = fit_schema(each.parameters)
            result_schema = fit_result_schema(each.result_schema)
        except (Unfit, ValueError) as why:
            left_out[each.name] = str(why)
            continue
        except Exception as error:  # noqa: BLE001 - a server's schema may be anything, and must hide no other tool
            left_out[each.name] = f"it cannot be read: {safe_text(str, error)}"
            continue
        description = each.description[:MAX_DESCRIPTION_CHARS].encode(errors="replace").decode()
        tools[name] = OfferedTool(
            _not_called_directly,
            ToolDefinition(name, description, parameters, deferred=server.deferred),
            _contract(server, server.risk_of(each.name), asks_because=changed.get(each.name, "")),
            Signature(()),
            run=_run_of(remote, each, parameters, result_schema),
            remote_name=each.name,
        )
    if facts.has_resources:
        for own in _resource_tools(remote, server, names):
            tools[own.name] = own
    return Offered(tuple(tools.values()), left_out)


class _Both(Struct, frozen=True):
    """What is in one of two containers."""

    first: Container[str]
    second: Container[str]

    def __contains__(self, name: object) -> bool:
        return name in self.first or name in self.second


def _contract(server: McpServer, risk: Risk, *, asks_because: str = "") -> ToolContract:
    return ToolContract(
        risk=risk,
        timeout_seconds=server.timeout,
        isolation=Isolation.TASK,
        concurrency=CONCURRENCY,
        latency=Latency.LONG,
        asks_because=asks_because,
        origin=Origin.ELSEWHERE,
    )


def _run_of(
    remote: Remote, tool: RemoteTool, parameters: Mapping[str, object], result_schema: Mapping[str, object] | None
) -> _Run:
    async def run(given: dict[str, object], context: ToolContext, progress: ProgressTo) -> Result:
        from callboard.actors.mcp.remote_schema import misfit  # noqa: PLC0415 - as above, and loaded by now

        name = context.run.name
        await remote.accept(tool)
        if wrong := misfit(parameters, given):
            where = wrong.field or "the arguments"
            why = shortened(f"{where}: {wrong.expected}")
            code = FailureCode.INVALID_ARGUMENTS
            return ToolFailure(name, code, why, wrong.field, shortened(wrong.expected), shortened(wrong.received))
        result = await remote.call(RemoteCall(tool.name, given, progress, partial(_check, result_schema)), context)
        return shown_result(name, result)

    return run


def _check(schema: Mapping[str, object] | None, result: Mapping[str, object]) -> None:
    from callboard.actors.mcp.remote_schema import misfit  # noqa: PLC0415 - as above

    if schema is None or result.get("isError") is True:
        return
    structured = result.get("structuredContent")
    if structured is None:
        raise BadAnswer("the tool declares a structured result, and gave none")
    if wrong := misfit(schema, structured):
        raise BadAnswer(f"its result is not what the tool declares: {wrong.field or 'it'}: {wrong.expected}")


# -- resources --------------------------------------------------------------------------------------------------------


def _resource_tools(remote: Remote, server: McpServer, taken: Container[str]) -> list[OfferedTool]:
    async def listed(_given: dict[str, object], context: ToolContext, _progress: ProgressTo) -> Result:
        found = await remote.resources(context)
        kept = [
            {key: each[key] for key in ("uri", "name", "description", "mimeType", "size") if key in each}
            for each in found
        ]
        return shown_result(context.run.name, {"structuredContent": kept})

    async def read(given: dict[str, object], context: ToolContext, _progress: ProgressTo) -> Result:
        uri = given.get("uri")
        if not isinstance(uri, str) or not uri:
            why = "uri: give that of a resource, a text"
            return ToolFailure(context.run.name, FailureCode.INVALID_ARGUMENTS, why, "uri", "a text", f"{uri!r:.200}")
        return shown_contents(context.run.name, await remote.read_resource(uri, context))

    uri = {"type": "string", "description": "As it is listed."}
    made: tuple[tuple[str, str, dict[str, object], _Run], ...] = (
        ("list_resources", f"Lists what the server {remote.name} offers to read.", {}, listed),
        ("read_resource", f"Reads a resource of the server {remote.name}.", {"uri": uri}, read),
    )
    contract = _contract(server, server.risk_of("resources"))
    return [
        OfferedTool(
            _not_called_directly,
            ToolDefinition(
                fit_name(remote.name, name, taken),
                description,
                {
                    "type": "object",
                    "properties": properties,
                    "required": list(properties),
                    "additionalProperties": False,
                },
                deferred=server.deferred,
            ),
            contract,
            Signature(()),
            run=run,
        )
        for name, description, properties, run in made
    ]


async def _not_called_directly() -> None:
    raise TypeError("a tool of an MCP server is run by its server; ask the runtime to call it")

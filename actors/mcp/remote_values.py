"""What is known of an MCP server and its tools, as plain values: made by the connection, used without the SDK."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Self

import orjson
from msgspec import Struct, field

from callboard.actors.mcp.server_thread import AnyErrand


class RemoteTool(Struct, frozen=True):
    """A tool as its server describes it. What it says of its own risk (annotations) is not kept."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """As the server sends it: any JSON."""
    result_schema: Mapping[str, object] | None
    fingerprint: str
    """Of all that a model or a person reads of it: it changes with it."""

    @classmethod
    def of(cls, told: Mapping[str, object]) -> Self:
        """From the JSON object of `tools/list`."""
        parameters, result = told.get("inputSchema"), told.get("outputSchema")
        parameters = parameters if isinstance(parameters, Mapping) else {}
        description = str(told.get("description") or told.get("title") or "")
        shown = orjson.dumps([description, parameters], option=orjson.OPT_SORT_KEYS)
        return cls(
            str(told["name"]),
            description,
            parameters,
            result if isinstance(result, Mapping) else None,
            hashlib.sha256(shown).hexdigest(),
        )


class Listing(Struct, frozen=True):
    """The tools of a server, as they were last listed."""

    tools: tuple[RemoteTool, ...]
    ttl_seconds: float | None = None
    """After which the server is to be asked again; None: it has not said."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What the list has besides, by its names there, and why it is not among the tools."""
    broke_off: bool = False
    """A page of it did not come: there may be more tools."""


class ServerFacts(Struct, frozen=True):
    """What a server says of itself."""

    title: str
    """Its own name and version."""
    revision: str
    """Of the protocol that is spoken."""
    tells_changes: bool = False
    has_resources: bool = False
    has_prompts: bool = False


class ServerState(StrEnum):
    """How a connection is."""

    STARTING = "starting"
    """It is being made, for the first time or again."""
    READY = "ready"
    FAILED = "failed"
    """It failed too often, and is not made again."""
    STOPPED = "stopped"


class ServerStatus(Struct, frozen=True):
    """An MCP server as the owner sees it: `Runtime.mcp_servers()`."""

    name: str
    state: ServerState
    reason: str = ""
    """What the last connection failed with."""
    title: str = ""
    revision: str = ""
    tools: tuple[str, ...] = ()
    """By the names that models see."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What of its list is not offered, by the names at the server, and why."""
    connections: int = 0
    """Made so far: more than one means that it was lost."""


class ElicitForm(Struct, frozen=True):
    """What a server asks a person in the middle of a call."""

    server: str
    message: str
    schema: Mapping[str, object]
    """Of the answer: an object of texts, numbers, yes-or-no and choices."""
    url: str = ""
    """A page to open instead; the answer is only whether to."""


Elicit = Callable[[ElicitForm, AnyErrand | None], Awaitable[Mapping[str, object] | None]]
"""Puts the question, for the call that is under way; None declines."""

"""What the wire double was asked: the values, their JSON, and the list that the server keeps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict

#: Requests that are kept, for a double that is under load for hours.
MAX_KEPT: Final = 20_000


class Asked(Struct, frozen=True):
    """One request that the double was sent, and how its answer ended."""

    method: str
    path: str
    """As it was sent, with the query."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any
    """Parsed JSON; a string where it was none."""
    api: str
    """The wire API by the path, "" for any other path."""
    script: str
    """The name of the script that answered."""
    number: int
    """The number of the answer in its script, from 0."""
    at: float
    """When the request had come, by time.monotonic() (one clock for all processes of a machine)."""
    ended_at: float | None
    """When the answer had ended; None while it is being sent."""
    client_left: bool
    """The client went away before the end of the answer."""


class Traffic(Struct, frozen=True):
    """What the double has seen since it began or was reset. Requests to /_double do not count."""

    requests: tuple[Asked, ...]
    """The last 20,000."""
    connections: int
    """Connections on which anything was asked."""
    open_connections: int
    """How many of them are open now."""

    @property
    def bodies(self) -> list[Any]:
        """The body of each request."""
        return [asked.body for asked in self.requests]

    @property
    def abandoned(self) -> int:
        """Answers whose client went away before their end."""
        return sum(asked.client_left for asked in self.requests)


def traffic_from_json(data: bytes) -> Traffic:
    """The document that the double gives for GET /_double/requests."""
    document = orjson.loads(data)
    return Traffic(**{**document, "requests": tuple(Asked(**asked) for asked in document["requests"])})


class Exchange(Struct, eq=False):
    """One request and its answer, while the server works on it. The fields are those of `Asked`."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    at: float
    api: str = ""
    script: str = ""
    number: int = 0
    ended_at: float | None = None
    client_left: bool = False


class Recorder(Struct):
    """Everything since the start or the last reset, as far as it is kept."""

    exchanges: deque[Exchange] = field(default_factory=lambda: deque(maxlen=MAX_KEPT))
    _open: set[asyncio.BaseTransport] = field(default_factory=set)
    """Connections that were open when they were last looked at."""
    _connections: int = 0

    def add(self, exchange: Exchange, transport: asyncio.BaseTransport | None) -> None:
        """A request has come over this connection."""
        self.exchanges.append(exchange)
        if transport is not None and transport not in self._open:
            self._connections += 1
            self._open.add(transport)

    def forget(self) -> None:
        """Begin again. Connections that stay open are counted again when they are used."""
        self.exchanges.clear()
        self._open.clear()
        self._connections = 0

    def to_json(self) -> bytes:
        """The document that `traffic_from_json` reads."""
        self._open = {transport for transport in self._open if not transport.is_closing()}
        counts = {"connections": self._connections, "open_connections": len(self._open)}
        return orjson.dumps({"requests": list(self.exchanges), **counts}, asdict)

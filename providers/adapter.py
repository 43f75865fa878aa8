"""The seam between callboard and a wire API: pure translation, no socket, no clock.

An adapter is two functions: `encode` turns a ModelRequest into the bytes of one HTTP request, `decoder` makes an object
that turns the bytes of the answer into StreamEvents. transport.py, a test or a simulation moves the bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from callboard.protocol.limits import STREAM_IDLE_TIMEOUT_SECONDS, STREAM_TOTAL_TIMEOUT_SECONDS
from callboard.protocol.masking import for_log
from callboard.protocol.model import ModelRequest, StreamEvent
from callboard.protocol.values import repr_without
from callboard.providers.own_options import OptionTable

#: Where credentials are put, behind the word of their scheme or alone.
CREDENTIAL_HEADERS: Final = frozenset(
    {"authorization", "x-api-key", "x-goog-api-key", "api-key", "x-amz-security-token"}
)


class WireRequest(Struct, frozen=True):
    """One HTTP request, ready to be sent."""

    method: str
    url: str
    """May hold a password, which `repr` masks."""
    headers: Mapping[str, str]
    """Holds the credential: kept out of `repr`, so that no log shows it."""
    body: bytes
    notes: tuple[str, ...] = ()
    """What the API cannot express, and what was done about it: for the log. Nothing is dropped without a note."""
    credential: object = None
    """What an `Authorizer` has put into it; kept out of `repr` too."""

    def __repr__(self) -> str:
        return f"WireRequest({self.method} {for_log(self.url)}, {len(self.body)} bytes, notes={self.notes})"


class HttpAnswer(Struct, frozen=True):
    """A whole HTTP answer, to other than a model call: log-ins, lists of models."""

    status: int
    body: bytes
    headers: Mapping[str, str] = {}
    """Names in lower case."""

    __repr__ = repr_without("body", "headers")


class Decoder(Protocol):
    """The bytes of one answer to events. Exactly one Done or Error in its life, as the last event; never raises."""

    def feed(self, data: bytes, /) -> list[StreamEvent]:
        """The events completed by `data`, whichever way the bytes were cut."""

    def finish(self) -> list[StreamEvent]:
        """The body ended. Closes the stream with Done or Error where that has not happened yet."""


@runtime_checkable
class Adapter(Protocol):
    """One wire API at one address with one credential."""

    @property
    def name(self) -> str:
        """The provider's name, as in `provider/model`."""

    def encode(self, request: ModelRequest, /) -> WireRequest:
        """The request in the API's words. UsageError for what the API cannot be asked; nothing is repaired silently."""

    def decoder(self, status: int = 200, headers: Mapping[str, str] | None = None, streaming: bool = True) -> Decoder:
        """A decoder for the answer with this HTTP `status` and these `headers` (names in any case)."""


@runtime_checkable
class AsksServer(Protocol):
    """An adapter that can ask its server other things than a model call (`request_encoding.HttpAdapter.question`)."""

    def question(self, path: str, body: bytes | None = None) -> WireRequest:
        """A GET, or a POST where there is a body; {api} in `path` is the API's address, {root} that without version."""


@runtime_checkable
class Inquirable(Protocol):
    """A provider whose server can be asked other things than a model call."""

    async def inquire(self, path: str, body: bytes | None = None) -> HttpAnswer:
        """See `AsksServer.question`. Raises ProviderError where no answer comes, UsageError where none can be asked."""


@runtime_checkable
class HasAddress(Protocol):
    """An adapter or provider that says where it sends its requests."""

    @property
    def address(self) -> str:
        """The URL of the API, for logs and spans."""


@runtime_checkable
class ChecksRequests(Protocol):
    """A provider that knows, without asking, what its API cannot be asked."""

    def own_options(self, model: str) -> OptionTable:
        """How the options of this model's API are written."""

    def check(self, request: ModelRequest, /) -> None:
        """Raise UsageError for what cannot be asked of this model, by name: a kind of part, a tool of the server's, an
        option. Sends nothing."""


class Authorizer(Protocol):
    """Adds to a request, just before it is sent, what its adapter cannot know: a token that expires, a signature."""

    async def authorize(self, wire: WireRequest, /) -> WireRequest:
        """The request as it is sent. Raises ProviderError (AUTHENTICATION) where there is no credential."""

    async def is_renewed(self, refused: WireRequest, /) -> bool:
        """The server has refused the credential of this request: will the next one carry another? Gets a new one, at
        most once for a refused one. Raises ProviderError where none comes."""


@runtime_checkable
class Provider(Protocol):
    """A model to talk to: `transport.HttpProvider` around an adapter; `offline` and `scripted` need no network."""

    @property
    def name(self) -> str:
        """The provider's name, as in `provider/model`."""

    def stream(self, request: ModelRequest, /) -> AsyncIterator[list[StreamEvent]]:
        """One list of events per socket read. The last event of the last list is the only Done or Error.

        Raises UsageError where the request cannot be encoded, nothing else but cancellation.
        """

    async def aclose(self) -> None:
        """Close what is open. May be called more than once."""


class Timeouts(Struct, frozen=True):
    """All in seconds."""

    connect_seconds: float = 10.0
    """For name look-up and handshakes, which take well under a second each: more is an address without a server."""
    idle_seconds: float = STREAM_IDLE_TIMEOUT_SECONDS
    """Between two socket reads; a stalled stream is an error, not a wait."""
    total_seconds: float = STREAM_TOTAL_TIMEOUT_SECONDS
    """From the call to its last byte."""
    error_body_seconds: float = 5.0
    """For the body of an HTTP error, from its status on, which has said what is wrong."""

"""Tools that a provider runs itself, offered to the model beside ours. Each adapter says which of them its API has."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import field

from callboard.protocol.values import Value, repr_without


class WebSearch(Value, frozen=True):
    """A search of the web. Domains are names without scheme ("example.org"); () sets no limit."""

    max_uses: int | None = None
    """Searches in one turn; None: the provider's default."""
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()
    country: str = ""
    """Of the person who asks, as two letters (ISO 3166)."""
    city: str = ""
    region: str = ""
    timezone: str = ""
    """By its IANA name, such as "Europe/Paris"."""


class WebFetch(Value, frozen=True):
    """Reading pages whose addresses the model knows."""

    max_uses: int | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()


class CodeExecution(Value, frozen=True):
    """Programs that the model writes, run in a sandbox of the provider's."""

    file_ids: tuple[str, ...] = ()
    """Of files that the provider keeps, which the programs may read."""


class FileSearch(Value, frozen=True):
    """A search in files that were given to the provider before."""

    store_ids: tuple[str, ...]
    max_results: int | None = None


class RemoteMcp(Value, frozen=True):
    """The tools of an MCP server, which the provider calls."""

    name: str
    url: str
    authorization: str = ""
    """A bearer token for that server."""
    allowed_tools: tuple[str, ...] = ()
    """(): all of them."""
    headers: Mapping[str, str] = field(default_factory=dict)

    __repr__ = repr_without("authorization", "headers")


class ImageGeneration(Value, frozen=True):
    """Pictures made by a tool of the provider's; "" leaves its default."""

    size: str = ""
    """Such as "1024x1024"."""
    quality: str = ""


ServerToolOffer = WebSearch | WebFetch | CodeExecution | FileSearch | RemoteMcp | ImageGeneration

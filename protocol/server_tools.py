"""Tools that a provider runs itself, offered to the model beside ours. Each adapter says which of them its API has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WebSearch:
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


@dataclass(frozen=True, slots=True)
class WebFetch:
    """Reading pages whose addresses the model knows."""

    max_uses: int | None = None
    allowed_domains: tuple[str, ...] = ()
    blocked_domains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeExecution:
    """Programs that the model writes, run in a sandbox of the provider's."""

    file_ids: tuple[str, ...] = ()
    """Of files that the provider keeps, which the programs may read."""


@dataclass(frozen=True, slots=True)
class FileSearch:
    """A search in files that were given to the provider before."""

    store_ids: tuple[str, ...]
    max_results: int | None = None


@dataclass(frozen=True, slots=True)
class RemoteMcp:
    """The tools of an MCP server, which the provider calls."""

    name: str
    url: str
    authorization: str = field(default="", repr=False)
    """A bearer token for that server."""
    allowed_tools: tuple[str, ...] = ()
    """(): all of them."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ImageGeneration:
    """Pictures made by a tool of the provider's; "" leaves its default."""

    size: str = ""
    """Such as "1024x1024"."""
    quality: str = ""


ServerToolOffer = WebSearch | WebFetch | CodeExecution | FileSearch | RemoteMcp | ImageGeneration

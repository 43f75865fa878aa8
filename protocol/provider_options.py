"""What may be asked of one provider's API beyond what all of them have. Each adapter writes those of its own API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """The base of them. A field that is None leaves the provider's default."""


@dataclass(frozen=True, slots=True)
class ExtraFields(ProviderOptions):
    """Fields and headers that callboard does not know, as they are."""

    provider: str = ""
    """By its name; to any other one they are not sent. "": to all."""
    body: Mapping[str, object] = field(default_factory=dict)
    """Merged into the request's body last: an object into the object that is there, anything else in its place."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

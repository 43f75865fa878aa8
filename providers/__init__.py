"""What goes over the wire: sans-I/O adapters for the LLM APIs, and the one transport that opens connections.

The names are loaded when first used, so that a program that needs one module of this package does not load them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.protocol.lazy_loading import lazy_names

if TYPE_CHECKING:
    from callboard.providers.adapter import Adapter, Decoder, Provider, WireRequest
    from callboard.providers.provider_registry import adapter_for
    from callboard.providers.response_builder import ResponseBuilder, build_response

__all__ = ["Adapter", "Decoder", "Provider", "ResponseBuilder", "WireRequest", "adapter_for", "build_response"]

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "callboard.providers.adapter": ("Adapter", "Decoder", "Provider", "WireRequest"),
            "callboard.providers.provider_registry": ("adapter_for",),
            "callboard.providers.response_builder": ("ResponseBuilder", "build_response"),
        },
    )

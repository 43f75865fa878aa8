"""What goes over the wire: sans-I/O adapters for the LLM APIs, and the one transport that opens connections.

The names are loaded when first used: whoever needs one module of this package does not pay for HTTP (0.2 s).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.providers.adapter import Adapter, Decoder, Provider, WireRequest
    from callboard.providers.registry import adapter_for
    from callboard.providers.response_builder import ResponseBuilder, build_response

__all__ = ["Adapter", "Decoder", "Provider", "ResponseBuilder", "WireRequest", "adapter_for", "build_response"]

_MODULES = {
    "Adapter": "adapter",
    "Decoder": "adapter",
    "Provider": "adapter",
    "ResponseBuilder": "response_builder",
    "WireRequest": "adapter",
    "adapter_for": "registry",
    "build_response": "response_builder",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

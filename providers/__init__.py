"""What goes over the wire: sans-I/O adapters for the LLM APIs, and the one transport that opens connections."""

from callboard.providers.adapter import Adapter, Decoder, Provider, WireRequest
from callboard.providers.registry import adapter_for
from callboard.providers.response_builder import ResponseBuilder, build_response

__all__ = ["Adapter", "Decoder", "Provider", "ResponseBuilder", "WireRequest", "adapter_for", "build_response"]

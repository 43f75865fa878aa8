"""What runs: the runtime and its actors. These names are for users; everything else is imported from its module.

The names are loaded when first used. Child processes import modules of this package, and a worker that had to load
HTTP clients and settings first would start ten times slower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.actors.requests.conversation import Conversation, ModelCallFailed, Reply, RequestEnded, Stream
    from callboard.actors.runtime import Runtime
    from callboard.actors.settings import Settings
    from callboard.actors.tools import Tool, ToolContext, tool

__all__ = [
    "Conversation",
    "ModelCallFailed",
    "Reply",
    "RequestEnded",
    "Runtime",
    "Settings",
    "Stream",
    "Tool",
    "ToolContext",
    "tool",
]

_MODULES = {
    "Conversation": "requests.conversation",
    "ModelCallFailed": "requests.conversation",
    "Reply": "requests.conversation",
    "RequestEnded": "requests.conversation",
    "Runtime": "runtime",
    "Settings": "settings",
    "Stream": "requests.conversation",
    "Tool": "tools",
    "ToolContext": "tools",
    "tool": "tools",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

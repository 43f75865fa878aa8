"""Code search: the index of a workspace and the context assembled from it. Names are loaded when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from callboard.actors.index.assembly import assemble
    from callboard.actors.index.code_index import CodeIndex, EdgeRow, FileMetadata, Hit
    from callboard.actors.index.updater import Progress, RefreshSummary

__all__ = ["CodeIndex", "EdgeRow", "FileMetadata", "Hit", "Progress", "RefreshSummary", "assemble"]

_MODULES = {
    "CodeIndex": "code_index",
    "EdgeRow": "code_index",
    "FileMetadata": "code_index",
    "Hit": "code_index",
    "Progress": "updater",
    "RefreshSummary": "updater",
    "assemble": "assembly",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

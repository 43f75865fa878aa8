"""Code search: the index of a workspace and the context assembled from it. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callboard.protocol.lazy_loading import lazy_names

if TYPE_CHECKING:
    from callboard.actors.index.assembly import assemble
    from callboard.actors.index.code_index import CodeIndex, Hit
    from callboard.actors.index.disk import IndexWriteError
    from callboard.actors.index.refresh import Progress, RefreshSummary
    from callboard.actors.index.store import EdgeRow

__all__ = ["CodeIndex", "EdgeRow", "Hit", "IndexWriteError", "Progress", "RefreshSummary", "assemble"]

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name
    __getattr__ = lazy_names(
        __name__,
        {
            "callboard.actors.index.assembly": ("assemble",),
            "callboard.actors.index.code_index": ("CodeIndex", "Hit"),
            "callboard.actors.index.disk": ("IndexWriteError",),
            "callboard.actors.index.refresh": ("Progress", "RefreshSummary"),
            "callboard.actors.index.store": ("EdgeRow",),
        },
    )

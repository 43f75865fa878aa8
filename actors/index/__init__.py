"""Code search: the index of a workspace and the context assembled from it. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callboard.actors.index.assembly import assemble
    from callboard.actors.index.code_index import CodeIndex, Hit
    from callboard.actors.index.disk import IndexWriteError
    from callboard.actors.index.refresh import Progress, RefreshSummary
    from callboard.actors.index.store import EdgeRow

__all__ = ["CodeIndex", "EdgeRow", "Hit", "IndexWriteError", "Progress", "RefreshSummary", "assemble"]

if not TYPE_CHECKING:  # a type checker that saw this function would accept every name

    def __getattr__(name: str) -> object:
        if name in __all__:
            from callboard.actors.index import assembly, code_index, refresh  # noqa: PLC0415 - children need less

            return next(vars(each)[name] for each in (assembly, code_index, refresh) if name in vars(each))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

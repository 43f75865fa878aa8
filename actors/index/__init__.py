"""Code search: the index of a workspace and the context assembled from it."""

from callboard.actors.index.assembly import assemble
from callboard.actors.index.code_index import CodeIndex, EdgeRow, FileMetadata, Hit
from callboard.actors.index.updater import Progress, RefreshSummary

__all__ = ["CodeIndex", "EdgeRow", "FileMetadata", "Hit", "Progress", "RefreshSummary", "assemble"]

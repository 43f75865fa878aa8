"""What a feed keeps: single items, and joined pieces: many pieces of streamed text kept as one text.

A piece has some five characters and costs hundreds of bytes as an object with its position. Joined, 64 pieces are one
text and the places where each of them ends; followers are given the same pieces with the same ids.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.requests.feed_positions import Position
from callboard.actors.requests.replies import StreamItem
from callboard.protocol.model import TextDelta, ThinkingDelta, ToolCallDelta

FeedItem = tuple[Position, StreamItem[object]]
Piece = TextDelta | ThinkingDelta | ToolCallDelta

#: This many pieces in a row are kept as one text.
JOINED_PIECES: Final = 64
#: The objects of a JoinedPieces besides its text and its numbers: itself, two positions, a piece, an array.
_OBJECTS_BYTES: Final = 500


class KeptItem(Struct, frozen=True):
    """One item."""

    first: int
    """The number of items that came before it in the feed."""
    last: Position
    """Its position."""
    item: StreamItem[object]
    size_bytes: int
    count: ClassVar[int] = 1

    def items(self, skipped: int = 0) -> Iterator[FeedItem]:
        """This one, unless it is skipped."""
        if not skipped:
            yield self.last, self.item


class JoinedPieces(Struct, frozen=True):
    """Pieces of the same part of a turn that were streamed directly one after the other."""

    first: int
    """The number of items that came before them in the feed."""
    begins: Position
    """Of the first piece; `streamed` grows by one with each piece behind it."""
    last: Position
    like: Piece
    """A piece without its text."""
    text: str
    ends: array[int]
    """Where each piece ends in `text`."""

    @classmethod
    def of(cls, kept: Sequence[KeptItem]) -> JoinedPieces:
        """Of items each of which `follows` the one before it."""
        pieces = [each.item for each in kept if isinstance(each.item, Piece)]
        texts = [piece.args_delta if isinstance(piece, ToolCallDelta) else piece.text for piece in pieces]
        ends = array("Q", accumulate(map(len, texts)))
        return cls(kept[0].first, kept[0].last, kept[-1].last, _with_text(pieces[0], ""), "".join(texts), ends)

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.ends)

    @property
    def size_bytes(self) -> int:
        """About how much memory they keep."""
        return _OBJECTS_BYTES + sys.getsizeof(self.text) + self.ends.itemsize * len(self.ends)

    def items(self, skipped: int = 0) -> Iterator[FeedItem]:
        """The pieces as they came, without the first `skipped` ones."""
        begin = self.ends[skipped - 1] if skipped else 0
        for number, end in enumerate(self.ends[skipped:], skipped):
            position = replace(self.begins, streamed=self.begins.streamed + number)
            yield position, _with_text(self.like, self.text[begin:end])
            begin = end


def follows(before: KeptItem, given: KeptItem) -> bool:
    """Is this a piece of the same part of a turn, streamed directly after the one before?"""
    part = _part(given.item)
    if part is None or part != _part(before.item):
        return False
    return given.last == replace(before.last, streamed=before.last.streamed + 1)


def _part(item: object) -> tuple[type[Piece], object] | None:
    """Which part of a turn a piece belongs to; None of an item that is kept by itself."""
    if isinstance(item, TextDelta | ThinkingDelta):
        return (type(item), item.block) if item.replay is None else None
    return (ToolCallDelta, item.id) if isinstance(item, ToolCallDelta) else None


def _with_text(piece: Piece, text: str) -> Piece:
    return replace(piece, args_delta=text) if isinstance(piece, ToolCallDelta) else replace(piece, text=text)

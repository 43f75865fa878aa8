"""What the feed of a request is: its items with their positions in a list, and what of that is still kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.requests.feed_positions import Position
from callboard.actors.requests.replies import Seen, Shown
from callboard.actors.testing.request_accounts import bytes_of
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import CallModel
from callboard.protocol.content import Image, ServerTool, Text, Thinking, ToolCall
from callboard.protocol.events import (
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
)
from callboard.protocol.model import (
    CallPurpose,
    CitationDelta,
    Done,
    MediaDelta,
    ModelResponse,
    Restarted,
    ServerToolEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)

#: In these plays: what a feed keeps, what may be unread, what a follower takes at a time, and pieces that are joined.
KEPT_BYTES: Final = 1_500
UNREAD_BYTES: Final = 5_000
TAKEN: Final = 5
JOINED: Final = 3
PROCESS: Final = "0123456789ab"
Item = tuple[Position, object]
_TURN, _SHOWN = 0, 1
_ENDS: Final = (ModelResponded, ModelFailed, ModelLost, CancelRequested)


def is_behind(position: Position, given: Position) -> bool:
    """Is it to be read yet by one who has read up to `given`?"""
    one = (position.number, position.phase, position.index)
    other = (given.number, given.phase, given.index)
    return one > other or (one == other and position.streamed > (given.process == position.process) * given.streamed)


def turn_pieces(parts: Any, response: ModelResponse | None) -> Iterator[object]:
    """Of a turn that is known as a whole."""
    for block, part in enumerate(parts):
        if isinstance(part, Text):
            yield TextDelta(part.text, block, part.replay)
            if part.citations:
                yield CitationDelta(part.citations, block)
        elif isinstance(part, Thinking):
            yield ThinkingDelta(part.text, block, part.replay)
        elif isinstance(part, ToolCall):
            yield ToolCallStart(part.call_id, part.name, part.replay)
            yield ToolCallDelta(part.call_id, part.arguments)
            if part.complete:
                yield ToolCallComplete(part.call_id)
        elif isinstance(part, Image):
            yield MediaDelta(part, block)
        elif isinstance(part, ServerTool):
            yield ServerToolEvent(part.kind, part.replay, part.name, part.call_id, part.text, part.found)
    if response is not None and response.error is None:
        yield Done(response.finish_reason, response.raw_finish_reason, response.usage)


class Entry(Struct):
    """What is kept as one: an item, or some pieces that were joined."""

    first: int
    items: list[Item]
    size_bytes: int = 0
    """About what it costs."""

    def __post_init__(self) -> None:
        if len(self.items) == 1:
            self.size_bytes = bytes_of(self.items[0][1])
        else:
            text = "".join(_text(item) for _, item in self.items)
            self.size_bytes = 500 + sys.getsizeof(text) + 8 * len(self.items)


class FeedAccount(Struct):
    """The feed of one request."""

    has_journal: bool
    last: Position = Position()
    is_skipping: bool = False
    is_aside: bool = False
    is_streamed: bool = False
    """The open turn, so far."""
    came: list[Item] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    kept_from: Position = Position()

    def begins_at(self, number: int, asks_for: CallPurpose | None) -> None:
        """It was added to a request that runs."""
        if number:
            self.last = self.kept_from = Position(number, _SHOWN, 900_000)
        self.is_skipping = asks_for is CallPurpose.TURN
        self.is_aside = asks_for is not None and asks_for is not CallPurpose.TURN

    # -- what comes

    def takes(self, seen: Seen, read: list[int]) -> bool:
        """What the session shows; `read`: how far its followers are. Has anything come for them?"""
        before = len(self.came)
        if isinstance(seen, ModelStreamed):
            for piece in seen.events:
                self.is_skipping = self.is_skipping and not isinstance(piece, Restarted)
                if not self.is_skipping:
                    self.is_streamed = True
                    self._add(self._streamed(True), piece)
        elif isinstance(seen, ToolProgressed):
            self._add(self._streamed(self.last.is_partial), seen)
        elif isinstance(seen, Event):
            self._happens(seen)
        elif isinstance(seen, CallModel):
            self.is_aside = seen.purpose is not CallPurpose.TURN
        elif isinstance(seen, Shown):
            self._shows(seen)
        if len(self.came) > before:
            self._forget(min(read, default=len(self.came)))
        return len(self.came) > before

    def _streamed(self, is_partial: bool) -> Position:
        last = self.last
        return Position(last.number, last.phase, last.index, PROCESS, last.streamed + 1, is_partial)

    def _happens(self, event: Event) -> None:
        was_streamed, number = self.is_streamed, self.last.number + 1
        is_whole = isinstance(event, (*_ENDS, DeadlinePassed))
        self.last = Position(number, _SHOWN, is_partial=self.last.is_partial and not is_whole)
        if isinstance(event, ModelResponded) and not was_streamed and not self.is_aside:
            for index, piece in enumerate(turn_pieces(event.response.parts, event.response), 1):
                self._add(Position(number, _TURN, index), piece)
            self.last = Position(number, _SHOWN)
        if isinstance(event, ModelLost) and was_streamed:
            self._add(self._streamed(False), Restarted("the model call was lost and is asked again"))
        if isinstance(event, _ENDS):  # a timer that was set anew may pass in the midst of a turn
            self.is_skipping = self.is_aside = self.is_streamed = False
        if isinstance(event, Shown):
            self._shows(event)

    def _shows(self, seen: object) -> None:
        last = self.last
        process = PROCESS if last.is_partial else ""
        self._add(Position(last.number, _SHOWN, last.index + 1, process, 0, last.is_partial), seen)

    def _add(self, position: Position, item: object) -> None:
        self.last = position
        self.entries.append(Entry(len(self.came), [(position, item)]))
        self.came.append((position, item))
        tail = self.entries[-JOINED:]
        are_single = len(tail) == JOINED and all(len(each.items) == 1 for each in tail)
        if are_single and all(_follows(one.items[0], other.items[0]) for one, other in pairwise(tail)):
            self.entries[-JOINED:] = [Entry(tail[0].first, [each.items[0] for each in tail])]

    # -- what is kept

    @property
    def size_bytes(self) -> int:
        """Of all that is kept."""
        return sum(each.size_bytes for each in self.entries)

    @property
    def first(self) -> int:
        """How many items are no longer kept."""
        return self.entries[0].first if self.entries else len(self.came)

    def _forget(self, read: int) -> None:
        while self.entries:
            size, oldest = self.size_bytes, self.entries[0]
            is_read = oldest.first + len(oldest.items) <= read
            is_recorded = self.has_journal and not self.last.is_partial
            if size <= UNREAD_BYTES and not (is_recorded and is_read and size > KEPT_BYTES):
                return
            self.kept_from = self.entries.pop(0).items[-1][0]

    def place_behind(self, after: Position) -> int | None:
        """So many items a follower has read that goes on from there; None: some of the next ones are not kept."""
        if is_behind(self.kept_from, after):
            return None
        return self.first + sum(not is_behind(position, after) for position, _ in self.came[self.first :])

    def taken(self, at: int) -> list[Item] | None:
        """What one reads next that has read so many; None: some of it is gone."""
        return None if at < self.first else self.came[at : at + TAKEN]


def _text(piece: Any) -> str:
    return str(piece.args_delta if isinstance(piece, ToolCallDelta) else piece.text)


def _part(item: object) -> object:
    if isinstance(item, TextDelta | ThinkingDelta) and item.replay is None:
        return type(item), item.block
    return item.id if isinstance(item, ToolCallDelta) else None


def _follows(one: Item, other: Item) -> bool:
    is_same = _part(one[1]) is not None and _part(one[1]) == _part(other[1])
    return is_same and other[0] == replace(one[0], streamed=one[0].streamed + 1)

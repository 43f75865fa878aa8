"""The feed of one request: what it shows, kept for any number of followers, with a position for each item."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from threading import Lock
from typing import Final

from msgspec import Struct

from callboard.actors.requests.feed_positions import BEHIND_ALL, IN_TURN, SHOWN, Position, comes_after
from callboard.actors.requests.joined_pieces import JOINED_PIECES, FeedItem, JoinedPieces, KeptItem, follows
from callboard.actors.requests.replies import MAX_UNREAD_BYTES, Answer, Seen, Shown, StreamItem, size_of
from callboard.actors.requests.session_messages import FeedStart, Subscriber
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import CallModel
from callboard.protocol.content import (
    AssistantPart,
    Audio,
    Document,
    Image,
    ServerTool,
    Text,
    Thinking,
    ToolCall,
)
from callboard.protocol.errors import RuntimeFailure
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
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallComplete,
    ToolCallDelta,
    ToolCallStart,
)

#: What a feed keeps of what all its followers have read, in bytes of memory, so that one whose connection was cut can
#: go on from there: some ten thousand pieces of text. Older items come from the journal, where there is one.
KEPT_BYTES: Final = 1024 * 1024
#: What a follower takes at a time. Joined pieces are made into objects again then, and no more of them than this.
TAKEN_ITEMS: Final = 256
#: A timer that was set anew may pass all the same: only what ends the request then says that its turn is over.
_ENDS_TURN: Final = (ModelResponded, ModelFailed, ModelLost, CancelRequested)
_ASKED_AGAIN: Final = Restarted("the model call was lost and is asked again")
RECORDED_AGAIN: Final = Restarted("what was streamed of this turn is no longer kept: it follows from its beginning")


class FollowerTooSlow(RuntimeFailure):
    """A follower has left too much unread, or goes on behind what is still kept."""


class Followed(Struct, frozen=True):
    """One item of a request that is followed, and the id by which to go on behind it."""

    id: str
    item: StreamItem[object]


class RequestFeed:
    """What a session shows goes in on its loop; followers read on theirs."""

    def __init__(self, answer: Answer[object], process: str, *, has_journal: bool, beside: Subscriber) -> None:
        """`beside`: who hears of the request, too; `process`: says which process streams."""
        self.answer = answer
        self.process = process
        self._has_journal = has_journal
        self._beside = beside
        self._lock = Lock()
        self._kept: list[KeptItem | JoinedPieces] = []
        self._end = 0
        """The number of items that have come."""
        self._run = 0
        """The number of items at the end of `_kept` that can be joined."""
        self.size_bytes = 0
        self.kept_from = Position()
        """All items behind this position are kept."""
        self.begins = Position()
        """Behind this position it heard of the request."""
        self._last = Position()
        self._is_skipping = False
        """The turn that is streamed began before this feed."""
        self._is_aside = False
        """The model call that is open is no part of the answer."""
        self._is_streamed = False
        """The turn that is open came in pieces so far."""
        self._readers: dict[FeedReader, None] = {}
        answer.future.on_done(self._ended)

    def begins_at(self, start: FeedStart) -> None:
        """Added to a request that runs, before it hears anything."""
        # Everything that these events have led to was shown before.
        self.begins = self.kept_from = self._last = (
            Position(start.number, SHOWN, BEHIND_ALL) if start.number else Position()
        )
        self._is_skipping = start.asks_for is CallPurpose.TURN
        self._is_aside = start.asks_for not in (None, CallPurpose.TURN)

    # -- the session's side

    def __call__(self, seen: Seen) -> None:
        """The session's side, on the loop thread."""
        self._take(seen)
        self._beside(seen)

    def _take(self, seen: Seen) -> None:
        with self._lock:
            known = self._end
            if isinstance(seen, ModelStreamed):
                for each in seen.events:
                    self._stream(each)
            elif isinstance(seen, ToolProgressed):
                self._add(self._behind(self._last.is_partial), seen)
            elif isinstance(seen, Event):
                self._event(seen)
            elif isinstance(seen, CallModel):
                self._is_aside = seen.purpose is not CallPurpose.TURN
            elif isinstance(seen, Shown):
                self._show(seen)
            if self._end == known:
                return
            self._forget()
            waiting = tuple(self._readers)
        for reader in waiting:
            reader.wake()

    def _stream(self, event: StreamEvent) -> None:
        if isinstance(event, Restarted):
            self._is_skipping = False
        if not self._is_skipping:
            self._is_streamed = True
            self._add(self._behind(is_partial=True), event)

    def _event(self, event: Event) -> None:
        was_streamed = self._is_streamed
        is_partial = self._last.is_partial and not isinstance(event, (*_ENDS_TURN, DeadlinePassed))
        self._last = Position(self._last.number + 1, SHOWN, is_partial=is_partial)
        if isinstance(event, ModelResponded) and not (was_streamed or self._is_aside):  # it came in one piece
            for position, piece in recorded_turn(event.response.parts, event.response, self._last.number):
                self._add(position, piece)
            self._last = Position(self._last.number, SHOWN)
        if isinstance(event, ModelLost) and was_streamed:
            self._add(self._behind(is_partial=False), _ASKED_AGAIN)
        if isinstance(event, _ENDS_TURN):
            self._is_skipping = self._is_aside = self._is_streamed = False
        if isinstance(event, Shown):
            self._show(event)

    def _show(self, item: Shown) -> None:
        last = self._last
        process = self.process if last.is_partial else ""
        self._add(Position(last.number, SHOWN, last.index + 1, process, is_partial=last.is_partial), item)

    def _behind(self, is_partial: bool) -> Position:
        last = self._last
        return Position(last.number, last.phase, last.index, self.process, last.streamed + 1, is_partial)

    def _add(self, position: Position, item: StreamItem[object]) -> None:
        self._last = position
        added = KeptItem(self._end, position, item, size_of(item))
        before = self._kept[-1] if self._run else None
        is_next = isinstance(before, KeptItem) and follows(before, added)
        self._run = self._run + 1 if is_next else 1
        self._kept.append(added)
        self._end += 1
        self.size_bytes += added.size_bytes
        if self._run == JOINED_PIECES:
            self._join()

    def _join(self) -> None:
        """Make one entry of the last items."""
        pieces = [each for each in self._kept[-JOINED_PIECES:] if isinstance(each, KeptItem)]
        joined = JoinedPieces.of(pieces)
        self._kept[-JOINED_PIECES:] = [joined]
        self._run = 0
        self.size_bytes += joined.size_bytes - sum(each.size_bytes for each in pieces)

    @property
    def _first(self) -> int:
        """The number of items that are no longer kept."""
        return self._kept[0].first if self._kept else self._end

    def _forget(self) -> None:
        """What followers have read, where the journal has it; and, of what they have not, what is too much."""
        kept = self._kept
        read = min((reader.at for reader in self._readers), default=self._end)
        gone = 0
        while self.size_bytes > MAX_UNREAD_BYTES or (
            self._has_journal
            and self.size_bytes > KEPT_BYTES
            and kept[gone].first + kept[gone].count <= read
            and not self._last.is_partial  # a turn that is not whole is not recorded
        ):
            self.size_bytes -= kept[gone].size_bytes
            self.kept_from = kept[gone].last
            gone += 1
        if gone:
            del kept[:gone]
            self._run = min(self._run, len(kept))

    def _ended(self) -> None:
        with self._lock:
            waiting = tuple(self._readers)
        for reader in waiting:
            reader.wake()

    # -- a follower's side

    def reader(self, after: Position) -> FeedReader | None:
        """From behind this position on; None where that is not kept."""
        with self._lock:
            if comes_after(self.kept_from, after):
                return None
            return self._reading(self._first_behind(after))

    def _first_behind(self, after: Position) -> int:
        """The number of items up to this position."""
        entry = next((each for each in self._kept if comes_after(each.last, after)), None)
        if entry is None:
            return self._end
        return entry.first + sum(not comes_after(position, after) for position, _ in entry.items())

    def reader_of_kept(self) -> tuple[Position, FeedReader]:
        """All that is kept, and behind which position that is."""
        with self._lock:
            return self.kept_from, self._reading(self._first)

    def _reading(self, at: int) -> FeedReader:
        reader = FeedReader(self, at)
        self._readers[reader] = None
        return reader

    def leave(self, reader: FeedReader) -> None:
        """It reads no more."""
        with self._lock:
            self._readers.pop(reader, None)

    def take(self, reader: FeedReader) -> list[FeedItem] | None:
        """The next unread items, at most TAKEN_ITEMS; [] where it has read all, None where some of it is gone."""
        with self._lock:
            if reader.at < self._first:
                return None
            if reader.at == self._end:
                return []
            at = bisect_right(self._kept, reader.at, key=lambda each: each.first) - 1
            begun = self._kept[at]
            rest = chain.from_iterable(each.items() for each in self._kept[at + 1 : at + 1 + TAKEN_ITEMS])
            found = list(islice(chain(begun.items(reader.at - begun.first), rest), TAKEN_ITEMS))
            reader.at += len(found)
            return found


class FeedReader:
    """One follower of a feed, on the asyncio loop that it was made on."""

    __slots__ = ("_event", "_feed", "_is_waking", "_loop", "at")

    def __init__(self, feed: RequestFeed, at: int) -> None:
        self.at = at
        """So many items of the feed it has read, or never wants to."""
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._event.set()
        self._is_waking = False

    def wake(self) -> None:
        """There is something to read, or the request has ended. From any thread."""
        if self._is_waking:  # a wake-up costs a system call, and the one that is under way finds this too
            return
        self._is_waking = True
        try:
            self._loop.call_soon_threadsafe(self._woken)
        except RuntimeError:  # the reader's loop is closed: it will not read on
            self.leave()

    def _woken(self) -> None:
        self._is_waking = False  # before the look: what comes after it needs a wake-up of its own
        self._event.set()

    async def wait(self) -> bool:
        """Until there may be something to read. True: the request has ended, and nothing comes behind what is there."""
        await self._event.wait()
        self._event.clear()
        return self._feed.answer.future.done

    def take(self) -> list[FeedItem] | None:
        """The next of what was not read; [] where all was, None where some of that is no longer kept."""
        return self._feed.take(self)

    def leave(self) -> None:
        """Read no more."""
        self._feed.leave(self)


# -- a turn as it was recorded


def recorded_turn(
    parts: Iterable[AssistantPart], response: ModelResponse | None, number: int
) -> Iterator[tuple[Position, StreamEvent]]:
    """The items of a turn that is known as a whole: each part in one piece."""
    index = 0
    for block, part in enumerate(parts):
        for piece in _pieces(part, block):
            index += 1
            yield Position(number, IN_TURN, index), piece
    if response is not None and response.error is None:
        done = Done(response.finish_reason, response.raw_finish_reason, response.usage)
        yield Position(number, IN_TURN, index + 1), done


def _pieces(part: AssistantPart, block: int) -> tuple[StreamEvent, ...]:
    match part:
        case Text(text, replay, citations):
            cited = (CitationDelta(citations, block),) if citations else ()
            return (TextDelta(text, block, replay), *cited)
        case Thinking(text, replay):
            return (ThinkingDelta(text, block, replay),)
        case ToolCall(call_id, name, arguments, complete, replay):
            begun = (ToolCallStart(call_id, name, replay), ToolCallDelta(call_id, arguments))
            return (*begun, ToolCallComplete(call_id)) if complete else begun
        case Image() | Audio() | Document():
            return (MediaDelta(part, block),)
        case ServerTool():
            return (ServerToolEvent(*(getattr(part, name) for name in ServerToolEvent.__struct_fields__)),)

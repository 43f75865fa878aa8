"""The feed of one request: what it shows, kept for any number of followers, with a position for each item."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import Final

from callboard.actors.requests.feed_positions import BEHIND_ALL, IN_TURN, SHOWN, Position, comes_after
from callboard.actors.requests.replies import MAX_UNREAD_BYTES, Answer, Seen, Shown, StreamItem, size_of
from callboard.actors.requests.session_messages import FeedStart, Subscriber
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import CallModel, CallPurpose
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
#: go on from there: some thousand pieces of text. Older items come from the journal, where there is one.
KEPT_BYTES: Final = 1024 * 1024
_ENDS_TURN: Final = (ModelResponded, ModelFailed, ModelLost, CancelRequested, DeadlinePassed)
_ASKED_AGAIN: Final = Restarted("the model call was lost and is asked again")
RECORDED_AGAIN: Final = Restarted("what was streamed of this turn is no longer kept: it follows from its beginning")


class FollowerTooSlow(RuntimeFailure):
    """A follower has left too much unread, or goes on behind what is still kept."""


@dataclass(frozen=True, slots=True)
class Followed:
    """One item of a request that is followed, and the id by which to go on behind it."""

    id: str
    item: StreamItem[object]


@dataclass(frozen=True, slots=True)
class _Kept:
    position: Position
    item: StreamItem[object]
    size_bytes: int


class RequestFeed:
    """What a session shows goes in on its loop; followers read on theirs."""

    def __init__(self, answer: Answer[object], process: str, *, has_journal: bool, beside: Subscriber) -> None:
        """`beside`: who hears of the request, too; `process`: says which process streams."""
        self.answer = answer
        self.process = process
        self._has_journal = has_journal
        self._beside = beside
        self._lock = Lock()
        self._kept: deque[_Kept] = deque()
        self._first = 0
        """So many items are no longer kept."""
        self.size_bytes = 0
        self.kept_from = Position()
        """All items behind this position are kept."""
        self._last = Position()
        self._is_skipping = False
        """The turn that is streamed began before this feed."""
        self._is_summary = False
        """The model call that is open is no part of the answer."""
        self._readers: dict[FeedReader, None] = {}
        answer.future.on_done(self._ended)

    def begins_at(self, start: FeedStart) -> None:
        """Added to a request that runs, before it hears anything."""
        # Everything that these events have led to was shown before.
        self.kept_from = self._last = Position(start.number, SHOWN, BEHIND_ALL) if start.number else Position()
        self._is_skipping = start.asks_for is CallPurpose.TURN
        self._is_summary = start.asks_for is CallPurpose.SUMMARY

    # -- the session's side

    def __call__(self, seen: Seen) -> None:
        """The session's side, on the loop thread."""
        self._take(seen)
        self._beside(seen)

    def _take(self, seen: Seen) -> None:
        with self._lock:
            added = len(self._kept)
            if isinstance(seen, ModelStreamed):
                for each in seen.events:
                    self._stream(each)
            elif isinstance(seen, ToolProgressed):
                self._add(self._behind(self._last.is_partial), seen)
            elif isinstance(seen, Event):
                self._event(seen)
            elif isinstance(seen, CallModel):
                self._is_summary = seen.purpose is CallPurpose.SUMMARY
            elif isinstance(seen, Shown):
                self._show(seen)
            if len(self._kept) == added:
                return
            self._forget()
            waiting = tuple(self._readers)
        for reader in waiting:
            reader.wake()

    def _stream(self, event: StreamEvent) -> None:
        if isinstance(event, Restarted):
            self._is_skipping = False
        if not self._is_skipping:
            self._add(self._behind(is_partial=True), event)

    def _event(self, event: Event) -> None:
        was_partial = self._last.is_partial
        is_partial = was_partial and not isinstance(event, _ENDS_TURN)
        self._last = Position(self._last.number + 1, SHOWN, is_partial=is_partial)
        if isinstance(event, ModelResponded) and not (was_partial or self._is_summary):  # it came in one piece
            for position, piece in recorded_turn(event.response.parts, event.response, self._last.number):
                self._add(position, piece)
            self._last = Position(self._last.number, SHOWN)
        if isinstance(event, ModelLost) and was_partial:
            self._add(self._behind(is_partial=False), _ASKED_AGAIN)
        if isinstance(event, _ENDS_TURN):
            self._is_skipping = self._is_summary = False
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
        size_bytes = size_of(item)
        self._kept.append(_Kept(position, item, size_bytes))
        self.size_bytes += size_bytes

    def _forget(self) -> None:
        """What followers have read, where the journal has it; and, of what they have not, what is too much."""
        kept = self._kept
        read = min((reader.at for reader in self._readers), default=self._first + len(kept))
        while self.size_bytes > MAX_UNREAD_BYTES or (
            self._has_journal
            and self.size_bytes > KEPT_BYTES
            and self._first < read
            and not self._last.is_partial  # a turn that is not whole is not recorded
        ):
            oldest = kept.popleft()
            self._first += 1
            self.size_bytes -= oldest.size_bytes
            self.kept_from = oldest.position

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
            at = next((n for n, each in enumerate(self._kept) if comes_after(each.position, after)), len(self._kept))
            return self._reading(self._first + at)

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

    def take(self, reader: FeedReader) -> list[tuple[Position, StreamItem[object]]] | None:
        """What it has not read; None where some of that is no longer kept."""
        with self._lock:
            if reader.at < self._first:
                return None
            found = [(each.position, each.item) for each in islice(self._kept, reader.at - self._first, None)]
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

    def take(self) -> list[tuple[Position, StreamItem[object]]] | None:
        """What was not read; None where some of that is no longer kept."""
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
            return (ServerToolEvent(*(getattr(part, name) for name in ServerToolEvent.__slots__)),)

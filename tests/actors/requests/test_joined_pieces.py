"""Joined pieces: followers read from them what they would read from single items, behind any id."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from callboard.actors.requests import request_feed
from callboard.actors.requests.conversation import Conversation
from callboard.actors.requests.feed_positions import END, Position, comes_after
from callboard.actors.requests.joined_pieces import FeedItem, JoinedPieces
from callboard.actors.requests.replies import Answer, Seen
from callboard.actors.requests.request_feed import FeedReader, RequestFeed
from callboard.actors.tools.progress import ToolProgressed
from callboard.protocol.commands import Note
from callboard.protocol.content import Replay, Text
from callboard.protocol.events import ModelLost, ModelResponded, ModelStreamed
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.model import ModelResponse, Restarted, TextDelta, ThinkingDelta, ToolCallDelta

TAG = Tag(RequestId("r"), MessageId("m"))
ANSWER: Answer[object] = Answer(Conversation(), TAG, 600.0)
PROCESS, OTHER_PROCESS = "0123456789ab", "ba9876543210"

TEXT = st.text(st.characters(), max_size=4)
BLOCK = st.integers(0, 1)
PIECE = st.one_of(
    st.builds(TextDelta, TEXT, BLOCK),
    st.builds(TextDelta, TEXT, BLOCK, st.none() | st.just(Replay("x", {}))),
    st.builds(ThinkingDelta, TEXT, BLOCK),
    st.builds(ToolCallDelta, st.sampled_from((CallId("a"), CallId("b"))), TEXT),
    st.just(Restarted("again")),
)
RUN = st.tuples(PIECE, st.lists(TEXT, max_size=12)).map(lambda run: [like(run[0], text) for text in ("x", *run[1])])
SEEN = st.one_of(
    RUN.map(lambda run: ModelStreamed(TAG, 0.0, tuple(run))),
    RUN.map(lambda run: ModelStreamed(TAG, 0.0, tuple(run))),
    st.builds(lambda text: ModelResponded(TAG, 1.0, ModelResponse((Text(text), Text(text)))), TEXT),
    st.just(ModelLost(TAG, 1.0)),
    st.just(ToolProgressed(TAG, 1.0, "half")),
    st.just(Note(TAG, "note")),
)


def like(piece: object, text: str) -> object:
    if isinstance(piece, TextDelta | ThinkingDelta):
        return replace(piece, text=text)
    return replace(piece, args_delta=text) if isinstance(piece, ToolCallDelta) else piece


def new_feed(has_journal: bool = False) -> RequestFeed:
    return RequestFeed(ANSWER, PROCESS, has_journal=has_journal, beside=lambda seen: None)


def bounds(joined: int, **others: int) -> mock._patch[object]:
    return mock.patch.multiple(request_feed, JOINED_PIECES=joined, **others)


def all_behind(feed: RequestFeed, after: Position) -> list[FeedItem] | None:
    reader = feed.reader(after)
    return None if reader is None else read_on(reader)


def read_on(reader: FeedReader) -> list[FeedItem]:
    read: list[FeedItem] = []
    while found := reader.take():
        read += found
    assert found is not None
    reader.leave()
    return read


def unjoined(seen: Sequence[Seen]) -> list[FeedItem]:
    with bounds(joined=1_000_000):
        feed = new_feed()
        for each in seen:
            feed(each)
    read = all_behind(feed, Position())
    assert read is not None
    return read


def ids_of(items: Sequence[FeedItem]) -> set[str]:
    """Those that a client can send: of what it read here, of what it read in another process, before and behind all."""
    read = {position for position, _ in items}
    elsewhere = {replace(each, process=OTHER_PROCESS) for each in read if each.process}
    return {str(each) for each in read | elsewhere} | {"", str(END)}


@given(st.lists(SEEN, max_size=12), st.integers(2, 5), st.integers(1, 7))
def test_what_follows_an_id_is_what_follows_it_unjoined(seen: list[Seen], joined: int, taken: int) -> None:
    async def run() -> None:
        expected = unjoined(seen)
        feed = new_feed()
        with bounds(joined, TAKEN_ITEMS=taken):
            for each in seen:
                feed(each)
            for text in ids_of(expected):
                after = Position.read(text)
                assert all_behind(feed, after) == [each for each in expected if comes_after(each[0], after)]

    asyncio.run(run())


@given(st.lists(st.tuples(SEEN, st.integers(0, 3)), max_size=12), st.integers(2, 5), st.integers(1, 7))
def test_a_follower_beside_the_stream_reads_what_it_reads_unjoined(
    seen: list[tuple[Seen, int]], joined: int, taken: int
) -> None:
    """It reads in the middle of what is joined later, and goes on behind that."""

    async def run() -> None:
        feed = new_feed()
        read: list[FeedItem] = []
        with bounds(joined, TAKEN_ITEMS=taken):
            reader = feed.reader(Position())
            assert reader is not None
            for each, times in seen:
                feed(each)
                for _ in range(times):
                    read += reader.take() or ()
            read += read_on(reader)
        assert read == unjoined([each for each, _ in seen])

    asyncio.run(run())


@given(
    st.lists(st.tuples(SEEN, st.booleans()), max_size=20),
    st.integers(2, 5),
    st.booleans(),
    st.integers(500, 3_000),
    st.integers(1_000, 6_000),
)
def test_what_is_forgotten_is_missed_never_skipped(
    seen: list[tuple[Seen, bool]], joined: int, has_journal: bool, kept_bytes: int, unread_bytes: int
) -> None:
    async def run() -> None:
        expected = unjoined([each for each, _ in seen])
        feed = new_feed(has_journal)
        with bounds(joined, KEPT_BYTES=kept_bytes, MAX_UNREAD_BYTES=unread_bytes):
            reader = feed.reader(Position())
            assert reader is not None
            read: list[FeedItem] = []
            for each, does_read in seen:
                feed(each)
                assert feed.size_bytes == sum(each.size_bytes for each in feed._kept) <= unread_bytes
                read += (reader.take() or ()) if does_read else ()
            assert read == expected[: len(read)]
            reader.leave()
            for text in ids_of(expected):
                after = Position.read(text)
                found = all_behind(feed, after)
                assert (found is None) == comes_after(feed.kept_from, after)
                assert found in (None, [each for each in expected if comes_after(each[0], after)])

    asyncio.run(run())


def test_a_piece_costs_some_bytes_and_is_counted_as_such() -> None:
    """As an object with a position it costs hundreds."""
    feed = new_feed()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(160):
            feed(ModelStreamed(TAG, 0.0, tuple(TextDelta(f"{number + each:05d}") for each in range(64))))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert all(isinstance(each, JoinedPieces) for each in feed._kept)
    assert used / feed._end < 40
    assert used / 2 < feed.size_bytes < used * 2

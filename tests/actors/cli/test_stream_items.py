"""The decoder of a daemon's events: the same events however the bytes are cut and lines end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import RuntimeFailure
from callboard.actors.cli import stream_items
from callboard.actors.cli.stream_items import SentEvent, sent_events
from callboard.actors.daemon.server_events import server_event

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=12)
NAMES = st.sampled_from(["text_delta", "reply", "note"])
EVENTS = st.lists(st.builds(SentEvent, WORDS, NAMES, st.lists(WORDS, min_size=1, max_size=3).map("\n".join)))


def decoded(pieces: Sequence[bytes]) -> list[SentEvent]:
    async def read() -> list[SentEvent]:
        async def given_pieces() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        return [event async for event in sent_events(given_pieces())]

    return asyncio.run(read())


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(EVENTS, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 400)), WORDS)
def test_what_the_daemon_writes_is_read_however_it_is_cut(
    events: list[SentEvent], line_end: bytes, places: list[int], comment: str
) -> None:
    blocks = [server_event(each.data.encode(), name=each.name, event_id=each.id) for each in events]
    data = b"".join(f":{comment}\n\n".encode() + block for block in blocks).replace(b"\n", line_end)
    # A comment behind it: a CR at the end of a piece may be half a line end, so that its event waits for more.
    assert decoded([*cut(data, places), b":"]) == events


@given(st.lists(st.binary(max_size=40)))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    assert decoded(pieces) == decoded([b"".join(pieces)])


def test_an_event_that_is_cut_is_not_given() -> None:
    assert decoded([b"id: 1\ndata: whole\n\nid: 2\ndata: ha"]) == [SentEvent("1", "message", "whole")]


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: x\n" * 8])
def test_an_event_without_an_end_is_refused(piece: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_items, "MAX_EVENT_BYTES", 1_000)
    with pytest.raises(RuntimeFailure, match="more than 1,000 bytes"):
        decoded([piece] * 20)


def test_many_events_are_not_one_huge_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_items, "MAX_EVENT_BYTES", 100)
    assert len(decoded([b"data: x\n\n"] * 200)) == 200

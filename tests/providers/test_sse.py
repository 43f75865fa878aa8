"""The event stream decoder against the WHATWG's rules, read by an independent and slow implementation of them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.wire import cut

from callboard.providers.base_decoder import OUTSIDE, SseDecoder, SseLimitError

#: What matters to the decoder, so that random streams hit the corners.
PIECES = [
    b"data", b"event", b"id", b"retry",
    b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b"data: a", b"data:b", b"event: e",
    b"\xef\xbb\xbf", "é".encode(), "\u2028".encode(), b"\x0b", b"\x0c", b"\x85", b": ping", b"\xff", b"\x00",
]  # fmt: skip
streams = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)
sizes = st.lists(st.integers(1, 7), min_size=1, max_size=5)


def decode(data: bytes, chunk_sizes: list[int] | None = None) -> list[tuple[str, bytes]]:
    decoder = SseDecoder()
    events = [event for chunk in cut(data, chunk_sizes or [65536]) for event in decoder.feed(chunk)]
    return [each for each in events + decoder.finish() if not each[1].startswith(OUTSIDE)]


def feed_all(decoder: SseDecoder, chunks: list[bytes]) -> None:
    for chunk in chunks:
        decoder.feed(chunk)


def by_the_book(data: bytes) -> list[tuple[str, bytes]]:
    """The standard's paragraphs, one after the other; plus the event that the end of the body completes."""
    text = data.removeprefix(b"\xef\xbb\xbf")
    lines = re.split(rb"\r\n|\r|\n", text)
    events, buffer, kind = [], b"", b""
    for line in [*lines, b""]:
        if line == b"":
            if buffer:
                events.append((kind.decode("utf-8", "replace"), buffer[:-1]))
            buffer, kind = b"", b""
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value[1:] if value.startswith(b" ") else value
            if field == b"data":
                buffer += value + b"\n"
            elif field == b"event":
                kind = value
    return events


@given(streams, sizes)
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [1])
@example(b"\xef\xbb\xbfdata: a\n\n", [1])
def test_it_follows_the_standard_however_the_bytes_are_cut(data: bytes, chunk_sizes: list[int]) -> None:
    assert decode(data, chunk_sizes) == by_the_book(data)


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [("", b"a")]),
        (b"data:a\n\n", [("", b"a")]),
        (b"data:  a\n\n", [("", b" a")]),
        (b"data: a\ndata: b\n\n", [("", b"a\nb")]),
        (b"data\n\n", [("", b"")]),
        (b"event: error\ndata: {}\n\ndata: {}\n\n", [("error", b"{}"), ("", b"{}")]),
        (b"event: lonely\n\ndata: a\n\n", [("", b"a")]),
        (b": OPENROUTER PROCESSING\n\ndata: a\n\n", [("", b"a")]),
        (b"nonsense: 1\nid: 7\nretry: 5\ndata: a\n\n", [("", b"a")]),
        (b" data: a\n\n", []),
        (b"\n\n\ndata: a\n\n", [("", b"a")]),
        (b"data: a\r\rdata: b\r\r", [("", b"a"), ("", b"b")]),
        (b"", []),
    ],
)
def test_examples(data: bytes, events: list[tuple[str, bytes]]) -> None:
    assert decode(data) == events


def test_an_endless_line_is_an_error_long_before_the_memory_is_gone() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    with pytest.raises(SseLimitError, match="1000 bytes"):
        feed_all(decoder, [b"x" * 100] * 100)


def test_an_event_of_endless_data_lines_is_an_error_too() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    with pytest.raises(SseLimitError):
        feed_all(decoder, [b"data: x\n"] * 1000)


def test_nor_do_lines_outside_the_format_hide_it() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    with pytest.raises(SseLimitError):
        feed_all(decoder, [b"data: x\nno field\n"] * 1000)


def test_a_line_that_no_stream_may_have_stands_in_its_place_among_the_events() -> None:
    data = b'n: 1\ndata: a\n\n{"error": 1}\nn: 2\n\ndata: b\n\n'
    for place in range(len(data) + 1):
        decoder = SseDecoder()
        found = decoder.feed(data[:place]) + decoder.feed(data[place:]) + decoder.finish()
        assert found == [("", b"a"), ("", OUTSIDE + b'{"error": 1}\n'), ("", OUTSIDE + b"n: 2\n"), ("", b"b")], place
        assert decoder.hint == b"n: 1"


def test_keep_alives_may_go_on_for_ever() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    for _ in range(1000):
        assert decoder.feed(b": ping\n\n") == []
    assert decoder.feed(b"data: a\n\n") == [("", b"a")]


def test_one_byte_chunks_copy_no_more_than_a_line() -> None:
    """Linear for any chunking: what waits for its line end is kept in one growing buffer and is not looked at again."""
    decoder = SseDecoder()
    line = b"data: " + b"x" * 200_000 + b"\n\n"
    events = [event for byte in line for event in decoder.feed(bytes([byte]))]
    assert [len(data) for _, data in events] == [200_000]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_the_lines_of_one_event_stay_together_wherever_they_are_cut(newline: str) -> None:
    data = newline.join(("event: e", "data: a", "data: b", "", "")).encode()
    for place in range(len(data) + 1):
        decoder = SseDecoder()
        found = decoder.feed(data[:place]) + decoder.feed(data[place:]) + decoder.finish()
        assert found == [("e", b"a\nb")], place

"""The binary event stream, beside botocore's own reader of it."""

from __future__ import annotations

import struct
import uuid
from zlib import crc32

import pytest
from botocore.eventstream import EventStreamBuffer, ParserError
from hypothesis import given, settings
from hypothesis import strategies as st
from support.event_frames import frame, typed_frame
from support.examples import examples
from support.wire import cut

from callboard.providers.bedrock.event_stream import EventStreamDecoder, Frame, HeaderValue

_names = st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=20)
_values = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=30),
    st.text(st.characters(codec="utf-8"), max_size=20),
)
_frames = st.lists(st.tuples(st.dictionaries(_names, _values, max_size=4), st.binary(max_size=60)), max_size=5)


def read(data: bytes, sizes: list[int]) -> list[Frame]:
    decoder = EventStreamDecoder()
    frames = [each for chunk in cut(data, sizes) for each in decoder.feed(chunk)]
    assert decoder.is_between_frames
    return frames


@settings(max_examples=examples(150), deadline=None)
@given(_frames, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_frames_are_as_botocore_reads_them(sent: list[tuple[dict[str, HeaderValue], bytes]], sizes: list[int]) -> None:
    data = b"".join(frame(headers, payload) for headers, payload in sent)
    theirs = EventStreamBuffer()
    theirs.add_data(data)
    expected = [(message.headers, message.payload) for message in theirs]
    assert [(dict(each.headers), each.payload) for each in read(data, sizes)] == expected == sent


def test_every_type_of_header() -> None:
    known = uuid.UUID("12345678-1234-5678-1234-567812345678").bytes
    data = typed_frame([
        ("true", 0, b""), ("false", 1, b""), ("byte", 2, struct.pack("!b", -3)), ("short", 3, struct.pack("!h", -300)),
        ("int", 4, struct.pack("!i", -70_000)), ("long", 5, struct.pack("!q", 2**40)), ("bytes", 6, b"\x00\x02ab"),
        ("text", 7, b"\x00\x02hi"), ("time", 8, struct.pack("!q", 1_700_000_000_000)), ("id", 9, known),
    ])  # fmt: skip
    (found,) = read(data, [len(data)])
    theirs = EventStreamBuffer()
    theirs.add_data(data)
    assert dict(found.headers) == next(theirs).headers
    assert (found.text("text"), found.text("long"), found.text("none")) == ("hi", "", "")


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=40), st.data())
def test_a_changed_byte_is_noticed_where_botocore_notices_it(payload: bytes, data: st.DataObject) -> None:
    whole = frame({":event-type": "contentBlockDelta"}, payload)
    place = data.draw(st.integers(0, len(whole) - 1))
    broken = bytearray(whole)
    broken[place] ^= data.draw(st.integers(1, 255))
    theirs = EventStreamBuffer()
    theirs.add_data(bytes(broken))
    with pytest.raises(ParserError):
        next(theirs)
    with pytest.raises(ValueError, match=r"checksum|cannot be"):
        EventStreamDecoder().feed(bytes(broken))


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ([("a", 42, b"")], "unknown type 42"),
        ([("a", 0, b""), ("a", 0, b"")], "comes twice"),
        ([("a", 7, b"\x00\x09hi")], "cut off"),
        ([("a", 5, b"\x00")], "cut off"),
    ],
)
def test_headers_that_cannot_be_read_are_an_error(headers: list[tuple[str, int, bytes]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EventStreamDecoder().feed(typed_frame(headers))


def test_a_frame_that_claims_to_be_endless_is_refused_by_its_first_bytes() -> None:
    claim = struct.pack("!II", 2**31, 0)
    with pytest.raises(ValueError, match="cannot be"):
        EventStreamDecoder().feed(claim + struct.pack("!I", crc32(claim)))


def test_a_cut_is_noticed_at_every_byte() -> None:
    whole = frame({":event-type": "messageStop"}, b'{"stopReason":"end_turn"}')
    for length in range(1, len(whole)):
        decoder = EventStreamDecoder()
        assert decoder.feed(whole[:length]) == []
        assert not decoder.is_between_frames

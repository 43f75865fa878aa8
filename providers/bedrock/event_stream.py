"""The binary event stream of AWS (application/vnd.amazon.eventstream) to frames. Pure: bytes in, frames out.

A frame, all numbers big-endian ("Event Stream Encoding" in the Smithy specification; botocore/eventstream.py):

    4 bytes  length of the whole frame
    4 bytes  length of the headers
    4 bytes  CRC-32 of these eight bytes
    headers  each: length of the name (1 byte), name, type (1 byte), value
    payload
    4 bytes  CRC-32 of all bytes before it
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias
from zlib import crc32

from msgspec import Struct

HeaderValue: TypeAlias = bool | int | bytes | str

#: The limits of the specification, which botocore keeps too.
MAX_HEADER_BYTES: Final = 128 * 1024
MAX_PAYLOAD_BYTES: Final = 24 * 1024 * 1024
#: Longer ones are not remembered.
_KNOWN_HEADER_BYTES: Final = 256
_PRELUDE: Final = struct.Struct("!III")
_CRC: Final = struct.Struct("!I")
_FRAMING_BYTES: Final = _PRELUDE.size + _CRC.size
#: Types of header values by their number: whole numbers (and milliseconds since 1970) by their format, others by name.
_NUMBERS: Final = {
    2: struct.Struct("!b"),
    3: struct.Struct("!h"),
    4: struct.Struct("!i"),
    5: struct.Struct("!q"),
    8: struct.Struct("!q"),
}
_TRUE, _FALSE, _BYTES, _TEXT, _UUID = 0, 1, 6, 7, 9
_LENGTH: Final = struct.Struct("!H")
_UUID_BYTES: Final = 16


class Frame(Struct, frozen=True):
    """One message of the stream."""

    headers: Mapping[str, HeaderValue]
    payload: bytes

    def text(self, name: str) -> str:
        """A header that is a text; "" where there is none."""
        value = self.headers.get(name)
        return value if isinstance(value, str) else ""


class EventStreamDecoder:
    """Bytes to frames, however they are cut. Cost is linear in the bytes; memory is bounded by one frame."""

    __slots__ = ("_buffer", "_max_payload_bytes")

    def __init__(self, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._buffer = bytearray()
        self._max_payload_bytes = max_payload_bytes

    @property
    def is_between_frames(self) -> bool:
        """Has the last frame been read to its end? Else a body that ends here was cut."""
        return not self._buffer

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises ValueError for a wrong checksum and for lengths that cannot be."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start, size = 0, len(buffer)
        with memoryview(buffer) as view:
            while size - start >= _PRELUDE.size:
                length, header_length = self._lengths(view, start)
                if size < start + length:
                    break
                with view[start : start + length] as frame:
                    frames.append(_frame(frame, header_length))
                start += length
        if start:
            del buffer[:start]
        return frames

    def _lengths(self, view: memoryview, start: int) -> tuple[int, int]:
        """Of the frame that begins at `start`: its bytes, and those of its headers."""
        length, header_length, checksum = _PRELUDE.unpack_from(view, start)
        if crc32(view[start : start + 8]) != checksum:
            raise ValueError("a frame of the event stream has a wrong checksum in its first 12 bytes")
        payload_length = length - header_length - _FRAMING_BYTES
        if header_length > MAX_HEADER_BYTES or not 0 <= payload_length <= self._max_payload_bytes:
            raise ValueError(f"a frame of {length} bytes with {header_length} bytes of headers cannot be")
        return length, header_length


def _frame(data: memoryview, header_length: int) -> Frame:
    end = len(data) - _CRC.size
    if crc32(data[:end]) != _CRC.unpack_from(data, end)[0]:
        raise ValueError("a frame of the event stream has a wrong checksum")
    payload_start = _PRELUDE.size + header_length
    header = bytes(data[_PRELUDE.size : payload_start])
    # A stream has a handful of different headers, on thousands of frames.
    headers = _known_headers(header) if header_length <= _KNOWN_HEADER_BYTES else _headers(header)
    return Frame(headers, bytes(data[payload_start:end]))


def _headers(data: bytes) -> Mapping[str, HeaderValue]:
    headers: dict[str, HeaderValue] = {}
    position = 0
    while position < len(data):
        name_end = position + 1 + data[position]
        name = data[position + 1 : name_end].decode()
        if name_end >= len(data) or name in headers:
            raise ValueError(f"a header of the event stream is cut off or comes twice: {name[:40]!r}")
        headers[name], position = _value(data, data[name_end], name_end + 1)
    if position > len(data):
        raise ValueError("a header of the event stream is cut off")
    return MappingProxyType(headers)


_known_headers = lru_cache(maxsize=64)(_headers)


def _value(data: bytes, kind: int, start: int) -> tuple[HeaderValue, int]:
    """The value at `start`, and where it ends: past the end of the data where it is cut off."""
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, start
    if kind == _UUID:
        return data[start : start + _UUID_BYTES], start + _UUID_BYTES
    number = _NUMBERS.get(kind)
    if number is None and kind not in (_BYTES, _TEXT):
        raise ValueError(f"a header of the event stream has the unknown type {kind}")
    size = (number or _LENGTH).size
    if start + size > len(data):
        return 0, start + size
    if number is not None:
        value: int = number.unpack_from(data, start)[0]
        return value, start + size
    end: int = start + size + _LENGTH.unpack_from(data, start)[0]
    found = data[start + size : end]
    return found.decode() if kind == _TEXT else found, end

"""The elements of one long JSON array, handed out as soon as each is whole (Gemini's stream without alt=sse)."""

from __future__ import annotations

import re
from typing import Final

from callboard.protocol.limits import MAX_RESPONSE_BYTES

_OUTSIDE_STRING: Final = re.compile(rb'["{}\[\],]')
_INSIDE_STRING: Final = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH, _COMMA = b'"', b"\\", b","


class JsonArraySplitter:
    """Cuts, and parses nothing: an element that is no JSON is found out by whoever reads it.

    Cost is linear in the bytes for any chunking; memory is bounded by one element.
    """

    def __init__(self, max_element_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_element_bytes = max_element_bytes
        self._element = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.closed = False
        """The array's own bracket was closed: all that follows is ignored."""

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that `data` completes. Raises ValueError for an element without end."""
        elements: list[bytes] = []
        start = position = 0
        while position < len(data) and not self.closed:
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = (_INSIDE_STRING if self._in_string else _OUTSIDE_STRING).search(data, position)
            if match is None:
                break
            position = match.end()
            if self._in_string:
                self._escaped = match.group() == _BACKSLASH
                self._in_string = self._escaped
            elif self._structure(match.group()):
                self._element += data[start : position - 1]
                self._cut(elements)
                start = position
        if not self.closed:
            self._element += data[start:]
            if len(self._element) > self._max_element_bytes:
                raise ValueError(f"an element of more than {self._max_element_bytes} bytes")
        return elements

    def _structure(self, mark: bytes) -> bool:
        """Does `mark`, outside a string, border an element?"""
        if mark == _QUOTE:
            self._in_string = True
        elif mark in b"{[":
            self._depth += 1
            return self._depth == 1
        elif mark in b"}]":
            self._depth -= 1
            self.closed = self._depth <= 0
            return self.closed
        else:
            return self._depth == 1
        return False

    def _cut(self, elements: list[bytes]) -> None:
        element = bytes(self._element).strip()
        self._element.clear()
        if element and self._depth <= 1 and element != b"\xef\xbb\xbf":
            elements.append(element)

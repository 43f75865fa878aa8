"""A stream that is one JSON array: what Gemini sends without `alt=sse`."""

from __future__ import annotations

import re
from typing import Final

from callboard.protocol.limits import MAX_RESPONSE_BYTES

#: What the bounds of an array's elements depend on: strings with their escapes, brackets, commas.
_MARK: Final = re.compile(rb'\\.?|["{}\[\],]', re.DOTALL)
_NESTING: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
#: What may stand around an element.
BLANK: Final = b" \t\r\n\xef\xbb\xbf"


class JsonArraySplitter:
    """Hands out the elements of one long JSON array as soon as each is whole (Gemini's stream without alt=sse).

    Cuts, and parses nothing: an element that is not JSON fails in the parser. Cost is linear in the bytes for any
    chunking; memory is bounded by one element.
    """

    def __init__(self, max_element_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._max_element_bytes = max_element_bytes
        self._element = bytearray()
        self._scanned = 0
        """Of the element: bytes that were looked at, but for a backslash at its end."""
        self._depth = 0
        self._in_string = False
        self.closed = False
        """The array's own bracket was closed: all that follows is ignored."""

    def feed(self, data: bytes) -> list[bytes]:
        """The elements that `data` completes. Raises ValueError for an element without end."""
        if self.closed:
            return []
        self._element += data
        elements: list[bytes] = []
        start, scanned = 0, len(self._element)
        for mark in _MARK.finditer(self._element, self._scanned):
            sign = mark.group()
            if sign == b"\\":
                scanned = mark.start()  # what it escapes is still to come
            elif sign == b'"':
                self._in_string = not self._in_string
            elif not self._in_string and len(sign) == 1:
                step = _NESTING.get(sign, 0)
                self._depth += step
                self.closed = self._depth <= 0
                if self.closed or (self._depth == 1 and step >= 0):
                    element, start = bytes(self._element[start : mark.start()]).strip(BLANK), mark.end()
                    elements += [element] if element else []
                if self.closed:
                    return elements
        if start:
            del self._element[:start]
        self._scanned = scanned - start
        if len(self._element) > self._max_element_bytes:
            raise ValueError(f"an element of more than {self._max_element_bytes} bytes")
        return elements

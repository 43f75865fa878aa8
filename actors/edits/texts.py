"""The text of one file that is edited: its encoding and line ends are kept, and every span is one of its bytes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice, pairwise
from typing import Final

from callboard.actors.edits.changes import Splice
from callboard.actors.index.encodings import has_wide_mark, source_of
from callboard.protocol.errors import ToolError

#: A NUL byte within this is what makes a file binary; git looks at as many.
BINARY_PROBE_BYTES: Final = 8_000
#: Places that a failure names.
MAX_PLACES: Final = 5
#: Of a file in which a text was not found: more lines are not compared with it.
MAX_COMPARED_LINES: Final = 20_000
_LINE_END: Final = re.compile(r"\r\n|\n")


class EditedText:
    """A file's content, and what is put into it. Raises ToolError for one that is no text."""

    def __init__(self, content: bytes, field: str = "") -> None:
        self.content = content
        if b"\0" in content[:BINARY_PROBE_BYTES] and not has_wide_mark(content):
            raise ToolError("it is a binary file, which cannot be edited as text", field=field, expected="a text file")
        source = source_of(content)
        self.encoding = source.encoding
        self.mark_bytes = source.mark_bytes
        self._unit = len("\n".encode(self.encoding))

    def encoded(self, text: str, at: int = 0, field: str = "") -> bytes:
        """As it is written into this file, with the line ends of the place. Raises ToolError."""
        try:
            return _LINE_END.sub(self._line_end(at), text).encode(self.encoding)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.end][:20]
            told = f"the file is written in {self.encoding}, which has no {wrong!r}"
            raise ToolError(told, field=field, expected=f"text that {self.encoding} has", received=wrong) from None

    def whole(self, text: str, field: str = "") -> bytes:
        """A new content for the file, in its encoding, with its byte order mark and line ends."""
        return self.content[: self.mark_bytes] + self.encoded(text, 0, field)

    def _line_end(self, at: int) -> str:
        """That of the line at the place; else of the one before it, else of the first."""
        newline, carriage = "\n".encode(self.encoding), "\r".encode(self.encoding)
        end = self.content.find(newline, at)
        if end < 0:
            end = self.content.rfind(newline, 0, at)
        return "\r\n" if end > 0 and self.content[:end].endswith(carriage) else "\n"

    def find(self, text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
        """Where this text is, whichever line ends it has there; overlapping places too, a bounded number of them."""
        try:
            lines = [re.escape(line.encode(self.encoding)) for line in _LINE_END.split(text)]
        except UnicodeEncodeError:
            return []
        newline = b"(?:%s)?%s" % (re.escape("\r".encode(self.encoding)), re.escape("\n".encode(self.encoding)))
        found = re.compile(b"(?=(%s))" % newline.join(lines), re.DOTALL).finditer(
            self.content, max(start, self.mark_bytes), len(self.content) if end is None else end
        )
        spans = (each.span(1) for each in found)
        whole = (span for span in spans if (span[0] - self.mark_bytes) % self._unit == 0)
        return list(islice(whole, MAX_PLACES + 1))

    def line_of(self, at: int) -> int:
        """Counted from 1."""
        return self.content.count("\n".encode(self.encoding), 0, at) + 1

    def decoded(self, start: int, end: int) -> str:
        """A span as text."""
        return self.content[start:end].decode(self.encoding, "replace")

    @cached_property
    def lines(self) -> list[tuple[int, int, int]]:
        """Of each line: where it begins, where its text ends, and where the next one begins."""
        found, start = [], self.mark_bytes
        newline, carriage = "\n".encode(self.encoding), "\r".encode(self.encoding)
        while start < len(self.content):
            end = self.content.find(newline, start)
            while end >= 0 and (end - start) % self._unit:
                end = self.content.find(newline, end + 1)
            after = len(self.content) if end < 0 else end + self._unit
            text_end = after if end < 0 else end
            if text_end - start >= self._unit and end >= 0 and self.content[start:text_end].endswith(carriage):
                text_end -= self._unit
            found.append((start, text_end, after))
            start = after
        return found

    def nearest(self, text: str) -> str:
        """The lines that are most like this text, for a model that looked for it in vain; "" where none is."""
        wanted = [line.strip() for line in _LINE_END.split(text) if line.strip()]
        if not wanted or len(self.lines) > MAX_COMPARED_LINES:
            return ""
        shown = [self.decoded(start, end) for start, end, _ in self.lines]
        stripped = [line.strip() for line in shown]
        if (place := _most_alike(stripped, wanted)) is None:
            return ""
        last = min(place + max(len(wanted), 1) + 1, len(shown))
        return "\n".join(f"{number + 1}: {shown[number]}" for number in range(place, min(last, place + 12)))


def _most_alike(lines: list[str], wanted: list[str]) -> int | None:
    """Where the most of the wanted lines are together; else where one is like the first of them."""
    known = set(wanted)
    hits = [line in known for line in lines]
    size = len(wanted)
    best, place, count = 0, None, sum(hits[:size])
    for start in range(len(lines)):
        if count > best:
            best, place = count, start
        count += (hits[start + size] if start + size < len(lines) else False) - hits[start]
    if place is not None:
        return place
    close = difflib.get_close_matches(wanted[0][:200], {line[:200] for line in lines if line}, 1, 0.6)
    return next((at for at, line in enumerate(lines) if close and line[:200] == close[0]), None)


def ordered(splices: list[tuple[Splice, str]]) -> Iterator[Splice]:
    """In the order of the file. Raises ToolError, naming the later edit, where two of them overlap."""
    by_place = sorted(range(len(splices)), key=lambda place: (splices[place][0].start, splices[place][0].end))
    for place, after in pairwise(by_place):
        if splices[place][0].overlaps(splices[after][0]):
            later = splices[max(place, after)][1]
            raise ToolError(
                "two edits of this call change the same text",
                field=later,
                expected="edits that do not overlap",
                retry_hint="Put both changes into one edit and send the call again.",
            )
    return iter([splices[place][0] for place in by_place])

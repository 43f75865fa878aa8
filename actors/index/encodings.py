"""In which encoding a source file is written, and where its text is in its bytes.

Everything is parsed as UTF-8; spans are given in the file's own bytes. What a file says of itself counts (a byte order
mark, a coding cookie, an XML or HTML declaration), else what it looks like.
"""

from __future__ import annotations

import codecs
import re
from array import array
from collections.abc import Iterable
from typing import NamedTuple

import chardetng_py  # type: ignore[import-untyped]

from callboard.actors.index.notebooks import notebook_codec
from callboard.protocol.masking import WINDOW_BYTES, mask_bytes

codecs.register(notebook_codec)

#: What begins a file in one of these encodings; the longer ones first, since UTF-32's begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: `# -*- coding: latin-1 -*-`, `<?xml encoding="...">`, `<meta charset=...>`, `@charset "...";`
_DECLARED = re.compile(rb"""(?:coding|charset)\s*[:=]?\s*["']?\s*([A-Za-z0-9][-\w.:]*)""")
#: HTML's own rule for where a declaration must be; the others are in the first two lines.
_DECLARED_WITHIN_BYTES = 1_024
#: Bytes 0x80-0x9F are letters and quotes in Windows-1252 and nothing in these, which files are called by mistake.
_LATIN = frozenset({"iso8859-1", "ascii"})
#: A file in UTF-8 with a few broken bytes has many more whole sequences; in other encodings they are chance.
_WHOLE_TO_BROKEN = 2


class SourceText(NamedTuple):
    """The text of a file."""

    content: bytes
    """As it is on disk."""
    utf8: bytes
    """The same text, without a byte order mark; may hold broken sequences if the file is said to be UTF-8."""
    encoding: str
    """Python's name for it, without byte order mark."""
    mark_bytes: int
    """Length of the byte order mark."""

    def places(self, offsets: Iterable[int]) -> dict[int, int]:
        """For offsets into `utf8`, at the beginnings of characters, the offsets into `content`."""
        wanted = sorted(set(offsets))
        if self.encoding == "utf-8":
            return {offset: offset + self.mark_bytes for offset in wanted}
        starts = _starts(self.content[self.mark_bytes :], self.encoding)
        places, character, before = {}, 0, 0
        for offset in wanted:
            character += len(self.utf8[before:offset].decode("utf-8", "replace"))
            before = offset
            places[offset] = starts[min(character, len(starts) - 1)] + self.mark_bytes
        return places


def source_of(content: bytes) -> SourceText:
    """Find out the encoding of a file. Any content has one; what cannot be decoded with it becomes U+FFFD."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            body = content[len(mark) :]
            return SourceText(content, body if encoding == "utf-8" else _text(body, encoding), encoding, len(mark))
    encoding = _encoding_of(content)
    return SourceText(content, content if encoding == "utf-8" else _text(content, encoding), encoding, 0)


def has_wide_mark(content: bytes) -> bool:
    """Whether it is text with zero bytes in it: UTF-16 or UTF-32 by its mark."""
    return any(content.startswith(mark) for mark, encoding in _MARKS if encoding != "utf-8")


def line_end_before(content: bytes, start: int, limit: int, encoding: str) -> int:
    """Where the last line that ends before `limit` ends, without its line end; `start` begins a character. -1: none."""
    newline = "\n".encode(encoding)
    found = content.rfind(newline, start, limit)
    while found > 0 and (found - start) % len(newline):
        found = content.rfind(newline, start, found + len(newline) - 1)
    return found


def shown_text(content: bytes, start: int, end: int, encoding: str) -> str:
    """A span as it is shown: values that look like keys are covered, also where the span cuts through one."""
    if encoding == "utf-8":
        return mask_bytes(content, start, end).decode("utf-8", "replace")
    parts = content[max(0, start - WINDOW_BYTES) : start], content[start:end], content[end : end + WINDOW_BYTES]
    before, span, after = (part.decode(encoding, "replace").encode("utf-8", "replace") for part in parts)
    covered = mask_bytes(before + span + after, len(before), len(before) + len(span))
    return covered.decode("utf-8", "replace")


def _encoding_of(content: bytes) -> str:
    if content.isascii() and b"\x1b" not in content:  # with escapes it may be ISO-2022, all of it ASCII characters
        return "utf-8"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and b"\x1b" not in content:
        return "utf-8"
    if declared := _declared(content):
        return declared
    detected = _usable(chardetng_py.detect(content), content)
    if (text and detected != "iso2022_jp") or _is_nearly_utf8(content):
        return "utf-8"
    return detected or "latin-1"


def _declared(content: bytes) -> str:
    """The encoding that the file names itself, if it is one and the file can be read with it; else empty."""
    found = _DECLARED.search(content, 0, _DECLARED_WITHIN_BYTES)
    return _usable(found[1].decode("ascii"), content) if found else ""


def _usable(name: str, content: bytes) -> str:
    """Python's name for the encoding if ASCII characters are in it what they are, and the content can be decoded."""
    try:
        encoding = codecs.lookup(name).name
        for each in ("cp1252", encoding) if encoding in _LATIN else (encoding,):
            if _decodes(content, each):
                return each
    except (LookupError, UnicodeError, ValueError):  # no such encoding, or one that is not of text
        return ""
    return "latin-1" if encoding in _LATIN else ""


def _decodes(content: bytes, encoding: str) -> bool:
    try:
        return "a\n".encode(encoding) == b"a\n" and bool(content.decode(encoding))
    except UnicodeDecodeError:
        return False


def _is_nearly_utf8(content: bytes) -> bool:
    text = content.decode("utf-8", "replace")
    broken = text.count("\ufffd")
    whole = sum(1 for character in text if character > "\x7f") - broken
    return 0 < _WHOLE_TO_BROKEN * broken <= whole


def _text(content: bytes, encoding: str) -> bytes:
    return content.decode(encoding, "replace").encode("utf-8", "replace")


def _starts(content: bytes, encoding: str) -> array[int]:
    """Where each character begins, and the end. Byte by byte: exact in any encoding, and few files come here."""
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    starts, begin = array("L"), 0
    for offset in range(len(content)):
        if characters := decoder.decode(content[offset : offset + 1]):
            starts.extend([begin] * len(characters))
            begin = offset + 1
    starts.extend([begin] * len(decoder.decode(b"", final=True)))
    starts.append(len(content))
    return starts

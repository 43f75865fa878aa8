"""Jupyter notebooks: the cells of a file in JSON as text, and where they are in its bytes.

What is indexed is what a person wrote: the sources of the cells. Outputs (pictures, tables, logs) are in no tile. A
span is bytes of the file, within one cell; what is shown of it is the text, not the JSON. Format: "The Notebook file
format", nbformat 4, https://nbformat.readthedocs.io/en/latest/format_description.html. Older ones are read as text.

The encoding of such a file is called `ENCODING`, and is one of Python's: any slice of the file's bytes can be decoded
with it, as of other files with theirs. It cannot be written with.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import orjson
from msgspec import Struct
from typing_extensions import Buffer

from callboard.actors.index.records import MAX_NAME_CHARS, ProseSection

NOTEBOOK: Final = "notebook"
"""The language."""
ENCODING: Final = "callboard_notebook"

#: What is between two quotes. What is matched is never given back (`++`), since a picture is one string of megabytes.
_WITHIN: Final = rb'(?:[^"\\]++|\\.)*+'
#: A token of JSON. Outside of strings only brackets and commas matter.
_TOKEN: Final = re.compile(rb'"%s"|[][{},]' % _WITHIN)
_DEPTHS: Final = {b"{": 1, b"[": 1, b"}": -1, b"]": -1}
#: One character of a JSON string, as it is written.
_WRITTEN: Final = re.compile(rb"\\u[dD][89abAB]..\\u....|\\u....|\\.|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*")
#: The rest of a string in which a slice begins or ends, and whole ones.
_REST: Final = re.compile(_WITHIN)
#: Of the key, if it has a string, or a list with one.
_SOURCE: Final = re.compile(rb'\s*:\s*\[?\s*(?=")')
_IS_KEY: Final = re.compile(rb'"%s"\s*:' % _WITHIN)
#: Between the lines of one source.
_BETWEEN: Final = re.compile(rb"\s*,?\s*")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.MULTILINE)
_DEFINITION: Final = re.compile(r"^(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
_NOT_A_NAME: Final = re.compile(r"^\s*(?:#|%|!|$)")
_CELL_GAP: Final = b"\n\n"


class _Piece(NamedTuple):
    """One string of a source: a line, mostly."""

    at: int
    """Where its text begins in the text of all cells."""
    start: int
    """Where it begins in the file, with its quote."""
    end: int


class NotebookText(Struct, frozen=True):
    """The text of a notebook, as SourceText is that of other files."""

    content: bytes
    utf8: bytes
    """The sources of its cells, two line ends between them."""
    cells: tuple[ProseSection, ...]
    """In `utf8`. One of code is called by the heading before it and what it defines, or its first line."""
    pieces: tuple[_Piece, ...]
    encoding: str = ENCODING

    def places(self, offsets: Iterable[int]) -> dict[int, int]:
        """For offsets into `utf8`, at the beginnings of characters, the offsets into `content`."""
        begins = [piece.at for piece in self.pieces]
        return {offset: self._place(offset, bisect_right(begins, offset) - 1) for offset in set(offsets)}

    def _place(self, offset: int, number: int) -> int:
        if number < 0:
            return 0
        piece = self.pieces[number]
        if offset == piece.at:
            return piece.start
        at, place = piece.at, piece.start + 1
        while at < offset and place < piece.end - 1:
            written = _WRITTEN.match(self.content, place)
            assert written is not None  # it was read as JSON
            at += len(orjson.loads(b'"%s"' % written[0]).encode())
            place = written.end()
        return place if place < piece.end - 1 else piece.end


def notebook_of(content: bytes) -> NotebookText | None:
    """The cells of a notebook; None where this is none, or one of an older format."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        return None
    texts, pieces, cells, at, heading = list[bytes](), list[_Piece](), list[ProseSection](), 0, ""
    for kind, strings in _sources(content):
        lines = [(orjson.loads(content[start:end]).encode(), start, end) for start, end in strings]
        text = b"".join(line for line, _, _ in lines).decode()
        if not text.strip():  # as text: of bytes, a separator such as U+001F would be left
            continue
        begin = at
        for line, start, end in lines:
            pieces.append(_Piece(at, start, end))
            texts.append(line)
            at += len(line)
        name, heading = _name(text, kind, heading)
        cells.append(ProseSection(begin, at, name))
        texts.append(_CELL_GAP)
        at += len(_CELL_GAP)
    return NotebookText(content, b"".join(texts), tuple(cells), tuple(pieces))


def _name(text: str, kind: str, heading: str) -> tuple[str, str]:
    """What a cell is called, and the heading that the next ones are below."""
    if kind == "markdown":
        found = _HEADING.search(text)
        heading = " ".join(found[1].split()) if found else heading
        return (heading if found else _first_line(text))[:MAX_NAME_CHARS], heading
    defined = _DEFINITION.search(text)
    name = defined[1] if defined else _first_line(text)
    return (f"{heading}: {name}" if heading else name)[:MAX_NAME_CHARS], heading


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if not _NOT_A_NAME.match(line)), lines[0])


def _sources(content: bytes) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Of each cell its type, and where the strings of its source are. `content` is JSON, and has cells."""
    keys: list[bytes] = []  # of the objects around, "" for an array
    kind, strings, is_key = "", list[tuple[int, int]](), False
    for token in _TOKEN.finditer(content):
        text = token[0]
        if text in (b"{", b"["):
            keys.append(b"")
            is_key = text == b"{"
        elif text in (b"}", b"]"):
            keys.pop()
            if len(keys) == 2 and keys[0] == b'"cells"' and text == b"}":
                yield kind, strings
                kind, strings = "", []
            is_key = False
        elif text == b",":
            is_key = bool(keys) and keys[-1] != b""
        elif is_key:
            keys[-1] = text
            is_key = False
        elif keys[:2] == [b'"cells"', b""]:
            if keys[2:] == [b'"cell_type"']:
                kind = text[1:-1].decode()
            elif keys[2:] in ([b'"source"'], [b'"source"', b""]):
                strings.append(token.span())


# The encoding.


def _decode(content: Buffer, errors: str = "strict", /) -> tuple[str, int]:
    """The text of a slice: of what is within strings of sources, that is of those that it begins in and, behind other
    parts of the notebook, of those that are called so."""
    data, texts, at = bytes(content), list[str](), 0
    if data[:1] != b'"':  # in the middle of a string
        rest = _rest(data, 0)
        texts.append(_unquoted(rest))
        at = len(rest) + 1
    while at < len(data):
        at = _next_string(data, at, texts)
    return "".join(texts), len(data)


def _next_string(data: bytes, at: int, texts: list[str]) -> int:
    """Take the next string of a source, and tell where it ends."""
    between = _BETWEEN.match(data, at)
    assert between is not None  # it matches nothing, too
    at = between.end()
    if data[at : at + 1] != b'"' or _IS_KEY.match(data, at):
        at = _next_source(data, at)
        if at == len(data):
            return at
        texts.append("\n\n")
    rest = _rest(data, at + 1)
    texts.append(_unquoted(rest))
    return at + len(rest) + 2


def _next_source(data: bytes, at: int) -> int:
    """Where the first string of the next cell's source begins: behind the source of a cell, the key that is in a cell
    itself, and not in its outputs or metadata. The end where there is none."""
    depth = 0  # in the cell
    for token in _TOKEN.finditer(data, at + (data[at : at + 1] == b"]")):
        depth += _DEPTHS.get(token[0], 0)
        if depth == 0 and token[0] == b'"source"' and (value := _SOURCE.match(data, token.end())):
            return value.end()
    return len(data)


def _rest(data: bytes, at: int) -> bytes:
    """As far as the string goes that begins before this place."""
    found = _REST.match(data, at)
    assert found is not None
    return found[0]


def _unquoted(written: bytes) -> str:
    """Of what is between two quotes, or cut off."""
    try:
        return str(orjson.loads(b'"%s"' % written))
    except orjson.JSONDecodeError:
        return written.decode("utf-8", "replace")


def _encode(text: str, errors: str = "strict", /) -> tuple[bytes, int]:
    """Line ends only: the strings of a source are on lines of their own."""
    if text != "\n":
        raise UnicodeEncodeError(ENCODING, text, 0, len(text), "notebooks are not written")
    return b"\n", 1


def notebook_codec(name: str) -> codecs.CodecInfo | None:
    """For `codecs.register`."""
    return codecs.CodecInfo(_encode, _decode, name=ENCODING) if name == ENCODING else None

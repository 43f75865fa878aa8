"""`read_file`, `read_files` and `get_file_metadata`: what is in the files of a workspace.

Values that look like keys are masked in what is shown. A mask has as many bytes as the value, so spans are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Struct
from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.file_content import (
    MAX_FILE_BYTES,
    TextFile,
    decoded,
    is_binary,
    kind_of,
    read_bytes,
    text_of_bytes,
)
from callboard.actors.builtins.workspace import Workspace, printable, reason_of
from callboard.actors.index.languages import language_of
from callboard.actors.index.records import digest
from callboard.actors.tools import Tool, tool
from callboard.protocol.code_fences import render_fence
from callboard.protocol.errors import ToolError

#: Code in one answer of read_file or read_files: about 25,000 tokens. A model that needs more reads on.
MAX_READ_BYTES: Final = 100_000
NEWLINE: Final = b"\n"
#: Files in one call of read_files.
MAX_FILES: Final = 50

Line = Annotated[int, Field(ge=1)]
Offset = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileText(BriefResult):
    """A text file, or a part of it."""

    version: Literal[1] = 1
    file: str
    exists: Literal[True] = True
    snippet: str = ""
    """The text in its fence; empty where there is none."""
    lines: str = ""
    """First and last line of the snippet, counted from 1, inclusive; empty where there is none."""
    total_lines: int
    bytes: int
    """Of the whole file."""
    hash: str
    """The tracking hash of the whole file, as the code index and the edits have it: BLAKE2b of its bytes, 16 bytes."""
    encoding: str = "utf-8"
    next_start_line: int | None = None
    """Where to read on in what was cut."""
    next_start_byte: int | None = None
    """The same, where a line is too long to be shown at once."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFile(BriefResult):
    """There is no such file."""

    version: Literal[1] = 1
    file: str
    exists: Literal[False] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile(BriefResult):
    """A file of several that is not shown."""

    version: Literal[1] = 1
    path: str
    """As it was asked for."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTexts(BriefResult):
    """The files of one call, in the order in which they were asked for."""

    version: Literal[1] = 1
    files: tuple[FileText | MissingFile | UnreadFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMetadata(BriefResult):
    """What is known of a file without its text."""

    version: Literal[1] = 1
    file: str
    exists: Literal[True] = True
    kind: str
    """file, folder, pipe, socket, device."""
    bytes: int
    mtime: str
    """When it was changed last: ISO 8601, UTC."""
    hash: str | None = None
    """As in read_file; None for what is no file, or a very large one."""
    language: str | None = None
    encoding: str | None = None
    """`binary` for what is no text."""
    lines: int | None = None
    line_ends: Literal["lf", "crlf", "mixed", "none"] | None = None


class Range(Struct, frozen=True):
    """The part of a file that is asked for: by lines, or by bytes."""

    start_line: int = 1
    end_line: int | None = None
    start_byte: int | None = None
    end_byte: int | None = None

    def __post_init__(self) -> None:
        """Raises ToolError for a range that no file can have."""
        if self.is_by_bytes and (self.start_line != 1 or self.end_line is not None):
            raise _wrong("start_byte", "a range of lines or one of bytes, not both", str(self.start_byte))
        if self.end_line is not None and self.end_line < self.start_line:
            received = f"{self.end_line}, which is before start_line {self.start_line}"
            raise _wrong("end_line", f"{self.start_line} or more", received)
        if self.end_byte is not None and self.end_byte < (self.start_byte or 0):
            received = f"{self.end_byte}, which is before start_byte {self.start_byte}"
            raise _wrong("end_byte", f"{self.start_byte or 0} or more", received)

    @property
    def is_by_bytes(self) -> bool:
        return self.start_byte is not None or self.end_byte is not None

    def within(self, text: TextFile) -> tuple[int, int]:
        """Where it begins and ends in the text's UTF-8. Raises ToolError for what the file has not."""
        if not self.is_by_bytes:
            return self._lines_within(text)
        if text.encoding != "utf-8":
            raise _wrong("start_byte", f"a range of lines, since the file is written in {text.encoding}", "bytes")
        size, mark = len(text.utf8), text.mark_bytes
        start, end = (self.start_byte or 0) - mark, size if self.end_byte is None else self.end_byte - mark
        if start > size:
            raise _wrong("start_byte", f"at most {size + mark:,}, the length of the file", str(self.start_byte))
        return character_start(text.utf8, max(0, start)), character_end(text.utf8, min(max(0, end), size))

    def _lines_within(self, text: TextFile) -> tuple[int, int]:
        last_line = text.line_count
        if self.start_line > max(1, last_line):
            received = f"{self.start_line}; the file has {last_line:,} lines"
            raise _wrong("start_line", f"at most {max(1, last_line):,}", received)
        start = _line_start(text.utf8, self.start_line)
        if self.end_line is None or self.end_line >= last_line:
            return start, len(text.utf8)
        return start, _line_start(text.utf8, self.end_line + 1)


def read_file_tool(workspace: Workspace) -> Tool:
    """`read_file`, as the model sees it."""

    @tool(risk="read", timeout=10, concurrency=8, effect="repeat", accesses={"path": "read"})
    def read_file(
        path: str,
        start_line: Line = 1,
        end_line: Line | None = None,
        start_byte: Offset | None = None,
        end_byte: Offset | None = None,
    ) -> FileText | MissingFile:
        """Read a text file of the workspace, whole or a range of it. Keys in it are shown as a mask of asterisks.

        Args:
            path: Relative to the workspace, or absolute within it.
            start_line: The first line, counted from 1.
            end_line: The last line, inclusive; the end of the file if left out.
            start_byte: Instead of lines: the first byte, counted from 0.
            end_byte: Behind the last byte.
        """
        return read_text(workspace.readable(path), Range(start_line, end_line, start_byte, end_byte))

    return read_file


def read_files_tool(workspace: Workspace) -> Tool:
    """`read_files`, as the model sees it."""

    @tool(risk="read", timeout=20, concurrency=4, effect="repeat", accesses={"paths": "read"})
    def read_files(paths: Annotated[list[str], Field(min_length=1, max_length=MAX_FILES)]) -> FileTexts:
        """Read several text files of the workspace at once. All together may be as long as one answer of read_file.

        Args:
            paths: Relative to the workspace, or absolute within it.
        """
        left, files = MAX_READ_BYTES, []
        for at, path in enumerate(paths):
            read = _read_one(workspace, path, f"paths.{at}", left)
            files.append(read)
            left -= len(read.snippet.encode()) if isinstance(read, FileText) else 0
        return FileTexts(files=tuple(files))

    return read_files


def file_metadata_tool(workspace: Workspace) -> Tool:
    """`get_file_metadata`, as the model sees it."""

    @tool(risk="read", timeout=10, concurrency=8, effect="repeat", accesses={"path": "read"})
    def get_file_metadata(path: str) -> FileMetadata | MissingFile:
        """Whether a file or folder exists, its size, time of change, hash, language, encoding and line ends.

        Args:
            path: Relative to the workspace, or absolute within it.
        """
        return metadata_of(workspace.readable(path))

    return get_file_metadata


def read_text(place: Path, wanted: Range, limit: int = MAX_READ_BYTES, field: str = "path") -> FileText | MissingFile:
    """A part of a text file in its fence, at most so many bytes. Raises ToolError."""
    data = _read_or_none(place, field)
    if data is None:
        return MissingFile(file=printable(str(place)))
    text = text_of_bytes(place, data, field)
    start, wanted_end = wanted.within(text)
    end = _cut(text.utf8, start, wanted_end, limit)
    read = FileText(
        file=printable(str(place)),
        total_lines=text.line_count,
        bytes=len(data),
        hash=digest(data).hex(),
        encoding=text.encoding,
        note=_note(text, limit if end < wanted_end else None),
    )
    if start == end:
        return read
    ends_line = text.utf8[:end].endswith(NEWLINE) and not wanted.is_by_bytes
    shown_end = end - 1 if ends_line else end
    places = text.places(start, shown_end, end)
    first_line = text.utf8.count(NEWLINE, 0, start) + 1
    last_line = first_line + text.utf8.count(NEWLINE, start, end - 1)
    is_cut = end < wanted_end
    return replace(
        read,
        snippet=render_fence(read.file, places[0], places[1], text.shown(start, shown_end)),
        lines=f"{first_line}-{last_line}",
        next_start_line=last_line + 1 if is_cut and ends_line else None,
        next_start_byte=places[2] if is_cut and not ends_line else None,
    )


def metadata_of(place: Path) -> FileMetadata | MissingFile:
    """What is known of a file or folder. Raises ToolError where it cannot be looked at."""
    try:
        status = place.stat()
    except FileNotFoundError:
        return MissingFile(file=printable(str(place)))
    except OSError as error:
        raise ToolError(f"{place} cannot be looked at: {reason_of(error)}", field="path") from None
    known = FileMetadata(
        file=printable(str(place)),
        kind=kind_of(status.st_mode),
        bytes=status.st_size,
        mtime=datetime.fromtimestamp(status.st_mtime, UTC).isoformat(),
    )
    if known.kind != "file" or status.st_size > MAX_FILE_BYTES:
        return known
    data = _read_or_none(place)
    return MissingFile(file=known.file) if data is None else _with_content(known, data)


def _with_content(known: FileMetadata, data: bytes) -> FileMetadata:
    known = replace(known, bytes=len(data), hash=digest(data).hex())
    text = None if is_binary(data) else decoded(data)
    if text is None:
        return replace(known, encoding="binary" if is_binary(data) else "unknown")
    crlf = text.utf8.count(b"\r\n")
    lf = text.utf8.count(NEWLINE) - crlf
    return replace(
        known,
        language=language_of(known.file, text.utf8).name,
        encoding=text.encoding,
        lines=text.line_count,
        line_ends="mixed" if crlf and lf else "crlf" if crlf else "lf" if lf else "none",
    )


def _read_one(workspace: Workspace, path: str, field: str, limit: int) -> FileText | MissingFile | UnreadFile:
    """One file of several: what is wrong with it is in its own entry."""
    if limit <= 0:
        return UnreadFile(path=path, reason="the answer is full; ask for it in another call")
    try:
        return read_text(workspace.readable(path, field), Range(), limit, field)
    except ToolError as error:
        return UnreadFile(path=path, reason=str(error))


def _read_or_none(place: Path, field: str = "path") -> bytes | None:
    """None where there is no such file, or no more."""
    try:
        return read_bytes(place, field)
    except FileNotFoundError:
        return None


def _note(text: TextFile, limit: int | None) -> str:
    notes = ["the file is empty" if not text.utf8 else ""]
    if limit is not None:
        notes.append(f"cut after {limit:,} bytes; read on from next_start_line or next_start_byte")
    if text.is_broken:
        notes.append("bytes that are not UTF-8 are shown as U+FFFD")
    return "; ".join(filter(None, notes))


def _wrong(field: str, expected: str, received: str) -> ToolError:
    return ToolError(f"{field} must be {expected}; got {received}", field=field, expected=expected, received=received)


def _line_start(data: bytes, line: int) -> int:
    """The byte offset at which line `line` begins; it must exist."""
    offset = 0
    for _ in range(line - 1):
        offset = data.index(NEWLINE, offset) + 1
    return offset


def _cut(data: bytes, start: int, end: int, limit: int) -> int:
    """An end that keeps the answer within bounds: after a line, or within one that alone is too long."""
    if end - start <= limit:
        return end
    newline = data.rfind(NEWLINE, start, start + limit)
    return newline + 1 if newline >= 0 else max(character_start(data, start + limit), start + 1)


def character_start(data: bytes, offset: int) -> int:
    """The offset, or that of the character which it is in the middle of."""
    while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


def character_end(data: bytes, offset: int) -> int:
    """The offset, or the end of the character which it is in the middle of."""
    while 0 < offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset += 1
    return offset

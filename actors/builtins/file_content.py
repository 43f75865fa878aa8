"""The bytes of a text file of a workspace: read without waiting for anyone, and where its lines are."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.builtins.workspace import reason_of, secret_error
from callboard.actors.opened_folders import open_plain
from callboard.actors.secret_files import is_key_file
from callboard.protocol.errors import ToolError
from callboard.protocol.masking import mask_bytes

#: Larger files are data, not text to read; and one of this size fits into a worker's memory limit many times.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
#: Of a file in another encoding than UTF-8, each character is placed by itself: 1 s for so many bytes.
MAX_RECODED_BYTES: Final = 4 * 1024 * 1024
#: A NUL byte within this is what makes a file binary; git looks at as many.
BINARY_PROBE_BYTES: Final = 8_000
#: Text with NUL bytes in it. UTF-32's begins with UTF-16's.
WIDE_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


class TextFile(Struct, frozen=True):
    """A text, and where it is in the bytes of its file."""

    content: bytes
    utf8: bytes
    """The text, without a byte order mark. It may hold broken sequences where most of the file is UTF-8."""
    encoding: str
    """Python's name for it."""
    mark_bytes: int = 0
    """Length of the byte order mark."""
    is_broken: bool = False
    """Is it UTF-8 but for some bytes, which are shown as U+FFFD?"""

    @property
    def line_count(self) -> int:
        return self.utf8.count(b"\n") + (not self.utf8.endswith(b"\n")) if self.utf8 else 0

    def places(self, *offsets: int) -> tuple[int, ...]:
        """For offsets into `utf8` at the beginnings of characters, those into the file."""
        if self.encoding == "utf-8":
            return tuple(offset + self.mark_bytes for offset in offsets)
        from callboard.actors.index.encodings import SourceText  # noqa: PLC0415 - the extra `index`

        found = SourceText(self.content, self.utf8, self.encoding, self.mark_bytes).places(offsets)
        return tuple(found[offset] for offset in offsets)

    def shown(self, start: int, end: int) -> str:
        """A span of `utf8` with the values covered that look like keys, also where the span cuts through one."""
        return mask_bytes(self.utf8, start, end).decode("utf-8", "replace")


def read_bytes(place: Path, field: str = "path") -> bytes:
    """The content of a regular, not too large file that holds no private key. Raises ToolError, and
    FileNotFoundError."""
    try:
        _check_kind(place, place.stat(), field)
        with open(place, "rb", opener=_open) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ToolError(f"{place} cannot be read: {reason_of(error)}", field=field) from None
    if is_key_file(data):
        raise secret_error(place, field)
    return data


def text_of_bytes(place: Path, data: bytes, field: str = "path") -> TextFile:
    """The text of a file. Raises ToolError for what is none."""
    if is_binary(data):
        raise ToolError(
            f"{place} is a binary file of {len(data):,} bytes; only text can be read",
            field=field,
            expected="a text file",
            received="a binary file",
        )
    found = decoded(data)
    if found is None:
        raise ToolError(
            f"{place} is not UTF-8 text, and in what else it is written cannot be found out; convert it first",
            field=field,
            expected="a text file in UTF-8",
            received="another encoding",
        )
    return found


def is_binary(data: bytes) -> bool:
    """Does it hold NUL bytes where text has none?"""
    return b"\0" in data[:BINARY_PROBE_BYTES] and not data.startswith(WIDE_MARKS)


def decoded(data: bytes) -> TextFile | None:
    """The text of these bytes. None for one that is not UTF-8, where it is too long or the extra `index` is missing."""
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        if not data.startswith(WIDE_MARKS):
            data.decode("utf-8")
            return TextFile(data, data[mark:], "utf-8", mark)
    except UnicodeDecodeError:
        pass
    if len(data) > MAX_RECODED_BYTES:
        return None
    try:
        from callboard.actors.index.encodings import source_of  # noqa: PLC0415 - the extra `index`
    except ImportError:
        return None
    source = source_of(data)
    return TextFile(data, source.utf8, source.encoding, source.mark_bytes, source.encoding == "utf-8")


def _open(place: str, flags: int) -> int:
    """Not waiting for the other end of a pipe, nor following a link, that was put there since we looked."""
    return open_plain(place, flags | os.O_NONBLOCK)


def _check_kind(place: Path, status: os.stat_result, field: str) -> None:
    kind = kind_of(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        message = f"{place} is a directory; list_dir lists it"
    elif not stat.S_ISREG(status.st_mode):
        message = f"{place} is not a regular file but a {kind}; it is not read"
    elif status.st_size > MAX_FILE_BYTES:
        kind = f"{status.st_size:,} bytes"
        message = f"{place} has {kind}; files of more than {MAX_FILE_BYTES:,} are not read"
    else:
        return
    raise ToolError(message, field=field, expected="a regular file that is not too large", received=kind)


def kind_of(mode: int) -> str:
    """What a file is, in a word."""
    return next((word for test, word in _KINDS if test(mode)), "other")


_KINDS: Final = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)

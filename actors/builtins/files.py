"""`read_file` and `list_dir`: the files of one workspace, and no others; of these, none that holds secrets.

Values that look like keys are masked in what is shown. A mask has as many bytes as the value, so spans are exact.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from callboard.actors.builtins.workspace import Workspace, printable, reason_of, secret_error
from callboard.actors.secret_files import SecretFiles, is_key_file
from callboard.actors.tools.decorator import Tool, tool
from callboard.protocol.code_fences import render_fence
from callboard.protocol.errors import ToolError
from callboard.protocol.masking import mask_bytes

#: One answer of read_file: about 25,000 tokens. A model that needs more reads on by lines.
MAX_READ_BYTES: Final = 100_000
#: Larger files are data, not text to read; and one of this size fits into a worker's memory limit many times.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
#: A NUL byte within this is what makes a file binary; git looks at as many.
BINARY_PROBE_BYTES: Final = 8_000
#: Names in one answer of list_dir.
MAX_ENTRIES: Final = 1_000
MAX_DEPTH: Final = 5


def read_file_tool(workspace: Workspace) -> Tool:
    """`read_file`, as the model sees it."""

    @tool(risk="read", timeout=10, concurrency=8, idempotent=True, accesses={"path": "read"})
    def read_file(
        path: str, start_line: Annotated[int, Field(ge=1)] = 1, end_line: Annotated[int | None, Field(ge=1)] = None
    ) -> str:
        """Read a text file of the workspace, whole or some lines of it. Keys in it are shown as a mask of asterisks.

        Args:
            path: Relative to the workspace, or absolute within it.
            start_line: The first line, counted from 1.
            end_line: The last line, inclusive; the end of the file if left out.
        """
        return read_lines(workspace.inside(path), start_line, end_line)

    return read_file


def list_dir_tool(workspace: Workspace) -> Tool:
    """`list_dir`, as the model sees it."""

    @tool(risk="read", timeout=10, concurrency=8, idempotent=True, accesses={"path": "read"})
    def list_dir(path: str = ".", depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 1) -> dict[str, object]:
        """List a directory of the workspace. Names of directories end with "/", of symbolic links with "@".

        Args:
            path: Relative to the workspace, or absolute within it.
            depth: How many levels of directories to show.
        """
        hidden = workspace.secrets()
        return listing(workspace.inside(path, secrets=hidden), depth, hidden)

    return list_dir


def read_lines(place: Path, start_line: int, end_line: int | None) -> str:
    """Lines of a text file in their fence, followed by what was left out. Raises ToolError."""
    if end_line is not None and end_line < start_line:
        raise ToolError(f"end_line {end_line} is before start_line {start_line}")
    data = _read(place)
    if is_key_file(data):
        raise secret_error(place)
    if not data:
        return f"{place} is empty."
    last_line = data.count(b"\n") + (not data.endswith(b"\n"))
    if start_line > last_line:
        raise ToolError(f"{place} has {last_line:,} lines; there is no line {start_line:,}")
    start = _line_start(data, start_line)
    wanted = _line_start(data, end_line + 1) if end_line is not None and end_line < last_line else len(data)
    end = _cut(data, start, wanted)
    shown = mask_bytes(data, start, end).removesuffix(b"\n")
    fence = render_fence(str(place), start, start + len(shown), shown.decode())
    if end == wanted:
        return fence
    next_line = start_line + data.count(b"\n", start, end)
    if data[end - 1 : end] != b"\n":
        return f"{fence}\nLine {next_line:,} is longer than {MAX_READ_BYTES:,} bytes and was cut."
    return f"{fence}\nCut after {MAX_READ_BYTES:,} bytes, of {last_line:,} lines. Read on with start_line={next_line}."


def listing(place: Path, depth: int, secrets: SecretFiles) -> dict[str, object]:
    """The names below a directory, sorted, with a word on those left out. Raises ToolError."""
    if not place.is_dir():
        raise ToolError(f"{place} is not a directory; read_file reads a file")
    names: list[str] = []
    left_out = _list_into(names, place, "", depth, secrets)
    found: dict[str, object] = {"path": printable(str(place)), "entries": names}
    if left_out:
        found["left_out"] = f"more than {MAX_ENTRIES:,} names; list a directory below this one"
    return found


def _list_into(names: list[str], directory: Path, prefix: str, depth: int, secrets: SecretFiles) -> bool:
    """Add the names below; True when there was no room for all of them."""
    try:
        with os.scandir(directory) as entries:
            found = sorted((each for each in entries if not _is_left_out(each, secrets)), key=lambda each: each.name)
    except OSError as error:
        if not prefix:
            raise ToolError(f"{directory} cannot be listed: {reason_of(error)}") from None
        names.append(f"{prefix}({reason_of(error)})")
        return False
    for entry in found:
        if len(names) >= MAX_ENTRIES:
            return True
        is_directory = entry.is_dir(follow_symlinks=False)
        mark = "/" if is_directory else "@" if entry.is_symlink() else ""
        name = f"{prefix}{printable(entry.name)}{mark}"
        names.append(name)
        if is_directory and depth > 1 and _list_into(names, directory / entry.name, name, depth - 1, secrets):
            return True
    return False


def _is_left_out(entry: os.DirEntry[str], secrets: SecretFiles) -> bool:
    if entry.is_symlink():
        return secrets.hides_link(entry.path)
    return secrets.is_secret(entry.path, entry.is_dir(follow_symlinks=False))


def _read(place: Path) -> bytes:
    """A regular, not too large, UTF-8 file. Raises ToolError."""
    try:
        _check_kind(place, place.stat())
        with open(place, "rb", opener=_open) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ToolError(f"{place} cannot be read: {reason_of(error)}") from None
    if b"\0" in data[:BINARY_PROBE_BYTES]:
        raise ToolError(f"{place} is a binary file of {len(data):,} bytes; only text can be read")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ToolError(
            f"{place} is not UTF-8 text: byte 0x{data[error.start]:02x} in line {line}; convert it first"
        ) from None
    return data


def _open(place: str, flags: int) -> int:
    """Not waiting for the other end of a pipe, nor following a link, that was put there since we looked."""
    return os.open(place, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _check_kind(place: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{place} is a directory; list_dir lists it")
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{place} is not a regular file but a pipe, socket or device; it is not read")
    if status.st_size > MAX_FILE_BYTES:
        raise ToolError(f"{place} has {status.st_size:,} bytes; files of more than {MAX_FILE_BYTES:,} are not read")


def _line_start(data: bytes, line: int) -> int:
    """The byte offset at which line `line` begins; it must exist."""
    offset = 0
    for _ in range(line - 1):
        offset = data.index(b"\n", offset) + 1
    return offset


def _cut(data: bytes, start: int, end: int) -> int:
    """An end that keeps the answer within bounds: after a line, or within one that alone is too long."""
    if end - start <= MAX_READ_BYTES:
        return end
    limit = start + MAX_READ_BYTES
    newline = data.rfind(b"\n", start, limit)
    if newline >= 0:
        return newline + 1
    while data[limit] & 0xC0 == 0x80:  # not in the middle of a character
        limit -= 1
    return limit

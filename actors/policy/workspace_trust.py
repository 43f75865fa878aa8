"""Which files inside a workspace count: those whose very content the owner has agreed to, once.

A workspace may come from a stranger, and a model may write in it. So what its files would allow counts for nothing
until the owner has agreed, by the hash of their content, in a file of the user's own; a file that has changed since is
asked about again. What narrows counts always: see `callboard.actors.cli.workspace_setup`.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter

from callboard.actors.policy.owners_file import OwnersFile, is_inside
from callboard.protocol.errors import UsageError, said

TRUST_FILE: Final = "trusted_files.json"
"""Its name in the configuration folder."""
RULES: Final = ".callboard/rules.toml"
SERVERS: Final = ".mcp.json"
TOOLS: Final = ".callboard/tools"
"""The folder of Python files with tools."""
#: A person is to read them before agreeing.
MAX_FILE_BYTES: Final = 1024 * 1024
MAX_TOOL_FILES: Final = 100
#: Of a folder that an MCP server runs, or a file too large to be read: they are agreed to by what they hold, in sums.
MAX_SUMMED_FILES: Final = 20_000
MAX_SUMMED_BYTES: Final = 256 * 1024 * 1024
#: Compiled again whenever the source changes, and written by each run.
_CACHE: Final = "__pycache__"


class FileState(StrEnum):
    """What the owner has said of a file."""

    AGREED = "agreed"
    """To this very content."""
    CHANGED = "changed"
    """To another content, which was there before."""
    NEW = "new"
    """Nothing yet."""
    UNUSABLE = "unusable"
    """It cannot be read as a file: `fault` says why."""


@dataclass(frozen=True, slots=True)
class WorkspaceFile:
    """One file that would change what callboard does, as it was read: what is used of it is this very content."""

    path: str
    """Relative to the workspace, with slashes."""
    state: FileState
    data: bytes = field(default=b"", repr=False)
    digest: str = ""
    """SHA-256 of the data."""
    fault: str = ""
    is_named: bool = False
    """An MCP server's command runs or reads it. Of a folder, or a large file, the data are lines of SHA-256 sums."""

    @property
    def counts(self) -> bool:
        return self.state is FileState.AGREED


@dataclass(slots=True)
class _Agreed:
    version: Literal[1] = 1
    workspaces: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the path of the workspace: the digest of each file by its path."""


@cache
def _adapter() -> TypeAdapter[_Agreed]:
    return TypeAdapter(_Agreed)


class WorkspaceTrust:
    """What the owner has agreed to in one workspace. All methods read or write files."""

    def __init__(
        self, config_dir: Path, workspace: Path, named: Callable[[WorkspaceFile], Iterable[str]] = lambda file: ()
    ) -> None:
        """`named`: the files and folders below the workspace (absolute) that the servers of this file run."""
        self.workspace = workspace.resolve()
        self._named = named
        path = config_dir.expanduser() / TRUST_FILE
        self._is_inside = is_inside(path, self.workspace)
        self._file = OwnersFile(path, _adapter, _Agreed, "the agreements to files of workspaces")

    def files(self) -> tuple[WorkspaceFile, ...]:
        """Those that there are, each with what was said of it. Raises UsageError where that cannot be read."""
        found, beyond = _found(self.workspace)
        agreed = self._agreed() if found else {}
        read = [self._read(path, agreed.get(path)) for path in found]
        files = tuple(each for file in read for each in self._with_named(file, agreed))
        if not beyond:
            return files
        fault = f"it holds {beyond:,} more than the {MAX_TOOL_FILES} tool files that are read"
        return (*files, WorkspaceFile(TOOLS, FileState.UNUSABLE, fault=fault))

    def _with_named(self, file: WorkspaceFile, agreed: Mapping[str, str]) -> Iterator[WorkspaceFile]:
        """A file of servers counts with what they run, or not at all."""
        if file.path != SERVERS or file.state is FileState.UNUSABLE:
            yield file
            return
        paths = sorted(os.path.relpath(place, self.workspace) for place in self._named(file))
        named = [self._read(path, agreed.get(path), is_named=True) for path in paths]
        if (lost := next((each for each in named if each.state is FileState.UNUSABLE), None)) is not None:
            yield replace(file, state=FileState.UNUSABLE, fault=f"of {lost.path}, which it runs: {lost.fault}")
            return
        is_agreed = all(each.counts for each in named)
        yield file if is_agreed or not file.counts else replace(file, state=FileState.CHANGED)
        yield from named

    def agree(self, files: Iterable[WorkspaceFile]) -> None:
        """The owner agrees to the content of these files. Raises UsageError, or OSError."""
        if self._is_inside:
            raise UsageError(f"{self._file.path} is inside the workspace; set CALLBOARD_CONFIG_DIR to another folder")
        digests = {file.path: file.digest for file in files if file.state is not FileState.UNUSABLE}
        self._change(lambda before: before | digests)

    def forget(self) -> None:
        """The owner agrees to nothing in this workspace any more."""
        self._change(lambda before: {})

    def _change(self, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        key = str(self.workspace)

        def changed(all_agreed: _Agreed) -> _Agreed:
            after = change(all_agreed.workspaces.get(key, {}))
            others = {each: digests for each, digests in all_agreed.workspaces.items() if each != key}
            return _Agreed(1, {**others, key: after} if after else others)

        self._file.change(changed)

    def _agreed(self) -> dict[str, str]:
        return {} if self._is_inside else self._file.read().workspaces.get(str(self.workspace), {})

    def _read(self, path: str, agreed: str | None, *, is_named: bool = False) -> WorkspaceFile:
        try:
            data = _data(self.workspace / path)
            if data is None and is_named:
                data = _sums(self.workspace / path)
        except OSError as error:
            return WorkspaceFile(path, FileState.UNUSABLE, fault=said(error), is_named=is_named)
        if data is None:
            most = f"{MAX_SUMMED_FILES:,} files and {MAX_SUMMED_BYTES:,} bytes"
            fault = f"it is not a regular file of at most {MAX_FILE_BYTES:,} bytes"
            fault = f"it holds more than {most}, or what is no file" if is_named else fault
            return WorkspaceFile(path, FileState.UNUSABLE, fault=fault, is_named=is_named)
        if not is_named and not _is_utf8(path, data):
            fault = "it is not UTF-8, so Python could run another text than a person is shown"
            return WorkspaceFile(path, FileState.UNUSABLE, fault=fault)
        digest = hashlib.sha256(data).hexdigest()
        known = FileState.AGREED if agreed == digest else FileState.CHANGED
        return WorkspaceFile(path, known if agreed is not None else FileState.NEW, data, digest, is_named=is_named)


def _found(workspace: Path) -> tuple[list[str], int]:
    """The paths of the files that there are, in a fixed order; and how many tool files there are beyond the bound."""
    found = [path for path in (RULES, SERVERS) if os.path.lexists(workspace / path)]
    try:
        names = sorted(name for name in os.listdir(workspace / TOOLS) if name.endswith(".py"))
    except OSError:  # there is no such folder
        return found, 0
    tools = [f"{TOOLS}/{name}" for name in names[:MAX_TOOL_FILES]]
    return found + tools, len(names) - len(tools)


def _is_utf8(path: str, data: bytes) -> bool:
    """In other encodings (PEP 263) what is shown as a comment may be code: in UTF-7, or with `unicode_escape`."""
    try:
        named, _ = tokenize.detect_encoding(io.BytesIO(data).readline) if path.endswith(".py") else ("utf-8", [])
        data.decode()
    except (SyntaxError, UnicodeDecodeError):
        return False
    return named in ("utf-8", "utf-8-sig")


def _data(path: Path) -> bytes | None:
    """The content; None for what is no regular file, or too large. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would be waited for
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        return data if len(data) <= MAX_FILE_BYTES else None
    finally:
        os.close(descriptor)


def _sums(place: Path) -> bytes | None:
    """A line for each file in a folder, in a fixed order, as sha256sum prints them; None where there are too many, or
    what is no file. Raises OSError."""
    left, lines = MAX_SUMMED_BYTES, list[str]()
    for path in _files_in(place):
        if len(lines) >= MAX_SUMMED_FILES or (found := _sum(path, left)) is None:
            return None
        digest, size = found
        left -= size
        lines.append(f"{digest}  {os.path.relpath(path, place)}\n")
    return "".join(sorted(lines, key=lambda line: line.partition("  ")[2])).encode(errors="surrogateescape")


def _files_in(place: Path) -> Iterator[str]:
    """Or the file itself. Through links to files, as programs read them; a link to a folder counts as it is written."""
    if not place.is_dir():
        yield str(place)
        return
    for folder, folders, names in os.walk(place, onerror=_raise):
        folders[:] = [name for name in folders if name != _CACHE]
        yield from (os.path.join(folder, name) for name in (*names, *filter(_is_link_in(folder), folders)))


def _is_link_in(folder: str) -> Callable[[str], bool]:
    return lambda name: os.path.islink(os.path.join(folder, name))


def _raise(error: OSError) -> None:
    raise error


def _sum(path: str, most: int) -> tuple[str, int] | None:
    """Of a file, its digest and its size; of a link that leads to none, what is written in it."""
    digest, size = hashlib.sha256(), 0
    if os.path.islink(path) and not os.path.isfile(path):
        return hashlib.sha256(os.fsencode(os.readlink(path))).hexdigest(), 0
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        while chunk := file.read(MAX_FILE_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if size > most:
                return None
    return digest.hexdigest(), size

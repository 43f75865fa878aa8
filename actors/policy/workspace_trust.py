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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
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

    def __init__(self, config_dir: Path, workspace: Path) -> None:
        self.workspace = workspace.resolve()
        path = config_dir.expanduser() / TRUST_FILE
        self._is_inside = is_inside(path, self.workspace)
        self._file = OwnersFile(path, _adapter, _Agreed, "the agreements to files of workspaces")

    def files(self) -> tuple[WorkspaceFile, ...]:
        """Those that there are, each with what was said of it. Raises UsageError where that cannot be read."""
        found, beyond = _found(self.workspace)
        agreed = self._agreed() if found else {}
        files = tuple(self._read(path, agreed.get(path)) for path in found)
        if not beyond:
            return files
        fault = f"it holds {beyond:,} more than the {MAX_TOOL_FILES} tool files that are read"
        return (*files, WorkspaceFile(TOOLS, FileState.UNUSABLE, fault=fault))

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

    def _read(self, path: str, agreed: str | None) -> WorkspaceFile:
        try:
            data = _data(self.workspace / path)
        except OSError as error:
            return WorkspaceFile(path, FileState.UNUSABLE, fault=said(error))
        if data is None:
            fault = f"it is not a regular file of at most {MAX_FILE_BYTES:,} bytes"
            return WorkspaceFile(path, FileState.UNUSABLE, fault=fault)
        if not _is_utf8(path, data):
            fault = "it is not UTF-8, so Python could run another text than a person is shown"
            return WorkspaceFile(path, FileState.UNUSABLE, fault=fault)
        digest = hashlib.sha256(data).hexdigest()
        known = FileState.AGREED if agreed == digest else FileState.CHANGED
        return WorkspaceFile(path, known if agreed is not None else FileState.NEW, data, digest)


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

"""A small JSON file of the user's own: what was answered for always, and which workspaces are trusted.

It says what may run unasked, so it is believed only where no one else can write it, and never from inside a workspace,
where a tool could. It is replaced whole: a reader sees the old content or the new, and a crash leaves one of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from callboard.actors.opened_folders import OpenedFolders, open_plain
from callboard.protocol.errors import UsageError, said

#: Thousands of rules; a larger file is something else.
MAX_BYTES: Final = 4 * 1024 * 1024
_FOLDER_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
#: Bits that let others than the owner write.
_OTHERS_WRITE: Final = 0o022

Content = TypeVar("Content")


@contextlib.contextmanager
def locked_beside(path: Path) -> Iterator[None]:
    """For a change of this file: one process at a time. Raises OSError."""
    with OpenedFolders(os.path.realpath(path.parent)) as folder:
        descriptor = folder.open_or_make(f"{path.name}.lock", _FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for a millisecond; it ends with its holder
        yield
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """All or nothing, also after a crash; of several at once the last one wins. Mode and owner stay, also where root
    writes it; a new file is of the folder's owner then, and only its owner may read it. A link stays one.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    place = os.path.realpath(path)
    with OpenedFolders(os.path.dirname(place)) as folder:
        folder.replace(place, data, _FILE_MODE)


class OwnersFile(Generic[Content]):
    """One file of one kind of content, which pydantic reads and writes. Any number of processes may use it."""

    def __init__(
        self, path: Path, adapter: Callable[[], TypeAdapter[Content]], empty: Callable[[], Content], what: str
    ) -> None:
        """`adapter` is made when the file is first used; `what` names it in messages, such as "the saved rules"."""
        self.path = path
        self.place = Path(os.path.realpath(path.parent), path.name)
        """Where that leads to: a link in the path that is turned elsewhere later leads nowhere."""
        self._adapter = adapter
        self._empty = empty
        self._what = what
        self._read: tuple[tuple[int, ...], Content] | None = None
        """What was read last, and the state of the file then."""

    def read(self) -> Content:
        """What it holds now; the empty content where there is no file. Must not be changed.

        Raises UsageError for a file that others can write, that is not ours or cannot be read.
        """
        try:
            descriptor = open_plain(self.place)
        except FileNotFoundError:
            return self._empty()
        except OSError as error:
            raise self._unusable(said(error)) from None
        try:
            found = os.fstat(descriptor)
            self._check(found)
            state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if self._read is None or self._read[0] != state:
                with os.fdopen(os.dup(descriptor), "rb") as file:
                    self._read = state, self._parsed(file.read(MAX_BYTES + 1))
            return self._read[1]
        finally:
            os.close(descriptor)

    def change(self, change: Callable[[Content], Content]) -> None:
        """Replace the content by what `change` makes of it; one process at a time. Raises UsageError, or OSError."""
        self.place.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with locked_beside(self.place):
            replace_file(self.place, self._adapter().dump_json(change(self.read()), indent=2) + b"\n")

    def _check(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise self._unusable("it is not a regular file")
        if found.st_uid not in (os.geteuid(), 0):
            raise self._unusable("it belongs to another user")
        if found.st_mode & _OTHERS_WRITE:
            raise self._unusable(f"others can write it (mode {stat.S_IMODE(found.st_mode):03o})")

    def _parsed(self, data: bytes) -> Content:
        if len(data) > MAX_BYTES:
            raise self._unusable(f"it is larger than {MAX_BYTES:,} bytes")
        try:
            return self._adapter().validate_json(data)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "its content"
            raise self._unusable(f"{place}: {first['msg']}") from None

    def _unusable(self, why: str) -> UsageError:
        return UsageError(f"{self._what} in {self.path} do not count: {why}; correct the file, or remove it")


def is_inside(path: Path, workspace: Path | None) -> bool:
    """Does a path lie in the workspace, where tools may write, or lead through it by a link?"""
    if workspace is None:
        return False
    named, given = Path(os.path.abspath(path.expanduser())), Path(os.path.abspath(workspace))
    real = workspace.resolve()
    return named.resolve().is_relative_to(real) or named.is_relative_to(real) or named.is_relative_to(given)

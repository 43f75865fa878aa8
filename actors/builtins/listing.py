"""`list_dir` and `find_files`: which files a workspace has. Secret files are left out, and what git ignores."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.file_content import kind_of
from callboard.actors.builtins.visible import VisibleFiles
from callboard.actors.builtins.workspace import Workspace, printable, reason_of
from callboard.actors.tools import Tool, tool
from callboard.protocol.errors import ToolError
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import pathspec
else:
    pathspec = lazy_module("pathspec")

#: Entries in one answer of list_dir: about 25,000 tokens.
MAX_ENTRIES: Final = 1_000
MAX_DEPTH: Final = 5
#: Paths in one answer of find_files.
MAX_FOUND: Final = 500
#: What makes a name a glob.
_GLOB: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class ListedEntry(BriefResult):
    """A file or folder in a listing."""

    path: str
    """Below the listed folder."""
    kind: str
    """file, folder, link, pipe, socket, device."""
    bytes: int | None = None
    """Of a file."""
    mtime: str = ""
    """When it was changed last: ISO 8601, UTC."""
    target: str = ""
    """Where a link leads, as it is written in it."""
    unread: str = ""
    """Why a folder could not be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirListing(BriefResult):
    """What is in a folder, sorted by path."""

    KEEPS: ClassVar = frozenset({"entries"})

    version: Literal[1] = 1
    path: str
    exists: bool = True
    entries: tuple[ListedEntry, ...] = ()
    left_out: str = ""
    """What is not shown, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFiles(BriefResult):
    """Files by their names, sorted by path."""

    KEEPS: ClassVar = frozenset({"files"})

    version: Literal[1] = 1
    path: str
    """The folder that was looked through; the files are below it."""
    exists: bool = True
    files: tuple[str, ...] = ()
    left_out: str = ""


def list_dir_tool(workspace: Workspace) -> Tool:
    """`list_dir`, as the model sees it."""

    @tool(risk="read", timeout=10, concurrency=8, effect="repeat", accesses={"path": "read"})
    def list_dir(
        path: str = ".", depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 1, ignored: bool = False
    ) -> DirListing:
        """List a folder of the workspace, with sizes and times, without what git ignores.

        Args:
            path: Relative to the workspace, or absolute within it.
            depth: How many levels of folders to show.
            ignored: Show also what git ignores.
        """
        place, visible = _below(workspace, path)
        return listing(place, depth, visible, shows_ignored=ignored)

    return list_dir


def find_files_tool(workspace: Workspace) -> Tool:
    """`find_files`, as the model sees it."""

    @tool(risk="read", timeout=30, concurrency=4, effect="repeat", accesses={"path": "read"})
    def find_files(name: str, path: str = ".", limit: Annotated[int, Field(ge=1, le=MAX_FOUND)] = 100) -> FoundFiles:
        """Find files of the workspace by name, without what git ignores.

        Args:
            name: A part of the name ("config"), or a glob ("*.py", "src/**/test_*.py"). Case does not matter.
            path: The folder to look through, relative to the workspace or absolute within it.
            limit: Paths to show at most.
        """
        place, visible = _below(workspace, path)
        return found_files(place, name, limit, visible)

    return find_files


def _below(workspace: Workspace, path: str) -> tuple[Path, VisibleFiles]:
    """A place in one of the workspace's folders, and what may be shown below it."""
    here = workspace.holding(path)
    secrets = here.secrets()
    place = here.inside_or_missing(path, secrets=secrets)
    return place, VisibleFiles(here, place, secrets)


def listing(place: Path, depth: int, visible: VisibleFiles, *, shows_ignored: bool = False) -> DirListing:
    """The entries below a folder. Raises ToolError for what is none."""
    path = printable(str(place))
    if not os.path.lexists(place):
        return DirListing(path=path, exists=False)
    below = entries_of(place)
    ignored: Counter[str] = Counter()
    entries = list(islice(_entries(below, "", depth, visible, None if shows_ignored else ignored), MAX_ENTRIES + 1))
    notes = []
    if len(entries) > MAX_ENTRIES:
        entries.pop()
        notes.append(f"more than {MAX_ENTRIES:,} entries; list a folder below this one")
    if ignored:
        notes.append(f"{ignored.total():,} that git ignores; ignored=true shows them")
    return DirListing(path=path, entries=tuple(entries), left_out="; ".join(notes))


def found_files(place: Path, name: str, limit: int, visible: VisibleFiles) -> FoundFiles:
    """The files below a folder with such a name or path. Raises ToolError for what is no folder, and for no pattern."""
    path = printable(str(place))
    if not os.path.lexists(place):
        return FoundFiles(path=path, exists=False)
    entries_of(place)
    matches = name_test(name)
    below = len(visible.start.rstrip("/")) + 1
    named = (entry.path for entry in visible.walk() if not _is_folder(entry) and matches(entry.path[below:]))
    files = list(islice(filter(visible.shows, named), limit + 1))
    notes = [f"{count:,} folders could not be read ({why})" for why, count in sorted(visible.unread.items())]
    if len(files) > limit:
        files.pop()
        notes.insert(0, f"more than {limit:,} files; give a longer name, or a folder in path")
    return FoundFiles(path=path, files=tuple(printable(each[below:]) for each in files), left_out="; ".join(notes))


def name_test(pattern: str, field: str = "name") -> Callable[[str], bool]:
    """Whether a path (relative) is meant by a part of a name, or by a glob as in a .gitignore. Raises ToolError."""
    if not pattern.strip() or "\0" in pattern or "\n" in pattern:
        expected = "a part of a file name, or a glob such as *.py"
        raise ToolError(f"{field} must be {expected}", field=field, expected=expected, received=repr(pattern))
    wanted = pattern.lower()
    if not _GLOB.search(wanted):
        return lambda path: wanted in (path if "/" in wanted else path.rpartition("/")[2]).lower()
    try:
        spec = pathspec.GitIgnoreSpec.from_lines([wanted.removeprefix("./").lstrip("!#")])
    except ValueError as error:
        raise ToolError(f"{field}: {error}", field=field, expected="a glob such as *.py", received=pattern) from None
    return lambda path: spec.match_file(path.lower())


def _entries(
    below: list[os.DirEntry[str]], prefix: str, depth: int, visible: VisibleFiles, ignored: Counter[str] | None
) -> Iterator[ListedEntry]:
    """What is in a folder and in those below it; what git ignores is counted, or shown without a counter."""
    for entry in below:
        if visible.is_secret(entry):
            continue
        if ignored is not None and visible.is_ignored(entry):
            ignored[entry.name] += 1
            continue
        path = f"{prefix}{printable(entry.name)}"
        if not _is_folder(entry):
            yield _described(entry, path)
            continue
        deeper, why_not = _scanned(entry.path) if depth > 1 else ([], "")
        yield replace(_described(entry, path), unread=why_not)
        yield from _entries(deeper, f"{path}/", depth - 1, visible, ignored)


def entries_of(place: Path) -> list[os.DirEntry[str]]:
    """What is in a folder. Raises ToolError for what is none, and for one that cannot be read."""
    below, why_not = _scanned(str(place))
    if why_not:
        message = f"{place} cannot be listed: {why_not}"
        raise ToolError(message, field="path", expected="a folder that can be read", received=str(place))
    return below


def _scanned(folder: str) -> tuple[list[os.DirEntry[str]], str]:
    """The entries of a folder by name, or why there are none."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name), ""
    except OSError as error:
        return [], reason_of(error)


def _described(entry: os.DirEntry[str], path: str) -> ListedEntry:
    try:
        status = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.path) if entry.is_symlink() else ""
    except OSError as error:  # it has vanished since
        return ListedEntry(path, "other", unread=reason_of(error))
    kind = kind_of(status.st_mode)
    mtime = datetime.fromtimestamp(int(status.st_mtime), UTC).isoformat()
    return ListedEntry(path, kind, status.st_size if kind == "file" else None, mtime, printable(target))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)

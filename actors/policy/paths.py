"""Where a path leads, before it is judged: links followed, `..` taken back, as the kernel does it.

A tool resolves its paths again when it runs. What is changed in between is not seen here: keeping a call to what was
judged is the task of its confinement. A file with several names (hard links) may be a secret file, or one outside, by
another of them: reading it is not certain to be what it looks like.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.secret_files import NO_RULES, SecretFiles, SecretRules
from callboard.protocol.policy import AccessKind, Location, Touch
from callboard.protocol.tools import Risk

#: As many as Linux follows (path_resolution(7)).
MAX_LINKS: Final = 40
#: Below these, a name means what the process that opens it has open or where it is: another one than this process.
MAGIC_FOLDERS: Final = ("/proc", "/dev/fd")
#: What tools of builds and packages put there as hard links, of a store of theirs.
_LINKED: Final = frozenset({"node_modules", "site-packages", "dist-packages", "target", "bazel-out", "bazel-bin"})

_RISK: Final = {AccessKind.READ: Risk.READ, AccessKind.WRITE: Risk.WRITE, AccessKind.DELETE: Risk.WRITE}
_DESTROYS: Final = {AccessKind.DELETE: "it removes files"}
_SECRET: Final = "secret files: no tool shows or changes them (Settings.secret_files)"


class FollowedPath(Struct, frozen=True):
    """Where a path leads."""

    place: str
    """Absolute, without links as far as it exists."""
    unclear: str = ""
    """Why that is not certain."""


def follow(path: str) -> FollowedPath:
    """Where the kernel would end up by this absolute path; what does not exist is taken as it is written."""
    rest, here, links = path.split("/")[::-1], "/", 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        following = os.path.join(here, name)
        if any(here == each or here.startswith(f"{each}/") for each in MAGIC_FOLDERS):
            return FollowedPath(following, "a path through /proc or /dev/fd")
        try:
            is_link = stat.S_ISLNK(os.lstat(following).st_mode)
            target = os.readlink(following) if is_link else ""
        except (FileNotFoundError, NotADirectoryError):
            is_link = False
        except OSError as error:
            return FollowedPath(os.path.normpath(os.path.join(following, *rest[::-1])), error.strerror or "a path")
        if not is_link:
            here = following
            continue
        links += 1
        if links > MAX_LINKS:
            return FollowedPath(following, "too many links")
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]
    return FollowedPath(here)


def _other_names(place: str) -> str:
    """Why a file is perhaps not what its name says; "" where it is."""
    if not _LINKED.isdisjoint(place.split("/")):
        return ""
    try:
        found = os.lstat(place)
    except OSError:
        return ""
    return "it has other names (hard links)" if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 else ""


class Paths:
    """Finds out about the paths of one call. Raises nothing for what a model can write.

    Without a workspace all paths are outside of it. `read_only`: further folders, which count as inside for what only
    reads.
    """

    def __init__(self, root: Path | None, rules: SecretRules = NO_RULES, read_only: Iterable[Path | str] = ()) -> None:
        self._root = os.path.realpath(root) if root is not None else None
        self._secrets = SecretFiles(self._root or "/", rules)
        self._read_only = {os.path.realpath(each): SecretFiles(os.path.realpath(each), rules) for each in read_only}

    @property
    def root(self) -> str:
        """What relative paths are relative to."""
        return self._root or os.getcwd()

    def touches(self, kind: AccessKind, value: str, folder: str = "") -> Iterator[Touch]:
        """What a path is, in each way in which it can be meant; `folder`: where relative paths begin, absolute."""
        if "\0" in value:
            yield Touch(kind, Location.OUTSIDE, _RISK[kind], unclear="a path with a NUL byte")
            return
        seen = set[str]()
        for meant in self._meanings(value, folder or self.root):
            for path in dict.fromkeys((meant, os.path.normpath(meant))):  # a tool may take `..` back before links
                found = follow(path)
                if found.place not in seen:
                    seen.add(found.place)
                    if kind is AccessKind.READ and not found.unclear:
                        found = FollowedPath(found.place, _other_names(found.place))
                    yield self._judged(kind, path, found)

    def _meanings(self, value: str, folder: str) -> Iterator[str]:
        yield os.path.join(folder, value)
        if value.startswith("~") and (expanded := os.path.expanduser(value)) != value:
            yield expanded

    def _judged(self, kind: AccessKind, path: str, found: FollowedPath) -> Touch:
        is_inside, secrets = self._root is not None and _is_below(found.place, self._root), self._secrets
        for root, of_root in self._read_only.items():
            if _is_below(found.place, root):
                is_inside, secrets = kind is AccessKind.READ, of_root
        hides = secrets.hides if kind is AccessKind.READ else secrets.is_protected
        written = os.path.normpath(path)
        return Touch(
            kind,
            Location.INSIDE if is_inside and not found.unclear else Location.OUTSIDE,
            _RISK[kind],
            tuple(self._names(found.place)),
            tuple(each for name in (found.place, written) for each in self._aliases(name)),
            destroys=_DESTROYS.get(kind, ""),
            unclear=found.unclear,
            refused=_SECRET if hides(written) or hides(found.place) else "",
        )

    def _names(self, place: str) -> Iterator[str]:
        if self._root is not None and _is_below(place, self._root):
            yield os.path.relpath(place, self._root)
        yield place

    def _aliases(self, place: str) -> Iterator[str]:
        """As it may be called elsewhere: some file systems drop dots and blanks at the end of a name."""
        yield from self._names(place)
        if (short := re.sub(r"(?<=[^/. ])[. ]+(?=/|$)", "", place)) != place:
            yield from self._names(short)


def _is_below(place: str, folder: str) -> bool:
    """Or the same."""
    return place == folder or place.startswith(folder.rstrip("/") + "/")

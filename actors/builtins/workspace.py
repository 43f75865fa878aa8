"""The folder that the built-in tools work in: which paths of a model's are inside it, and which are secret."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from msgspec import Struct

from callboard.actors.secret_files import NO_RULES, SecretFiles, SecretRules
from callboard.protocol.errors import ToolError, UsageError

#: What a path of a model's has to be, in its failures.
EXPECTED = "a path of the workspace, relative to it or absolute"


class Workspace(Struct, frozen=True):
    """One folder, and perhaps further ones to read in, with the rules of their owner on what is secret there.

    Make it with `Workspace.at`.
    """

    root: Path
    """Absolute, without symbolic links."""
    rules: SecretRules = NO_RULES
    read_only: tuple[Path, ...] = ()
    """Further folders, that tools may read in: likewise."""

    @classmethod
    def at(cls, folder: Path | str, rules: SecretRules = NO_RULES, read_only: Iterable[Path | str] = ()) -> Self:
        """Raises UsageError when there is no such folder."""
        return cls(_folder(folder), rules, tuple(map(_folder, read_only)))

    @property
    def folders(self) -> tuple[Path, ...]:
        """All that tools may read in."""
        return self.root, *self.read_only

    def holding(self, path: str) -> Workspace:
        """For a tool that reads: as if the folder in which this absolute path is were the whole workspace. A relative
        path is meant from the first folder, and so is one that is in none of them."""
        given = os.path.normpath(path)
        root = next((each for each in self.read_only if Path(given).is_relative_to(each)), self.root)
        return Workspace(root, self.rules)

    def readable(self, path: str, field: str = "path") -> Path:
        """As `inside_or_missing`, in any of the folders: for a tool that reads."""
        return self.holding(path).inside_or_missing(path, field)

    def secrets(self) -> SecretFiles:
        """Says what is secret. It remembers the ignore files that it has read: take a new one for each call."""
        return SecretFiles(self.root, self.rules)

    def inside(self, path: str, field: str = "path", secrets: SecretFiles | None = None) -> Path:
        """The real place that the path leads to. Raises ToolError when it is outside, secret, or not there.

        `field` is where the path stands in the call's arguments.
        """
        place = self.inside_or_missing(path, field, secrets)
        if not os.path.lexists(place):
            message = f"there is no {path!r} in the workspace; list_dir shows what there is"
            raise ToolError(message, field=field, expected="a path that exists", received=path)
        return place

    def inside_or_missing(self, path: str, field: str = "path", secrets: SecretFiles | None = None) -> Path:
        """As `inside`, also for a path that leads to nothing yet: where it would be, past all symbolic links."""
        secrets = secrets or self.secrets()
        given = os.path.normpath(self.root / path)
        try:
            place = (self.root / path).resolve(strict=False)
            is_inside = place.is_relative_to(self.root)
            if is_inside:
                _check_links(self.root / path)
        except (OSError, RuntimeError, ValueError) as error:
            message = f"{path!r} cannot be followed: {reason_of(error)}"
            raise ToolError(message, field=field, expected=EXPECTED, received=path) from None
        if not is_inside:
            message = f"{path!r} is outside the workspace {self.root}; only files inside it can be used"
            raise ToolError(message, field=field, expected=EXPECTED, received=path)
        if secrets.hides(given) or secrets.hides(place):
            raise secret_error(path, field)
        return place


def _folder(given: Path | str) -> Path:
    try:
        root = Path(given).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"no such workspace: {given} ({error})") from error
    if not root.is_dir():
        raise UsageError(f"the workspace {root} is not a directory")
    return root


def secret_error(path: str | Path, field: str = "path") -> ToolError:
    """For a file that no model is shown, whether it exists or not."""
    return ToolError(
        f"{str(path)!r} is not shown, whether it exists or not: such files may hold secrets",
        field=field,
        expected="a path of a file that is not secret",
        received=str(path),
        retry_hint="Go on without it; the owner of the workspace can allow it by Settings(secret_files=...).",
    )


def reason_of(error: BaseException) -> str:
    """What the operating system said, without the path."""
    return getattr(error, "strerror", None) or str(error)


def printable(name: str) -> str:
    """File names are bytes; what is not UTF-8 in them is shown as an escape."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _check_links(path: Path) -> None:
    """Raise OSError for a loop of symbolic links and for a file that is used as a folder."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)

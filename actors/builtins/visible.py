"""What the tools that look through folders see: what git would track, but for caches, links and secret files.

Folders are judged on the way down, each once. Files are judged only when they are shown (`shows`), since that costs
more than to look into most of them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from callboard.actors.builtins.workspace import Workspace
from callboard.actors.index.walk import SKIPPED_FOLDERS, Rules, is_ignored, read_rules, rules_above, why_unread
from callboard.actors.secret_files import SecretFiles

#: A folder with this file in it holds an installed Python, wherever it is called something else than .venv.
_ENVIRONMENT_MARK: Final = "pyvenv.cfg"


class VisibleFiles:
    """The files below one folder of a workspace (its real path). Make one for each call: it remembers ignore files."""

    def __init__(self, workspace: Workspace, start: Path, secrets: SecretFiles) -> None:
        self._secrets = secrets
        self.start = str(start)
        self.unread: Counter[str] = Counter()
        """Folders that could not be looked into, by reason."""
        above = rules_above(self.start, str(workspace.root))
        # Who asks for a folder that git ignores wants to see it: then only its own rules count.
        outer = () if is_ignored(self.start, True, above) else above
        self._rules: dict[str, Rules | None] = {self.start: outer + self._own_rules(self.start)}

    def walk(self) -> Iterator[os.DirEntry[str]]:
        """All files in visible folders, and the folders themselves before what is in them, sorted by path.

        The files are not judged yet: ask `shows`.
        """
        pending = [self._entries(self.start)]
        while pending:
            entry = next(pending[-1], None)
            if entry is None:
                pending.pop()
            elif not entry.is_dir(follow_symlinks=False):
                yield entry
            elif self.rules_in(entry.path) is not None:
                yield entry
                pending.append(self._entries(entry.path))

    def shows(self, path: str) -> bool:
        """Whether a file (absolute, below the start) may be shown, by its name and where it is."""
        rules = self.rules_in(path.rpartition("/")[0])
        return rules is not None and not self._secrets.is_secret(path) and not is_ignored(path, False, rules)

    def rules_in(self, folder: str) -> Rules | None:
        """What is ignored in a folder below the start; None for one that is itself left out."""
        if folder not in self._rules:
            above, _, name = folder.rpartition("/")
            outer = self.rules_in(above) if folder.startswith(self.start) else None
            is_left_out = (
                outer is None
                or name in SKIPPED_FOLDERS
                or self._secrets.is_secret(folder, is_folder=True)
                or is_ignored(folder, True, outer)
                or os.path.lexists(f"{folder}/{_ENVIRONMENT_MARK}")
            )
            self._rules[folder] = None if outer is None or is_left_out else outer + self._own_rules(folder)
        return self._rules[folder]

    def is_secret(self, entry: os.DirEntry[str]) -> bool:
        """Of an entry, or of what a link leads to."""
        if entry.is_symlink():
            return self._secrets.hides_link(entry.path)
        return self._secrets.is_secret(entry.path, entry.is_dir(follow_symlinks=False))

    def is_ignored(self, entry: os.DirEntry[str]) -> bool:
        """By git, or because it is a cache; below a folder that is, nothing is."""
        if entry.is_dir(follow_symlinks=False):
            return self.rules_in(entry.path) is None
        return is_ignored(entry.path, False, self.rules_in(entry.path.rpartition("/")[0]) or ())

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """Regular files and folders, sorted by name."""
        try:
            with os.scandir(folder) as scan:
                found = [entry for entry in scan if _is_file_or_folder(entry)]
        except OSError as error:
            self.unread[why_unread(error)] += 1
            return iter(())
        return iter(sorted(found, key=lambda entry: entry.name))

    @staticmethod
    def _own_rules(folder: str) -> Rules:
        return read_rules(f"{folder}/.gitignore", folder)


def _is_file_or_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)

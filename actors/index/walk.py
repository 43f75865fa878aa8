"""Which files belong to a workspace: everything git would track, without following symlinks, but for secret files."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from callboard.actors.index.records import FileStat
from callboard.actors.index.tokens import word_set
from callboard.actors.secret_files import NO_RULES, SecretFiles, SecretRules
from callboard.protocol.lazy_loading import lazy_module

if TYPE_CHECKING:
    import pathspec
else:
    pathspec = lazy_module("pathspec")

#: Never source: version control, caches, environments, and our own store.
SKIPPED_FOLDERS = word_set(
    """.git .hg .svn .jj .callboard __pycache__ node_modules bower_components .venv .tox .nox .mypy_cache .ruff_cache
    .pytest_cache .hypothesis .cache .idea .gradle .terraform .next .nuxt .eggs"""
)
#: Written by tools: nothing a person asks about, and large.
SKIPPED_NAMES = word_set(
    """package-lock.json yarn.lock pnpm-lock.yaml npm-shrinkwrap.json cargo.lock poetry.lock pdm.lock uv.lock
    composer.lock gemfile.lock go.sum flake.lock pipfile.lock"""
)
SKIPPED_SUFFIXES = tuple(
    word_set(
        """.min.js .min.css .min.mjs .map .svg .po .pot .mo .pyc .so .o .a .class .jar .png .jpg .jpeg .gif .ico .webp
        .pdf .zip .gz .xz .bz2 .zst .7z .tar .whl .woff .woff2 .ttf .otf .eot .mp3 .mp4 .wav .ogg .webm .bin .dat .db
        .sqlite .sqlite3 .parquet .npy .npz .onnx .pt .safetensors .exe .dll .dylib .wasm .snap .lock .pyd"""
    )
)
#: A longer file is data or generated (the longest hand-written sources, such as sqlite3.c unamalgamated, stay below).
MAX_FILE_BYTES = 1_500_000
#: Of a notebook: most of a long one is pictures, which are not indexed.
MAX_NOTEBOOK_BYTES = 8_000_000


Rules = tuple[tuple[str, "pathspec.GitIgnoreSpec"], ...]
"""The .gitignore files that count for a folder, the deepest last, each with the folder it applies to."""


@dataclass(slots=True)
class Walk:
    """The files of one root; `skipped` counts by reason what was left out while iterating."""

    root: str
    store_dir: str
    rules: SecretRules = NO_RULES
    skipped: Counter[str] = field(default_factory=Counter)
    _secrets: SecretFiles = field(init=False)

    def __post_init__(self) -> None:
        self._secrets = SecretFiles(self.root, self.rules)

    def __iter__(self) -> Iterator[FileStat]:
        pending = [(self.root, self._first_rules())]
        while pending:
            folder, rules = pending.pop()
            for entry, entry_rules in self._kept_entries(folder, rules):
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, entry_rules))
                elif found := self._file(entry):
                    yield found

    def find(self, path: str) -> FileStat | None:
        """One file (absolute, from a watcher say), if the walk would come upon it."""
        folder, rules = self.root, self._first_rules()
        entry: os.DirEntry[str] | None = None
        for name in os.path.relpath(path, self.root).split(os.sep):
            entry, rules = next(self._kept_entries(folder, rules, only=name), (None, ()))
            if entry is None:
                return None
            folder = entry.path
        return self._file(entry) if entry is not None else None

    def _first_rules(self) -> Rules:
        rules = rules_above(self.root)
        # The user pointed at a folder that git ignores (an installed package, say): only its own rules count.
        return () if is_ignored(self.root, True, rules) else rules

    def _kept_entries(self, folder: str, rules: Rules, only: str = "") -> Iterator[tuple[os.DirEntry[str], Rules]]:
        """What of a folder belongs to the walk, with the rules below it; no more than the entry called `only`."""
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
        except OSError as error:
            self.skipped[why_unread(error)] += 1
            return
        names = {entry.name for entry in entries}
        if "pyvenv.cfg" in names and folder != self.root:
            return
        if ".gitignore" in names:
            rules = (*rules, *read_rules(os.path.join(folder, ".gitignore"), folder))
        for entry in entries:
            if only and entry.name != only:
                continue
            if entry.is_symlink():
                # Links out of the workspace must not be followed, links inside it lead to files seen anyway.
                self.skipped["symlink"] += 1
            elif not _is_text(entry.name):
                self.skipped["name_not_utf8"] += 1
            elif not self._is_left_out(entry, rules):
                yield entry, rules

    def _is_left_out(self, entry: os.DirEntry[str], rules: Rules) -> bool:
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_folder and (entry.name in SKIPPED_FOLDERS or entry.path == self.store_dir):
            return True
        if self._secrets.is_secret(entry.path, is_folder):
            self.skipped["secret"] += 1
            return True
        ignored = is_ignored(entry.path, is_folder, rules)
        if ignored and not is_folder:
            self.skipped["ignored"] += 1
        return ignored

    def _file(self, entry: os.DirEntry[str]) -> FileStat | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError as error:
            self.skipped[why_unread(error)] += 1
            return None
        if reason := _unwanted(entry.name, status):
            self.skipped[reason] += 1
            return None
        return FileStat(entry.path, self.root, status.st_size, status.st_mtime_ns)


def _is_text(name: str) -> bool:
    """Names are bytes; one that is not UTF-8 can neither be stored as text nor shown to a model."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unwanted(name: str, status: os.stat_result) -> str:
    """Why a file is not read at all; empty if it is."""
    if not stat.S_ISREG(status.st_mode):
        return "not_a_file"
    lower = name.lower()
    if lower in SKIPPED_NAMES or lower.endswith(SKIPPED_SUFFIXES):
        return "not_source"
    if status.st_size > most_bytes(lower):
        return "too_long"
    return "" if status.st_size else "empty"


def most_bytes(path: str) -> int:
    """How long the file may be."""
    return MAX_NOTEBOOK_BYTES if path.lower().endswith(".ipynb") else MAX_FILE_BYTES


def why_unread(error: OSError) -> str:
    """Of a file or folder."""
    return "no_permission" if isinstance(error, PermissionError) else "vanished"


def is_ignored(path: str, is_folder: bool, rules: Rules) -> bool:
    """The deepest file that mentions the path decides, as in git."""
    for folder, spec in reversed(rules):
        relative = path.removeprefix(folder).lstrip("/")
        ignored = spec.check_file(relative + "/" if is_folder else relative).include
        if ignored is not None:
            return ignored
    return False


def read_rules(path: str, folder: str) -> Rules:
    """The patterns of one file, for what is in `folder`; none where there is no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")  # as git: a name may hold U+2028
        return ((folder, pathspec.GitIgnoreSpec.from_lines(lines)),)
    except (OSError, ValueError):
        # An unreadable or malformed .gitignore ignores nothing; git only warns too.
        return ()


def rules_above(root: str, highest: str = "") -> Rules:
    """What the enclosing repository says: .git/info/exclude and the .gitignore files between its top and the root.

    Without a repository, `highest` is taken for the top, where it is the root or encloses it.
    """
    folders = [root, *map(str, Path(root).parents)]
    top = next((position for position, folder in enumerate(folders) if os.path.lexists(f"{folder}/.git")), None)
    if top is None and highest in folders:
        top = folders.index(highest)
    if top is None:
        return ()
    rules = read_rules(f"{folders[top]}/.git/info/exclude", folders[top])
    for folder in reversed(folders[1 : top + 1]):
        rules += read_rules(f"{folder}/.gitignore", folder)
    return rules

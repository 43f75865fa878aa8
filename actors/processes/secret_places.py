"""Where secret files are, below the folders that confined tools may touch: what is covered before a tool is loaded.

A walk of 20,000 files takes 0.2 s, so what it finds is shared by the tools of a pool, for a minute. A file that comes
to be later is covered for the next tool that is loaded; the built-in tools judge each file when they are asked for it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from callboard.actors.below import is_below
from callboard.actors.processes.import_places import PACKAGES
from callboard.actors.secret_files import SecretFiles, SecretRules

#: A walk ends after so many names or so long, and covers whole what it has not seen.
MAX_NAMES: Final = 500_000
MAX_SECONDS: Final = 10.0
#: What was found is used for so long.
FRESH_SECONDS: Final = 60.0


class SecretPlaces(NamedTuple):
    """Absolute paths; of a secret folder, not what is in it."""

    files: list[str]
    folders: list[str]


def find(roots: Iterable[str], workspace: str, rules: SecretRules, spared: frozenset[str]) -> SecretPlaces:
    """Look through these folders. `spared` are folders that are not looked into, such as Python's own."""
    found = SecretPlaces([], [])
    until, left = time.monotonic() + MAX_SECONDS, MAX_NAMES
    for root in roots:
        is_inside = bool(workspace) and is_below(root, workspace)
        secrets = SecretFiles(workspace if is_inside else root, rules)
        if not os.path.isdir(root):
            if os.path.isfile(root) and secrets.hides(root):
                found.files.append(root)
            continue
        todo = [root]
        while todo:
            folder = todo.pop()
            if left <= 0 or time.monotonic() > until:
                found.folders.append(folder)
                continue
            left -= _look(folder, secrets, spared, found, todo)
    return found


def _look(folder: str, secrets: SecretFiles, spared: frozenset[str], found: SecretPlaces, todo: list[str]) -> int:
    """Through one folder; how many names it has."""
    try:
        with os.scandir(folder) as entries:
            names = list(entries)
    except OSError:  # it has gone, or may not be listed: then the tool may not either
        return 1
    for entry in names:
        if entry.is_symlink():  # what it leads to is judged by its own name
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if secrets.is_secret(entry.path, is_folder):
            (found.folders if is_folder else found.files).append(entry.path)
        elif is_folder and entry.name not in PACKAGES and entry.path not in spared:
            todo.append(entry.path)
    return len(names) + 1


def find_shared(
    shared: int, roots: tuple[str, ...], workspace: str, rules: SecretRules, spared: frozenset[str]
) -> SecretPlaces:
    """`find`, or what another process found lately. `shared` is a file that the processes of a pool have in common."""
    key = (roots, workspace, rules.patterns, rules.folders)
    return SecretPlaces(*found_lately(shared, key, lambda: find(roots, workspace, rules, spared)))


def found_lately(shared: int, key: object, look: Callable[[], Sequence[list[str]]]) -> Sequence[list[str]]:
    """What `look` finds, or what it has found in another process of the pool. `key` says of what, in JSON."""
    name = orjson.dumps(key).decode()
    fcntl.lockf(shared, fcntl.LOCK_EX)  # one walks, the others wait for it
    try:
        known: dict[str, tuple[float, Sequence[list[str]]]] = orjson.loads(
            os.pread(shared, os.fstat(shared).st_size, 0) or b"{}"
        )
        if name not in known or time.monotonic() > known[name][0]:
            known[name] = (time.monotonic() + FRESH_SECONDS, list(look()))
            written = orjson.dumps(known)
            os.ftruncate(shared, 0)
            os.pwrite(shared, written, 0)
        return known[name][1]
    finally:
        fcntl.lockf(shared, fcntl.LOCK_UN)

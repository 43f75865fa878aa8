"""What has changed since the last refresh: one walk, stat only, nothing is read."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from callboard.actors.index.records import FileStat
from callboard.actors.index.store import KnownFile, SqliteStore
from callboard.actors.index.walk import Walk, allowed, unwanted

#: A file written this shortly before it was read may be written again with the same time stamp (kernel ticks are up to
#: 10 ms, FAT rounds to 2 s): its times prove nothing and it is hashed again, as git does with "racily clean" entries.
RACY_NS = 2_000_000_000


@dataclass(slots=True)
class RefreshPlan:
    """`changed` must be read; `gone` are ids of files to delete."""

    changed: list[FileStat] = field(default_factory=list)
    known: dict[str, KnownFile] = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)
    unchanged: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def total_bytes(self) -> int:
        return sum(file.size_bytes for file in self.changed)

    def is_small(self, max_files: int, max_bytes: int) -> bool:
        return len(self.changed) <= max_files and self.total_bytes <= max_bytes


def scan_all(roots: Sequence[str], store_dir: str, store: SqliteStore) -> RefreshPlan:
    """Compare the whole workspace with the store."""
    plan = RefreshPlan(known=store.known_files())
    judged = store.known_skipped()
    seen: set[str] = set()
    for root in roots:
        walk = Walk(root, store_dir)
        for file in walk:
            if file.path not in seen:
                seen.add(file.path)
                _sort(plan, file, judged.get(file.path))
        plan.skipped.update(walk.skipped)
    plan.gone = [known.id for path, known in plan.known.items() if path not in seen]
    stale = [path for path in judged if path not in seen]
    if stale:
        store.forget_skipped(stale)
    return plan


def scan_paths(roots: Sequence[str], store_dir: str, store: SqliteStore, paths: Sequence[str]) -> RefreshPlan | None:
    """Compare a few files, as a watcher names them; None if one is a folder and only a full scan can tell."""
    plan = RefreshPlan(known=store.known_files(paths))
    for path in dict.fromkeys(paths):
        root = next((root for root in roots if path.startswith(root.rstrip("/") + "/")), None)
        if root is None:
            continue
        try:
            status = os.lstat(path)
        except OSError:
            status = None
        if path not in plan.known and (status is None or not os.path.isfile(path) or path.endswith(".gitignore")):
            return None
        if status is not None and not unwanted(os.path.basename(path), status) and allowed(path, root, store_dir):
            _sort(plan, FileStat(path, root, status.st_size, status.st_mtime_ns), None)
        elif path in plan.known:
            plan.gone.append(plan.known[path].id)
    return plan


def _sort(plan: RefreshPlan, file: FileStat, judged: tuple[int, int, str] | None) -> None:
    known = plan.known.get(file.path)
    if judged is not None and judged[:2] == (file.size_bytes, file.mtime_ns):
        plan.skipped[judged[2]] += 1
    elif known is not None and _is_same(file, known):
        plan.unchanged += 1
    else:
        plan.changed.append(file)


def _is_same(file: FileStat, known: KnownFile) -> bool:
    same_stat = (file.size_bytes, file.mtime_ns) == (known.size_bytes, known.mtime_ns)
    return same_stat and file.mtime_ns < known.read_at_ns - RACY_NS

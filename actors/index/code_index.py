"""The code index of a workspace: open, refresh, search."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from callboard.actors.index import dense, ranking
from callboard.actors.index.dense import EmbedderFactory
from callboard.actors.index.layout import BrokenIndexError, IndexBusyError, Layout
from callboard.actors.index.lexical import LexicalIndex, name_stems, stems_of
from callboard.actors.index.parsing import read_now
from callboard.actors.index.records import digest
from callboard.actors.index.refresh import ProgressCallback, RefreshSummary, Request, refresh, roots_of
from callboard.actors.index.store import ChunkRow, EdgeRow, SqliteStore, SymbolRow
from callboard.actors.index.tokens import kin_of, query_words
from callboard.actors.secret_files import NO_RULES, SecretFiles, SecretRules
from callboard.protocol.masking import mask_bytes

#: Where an index lives unless told otherwise, under the first workspace folder.
DEFAULT_STORE = Path(".callboard") / "index"
#: What a LIKE pattern takes for itself.
_LIKE = str.maketrans({character: f"\\{character}" for character in "\\%_"})


@dataclass(frozen=True, slots=True)
class Hit:
    """One place in the code. `path` is absolute; bytes are exact, end exclusive; lines count from 1, inclusive."""

    path: str
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    score: float
    name: str
    canonical_path: str
    kind: str
    digest: bytes
    """Hash of the span's bytes when it was indexed (records.digest)."""


class CodeIndex:
    """Safe to share between threads. Queries see what was committed last and never wait for indexing."""

    def __init__(
        self,
        roots: tuple[str, ...],
        layout: Layout,
        note: str,
        embedder: EmbedderFactory | None,
        secrets: SecretRules = NO_RULES,
    ) -> None:
        self.roots = roots
        """The folders that are searched, absolute."""
        self._secrets = secrets
        self._layout = layout
        self._note = note
        self._store = SqliteStore(layout.truth)
        self._lexical = LexicalIndex(layout.lexical)
        layout.close_to_others()
        self._data_version = self._store.data_version()
        self._lock = threading.RLock()
        self._reranker = dense.Reranker(embedder, dense.VectorCache(layout.vectors)) if embedder is not None else None

    @classmethod
    def open(
        cls,
        workspace: str | Path | Sequence[str | Path],
        store_dir: str | Path | None = None,
        *,
        embedder: EmbedderFactory | Literal["auto"] | None = "auto",
        secrets: SecretRules = NO_RULES,
    ) -> Self:
        """Open or make the index of one folder, or of several repositories together. Nothing is indexed yet: `refresh`.

        `embedder` makes what the best hits are reranked with: by default the local model if its extra is installed,
        `None` for the lexical order alone. `secrets`: which files, besides those on the list, are not indexed.

        Raises:
            UsageError: no such folder, or the store's folder cannot be used.
        """
        roots = roots_of(workspace)
        folder = Path(store_dir).expanduser().resolve() if store_dir is not None else _default_store(roots)
        layout = Layout(folder)
        if embedder == "auto":
            embedder = dense.LocalEmbedder if dense.is_local_available() else None
        note = layout.prepare()
        try:
            return cls(roots, layout, note, embedder, secrets)
        except BrokenIndexError as broken:
            with layout.write_lock(wait_seconds=10):
                layout.clear()
            return cls(roots, layout, str(broken), embedder, secrets)

    def refresh(
        self,
        progress: ProgressCallback | None = None,
        paths: Sequence[str] | None = None,
        wait_seconds: float = 5.0,
    ) -> RefreshSummary:
        """Index what is new, changed or gone; only `paths` (absolute) if given. Blocks its thread, not queries.

        When another process writes the index for longer than `wait_seconds`, the summary says so in `note` and
        searching goes on with what is there.

        Raises:
            UsageError: the index cannot be written (disk full, no permission).
        """
        wanted = tuple(paths) if paths is not None else None
        request = Request(self.roots, self._layout, wanted, wait_seconds, self._secrets)
        with closing(SqliteStore(self._layout.truth)) as store:
            try:
                summary = refresh(request, store, self._lexical, progress)
            except IndexBusyError as busy:
                return RefreshSummary.of(store, f"{busy}; answers come from what is there")
        self._lexical.reload()
        notes, self._note = (self._note and f"rebuilt: {self._note}", summary.note), ""
        return replace(summary, note="; ".join(filter(None, notes)))

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The best places for a plain question or a name, best first, at most `k`, at most one per span."""
        with self._lock, self._store.reading():
            if (version := self._store.data_version()) != self._data_version:
                self._data_version = version
                self._lexical.reload()
            ranked = self._ranked(query, k)
        if self._reranker is not None and ranked:
            texts = [_text_of(row) for _, row in ranked[: dense.DEPTH]]
            scores = self._reranker.rerank(query, texts, [score for score, _ in ranked])
            rescored = [(score, row) for score, (_, row) in zip(scores, ranked, strict=True)]
            ranked = sorted(rescored, key=lambda pair: -pair[0])
        return [Hit(*row[:5], score, *row[5:9]) for score, row in ranked[:k]]

    def secret_files(self) -> Callable[[str], bool]:
        """Tells of a file of the index whether it is secret by what the disk says now. For one question."""
        by_root = {root: SecretFiles(root, self._secrets) for root in self.roots}
        return lambda path: any(files.is_secret(path) for root, files in by_root.items() if path.startswith(root))

    def load_ahead(self) -> None:
        """Get ready for the first question, in the background: it takes what an embedding model takes to load."""
        if self._reranker is not None:
            self._reranker.load_ahead()

    def _ranked(self, query: str, k: int) -> list[tuple[float, ChunkRow]]:
        words = query_words(query)
        stems = dict.fromkeys(stems_of(" ".join(words)))
        found = self._lexical.search(stems, max(ranking.CANDIDATES, 2 * k), _kin(words))
        rows = self._store.chunks([chunk for chunk, _ in found])
        candidates = [
            (row, score, len(stems.keys() & name_stems(row.name)) / len(stems))
            for chunk, score in found
            if (row := rows.get(chunk)) is not None
        ]
        return ranking.order(candidates, asks_for_tests=bool({"test", "tests", "testing"} & set(words)))

    # lookups for tools

    def symbols(
        self, name: str = "", canonical_path: str = "", path: str = "", kind: str = "", limit: int = 100
    ) -> list[SymbolRow]:
        """Symbols by any of: name, canonical path (a trailing part is enough; `.` and `::` are one), file, kind."""
        wanted = canonical_path.replace("::", ".")
        ending = wanted and "%." + wanted.translate(_LIKE)
        conditions = {
            "s.name = ?": name or wanted.rpartition(".")[2],
            "('.' || replace(s.canonical_path, '::', '.')) LIKE ? ESCAPE '\\'": ending,
            "f.path = ?": path,
            "s.kind = ?": kind,
        }
        given = {condition: value for condition, value in conditions.items() if value}
        with self._lock, self._store.reading():
            return self._store.symbols(" AND ".join(["s.kind != 'file'", *given]), list(given.values()), limit)

    def edges(self, symbol: SymbolRow, kind: str = "", incoming: bool = False, limit: int = 100) -> list[EdgeRow]:
        """What a symbol calls, imports, implements or contains; with `incoming`, what does so to its name."""
        with self._lock, self._store.reading():
            return self._store.edges(symbol, kind, incoming, limit)

    def close(self) -> None:
        """Let go of the files; a vector that is being made is waited for."""
        if self._reranker is not None:
            self._reranker.close()
        with self._lock, self._store.reading():
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _default_store(roots: tuple[str, ...]) -> Path:
    """Inside the first root; where that cannot be written, a folder of its own in the user's cache."""
    inside = Path(roots[0]) / DEFAULT_STORE
    if inside.exists() or os.access(roots[0], os.W_OK):
        return inside
    return Path.home() / ".cache" / "callboard" / "index" / digest("\n".join(roots).encode()).hex()


def _text_of(row: ChunkRow) -> dense.Passage:
    """What is embedded for a chunk: its place in words, then its text."""
    return dense.Passage(
        digest(row.digest + row.canonical_path.encode()),
        lambda: f"{row.canonical_path}\n{_shown(row).decode('utf-8', 'replace')}",
    )


def _shown(row: ChunkRow) -> bytes:
    return mask_bytes(read_now(row.path), row.start_byte, row.end_byte)


def _kin(words: Sequence[str]) -> dict[str, list[str]]:
    """For the stem of each word the stems of its family, but for those that are asked for themselves."""
    asked = set(stems_of(" ".join(words)))
    families = ((stems_of(word), stems_of(" ".join(kin_of(word)))) for word in words)
    return {stem: [each for each in dict.fromkeys(kin) if each not in asked] for (stem,), kin in families}

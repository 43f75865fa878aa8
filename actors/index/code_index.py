"""The code index of a workspace: open, refresh, search."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Literal, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.index import lookup, minilm, relations
from callboard.actors.index.bulk_embedding import LOCAL_MODEL
from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.database import BrokenIndexError
from callboard.actors.index.dense import EmbeddingModel
from callboard.actors.index.dense_search import STILL_LOADED, DenseSearch, Nearby
from callboard.actors.index.disk import IndexWriteError
from callboard.actors.index.fit import AskedWords, Nearness
from callboard.actors.index.layout import IndexBusyError, IndexReplacedError, Layout
from callboard.actors.index.lexical import LexicalIndex
from callboard.actors.index.nearest import Similarities
from callboard.actors.index.parsing import read_now
from callboard.actors.index.records import IndexState, digest
from callboard.actors.index.refresh import ProgressCallback, RefreshSummary, Request, refresh, roots_of
from callboard.actors.index.relations import Relation, Relatives
from callboard.actors.index.searching import NO_FILTERS, Filters, Near, Ranked, questions_of, ranked
from callboard.actors.index.store import ChunkRow, EdgeRow, FileRow, SqliteStore, SymbolRow
from callboard.actors.index.surroundings import named_code, surroundings
from callboard.actors.index.symbols import CONTAINERS
from callboard.actors.index.vector_making import BUSY_ELSEWHERE, VectorMaker, VectorState
from callboard.actors.index.vectors import VectorCache
from callboard.actors.secret_files import NO_RULES, SecretFiles, SecretRules

Found = TypeVar("Found")

#: Where an index lives unless told otherwise, under the first workspace folder.
DEFAULT_STORE = Path(".callboard") / "index"
#: How long a refresh waits for another process that writes the index. After that, searching goes on with what is there;
#: while the first index of a workspace is built there is nothing yet.
BUSY_SECONDS = 5.0
FIRST_INDEX_SECONDS = 600.0
#: Vectors are made for so long before progress is told, and looked for so often where another process makes them.
SETTLE_SECONDS = 1.0
BUSY_ELSEWHERE_SECONDS = 0.2
#: Of what a question finds, so many tiles get their vectors first.
ASKED_FOR = 50
NO_MODEL = "no embedding model is installed (the extra `embeddings`), or it was turned off"
#: Why a file that should be in the index is not.
UNREAD = ("no_permission", "parser_crashed", "parser_failed")
#: What a LIKE pattern takes for itself.
_LIKE = str.maketrans({character: f"\\{character}" for character in "\\%_"})


class Hit(Struct, frozen=True):
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
    encoding: str = "utf-8"
    """What the span's bytes are decoded with."""
    whole: tuple[int, int, bytes] | None = None
    """Start, end and hash of all of its symbol, where the span may be a part of it and it holds no others."""

    @classmethod
    def of(cls, row: ChunkRow, score: float) -> Self:
        whole = row.whole if row.kind not in CONTAINERS else None
        return cls(*row[:5], score, *row[5:9], row.encoding, whole)


class Around(Struct, frozen=True):
    """What was found for some questions, and what is around it."""

    hits: list[Hit]
    named: list[Hit]
    """The code that prose among the first hits names."""
    near: list[Hit]
    """What the first hits call, what calls them, and their neighbours in the best files; the closest first."""
    asked: tuple[AskedWords, ...]
    note: str = ""
    """Why some question was answered by words alone, where it need not have been."""


class _Parts:
    """The open files of an index, as it was made once: a rebuild makes others."""

    def __init__(self, layout: Layout) -> None:
        self.marker = layout.marker()
        self.store = SqliteStore(layout.truth)
        try:
            self.lexical = LexicalIndex(layout.lexical)
            layout.close_to_others()
            with self.store.reading():
                self.data_version = self.store.data_version()
        except BaseException:
            self.store.close()
            raise

    def close(self) -> None:
        self.lexical.close()
        with self.store.reading():
            self.store.close()


class _Dense:
    """Vectors of an index: the making of them and the asking, over one cache."""

    def __init__(self, layout: Layout, model: EmbeddingModel) -> None:
        self._cache = VectorCache(layout.vectors)
        self.maker = VectorMaker(layout, model, self._cache)
        self.search = DenseSearch(layout, model, self._cache)

    def close(self) -> None:
        self.maker.close()
        self.search.close()
        self._cache.close()


class CodeIndex:
    """Safe to share between threads. Queries see what was committed last and never wait for indexing.

    Damage to its files is noticed when they are read. Then the index is built again, with a note in the next summary.
    """

    def __init__(
        self,
        roots: tuple[str, ...],
        layout: Layout,
        embedder: EmbeddingModel | None,
        secrets: SecretRules = NO_RULES,
        *,
        rebuilds: bool = True,
    ) -> None:
        self.roots = roots
        """The folders that are searched, absolute."""
        self._secrets = secrets
        self._layout = layout
        self._rebuilds = rebuilds
        self._notes: list[str] = []
        self._was_cleared = False
        self._lock = threading.RLock()
        self._parts = self._opened()
        self._dense = _Dense(layout, embedder) if embedder is not None else None
        self.on_asked: Callable[[bytes, Sequence[int]], None] = self.make_vectors_first
        """Hears which tiles a question has found that have no vector, where another index makes them."""

    @classmethod
    def open(
        cls,
        workspace: str | Path | Sequence[str | Path],
        store_dir: str | Path | None = None,
        *,
        embedder: EmbeddingModel | Literal["auto"] | None = "auto",
        secrets: SecretRules = NO_RULES,
        rebuilds: bool = True,
    ) -> Self:
        """Open or make the index of one folder, or of several repositories together. Nothing is indexed yet: `refresh`.

        `embedder` tells what is near a question by meaning: by default the local model if its extra is installed;
        `None` for words alone. Its vectors are made by `settle`, or in a runtime in the background. `secrets`: which
        files, besides those on the list, are not indexed. `rebuilds`: a query that finds the index damaged has it built
        again and is asked again, which may take minutes; otherwise it raises BrokenIndexError, and the next refresh
        builds it.

        Raises:
            UsageError: no such folder, or the store's folder cannot be used.
        """
        roots = roots_of(workspace)
        folder = Path(store_dir).expanduser().resolve() if store_dir is not None else _default_store(roots)
        layout = Layout(folder)
        if embedder == "auto":
            embedder = LOCAL_MODEL if minilm.is_local_available() else None
        return cls(roots, layout, embedder, secrets, rebuilds=rebuilds)

    def _opened(self) -> _Parts:
        """Raises UsageError."""
        self._check_roots()
        for _ in range(2):
            if reason := self._layout.prepare():
                self._notes.append(f"rebuilt: {reason}")
                self._was_cleared = True
            try:
                return _Parts(self._layout)
            except BrokenIndexError as broken:
                self._layout.condemn(str(broken))
        self._layout.prepare()
        return _Parts(self._layout)

    def _check_roots(self) -> None:
        """Raise UsageError for a folder that is gone: it may be on a disk that comes back. So nothing is deleted from
        the index, and no folder is made in its place."""
        roots_of(self.roots)

    def _current(self, *, to_write: bool = False) -> _Parts:
        """Opened again when the index has been rebuilt, here or by another process, or perhaps can be written again."""
        with self._lock:
            is_other = self._parts.marker != self._layout.marker()
            if is_other or (to_write and self._parts.store.is_read_only):
                before, self._parts = self._parts, self._opened()
                before.close()
            return self._parts

    def refresh(
        self,
        progress: ProgressCallback | None = None,
        paths: Sequence[str] | None = None,
        wait_seconds: float | None = None,
    ) -> RefreshSummary:
        """Index what is new, changed or gone; only `paths` (absolute) if given. Blocks its thread, not queries.

        Another process that writes the index is waited for `wait_seconds` (5, and 600 while it builds the first index
        of the workspace), and `progress` hears how far that one is. After that the summary says so in `note`, and
        searching goes on with what is there.

        Raises:
            UsageError: the index cannot be written (disk full, no permission).
        """
        chosen = tuple(paths) if paths is not None else None
        for is_last in (False, False, True):
            try:
                summary = self._refresh(chosen, wait_seconds, progress)
                break
            except IndexReplacedError:
                if is_last:
                    raise
            except BrokenIndexError as broken:
                self._layout.condemn(str(broken))
                if is_last:
                    raise
        notes, self._notes = [*self._notes, summary.note], []
        self._was_cleared = False
        return replace(summary, note="; ".join(filter(None, notes)))

    def _refresh(
        self, paths: tuple[str, ...] | None, wait_seconds: float | None, progress: ProgressCallback | None
    ) -> RefreshSummary:
        self._check_roots()
        parts = self._current(to_write=True)
        lexical = parts.lexical
        lexical.reload()
        with closing(SqliteStore(self._layout.truth)) as store, store.reading():
            if wait_seconds is None:
                wait_seconds = BUSY_SECONDS if store.state().is_complete else FIRST_INDEX_SECONDS
            try:
                request = Request(self.roots, self._layout, parts.marker, paths, wait_seconds, self._secrets)
                summary = refresh(request, store, lexical, progress)
            except IndexBusyError as busy:
                summary = RefreshSummary.of(store)
                so_far = "answers come from what is there" if summary.is_complete else str(store.state())
                return replace(summary, note=f"{busy}; {so_far}")
        lexical.reload()
        return summary

    def state(self) -> IndexState:
        """How far the first index is; complete from then on."""
        return self._read(lambda parts: parts.store.state())

    def _read(self, question: Callable[[_Parts], Found]) -> Found:
        """Ask store and lexical index as they are now, or as they are built again."""
        if self._was_cleared and self._rebuilds:
            self.refresh()
        try:
            return self._read_once(question)
        except BrokenIndexError as broken:
            if not self._parts.store.is_read_only:  # it is read without locks, while another process may write
                self._layout.condemn(str(broken))
            if not self._rebuilds:
                raise
        self.refresh()
        return self._read_once(question)

    def _read_once(self, question: Callable[[_Parts], Found]) -> Found:
        with self._lock:
            parts = self._current()
            with parts.store.reading():
                if (version := parts.store.data_version()) != parts.data_version:
                    parts.data_version = version
                    parts.lexical.reload()
                return question(parts)

    def search(self, query: str | Sequence[str], k: int = 10, filters: Filters = NO_FILTERS) -> list[Hit]:
        """The best places for a plain question or a name, best first, at most `k`, at most one per span.

        Several queries are ways to say one need, or parts of it: each is searched, and the results are fused.

        Raises:
            UsageError: there are more than MAX_QUERIES queries, or a filter names no language or kind.
        """
        questions = questions_of(query)
        filters.check()
        found = self._ranked(questions, k, filters, lambda parts, near, order, missed: order)
        return [Hit.of(row, score) for score, row in found[:k]]

    def search_around(self, questions: Sequence[str], k: int, centres: int, filters: Filters = NO_FILTERS) -> Around:
        """The best places as `search`, and what surrounds the first of them. Raises as `search`."""

        def around(parts: _Parts, near: Near, order: Ranked, missed: str) -> Around:
            first = [row for _, row in order[:centres]]

            def passing(rows: Iterable[ChunkRow]) -> list[Hit]:
                return [Hit.of(row, 0.0) for row in rows if not filters or filters.fits(row)]

            asked = (AskedWords.of(each, parts.lexical, _nearness(near.get(each), first)) for each in questions)
            return Around(
                [Hit.of(row, score) for score, row in order[:k]],
                passing(named_code(parts.store, first)),
                passing(surroundings(parts.store, first)),
                tuple(asked),
                missed,
            )

        return self._ranked(questions, k, filters, around)

    def _ranked(
        self, questions: Sequence[str], k: int, filters: Filters, then: Callable[[_Parts, Near, Ranked, str], Found]
    ) -> Found:
        if not questions:
            return self._read(lambda parts: then(parts, {}, [], ""))
        nearby = self._dense.search.near(questions) if self._dense is not None else Nearby(b"", {}, "")

        def found(parts: _Parts) -> Found:
            is_of_this = nearby.generation == parts.marker
            near = nearby.near if is_of_this else {}
            missed = nearby.missed or ("" if is_of_this or not nearby.near else STILL_LOADED)
            order = ranked(parts.store, parts.lexical, questions, near, filters, k)
            self._ask_for_vectors(parts.marker, order)
            return then(parts, near, order, missed)

        return self._read(found)

    def _ask_for_vectors(self, generation: bytes, order: Ranked) -> None:
        """The next question about the same matter finds by meaning what this one could not."""
        if self._dense is None:
            return
        if tiles := self._dense.search.without_vector(row.chunk for _, row in order[:ASKED_FOR]):
            self.on_asked(generation, tiles)

    def make_vectors_first(self, generation: bytes, tiles: Sequence[int]) -> None:
        """From any thread: those of these tiles, of the index of this marker, before all others."""
        if self._dense is not None:
            self._dense.maker.make_first(generation, tiles)

    def passing_files(self, filters: Filters) -> int:
        """How many files of the index have a path and language that pass."""
        return sum(filters.fits_file(*row) for row in self._read(lambda parts: parts.store.file_places()))

    def unread_files(self, limit: int) -> list[str]:
        """Files of the workspace that could not be read or parsed, as `path: reason`."""
        rows = self._read(lambda parts: parts.store.unread(UNREAD, limit))
        return [f"{path}: {reason}" for path, reason in rows]

    def make_vectors(self, seconds: float) -> VectorState:
        """Make vectors of tiles that have none, the likeliest first, for about so long. One thread at a time.

        Raises:
            UsageError: the index cannot be read.
        """
        if self._dense is None:
            return VectorState(0, 0, NO_MODEL)
        return self._dense.maker.make(seconds)

    def give_up_vectors(self) -> None:
        """From any thread: a `make_vectors` under way ends soon, and no vector is made any more."""
        if self._dense is not None:
            self._dense.maker.give_up()

    def settle(self, timeout_seconds: float, progress: Callable[[VectorState], None] | None = None) -> VectorState:
        """Wait, at most so long, until every tile has its vector and questions are answered with all of them.

        What is missing is made here, unless another process makes it. The answer says how many tiles there are and how
        many have no vector yet; and why, where none are made: no model is installed, or it failed.
        """
        until = time.monotonic() + timeout_seconds
        while True:
            state = self.make_vectors(min(SETTLE_SECONDS, max(0.0, until - time.monotonic())))
            if progress is not None:
                progress(state)
            left = until - time.monotonic()
            if not state.missing or left <= 0 or (state.note and state.note != BUSY_ELSEWHERE):
                break
            if state.note:
                time.sleep(min(left, BUSY_ELSEWHERE_SECONDS))
        if self._dense is not None:
            self._dense.search.loaded(max(0.0, until - time.monotonic()))
        return state

    def secret_files(self) -> Callable[[str], bool]:
        """Tells of a file of the index whether it is secret by what the disk says now. For one question."""
        by_root = {root: SecretFiles(root, self._secrets) for root in self.roots}
        below = [(root.rstrip("/") + "/", files) for root, files in by_root.items()]
        return lambda path: any(files.is_secret(path) for root, files in below if path.startswith(root))

    def load_ahead(self) -> None:
        """Get ready for the first question, in the background: it takes what an embedding model takes to load."""
        if self._dense is not None:
            self._dense.search.load_ahead()

    def warm(self, seconds: float) -> None:
        """Wait, at most so long, until the model and the vectors that there are have been loaded."""
        if self._dense is not None:
            self._dense.search.loaded(seconds)

    # lookups for tools

    def lookup(self, name: str, kind: str = "", file: str = "") -> tuple[CodeItem, ...]:
        """The items of this name or canonical path (a trailing part of it is enough; `.` and `::` are one), by file and
        place, at most MAX_ITEMS; all spans are those of the files as they are on disk now.

        `kind` is a word such as `function` or `struct` (code_items.KINDS); `file` absolute, relative to a folder of the
        index, or a trailing part. Where an item is the whole path asked for, those that only end with it are left out.

        Raises:
            UsageError: no such kind, or the name is empty.
        """
        asked = lookup.ItemName.of(name, kind, file)
        return self._checked(lambda parts: lookup.find(parts.store, self.roots, asked))

    def close_items(self, name: str, kind: str = "", file: str = "") -> tuple[CodeItem, ...]:
        """What may have been meant where `lookup` finds nothing: items of this name elsewhere or of another kind, and
        items whose names are spelt nearly so; the likeliest first. Raises as `lookup`."""
        asked = lookup.ItemName.of(name, kind, file)
        return self._checked(lambda parts: lookup.find_close(parts.store, asked))

    def relatives(self, items: Sequence[CodeItem], relation: Relation, limit: int = 50) -> Relatives:
        """What has this relation to items that are one thing (a struct and its `impl` blocks), the surest first."""
        return self._read(lambda parts: relations.relatives(parts.store, items, relation, limit))

    def files(self) -> list[FileRow]:
        """All files that are indexed, by path."""
        return self._read(lambda parts: parts.store.files())

    def top_items(self, path: str) -> list[CodeItem]:
        """What a file defines at its top level, in order."""
        condition = "f.path = ? AND s.parent = (SELECT id FROM symbols WHERE file = f.id AND kind = 'file')"
        return self._read(lambda parts: parts.store.items(condition, [path], relations.MAX_REFERENCES))

    def items_in(self, path: str, limit: int) -> tuple[CodeItem, ...]:
        """What a file defines at any depth, in order, as it is on disk now."""
        return self._checked(lambda parts: parts.store.items("f.path = ? AND s.kind != 'file'", [path], limit))

    def _checked(self, question: Callable[[_Parts], list[CodeItem]]) -> tuple[CodeItem, ...]:
        """Items whose files are what was indexed. Changed files are indexed again once and the question asked again."""
        items, changed = self._unchanged(self._read(question))
        if changed and self.state().is_complete:
            with contextlib.suppress(IndexWriteError):  # what has changed is left out
                self.refresh(paths=changed, wait_seconds=lookup.REFRESH_SECONDS)
            items, _ = self._unchanged(self._read(question))
        return items

    def _unchanged(self, items: Sequence[CodeItem]) -> tuple[tuple[CodeItem, ...], list[str]]:
        """The items of files that are as they were indexed, and the paths of the other files."""
        is_secret = cache(self.secret_files())
        hashes = {path: digest(read_now(path)).hex() for path in {item.file for item in items}}
        kept = tuple(item for item in items if item.hash == hashes[item.file] and not is_secret(item.file))
        return kept, sorted({item.file for item in items if item.hash != hashes[item.file]})

    def symbols(
        self, name: str = "", canonical_path: str = "", path: str = "", kind: str = "", limit: int = 100
    ) -> list[SymbolRow]:
        """Symbols by any of: name, canonical path (a trailing part is enough; `.` and `::` are one), file, kind."""
        name, canonical_path = unicodedata.normalize("NFC", name), unicodedata.normalize("NFC", canonical_path)
        wanted = canonical_path.replace("::", ".")
        ending = wanted and "%." + wanted.translate(_LIKE)
        conditions = {
            "s.name = ?": name or wanted.rpartition(".")[2],
            "('.' || replace(s.canonical_path, '::', '.')) LIKE ? ESCAPE '\\'": ending,
            "f.path = ?": path,
            "s.kind = ?": kind,
        }
        given = {condition: value for condition, value in conditions.items() if value}
        where = " AND ".join(["s.kind != 'file'", *given])
        return self._read(lambda parts: parts.store.symbols(where, list(given.values()), limit))

    def edges(self, symbol: SymbolRow, kind: str = "", incoming: bool = False, limit: int = 100) -> list[EdgeRow]:
        """What a symbol calls, imports, implements or contains; with `incoming`, what does so to its name."""
        return self._read(lambda parts: parts.store.edges(symbol, kind, incoming, limit))

    def close(self) -> None:
        """Let go of the files; a vector that is being made is waited for."""
        if self._dense is not None:
            self._dense.close()
        with self._lock:
            self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nearness(near: Similarities | None, rows: Sequence[ChunkRow]) -> Nearness:
    """How near the best places are: those that have a vector."""
    cosines = near.cosines(row.chunk for row in rows) if near is not None else {}
    return {(row.path, row.start_byte): cosines[row.chunk] for row in rows if row.chunk in cosines}


def _default_store(roots: tuple[str, ...]) -> Path:
    """Inside the first root, of several together apart from that of the first alone; where that cannot be written, a
    folder of its own in the user's cache."""
    inside = Path(roots[0]) / DEFAULT_STORE
    if len(roots) > 1:
        inside = inside.with_name(f"{inside.name}-{digest(chr(10).join(sorted(roots)).encode()).hex()[:8]}")
    if inside.exists() or os.access(roots[0], os.W_OK):
        return inside
    return Path.home() / ".cache" / "callboard" / "index" / digest("\n".join(roots).encode()).hex()

"""The store of an index: files, symbols, chunks and edges in SQLite.

Rows are never changed, only deleted and inserted again under new ids that are not reused: an id that the lexical index
still holds for a moment after a change finds nothing here, never something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.database import Database
from callboard.actors.index.passages import Passage
from callboard.actors.index.records import FileStat, IndexState, ParsedFile, Skipped

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
  id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, root TEXT NOT NULL, language TEXT NOT NULL,
  size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, read_at_ns INTEGER NOT NULL, digest BLOB NOT NULL,
  encoding TEXT NOT NULL, lacks_grammar INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS skipped (path TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
  reason TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS symbols (
  id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, parent INTEGER, kind TEXT NOT NULL, name TEXT NOT NULL,
  canonical_path TEXT NOT NULL, ordinal INTEGER NOT NULL, start_byte INTEGER NOT NULL, end_byte INTEGER NOT NULL,
  start_line INTEGER NOT NULL, end_line INTEGER NOT NULL, digest BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS symbols_file ON symbols(file);
CREATE INDEX IF NOT EXISTS symbols_name ON symbols(name, file);
CREATE INDEX IF NOT EXISTS symbols_canonical ON symbols(canonical_path);
CREATE TABLE IF NOT EXISTS chunks (
  id INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER NOT NULL, symbol INTEGER NOT NULL, start_byte INTEGER NOT NULL,
  end_byte INTEGER NOT NULL, start_line INTEGER NOT NULL, end_line INTEGER NOT NULL, digest BLOB NOT NULL,
  code_chars INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS chunks_file ON chunks(file);
CREATE TABLE IF NOT EXISTS edges (
  file INTEGER NOT NULL, source INTEGER NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS edges_file ON edges(file);
CREATE INDEX IF NOT EXISTS edges_source ON edges(source);
CREATE INDEX IF NOT EXISTS edges_target ON edges(target);
CREATE INDEX IF NOT EXISTS edges_imports ON edges(target, source) WHERE kind = 'imports';
CREATE TABLE IF NOT EXISTS lexical_todo (file INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
_PASSAGES = """SELECT c.id, f.id, f.path, f.root, c.start_byte, c.end_byte, s.canonical_path, s.kind, f.language,
  f.encoding, c.code_chars, c.digest FROM chunks c JOIN files f ON f.id = c.file JOIN symbols s ON s.id = c.symbol"""
#: Names in `state`: the fingerprint of the lexical index that holds what this store holds; whether a pass over the
#: whole workspace has been finished; how many files the first one is about.
LEXICAL, COMPLETE, TOTAL_FILES = "lexical", "complete", "total_files"


class KnownFile(NamedTuple):
    """What the store remembers of a file, to see whether it has changed."""

    id: int
    size_bytes: int
    mtime_ns: int
    read_at_ns: int
    digest: bytes


class ChunkRow(NamedTuple):
    """A chunk with what it belongs to."""

    path: str
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    name: str
    canonical_path: str
    kind: str
    digest: bytes
    root: str
    language: str
    encoding: str
    code_chars: int
    symbol: int
    whole: tuple[int, int, bytes]
    """Start, end and hash of all of its symbol."""
    chunk: int


class SymbolRow(Struct, frozen=True):
    """A symbol as the tools see it. Paths are absolute, bytes end exclusive, lines from 1 inclusive."""

    id: int
    path: str
    kind: str
    name: str
    canonical_path: str
    ordinal: int
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    digest: bytes
    parent: int | None


class EdgeRow(NamedTuple):
    """`source` (canonical path, in `path`) calls, imports, implements or contains `target` (a name as written)."""

    kind: str
    source: str
    target: str
    path: str
    line: int


class FileRow(NamedTuple):
    """A file of the index, for an overview."""

    path: str
    language: str
    lines: int


class SqliteStore:
    """One connection; used by one thread at a time (code_index.py holds a lock around it)."""

    def __init__(self, path: Path) -> None:
        """Raises as `Database` does."""
        self._database = Database(path, SCHEMA)
        self._db = self._database.connection

    @property
    def is_read_only(self) -> bool:
        """Whether the disk takes nothing, so that this is what was there when it was opened."""
        return self._database.is_read_only

    def close(self) -> None:
        self._database.close()

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing; a full disk or a kill leaves what was there before."""
        return self._database.transaction()

    def reading(self) -> AbstractContextManager[None]:
        """Around queries: SQLite's errors become ours."""
        return self._database.reading()

    def data_version(self) -> int:
        """Changes when another connection has committed."""
        return self._number("PRAGMA data_version")

    def known_files(self, paths: Sequence[str] | None = None) -> dict[str, KnownFile]:
        """All files, or those of the paths that the store has."""
        sql = "SELECT path, id, size, mtime_ns, read_at_ns, digest FROM files"
        if paths is None:
            rows = self._db.execute(sql)
        else:
            rows = self._db.execute(f"{sql} WHERE path IN (SELECT value FROM json_each(?))", (json.dumps(paths),))
        return {row[0]: KnownFile(*row[1:]) for row in rows}

    def known_skipped(self) -> dict[str, tuple[int, int, str]]:
        return {row[0]: tuple(row[1:]) for row in self._db.execute("SELECT path, size, mtime_ns, reason FROM skipped")}

    def remember_skipped(self, skipped: Iterable[Skipped]) -> None:
        """Files judged by their content need not be read again until they change."""
        rows = [(each.stat.path, each.stat.size_bytes, each.stat.mtime_ns, each.reason) for each in skipped]
        self._db.executemany("INSERT OR REPLACE INTO skipped VALUES (?,?,?,?)", rows)

    def forget_skipped(self, paths: Iterable[str]) -> None:
        self._db.executemany("DELETE FROM skipped WHERE path = ?", [(path,) for path in paths])

    def languages_without_grammar(self) -> list[str]:
        """Of files that are text only, since there was no grammar when they were read."""
        return [row[0] for row in self._db.execute("SELECT DISTINCT language FROM files WHERE lacks_grammar")]

    def forget_text_of(self, language: str) -> None:
        """Files of a language that were read without its grammar are read again at the next plan."""
        sql = "UPDATE files SET read_at_ns = 0, digest = x'' WHERE lacks_grammar AND language = ?"
        self._db.execute(sql, (language,))

    def touch(self, stat: FileStat, read_at_ns: int) -> None:
        """The content is the same, only its times changed."""
        self._db.execute(
            "UPDATE files SET mtime_ns = ?, read_at_ns = ? WHERE path = ?", (stat.mtime_ns, read_at_ns, stat.path)
        )

    def replace(self, gone: Iterable[int], parsed: Iterable[ParsedFile]) -> dict[str, tuple[int, list[int]]]:
        """Delete files by id and insert parsed ones, inside the caller's transaction; what is inserted or deleted is
        noted as still to be done in the lexical index. Returns path -> (file id, chunk ids in order)."""
        self.keep({LEXICAL: b""})
        for file in gone:
            self._db.execute("INSERT OR IGNORE INTO lexical_todo VALUES (?)", (file,))
            for column in ("edges WHERE file", "chunks WHERE file", "symbols WHERE file", "files WHERE id"):
                self._db.execute(f"DELETE FROM {column} = ?", (file,))
        return {file.stat.path: self._insert(file) for file in parsed}

    def _insert(self, file: ParsedFile) -> tuple[int, list[int]]:
        stat = file.stat
        self._db.execute(
            "INSERT INTO files (path, root, language, size, mtime_ns, read_at_ns, digest, encoding, lacks_grammar)"
            " VALUES (?,?,?,?,?,?,?,?,?)",
            (
                stat.path, stat.root, file.language, stat.size_bytes, stat.mtime_ns, file.read_at_ns, file.digest,
                file.encoding, file.lacks_grammar,
            ),
        )  # fmt: skip
        file_id = self._db.last_insert_rowid()
        self._db.execute("INSERT INTO lexical_todo VALUES (?)", (file_id,))
        first_symbol = self._next_id("symbols")
        self._db.executemany(
            "INSERT INTO symbols VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (first_symbol + n, file_id, first_symbol + s.parent if s.parent >= 0 else None, *s[1:])
                for n, s in enumerate(file.symbols)
            ],
        )
        first_chunk = self._next_id("chunks")
        self._db.executemany(
            "INSERT INTO chunks VALUES (?,?,?,?,?,?,?,?,?)",
            [(first_chunk + n, file_id, first_symbol + c.symbol, *c[1:7]) for n, c in enumerate(file.chunks)],
        )
        self._db.executemany(
            "INSERT INTO edges VALUES (?,?,?,?)",
            [(file_id, first_symbol + edge.source, edge.kind, edge.target) for edge in file.edges],
        )
        return file_id, list(range(first_chunk, first_chunk + len(file.chunks)))

    def _next_id(self, table: str) -> int:
        sql = "SELECT ifnull(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = ?"
        return self._number(sql, (table,))

    def lexical_todo(self) -> list[int]:
        """The files that the lexical index does not have yet, or has still."""
        return [row[0] for row in self._db.execute("SELECT file FROM lexical_todo")]

    def lexical_done(self) -> None:
        self._db.execute("DELETE FROM lexical_todo")

    def chunk_counts(self) -> dict[int, int]:
        """Of each file that has chunks."""
        return {row[0]: row[1] for row in self._db.execute("SELECT file, count(*) FROM chunks GROUP BY file")}

    def state(self) -> IndexState:
        """How far the first index is."""
        kept = self._kept()
        done = self.count("files") + self.count("skipped")
        return IndexState(bool(kept.get(COMPLETE)), done, max(done, int(str(kept.get(TOTAL_FILES, 0)))))

    def lexical_fingerprint(self) -> bytes:
        """Of the lexical index that holds exactly what this store holds; empty while they are being written."""
        kept = self._kept().get(LEXICAL, b"")
        return kept if isinstance(kept, bytes) else b""

    def keep(self, values: Mapping[str, bytes | int]) -> None:
        """Set some of `state`; `b""` and 0 are the same as nothing."""
        self._db.executemany("INSERT OR REPLACE INTO state VALUES (?,?)", list(values.items()))

    def _kept(self) -> dict[str, object]:
        return {str(row[0]): row[1] for row in self._db.execute("SELECT name, value FROM state")}

    def count(self, table: str) -> int:
        return self._number(f"SELECT count(*) FROM {table}")

    def _number(self, sql: str, parameters: Sequence[str] = ()) -> int:
        (row,) = self._db.execute(sql, tuple(parameters)).fetchall()
        assert isinstance(row[0], int)
        return row[0]

    def chunks(self, ids: Sequence[int]) -> dict[int, ChunkRow]:
        """Those of them that are still there."""
        return self._chunks("c.id IN (SELECT value FROM json_each(?))", (json.dumps(ids),))

    def chunks_of_files(self, paths: Sequence[str]) -> dict[int, ChunkRow]:
        """All chunks of these files."""
        return self._chunks("f.path IN (SELECT value FROM json_each(?))", (json.dumps(paths),))

    def chunks_of_names(self, names: Iterable[str], limit: int) -> dict[int, ChunkRow]:
        """The chunks of all symbols with one of these names."""
        return self._chunks(
            "s.name IN (SELECT value FROM json_each(?)) AND s.kind NOT IN ('file', 'section') LIMIT ?",
            (json.dumps([*names]), limit),
        )

    def callers(self, names: Iterable[str], limit: int) -> dict[int, ChunkRow]:
        """The chunks of symbols that call one of these names."""
        calling = "SELECT source FROM edges WHERE kind = 'calls' AND target IN (SELECT value FROM json_each(?))"
        return self._chunks(f"c.symbol IN ({calling}) LIMIT ?", (json.dumps([*names]), limit))

    def _chunks(self, where: str, parameters: Sequence[str | int]) -> dict[int, ChunkRow]:
        rows = self._db.execute(
            "SELECT c.id, f.path, c.start_byte, c.end_byte, c.start_line, c.end_line, s.name, s.canonical_path, s.kind,"
            " c.digest, f.root, f.language, f.encoding, c.code_chars, c.symbol, s.start_byte, s.end_byte, s.digest"
            " FROM chunks c JOIN files f ON f.id = c.file JOIN symbols s ON s.id = c.symbol"
            f" WHERE {where}",
            parameters,
        )
        return {row[0]: ChunkRow._make((*row[1:15], row[15:], row[0])) for row in rows}

    def file_places(self) -> list[tuple[str, str, str]]:
        """Path, root and language of each file."""
        return [(row[0], row[1], row[2]) for row in self._db.execute("SELECT path, root, language FROM files")]

    def unread(self, reasons: Iterable[str], limit: int) -> list[tuple[str, str]]:
        """Files that are not in the index for one of these reasons: path and reason."""
        sql = "SELECT path, reason FROM skipped WHERE reason IN (SELECT value FROM json_each(?)) ORDER BY path LIMIT ?"
        return [(row[0], row[1]) for row in self._db.execute(sql, (json.dumps([*reasons]), limit))]

    def passages(self, after: int = 0) -> Iterator[Passage]:
        """All tiles with a chunk id above this, one at a time."""
        return (Passage(*row) for row in self._db.execute(f"{_PASSAGES} WHERE c.id > ? ORDER BY c.id", (after,)))

    def passages_of(self, chunks: Sequence[int]) -> list[Passage]:
        """Those of these chunks that are still there."""
        sql = f"{_PASSAGES} WHERE c.id IN (SELECT value FROM json_each(?))"
        return [Passage(*row) for row in self._db.execute(sql, (json.dumps(chunks),))]

    def chunk_ids(self) -> set[int]:
        """Of all chunks."""
        return {row[0] for row in self._db.execute("SELECT id FROM chunks")}

    def content_version(self) -> tuple[int, int, bytes]:
        """Another one whenever chunks have come or gone."""
        last = self._number("SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'chunks'")
        return last, self.count("chunks"), self.lexical_fingerprint()

    def edges(self, symbol: SymbolRow, kind: str, incoming: bool, limit: int) -> list[EdgeRow]:
        """Containment is known exactly and not stored twice: it is read from the symbols.

        The symbol is looked up by its path, name and place among those of its name: its file, or the whole index, may
        have been indexed again, and then its id is that of another or of none.
        """
        found = self.symbols(
            "f.path = ? AND s.canonical_path = ? AND s.ordinal = ?",
            (symbol.path, symbol.canonical_path, symbol.ordinal),
            1,
        )
        if not found:
            return []
        rows = self._db.execute(
            "SELECT e.kind, s.canonical_path, e.target, f.path, s.start_line FROM ("
            " SELECT source, kind, target, NULL AS inner, 0 AS place FROM edges UNION ALL"
            " SELECT parent, 'contains', name, id, start_byte FROM symbols WHERE parent IS NOT NULL"
            ") e JOIN symbols s ON s.id = e.source JOIN files f ON f.id = s.file WHERE "
            + ("e.target = :name AND ifnull(e.inner, :id) = :id" if incoming else "e.source = :id")
            + " AND :kind IN ('', e.kind)"
            " ORDER BY e.kind = 'contains' DESC, f.path, s.start_byte, e.place, e.kind, e.target LIMIT :limit",
            {"name": symbol.name, "id": found[0].id, "kind": kind, "limit": limit},
        )
        return [EdgeRow(*row) for row in rows]

    def calls(self, symbols: Sequence[int]) -> list[tuple[int, str]]:
        """What these symbols call: pairs of symbol and name."""
        sql = "SELECT source, target FROM edges WHERE kind = 'calls' AND source IN (SELECT value FROM json_each(?))"
        return [(row[0], row[1]) for row in self._db.execute(sql, (json.dumps(symbols),))]

    def rare_names(self, names: Iterable[str], most: int) -> set[str]:
        """Those of which there are at most so many definitions."""
        sql = (
            "SELECT name FROM symbols WHERE name IN (SELECT value FROM json_each(?)) GROUP BY name HAVING count(*) <= ?"
        )
        return {row[0] for row in self._db.execute(sql, (json.dumps(sorted(names)), most))}

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return self._db.execute(sql, tuple(parameters)).fetchall()

    def symbols(self, where: str, parameters: Sequence[object], limit: int) -> list[SymbolRow]:
        rows = self._db.execute(
            "SELECT s.id, f.path, s.kind, s.name, s.canonical_path, s.ordinal, s.start_byte, s.end_byte, s.start_line,"
            f" s.end_line, s.digest, s.parent FROM symbols s JOIN files f ON f.id = s.file WHERE {where}"
            " ORDER BY f.path, s.start_byte, s.ordinal LIMIT ?",
            (*parameters, limit),
        )
        return [SymbolRow(*row) for row in rows]

    def items(self, where: str, parameters: Sequence[object], limit: int) -> list[CodeItem]:
        """Symbols as the tools look them up, with the hash of their file."""
        rows = self._db.execute(
            "SELECT f.path, s.canonical_path, s.name, s.kind, s.start_byte, s.end_byte, s.start_line, s.end_line,"
            f" lower(hex(f.digest)), f.language, f.encoding, s.ordinal FROM symbols s JOIN files f ON f.id = s.file"
            f" WHERE {where} ORDER BY f.path, s.start_byte, s.ordinal LIMIT ?",
            (*parameters, limit),
        )
        return [CodeItem(*row) for row in rows]

    def files(self) -> list[FileRow]:
        """All files, by path."""
        rows = self._db.execute(
            "SELECT f.path, f.language, s.end_line FROM files f JOIN symbols s ON s.file = f.id AND s.kind = 'file'"
            " ORDER BY f.path"
        )
        return [FileRow(*row) for row in rows]

"""Values that travel between parser, store and ranking. Spans are bytes, end exclusive; lines count from 1."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from msgspec import Struct

DIGEST_BYTES = 16
#: Longer names of sections are cut.
MAX_NAME_CHARS = 120


def digest(content: bytes) -> bytes:
    """The tracking hash of a file or a span."""
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


class Symbol(NamedTuple):
    """A definition. Symbol 0 of a file is the file itself (kind `file`)."""

    parent: int
    """Position of the enclosing symbol in the file's list; -1 for the file."""
    kind: str
    name: str
    canonical_path: str
    ordinal: int
    """Tells apart symbols of one canonical path in one file: overloads, `cfg` variants, redefinitions."""
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    digest: bytes


class ProseSection(NamedTuple):
    """A heading of prose with what is below it, or a cell of a notebook: bytes from `start` to `end`, exclusive.
    Sections of a lower level lie within it."""

    start: int
    end: int
    title: str


class Chunk(NamedTuple):
    """What is searched: a symbol, a piece of a long one, or text between symbols."""

    symbol: int
    start_byte: int
    end_byte: int
    start_line: int
    end_line: int
    digest: bytes
    code_chars: int
    """How much of it is code and not comment; 0 in prose."""
    terms: str
    """Lower-case words for the lexical index, separated by spaces; not kept in the store."""


class Edge(NamedTuple):
    """`source` (a position in the file's symbols) calls, imports or implements something called `target`."""

    source: int
    kind: str
    target: str


class FileStat(Struct, frozen=True):
    """What the quick pass compares before it reads anything."""

    path: str
    """Absolute."""
    root: str
    size_bytes: int
    mtime_ns: int


class ParsedFile(Struct, frozen=True):
    """All that is indexed of one file."""

    stat: FileStat
    language: str
    digest: bytes
    symbols: tuple[Symbol, ...]
    chunks: tuple[Chunk, ...]
    edges: tuple[Edge, ...]
    read_at_ns: int
    """When it was read: a file changed in the same clock tick must be hashed again next time."""
    encoding: str = "utf-8"
    """How Python calls it; any slice of the file that is a span can be decoded with it."""
    lacks_grammar: bool = False
    """Whether it is text only until there is a grammar of its language."""


class Skipped(Struct, frozen=True):
    """A file that is not indexed, and why (a word such as `binary` or `too_long`)."""

    stat: FileStat
    reason: str


class Unchanged(Struct, frozen=True):
    """Its times changed, its content did not."""

    stat: FileStat
    read_at_ns: int


FileOutcome = ParsedFile | Unchanged | Skipped


class IndexState(NamedTuple):
    """How far an index is: `is_complete` once a pass over the whole workspace has been finished."""

    is_complete: bool
    done_files: int
    total_files: int

    def __str__(self) -> str:
        if self.is_complete:
            return "the index is complete"
        return f"the index is being built: {self.done_files:,} of {self.total_files:,} files so far"

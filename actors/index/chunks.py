"""What is searched: a file cut into tiles, so that every line of it can be found.

A function is one tile, a class is its header (down to its first member) and its members are tiles of their own,
text between symbols is a tile of what encloses it. Long tiles are cut at line ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from callboard.actors.index.comments import code_chars
from callboard.actors.index.records import Chunk, Symbol, digest
from callboard.actors.index.symbols import CONTAINERS, Lines, Outline
from callboard.actors.index.tokens import expand, terms_of
from callboard.protocol.masking import mask_bytes

#: A tile above this is cut; about 1,300 tokens, so that even a small budget takes a whole one.
MAX_TILE_BYTES = 6_000
#: Size of the pieces of a cut tile.
PIECE_BYTES = 4_000
#: A function this long or longer whose body holds further functions (closures, module patterns) is a container.
LONG_FUNCTION_BYTES = 6_000
#: Text between symbols with fewer letters than this is brackets and blank lines.
MIN_GAP_LETTERS = 8
#: A constant shorter than this stays in the text around it: a tile of one line says too little.
MIN_CONSTANT_BYTES = 300
#: How often a name counts compared with a word of the body.
NAME_WEIGHT = 3
#: Member names listed in the terms of a class header.
MAX_MEMBERS = 60
#: Callers whose names are added to what they call, where they cost nothing (docs/retrieval.md).
MAX_CALLERS = 5
#: Words that every document has: they flatten BM25's length norm, which tantivy fixes at b = 0.75, to about 0.5; else
#: two-line functions outrank the ones that do the work. 50 chosen on the dev half of the questions (MRR .44 -> .49).
PADDING = " \u00a4" * 50

_LETTERS = re.compile(rb"[A-Za-z0-9_\x80-\xff]")
_WITH_MEMBERS = CONTAINERS - {"file", "section"}


class Tile(NamedTuple):
    """A stretch of a file that belongs to one symbol; `is_header` for the part before the first member."""

    symbol: int
    start: int
    end: int
    is_header: bool


def chunks(content: bytes, parsed: Outline, relative_path: str, lines: Lines) -> tuple[Chunk, ...]:
    """All chunks of a file, in order of position. Values that look like keys are in no chunk's terms."""
    symbols = parsed.symbols
    tiles = sorted(_tiles(content, symbols), key=lambda tile: tile.start)
    related = _related_names(parsed)
    path_terms = terms_of(relative_path)
    shown = mask_bytes(content)
    result = []
    for tile in tiles:
        context = _context_terms(symbols, tile, related, path_terms)
        for start, end in _pieces(content, tile.start, tile.end):
            first, last = lines.of_span(start, end)
            text = shown[start:end].decode("utf-8", "replace")
            terms = f"{terms_of(text)} {context}"
            hashed = digest(content[start:end])
            result.append(Chunk(tile.symbol, start, end, first, last, hashed, code_chars(text), terms))
    return tuple(result)


def _tiles(content: bytes, symbols: tuple[Symbol, ...]) -> Iterator[Tile]:
    children: list[list[int]] = [[] for _ in symbols]
    for position, symbol in enumerate(symbols):
        if position and _has_own_tile(symbol):
            children[_tiled_parent(symbols, symbol.parent)].append(position)
    pending = [0]
    while pending:
        position = pending.pop()
        symbol = symbols[position]
        inner = children[position] if _is_open(symbol) else []
        cursor, is_header = symbol.start_byte, True
        for child in inner:
            pending.append(child)
            if symbols[child].start_byte > cursor:
                yield from _gap(content, position, cursor, symbols[child].start_byte, is_header)
            is_header = False
            cursor = max(cursor, symbols[child].end_byte)
        yield from _gap(content, position, cursor, symbol.end_byte, is_header)


def _is_open(symbol: Symbol) -> bool:
    return symbol.kind in CONTAINERS or symbol.end_byte - symbol.start_byte >= LONG_FUNCTION_BYTES


def _has_own_tile(symbol: Symbol) -> bool:
    return symbol.kind not in ("constant", "property") or symbol.end_byte - symbol.start_byte >= MIN_CONSTANT_BYTES


def _tiled_parent(symbols: tuple[Symbol, ...], position: int) -> int:
    while position > 0 and not _has_own_tile(symbols[position]):
        position = symbols[position].parent
    return position


def _gap(content: bytes, symbol: int, start: int, end: int, is_header: bool) -> Iterator[Tile]:
    """The text between two members without the blank lines around it, unless it says nothing."""
    text = content[start:end]
    if len(_LETTERS.findall(text)) < MIN_GAP_LETTERS and not (is_header and symbol):
        return
    start += len(text) - len(text.lstrip(b" \t\r\n"))
    end = start + len(text.strip(b" \t\r\n"))
    if end > start:
        yield Tile(symbol, start, end, is_header)


def _pieces(content: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
    if end - start <= MAX_TILE_BYTES:
        yield start, end
        return
    while end - start > PIECE_BYTES:
        limit = start + PIECE_BYTES
        cut = content.rfind(b"\n\n", start + PIECE_BYTES // 2, limit) + 1 or content.rfind(b"\n", start, limit)
        cut = cut + 1 if cut > start else limit
        yield start, cut
        start = cut
    if start < end:
        yield start, end


def _related_names(parsed: Outline) -> list[list[str]]:
    """For each symbol its members, and what calls it in this file: a document must not depend on other files."""
    symbols = parsed.symbols
    members: list[list[str]] = [[] for _ in symbols]
    callers: dict[str, list[str]] = {}
    for symbol in symbols[1:]:
        if symbols[symbol.parent].kind in _WITH_MEMBERS:
            members[symbol.parent].append(symbol.name)
    for edge in parsed.edges:
        caller = symbols[edge.source].name
        if edge.kind == "calls" and edge.source and caller != edge.target:
            callers.setdefault(edge.target, []).append(caller)
    called = (callers.get(symbol.name, []) for symbol in symbols)
    return [names[:MAX_MEMBERS] + calling[:MAX_CALLERS] for names, calling in zip(members, called, strict=True)]


def _context_terms(symbols: tuple[Symbol, ...], tile: Tile, related: list[list[str]], path_terms: str) -> str:
    """What the text itself does not say: its name again, the names around it, its path, its members."""
    symbol = symbols[tile.symbol]
    parts = [path_terms]
    if tile.symbol and tile.is_header:
        parts += [terms_of(symbol.name)] * (NAME_WEIGHT - 1)
    elif tile.symbol:
        parts.append(terms_of(symbol.name))
    parent = symbol.parent
    while parent > 0:
        parts.append(terms_of(symbols[parent].name))
        parent = symbols[parent].parent
    if tile.is_header:
        parts += map(expand, related[tile.symbol])
    parts.append(PADDING)
    return " ".join(parts)

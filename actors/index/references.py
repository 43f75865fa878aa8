"""Where a name is used: by the tokens of the syntax tree, so that neither a longer name nor a word in a comment counts.

Files are read as they are now. Where the grammar is known, definitions are told from calls, imports and other uses;
in other files each whole word counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final

import tree_sitter
from msgspec import Struct

from callboard.actors.index import languages
from callboard.actors.index.encodings import SourceText, has_wide_mark, shown_text, source_of
from callboard.actors.index.languages import Language
from callboard.actors.index.parsing import BINARY_SNIFF_BYTES, read_now
from callboard.actors.index.symbols import Lines, grammar_of, tree_of
from callboard.actors.secret_files import is_key_file

#: Of a line that is shown: a longer one is cut around the name.
MAX_LINE_BYTES: Final = 300


class NameUse(StrEnum):
    """What a place does with the name."""

    DEFINITION = "definition"
    CALL = "call"
    IMPORT = "import"
    EXTENDS = "extends"
    USE = "use"
    """Anything else: read, written, passed on, a type."""
    TEXT = "text"
    """A whole word in a file whose syntax is not known."""


class Reference(Struct, frozen=True):
    """A line with the name in it."""

    file: str
    """Absolute."""
    line: int
    usages: tuple[NameUse, ...]
    """Of the name's places in this line, from left to right, each once."""
    start_byte: int
    """Of what is shown of the line; in the file's own bytes, end exclusive."""
    end_byte: int
    text: str
    """Keys in it are masked."""


def references(
    files: Sequence[str], name: str, wanted: frozenset[NameUse], is_over: Callable[[], bool]
) -> Iterator[Reference | None]:
    """The places of a name in these files (absolute paths), in their order.

    None is said after each file that was looked at. `is_over` is asked before each; when it is True, the rest is left.
    """
    spelt = tuple(dict.fromkeys(unicodedata.normalize(form, name).encode() for form in ("NFC", "NFD")))
    word = re.compile(rb"(?<![\w\x80-\xff])(?:" + b"|".join(map(re.escape, spelt)) + rb")(?![\w\x80-\xff])")
    for path in files:
        if is_over():
            return
        content = read_now(path)
        if any(each in content for each in spelt) or has_wide_mark(content) or not name.isascii():
            yield from _in_file(path, content, word, wanted)
        yield None


def _in_file(path: str, content: bytes, word: re.Pattern[bytes], wanted: frozenset[NameUse]) -> Iterator[Reference]:
    if b"\0" in content[:BINARY_SNIFF_BYTES] and not has_wide_mark(content):
        return
    source = source_of(content)
    if is_key_file(source.utf8):
        return
    places = [found.span() for found in word.finditer(source.utf8)]
    if not places:
        return
    language = languages.language_of(path, source.utf8)
    usages = _usages(source.utf8, language, places) if language.is_code else [NameUse.TEXT] * len(places)
    lines = Lines(source.utf8)
    of_line: dict[int, list[tuple[NameUse, tuple[int, int]]]] = {}
    for usage, place in zip(usages, places, strict=True):
        if usage is not None and (not wanted or usage in wanted):
            of_line.setdefault(lines.of(place[0]), []).append((usage, place))
    for line, found in of_line.items():
        start, end = _shown_span(source.utf8, lines, line, found[0][1])
        yield _reference(path, source, line, tuple(dict.fromkeys(usage for usage, _ in found)), start, end)


def _reference(
    path: str, source: SourceText, line: int, usages: tuple[NameUse, ...], start: int, end: int
) -> Reference:
    places = source.places((start, end))
    text = shown_text(source.content, places[start], places[end], source.encoding)
    return Reference(path, line, usages, places[start], places[end], text)


def _shown_span(utf8: bytes, lines: Lines, line: int, place: tuple[int, int]) -> tuple[int, int]:
    """The line without its end; of a long one, what is around the place."""
    start = lines.starts[line - 1]
    end = lines.starts[line] if line < len(lines.starts) else len(utf8)
    end -= len(utf8[start:end]) - len(utf8[start:end].rstrip(b"\r\n"))
    if end - start <= MAX_LINE_BYTES:
        return start, end
    start = max(start, place[0] - MAX_LINE_BYTES // 2)
    end = max(place[1], min(end, start + MAX_LINE_BYTES))
    while start < place[0] and utf8[start] & 0xC0 == 0x80:  # not in the middle of a character
        start += 1
    while end > place[1] and end < len(utf8) and utf8[end] & 0xC0 == 0x80:
        end -= 1
    return start, end


def _usages(utf8: bytes, language: Language, places: Iterable[tuple[int, int]]) -> list[NameUse | None]:
    """What the syntax tree says of each place; None: it is in a text or a comment, or part of another token."""
    grammar = grammar_of(language)
    if grammar is None:
        return [NameUse.TEXT for _ in places]
    # A parser serves one thread at a time, and that of the grammar is the index's.
    root = tree_of(tree_sitter.Parser(grammar.parser.language), language, utf8).root_node
    return [_usage(root, grammar.query, place) for place in places]


#: Types of nodes that hold text, not code.
_TEXT: Final = re.compile(r"string|comment|char|heredoc|regex|text|content")
#: Types of nodes that import what is named in them.
_IMPORT: Final = re.compile(r"import|use_declaration|use_list|preproc_include|namespace_use|using_directive")
#: How many nodes above a name may be of the same import: `use a::{b::{c as d}};`
_IMPORT_DEPTH: Final = 8
#: What a capture of the symbol query says of the name that it captures.
_CAPTURES: Final = {
    "name": NameUse.DEFINITION,
    "import": NameUse.IMPORT,
    "super": NameUse.EXTENDS,
    "call": NameUse.CALL,
}


def _usage(root: tree_sitter.Node, query: tree_sitter.Query, place: tuple[int, int]) -> NameUse | None:
    node = root.named_descendant_for_byte_range(*place)
    if node is None or (node.start_byte, node.end_byte) != place or node.named_child_count or _TEXT.search(node.type):
        return None
    cursor = tree_sitter.QueryCursor(query)
    cursor.set_byte_range(*place)
    captured = cursor.captures(root)
    for capture, usage in _CAPTURES.items():
        if any((each.start_byte, each.end_byte) == place for each in captured.get(capture, ())):
            return usage
    above = node.parent
    for _ in range(_IMPORT_DEPTH):
        if above is None:
            break
        if _IMPORT.search(above.type):
            return NameUse.IMPORT
        above = above.parent
    return NameUse.USE

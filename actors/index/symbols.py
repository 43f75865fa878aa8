"""From bytes to symbols and edges: query captures, sorted, scopes built with a stack."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import tree_sitter

from callboard.actors.index import headings
from callboard.actors.index.grammars import NoGrammarError, grammar_for, say_without_symbols
from callboard.actors.index.languages import Language
from callboard.actors.index.records import Edge, ProseSection, Symbol, digest
from callboard.actors.index.tokens import word_set

#: What is a symbol, a call, an import and a base class: a tree-sitter query a language. README.md there names the
#: captures.
_QUERIES = Path(__file__).parent / "data" / "symbols"
#: Symbols that hold others: their own text is their header, their members are searched on their own.
CONTAINERS = frozenset({"file", "module", "class", "interface", "struct", "enum", "trait", "impl", "section"})
KINDS = CONTAINERS | {"function", "method", "property", "type", "constant", "macro"}

_REFERENCES = {"call": "calls", "super": "implements", "import": "imports"}
#: Parents that belong to the definition: decorators, `export`, `template<...>`, `type (...)`.
WRAPPERS = word_set(
    """decorated_definition export_statement ambient_declaration template_declaration lexical_declaration
    variable_declaration expression_statement type_declaration"""
)
#: Calls that say nothing about what calls what.
MAX_TARGET_CHARS = 120


class _Found(NamedTuple):
    start: int
    end: int
    kind: str
    name: str
    receiver: str


class Outline(NamedTuple):
    """Symbols of one file in order of position (0 is the file) and what they refer to."""

    symbols: tuple[Symbol, ...]
    edges: tuple[Edge, ...]


class Lines:
    """Byte offset to line number, counted from 1."""

    def __init__(self, content: bytes) -> None:
        self.starts = [0, *(match.end() for match in re.finditer(b"\n", content))]

    def of(self, offset: int) -> int:
        return bisect.bisect_right(self.starts, offset)

    def of_span(self, start: int, end: int) -> tuple[int, int]:
        return self.of(start), self.of(max(start, end - 1))


def outline(
    content: bytes, language: Language, module: str, lines: Lines, cells: Sequence[ProseSection] = ()
) -> Outline:
    """Symbols and edges of a file; broken syntax gives what the parser could make of it. `cells`: of a notebook."""
    found: list[_Found] = []
    references: list[tuple[str, int, str]] = []
    if language.is_code:
        found, references = _query(content, language)
    elif language.query:
        found = _as_found(_sections(content, language))
    else:
        found = _as_found(cells)
    symbols = _scopes(content, found, language, module, lines)
    return Outline(tuple(symbols), tuple(_edges(symbols, references)))


def _as_found(sections: Iterable[ProseSection]) -> list[_Found]:
    return [_Found(each.start, each.end, "section", each.title, "") for each in sections]


def _sections(content: bytes, language: Language) -> list[ProseSection]:
    """Of prose: each heading with what is below it."""
    grammar = grammar_of(language)
    if grammar is None:
        return []
    matches = tree_sitter.QueryCursor(grammar.query).matches(grammar.parser.parse(content).root_node)
    return headings.sections(content, (captures for _, captures in matches))


def _query(content: bytes, language: Language) -> tuple[list[_Found], list[tuple[str, int, str]]]:
    grammar = grammar_of(language)
    if grammar is None:
        return [], []
    matches = tree_sitter.QueryCursor(grammar.query).matches(tree_of(grammar.parser, language, content).root_node)
    found: dict[tuple[int, int, str], _Found] = {}
    references: list[tuple[str, int, str]] = []
    attached: dict[int, tree_sitter.Node] = {}
    definitions: list[tuple[str, tree_sitter.Node, str, str]] = []
    for _, captures in matches:
        for capture, nodes in captures.items():
            node = nodes[0]
            if capture in KINDS:
                name = _text(content, captures["name"][0]) if "name" in captures else capture
                receiver = _text(content, captures["receiver"][0]) if "receiver" in captures else ""
                if not receiver:
                    # C++ defines members outside their class: `void DFA::Reset()`.
                    receiver, _, name = name.rpartition("::")
                definitions.append((capture, node, name, receiver))
            elif capture == "attach":
                attached[node.end_point.row - (node.end_point.column == 0)] = node
            elif capture in _REFERENCES:
                references.extend((_REFERENCES[capture], each.start_byte, _text(content, each)) for each in nodes)
    for kind, node, name, receiver in definitions:
        start, end = _span(content, node, attached)
        key = (start, end, name)
        # `const f = () => 1` is both; what it does says more than how it is bound.
        if key not in found or found[key].kind == "constant":
            found[key] = _Found(start, end, kind, name, receiver)
    return list(found.values()), references


def _text(content: bytes, node: tree_sitter.Node) -> str:
    # NFC, since one name may be written with composed letters here and decomposed ones there.
    text = content[node.start_byte : node.end_byte].decode("utf-8", "replace")
    return " ".join(unicodedata.normalize("NFC", text).split())


def _span(content: bytes, node: tree_sitter.Node, attached: dict[int, tree_sitter.Node]) -> tuple[int, int]:
    """The definition with its wrapper and the comments and attributes directly above it."""
    parent = node.parent
    while parent is not None and parent.type in WRAPPERS and _is_sole(node, parent):
        node, parent = parent, parent.parent
    start, row = node.start_byte, node.start_point.row
    while (above := attached.get(row - 1)) is not None and above.start_byte < start and _starts_line(content, above):
        start, row = above.start_byte, above.start_point.row
    return start, node.end_byte


def _is_sole(node: tree_sitter.Node, parent: tree_sitter.Node) -> bool:
    """Whether the wrapper holds this definition only: `const a = f, b = g` holds two."""
    return parent.end_byte - node.end_byte <= 2


def _starts_line(content: bytes, node: tree_sitter.Node) -> bool:
    line_start = content.rfind(b"\n", 0, node.start_byte) + 1
    return not content[line_start : node.start_byte].strip()


def _scopes(content: bytes, found: list[_Found], language: Language, module: str, lines: Lines) -> list[Symbol]:
    """Canonical paths: walk the spans in order, outer before inner, with a stack of what is open."""
    name = module.rsplit(language.separator, 1)[-1]
    symbols = [
        Symbol(-1, "file", name, module, 0, 0, len(content), 1, lines.of(max(0, len(content) - 1)), digest(content))
    ]
    seen: Counter[str] = Counter({module: 1})
    open_symbols = [0]
    for each in sorted(found, key=lambda one: (one.start, -one.end)):
        while symbols[open_symbols[-1]].end_byte < each.end:
            open_symbols.pop()
        parent = open_symbols[-1]
        scope = symbols[parent]
        path = language.separator.join(part for part in (scope.canonical_path, each.receiver, each.name) if part)
        kind = "method" if each.kind == "function" and scope.kind in CONTAINERS - {"file", "module"} else each.kind
        first, last = lines.of_span(each.start, each.end)
        symbols.append(
            Symbol(
                parent, kind, each.name, path, seen[path], each.start, each.end, first, last,
                digest(content[each.start : each.end]),
            )
        )  # fmt: skip
        seen[path] += 1
        open_symbols.append(len(symbols) - 1)
    return symbols


def _edges(symbols: list[Symbol], references: list[tuple[str, int, str]]) -> list[Edge]:
    """Each reference belongs to the innermost symbol around it; repeated ones count once."""
    starts = [symbol.start_byte for symbol in symbols]
    edges: dict[Edge, None] = {}
    for kind, offset, target in references:
        position = bisect.bisect_right(starts, offset) - 1
        while position > 0 and symbols[position].end_byte <= offset:
            position = symbols[position].parent
        edges[Edge(position, kind, target.strip("\"'<>")[:MAX_TARGET_CHARS])] = None
    return list(edges)


class Grammar(NamedTuple):
    """The parser of a language and the query that finds its symbols."""

    parser: tree_sitter.Parser
    query: tree_sitter.Query


@lru_cache(maxsize=64)
def grammar_of(language: Language) -> Grammar | None:
    """The parser and the symbol query of a language; None where it has no grammar, which the log says once."""
    try:
        grammar = grammar_for(language.name)
        query = tree_sitter.Query(grammar, (_QUERIES / language.query).read_text(encoding="utf-8"))
    except NoGrammarError as error:
        say_without_symbols(language.name, str(error))
        return None
    except tree_sitter.QueryError as error:
        say_without_symbols(language.name, f"the queries do not fit the installed grammar: {error}")
        return None
    return Grammar(tree_sitter.Parser(grammar), query)


#: Grammars whose scanners ask the C library about characters above U+FFFF, of which it has no table: they read memory
#: that is not theirs, and mostly the process dies (tree-sitter/tree-sitter-bash issue 337).
_READ_TOO_FAR: Final = ("bash", "perl")
_FOUR_BYTES: Final = re.compile(rb"[\xf0-\xf7][\x80-\xbf]{3}")


def tree_of(parser: tree_sitter.Parser, language: Language, utf8: bytes) -> tree_sitter.Tree:
    """The syntax tree, whose places are those of `utf8`."""
    if language.name in _READ_TOO_FAR:
        utf8 = _FOUR_BYTES.sub(b"____", utf8)
    return parser.parse(utf8)

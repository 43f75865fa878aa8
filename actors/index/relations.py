"""What an item of code has to do with others: what it holds, calls, imports and extends, and what does so to it.

What holds what is known from the syntax tree. What a call or an import refers to is resolved by its name, as the index
knows no types: each relation says how sure it is.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from callboard.actors.index.code_items import CodeItem, plain_path
from callboard.actors.index.store import SqliteStore

#: Of what one name may refer to, so many are named.
MAX_TARGETS: Final = 3
#: References of one kind that are looked at; those of a name such as `get` are thousands.
MAX_REFERENCES: Final = 2_000


class Relation(StrEnum):
    """From the item that is asked about to another."""

    CONTAINS = "contains"
    CONTAINED_IN = "contained_in"
    CALLS = "calls"
    CALLED_BY = "called_by"
    IMPORTS = "imports"
    IMPORTED_BY = "imported_by"
    EXTENDS = "extends"
    EXTENDED_BY = "extended_by"


class Certainty(StrEnum):
    """How sure it is that two items have to do with each other."""

    EXACT = "exact"
    """By the syntax tree."""
    SCOPE = "scope"
    """By its name: the only one that is called so in the file, its package or what it imports. For a method, only
    within its own class; elsewhere the type of the object would decide, which the index does not know."""
    NAME = "name"
    """By its name alone: it may be another one that is called so."""
    OUTSIDE = "outside"
    """Nothing in the workspace is called so: a library's, or the language's own."""


_ORDER: Final = {certainty: place for place, certainty in enumerate(Certainty)}


class Related(Struct, frozen=True):
    """One item, or a name of something outside, that the item asked about has to do with."""

    name: str
    certainty: Certainty
    canonical_path: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0
    """Where it is defined; for callers, importers and heirs, too."""


class Relatives(Struct, frozen=True):
    """Those of one relation, the surest first, by file and place."""

    found: tuple[Related, ...]
    left_out: int = 0
    """How many more there are; a lower bound where the name is a very common one."""


#: Kinds of what can be called, and of what can be extended.
_CALLABLE: Final = frozenset({"function", "method", "class", "struct", "macro", "constant", "type", "enum"})
_EXTENSIBLE: Final = frozenset({"class", "interface", "trait", "struct", "type", "enum"})
#: Languages whose files see all of their folder without an import.
_FOLDER_IS_SCOPE: Final = frozenset({"go", "java", "kotlin", "scala", "swift", "hcl"})
_WORD: Final = re.compile(r"\w+")


def relatives(store: SqliteStore, items: Sequence[CodeItem], relation: Relation, limit: int) -> Relatives:
    """Of items that are one (a struct and its `impl` blocks, overloads): what has this relation to any of them."""
    merged: dict[tuple[str, str, str], Related] = {}
    for item in items:
        for found in _FINDERS[relation](_Asked(store, item)):
            key = found.canonical_path, found.file, found.name
            if key not in merged or _ORDER[found.certainty] < _ORDER[merged[key].certainty]:
                merged[key] = found
    ordered = sorted(merged.values(), key=lambda each: (_ORDER[each.certainty], each.file, each.line, each.name))
    if relation is Relation.CONTAINS:
        ordered = sorted(merged.values(), key=lambda each: (each.file, each.line))
    return Relatives(tuple(ordered[:limit]), max(0, len(ordered) - limit))


class _Asked:
    """An item, and what the index says of the file it is in."""

    def __init__(self, store: SqliteStore, item: CodeItem) -> None:
        self.store = store
        self.item = item
        self.module = module_of(store, item.file)

    def references(self, kind: str) -> list[str]:
        """The names that the item, or what it holds, refers to in this way."""
        rows = self.store.rows(
            "SELECT DISTINCT e.target FROM edges e JOIN symbols s ON s.id = e.source JOIN files f ON f.id = s.file"
            " WHERE f.path = ? AND s.start_byte >= ? AND s.end_byte <= ? AND e.kind = ? ORDER BY s.start_byte, e.rowid"
            " LIMIT ?",
            (self.item.file, self.item.start_byte, self.item.end_byte, kind, MAX_REFERENCES),
        )
        return [str(row[0]) for row in rows]

    def imports_of(self, path: str) -> list[list[str]]:
        """The names of what a file imports, wherever in it."""
        module = module_of(self.store, path)
        return [words for target in self.file_imports(path) for words in import_words(target, module, path)]

    def file_imports(self, path: str) -> list[str]:
        """What a file imports, as it is written."""
        rows = self.store.rows(
            "SELECT DISTINCT e.target FROM edges e JOIN files f ON f.id = e.file"
            " WHERE f.path = ? AND e.kind = 'imports' ORDER BY e.rowid",
            (path,),
        )
        return [str(row[0]) for row in rows]


def module_of(store: SqliteStore, path: str) -> str:
    """The canonical path of a file, with dots."""
    (row,) = store.rows(
        "SELECT s.canonical_path FROM symbols s JOIN files f ON f.id = s.file WHERE f.path = ? AND s.kind = 'file'",
        (path,),
    ) or [("",)]
    return plain_path(str(row[0]))


def _contains(asked: _Asked) -> Iterable[Related]:
    item = asked.item
    inner = asked.store.items(
        "f.path = ? AND s.parent = (SELECT p.id FROM symbols p WHERE p.file = f.id AND p.canonical_path = ?"
        " AND p.ordinal = ? AND p.start_byte = ?)",
        (item.file, item.canonical_path, item.ordinal, item.start_byte),
        MAX_REFERENCES,
    )
    return [_related(each, Certainty.EXACT) for each in inner]


def _contained_in(asked: _Asked) -> Iterable[Related]:
    item = asked.item
    if item.kind == "file":
        return []
    outer = asked.store.items(
        "f.path = ? AND s.start_byte <= ? AND s.end_byte >= ? AND NOT (s.canonical_path = ? AND s.ordinal = ?)",
        (item.file, item.start_byte, item.end_byte, item.canonical_path, item.ordinal),
        MAX_REFERENCES,
    )
    return [_related(each, Certainty.EXACT) for each in outer]


def _outgoing(kind: str, kinds: frozenset[str]) -> Callable[[_Asked], Iterable[Related]]:
    def found(asked: _Asked) -> Iterable[Related]:
        imports = asked.imports_of(asked.item.file)
        for name in asked.references(kind):
            yield from _resolved(asked, name, kinds, imports)

    return found


def _resolved(asked: _Asked, name: str, kinds: frozenset[str], imports: Sequence[Sequence[str]]) -> Iterable[Related]:
    """What a name in the item's file may refer to: the nearest scope that defines it decides."""
    last = name.rpartition(".")[2].rpartition("::")[2]
    every = asked.store.items(
        "s.name = ? AND s.kind IN (SELECT value FROM json_each(?))", (last, json.dumps(sorted(kinds))), MAX_REFERENCES
    )
    if not every:
        return [Related(name, Certainty.OUTSIDE)]
    folder = os.path.dirname(asked.item.file)
    scopes: tuple[Callable[[CodeItem], bool], ...] = (
        lambda each: each.file == asked.item.file,
        lambda each: each.language in _FOLDER_IS_SCOPE and os.path.dirname(each.file) == folder,
        lambda each: any(_is_imported(words, module_of(asked.store, each.file), last) for words in imports),
    )
    for is_in in scopes if len(every) <= 100 else scopes[:2]:
        near = [each for each in every if is_in(each)]
        if len({each.canonical_path for each in near}) == 1 and _is_sure(near[0], every, asked.item):
            return [_related(each, Certainty.SCOPE) for each in near[:MAX_TARGETS]]
        if near:
            every = near + [each for each in every if each not in near]
            break
    return [_related(each, Certainty.NAME) for each in every[:MAX_TARGETS]]


def _is_sure(target: CodeItem, same_name: Iterable[CodeItem], source: CodeItem) -> bool:
    """Whether a name in `source` can only mean this one of those in scope. `.name` may be a method of any object."""
    if target.kind == "method":
        scope = _outer(target)
        return _outer(source) == scope or plain_path(source.canonical_path) == scope
    return all(each.kind != "method" for each in same_name)


def _outer(item: CodeItem) -> str:
    return plain_path(item.canonical_path).rpartition(".")[0]


def _incoming(kind: str) -> Callable[[_Asked], Iterable[Related]]:
    def found(asked: _Asked) -> Iterable[Related]:
        item = asked.item
        sources = asked.store.items(
            "s.id IN (SELECT source FROM edges WHERE target = ? AND kind = ?)", (item.name, kind), MAX_REFERENCES
        )
        own = asked.store.items(
            "f.path = ? AND s.name = ? AND s.kind NOT IN ('file', 'impl')", (item.file, item.name), MAX_REFERENCES
        )
        is_sole = len({each.canonical_path for each in own}) <= 1
        methods = asked.store.items("s.name = ? AND s.kind = 'method'", (item.name,), 1)
        sees: dict[str, bool] = {}
        for source in sources:
            if source.file not in sees:
                sees[source.file] = is_sole and _sees(asked, source)
            is_sure = sees[source.file] and _is_sure(item, methods, source)
            yield _related(source, Certainty.SCOPE if is_sure else Certainty.NAME)

    return found


def _sees(asked: _Asked, source: CodeItem) -> bool:
    """Whether a name in the source's file is the item's by what it defines, shares a folder with or imports."""
    item = asked.item
    if source.file == item.file:
        return True
    same_name = asked.store.items(
        "f.path = ? AND s.name = ? AND s.kind NOT IN ('file', 'impl')", (source.file, item.name), 1
    )
    if same_name:
        return False
    if source.language in _FOLDER_IS_SCOPE and os.path.dirname(source.file) == os.path.dirname(item.file):
        return True
    return any(_is_imported(words, asked.module, item.name) for words in asked.imports_of(source.file))


def _imports(asked: _Asked) -> Iterable[Related]:
    """Of the item; where it imports nothing itself, of its file."""
    path = asked.item.file
    for target in asked.references("imports") or asked.file_imports(path):
        near: list[CodeItem] = []
        for words in import_words(target, asked.module, path):
            files = asked.store.items(
                "s.kind = 'file' AND s.name IN (SELECT value FROM json_each(?))", (json.dumps(words),), MAX_REFERENCES
            )
            near += [
                each
                for each in files
                if each not in near and each.file != path
                and _is_imported(words, plain_path(each.canonical_path), words[-1])
            ]  # fmt: skip
        if not near:
            yield Related(target, Certainty.OUTSIDE)
        for each in near[:MAX_TARGETS]:
            yield _related(each, Certainty.SCOPE if len(near) == 1 else Certainty.NAME)


def _imported_by(asked: _Asked) -> Iterable[Related]:
    item = asked.item
    names = {*asked.module.split(".")[-2:], item.name} - {""}
    sources = asked.store.items(
        "s.id IN (SELECT source FROM edges WHERE kind = 'imports' AND ("
        + " OR ".join("instr(target, ?)" for _ in names)
        + ")) AND f.path != ?",
        (*sorted(names), item.file),
        MAX_REFERENCES,
    )
    imports: dict[str, bool] = {}
    for source in sources:
        if source.file not in imports:
            imports[source.file] = any(
                _is_imported(words, asked.module, item.name) for words in asked.imports_of(source.file)
            )
        if imports[source.file]:
            yield _related(source, Certainty.SCOPE)


def _is_imported(words: Sequence[str], module: str, name: str) -> bool:
    """Whether an import is of this module or of an item of this name in it."""
    return _names_module(words, module) or (len(words) > 1 and words[-1] == name and _names_module(words[:-1], module))


def _names_module(words: Sequence[str], module: str) -> bool:
    """Whether the words of an import name this module, or the folder that it is in, as far as both go."""
    names = module.split(".")
    for end in (names, names[:-1]):
        pairs = list(zip(reversed(words), reversed(end), strict=False))
        if pairs and all(left == right for left, right in pairs):
            return True
    return False


def import_words(target: str, importer: str, path: str) -> list[list[str]]:
    """The names that an import of the module `importer` (the file `path`) may mean, one after the other.

    `..util.retry` and `../util/retry.js` are relative to the module, `crate::net::{Conn, pool::Pool}` is a path each.
    """
    head, brace, inner = target.partition("{")
    if brace:
        tails = [each.strip(" }") for each in inner.split(",")]
        return [words for tail in tails for words in import_words(f"{head}{tail}", importer, path)]
    text = _SUFFIX.sub("", target)
    words = [word for word in _WORD.findall(text.partition(" as ")[0]) if word not in _ANCHORS]
    climbed = _climbed(text)
    if climbed is None:
        return [words]
    names = importer.split(".")
    is_folder = os.path.basename(path).partition(".")[0] in _FOLDER_STEMS
    base = names[: len(names) - climbed - (not is_folder)] if climbed + (not is_folder) else names
    return [[*base, *words]]


def _climbed(target: str) -> int | None:
    """How many folders a relative import goes up; None: it is not relative."""
    if "/" in target:
        return target.count("../") if target.startswith("./") or target.startswith("../") else None
    dots = len(target) - len(target.lstrip("."))
    return dots - 1 if dots else None


#: Words in an import that name no module.
_ANCHORS: Final = frozenset({"crate", "self", "super", "src", "lib"})
#: Files whose module is their folder.
_FOLDER_STEMS: Final = frozenset({"__init__", "__main__", "index", "mod"})
#: Of a file that is imported by its name.
_SUFFIX: Final = re.compile(r"\.(?:h|hh|hpp|hxx|[cm]?[jt]sx?|py|rb|proto|dart|sol|zig)$")

_FINDERS: Final[Mapping[Relation, Callable[[_Asked], Iterable[Related]]]] = {
    Relation.CONTAINS: _contains,
    Relation.CONTAINED_IN: _contained_in,
    Relation.CALLS: _outgoing("calls", _CALLABLE),
    Relation.CALLED_BY: _incoming("calls"),
    Relation.IMPORTS: _imports,
    Relation.IMPORTED_BY: _imported_by,
    Relation.EXTENDS: _outgoing("implements", _EXTENSIBLE),
    Relation.EXTENDED_BY: _incoming("implements"),
}


def _related(item: CodeItem, certainty: Certainty) -> Related:
    return Related(item.name, certainty, item.canonical_path, item.kind, item.file, item.start_line)

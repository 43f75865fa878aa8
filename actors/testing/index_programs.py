"""A small program, whose items, calls, imports and prose are known as it is written, and what the index says of it.

Outlines, look-ups, relations, the order of what is found, and contexts are compared with what was written; byte for
byte, in several encodings and line ends.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct, field

from callboard.actors.index.assembly import assemble
from callboard.actors.index.code_index import CodeIndex, Hit
from callboard.actors.index.code_items import CodeItem
from callboard.actors.index.records import digest
from callboard.actors.index.relations import Certainty, Relation
from callboard.actors.index.searching import Filters
from callboard.actors.index.store import SymbolRow
from callboard.actors.index.token_count import count_tokens
from callboard.actors.testing import index_orders
from callboard.actors.testing.index_files import new_folder
from callboard.protocol.code_fences import CodeFence, ContextFit, ContextItem, parse_fences, render_fence
from callboard.protocol.errors import UsageError

SYLLABLES: Final = ["ba", "de", "ki", "lo", "mu", "pra", "ste", "gri", "flo", "zu", "ve", "no"]
#: Path, and the module that it is.
MODULES: Final = {
    "core.py": "core", "pkg/util.py": "pkg.util", "pkg/net.py": "pkg.net", "pkg/__init__.py": "pkg",
    "src/app.py": "app", "tests/test_core.py": "tests.test_core",
}  # fmt: skip
#: Encoding, what stands before all, and how a line ends.
WRITTEN: Final = (
    ("utf-8", b"", "\n"), ("utf-8", b"", "\n"), ("utf-8", b"\xef\xbb\xbf", "\n"), ("utf-8", b"", "\r\n"),
    ("latin-1", b"", "\n"), ("utf-16-le", b"\xff\xfe", "\n"),
)  # fmt: skip
#: A tile is no longer.
MOST_TILE: Final = 6_000
#: Of the text of a file before its first item: fewer letters are not searched.
LETTERS: Final = 8


class Item(Struct):
    """A definition, as it was written."""

    file: str
    path: str
    """Canonical."""
    name: str
    kind: str
    outer: Item | None
    word: str = ""
    """What its own text alone holds."""
    more: list[tuple[str, int]] = field(default_factory=list)
    """Words further down in it, between what it holds, each with its line."""
    calls: list[str] = field(default_factory=list)
    """In its own text."""
    supers: tuple[str, ...] = ()
    lines: tuple[int, int] = (0, 0)
    span: tuple[int, int] = (0, 0)

    def all_calls(self, items: Iterable[Item]) -> set[str]:
        """Its own, and those of what it holds."""
        return {call for each in items if each is self or each.is_within(self) for call in each.calls}

    def is_within(self, other: Item) -> bool:
        """Whether the other holds it."""
        return self.outer is not None and (self.outer is other or self.outer.is_within(other))


class File(Struct):
    """One, and what is in it."""

    name: str
    module: str
    content: bytes
    encoding: str
    items: list[Item]
    imports: list[str]
    """Names of modules."""

    def shown(self, start: int, end: int) -> str:
        """A span as text."""
        return self.content[start:end].decode(self.encoding, "replace")


class Writer:
    """Writes one module."""

    def __init__(self, program: Program, name: str) -> None:
        self.program, self.rng, self.name = program, program.rng, name
        self.module = MODULES[name]
        self.encoding, self.mark, self.end = self.rng.choice(WRITTEN)
        self.items: list[Item] = []
        self.lines: list[str] = []

    def write(self) -> File:
        """A docstring, imports, and items."""
        rng, program = self.rng, self.program
        whole = Item(self.name, self.module, self.module.rpartition(".")[2], "file", None, program.word())
        self.items.append(whole)
        if self.encoding == "latin-1":
            self.lines.append("# -*- coding: latin-1 -*-")
        self.lines += [f'"""Begins with {whole.word}."""', ""]
        others = [each for each in program.files if each.name.endswith(".py")]
        imports = [each.module for each in others if rng.random() < 0.5]
        self.lines += [f"from {module} import something" for module in imports]
        if rng.random() < 0.5:
            self.lines.append("import outside_lib")
            imports.append("outside_lib")
        self.lines.append("")
        for _ in range(rng.randint(1, 4)):
            rng.choice((self.function, self.function, self.a_class, self.constant))("", whole)
            if rng.random() < 0.3:
                self.words_below("", whole)
        whole.lines = (1, len(self.lines))
        text = "".join(f"{line}{self.end}" for line in self.lines)
        content = self.mark + text.encode(self.encoding)
        starts = [len(self.mark)]
        for line in self.lines:
            starts.append(starts[-1] + len(f"{line}{self.end}".encode(self.encoding)))
        for item in self.items[1:]:
            first, last = item.lines
            indent = self.lines[first - 1][: len(self.lines[first - 1]) - len(self.lines[first - 1].lstrip())]
            ends = starts[last - 1] + len(self.lines[last - 1].encode(self.encoding))
            item.span = starts[first - 1] + len(indent.encode(self.encoding)), ends
        whole.span = len(self.mark), len(content)
        if self.encoding == "latin-1":  # which a reader takes for what is mostly meant by it
            self.encoding = "utf-8" if content.isascii() else "cp1252"
        return File(self.name, self.module, content, self.encoding, self.items, imports)

    def _item(self, outer: Item, name: str, kind: str) -> Item:
        kind = "method" if kind == "function" and outer.kind == "class" else kind
        item = Item(self.name, f"{outer.path}.{name}", name, kind, outer, self.program.word())
        self.items.append(item)
        return item

    def _above(self, indent: str) -> int:
        """Comments and decorators, which belong to what follows; the line that it begins with."""
        first = len(self.lines) + 1
        if self.rng.random() < 0.2:
            self.lines += [f"{indent}# A remark on what", f"{indent}# comes below it."]
        if self.rng.random() < 0.2:
            self.lines.append(f"{indent}@decorated")
        return first

    def function(self, indent: str, outer: Item) -> None:
        """One, which calls some others."""
        rng, lines = self.rng, self.lines
        first = self._above(indent)
        item = self._item(outer, self.program.name(), "function")
        if lines and len(lines) >= first and lines[-1].endswith("@decorated"):
            item.calls.append("decorated")
        given = "self, value" if outer.kind == "class" else "value"
        mark = "été " if rng.random() < 0.3 else ""
        lines += [f"{indent}def {item.name}({given}):", f'{indent}    """Says {mark}{item.word} of the total."""']
        for _ in range(rng.randint(0, 2)):
            call = rng.choice([*self.program.names, item.name, "unknown_name"])
            item.calls.append(call)
            lines.append(
                f"{indent}    value = {rng.choice(('', 'self.') if outer.kind == 'class' else ('',))}{call}(value)"
            )
        if rng.random() < 0.1:
            lines += [f"{indent}    value = value + {number}  # step {number}" for number in range(250)]
            self.words_below(f"{indent}    ", item)
        if rng.random() < 0.15 and outer.kind == "file":
            self.function(f"{indent}    ", item)
            lines.pop()
            lines.pop()
        lines.append(f"{indent}    return value")
        item.lines = (first, len(lines))
        lines += ["", ""]

    def words_below(self, indent: str, outer: Item) -> None:
        """A line that is no item."""
        word = self.program.word()
        self.lines.append(f"{indent}setting['{word}'] = value")
        outer.more.append((word, len(self.lines)))

    def a_class(self, indent: str, outer: Item) -> None:
        """One with methods, perhaps with one in it."""
        rng = self.rng
        first = self._above(indent)
        item = self._item(outer, self.program.name(str.capitalize), "class")
        if len(self.lines) >= first and self.lines[-1].endswith("@decorated"):
            item.calls.append("decorated")
        bases = [each.name for file in self.program.files for each in file.items if each.kind == "class"]
        item.supers = tuple(rng.sample(bases, min(len(bases), rng.choice((0, 1, 1)))))
        self.lines.append(
            f"{indent}class {item.name}({', '.join(item.supers)}):" if item.supers else f"{indent}class {item.name}:"
        )
        self.lines += [f'{indent}    """Holds {item.word} of the total."""', ""]
        for _ in range(rng.randint(1, 3)):
            self.function(f"{indent}    ", item)
            if rng.random() < 0.3:
                self.words_below(f"{indent}    ", item)
        if rng.random() < 0.2 and outer.kind == "file":
            self.a_class(f"{indent}    ", item)
        while not self.lines[-1]:
            self.lines.pop()
        item.lines = (first, len(self.lines))
        self.lines += ["", ""]

    def constant(self, indent: str, outer: Item) -> None:
        """Of one line."""
        item = self._item(outer, self.program.name(str.upper), "constant")
        item.word = ""
        self.lines += [f"{item.name} = 17", ""]
        item.lines = (len(self.lines) - 1, len(self.lines) - 1)


class Program:
    """Files with code, tests and a guide, and an index of them."""

    def __init__(self, seed: int, root: Path) -> None:
        self.rng = random.Random(f"index program {seed}")
        self.root = root
        self.root.mkdir()
        self.names: list[str] = []
        self.used: set[str] = set()
        self.files: list[File] = []
        self.problems: list[str] = []
        chosen = self.rng.sample(list(MODULES), self.rng.randint(2, 4))
        for name in chosen:
            self.files.append(Writer(self, name).write())
        for file in self.files:
            place = self.root / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
        self.items = [item for file in self.files for item in file.items]
        self.order = sorted(self.items, key=lambda each: (str(self.root / each.file), each.span[0], each is not each))

    def word(self) -> str:
        """One that is nowhere yet, and like no other."""
        while True:
            found = "".join(self.rng.choice(SYLLABLES) for _ in range(4)) + "x"
            if found not in self.used:
                self.used.add(found)
                return found

    def name(self, shape: Callable[[str], str] = str) -> str:
        """Of an item."""
        self.names.append(shape(self.word()))
        return self.names[-1]

    def wrong(self, what: str) -> None:
        """Something is not as promised."""
        if len(self.problems) < 3:
            self.problems.append(what.replace(f"{self.root}/", ""))

    def file(self, item: Item) -> File:
        """That it is in."""
        return next(each for each in self.files if each.name == item.file)

    def place(self, item: Item) -> tuple[object, ...]:
        """All that is known of it."""
        return str(self.root / item.file), item.path, item.name, item.kind, *item.span, *item.lines

    # -- what is compared

    def compare(self, index: CodeIndex) -> None:
        """All of it, of some items."""
        rng = self.rng
        for file in self.files:
            self._outlines(index, file)
        for item in rng.sample(self.items, min(len(self.items), 4)):
            for check in (self._names, self._symbols, self._relations, self._found):
                check(index, item)
        for _ in range(3):
            self._context(index, rng.choice([item for item in self.items if item.word]))

    def _same(self, what: str, found: Iterable[CodeItem], due: Iterable[Item]) -> None:
        shown = [
            (i.file, i.canonical_path, i.name, i.kind, i.start_byte, i.end_byte, i.start_line, i.end_line)
            for i in found
        ]
        wanted = [self.place(each) for each in due]
        if shown != wanted:
            odd = [each for each in [*shown, *wanted] if each not in shown or each not in wanted]  # none: their order
            self.wrong(f"{what} gives {len(shown)} items, due are {len(wanted)}: {odd[:3]}")

    def _outlines(self, index: CodeIndex, file: File) -> None:
        place = str(self.root / file.name)
        inner = sorted(file.items[1:], key=lambda each: each.span[0])
        self._same(f"the outline of {file.name}", index.items_in(place, 100), inner)
        self._same(f"the first two items of {file.name}", index.items_in(place, 2), inner[:2])
        tops = [each for each in inner if each.outer is file.items[0]]
        self._same(f"the top of {file.name}", index.top_items(place), tops)
        for item in index.items_in(place, 100):
            if (item.hash, item.language, item.encoding) != (digest(file.content).hex(), "python", file.encoding):
                self.wrong(f"the item {item} has not the hash and encoding of {file.name}")

    def _names(self, index: CodeIndex, item: Item) -> None:
        same = [item]
        kinds = {"function": "function", "method": "method", "class": "class", "constant": "const", "file": "module"}
        other = {"function": "class", "method": "class", "class": "method", "constant": "class", "file": "class"}
        name, kind = item.path, kinds[item.kind]
        if item.kind == "file":
            same = [each for each in self.items if each.kind == "file" and each.path == item.path]
            self._same(f"{name} as a {kind}", index.lookup(name, kind), same)
            if index.lookup(item.path):
                self.wrong(f"the module {item.path} is looked up without its kind")
            return
        ways = [(item.name, "", ""), (name, "", ""), (f" {name}() ", kind, ""), (name.replace(".", "::"), kind, "")]
        assert item.outer is not None
        ways += [(f"{item.outer.name}.{item.name}", "", ""), (f"self.{item.name}", kind, item.file)]
        ways += [(item.name, kind, str(self.root / item.file)), (item.name, "", f"./{item.file}")]
        ways += [(item.name, "", item.file.rpartition("/")[2])]
        for way in self.rng.sample(ways, 4):
            self._same(f"the look-up of {way}", index.lookup(*way), same)
        files = [each.name for each in self.files if each.name != item.file]
        for way in ((item.name, other[item.kind], ""), (item.name, "", files[0]), (f"no.{item.name}", "", "")):
            self._same(f"the look-up of {way}", index.lookup(*way), [])
        close = index.close_items(item.name, other[item.kind])
        if [each.name for each in close] != [item.name]:
            self.wrong(f"{close} may have been meant by a {other[item.kind]} {item.name}")
        misspelt = f"{item.name[:-2]}{item.name[-1]}"
        if item.name not in [each.name for each in index.close_items(misspelt)]:
            self.wrong(f"{item.name} is not what may have been meant by {misspelt}")

    def _symbols(self, index: CodeIndex, item: Item) -> None:
        if item.kind == "file":
            return
        place, content = str(self.root / item.file), self.file(item).content
        asked: tuple[dict[str, Any], ...] = (
            {"name": item.name}, {"canonical_path": item.path}, {"name": item.name, "path": place, "kind": item.kind},
        )  # fmt: skip
        found: list[SymbolRow] = []
        for each in asked:
            found = index.symbols(**each)
            if [
                (s.path, s.canonical_path, s.name, s.kind, s.start_byte, s.end_byte, s.start_line, s.end_line)
                for s in found
            ] != [self.place(item)]:
                self.wrong(f"the symbols of {each} are {found}")
                return
        if found[0].digest != digest(content[slice(*item.span)]):
            self.wrong(f"the hash of {item.path} is not that of its bytes")
        if index.symbols(name=item.name, kind="macro") or index.symbols(name=item.name, path="/nowhere"):
            self.wrong(f"a macro {item.name}, or one in another file, is found")
        calls = {edge.target for edge in index.edges(found[0], "calls")}
        if calls != set(item.calls):
            self.wrong(f"{item.path} is said to call {sorted(calls)}, and calls {sorted(set(item.calls))}")
        held = [edge.target for edge in index.edges(found[0], "contains")]
        if held != [each.name for each in self.items if each.outer is item]:
            self.wrong(f"{item.path} is said to hold {held}")
        callers = {(edge.source, edge.path) for edge in index.edges(found[0], "calls", incoming=True)}
        due = {(each.path, str(self.root / each.file)) for each in self.items if item.name in each.calls}
        if callers != due:
            self.wrong(f"{item.path} is said to be called by {sorted(callers)}, and is by {sorted(due)}")

    def _relations(self, index: CodeIndex, item: Item) -> None:
        kinds = {"file": "module"}
        found = index.lookup(item.path, kinds.get(item.kind, ""), str(self.root / item.file))
        if not found:
            return  # told of by another check
        by_name = {each.name: each for each in self.items if each.kind not in ("file", "constant")}
        due: dict[Relation, set[tuple[str, str]]] = {
            Relation.CONTAINS: {(each.path, "exact") for each in self.items if each.outer is item},
            Relation.CONTAINED_IN: {(each.path, "exact") for each in self.items if item.is_within(each)},
            Relation.CALLS: {
                (by_name[call].path, self._certainty(item, by_name[call])) if call in by_name else (call, "outside")
                for call in item.all_calls(self.items)
                if call in by_name or call not in self.names
            },
            Relation.EXTENDS: {
                (by_name[each].path, self._certainty(item, by_name[each]))
                for holder in self.items
                if holder is item or holder.is_within(item)
                for each in holder.supers
            },
        }
        if item.kind in ("function", "method", "class"):
            due[Relation.CALLED_BY] = {
                (each.path, self._certainty(each, item)) for each in self.items if item.name in each.calls
            }
            due[Relation.EXTENDED_BY] = {
                (each.path, self._certainty(each, item)) for each in self.items if item.name in each.supers
            }
        for relation, wanted in due.items():
            given = index.relatives(found, relation)
            told = {(each.canonical_path or each.name, str(each.certainty)) for each in given.found}
            if relation is Relation.CALLS:  # a constant may be called, and is found by its name
                constants = {each.path for each in self.items if each.kind == "constant"}
                told = {each for each in told if each[0] not in constants}
            if told != wanted or given.left_out:
                self.wrong(f"{item.path} {relation} {sorted(told)}, due are {sorted(wanted)}")
            order = [list(Certainty).index(each.certainty) for each in given.found]
            if relation is not Relation.CONTAINS and order != sorted(order):
                self.wrong(f"{item.path} {relation}: the surest are not the first")
            few = index.relatives(found, relation, 1)
            if few.found != given.found[:1] or few.left_out != max(0, len(given.found) - 1):
                self.wrong(f"{item.path} {relation}: of {len(given.found)} one is asked for, and {few} is given")
        if item.kind == "file":
            file = self.file(item)
            self._imports(index, found, file)

    def _imports(self, index: CodeIndex, found: Sequence[CodeItem], file: File) -> None:
        modules = {each.module for each in self.files}
        told = {
            (each.canonical_path or each.name, each.certainty)
            for each in index.relatives(found, Relation.IMPORTS).found
        }
        outside = {each for each in file.imports if each not in modules}
        if not {each for each in file.imports if each in modules} <= {name for name, _ in told}:
            self.wrong(f"{file.name} imports {sorted(told)}, and {file.imports} are written")
        if {name for name, certainty in told if certainty is Certainty.OUTSIDE} != outside:
            self.wrong(f"{file.name} imports from outside {sorted(told)}, and {sorted(outside)} are written")
        importers = {each.canonical_path for each in index.relatives(found, Relation.IMPORTED_BY).found}
        if not {each.module for each in self.files if file.module in each.imports} <= importers:
            self.wrong(f"{file.module} is imported by {sorted(importers)} alone")

    def _certainty(self, source: Item, target: Item) -> str:
        """What an index without types may say of it."""
        if target.kind == "method":
            is_sure = source.outer is target.outer or source is target.outer
            is_sure = is_sure and (source.file == target.file)
            return "scope" if is_sure else "name"
        if source.file == target.file:
            return "scope"
        return "scope" if self._sees(self.file(source), self.file(target), target) else "name"

    @staticmethod
    def _sees(source: File, target: File, item: Item) -> bool:
        """By the imports of a file: the module itself, or, as far as their names go, the folder that it is in."""

        def names(words: Sequence[str], module: str) -> bool:
            parts = module.split(".")
            return any(
                end and all(a == b for a, b in zip(reversed(words), reversed(end), strict=False))
                for end in (parts, parts[:-1])
            )

        return any(names(each.split("."), target.module) for each in source.imports)

    # -- what is found

    def _found(self, index: CodeIndex, item: Item) -> None:
        for word, line in item.more:
            found = index.search(word, 5)
            if [(hit.path, hit.canonical_path) for hit in found] != [self.place(self._owner(item))[:2]]:
                self.wrong(f"{word} in line {line} of {item.path} is found in {[hit.canonical_path for hit in found]}")
            elif not found[0].start_line <= line <= found[0].end_line:
                self.wrong(f"{word} is found in lines {found[0].start_line}-{found[0].end_line}, not in line {line}")
        if not item.word:
            return
        hits = index.search(item.word, 5)
        if len(hits) != 1:
            self.wrong(f"{item.word} of {item.path} is found {len(hits)} times")
            return
        (hit,) = hits
        file, owner = self.file(item), self._owner(item)
        if (hit.path, hit.canonical_path, hit.name, hit.kind) != self.place(owner)[:4]:
            self.wrong(f"{item.word} of {owner.path} is found in {hit.canonical_path} of {hit.path}")
        self._exact(hit, file)
        first, last = owner.span
        is_long = last - first > MOST_TILE
        if owner.kind in ("function", "method"):
            if not is_long and (hit.start_byte, hit.end_byte) != owner.span:
                self.wrong(f"{owner.path} is found at {hit.start_byte}:{hit.end_byte}, and is at {owner.span}")
            if hit.whole != (first, last, digest(file.content[first:last])):
                self.wrong(f"{owner.path} is said to be whole at {hit.whole}, and is at {owner.span}")
        if hit.end_byte - hit.start_byte > 2 * MOST_TILE:
            self.wrong(f"a place of {hit.end_byte - hit.start_byte} bytes is found for {item.word}")
        best = index.search(owner.name, 1)[0]
        is_named = owner.name in file.shown(best.start_byte, best.end_byte) or best.path != hit.path
        if owner.kind in ("function", "method") and not is_long and not is_named:
            self.wrong(f"{owner.name} is found where it is not")

    def _owner(self, item: Item) -> Item:
        """What it is a part of, where it is searched: short functions are not divided."""
        outer = item.outer
        if outer is not None and outer.kind in ("function", "method") and outer.span[1] - outer.span[0] < MOST_TILE:
            return self._owner(outer)
        return item

    def _exact(self, hit: Hit, file: File) -> None:
        content = file.content[hit.start_byte : hit.end_byte]
        first = file.shown(0, hit.start_byte).count("\n") + 1
        last = first + file.shown(hit.start_byte, hit.end_byte)[:-1].count("\n")
        if (hit.digest, hit.start_line, hit.end_line) != (digest(content), first, last):
            self.wrong(f"{hit.path}:{hit.start_line}-{hit.end_line} is said of bytes that are at {first}-{last}")

    def _context(self, index: CodeIndex, item: Item) -> None:
        rng = self.rng
        budget = rng.choice((60, 150, 400, 1_000, 4_000))
        filters = rng.choice((Filters(), Filters(), Filters(paths=("pkg",)), Filters(kinds=("function", "method"))))
        queries = rng.choice(
            ((item.word,), (f"{item.word} of the total",), (item.word, "total"), ("total",), ("nixnixnix",))
        )
        try:
            answer = assemble(index, queries, budget, "remark", filters)
        except UsageError as error:
            if budget > 100:
                self.wrong(f"a budget of {budget} is refused: {error}")
            return
        (tokens,) = count_tokens([orjson.dumps(answer.as_json()).decode()])
        if tokens > budget:
            self.wrong(f"a context of {tokens} tokens is given for a budget of {budget}")
        if "remark" not in answer.note and answer.context:
            self.wrong("what is to be said with an answer is left out")
        spans: list[tuple[str, int, int]] = []
        for place in answer.context:
            self._compare_place(place, spans, queries, filters)
        self._best_first(index, item, queries, filters, answer, spans, budget)

    def _compare_place(
        self, place: ContextItem, spans: list[tuple[str, int, int]], queries: tuple[str, ...], filters: Filters
    ) -> None:
        """What is shown of one stretch of a file, besides `spans`."""
        (fence,) = parse_fences(place.snippet)
        if not isinstance(fence, CodeFence):
            self.wrong(f"a place is shown as {fence}")
            return
        file = next(each for each in self.files if str(self.root / each.name) == fence.path)
        text = file.shown(fence.start_byte, fence.end_byte)
        before = file.content[: fence.start_byte].decode(file.encoding, "replace").count("\n") + 1
        lines = f"{before}-{before + text.rstrip().count(chr(10))}"
        if place.snippet != render_fence(fence.path, fence.start_byte, fence.end_byte, text.removeprefix("\ufeff")):
            self.wrong(f"{place.snippet!r} is not what {file.name} holds there")
        if (place.file, place.lines) != (fence.path, lines):
            self.wrong(f"{place.file}:{place.lines} is said of {file.name}:{lines}")
        if any(a == fence.path and s < fence.end_byte and fence.start_byte < e for a, s, e in spans):
            self.wrong(f"a part of {file.name} is shown twice")
        spans.append((fence.path, fence.start_byte, fence.end_byte))
        unknown = set(place.symbols) - {each.path for each in file.items}
        if unknown or not place.symbols:
            self.wrong(f"what is shown of {file.name} is said to be {place.symbols}")
        if not {word.lower() for word in place.words} <= {word for query in queries for word in query.split()}:
            self.wrong(f"of the words {queries} a place is said to hold {place.words}")
        if "pkg" in filters.paths and not file.name.startswith("pkg/"):
            self.wrong(f"{file.name} is shown, and only what is below pkg is asked for")
        shown = [each for each in self.items if each.path in place.symbols and each.file == file.name]
        if filters.kinds and not {each.kind for each in shown} <= {"function", "method"}:
            self.wrong(f"{place.symbols} are shown, and only functions are asked for")

    def _best_first(
        self,
        index: CodeIndex,
        item: Item,
        queries: tuple[str, ...],
        filters: Filters,
        answer: Any,
        spans: list[tuple[str, int, int]],
        budget: int,
    ) -> None:
        hits = index.search(queries, 80, filters)
        if bool(hits) < bool(spans) or (budget >= 400 and bool(hits) != bool(spans)):
            self.wrong(f"{len(hits)} places are found for {queries}, and {len(spans)} are shown")
        if not hits:
            if answer.fit is not ContextFit.NOTHING or (filters and "filters" not in answer.note and budget >= 400):
                self.wrong(f"nothing is found, and the answer says {answer.fit} {answer.note!r}")
            return
        if budget < 400 or not spans:
            return
        best = hits[0]
        is_shown = any(path == best.path and start <= best.start_byte < end for path, start, end in spans[:1])
        if not is_shown:
            self.wrong(f"the best place for {queries} is in {best.canonical_path}, and {spans[:1]} is shown first")
        if queries == (item.word,) and answer.fit is ContextFit.NOTHING:
            self.wrong(f"what holds {queries} is said to be nothing")
        left = {(hit.path, hit.start_byte): hit for hit in hits[:20]}
        missing = [
            f"{hit.path}:{hit.start_line}-{hit.end_line} {hit.canonical_path}"
            for (path, at), hit in left.items()
            if not any(p == path and s <= at and hit.end_byte <= e for p, s, e in spans)
        ]
        if answer.left_out and set(answer.left_out) != set(missing):
            self.wrong(f"{answer.left_out} is said to be left out, and {missing} is")
        is_short = sum(end - start for _, start, end in spans) < 4_000  # else there may be no room to say so
        if budget >= 4_000 and is_short and missing and not answer.left_out:
            self.wrong(f"{missing} is left out, and not said to be")
        if budget >= 4_000 and not filters and queries == (item.word,):
            self._around(item, spans)

    def _around(self, item: Item, spans: list[tuple[str, int, int]]) -> None:
        """With room for all, what is found is shown with what it calls, and with what calls it."""
        owner = self._owner(item)
        if owner.kind not in ("function", "method"):
            return
        for other in self.items:
            if other.kind not in ("function", "method") or self._owner(other) is not other:
                continue
            if not (other.name in owner.calls or owner.name in other.calls):
                continue
            place = str(self.root / other.file)
            total = sum(end - start for _, start, end in spans)
            if (
                total < 4_000
                and other.span[1] - other.span[0] < 1_000
                and not any(
                    path == place and start <= other.span[0] and other.span[1] <= end for path, start, end in spans
                )
            ):
                self.wrong(f"{other.path} is not shown beside {owner.path}, which calls it or is called by it")


def play(seed: int) -> list[str]:
    """What is not as promised, in one play of it."""
    folder = new_folder()
    try:
        program = Program(seed, folder / "work")
        with CodeIndex.open(program.root, folder / "store", embedder=None) as index:
            index.refresh()
            program.compare(index)
            program.problems += index_orders.compare(program.rng, program.word, program.root, index)
    finally:
        shutil.rmtree(folder)
    return program.problems

"""`code_item_lookup` and `code_item_edges`: an item of code by its name, and what it has to do with others."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.index import languages
from callboard.actors.index.code_items import CodeItem, kinds_of
from callboard.actors.index.encodings import line_end_before, shown_text
from callboard.actors.index.parsing import read_now
from callboard.actors.index.rag import CodeSearch
from callboard.actors.index.records import digest
from callboard.actors.index.relations import Certainty, Relation
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.code_fences import render_fence
from callboard.protocol.errors import ToolError, UsageError

#: Code in one answer, about 10,000 tokens; and of one item. A model that needs more reads on in the file.
MAX_CODE_BYTES: Final = 40_000
MAX_ITEM_BYTES: Final = 20_000
#: Items that are shown with their code; further ones by their place.
MAX_SHOWN: Final = 8
MAX_PLACES: Final = 30
#: Of one relation, unless the model asks for another number.
DEFAULT_EDGES: Final = 20
MAX_EDGES: Final = 200
MAX_DOC_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class ItemPlace(BriefResult):
    """Where an item is."""

    file: str
    lines: str
    """First and last, counted from 1: `12-48`."""
    name: str
    canonical_path: str
    kind: str


@dataclass(frozen=True, slots=True)
class ShownItem(ItemPlace):
    """An item with its code."""

    language: str
    hash: str
    """Of the file; edits compare it."""
    doc: str
    """The first line of what its author says of it."""
    snippet: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LookupAnswer(BriefResult):
    """The answer of `code_item_lookup`."""

    KEEPS: ClassVar = frozenset({"items"})

    exists: bool
    items: list[ShownItem]
    others: list[ItemPlace]
    """Items of this name that are not shown with their code."""
    candidates: list[ItemPlace]
    """Where nothing is called so: what may have been meant."""
    note: str = ""
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class ItemEdge(BriefResult):
    """One thing that the item has to do with."""

    name: str
    certainty: Certainty
    canonical_path: str
    kind: str
    place: str
    """`file:line`; empty for what is outside the workspace."""


@dataclass(frozen=True, slots=True)
class EdgesAnswer(BriefResult):
    """The answer of `code_item_edges`."""

    KEEPS: ClassVar = frozenset({"edges"})

    exists: bool
    items: list[ItemPlace]
    """What was asked about: several where they are one thing, such as a struct and its `impl` blocks."""
    edges: dict[Relation, list[ItemEdge]]
    """Those relations of which there are any."""
    left_out: dict[Relation, int]
    """How many more there are, at least."""
    candidates: list[ItemPlace]
    note: str = ""
    version: Literal[1] = 1


Name = Annotated[str, Field(min_length=1, max_length=500)]


def code_item_lookup_tool(search: CodeSearch) -> Tool:
    """`code_item_lookup`, over the index of the workspace."""

    @tool(risk="read", latency="short", effect="repeat", concurrency=8)
    async def code_item_lookup(context: ToolContext, name: Name, kind: str = "", file: str = "") -> LookupAnswer:
        """Get the code of a function, method, class, struct, trait, constant ... by its name, and its exact place.

        Args:
            name: A name (`retry`) or a canonical path, or the end of one (`pkg.client.Client.retry`, `Client::retry`).
            kind: Only items of this kind, such as `function`, `method`, `class`, `struct`, `enum`, `trait`, `const`.
            file: Only items of this file, relative to the workspace or absolute.
        """
        items = await _find(search, context, name, kind, file)
        if not items:
            return LookupAnswer(False, [], [], await _candidates(search, name, kind, file), _nothing(name))
        shown, note = await asyncio.to_thread(_shown, items[:MAX_SHOWN])
        rest = items[MAX_SHOWN : MAX_SHOWN + MAX_PLACES]
        if len(items) > MAX_SHOWN + MAX_PLACES:
            note = f"{note} More than {MAX_SHOWN + MAX_PLACES} items are called so; give more of the path, or `file`."
        return LookupAnswer(True, shown, [place_of(item) for item in rest], [], note.strip())

    return code_item_lookup


def code_item_edges_tool(search: CodeSearch) -> Tool:
    """`code_item_edges`, over the index of the workspace."""

    @tool(risk="read", latency="short", effect="repeat", concurrency=8)
    async def code_item_edges(
        context: ToolContext,
        name: Name,
        kind: str = "",
        file: str = "",
        relations: list[Relation] | None = None,
        limit: Annotated[int, Field(ge=1, le=MAX_EDGES)] = DEFAULT_EDGES,
    ) -> EdgesAnswer:
        """What an item of code holds, calls, imports and extends, and what does so to it.

        Each edge says how sure it is: `exact` (by the syntax), `scope` (the only one of that name in the file, its
        package or what it imports), `name` (by name alone: it may be another one), `outside` (not in the workspace).

        Args:
            name: A name or a canonical path, as for code_item_lookup; or that of a module.
            kind: Only an item of this kind.
            file: Only an item of this file.
            relations: Only these; all of them if left out.
            limit: Edges of each relation, at most.
        """
        items = await _find(search, context, name, kind, file)
        paths = sorted({item.canonical_path for item in items})
        if len(paths) != 1:
            near = [place_of(item) for item in items[:MAX_PLACES]] or await _candidates(search, name, kind, file)
            why = f"{len(paths)} different items are called so: {_CHOOSE}" if paths else _nothing(name)
            return EdgesAnswer(bool(items), [], {}, {}, near, why)
        asked = tuple(dict.fromkeys(relations or Relation))
        found = await search.ask_index(lambda index: {each: index.relatives(items, each, limit) for each in asked})
        edges = {
            each: [
                ItemEdge(
                    one.name, one.certainty, one.canonical_path, one.kind,
                    f"{one.file}:{one.line}" if one.file else "",
                )
                for one in found[each].found
            ]
            for each in asked
            if found[each].found
        }  # fmt: skip
        left_out = {each: found[each].left_out for each in asked if found[each].left_out}
        return EdgesAnswer(True, [place_of(item) for item in items], edges, left_out, [], _unknown_language(items))

    return code_item_edges


_CHOOSE: Final = "give a whole canonical path or `file`"


async def _find(search: CodeSearch, context: ToolContext, name: str, kind: str, file: str) -> Sequence[CodeItem]:
    """The items of this name; where there are none, a module that is called so. Raises ToolError."""
    try:
        kinds_of(kind)
    except UsageError as error:
        raise ToolError(str(error), field="kind", expected="a kind of item, or nothing", received=kind) from None
    try:
        items = await search.lookup(name, kind, file, context.remaining_seconds)
        return items or ([] if kind else await search.ask_index(lambda index: index.lookup(name, "file", file)))
    except UsageError as error:
        raise ToolError(str(error)) from error


async def _candidates(search: CodeSearch, name: str, kind: str, file: str) -> list[ItemPlace]:
    return [place_of(item) for item in await search.close_items(name, kind, file)]


def _nothing(name: str) -> str:
    return (
        f"nothing is called {name!r} in files of languages that callboard knows the syntax of; "
        "search_text finds text in all files"
    )


def _unknown_language(items: Sequence[CodeItem]) -> str:
    has_symbols = all(languages.by_name(item.language).is_code for item in items)
    return "" if has_symbols else "callboard does not know the syntax of this language, so there are no edges"


def place_of(item: CodeItem) -> ItemPlace:
    """For a model."""
    return ItemPlace(item.file, f"{item.start_line}-{item.end_line}", item.name, item.canonical_path, item.kind)


def _shown(items: Sequence[CodeItem]) -> tuple[list[ShownItem], str]:
    """Those whose files are as they were looked up, with their code as far as there is room, and what is missing."""
    shown: list[ShownItem] = []
    room, changed = MAX_CODE_BYTES, 0
    for item in items:
        content = read_now(item.file)
        if digest(content).hex() != item.hash:
            changed += 1
            continue
        each = _with_code(item, content, min(room, MAX_ITEM_BYTES))
        room -= len(each.snippet.encode())
        shown.append(each)
    return shown, f"{changed} of the items changed meanwhile; ask again." if changed else ""


def _with_code(item: CodeItem, content: bytes, room: int) -> ShownItem:
    end, note = item.end_byte, ""
    if item.end_byte - item.start_byte > room:
        end = max(item.start_byte, line_end_before(content, item.start_byte, item.start_byte + room, item.encoding))
        note = f"cut after {end - item.start_byte:,} of {item.end_byte - item.start_byte:,} bytes; read_file shows all"
    text = shown_text(content, item.start_byte, end, item.encoding)
    snippet = render_fence(item.file, item.start_byte, end, text) if end > item.start_byte else ""
    place = place_of(item)
    return ShownItem(
        place.file, place.lines, place.name, place.canonical_path, place.kind,
        item.language, item.hash, doc_line(text), snippet, note,
    )  # fmt: skip


#: A comment's line, without what marks it; and the beginning of a Python docstring.
_COMMENT: Final = re.compile(
    r"\s*(?://[/!]?|/\*[*!]?|\*(?!/)|#(?![!\[])|--+|;+|\"\"\")\s?(?P<text>.*?)\s*(?:\*/|\"\"\")?\s*$"
)
_DOCSTRING: Final = re.compile(
    r":[ \t]*(?:#.*)?\n\s*[rRuU]?(?:\"\"\"|'''|\"|')\s*(?P<text>[^\n]*?)\s*(?:\"\"\"|'''|\"|'|\n)"
)


def doc_line(code: str) -> str:
    """The first line of the comment above an item, or of its docstring; empty if it has neither."""
    for line in code.splitlines():
        found = _COMMENT.match(line)
        if found is None:
            break
        if found["text"].strip():
            return found["text"].strip()[:MAX_DOC_CHARS]
    docstring = _DOCSTRING.search(code)
    return docstring["text"].strip()[:MAX_DOC_CHARS] if docstring else ""

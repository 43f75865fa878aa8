"""`find_references`: the places where a name is defined and used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Struct
from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.workspace import Workspace
from callboard.actors.index.code_items import plain_path
from callboard.actors.index.rag import CodeSearch
from callboard.actors.index.references import NameUse, Reference, references
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.code_fences import render_fence
from callboard.protocol.errors import ToolError, UsageError

DEFAULT_LINES: Final = 50
MAX_LINES: Final = 200
#: Of the time that a call has, what is left for the answer when the search is ended.
SPARE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReferenceLine(BriefResult):
    """A line in which the name is."""

    place: str
    """`file:line`."""
    usages: list[NameUse]
    snippet: str


@dataclass(frozen=True, slots=True)
class ReferencesAnswer(BriefResult):
    """The answer of `find_references`: one page."""

    KEEPS: ClassVar = frozenset({"references"})

    name: str
    references: list[ReferenceLine]
    next: str
    """Give it as `after` to get the next page; empty: this is the last one."""
    files_searched: int
    note: str = ""
    version: Literal[1] = 1


def find_references_tool(search: CodeSearch, workspace: Workspace) -> Tool:
    """`find_references`, in the files of the index, as they are now."""

    @tool(risk="read", latency="short", effect="repeat", concurrency=2, accesses={"path": "read"})
    async def find_references(
        context: ToolContext,
        name: Annotated[str, Field(min_length=1, max_length=200)],
        path: str = ".",
        usages: list[NameUse] | None = None,
        after: str = "",
        limit: Annotated[int, Field(ge=1, le=MAX_LINES)] = DEFAULT_LINES,
    ) -> ReferencesAnswer:
        """Find where a name (of a function, class, variable, type ...) is defined and used.

        Whole names count, and not those in comments and strings. It goes by the name alone: two things that are called
        alike are both found.

        Args:
            name: One name, such as `retry`. Of a path such as `Client.retry`, the last name counts.
            path: Only below this folder, or in this file, relative to the workspace or absolute.
            usages: Only such places: definition, call, import, extends, use; `text` where the syntax is not known.
            after: `next` of the page before.
            limit: Lines of one page.
        """
        last = plain_path(name).rpartition(".")[2]
        if not last or last.split() != [last]:
            raise ToolError(f"{name!r} is no name", field="name", expected="one name such as `retry`", received=name)
        places = _places(workspace, path)
        try:
            rows = await search.ask_twice(lambda index: index.files(), context.remaining_seconds)
        except UsageError as error:
            raise ToolError(str(error)) from error
        below = tuple(place.rstrip("/") + "/" for place in places)
        files = [row.path for row in rows if row.path in places or row.path.startswith(below)]
        is_secret = await search.ask_index(lambda index: index.secret_files())
        begin = _Cursor.of(after, workspace)
        page = _Page(last, frozenset(usages or ()), begin, limit, context.deadline_at - SPARE_SECONDS)
        return await asyncio.to_thread(page.find, [each for each in files if not is_secret(each)])

    return find_references


def _places(workspace: Workspace, path: str) -> tuple[str, ...]:
    """Where to look: everywhere, or below this path."""
    if path in ("", "."):
        return tuple(map(str, workspace.folders))
    return (str(workspace.readable(path)),)


class _Cursor(Struct, frozen=True, order=True):
    """Behind which line a page begins."""

    file: str = ""
    line: int = 0

    @classmethod
    def of(cls, after: str, workspace: Workspace) -> _Cursor:
        """Raises ToolError."""
        if not after:
            return cls()
        file, _, line = after.rpartition(":")
        if not file or not line.isdecimal() or not line.isascii() or len(line) > 12:
            expected = "`next` of the page before, or nothing"
            raise ToolError(f"{after!r} is no place", field="after", expected=expected, received=after)
        return cls(str(workspace.root / file), int(line))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class _Page(Struct, frozen=True):
    """What one call looks for. Used on a thread of its own."""

    name: str
    usages: frozenset[NameUse]
    begin: _Cursor
    limit: int
    until: float

    def find(self, files: Sequence[str]) -> ReferencesAnswer:
        left = [each for each in files if each >= self.begin.file]
        found: list[Reference] = []
        searched = 0
        for each in references(left, self.name, self.usages, lambda: time.monotonic() >= self.until):
            if each is None:
                searched += 1
            elif (each.file, each.line) > (self.begin.file, self.begin.line):
                found.append(each)
            if len(found) > self.limit:
                return self._answer(found[:-1], str(_Cursor(found[-2].file, found[-2].line)), searched, "")
        if searched < len(left):
            end = str(_Cursor(left[searched - 1], 10**9)) if searched else str(self.begin)
            note = f"the time was over after {searched:,} of {len(left):,} files; go on with `after`, or give `path`"
            return self._answer(found, end, searched, note)
        return self._answer(found, "", searched, "")

    def _answer(self, found: Sequence[Reference], end: str, searched: int, note: str) -> ReferencesAnswer:
        lines = [
            ReferenceLine(
                f"{each.file}:{each.line}",
                list(each.usages),
                render_fence(each.file, each.start_byte, each.end_byte, each.text),
            )
            for each in found
        ]
        return ReferencesAnswer(self.name, lines, end, searched, note)

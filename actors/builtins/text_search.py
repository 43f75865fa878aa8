"""`search_text`: lines with a text or a regular expression in the files of a workspace.

The files are those that find_files finds, but for binary ones. What is covered by a mask is not found: else a model
could find out a key by its hits, letter by letter.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from msgspec import Struct
from pydantic import Field

from callboard.actors.builtins.brief_result import BriefResult
from callboard.actors.builtins.file_content import WIDE_MARKS, TextFile, decoded, is_binary
from callboard.actors.builtins.listing import entries_of, name_test
from callboard.actors.builtins.reading import NEWLINE, character_start
from callboard.actors.builtins.ripgrep import files_with, find_ripgrep
from callboard.actors.builtins.search_pattern import SearchPattern, pattern_of
from callboard.actors.builtins.visible import VisibleFiles
from callboard.actors.builtins.workspace import Workspace, printable
from callboard.actors.opened_folders import open_plain
from callboard.actors.secret_files import is_key_file
from callboard.actors.tools import Tool, ToolContext, tool
from callboard.protocol.code_fences import render_fence
from callboard.protocol.masking import mask_bytes

#: Lines with a hit in one answer.
MAX_HITS: Final = 500
#: Text in one answer: about 12,000 tokens.
MAX_SHOWN_BYTES: Final = 50_000
MAX_CONTEXT_LINES: Final = 10
#: Larger files are data.
MAX_SEARCHED_BYTES: Final = 16 * 1024 * 1024
#: A longer line is shown only around its first match, so far before and behind it.
MAX_LINE_BYTES: Final = 600
AROUND_BYTES: Final = 200
#: A search that has not ended after this share of its call's time answers with what it has.
SEARCHING_SHARE: Final = 0.8
#: So many are looked into before ripgrep is asked: a frequent word is found in them within milliseconds.
FIRST_FILES: Final = 300
#: Read at once; few sources are longer.
READ_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TextHit(BriefResult):
    """Lines that follow each other, at least one of them with a match."""

    file: str
    lines: str
    """First and last line, `12-48`, counted from 1, inclusive."""
    matches: tuple[tuple[int, int], ...]
    """Where the matches are: the bytes of the file, end exclusive."""
    snippet: str
    """The lines in their fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedText(BriefResult):
    """The hits, sorted by path and place."""

    KEEPS: ClassVar = frozenset({"hits"})

    version: Literal[1] = 1
    path: str
    """The file or folder that was searched."""
    exists: bool = True
    hits: tuple[TextHit, ...] = ()
    left_out: str = ""


FindProgram = Callable[[Path], str | None]
"""Where ripgrep is, given the workspace; None: without it."""


class Search(Struct, frozen=True):
    """What is searched, and how much of it is shown."""

    pattern: SearchPattern
    is_wanted: Callable[[str], bool] = lambda _: True
    """By the path, relative to the folder that is searched."""
    context_lines: int = 0
    limit: int = MAX_HITS


def search_text_tool(workspace: Workspace) -> Tool:
    """`search_text`, as the model sees it."""

    @tool(risk="read", timeout=30, concurrency=4, effect="repeat", accesses={"path": "read"})
    def search_text(
        query: str,
        context: ToolContext,
        path: str = ".",
        glob: str = "",
        regex: bool = False,
        ignore_case: bool = False,
        context_lines: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES)] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_HITS)] = 50,
    ) -> SearchedText:
        """Find the lines of the workspace's files that have a text, without what git ignores.

        Args:
            query: The text, as it is; with regex=true a regular expression of Python's. It is searched line by line.
            path: A file or folder, relative to the workspace or absolute within it.
            glob: Only files with such names ("*.py", "src/**/test_*").
            context_lines: Lines to show before and behind each.
            limit: Lines to find at most.
        """
        pattern = pattern_of(query, is_regex=regex, ignores_case=ignore_case)
        search = Search(pattern, name_test(glob, "glob") if glob else lambda _: True, context_lines, limit)
        until = time.monotonic() + context.remaining_seconds * SEARCHING_SHARE
        return search_files(workspace.holding(path), path, search, until)

    return search_text


def search_files(
    workspace: Workspace, path: str, search: Search, until: float, find_program: FindProgram = find_ripgrep
) -> SearchedText:
    """Search a file or folder, until a time of the monotonic clock. Raises ToolError."""
    secrets = workspace.secrets()
    place = workspace.inside_or_missing(path, secrets=secrets)
    found = SearchedText(path=printable(str(place)))
    if not os.path.lexists(place):
        return replace(found, exists=False)
    if not place.is_dir():
        hits, left_out = _collected(iter([str(place)]), search, lambda _: True, until)
    else:
        entries_of(place)
        visible = VisibleFiles(workspace, place, secrets)
        files = _files(visible, search, find_program(workspace.root), until)
        hits, left_out = _collected(files, search, visible.shows, until)
    return replace(found, hits=tuple(hits), left_out=left_out)


def _collected(
    files: Iterator[str], search: Search, shows: Callable[[str], bool], until: float
) -> tuple[list[TextHit], str]:
    """The hits in these files, and what is left out."""
    hits: list[TextHit] = []
    left, size = search.limit, 0
    try:
        for file in files:
            if time.monotonic() > until:
                return hits, _OUT_OF_TIME
            found = _looked_into(file, search.pattern, shows, left + 1)
            if found is None:
                continue
            for hit in found.shown(printable(file), search.context_lines, left):
                if size + len(hit.snippet) > MAX_SHOWN_BYTES and hits:
                    return hits, f"more than {MAX_SHOWN_BYTES:,} bytes; {_NARROWER}"
                hits.append(hit)
                size += len(hit.snippet)
            left -= len(found.lines)
            if left < 0:
                return hits, f"more than {search.limit:,} lines; {_NARROWER}"
    except TimeoutExpired:
        return hits, _OUT_OF_TIME
    return hits, ""


_NARROWER: Final = "search for something longer, in a path, or with a glob"
_OUT_OF_TIME: Final = "what is behind these: the time was over; search in a path, or with a glob"


def _files(visible: VisibleFiles, search: Search, ripgrep: str | None, until: float) -> Iterator[str]:
    """The files that may have a hit, sorted by path; `shows` has not been asked for them."""
    below = len(visible.start.rstrip("/")) + 1
    return (path for path in _candidates(visible, search, ripgrep, until) if search.is_wanted(path[below:]))


def _candidates(visible: VisibleFiles, search: Search, ripgrep: str | None, until: float) -> Iterator[str]:
    """All files, but for those behind the first ones that ripgrep says have no match."""
    walk = (entry.path for entry in visible.walk() if not entry.is_dir(follow_symlinks=False))
    last = ""
    for last in islice(walk, FIRST_FILES):
        yield last
    following = next(walk, None)
    if following is None:
        return
    listed = None
    if ripgrep is not None:
        timeout = max(0.1, until - time.monotonic())
        listed = files_with(ripgrep, visible.start, search.pattern, MAX_SEARCHED_BYTES, timeout)
    if listed is None:
        yield following
        yield from walk
    else:
        yield from (path for path in sorted(listed, key=_order) if _order(path) > _order(last))


def _order(path: str) -> list[str]:
    """That of a walk: what is in a folder comes where the folder is."""
    return path.split("/")


def _looked_into(path: str, pattern: SearchPattern, shows: Callable[[str], bool], most: int) -> FileHits | None:
    """The lines of a file that match, at most so many. None without one, and for a file that may not be shown."""
    data = _content(path)
    if data is None or not (pattern.may_be_in(data) or data.startswith(WIDE_MARKS)):
        return None
    if is_binary(data) or is_key_file(data) or not shows(path):
        return None
    text = decoded(data)
    if text is None or next(_matching(text.utf8, pattern), None) is None:
        return None
    masked = mask_bytes(text.utf8)
    lines = list(islice(_matching(masked, pattern), most))
    return FileHits(text, masked, lines) if lines else None


def _content(path: str) -> bytes | None:
    """Of a regular file that is not too large; None for others, and for one that cannot be read or has vanished."""
    try:
        file = open_plain(path)
    except OSError:
        return None
    try:
        data = os.read(file, READ_BYTES)
        if len(data) < READ_BYTES:
            return data
        pieces = [data]
        while (piece := os.read(file, MAX_SEARCHED_BYTES)) and sum(map(len, pieces)) <= MAX_SEARCHED_BYTES:
            pieces.append(piece)
    except OSError:
        return None
    finally:
        os.close(file)
    data = b"".join(pieces)
    return data if len(data) <= MAX_SEARCHED_BYTES else None


class MatchingLine(NamedTuple):
    """Offsets are bytes of the text's UTF-8; the line is without its end."""

    number: int
    start: int
    end: int
    matches: tuple[tuple[int, int], ...]


def _matching(utf8: bytes, pattern: SearchPattern) -> Iterator[MatchingLine]:
    """The lines that match, in order."""
    text = utf8.decode("utf-8", "surrogateescape")
    found = _lines(text) if _is_by_line(pattern, text) else _lines_around_matches(text, pattern.regex)
    line_number, characters, size = 1, 0, 0
    for start, end in found:
        line = text[start:end].removesuffix("\r")
        matches = [match.span() for match in pattern.regex.finditer(line)]
        if not matches:
            continue
        before = text[characters:start]
        line_number, size, characters = line_number + before.count("\n"), size + _size(before), start
        spans = tuple((size + _size(line[:first]), size + _size(line[:last])) for first, last in matches)
        yield MatchingLine(line_number, size, size + _size(line), spans)


def _is_by_line(pattern: SearchPattern, text: str) -> bool:
    return pattern.by_line or ("$" in pattern.regex.pattern and "\r" in text)


def _lines(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield start, end
        start = end + 1


def _lines_around_matches(text: str, regex: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """The lines in which a match in the whole text begins; each that matches by itself is one of them."""
    position = 0
    while match := regex.search(text, position):
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.start())
        end = len(text) if end < 0 else end
        yield start, end
        position = end + 1
        if position > len(text):
            return


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


class _Block(Struct):
    """Lines to show together; offsets as in MatchingLine."""

    start: int
    end: int
    first: int
    last: int
    matches: list[tuple[int, int]]


class FileHits(Struct, frozen=True):
    """The matching lines of one file."""

    text: TextFile
    masked: bytes
    """The text's UTF-8 as it is shown."""
    lines: list[MatchingLine]

    def shown(self, file: str, context_lines: int, most: int) -> Iterator[TextHit]:
        """As the model sees them, those of lines that follow each other in one piece."""
        blocks: list[_Block] = []
        for line in self.lines[:most]:
            block = self._around(line, context_lines)
            before = blocks[-1] if blocks else None
            if before is None or block.first > before.last + 1 or before.end > block.end:
                blocks.append(block)
            else:
                before.end, before.last = block.end, block.last
                before.matches += block.matches
        places = iter(self.text.places(*(place for block in blocks for place in _offsets(block))))
        for block in blocks:
            start, end = next(places), next(places)
            matches = tuple((next(places), next(places)) for _ in block.matches)
            snippet = render_fence(file, start, end, self.masked[block.start : block.end].decode("utf-8", "replace"))
            yield TextHit(file=file, lines=f"{block.first}-{block.last}", matches=matches, snippet=snippet)

    def _around(self, line: MatchingLine, context_lines: int) -> _Block:
        """The line with those around it; of a long line, what is around its first match."""
        data = self.masked
        if line.end - line.start > MAX_LINE_BYTES:
            first, last = line.matches[0]
            start = character_start(data, max(line.start, first - AROUND_BYTES))
            end = character_start(data, min(line.end, max(first, min(last, first + AROUND_BYTES)) + AROUND_BYTES))
            inside = [match for match in line.matches if start <= match[0] and match[1] <= end]
            return _Block(start, end, line.number, line.number, inside)
        start, end, above, below = line.start, line.end, 0, 0
        while above < context_lines and start > 0:
            start, above = data.rfind(NEWLINE, 0, start - 1) + 1, above + 1
        while below < context_lines and 0 <= (newline := data.find(NEWLINE, end)) < len(data) - 1:
            behind = data.find(NEWLINE, newline + 1)
            end, below = len(data) if behind < 0 else behind, below + 1
        if end - start > MAX_LINE_BYTES * (context_lines + 1):
            start, end, above, below = line.start, line.end, 0, 0
        return _Block(start, end, line.number - above, line.number + below, list(line.matches))


def _offsets(block: _Block) -> Iterator[int]:
    yield from (block.start, block.end)
    for match in block.matches:
        yield from match

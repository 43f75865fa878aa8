"""Where in the code an answer comes from: the places that its tools showed, and those that it cites itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from callboard import RunTool, ToolCallCompleted
from callboard.protocol.code_fences import CodeFence, last_name, parse_fences
from callboard.protocol.ids import Tag

#: Larger files are not read to count their lines; read_file shows none either.
MAX_COUNTED_BYTES: Final = 64 * 1024 * 1024


class CodePlace(NamedTuple):
    """One place."""

    file: str
    """Absolute."""
    lines: str
    """First and last line, `12-48`, counted from 1, inclusive."""
    name: str
    """Of the symbol, where it is known."""
    found_by: str
    """The tool that showed it; "answer" if only the answer names it."""


class Sources:
    """Collects the places of one request. Give it the request's events, and in the end the answer's text."""

    def __init__(self, *folders: Path) -> None:
        """The folders that the answer is about, absolute."""
        self._folders = folders
        self._tools: dict[Tag, str] = {}
        self._found: dict[tuple[str, str], CodePlace] = {}

    def see(self, event: object) -> None:
        """Look at one event."""
        if isinstance(event, RunTool):
            self._tools[event.tag] = event.name
        elif isinstance(event, ToolCallCompleted):
            self._add_all(_places(event.content), self._tools.pop(event.tag, ""))

    def all(self, answer: str = "") -> list[dict[str, str]]:
        """Every place once, those of tools first, in the order in which they came."""
        self._add_all(_fences(answer), "answer")
        return [each._asdict() for each in self._found.values()]

    def _add_all(self, places: Iterator[CodeFence | tuple[str, str, str]], found_by: str) -> None:
        for place in places:
            if isinstance(place, CodeFence):
                lines = self._lines(place)
                if lines is None:
                    continue
                file, name = place.path, ""
            else:
                file, lines, name = place
            self._found.setdefault((file, lines), CodePlace(file, lines, name, found_by))

    def _lines(self, fence: CodeFence) -> str | None:
        """The lines of a fence's span; None for one that is in no file of these folders: the model made it up."""
        path = Path(fence.path)
        try:
            if not any(map(path.resolve().is_relative_to, self._folders)) or not path.is_file():
                return None
            if not 0 <= fence.start_byte <= fence.end_byte <= path.stat().st_size <= MAX_COUNTED_BYTES:
                return None
            before = path.read_bytes()[: fence.end_byte]
        except (OSError, ValueError, RuntimeError):
            return None
        first = before.count(b"\n", 0, fence.start_byte) + 1
        last = first + before.removesuffix(b"\n").count(b"\n", fence.start_byte)
        return f"{first}-{last}"


def _places(content: str) -> Iterator[CodeFence | tuple[str, str, str]]:
    """Of a tool's result: the items of a code context, else the fences in its texts."""
    try:
        result = orjson.loads(content)
    except orjson.JSONDecodeError:
        result = content
    items = result.get("context") if isinstance(result, dict) else None
    if isinstance(items, list):
        for item in items:
            fences = parse_fences(str(item.get("snippet", ""))) if isinstance(item, dict) else []
            if fences and isinstance(fences[0], CodeFence) and isinstance(item.get("lines"), str):
                yield fences[0].path, item["lines"], last_name(str(next(iter(item.get("symbols") or ()), "")))
    else:
        for text in _texts(result):
            yield from _fences(text)


def _texts(value: object) -> Iterator[str]:
    """All texts in a JSON value, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _fences(text: str) -> Iterator[CodeFence]:
    yield from (each for each in parse_fences(text) if isinstance(each, CodeFence))

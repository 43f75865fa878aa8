"""The sections of prose: a heading and what is below it, as far as the next heading of its level or a higher one.

The grammars tell what is a heading (a `# comment` within a code block is none); queries of data/symbols capture it with
its level: `h1` to `h6`, or `heading` where a language has no fixed levels. In reStructuredText the line under a title,
and whether there is one above it, is of a level by the order in which such lines first appear (Docutils, "ProseSection
Structure").
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import tree_sitter

from callboard.actors.index.records import MAX_NAME_CHARS, ProseSection

#: Marks around words, and the address of a link, which are no part of its name.
_MARKUP: Final = re.compile(r"[`*]+|(?<!\w)_+|_+(?!\w)|\]\([^)]*\)|\[(?=[^\]]*\]\()|<[^>]*>|\s#+\s*$")
_ADORNMENT: Final = re.compile(rb"[!-/:-@\[-`{-~]")


class _Heading(NamedTuple):
    start: int
    level: int
    title: str


def sections(content: bytes, matches: Iterable[Mapping[str, list[tree_sitter.Node]]]) -> list[ProseSection]:
    """In order of their beginnings."""
    found = sorted(_headings(content, matches))
    ends = [_end(found, place, len(content)) for place in range(len(found))]
    return [ProseSection(each.start, end, each.title) for each, end in zip(found, ends, strict=True)]


def _end(found: list[_Heading], place: int, length: int) -> int:
    level = found[place].level
    return next((each.start for each in found[place + 1 :] if each.level <= level), length)


def _headings(content: bytes, matches: Iterable[Mapping[str, list[tree_sitter.Node]]]) -> Iterable[_Heading]:
    levels: dict[bytes, int] = {}
    nodes = [
        (capture, each[0], captures)
        for captures in matches
        for capture, each in captures.items()
        if capture != "name" and not capture.startswith("_")
    ]
    for capture, node, captures in sorted(nodes, key=lambda found: found[1].start_byte):
        name = captures["name"][0] if "name" in captures else None
        title = content[name.start_byte : name.end_byte].decode("utf-8", "replace") if name is not None else ""
        start = content.rfind(b"\n", 0, node.start_byte) + 1
        if content[start : node.start_byte].strip():  # HTML may have several in a line
            start = node.start_byte
        if capture == "heading":
            start, style = _adorned(content, node)
            level = levels.setdefault(style, len(levels) + 1)
        else:
            level = int(capture[1:])
        words = html.unescape(_MARKUP.sub("", title)).split()
        yield _Heading(start, level, " ".join(words)[:MAX_NAME_CHARS] or "untitled")


def _adorned(content: bytes, node: tree_sitter.Node) -> tuple[int, bytes]:
    """Where a reStructuredText title begins, with the line above it, and its style."""
    lines = content[node.start_byte : node.end_byte].splitlines() or [b""]
    line_start = content.rfind(b"\n", 0, node.start_byte) + 1
    has_overline = bool(_ADORNMENT.match(lines[0])) and len(set(lines[0].strip())) == 1
    under = lines[-1].strip()[:1]
    return line_start, under + (b"^" if has_overline else b"")

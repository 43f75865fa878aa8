"""What fits into a terminal: how wide a text is, lines that wrap at words, tables with a row each."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TextIO

from callboard.actors.cli.terminal import print_line

#: A tab is as wide as it can be.
_TAB: Final = 8
#: Of a table: a column that is cut keeps so many columns of the terminal; a table that would need less is written
#: as a block for each row.
_LEAST: Final = 12
_GAP: Final = 2
#: By these a first word is known whole, so that it is known what kind of line it begins.
_FIRST_WORD: Final = re.compile(r"\s*\S+\s|\s*\S{8}")
_LIST_ITEM: Final = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
#: Lines that stay as they are: of a table, and of code that is indented.
_AS_IT_IS: Final = re.compile(r" {0,3}\||(?: {4}| {0,3}\t)")
_FENCE: Final = re.compile(r" *(`{3,}|~{3,})")
_RUNS: Final = re.compile(r"[ \t]+|[^ \t]+")
#: Of East Asian text: no line begins with the first ones, and none ends with the others.
_NEVER_FIRST: Final = frozenset("、。，．：；？！）］｝〉》」』】〕〗〙’”…ー々ぁぃぅぇぉっゃゅょァィゥェォッャュョ%‰")
_NEVER_LAST: Final = frozenset("（［｛〈《「『【〔〖〘‘“￥＄")


def columns_of(stream: TextIO) -> int | None:
    """How wide the terminal is now; None where it is none, or does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError, AttributeError):
        return None


def width(text: str) -> int:
    """Columns that a text takes: East Asian wide characters and emoji two, combining characters none."""
    return len(text) + (_TAB - 1) * text.count("\t") if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if char == "\t":
        return _TAB
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class WordWrap:
    """Wraps a text that comes in pieces at words, wherever it was cut. A word is shown when it is whole, so that none
    jumps to the next line. Code, in a fence or indented, and tables stay as they are, and so does a word that is
    longer than a line.
    """

    def __init__(self, columns: Callable[[], int | None], *, indent: str | None = None) -> None:
        """`columns`: of the terminal, asked wherever a line begins; None: nothing is wrapped. `indent`: before each
        further line of a text that is no Markdown; None: it is Markdown, and further lines of a list's item are
        indented as it is.
        """
        self._columns_now = columns
        self._given_indent = indent
        self._fence = ""
        self._begin_line()

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        first, *rest = piece.split("\n")
        shown = [self._go_on(first)]
        for part in rest:
            shown += [self._end_line(), "\n", self._go_on(part)]
        return "".join(shown)

    def finish(self) -> str:
        """The rest. The next piece begins a new text."""
        rest, self._fence = self._end_line(), ""
        return rest

    def _begin_line(self) -> None:
        self._columns: int | None = None
        self._is_empty = True
        self._head = ""
        """Of the line, until its kind is known."""
        self._is_known = False
        self._is_wrapped = False
        self._indent = ""
        self._used, self._has_word = 0, False
        self._blanks, self._word = "", ""
        """What is held back."""
        self._last = ""
        """Of the word, the last character that came; "" behind blanks."""
        self._is_in_word = False
        """The beginning of the held word was shown, since it is longer than a line."""

    def _go_on(self, part: str) -> str:
        if self._is_empty and part:
            self._is_empty, self._columns = False, self._columns_now()
            self._is_known = self._columns is None
        if not self._is_known:
            self._head += part
            if not _FIRST_WORD.match(self._head):
                return ""
            part = self._known()
        return self._wrapped(part) if self._is_wrapped else part

    def _end_line(self) -> str:
        shown = ""
        if not self._is_known and self._head:
            head = self._known()
            shown = self._wrapped(head) if self._is_wrapped else head
        shown += self._flushed()
        self._begin_line()
        return shown

    def _known(self) -> str:
        """Sees to the kind of the line; what there is of it."""
        head, self._head, self._is_known = self._head, "", True
        if self._given_indent is not None:
            self._is_wrapped, self._indent = True, self._given_indent
            return head
        fence = _FENCE.match(head)
        if self._fence:
            if fence is not None and fence[1].startswith(self._fence):
                self._fence = ""
        elif fence is not None:
            self._fence = fence[1]
        else:
            item = _LIST_ITEM.match(head)
            self._is_wrapped = item is not None or not _AS_IT_IS.match(head)
            self._indent = " " * width(item[0]) if item is not None else ""
        return head

    def _wrapped(self, part: str) -> str:
        return "".join(map(self._run, _RUNS.findall(part)))

    def _run(self, run: str) -> str:
        """Blanks, or a part of a word."""
        if run[0] in " \t":
            shown = self._flushed()
            self._is_in_word, self._last = False, ""
            self._blanks += run
            return shown
        if run.isascii() and self._last.isascii():
            self._word += run
            self._last = run[-1]
            return self._long_word()
        return "".join(map(self._char, run)) + self._long_word()

    def _char(self, char: str) -> str:
        shown = ""
        if self._last and _breaks_between(self._last, char):
            shown = self._flushed()
            self._is_in_word = False
        self._word += char
        self._last = char
        return shown

    def _long_word(self) -> str:
        """What is held of a word that no line has room for: a terminal cuts it where it must."""
        if self._columns is None or width(self._word) < self._columns:
            return ""
        shown = self._flushed()
        self._is_in_word = True
        return shown

    def _flushed(self) -> str:
        """The blanks and the word that were held back; on the next line, where this one has no room for them."""
        if not self._word:
            return ""
        assert self._columns is not None
        needed, indent = width(self._word), self._indent if len(self._indent) * 2 < self._columns else ""
        shown = self._blanks + self._word
        self._used += width(self._blanks) + needed
        if self._used > self._columns and self._has_word and not self._is_in_word:
            self._columns = self._columns_now() or self._columns  # it may have another width by now
            shown, self._used = f"\n{indent}{self._word}", len(indent) + needed
        if self._used > self._columns:  # of a word that goes on over several lines
            self._used = (self._used - 1) % self._columns + 1
        self._blanks, self._word, self._has_word = "", "", True
        return shown


def _breaks_between(last: str, char: str) -> bool:
    if char in _NEVER_FIRST or last in _NEVER_LAST or _char_width(char) == 0 or last == "\u200d":
        return False
    return _char_width(last) == 2 or _char_width(char) == 2


def wrapped(text: str, columns: int | None, indent: str | None = "") -> str:
    """Lines of at most so many columns, where words allow it. `indent`: as of WordWrap."""
    wrap = WordWrap(lambda: columns, indent=indent)
    return wrap.feed(text) + wrap.finish()


def print_wrapped(text: str, indent: str | None = "  ") -> None:
    """Lines of result on stdout; at a terminal they wrap at words."""
    print_line(wrapped(text, columns_of(sys.stdout), indent))


def table(rows: Sequence[tuple[str, ...]], columns: int | None = None, cut: Collection[int] = (-1,)) -> str:
    """Rows of cells, the first of them headings, in columns as wide as their longest cell.

    Where that is more than `columns`, the columns of these numbers (`cut`) are cut, the widest first; and where there
    is no room for what is left, each row is a block of lines.
    """
    widths = [max(map(width, cells)) for cells in zip(*rows, strict=True)]
    if columns is not None:
        over = sum(widths) + _GAP * (len(widths) - 1) - columns
        able = [number % len(widths) for number in cut]
        while over > 0:
            number = max(able, key=widths.__getitem__)
            room = widths[number] - max(_LEAST, width(rows[0][number]))
            if room <= 0:
                return _blocks(rows, columns)
            second = max((widths[each] for each in able if each != number), default=0)
            less = min(over, room, max(widths[number] - second, 1))
            widths[number] -= less
            over -= less
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: tuple[str, ...], widths: Sequence[int]) -> str:
    cells = [shortened(cell, most) for cell, most in zip(row, widths, strict=True)]
    padded = (cell + " " * (most - width(cell)) for cell, most in zip(cells, widths, strict=True))
    return (" " * _GAP).join(padded).rstrip()


def _blocks(rows: Sequence[tuple[str, ...]], columns: int) -> str:
    headings, *others = rows
    return "\n".join(line for row in others for line in _block(headings, row, columns))


def _block(headings: tuple[str, ...], row: tuple[str, ...], columns: int) -> Iterator[str]:
    yield wrapped(row[0], columns, "  ")
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        if cell:
            yield wrapped(f"  {heading.lower()}: {cell}", columns, "    ")


def shortened(text: str, columns: int) -> str:
    """At most so many columns of it, with dots where something is left out."""
    if width(text) <= columns:
        return text
    kept = text[:columns]
    while width(kept) > columns - 3:
        kept = kept[:-1]
    return f"{kept.rstrip()}..."


def counted(number: int, one: str, many: str = "") -> str:
    """1 answer, 2 answers: a number with its word. `many`: where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"

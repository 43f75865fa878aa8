"""For whom a text is: a type for each reader. A filter belongs to its reader, and one made for another hides or shows
the wrong thing.

- `ForModel` and `ForLog` are of `callboard.protocol.masking`: what looks like a key is covered.
- `ForDecision` is what a person says yes or no to. It is whole: nothing is covered or taken out, and what would draw
  nothing, move the cursor or look like another line stands there as an escape.

mypy refuses one in the place of another, and `for_decision` of a masked text.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import Final, NewType, overload

from callboard.protocol.lazy_loading import lazy_pattern
from callboard.protocol.masking import ForLog, ForModel

ForDecision = NewType("ForDecision", str)
"""Every character of it is seen: a person decides on it, and what they approve is what runs."""

#: Printable to Python (`str.isprintable`: no control, format, surrogate, private or unassigned character, no blank but
#: the space), and yet nothing is drawn: joiners of graphemes, fillers of Hangul, inherent vowels of Khmer, the blank
#: pattern of Braille, variation selectors.
_DRAW_NOTHING: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_UNSEEN: Final = lazy_pattern(f"[{_DRAW_NOTHING}]")
#: Backslashes that, left alone, would read as one of our escapes.
_LIKE_AN_ESCAPE: Final = lazy_pattern(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[rnt])")
_PIECES: Final = lazy_pattern(r"\\+|[^\\]")
_TAIL_OF_AN_ESCAPE: Final = lazy_pattern(r"x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|r")
_TAIL_IN_ONE_LINE: Final = lazy_pattern(r"x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[rnt]")
#: A blank after another, or at an end: a row of them pushes what follows to where it looks like a line of its own.
_BLANKS: Final = lazy_pattern(r"(?<= ) | (?= )|^ | $")
#: What needs no quotation marks: no part of it can be taken for ours.
_PLAIN_NAME: Final = lazy_pattern(r"[\w.-]{1,60}")


@overload
def for_decision(text: ForModel | ForLog) -> None: ...  # type: ignore[overload-overlap]  # what is covered cannot be judged


@overload
def for_decision(text: str) -> ForDecision: ...


def for_decision(text: str) -> ForDecision | None:
    """The whole text: all that is not seen is an escape such as `\\x1b`, line feeds and tabs stay. A backslash that
    would read as such an escape is doubled, so no two texts look the same."""
    return ForDecision("\n".join(_seen(line, "\t") for line in text.split("\n")))


def one_line_for_decision(text: str) -> ForDecision:
    """Likewise, in one line: of a name, a path, a host or a reason. Line feeds and tabs are escapes too, and so are
    blanks in a row."""
    return ForDecision(_seen(text, ""))


def name_for_decision(name: str, ours: Container[str] = ()) -> ForDecision:
    """The name of an argument: in quotation marks, as JSON has it, where it is no plain word, or one of `ours`."""
    if _PLAIN_NAME.fullmatch(name) and _is_seen(name) and name not in ours:
        return ForDecision(name)
    quoted = json.dumps(name, ensure_ascii=not _is_seen(name))
    return ForDecision(_BLANKS.sub(r"\\u0020", quoted) if " " in quoted else quoted)


def json_for_decision(value: object) -> ForDecision:
    """A value as JSON, indented; all that is not seen is an escape of JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if all(map(_is_seen, text.split("\n"))):
        return ForDecision(text)
    return ForDecision("".join(each if each == "\n" or _is_seen(each) else json.dumps(each)[1:-1] for each in text))


def arguments_for_decision(text: str) -> ForDecision:
    """The arguments of a call as its tool reads them, of two equal names the last; the text where it is no JSON."""
    try:
        return json_for_decision(json.loads(text))
    except (ValueError, RecursionError):
        return for_decision(text)


def _is_seen(text: str) -> bool:
    return text.isprintable() and (text.isascii() or not _UNSEEN.search(text))


def _seen(line: str, kept: str) -> str:
    """The characters `kept` stay as they are; without any, blanks in a row do not."""
    has_rows = not kept and " " in line and _BLANKS.search(line)
    if _is_seen(line) and not has_rows and not ("\\" in line and _LIKE_AN_ESCAPE.search(line)):
        return line
    rows = {found.start() for found in _BLANKS.finditer(line)} if has_rows else frozenset[int]()
    hidden = {at for at, char in enumerate(line) if at in rows or (char not in kept and not _is_seen(char))}
    tail = _TAIL_OF_AN_ESCAPE if kept else _TAIL_IN_ONE_LINE
    pieces = []
    for found in _PIECES.finditer(line):
        piece, end = found[0], found.end()
        if piece.startswith("\\"):
            pieces.append(piece * 2 if end in hidden or tail.match(line, end) else piece)
        else:
            pieces.append(_escape(piece) if found.start() in hidden else piece)
    return "".join(pieces)


def _escape(char: str) -> str:
    return "\\x20" if char == " " else char.encode("unicode_escape").decode()

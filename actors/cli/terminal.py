"""What may reach a terminal: text without control sequences, and colour only where it is wanted.

Text of models, tools, files and servers can hold sequences that move the cursor, set the title or the clipboard or hide
what is written (ECMA-48, xterm's control sequences), and characters that reorder what is shown (CVE-2021-42574).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from callboard.protocol.lazy_loading import lazy_module, lazy_pattern

if TYPE_CHECKING:
    import dataclasses
    import json

    import msgspec
    import orjson
else:
    dataclasses = lazy_module("dataclasses")
    json = lazy_module("json")
    msgspec = lazy_module("msgspec")
    orjson = lazy_module("orjson")

#: A control string (OSC, DCS, SOS, PM, APC) that has not ended after so many characters is taken for text, so that an
#: answer in which one never ends is shown all the same. A hyperlink has up to 2,083.
MAX_CONTROL_STRING_CHARS: Final = 4_096
#: SGR codes (ECMA-48): faint and yellow.
DIM, YELLOW, PLAIN = "\x1b[2m", "\x1b[33m", "\x1b[0m"

_STRING: Final = (
    rf"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]{{0,{MAX_CONTROL_STRING_CHARS}}}"
)
#: Parameters and intermediates have no limit of their own; 64 are more than any terminal reads.
_CSI: Final = r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}"
_ESCAPE: Final = r"\x1b[ -/]{0,8}"
#: C0 but tab and line feed, DEL, C1. Then what is invisible and misleads: soft hyphens, bidirectional marks, overrides
#: and isolates, zero-width spaces, word joiners, invisible operators, byte order marks, annotations, tags and the
#: variation selectors that hide data. Joiners (U+200C, U+200D) stay: Persian and emoji need them.
_CONTROLS: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f"
_MISLEADING: Final = (
    "\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
)

#: What is taken out: whole sequences first, then what is left of those that are none.
_REMOVED: Final = lazy_pattern(
    rf"{_STRING}(?:\x07|\x9c|\x1b\\)|{_CSI}[@-~]?|{_ESCAPE}[0-~]?|[{_CONTROLS}{_MISLEADING}]"
)
#: A sequence at the end of a text that the next piece may go on with.
_UNFINISHED: Final = lazy_pattern(rf"(?:{_STRING}\x1b?|{_CSI}|{_ESCAPE})\Z")
_LINE_ENDS: Final = str.maketrans("\u2028\u2029", "\n\n")
#: JSON writers leave these as they are; as \\u.... they are the same JSON and harmless.
_UNESCAPED_IN_JSON: Final = lazy_pattern(rf"[\x7f-\x9f\u2028\u2029{_MISLEADING}]")


class TerminalText:
    """Cleans a text that comes in pieces, wherever it was cut. At most one unfinished sequence is held back."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        text = self._held + piece
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        self._held = text[end:]
        return cleaned(text[:end])

    def finish(self) -> str:
        """The rest: what began like a sequence and did not end. The next piece begins a new text."""
        rest, self._held = self._held, ""
        return cleaned(rest)


def cleaned(text: str) -> str:
    """A whole text without control sequences and misleading characters; tabs and line feeds stay."""
    return _REMOVED.sub("", text).translate(_LINE_ENDS)


def printable(text: str) -> str:
    """The text on one line, for messages: line feeds and tabs become spaces."""
    return cleaned(text).replace("\n", " ").replace("\t", " ")


def print_json(document: object) -> None:
    """One JSON document on stdout."""
    try:
        text = orjson.dumps(document, _fields, orjson.OPT_INDENT_2).decode()
    except TypeError:  # half of a surrogate pair, as in the name of a file that is not UTF-8
        text = json.dumps(document, indent=2, default=_fields)
    print_line(escaped(text))


def _fields(value: Any) -> dict[str, object]:
    is_struct = isinstance(value, msgspec.Struct)
    return msgspec.structs.asdict(value) if is_struct else dataclasses.asdict(value)


def print_line(text: str) -> None:
    """One line of result on stdout, or several."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def escaped(text: str) -> str:
    """The same JSON with everything that a terminal could act on as `\\uXXXX`."""
    return _UNESCAPED_IN_JSON.sub(lambda found: _as_utf16(found[0]), text)


def _as_utf16(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def shows_motion(stream: TextIO) -> bool:
    """Is it a terminal that understands control sequences at all? One that says nothing or "dumb" in TERM does not."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def shows_colour(stream: TextIO) -> bool:
    """May SGR codes be written? NO_COLOR with any value forbids them (no-color.org)."""
    return shows_motion(stream) and not os.environ.get("NO_COLOR")

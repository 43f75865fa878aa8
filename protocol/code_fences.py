"""Code shown to a model: the context answer, and the fence that says exactly where each piece of code is.

    <code="/abs/path/mod.py" #132:486>
    def retry(): ...
    </code>

`#START:END` are byte offsets, end exclusive. A path may hold anything: `&`, `"` and line breaks are written as in XML.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

#: Of the places that did not fit, so many are named.
NAMED_LEFT_OUT = 3

_UNESCAPED = {"&amp;": "&", "&quot;": '"', "&#10;": "\n", "&#13;": "\r"}
_ESCAPES = str.maketrans({plain: escaped for escaped, plain in _UNESCAPED.items()})
_ESCAPED = re.compile("|".join(_UNESCAPED))

#: What looks like the beginning of a fence. HTML's own `<code>` does not.
_OPENING = re.compile(r"<code\s*=[^\n>]*>?")
#: A well-formed one; the path is all between the quotes.
_HEADER = re.compile(r'<code="(?P<path>[^"\n]+)" #(?P<start>\d{1,15}):(?P<end>\d{1,15})>(?:\r?\n|$)')
_CLOSING = re.compile(r"(?:^|\r?\n)[ \t]*</code>")


class CodeFence(Struct, frozen=True):
    """A piece of code with its place. `position` is where the fence begins in the text it was parsed from."""

    path: str
    start_byte: int
    end_byte: int
    code: str
    position: int = 0


class MalformedFence(Struct, frozen=True):
    """Something that begins like a fence and is not one. `reason` says what is wrong, for the one who wrote it."""

    text: str
    reason: str
    position: int


class ContextFit(StrEnum):
    """How well what was found fits what was asked."""

    GOOD = "good"
    UNSURE = "unsure"
    NOTHING = "nothing"
    """What is shown is only the nearest there is."""


class ContextItem(NamedTuple):
    """One place in the code. The model reads path and span in the fence, so they are not said again beside it."""

    file: str
    """Absolute."""
    lines: str
    """First and last line, `12-48`, counted from 1, inclusive."""
    symbols: tuple[str, ...]
    """Canonical paths of what is in it, in order."""
    snippet: str
    """The code in its fence."""
    words: tuple[str, ...] = ()
    """Of the question, that are in it; those that say most first."""

    @property
    def name(self) -> str:
        """The last part of the first symbol."""
        return last_name(self.symbols[0])

    def as_json(self) -> dict[str, object]:
        """What the model is given."""
        shown = {"lines": self.lines, "symbols": self.symbols, "words": self.words, "snippet": self.snippet}
        return {name: value for name, value in shown.items() if value}


#: Raised when a field of the answer comes to mean something else.
CONTEXT_VERSION: Final = 1


class AssembledContext(Struct, frozen=True):
    """The answer of `request_code_context`."""

    queries: tuple[str, ...]
    context: tuple[ContextItem, ...]
    """The best first."""
    note: str = ""
    """What limits the answer, such as an index that is still being built; usually empty, and then not sent."""
    left_out: tuple[str, ...] = ()
    """Places that were found and for which the budget had no room, as `path:lines name`."""
    unread: tuple[str, ...] = ()
    """Files that could not be read, so that nothing was looked for in them."""
    fit: ContextFit = ContextFit.UNSURE

    def as_json(self) -> dict[str, object]:
        """What the model is given."""
        items = [each.as_json() for each in self.context]
        said = {
            "left_out": {"places": len(self.left_out), "first": self.left_out[:NAMED_LEFT_OUT]}
            if self.left_out
            else "",
            "could_not_read": self.unread,
            "note": self.note,
        }
        told = {name: value for name, value in said.items() if value}
        found = {"queries": self.queries, "fit": self.fit, "context": items}
        return {"version": CONTEXT_VERSION, "ok": True, **found, **told}


def last_name(canonical_path: str) -> str:
    """`retry` of `pkg.mod.Client.retry`, in any language; of prose the last heading."""
    if " > " in canonical_path:
        return canonical_path.rpartition(" > ")[2]
    return re.split(r"\.|::", canonical_path)[-1]


def render_fence(path: str, start_byte: int, end_byte: int, code: str) -> str:
    """The fence around a piece of code."""
    return f'<code="{path.translate(_ESCAPES)}" #{start_byte}:{end_byte}>\n{code}\n</code>'


def parse_fences(text: str) -> list[CodeFence | MalformedFence]:
    """All fences of a text, in order. Code that holds `</code>` itself is read whole if its length fits the span."""
    found: list[CodeFence | MalformedFence] = []
    position = 0
    while opening := _OPENING.search(text, position):
        start, position = opening.span()
        header = _HEADER.match(text, start)
        body = _body(text, header) if header is not None else None
        if header is None or body is None:
            found.append(MalformedFence(opening.group(), _fault(opening.group(), header), start))
            continue
        code, position = body
        path = _ESCAPED.sub(lambda match: _UNESCAPED[match.group()], header["path"])
        found.append(CodeFence(path, int(header["start"]), int(header["end"]), code, start))
    return found


def _fault(opening: str, header: re.Match[str] | None) -> str:
    if header is not None:
        if int(header["end"]) < int(header["start"]):
            return f"the span {header['start']}:{header['end']} ends before it starts"
        return "the fence is never closed: </code> is missing on a line of its own"
    if not opening.endswith(">"):
        return "the opening line does not end with >"
    if not re.match(r'<code="[^"\n]+"', opening):
        return "the path must be in double quotes directly after <code="
    if not re.search(r'" #\d{1,15}:\d{1,15}>$', opening):
        return "the span must be written #START:END after the path, two byte offsets"
    return "the code must begin on the line after the opening"


def _body(text: str, header: re.Match[str]) -> tuple[str, int] | None:
    """The code and where the text goes on. The span's own length is tried first, then the first closing line."""
    first = header.end()
    length = int(header["end"]) - int(header["start"])
    if length < 0:
        return None
    exact = text[first : first + length].encode("utf-8", "surrogatepass")[:length].decode("utf-8", "ignore")
    if text.startswith("\n</code>", first + len(exact)) and len(exact.encode("utf-8", "surrogatepass")) == length:
        return exact, first + len(exact) + len("\n</code>")
    closing = _CLOSING.search(text, first)
    return (text[first : closing.start()], closing.end()) if closing is not None else None

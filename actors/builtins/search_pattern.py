"""What search_text looks for: a text or a regular expression of Python's, and what each line with it must hold.

The regular expression decides. The needles, literal pieces of it, only say which files are worth looking into: by
themselves for our own search, and as what ripgrep is given. So the answer does not depend on which of the two is used,
though their regular expressions differ.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from callboard.protocol.errors import ToolError

#: Shorter pieces are in nearly every file.
MIN_NEEDLE_CHARS: Final = 2
MAX_QUERY_CHARS: Final = 1_000
#: What can make a line match by itself that does not match within its text: anchors of the whole text, lookaround,
#: flags, and what never gives back what it took.
_NEEDS_ITS_LINE_ALONE: Final = re.compile(r"\\[AZz]|\(\?(?![:P])|[*+?}]\+")
_CLASS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_REPEAT: Final = re.compile(r"\{\d*(?:,\d*)?\}")
#: Escapes with digits or a name behind them, and flags, which can change what everything else means.
_NOT_READ: Final = re.compile(r"\\[0-9xuUN]|\(\?[aiLmsux-]+[:)]")
#: What Python's regular expressions and ripgrep's have in common, where the text is ASCII. (`$` is not: lines that end
#: with CRLF differ; nor are the set operations that ripgrep knows in a class.)
_IN_A_CLASS: Final = r"[^\\\[\]&~^-]|-(?!-)|\\[dwstDW]|\\[^A-Za-z0-9<>\s]"
_SHARED: Final = re.compile(
    r"(?:[A-Za-z0-9 _,;:<>=!@#%&~\"'/`.|-]|\^|\\[dwsbtDWSB]|\\[^A-Za-z0-9<>\s]|\((?:\?:)?|\)|[*+?]\??"
    rf"|\{{\d+(?:,\d*)?\}}\??|\[\^?(?:{_IN_A_CLASS})+\])+"
)


class SearchPattern(Struct, frozen=True):
    """A line matches if `regex` is found in it."""

    regex: re.Pattern[str]
    needles: tuple[str, ...]
    """One of them is in each line that matches; none is known if there are none. In small letters if case is ignored,
    and then ASCII."""
    shared: str
    """The same for ripgrep, without Unicode: it is right for texts that are ASCII. Empty if there is none."""
    ignores_case: bool
    by_line: bool
    """Must each line be looked at by itself? Else a match in the whole text leads to those of its lines."""

    def may_be_in(self, data: bytes) -> bool:
        """Can a file with these bytes (UTF-8) have a match?"""
        if not self.needles:
            return True
        if not self.ignores_case:
            return any(needle.encode() in data for needle in self.needles)
        if not data.isascii():
            return True  # letters beyond ASCII may be the same but for case: the Kelvin sign and k
        lower = data.lower()
        return any(needle.encode() in lower for needle in self.needles)


def pattern_of(query: str, *, is_regex: bool, ignores_case: bool) -> SearchPattern:
    """Raises ToolError for a query that can match no line, or that matches every one."""
    if not query or len(query) > MAX_QUERY_CHARS:
        raise _wrong(f"1 to {MAX_QUERY_CHARS:,} characters", f"{len(query):,}")
    if "\n" in query or "\0" in query:
        raise _wrong("one line of text: lines are searched one by one", "a line break or NUL")
    flags = re.MULTILINE | (re.IGNORECASE if ignores_case else 0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a FutureWarning about [[ is nothing that a model can act on
            regex = re.compile(query if is_regex else re.escape(query), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise _wrong(f"a regular expression of Python's ({error})", query[:200]) from None
    if regex.match(""):
        raise _wrong("a pattern that does not match the empty text, which is in every line", query[:200])
    needles = needles_of(query) if is_regex else (query,)
    if ignores_case:
        needles = _in_ascii(needles)
    by_line = is_regex and _NEEDS_ITS_LINE_ALONE.search(query) is not None
    worth = all(len(needle) >= MIN_NEEDLE_CHARS for needle in needles)
    shared = _shared(query) if is_regex and not by_line and query.isascii() else ""
    return SearchPattern(regex, needles if worth else (), shared, ignores_case, by_line)


def _shared(regex: str) -> str:
    if not _SHARED.fullmatch(regex):
        return ""
    return _ESCAPE_OR_CLASS.sub(lambda found: _with_separators(found[0]), regex)


#: Whole, so that `\\\\s` is not taken for white space.
_ESCAPE_OR_CLASS: Final = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.")


def _with_separators(part: str) -> str:
    """Python counts four control characters more as white space."""
    if part == r"\s":
        return r"[\s\x1c-\x1f]"
    return part if part.startswith("[^") or part[0] == "\\" else part.replace(r"\s", r"\s\x1c-\x1f")


def needles_of(regex: str) -> tuple[str, ...]:
    """Texts of which one is in all that the (valid) regular expression matches; none where it is not plain to see."""
    if _NOT_READ.search(regex):
        return ()
    needles = [max(pieces, key=len, default="") for pieces in _alternatives(regex)]
    return tuple(needles) if all(needles) else ()


def _alternatives(regex: str) -> list[list[str]]:
    """The literal pieces, outside of all groups, of each alternative."""
    alternatives: list[list[str]] = [[]]
    piece = ""
    for token in _tokens(regex):
        if len(token) == 1 or (len(token) == 2 and token[0] == "\\" and not token[1].isalnum()):
            piece += token[-1]
            continue
        if token in _MAY_BE_NONE or token.startswith("{{"):
            piece = piece[:-1]  # the character before it
        alternatives[-1].append(piece)
        piece = ""
        if token == "||":
            alternatives.append([])
    alternatives[-1].append(piece)
    return alternatives


#: How `_tokens` writes the operators, so that they are told from characters.
_MAY_BE_NONE: Final = ("**", "??")
_OPERATORS: Final = {each: each * 2 for each in "*?+|.^$"}


def _tokens(regex: str) -> Iterator[str]:
    """A character, an escape, an operator (written twice), or a class, group or repeat as a whole."""
    at = 0
    while at < len(regex):
        found = _CLASS.match(regex, at) if regex[at] == "[" else _REPEAT.match(regex, at)
        if found is not None:
            token, end = f"{{{found[0]}" if found[0][0] == "{" else found[0], found.end()
        elif regex[at] == "\\":
            token, end = regex[at : at + 2], at + 2
        elif regex[at] == "(":
            end = _group_end(regex, at)
            token = regex[at:end]
        else:
            token, end = _OPERATORS.get(regex[at], regex[at]), at + 1
        yield token
        at = end


def _group_end(regex: str, start: int) -> int:
    depth, at = 0, start
    while at < len(regex):
        inside = _CLASS.match(regex, at) if regex[at] == "[" else None
        depth += {"(": 1, ")": -1}.get(regex[at], 0)
        at = inside.end() if inside else at + 2 if regex[at] == "\\" else at + 1
        if not depth:
            break
    return at


def _in_ascii(needles: tuple[str, ...]) -> tuple[str, ...]:
    """The longest piece of each that is ASCII, in small letters."""
    pieces = tuple(max(re.split(r"[^\x00-\x7f]+", needle), key=len).lower() for needle in needles)
    return pieces if all(pieces) else ()


def _wrong(expected: str, received: str) -> ToolError:
    return ToolError(f"query must be {expected}", field="query", expected=expected, received=received)

"""Patterns of names, commands, paths and hosts, as the rules of a policy write them."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

_SET: Final = re.compile(r"\[(?P<not>!?)(?P<members>\]?[^\]]+|\])\]")


def matches(pattern: str, text: str, *, is_path: bool, ignore_case: bool = False) -> bool:
    """Does the pattern match the whole text? See `Rule`."""
    pattern, text = (unicodedata.normalize("NFC", each) for each in (pattern, text))
    if ignore_case:
        pattern, text = pattern.casefold(), text.casefold()
    return _compiled(pattern, is_path).fullmatch(text) is not None


def literal(text: str) -> str:
    """A pattern that matches this text and no other."""
    return re.sub(r"[*?\[]", r"[\g<0>]", text)


@lru_cache(maxsize=1_000)
def _compiled(pattern: str, is_path: bool) -> re.Pattern[str]:
    any_text, any_character = (r"[^/]*", "[^/]") if is_path else (".*", ".")
    if is_path and pattern.endswith("/**"):
        return re.compile(_compiled(pattern[:-3], True).pattern + r"(?:/.*)?", re.DOTALL)
    expression, at = "", 0
    while at < len(pattern):
        if is_path and pattern.startswith("**", at):
            is_folder = pattern.startswith("**/", at)
            expression += "(?:.*/)?" if is_folder else ".*"
            at += 3 if is_folder else 2
        elif (found := _SET.match(pattern, at)) is not None:
            inner = re.sub(r"[\\\[\]^&~|]", r"\\\g<0>", found["members"])
            expression += f"{'(?!/)' if is_path else ''}[{'^' if found['not'] else ''}{inner}]"
            at = found.end()
        else:
            expression += {"*": any_text, "?": any_character}.get(pattern[at]) or re.escape(pattern[at])
            at += 1
    return re.compile(expression, re.DOTALL)

"""Texts that try to hide in what a person decides on, and how the shown text is read back."""

from __future__ import annotations

import re
from typing import Final

from hypothesis import strategies as st

#: What draws nothing, moves what is behind it or ends a line; what looks like our escapes, titles and questions; what
#: is masked for models and logs.
_PIECES: Final = (
    *"\n\t\r\x00\x07\x08\x0b\x0c\x1b\x7f\x85\x9b\xa0\xad\u061c\u115f\u180e\u2003\u200b\u200d\u202e\u2028\u2060\u2800\u3000",
    *"\u3164\ufe0f\ufeff\uffa0\U000e0041\ud800",
    *("\\", "\\\\", "\\x1b", "\\u200b", "\\U000e0041", "\\n", "\\r", "\\t", "x1b", "r"),
    *("\n? note asks to run (read)\n", "  path: README.md", "touches", "... 3 more lines are not shown: v shows them"),
    *("machine h login a password ", "hunter2;touch${IFS}x", "--token Zq9Lm3Xc7A;./x.sh", 'password = "Zq9;Lm3|Xc7A"'),
    *("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "-----BEGIN PRIVATE KEY-----\nMIIEowIBAAKCAQEA0Z3VS5JJ\n", "⌧***⌧"),
    *("[y]es, once  [r]equest  [a]lways  [n]o  [d] never  [e]dit  [v]iew all  [?] ", " " * 80, "é", "日本"),
)
HOSTILE_TEXTS: Final = st.lists(st.one_of(st.text(max_size=8), st.sampled_from(_PIECES)), max_size=12).map("".join)
LONG_TEXTS: Final = st.one_of(
    HOSTILE_TEXTS,
    st.integers(2, 60).map(lambda count: "".join(f"line {number}\n" for number in range(count)) + "END"),
    st.integers(300, 900).map(lambda count: "x" * count + "END"),
)

_ESCAPE: Final = re.compile(r"(\\+)(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[rnt])")


def unescaped(shown: str, letters: str = "rnt") -> str:
    """The text that is shown so: backslashes before an escape are doubled, and an odd one begins it."""

    def read(found: re.Match[str]) -> str:
        slashes, tail = found.groups()
        if len(tail) == 1 and tail not in letters:
            return found[0]
        char = f"\\{tail}".encode().decode("unicode_escape") if len(slashes) % 2 else tail
        return "\\" * (len(slashes) // 2) + char

    return _ESCAPE.sub(read, shown)

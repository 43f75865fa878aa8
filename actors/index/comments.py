"""Comments and docstrings, told from code by their marks: near enough for weighing a text, in every language."""

from __future__ import annotations

import re
from typing import Final

#: Blocks, then lines. A mark of a line needs a blank behind it: `#include`, `i--` and `http://` are none.
_COMMENT: Final = re.compile(
    r'"""(.*?)"""|'
    r"'''(.*?)'''|"
    r"/\*+!?(.*?)\*/|"
    r"--\[\[(.*?)\]\]|"
    r"(?:^|(?<=[ \t;{}()]))(?://+!?|#+!?|--)[ \t]+([^\n]*)",
    re.DOTALL | re.MULTILINE,
)
_BLANK: Final = re.compile(r"\s+")


def split_comments(text: str) -> tuple[str, str]:
    """What the comments say, in one line, and the rest."""
    said = " ".join(group for found in _COMMENT.findall(text) for group in found if group)
    return _BLANK.sub(" ", said).strip(), _COMMENT.sub(" ", text)


def code_chars(text: str) -> int:
    """How much of a text is code: comments and the room around words do not count."""
    return len(_BLANK.sub(" ", _COMMENT.sub(" ", text)).strip())

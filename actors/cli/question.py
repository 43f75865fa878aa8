"""The question that `ask` asks: typed, read from standard input, or typed about what standard input holds."""

from __future__ import annotations

import re
import sys
from typing import Final

from callboard.actors.cli.arguments import STDIN
from callboard.protocol.errors import UsageError

#: About 300,000 tokens, more than most context windows: a larger input is data to search, not a question.
MAX_INPUT_BYTES: Final = 1024 * 1024
_HOW: Final = 'such as: git diff | callboard ask "what does this change?" -'


def question_of(typed: str, given_input: str | None) -> str:
    """The text to ask. Blocks while standard input is read. Raises UsageError for one that cannot be asked."""
    if typed == STDIN:
        if given_input is not None:
            raise UsageError(f"the question and its input cannot both be standard input; type the question, {_HOW}")
        return _standard_input().strip()
    if not typed.strip():
        raise UsageError('the question is empty; type: callboard ask "where is ... ?"')
    try:
        typed.encode()
    except UnicodeEncodeError:
        raise UsageError("the question is not valid UTF-8; check the terminal's encoding (locale)") from None
    return typed if given_input is None else about(typed, _standard_input())


def about(question: str, text: str) -> str:
    """The question and, in a fence that the text itself does not end, what it is about."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    line_end = "" if text.endswith("\n") else "\n"
    return f"{question}\n\nThe text that this is about, from standard input:\n{fence}\n{text}{line_end}{fence}"


def _standard_input() -> str:
    """All of it as text; bytes that are not UTF-8 become U+FFFD."""
    stream = sys.stdin
    if stream is None or stream.closed:
        raise UsageError(f"standard input is closed; give it a text, {_HOW}")
    if stream.isatty():
        raise UsageError(f'"-" reads standard input, which is the terminal; give it a text, {_HOW}')
    data = stream.buffer.read(MAX_INPUT_BYTES + 1) or b""  # None where nothing is there and it does not block
    if len(data) > MAX_INPUT_BYTES:
        raise UsageError(f"standard input holds more than {MAX_INPUT_BYTES:,} bytes; give it less, or index a folder")
    text = data.decode("utf-8-sig", "replace")
    if not text.strip():
        raise UsageError(f"standard input is empty; give it a text, {_HOW}")
    return text

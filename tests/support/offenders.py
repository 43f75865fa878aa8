"""A rule over many things is one test, which lists all that break it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def no_offenders(found: Iterable[str]) -> None:
    """Fail with one line for each; a comparison with an empty list would show the first, and a part of the others."""
    lines = list(found)
    assert not lines, "\n".join(["", *lines])


def places(pattern: re.Pattern[str], path: Path, text: str | None = None) -> Iterator[tuple[str, re.Match[str]]]:
    """File and line of all that is found in a file; `text` is what of it is looked at, where that is not all."""
    text = path.read_text() if text is None else text
    for found in pattern.finditer(text):
        yield f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found

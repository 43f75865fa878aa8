"""A rule over many things is one test, which lists all that break it."""

from __future__ import annotations

from collections.abc import Iterable


def no_offenders(found: Iterable[str]) -> None:
    """Fail with one line for each; a comparison with an empty list would show the first, and a part of the others."""
    lines = list(found)
    assert not lines, "\n".join(["", *lines])

"""What `callboard index` says of a refresh."""

from __future__ import annotations

from callboard.actors.cli.indexing import sentence
from callboard.actors.index import RefreshSummary


def test_one_is_no_plural() -> None:
    assert sentence(RefreshSummary(indexed=1, files=1, symbols=1)) == (
        "1 file indexed, 0 unchanged, 0 removed; 1 symbol in 1 file"
    )


def test_everything_is_told_in_one_line() -> None:
    summary = RefreshSummary(1_200, 3, 1, {"too long": 2, "binary": 1}, 1_203, 25_000, 30_000, "built again")
    assert sentence(summary) == (
        "1,200 files indexed, 3 unchanged, 1 removed; 25,000 symbols in 1,203 files; "
        "skipped: 1 binary, 2 too long; built again"
    )

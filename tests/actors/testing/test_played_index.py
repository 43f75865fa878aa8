"""The index's play: the real one keeps to the model, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.actors.index import rag, refresh, searching, walk
from callboard.actors.index.code_index import CodeIndex
from callboard.actors.index.rag import Indexer
from callboard.actors.index.records import IndexState
from callboard.actors.index.searching import Filters
from callboard.actors.index.store import SqliteStore
from callboard.actors.index.walk import Walk
from callboard.actors.testing.played_index import play

#: Crashes are what is played, and each is logged.
pytestmark = pytest.mark.usefixtures("quiet")

Patch = pytest.MonkeyPatch
SEEDS = 12
#: Seeds within which each planted fault is found.
MOST_SEEDS = 40


def test_the_index_keeps_what_it_promises() -> None:
    assert [found for seed in range(SEEDS) for found in play(seed)] == []


def one_more(patch: Patch) -> None:
    search = CodeIndex.search
    patch.setattr(CodeIndex, "search", lambda self, query, k=10, *given: search(self, query, k + 1, *given))


def never_again(patch: Patch) -> None:
    answer = Indexer._refresh

    def the_first_one(self: Any, message: Any) -> Any:
        self.kept = getattr(self, "kept", None) or answer(self, message)
        return self.kept

    patch.setattr(Indexer, "_refresh", the_first_one)


def lines_from_nought(patch: Patch) -> None:
    search = CodeIndex.search

    def one_less(self: Any, *given: Any) -> Any:
        return [replace(hit, start_line=hit.start_line - 1) for hit in search(self, *given)]

    patch.setattr(CodeIndex, "search", one_less)


FAULTS: dict[str, Callable[[Patch], object]] = {
    "more is given than was asked for": one_more,
    "what is ignored is read": lambda patch: patch.setattr(walk, "is_ignored", lambda *_: False),
    "secret and linked files are read": lambda patch: patch.setattr(Walk, "_is_left_out", lambda *_: False),
    "a refresh is answered with an earlier one": never_again,
    "lines are counted from 0": lines_from_nought,
    "filters of paths are not kept": lambda patch: patch.setattr(Filters, "fits_file", lambda *_: True),
    "a folder is taken for all that begins so": lambda patch: patch.setattr(
        searching, "_path_fits", lambda relative, absolute, wanted: relative.startswith(wanted.strip("./"))
    ),
    "what could not be read is not tried again": lambda patch: patch.setattr(refresh, "_remembered", lambda each: each),
    "what has become secret is shown": lambda patch: patch.setattr(
        CodeIndex, "secret_files", lambda _: lambda path: False
    ),
    "a part of an index is said to be whole": lambda patch: patch.setattr(
        SqliteStore, "state", lambda _: IndexState(True, 0, 0)
    ),
    "a question waits for a slow look": lambda patch: patch.setattr(rag, "REFRESH_PATIENCE_SECONDS", 30.0),
    "names are not looked up": lambda patch: patch.setattr(CodeIndex, "lookup", lambda *_: ()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: Patch) -> None:
    FAULTS[fault](monkeypatch)
    assert any(play(seed) for seed in range(MOST_SEEDS)), f"{MOST_SEEDS} plays do not see that {fault}"

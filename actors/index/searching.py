"""From questions to ranked tiles: candidates by words and by meaning, one order for each question, one for all."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from callboard.actors.index import languages, ranking
from callboard.actors.index.lexical import LexicalIndex, name_stems, stems_of
from callboard.actors.index.nearest import Similarities
from callboard.actors.index.store import ChunkRow, SqliteStore
from callboard.actors.index.symbols import KINDS
from callboard.actors.index.tokens import kin_of, query_words
from callboard.protocol.errors import UsageError

#: Questions that are asked together. More are no longer one need, and each costs a search.
MAX_QUERIES: Final = 8
#: With filters, so many hits are looked through for those that pass.
FILTERED_CANDIDATES: Final = 50_000
#: Where no word of a question is found anywhere, the nearest tile must be so near (its cosine) to say anything.
NEAR_ENOUGH: Final = 0.3
#: Of several questions the best score of a tile counts, and the mean of its other scores so much.
AGREEMENT: Final = 0.3
#: What a tile gains from the best one that calls it; a name with more definitions than these says too little.
CALLER_SHARE: Final = 0.1
CALLERS: Final = 40
MAX_DEFINITIONS: Final = 3

#: What a copy counts, and how much of the other's size it has at least: compiled or formatted otherwise.
COPY_WORTH: Final = 0.5
COPY_SIZE: Final = 0.7

Ranked = list[tuple[float, ChunkRow]]
Near = Mapping[str, Similarities]
"""What is near each question, where that is known."""


class Filters(Struct, frozen=True):
    """What a place must be like to be found; empty: anything. One of each given kind of filter must fit.

    `paths`: a folder or file, or a pattern such as `src/*.py`, relative to its workspace; a `*` crosses folders.
    `languages`: names such as `python` (languages.py). `kinds`: of symbols, such as `function` (symbols.KINDS).
    """

    paths: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.paths or self.languages or self.kinds)

    def check(self) -> None:
        """Raises UsageError: there is no such language or kind."""
        known = {"language": languages.names(), "kind": sorted(KINDS)}
        for what, asked in (("language", self.languages), ("kind", self.kinds)):
            if unknown := sorted(set(asked) - set(known[what])):
                raise UsageError(f"there is no {what} {unknown[0]!r}; there are {', '.join(known[what])}")

    def fits(self, row: ChunkRow) -> bool:
        """Whether a tile passes."""
        return (not self.kinds or row.kind in self.kinds) and self.fits_file(row.path, row.root, row.language)

    def fits_file(self, path: str, root: str, language: str) -> bool:
        """Whether tiles of a file may pass."""
        if self.languages and language not in self.languages:
            return False
        return not self.paths or any(_path_fits(path[len(root) + 1 :], path, wanted) for wanted in self.paths)

    def __str__(self) -> str:
        parts = (("path", self.paths), ("language", self.languages), ("kind", self.kinds))
        return ", ".join(f"{what} {' or '.join(values)}" for what, values in parts if values)


NO_FILTERS: Final = Filters()


def _path_fits(relative: str, absolute: str, wanted: str) -> bool:
    wanted = wanted.removeprefix("./").rstrip("/")
    path = absolute if wanted.startswith("/") else relative
    return path == wanted or path.startswith(f"{wanted}/") or fnmatch.fnmatchcase(path, wanted)


def questions_of(query: str | Sequence[str]) -> tuple[str, ...]:
    """Each question once, without the empty ones.

    Raises:
        UsageError: there is none, or there are too many.
    """
    asked = (query,) if isinstance(query, str) else tuple(query)
    if len(asked) > MAX_QUERIES:
        raise UsageError(f"at most {MAX_QUERIES} queries can be asked together, and there are {len(asked)}")
    return tuple(dict.fromkeys(each.strip() for each in asked if each.strip()))


def ranked(
    store: SqliteStore,
    lexical: LexicalIndex,
    questions: Sequence[str],
    near: Near,
    filters: Filters,
    k: int,
) -> Ranked:
    """The best tiles, best first. `near` tells what is near the questions; one that is not in it is asked by words."""
    wanted = ranking.WantedAnswer.of_all(questions)
    orders = [
        _of_one(store, lexical, question, near.get(question), filters, k, each)
        for question, each in zip(questions, wanted, strict=True)
    ]
    return _with_copies_less(orders[0] if len(orders) == 1 else _together(orders))


def _with_copies_less(order: Ranked) -> Ranked:
    """JavaScript that was compiled from TypeScript, a package that is vendored twice: what has the name, the place and
    about the size of a better hit in another file tells nothing more."""
    first: dict[str, ChunkRow] = {}
    return _sorted(
        (score * COPY_WORTH if _is_copy(row, first.setdefault(row.canonical_path, row)) else score, row)
        for score, row in order
    )


def _is_copy(row: ChunkRow, of: ChunkRow) -> bool:
    shorter, longer = sorted((row.code_chars, of.code_chars))
    return row.path != of.path and shorter >= COPY_SIZE * longer


def _of_one(
    store: SqliteStore,
    lexical: LexicalIndex,
    question: str,
    near: Similarities | None,
    filters: Filters,
    k: int,
    wanted: ranking.WantedAnswer,
) -> Ranked:
    words = query_words(question)
    stems = dict.fromkeys(stems_of(" ".join(words)))
    limit = FILTERED_CANDIDATES if filters else max(ranking.CANDIDATES, 2 * k)
    scores = dict(lexical.search(stems, limit, _kin(words)))
    if not scores and near is not None and near.top < NEAR_ENOUGH:
        near = None
    chosen = [*scores, *(near.best(FILTERED_CANDIDATES if filters else ranking.DENSE_CANDIDATES) if near else ())]
    rows = {chunk: row for chunk, row in store.chunks(chosen).items() if not filters or filters.fits(row)}

    def in_order(rows: Mapping[int, ChunkRow]) -> Ranked:
        found = {chunk: scores[chunk] for chunk in rows if chunk in scores}
        names = {chunk: len(stems.keys() & name_stems(rows[chunk].name)) / len(stems) for chunk in found}
        dense, reached = (near.of(rows), near.reached) if near is not None else ({}, 0.0)
        return ranking.order(rows, found, names, dense, wanted=wanted, reached=reached)

    return _with_callers(store, in_order(rows), lambda row: ranking.worth(row, wanted))


def _with_callers(store: SqliteStore, order: Ranked, worth: Callable[[ChunkRow], float]) -> Ranked:
    """What a good hit calls by a rare name is likelier itself."""
    callers: dict[int, float] = {}
    for score, row in order[:CALLERS]:
        callers.setdefault(row.symbol, score)
    best: dict[str, float] = {}
    for source, target in store.calls(list(callers)):
        best[target] = max(best.get(target, 0.0), callers[source])
    rare = store.rare_names({row.name for _, row in order} & best.keys(), MAX_DEFINITIONS)
    raised = [
        (score + CALLER_SHARE * best[row.name] * worth(row) if row.name in rare else score, row) for score, row in order
    ]
    return _sorted(raised)


def _together(orders: Iterable[Ranked]) -> Ranked:
    """One order out of several."""
    scores: dict[ChunkRow, list[float]] = {}
    count = 0
    for order in orders:
        count += 1
        for score, row in order:
            scores.setdefault(row, []).append(score)
    fused = []
    for row, each in scores.items():
        top = max(each)
        fused.append(((top + AGREEMENT * (sum(each) - top) / (count - 1)) / (1 + AGREEMENT), row))
    return _sorted(fused)


def _sorted(scored: Iterable[tuple[float, ChunkRow]]) -> Ranked:
    return sorted(scored, key=lambda pair: (-pair[0], pair[1].path, pair[1].start_byte))


def _kin(words: Sequence[str]) -> dict[str, list[str]]:
    """For the stem of each word the stems of its family, but for those that are asked for themselves."""
    asked = set(stems_of(" ".join(words)))
    families = ((stems_of(word), stems_of(" ".join(kin_of(word)))) for word in words)
    return {stem: [each for each in dict.fromkeys(kin) if each not in asked] for (stem,), kin in families}

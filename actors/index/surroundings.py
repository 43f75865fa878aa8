"""What belongs to what was found: the code that the best places call and are called by, their neighbours, and the code
that prose names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from callboard.actors.index import languages
from callboard.actors.index.parsing import read_now
from callboard.actors.index.ranking import worth
from callboard.actors.index.store import ChunkRow, SqliteStore

#: So many of the best places have their callers and callees looked for.
CENTRES: Final = 5
#: Of so many files, those of the best places, the rest is worth showing.
FILES: Final = 4
#: A name with more definitions than this says too little about which one is called.
MAX_DEFINITIONS: Final = 3
#: Callers of one answer: those of a name such as `get` are thousands.
MAX_CALLERS: Final = 12
MAX_ROWS: Final = 60
#: Of so many of the best places the prose is read for names of code.
PROSE: Final = 3
#: Names in a section that are looked up, the first ones, and tiles of theirs.
MAX_NAMES: Final = 40
MAX_NAMED: Final = 6
#: What prose names is shown if it is worth more than this (ranking.py): no tests, no examples, no constants.
LEAST_WORTH: Final = 0.45
#: What is a name of code in prose: the last part of a path, what has brackets behind it, or is not small letters alone.
#: A plain word between backticks is mostly a word: `name`, `strip`.
_WRITTEN_AS_CODE: Final = re.compile(
    r"`[\w.:]+[.:](?P<last>[^\W\d]\w{2,})`|(?P<called>[^\W\d]\w{2,})\(|"
    r"\b(?P<mixed>[a-z]+_[a-z]\w*|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*)\b"
)


def surroundings(store: SqliteStore, found: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Tiles around those that were found, the closest first; none of those."""
    centres = found[:CENTRES]
    related = [*_callees(store, centres), *_callers(store, centres)]
    shown = {_place(row) for row in found}
    kept = {_place(row): row for row in [*related, *_neighbours(store, found)] if _place(row) not in shown}
    return list(kept.values())


def named_code(store: SqliteStore, found: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Tiles of the code that prose among the best places names, in its order: a guide says what to do with it."""
    prose = (row for row in found[:PROSE] if not languages.by_name(row.language).is_code)
    names = list(dict.fromkeys(name for row in prose for name in _names_in(row)))
    rare = store.rare_names(names, MAX_DEFINITIONS)
    rows = store.chunks_of_names(rare, MAX_ROWS).values()
    worthy = [row for row in rows if worth(row) > LEAST_WORTH]
    return sorted(worthy, key=lambda row: names.index(row.name))[:MAX_NAMED]


def _names_in(row: ChunkRow) -> Iterable[str]:
    text = read_now(row.path)[row.start_byte : row.end_byte].decode("utf-8", "replace")
    found = (match["last"] or match["called"] or match["mixed"] for match in _WRITTEN_AS_CODE.finditer(text))
    return list(dict.fromkeys(found))[:MAX_NAMES]


def _place(row: ChunkRow) -> tuple[str, int]:
    return row.path, row.start_byte


def _callees(store: SqliteStore, centres: Sequence[ChunkRow]) -> Iterable[ChunkRow]:
    own = {row.name for row in centres}
    called = {target for _, target in store.calls([row.symbol for row in centres])} - own
    return store.chunks_of_names(store.rare_names(called, MAX_DEFINITIONS), MAX_ROWS).values()


def _callers(store: SqliteStore, centres: Sequence[ChunkRow]) -> Iterable[ChunkRow]:
    names = store.rare_names({row.name for row in centres if row.kind != "file"}, MAX_DEFINITIONS)
    return store.callers(names, MAX_CALLERS).values()


def _neighbours(store: SqliteStore, found: Sequence[ChunkRow]) -> list[ChunkRow]:
    """The other tiles of the best files, by their distance from what was found there; the best file first."""
    centres: dict[str, list[int]] = {}
    for row in found:
        centres.setdefault(row.path, []).append(row.start_byte)
    files = list(centres)[:FILES]
    near: Mapping[int, ChunkRow] = store.chunks_of_files(files)

    def distance(row: ChunkRow) -> tuple[int, int]:
        # By turns of the files: the second neighbour in the best one comes behind the first in the others.
        return min(abs(row.start_byte - centre) for centre in centres[row.path]), files.index(row.path)

    return sorted(near.values(), key=distance)

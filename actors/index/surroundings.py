"""What belongs to what was found: the code that the best places call and are called by, and their neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

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


def surroundings(store: SqliteStore, found: Sequence[ChunkRow]) -> list[ChunkRow]:
    """Tiles around those that were found, the closest first; none of those."""
    centres = found[:CENTRES]
    related = [*_callees(store, centres), *_callers(store, centres)]
    shown = {_place(row) for row in found}
    kept = {_place(row): row for row in [*related, *_neighbours(store, found)] if _place(row) not in shown}
    return list(kept.values())


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

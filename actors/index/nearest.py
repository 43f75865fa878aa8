"""The vectors of an index in memory, and the tiles nearest to a question.

All of them are compared: one byte a number, in blocks that fit the processor's cache, 120,000 tiles of 384 numbers take
10 ms and 46 MB (four bytes a number: 16 ms, 184 MB; two: 83 ms, since numpy has no quick way to read them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Numbers = NDArray[numpy.float32]
    Bytes = NDArray[numpy.int8]
    Ids = NDArray[numpy.int64]

#: Rows that are compared at once.
BLOCK_ROWS: Final = 512
#: Rows that are summed at once.
SUMMED_ROWS: Final = 4_096
#: How much the mean of its file's vectors counts beside a tile's own: what a file is about is said in few of its tiles.
FILE_WEIGHT: Final = 0.5
#: Less than this, its file's share counted in, is not near, though it be the nearest: what is may have no vector yet.
NEAR: Final = 0.4
#: What the largest number of a vector becomes.
_FULL: Final = 127
_SCALE_BYTES: Final = 4


def packed(vector: Numbers) -> bytes:
    """A vector as it is kept: the size of its step, then one byte a number. Off by at most half a step."""
    import numpy  # noqa: PLC0415  optional extra

    step = numpy.float32(max(float(numpy.abs(vector).max(initial=0.0)), 1e-9) / _FULL)
    return step.tobytes() + numpy.round(vector / step).astype(numpy.int8).tobytes()


class TileVector(NamedTuple):
    """A vector as `packed` makes it, and the file whose meaning its tile shares; 0: of none."""

    file: int
    vector: bytes


class NearTiles:
    """Which tile has which vector. Never changed: `changed` gives another one, so that any thread may read this one."""

    def __init__(self, ids: Ids, files: Ids, rows: Bytes, steps: Numbers) -> None:
        self._ids, self._files, self._rows, self._steps = ids, files, rows, steps
        self._place = {int(each): place for place, each in enumerate(ids)}
        self._means: _FileMeans | None = None

    @classmethod
    def empty(cls) -> NearTiles:
        import numpy  # noqa: PLC0415  optional extra

        none = numpy.empty(0, numpy.int64)
        return cls(none, none, numpy.empty((0, 0), numpy.int8), numpy.empty(0, numpy.float32))

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, tile: int) -> bool:
        return tile in self._place

    def ids(self) -> set[int]:
        """The tiles that have a vector here."""
        return set(self._place)

    def changed(self, gone: Iterable[int], added: Mapping[int, TileVector]) -> NearTiles:
        """Without some tiles and with others. Vectors of another length than those that are here are of another model
        of the same name: the new ones win."""
        import numpy  # noqa: PLC0415  optional extra

        new, lost = dict(added), set(gone) & self._place.keys()
        if not new and not lost:
            return self
        length = len(next(iter(new.values())).vector) if new else self._rows.shape[1] + _SCALE_BYTES
        new = {tile: each for tile, each in new.items() if len(each.vector) == length}
        lost |= new.keys()
        keeps = length == self._rows.shape[1] + _SCALE_BYTES
        kept = self if keeps else NearTiles.empty()
        if keeps and lost & self._place.keys():
            kept = self._at([place for tile, place in self._place.items() if tile not in lost])
        data = numpy.frombuffer(b"".join(each.vector for each in new.values()), numpy.int8).reshape(len(new), length)
        steps = data[:, :_SCALE_BYTES].copy().view(numpy.float32).reshape(-1)
        ids = numpy.fromiter(new, numpy.int64, len(new))
        files = numpy.fromiter((each.file for each in new.values()), numpy.int64, len(new))
        if not len(kept):
            return NearTiles(ids, files, data[:, _SCALE_BYTES:].copy(), steps)
        return NearTiles(
            numpy.concatenate([kept._ids, ids]),
            numpy.concatenate([kept._files, files]),
            numpy.concatenate([kept._rows, data[:, _SCALE_BYTES:]]),
            numpy.concatenate([kept._steps, steps]),
        )

    def _at(self, places: list[int]) -> NearTiles:
        return NearTiles(self._ids[places], self._files[places], self._rows[places], self._steps[places])

    def ready(self) -> None:
        """Calculate what questions need, now and not when the first one comes: 0.1 s for 120,000 tiles."""
        if self._means is None and len(self._ids):
            self._means = _FileMeans(self._files, self._rows, self._steps)

    def fits(self, question: Numbers) -> bool:
        """Whether a question's vector is as long as those here."""
        return not len(self._ids) or self._rows.shape[1] == len(question)

    def similarities(self, question: Numbers, reached: float = 0.0) -> Similarities:
        """How near each tile, with its file, is to a question that fits. `reached`: see there."""
        import numpy  # noqa: PLC0415  optional extra

        self.ready()
        own = _compared(self._rows, self._steps, question)
        files = self._means.of_tiles(own, question) if self._means is not None else own
        return Similarities(self._ids, self._place, own, own + numpy.float32(FILE_WEIGHT) * files, reached)


class _FileMeans:
    """The mean of the vectors of each file, packed as they are."""

    def __init__(self, files: Ids, rows: Bytes, steps: Numbers) -> None:
        import numpy  # noqa: PLC0415  optional extra

        shared = numpy.flatnonzero(files)
        names, place = numpy.unique(files[shared], return_inverse=True)
        self._file_of = numpy.full(len(files), -1, numpy.int64)
        self._file_of[shared] = place
        sums = numpy.zeros((len(names), rows.shape[1]), numpy.float32)
        in_order = shared[numpy.argsort(place, kind="stable")]
        for first in range(0, len(in_order), SUMMED_ROWS):
            some = in_order[first : first + SUMMED_ROWS]
            owners, starts = numpy.unique(self._file_of[some], return_index=True)
            sums[owners] += numpy.add.reduceat(rows[some] * steps[some, None], starts, axis=0)
        sums /= numpy.maximum(numpy.linalg.norm(sums, axis=1, keepdims=True), 1e-9)
        self._steps = numpy.abs(sums).max(axis=1, initial=1e-9) / numpy.float32(_FULL)
        self._rows = numpy.round(sums / self._steps[:, None]).astype(numpy.int8)

    def of_tiles(self, own: Numbers, question: Numbers) -> Numbers:
        """How near the file of each tile is; where it shares none, how near it is itself."""
        import numpy  # noqa: PLC0415  optional extra

        compared = numpy.append(_compared(self._rows, self._steps, question), numpy.float32(0))
        found: Numbers = numpy.where(self._file_of < 0, own, compared[self._file_of])
        return found


def _compared(rows: Bytes, steps: Numbers, question: Numbers) -> Numbers:
    """The cosine of each row to the question."""
    import numpy  # noqa: PLC0415  optional extra

    result = numpy.empty(len(rows), numpy.float32)
    block = numpy.empty((BLOCK_ROWS, len(question)), numpy.float32)
    for first in range(0, len(result), BLOCK_ROWS):
        some = rows[first : first + BLOCK_ROWS]
        numpy.copyto(block[: len(some)], some)
        numpy.dot(block[: len(some)], question, out=result[first : first + len(some)])
    result *= steps
    return result


class Similarities:
    """How near tiles are to one question: 1 the nearest, if it is near, 0 one of the middle or beyond."""

    def __init__(self, ids: Ids, place: Mapping[int, int], cosines: Numbers, values: Numbers, reached: float) -> None:
        import numpy  # noqa: PLC0415  optional extra

        self.reached = reached
        """What is worth as much (`ranking.worth`) has had its turn to get a vector."""
        self._ids, self._place, self._cosines = ids, place, cosines
        self.top = float(cosines.max()) if len(cosines) else 0.0
        """The cosine of the nearest one, -1 to 1."""
        middle, best = (float(values.mean()), max(float(values.max()), NEAR)) if len(values) else (0.0, 1.0)
        self._values = numpy.clip((values - middle) / max(best - middle, 1e-6), 0.0, 1.0)

    def of(self, tiles: Iterable[int]) -> dict[int, float]:
        """Those of them that have a vector."""
        places = ((tile, self._place.get(tile)) for tile in tiles)
        return {tile: float(self._values[place]) for tile, place in places if place is not None}

    def cosines(self, tiles: Iterable[int]) -> dict[int, float]:
        """How near each of those that have a vector is by itself, without its file: -1 to 1."""
        places = ((tile, self._place.get(tile)) for tile in tiles)
        return {tile: float(self._cosines[place]) for tile, place in places if place is not None}

    def best(self, count: int) -> list[int]:
        """The nearest tiles, in no order."""
        import numpy  # noqa: PLC0415  optional extra

        if len(self._values) <= count:
            return [int(each) for each in self._ids]
        chosen = numpy.argpartition(-self._values, count)[:count]
        return [int(each) for each in self._ids[chosen]]

"""The vectors of an index in memory, and the tiles nearest to a question.

All of them are compared: one byte a number, in blocks that fit the processor's cache, 120,000 tiles of 384 numbers take
10 ms and 46 MB (four bytes a number: 16 ms, 184 MB; two: 83 ms, since numpy has no quick way to read them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Numbers = NDArray[numpy.float32]
    Bytes = NDArray[numpy.int8]
    Ids = NDArray[numpy.int64]

#: Rows that are compared at once.
BLOCK_ROWS: Final = 512
#: What the largest number of a vector becomes.
_FULL: Final = 127
_SCALE_BYTES: Final = 4


def packed(vector: Numbers) -> bytes:
    """A vector as it is kept: the size of its step, then one byte a number. Off by at most half a step."""
    import numpy  # noqa: PLC0415  optional extra

    step = numpy.float32(max(float(numpy.abs(vector).max(initial=0.0)), 1e-9) / _FULL)
    return step.tobytes() + numpy.round(vector / step).astype(numpy.int8).tobytes()


class NearTiles:
    """Which tile has which vector. Never changed: `changed` gives another one, so that any thread may read this one."""

    def __init__(self, ids: Ids, rows: Bytes, steps: Numbers) -> None:
        self._ids, self._rows, self._steps = ids, rows, steps
        self._place = {int(each): place for place, each in enumerate(ids)}

    @classmethod
    def empty(cls) -> NearTiles:
        import numpy  # noqa: PLC0415  optional extra

        return cls(numpy.empty(0, numpy.int64), numpy.empty((0, 0), numpy.int8), numpy.empty(0, numpy.float32))

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self) -> set[int]:
        """The tiles that have a vector here."""
        return set(self._place)

    def changed(self, gone: Iterable[int], added: Mapping[int, bytes]) -> NearTiles:
        """Without some tiles and with others. Vectors of another length than those that are here are of another model
        of the same name: the new ones win."""
        import numpy  # noqa: PLC0415  optional extra

        vectors, lost = dict(added), set(gone) & self._place.keys()
        if not vectors and not lost:
            return self
        length = len(next(iter(vectors.values()))) if vectors else self._rows.shape[1] + _SCALE_BYTES
        vectors = {tile: vector for tile, vector in vectors.items() if len(vector) == length}
        lost |= vectors.keys()
        keeps = length == self._rows.shape[1] + _SCALE_BYTES
        kept = [place for tile, place in self._place.items() if keeps and tile not in lost]
        data = numpy.frombuffer(b"".join(vectors.values()), numpy.int8).reshape(len(vectors), length)
        steps = data[:, :_SCALE_BYTES].copy().view(numpy.float32).reshape(-1)
        ids = numpy.fromiter(vectors, numpy.int64, len(vectors))
        if not kept:
            return NearTiles(ids, data[:, _SCALE_BYTES:].copy(), steps)
        return NearTiles(
            numpy.concatenate([self._ids[kept], ids]),
            numpy.concatenate([self._rows[kept], data[:, _SCALE_BYTES:]]),
            numpy.concatenate([self._steps[kept], steps]),
        )

    def fits(self, question: Numbers) -> bool:
        """Whether a question's vector is as long as those here."""
        return not len(self._ids) or self._rows.shape[1] == len(question)

    def similarities(self, question: Numbers) -> Similarities:
        """How near each tile is to a question that fits."""
        return Similarities(self._ids, self._place, self._compared(question))

    def _compared(self, question: Numbers) -> Numbers:
        import numpy  # noqa: PLC0415  optional extra

        result = numpy.empty(len(self._ids), numpy.float32)
        block = numpy.empty((BLOCK_ROWS, len(question)), numpy.float32)
        for first in range(0, len(result), BLOCK_ROWS):
            rows = self._rows[first : first + BLOCK_ROWS]
            numpy.copyto(block[: len(rows)], rows)
            numpy.dot(block[: len(rows)], question, out=result[first : first + len(rows)])
        result *= self._steps
        return result


class Similarities:
    """How near tiles are to one question: 1 the nearest, 0 one of the middle or beyond."""

    def __init__(self, ids: Ids, place: Mapping[int, int], values: Numbers) -> None:
        import numpy  # noqa: PLC0415  optional extra

        self._ids, self._place = ids, place
        middle, top = (float(values.mean()), float(values.max())) if len(values) else (0.0, 1.0)
        self.top = top
        """The cosine of the nearest one, -1 to 1."""
        self._values = numpy.clip((values - middle) / max(top - middle, 1e-6), 0.0, 1.0)

    def of(self, tiles: Iterable[int]) -> dict[int, float]:
        """Those of them that have a vector."""
        places = ((tile, self._place.get(tile)) for tile in tiles)
        return {tile: float(self._values[place]) for tile, place in places if place is not None}

    def best(self, count: int) -> list[int]:
        """The nearest tiles, in no order."""
        import numpy  # noqa: PLC0415  optional extra

        if len(self._values) <= count:
            return [int(each) for each in self._ids]
        chosen = numpy.argpartition(-self._values, count)[:count]
        return [int(each) for each in self._ids[chosen]]

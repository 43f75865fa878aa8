"""Vectors in memory: how near a tile is by itself and with its file, compared with the same in plain numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.index.dense import normalized
from callboard.actors.index.nearest import FILE_WEIGHT, NearTiles, TileVector, packed

if TYPE_CHECKING:
    from callboard.actors.index.dense import Vectors

LENGTH = 8
#: Of a cosine: a number of a vector is kept in a byte.
ROUNDING = 0.03


def vectors(count: int, seed: int) -> Vectors:
    return normalized(numpy.random.default_rng(seed).standard_normal((count, LENGTH), numpy.float32))


def added(rows: Vectors, files: list[int], first: int = 1) -> dict[int, TileVector]:
    return {
        tile: TileVector(file, packed(row)) for tile, (file, row) in enumerate(zip(files, rows, strict=True), first)
    }


@given(files=st.lists(st.integers(0, 4), min_size=1, max_size=40), seed=st.integers(0, 1_000))
def test_cosines_and_the_order_are_those_of_the_vectors_and_the_means_of_their_files(
    files: list[int], seed: int
) -> None:
    rows, question = vectors(len(files), seed), vectors(1, seed + 1)[0]
    near = NearTiles.empty().changed((), added(rows, files)).similarities(question)
    own = rows @ question
    cosines = near.cosines(range(1, len(files) + 1))
    assert numpy.allclose([cosines[tile] for tile in sorted(cosines)], own, atol=ROUNDING)
    assert near.top == pytest.approx(own.max(), abs=ROUNDING)
    means = {file: normalized(rows[numpy.array(files) == file].sum(axis=0, keepdims=True))[0] for file in set(files)}
    whole = [
        cos + FILE_WEIGHT * (means[file] @ question if file else cos) for cos, file in zip(own, files, strict=True)
    ]
    (best,) = near.best(1) if len(files) > 1 else [1]
    assert whole[best - 1] >= max(whole) - 2 * ROUNDING


def test_what_is_gone_or_given_again_counts_no_more() -> None:
    rows, question = vectors(4, 7), vectors(1, 8)[0]
    tiles = NearTiles.empty().changed((), added(rows, [1, 1, 2, 0]))
    tiles.ready()
    other = vectors(1, 9)
    later = tiles.changed([2], added(other, [2], first=3))
    assert later.ids() == {1, 3, 4}
    assert tiles.ids() == {1, 2, 3, 4}
    assert later.similarities(question).cosines([2, 3])[3] == pytest.approx(float(other[0] @ question), abs=ROUNDING)
    assert 2 not in later.similarities(question).of([1, 2, 3, 4])


def test_vectors_of_another_length_put_out_those_that_are_there() -> None:
    tiles = NearTiles.empty().changed((), added(vectors(3, 1), [1, 1, 1]))
    longer = numpy.ones((1, 2 * LENGTH), numpy.float32)
    assert tiles.changed((), added(normalized(longer), [1], first=9)).ids() == {9}


def test_a_tile_is_nearer_in_a_file_that_is_about_the_question() -> None:
    question = numpy.eye(LENGTH, dtype=numpy.float32)[0]
    alike, about, apart = normalized(numpy.array([[1, 2] + [0] * 6, [1] + [0] * 7, [0, 0, 1] + [0] * 5], numpy.float32))
    rows = numpy.stack([alike, about, alike, apart])
    near = NearTiles.empty().changed((), added(rows, [1, 1, 2, 2])).similarities(question).of([1, 3])
    assert near[1] > near[3]

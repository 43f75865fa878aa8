"""Random numbers after a fork: generators that were seeded from the system while a tool was loaded are seeded again.

Else each child of a template would draw the same numbers. A generator that was given a seed keeps it: who wrote
`random.Random(42)` wants the same numbers, and each call gets them.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import weakref
from collections.abc import Iterator
from typing import Any, Final

#: What numpy draws from the system where no seed is given has 128 bits; a seed that somebody chose has fewer.
_WRITTEN_BITS: Final = 64

_from_system: dict[int, weakref.ref[random.Random]] = {}
"""By id: a class of a tool's own may not be hashable."""
_of_numpy: list[Any] = []


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """While a tool is loaded: find the generators which that makes and gives no seed."""
    seed = random.Random.seed

    def noted(generator: random.Random, a: Any = None, *rest: Any, **more: Any) -> None:
        seed(generator, a, *rest, **more)
        if a is None:
            _from_system[id(generator)] = weakref.ref(generator)
        else:
            _from_system.pop(id(generator), None)

    random.Random.seed = noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        _of_numpy.extend(each for each in gc.get_objects() if isinstance(each, numpy_random.BitGenerator))


def reseed() -> None:
    """In a fork. The generator behind `random.random()` seeds itself there."""
    for each in _from_system.values():
        with contextlib.suppress(Exception):  # a class of the tool's own: its calls find what is wrong with it
            if (generator := each()) is not None:
                generator.seed()
    if (numpy_random := sys.modules.get("numpy.random")) is None:
        return
    numpy_random.seed()
    for bits in _of_numpy:
        entropy = getattr(getattr(bits, "seed_seq", None), "entropy", 0)
        if isinstance(entropy, int) and entropy.bit_length() > _WRITTEN_BITS:
            bits.state = type(bits)().state

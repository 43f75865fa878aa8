"""What was used last, in memory, bounded in number and in bytes: an answer may have some kB, or many MB."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, Generic, TypeVar

V = TypeVar("V")
#: Of one kind of things of one tenant: 2,000 of 16 kB each. What is dropped is read from the journal, where there is
#: one.
MAX_BYTES: Final = 32 * 1024 * 1024
#: What is kept once in the process, however often it is named.
_SHARED: Final = (int, float, type, Enum, type(None))


class RecentlyUsed(Generic[V]):
    """Values by name. Where they are too many or too large, the one that was not used for the longest time goes first.

    The last one is kept at any size: it is what the client goes on with now.
    """

    def __init__(self, most: int, max_bytes: int = MAX_BYTES) -> None:
        """`most`: so many values at most."""
        self._most, self._max_bytes = most, max_bytes
        self._values = OrderedDict[str, tuple[V, int]]()
        self.size_bytes = 0
        """About so much memory is held."""

    def __len__(self) -> int:
        return len(self._values)

    def keep(self, name: str, value: V) -> None:
        """In place of others, where that is too much."""
        self.drop(name)
        size_bytes = bytes_of(value)
        self._values[name] = value, size_bytes
        self.size_bytes += size_bytes
        while len(self._values) > 1 and (len(self._values) > self._most or self.size_bytes > self._max_bytes):
            self.drop(next(iter(self._values)))

    def find(self, name: str) -> V | None:
        """The value, which counts as used; None where it is not kept."""
        if name not in self._values:
            return None
        self._values.move_to_end(name)
        return self._values[name][0]

    def drop(self, name: str) -> None:
        """Keep it no longer, if it is there."""
        _, size_bytes = self._values.pop(name, (None, 0))
        self.size_bytes -= size_bytes


def bytes_of(value: object) -> int:
    """About how much memory a value holds, with all that it consists of; what is in it twice is counted once."""
    waiting, seen, total = [value], set[int](), 0
    while waiting:
        each = waiting.pop()
        if isinstance(each, _SHARED) or id(each) in seen:
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting += _inside(each)
    return total


def _inside(value: object) -> Iterator[object]:
    if isinstance(value, str | bytes):
        return
    if isinstance(value, Mapping):
        yield from value
        yield from value.values()
    elif isinstance(value, tuple | list | set | frozenset):
        yield from value
    else:  # a value of ours, a dataclass or a model
        kept: Iterable[str] = getattr(value, "__dataclass_fields__", None) or getattr(value, "__dict__", None) or ()
        names = getattr(value, "__struct_fields__", kept)
        yield from (getattr(value, name, None) for name in names)

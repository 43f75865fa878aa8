"""Loop detection: the same call with the same arguments, step after step."""

from __future__ import annotations

from enum import Enum, auto

from callboard.protocol.ids import ToolName

Signature = tuple[ToolName, bytes]
"""A tool and its arguments, in canonical JSON."""


class Repetition(Enum):
    NONE = auto()
    TELL = auto()
    """The call is not run; the model is told that it repeats itself."""
    STOP = auto()
    """It was told, and asked again: the run ends."""


class Repeats:
    """Counts how often each call was asked in unbroken succession; a step without it begins anew."""

    __slots__ = ("_counts", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[Signature, int] = {}

    def next_step(self, signatures: list[Signature]) -> list[Repetition]:
        """What to do about each call of the next step. Calls of one step cannot have been told of each other."""
        before, self._counts = self._counts, {}
        found = []
        for signature in signatures:
            told = before.get(signature, 0)
            count = self._counts.get(signature, told) + 1
            self._counts[signature] = count
            if self._limit and told >= self._limit:
                found.append(Repetition.STOP)
            elif self._limit and count >= self._limit:
                found.append(Repetition.TELL)
            else:
                found.append(Repetition.NONE)
        return found

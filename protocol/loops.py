"""Loop detection: the same call with the same arguments, step after step."""

from __future__ import annotations

from enum import Enum, auto

from callboard.protocol.ids import ToolName

Signature = tuple[ToolName, str]
"""A tool and its arguments, in canonical JSON."""


class Repetition(Enum):
    """What to do about a call that came before."""

    NONE = auto()
    TELL = auto()
    """The call is not run; the model is told that it repeats itself."""
    STOP = auto()
    """It was told, and asked again: the run ends."""


class Repeats:
    """Counts in how many steps in a row each call was asked; a step without it begins anew.

    Asked twice in one step, it is two calls and no repetition, since neither could know of the other.
    """

    __slots__ = ("_counts", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[Signature, int] = {}

    def next_step(self, signatures: list[Signature]) -> list[Repetition]:
        """What to do about each call of the next step."""
        self._counts = {signature: self._counts.get(signature, 0) + 1 for signature in signatures}
        return [self._judge(self._counts[signature]) for signature in signatures]

    def _judge(self, steps_in_a_row: int) -> Repetition:
        if not self._limit or steps_in_a_row < self._limit:
            return Repetition.NONE
        return Repetition.TELL if steps_in_a_row == self._limit else Repetition.STOP

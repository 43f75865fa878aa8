"""Positions in the feed of a request: the ids by which a follower goes on, also in the next process.

A durable item has the same position in each process: the number of the event that led to it, and its place among what
that event led to. An item that is only streamed is counted behind the durable one before it, in one process.
"""

from __future__ import annotations

import re
from typing import Final, Self

from msgspec import Struct

from callboard.protocol.errors import UsageError

#: The parts of an id, in the order in which ids are ordered as texts.
_ID: Final = re.compile(r"([0-9]{8})\.([0-2])\.([0-9]{6})(?:-([0-9a-f]{12})\.([0-9]{10}))?(p?)")
_MAX_NUMBER: Final = 99_999_999


class Position(Struct, frozen=True, order=True):
    """Where an item is."""

    number: int = 0
    """Of the event among those of the request, without ModelStreamed; 0 before the first."""
    phase: int = 0
    """IN_TURN, SHOWN or END."""
    index: int = 0
    process: str = ""
    """By which process it was streamed; "" of what another process shows as well."""
    streamed: int = 0
    """So many items were streamed behind the durable one, in this process."""
    is_partial: bool = False
    """Its follower has seen a part of a turn that was not finished."""

    @property
    def durable(self) -> Position:
        """The last durable position up to here."""
        return Position(self.number, self.phase, self.index)

    def __str__(self) -> str:
        streamed = f"-{self.process}.{self.streamed:010d}" if self.process else ""
        return f"{self.number:08d}.{self.phase}.{self.index:06d}{streamed}{'p' if self.is_partial else ''}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Of an id; "" is before everything. Raises UsageError for what is no id."""
        if text == "":
            return cls()
        found = _ID.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise UsageError(f"after={text!r:.80} is no id of a followed request; give the `id` of a Followed, or ''")
        number, phase, index, process, streamed, partial = found.groups()
        return cls(int(number), int(phase), int(index), process or "", int(streamed or 0), bool(partial))


#: The phases: first the pieces of a turn as it was recorded, then what an event and its commands show.
IN_TURN: Final = 0
SHOWN: Final = 1
#: The Reply.
END: Final = Position(_MAX_NUMBER, 2)
#: An index behind all that one event shows: some calls, failures and notes.
BEHIND_ALL: Final = 900_000


def comes_after(position: Position, given: Position) -> bool:
    """Has a follower that has read up to `given` yet to read what is at this position?

    What another process has streamed behind a durable item says nothing about what this one streams behind it.
    """
    if position.durable != given.durable:
        return position.durable > given.durable
    return position.streamed > (given.streamed if given.process == position.process else 0)

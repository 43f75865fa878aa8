"""A picture of a running system, for dashboards and tests."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cell import Cell

__all__ = ["ActorInfo", "Statistics", "describe"]


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One actor as it is now."""

    name: str
    state: str
    mailbox_depth: int
    restarts: int
    handled: int
    handling: str | None
    """Type of the message its handler works on."""
    handling_seconds: float
    """For how long, 0.0 when idle."""
    children: tuple["ActorInfo", ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counters since the system was made. At rest sent = handled + dead_lettered + queued."""

    sent: int = 0
    """Taken by a mailbox, or sent to a dead actor. A refused message was never sent."""
    handled: int = 0
    dead_lettered: int = 0
    queued: int = 0
    """Waiting, being handled, or held by a killed handler that has not returned."""
    refused: int = 0
    """Turned away by a full mailbox; their producers were told."""
    restarts: int = 0
    actors: int = 0
    """Alive now."""

    @property
    def unaccounted(self) -> int:
        """Messages lost or invented: 0 at rest."""
        return self.sent - self.handled - self.dead_lettered - self.queued


def describe(cell: "Cell", now_seconds: float) -> ActorInfo:
    """The picture of one cell and what is below it."""
    busy = cell.busy_with()
    return ActorInfo(
        name=cell.name,
        state=cell.state.value,
        mailbox_depth=len(cell.mailbox),
        restarts=max(0, cell.restarts),
        handled=cell.handled,
        handling=None if busy is None else busy[1],
        handling_seconds=0.0 if busy is None else now_seconds - busy[2],
        children=tuple(describe(child, now_seconds) for child in tuple((cell.children or {}).values())),
    )

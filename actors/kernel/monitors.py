"""Monitors: whoever depends on an actor learns, exactly once, that its present incarnation has ended."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cell import Cell
    from .ref import Ref

__all__ = ["Down", "ExitReason", "Monitor"]


class ExitReason(Enum):
    """How an incarnation ended."""

    NORMAL = "normal"
    """It stopped, by itself or because it was asked to."""
    CRASHED = "crashed"
    """An exception escaped it."""
    KILLED = "killed"
    """It did not stop in time and was given up."""
    NOT_ALIVE = "not_alive"
    """It had ended before the monitor was set."""


@dataclass(frozen=True, slots=True)
class Down:
    """The monitored actor's incarnation has ended. Comes on the control lane."""

    ref: "Ref"
    reason: ExitReason
    error: BaseException | None = None
    """What escaped, when it crashed."""


class Monitor:
    """One watch over one actor. Fires once or is cancelled, never both."""

    __slots__ = ("_held_by", "_notify", "_target")

    def __init__(self, target: "Cell", notify: Callable[[Down], object], held_by: "set[Monitor] | None" = None) -> None:
        self._target = target
        self._notify = notify
        self._held_by = held_by
        if held_by is not None:
            held_by.add(self)

    def fire(self, down: Down) -> None:
        """Deliver; the kernel calls it, once, after taking the monitor off its target."""
        self._release()
        self._notify(down)

    def cancel(self) -> None:
        """Stop watching. Nothing happens when it has fired already."""
        self._release()
        self._target.forget(self)

    def _release(self) -> None:
        if self._held_by is not None:
            self._held_by.discard(self)

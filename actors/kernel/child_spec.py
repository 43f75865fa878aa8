"""What a supervisor is told about its children."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic

from .actor import Actor
from .handlers import M
from .mailbox import CAPACITY, Overflow
from .restart import DEFAULT_BUDGET, Backoff, Budget, Restart
from .system import RunsOn

__all__ = ["SHUTDOWN_SECONDS", "ChildSpec", "Strategy"]

#: How long a child may take to stop before it is killed (OTP's default).
SHUTDOWN_SECONDS: Final = 5.0


class Strategy(Enum):
    """Which siblings share a child's fate."""

    ONE_FOR_ONE = "one_for_one"
    """None."""
    REST_FOR_ONE = "rest_for_one"
    """Those listed after it, which are built on it."""
    ONE_FOR_ALL = "one_for_all"
    """All."""


@dataclass(frozen=True, slots=True)
class ChildSpec(Generic[M]):
    """How to start a child, and what its end means."""

    id: str
    """Unique among its siblings; the actor's name is `supervisor/id`."""
    start: Callable[[], Actor[M]]
    """Makes a new actor for each incarnation. Runs where the actor runs."""
    restart: Restart = Restart.PERMANENT
    shutdown_seconds: float = SHUTDOWN_SECONDS
    """How long it may take to stop; then it is killed."""
    intensity: int | None = None
    """A budget of its own, in `period_seconds`; None means the one it shares with its siblings."""
    period_seconds: float = DEFAULT_BUDGET.period_seconds
    backoff: Backoff = Backoff()
    capacity: int = CAPACITY
    overflow: Overflow = Overflow.REFUSE
    runs_on: RunsOn = "loop"

    def __post_init__(self) -> None:
        if not self.id or "/" in self.id:
            raise ValueError(f"a child's id is one part of a path, without '/', got {self.id!r}")
        if self.shutdown_seconds < 0:
            raise ValueError(f"{self.id}: shutdown_seconds is {self.shutdown_seconds}: it cannot be negative")
        if self.intensity is not None:
            Budget(self.intensity, self.period_seconds)  # raises what is wrong with them

"""How an incarnation ended; whether, when and how often to start again: pure decisions, no clock and no randomness."""

from enum import Enum
from typing import Final

from msgspec import Struct


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


class Restart(Enum):
    """Which ends of a child call for a new incarnation, in OTP's words: all, all but a normal one, or none."""

    PERMANENT = "permanent"
    TRANSIENT = "transient"
    TEMPORARY = "temporary"


def wants_restart(restart: Restart, reason: ExitReason) -> bool:
    """Whether a child of this kind is started again after it ended so."""
    if restart is Restart.TRANSIENT:
        return reason is not ExitReason.NORMAL
    return restart is Restart.PERMANENT


class Backoff(Struct, frozen=True):
    """How long to wait before a restart: at once the first time, then `initial_seconds`, doubled each time."""

    initial_seconds: float = 0.05
    maximum_seconds: float = 5.0
    jitter: float = 0.2
    """Part of the delay that is random, 0 to 1, so that children that failed together do not come back together."""
    reset_after_seconds: float = 30.0
    """After a healthy time of this length the count begins at 0 again."""

    def __post_init__(self) -> None:
        if not 0 <= self.initial_seconds <= self.maximum_seconds:
            raise ValueError(f"need 0 <= initial_seconds <= maximum_seconds, got {self}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter is a part of the delay, 0 to 1, got {self.jitter}")
        if self.reset_after_seconds < 0:
            raise ValueError(f"reset_after_seconds is {self.reset_after_seconds}: it cannot be negative")

    def delay_seconds(self, failures: int, chance: float) -> float:
        """Delay after that many failures in a row; `chance` in [0, 1) is where in the jittered part it falls."""
        if failures <= 1:
            return 0.0
        # Beyond 2**60 the maximum has long been reached, and a float would overflow.
        full = min(self.maximum_seconds, self.initial_seconds * 2.0 ** min(failures - 2, 60))
        return full * (1 - self.jitter * chance)


class Budget(Struct, frozen=True):
    """More than `intensity` failures within `period_seconds` are too many."""

    intensity: int = 3
    period_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.intensity < 0 or self.period_seconds <= 0:
            raise ValueError(f"need intensity >= 0 and period_seconds > 0, got {self}")


#: OTP's defaults are 1 failure in 5 s; ours leave room for a second cause and still end a crash loop in under a second.
DEFAULT_BUDGET: Final = Budget()


class History(Struct, frozen=True):
    """What a supervisor remembers of the failures of a child, or of all its children."""

    failures: tuple[float, ...] = ()
    """Times of those that still count towards the budget."""
    streak: int = 0
    """Failures in a row without a healthy time between them."""
    last_failure_seconds: float | None = None

    def after(self, now_seconds: float, budget: Budget, backoff: Backoff) -> "History":
        """With one more failure, at `now_seconds`."""
        recent = (*(at for at in self.failures if now_seconds - at < budget.period_seconds), now_seconds)
        last = self.last_failure_seconds
        healthy = last is None or now_seconds - last >= backoff.reset_after_seconds
        return History(recent, 1 if healthy else self.streak + 1, now_seconds)

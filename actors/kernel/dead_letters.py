"""Messages nobody handled: kept, counted by reason, listed, and one of them can be sent again."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import Any, Final

__all__ = ["KEPT", "DeadLetter", "DeadLetterReason", "DeadLetters"]

#: Dead letters kept for inspection; older ones are only counted.
KEPT: Final = 1_000


class DeadLetterReason(Enum):
    """Why a message was not handled."""

    NOT_ALIVE = "not_alive"
    """It was sent to an actor that had ended."""
    STOPPED = "stopped"
    """It was waiting when its actor ended."""
    CRASHED = "crashed"
    """Handling it crashed the actor."""
    KILLED = "killed"
    """Its handler did not end in time and was given up."""
    REJECTED = "rejected"
    """Its actor declined it: a late or illegal event, see `note`."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message nobody handled."""

    serial: int
    """1 for the first of a system."""
    message: Any
    reason: DeadLetterReason
    recipient: str
    """Name of the actor it was meant for."""
    at_seconds: float
    """Scheduler time."""
    note: str = ""


class DeadLetters:
    """A bounded ring of dead letters. Safe for any thread."""

    def __init__(self, now: Callable[[], float], kept: int = KEPT) -> None:
        self._now = now
        self._lock = Lock()
        self._letters: deque[DeadLetter] = deque(maxlen=kept)
        self._reasons: Counter[DeadLetterReason] = Counter()
        self._total = 0

    def add(self, message: Any, reason: DeadLetterReason, recipient: str, note: str = "") -> None:
        """Keep one letter, dropping the oldest when full."""
        with self._lock:
            self._total += 1
            self._reasons[reason] += 1
            self._letters.append(DeadLetter(self._total, message, reason, recipient, self._now(), note))

    @property
    def total(self) -> int:
        """All letters ever, kept or not."""
        return self._total

    def counts(self) -> Mapping[DeadLetterReason, int]:
        """All letters ever, by reason."""
        with self._lock:
            return dict(self._reasons)

    def list(self) -> tuple[DeadLetter, ...]:
        """The kept letters, oldest first."""
        with self._lock:
            return tuple(self._letters)

    def take(self, serial: int) -> DeadLetter:
        """Remove one kept letter, to send it again. Raises KeyError when it is not kept (any more)."""
        with self._lock:
            for letter in self._letters:
                if letter.serial == serial:
                    self._letters.remove(letter)
                    return letter
        raise KeyError(f"dead letter {serial} is not kept; the oldest are dropped after {self._letters.maxlen}")

"""What became of the messages: dead letters, which nothing handled, counters of all, and a picture of the actors."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from enum import Enum
from operator import add
from threading import Lock
from typing import Final, NamedTuple

from msgspec import Struct

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
    """Its actor does not take it, or declined it: a late or illegal event, see `note`."""


class DeadLetter(Struct, frozen=True):
    """One message that was not handled."""

    serial: int
    """1 for the first of a system."""
    message: object
    reason: DeadLetterReason
    recipient: str
    """Name of the actor it was meant for."""
    at_seconds: float
    """Scheduler time."""
    note: str = ""


class DeadLetters:
    """A bounded ring of dead letters, which can be listed and taken out again. Safe for any thread."""

    def __init__(self, now: Callable[[], float], kept: int = KEPT) -> None:
        self._now = now
        self._lock = Lock()
        self._letters: deque[DeadLetter] = deque(maxlen=kept)
        self._reasons: Counter[DeadLetterReason] = Counter()

    def add(self, message: object, reason: DeadLetterReason, recipient: str, note: str = "") -> None:
        """Keep one letter, dropping the oldest when full."""
        with self._lock:
            self._reasons[reason] += 1
            serial = self._reasons.total()
            self._letters.append(DeadLetter(serial, message, reason, recipient, self._now(), note))

    def counts(self) -> Mapping[DeadLetterReason, int]:
        """All letters ever, by reason."""
        with self._lock:
            return dict(self._reasons)

    def list(self) -> tuple[DeadLetter, ...]:
        """The kept letters, oldest first."""
        with self._lock:
            return tuple(self._letters)

    def take(self, serial: int, check: Callable[[str], object]) -> DeadLetter:
        """Remove one kept letter, to send it again, unless `check(recipient)` raises. Raises KeyError if not kept."""
        with self._lock:
            for letter in self._letters:
                if letter.serial == serial:
                    check(letter.recipient)
                    self._letters.remove(letter)
                    return letter
        raise KeyError(f"dead letter {serial} is not kept; the oldest are dropped after {self._letters.maxlen}")

    def after_fork(self) -> None:
        """In the child of a fork: a thread that is not there may hold the lock."""
        self._lock = Lock()


class Statistics(NamedTuple):
    """Counters since the system was made. At rest sent = handled + dead_lettered + queued."""

    sent: int = 0
    """Taken by a mailbox, or sent to a dead actor. A refused message was never sent."""
    handled: int = 0
    dead_lettered: int = 0
    queued: int = 0
    """Waiting, being handled, or held by a killed handler that has not returned."""
    refused: int = 0
    """Turned away by a full mailbox; their producers got MailboxFull."""
    restarts: int = 0
    actors: int = 0
    """Alive now."""

    def plus(self, other: "Statistics") -> "Statistics":
        """Both together."""
        return Statistics(*map(add, self, other))

    @property
    def unaccounted(self) -> int:
        """Messages lost or invented: 0 at rest."""
        return self.sent - self.handled - self.dead_lettered - self.queued


class ActorInfo(Struct, frozen=True):
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

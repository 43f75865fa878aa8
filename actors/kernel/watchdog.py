"""Reports a handler that holds the loop: while it runs, every other actor waits.

A thread of its own looks at what the loop runs, since a loop that is held cannot look at itself. It costs 20 wake-ups a
second and nothing per message.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

__all__ = ["LIMIT_SECONDS", "Held", "Watchdog"]

logger = logging.getLogger("callboard.kernel")

#: A handler is expected to take microseconds; at 100 ms people notice that nothing else answers.
LIMIT_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Held:
    """A handler that has held the loop for longer than the limit."""

    actor: str
    message_type: str
    seconds: float


@runtime_checkable
class Busy(Protocol):
    """What the loop runs, if it is an actor."""

    def busy_with(self) -> tuple[str, str, float] | None:
        """Actor name, message type and since when; None between messages."""


class Watched(Protocol):
    """The scheduler under watch."""

    running: object

    def now(self) -> float:
        """Seconds."""


class Watchdog:
    """Calls `report` once for each handler over the limit, counts it, and logs a warning."""

    def __init__(self, limit_seconds: float = LIMIT_SECONDS, report: Callable[[Held], object] | None = None) -> None:
        self._limit_seconds = limit_seconds
        self._report = report
        self._ended = threading.Event()
        self._reported: tuple[str, str, float] | None = None
        #: Handlers reported so far.
        self.count = 0

    def start(self, watched: Watched) -> None:
        """Begin to watch, on a daemon thread."""
        threading.Thread(target=self._main, args=(watched,), name="callboard-watchdog", daemon=True).start()

    def stop(self) -> None:
        """End the thread, within half the limit."""
        self._ended.set()

    def _main(self, watched: Watched) -> None:
        while not self._ended.wait(self._limit_seconds / 2):
            self.look(watched)

    def look(self, watched: Watched) -> None:
        """Look once."""
        running = getattr(watched.running, "__self__", None)  # whose method it is
        busy = running.busy_with() if isinstance(running, Busy) else None
        if busy is None or busy == self._reported:
            return
        actor, message_type, since_seconds = busy
        held_seconds = watched.now() - since_seconds
        if held_seconds < self._limit_seconds:
            return
        self._reported = busy
        self.count += 1
        logger.warning(
            "%s has held the loop for %.0f ms with a %s; blocking work belongs on runs_on='thread'",
            actor,
            held_seconds * 1e3,
            message_type,
        )
        if self._report is not None:
            self._report(Held(actor, message_type, held_seconds))

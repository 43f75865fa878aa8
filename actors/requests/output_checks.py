"""Checks answers against the form that was asked for, beside the control loop where code of the user's runs.

A validator may sleep, or never return. So each check of a type with code of the user's has a daemon thread, of which
there are at most MAX_CHECK_THREADS; further checks wait their turn. One that hangs costs its thread until it returns,
and its request ends at its deadline.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Final, Generic, Protocol, TypeVar

from callboard.actors.requests.outputs import MAX_QUICK_CHARS, OutputType
from callboard.protocol.output import Checked

#: More than a validator that calls a database at a time needs, few enough for any machine.
MAX_CHECK_THREADS: Final = 32
#: For checks that run to return when a runtime stops. A thread that wakes up in pydantic's own code while the
#: interpreter ends makes the process abort (before Python 3.14, which leaves such threads alone: python/cpython#87135).
CLOSE_SECONDS: Final = 2.0

logger = logging.getLogger("callboard")
T_co = TypeVar("T_co", covariant=True)
Told = Callable[[tuple[Checked, ...]], None]


class ChecksAnswers(Protocol):
    """What a session needs of an OutputChecker."""

    def check(self, texts: tuple[str, ...], tell: Told) -> None: ...


class CheckThreads:
    """Runs work on at most so many daemon threads at a time; they end when nothing waits."""

    def __init__(self, limit: int = MAX_CHECK_THREADS) -> None:
        self._limit = limit
        self._lock = threading.Condition()
        self._busy = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], None]) -> None:
        """Run it when there is a thread. `work` must not raise. Raises RuntimeError where no thread can be started."""
        with self._lock:
            if self._busy >= self._limit:
                self._waiting.append(work)
                return
            self._busy += 1
        try:
            # A daemon, since a validator that never returns must not keep the process from ending.
            threading.Thread(target=self._work, args=(work,), name="callboard-output", daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._busy -= 1
            raise

    def _work(self, work: Callable[[], None] | None) -> None:
        while work is not None:
            work()
            with self._lock:
                work = self._waiting.popleft() if self._waiting else None
                if work is None:
                    self._busy -= 1
                    self._lock.notify_all()

    def close(self) -> None:
        """Forget what waits, and wait for what runs: CLOSE_SECONDS at the most."""
        with self._lock:
            self._waiting.clear()
            if not self._lock.wait_for(lambda: not self._busy, CLOSE_SECONDS):
                logger.warning("%s checks of answers have not returned; they are left behind", self._busy)


class OutputChecker(Generic[T_co]):
    """Checks the answers of one request."""

    def __init__(self, output: OutputType[T_co], threads: CheckThreads, asker: Context) -> None:
        self.output = output
        self._threads = threads
        self._asker = asker
        self._found: dict[str, T_co | None] = {}

    def check(self, texts: tuple[str, ...], tell: Told) -> None:
        """Tell whether each of these fits: at once, or from a thread."""
        if self.output.is_quick and sum(map(len, texts)) <= MAX_QUICK_CHARS:
            tell(self._check(texts))
        else:
            # A context of its own: one can be entered only once at a time, and the session has entered its own.
            context = self._asker.copy()
            try:
                self._threads.run(lambda: tell(context.run(self._check, texts)))
            except RuntimeError as error:
                tell((Checked(f"no thread could be started for the check: {error}", is_broken=True),) * len(texts))

    def _check(self, texts: tuple[str, ...]) -> tuple[Checked, ...]:
        found = {text: self.output.check(text) for text in texts}
        self._found = {text: value for text, (checked, value) in found.items() if checked.fits}
        return tuple(found[text][0] for text in texts)

    def taken(self, text: str) -> T_co | None:
        """The object of the answer that was taken, as it was checked last; None where there is none."""
        return self._found.get(text)

"""JournalCleaner: keeps a journal within what the settings allow, at the start and once a day.

It deletes in steps of some milliseconds, with a pause behind each, so that what requests write passes between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from callboard.actors.journal.journal_handle import JournalHandle
from callboard.actors.journal.retention import CleanedUp, Kept
from callboard.actors.kernel import Actor, ChildSpec, KernelError, handles, logger_of
from callboard.protocol.errors import CallboardError, said

logger = logger_of("callboard")

#: Between two steps.
PAUSE_SECONDS: Final = 0.05
#: Between two clean-ups, and after one that has failed.
EVERY_SECONDS: Final = 86_400.0
AGAIN_SECONDS: Final = 3_600.0


class CleanFurther(Struct, frozen=True):
    """To itself: the next step."""


class JournalCleaner(Actor[CleanFurther]):
    """See the module."""

    def __init__(self, handle: Callable[[], JournalHandle], kept: Kept) -> None:
        self._handle, self._kept = handle, kept
        self._steps: Iterator[CleanedUp] | None = None
        self._done = CleanedUp()

    def on_start(self) -> None:
        self.tell_after(0.0, CleanFurther())

    @handles(CleanFurther)
    def _further(self, _: CleanFurther) -> None:
        try:
            if self._steps is None:
                self._steps, self._done = self._handle().clean_up_steps(self._kept), CleanedUp()
            step = next(self._steps, None)
        except (CallboardError, KernelError) as error:
            logger.warning("the journal could not be cleaned up: %s", said(error))
            self._steps = None
            self.tell_after(AGAIN_SECONDS, CleanFurther())
            return
        if step is not None:
            self._done += step
            self.tell_after(PAUSE_SECONDS, CleanFurther())
            return
        if self._done != CleanedUp():
            told = "the logs of %d requests and %d conversations were deleted from the journal: they were too old"
            logger.info(f"{told}, or it too large", self._done.logs, self._done.conversations)
        self._steps = None
        self.tell_after(EVERY_SECONDS, CleanFurther())


def cleaner_actor(handle: Callable[[], JournalHandle], kept: Kept) -> ChildSpec[CleanFurther]:
    """For the tree."""
    return ChildSpec("journal_cleaner", lambda: JournalCleaner(handle, kept), runs_on="thread")

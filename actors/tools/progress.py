"""How far a call is, in the words of its tool: for the reader of a stream, never for the model.

A tool may say it as often as it likes. Of each call at most one message is on its way to the session, with the latest
that was said, and a reader is shown ten a second. Nothing here waits, or keeps more than the latest.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import NamedTuple, Self

from msgspec import Struct

from callboard.protocol.errors import UsageError
from callboard.protocol.ids import Tag
from callboard.protocol.limits import MAX_PROGRESS_BYTES


class ToolProgressed(Struct, frozen=True):
    """In a stream: a call says how far it is. The last one of a call comes before its end."""

    tag: Tag
    at: float
    message: str = ""
    fraction: float | None = None
    """Of the whole, from 0 to 1; None: not said."""


class CallProgress(NamedTuple):
    """What was said."""

    message: str
    fraction: float | None

    @classmethod
    def of(cls, message: object, fraction: object) -> Self:
        """Raises UsageError for anything but a text and a number from 0 to 1. A long text is cut."""
        if not isinstance(message, str):
            raise UsageError(f"progress: message must be a text, got {type(message).__name__}")
        if not message.isascii() or len(message) > MAX_PROGRESS_BYTES:
            cut = message[:MAX_PROGRESS_BYTES].encode(errors="backslashreplace")[:MAX_PROGRESS_BYTES]
            message = cut.decode(errors="ignore")
        if fraction is None:
            return cls(message, None)
        if isinstance(fraction, int | float) and not isinstance(fraction, bool) and 0 <= fraction <= 1:
            return cls(message, float(fraction))
        raise UsageError(f"progress: fraction must be a number from 0 to 1, got {fraction!r:.100}")


class ProgressRelay:
    """The latest of one call, on its way to its session. Any thread may report; the session takes."""

    __slots__ = ("_is_posted", "_latest", "_lock", "_post", "tag")

    def __init__(self, tag: Tag, post: Callable[[ProgressMade], object]) -> None:
        self.tag = tag
        self._post = post
        self._lock = Lock()
        self._latest: CallProgress | None = None
        self._is_posted = False
        """The session has a message about it, or looks again later: then it finds what is new."""

    def report(self, progress: CallProgress) -> None:
        """Replace what the session has not taken yet."""
        with self._lock:
            self._latest = progress
            if self._is_posted:
                return
            self._is_posted = True
        self._post(ProgressMade(self))

    def take(self) -> CallProgress | None:
        """What is new. None: nothing, and the next report sends a message again."""
        with self._lock:
            latest, self._latest = self._latest, None
            self._is_posted = latest is not None
        return latest

    def close(self) -> CallProgress | None:
        """The call has ended: what was not taken, and no message any more."""
        with self._lock:
            latest, self._latest, self._is_posted = self._latest, None, True
        return latest


class ProgressMade(Struct, frozen=True):
    """For a session: a call says how far it is."""

    relay: ProgressRelay

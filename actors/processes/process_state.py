"""The state of a process that a tool can change (folder, environment, handlers ...), and putting it back."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Set
from typing import Final

#: Signals that tools set handlers for: timeouts of their own, a shutdown of their own.
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)


class ProcessState:
    """The state at the time that this is made: after the tool was loaded, since an import may change what it likes.

    About 10 us to compare; the tools of a child run one after the other, so one that has not changed serves the next.
    """

    def __init__(self) -> None:
        self._folder = _folder()
        self._environment = dict(os.environ)
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._path = tuple(sys.path)
        self._recursion_limit = sys.getrecursionlimit()
        self._handlers = [signal.getsignal(number) for number in SIGNALS]
        self._outputs = _outputs()
        self._threads = frozenset(threading.enumerate())

    def restore(self, kept: Set[threading.Thread] = frozenset()) -> bool:
        """Put back what can be. False if something is left that cannot: a thread that is not among those kept, a closed
        or replaced output.

        Raises any exception, where a tool has replaced what this calls.
        """
        sys.settrace(None)
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.umask(self._umask)
        for number, handler in zip(SIGNALS, self._handlers, strict=True):
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        sys.setrecursionlimit(self._recursion_limit)
        sys.path[:] = self._path
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if _folder() != self._folder:
            os.chdir(self._folder)
        return _outputs() == self._outputs and (self._threads | kept).issuperset(threading.enumerate())


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # removed, by the tool or before it came
        return ""


def _outputs() -> tuple[object, ...]:
    """The objects, whether they can be written to, and what their descriptors lead to."""
    streams = (sys.stdout, sys.stderr)
    return (*map(id, streams), *(stream.closed for stream in streams), *(os.fstat(number).st_ino for number in (1, 2)))

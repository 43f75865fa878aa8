"""A wait for something that another thread or process does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Longer than a loaded machine takes.
DEADLINE_SECONDS = 20.0


def wait_until(is_true: Callable[[], object], seconds: float = DEADLINE_SECONDS, every: float = 0.01) -> None:
    """Raises AssertionError when it is not true by then. `every`: seconds between two looks, more where one is dear."""
    pause, until = threading.Event(), time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until, f"not within {seconds:g} s"
        pause.wait(every)

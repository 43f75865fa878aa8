"""A runtime in its host's process: an event loop where one is needed, and what becomes of a runtime that is dropped."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import TYPE_CHECKING

from callboard.protocol.errors import UsageError

if TYPE_CHECKING:
    from callboard.actors.running import StartedRuntime


def end_dropped(running: StartedRuntime) -> None:
    """Its runtime was collected, or the process ends, without stop()."""
    if running.process_id != os.getpid():
        return  # the exit of a fork, which has none of the threads
    try:
        dropped = "a Runtime was dropped without stop(); use it as `with Runtime(...) as runtime:`"
        warnings.warn(dropped, ResourceWarning, stacklevel=2)
    finally:
        if threading.main_thread().is_alive():
            # Not here: garbage is collected on any thread, also on the one that close() waits for.
            threading.Thread(target=running.close, name="callboard-close").start()
        else:
            running.close()


def check_for_asyncio(what: str) -> None:
    """Raises UsageError where no event loop runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            f"{what} needs a running asyncio event loop; without one use ask_sync() in `with Runtime(...)`, in another "
            "async library on a thread: `await trio.to_thread.run_sync(runtime.ask_sync, text)`"
        ) from None

"""Requests that go on without their client: the id of one is given out once the journal has it, so that it outlives the
process that has begun it."""

from __future__ import annotations

import time
from typing import Final

from callboard.actors.requests.write_ahead import WRITTEN_WITHIN_SECONDS
from callboard.actors.runtime import Runtime
from callboard.protocol.errors import RuntimeFailure, UsageError

#: A commit takes some milliseconds: the pause between two looks, which doubles up to the longest.
LOOK_SECONDS: Final = 0.002
LONGEST_LOOK_SECONDS: Final = 0.1


def until_kept(runtime: Runtime, request_id: str) -> None:
    """Wait for its beginning to be durable. It blocks. Raises RuntimeFailure where the journal cannot be written."""
    if runtime.settings.journal is None:
        return
    until, pause = time.monotonic() + WRITTEN_WITHIN_SECONDS, LOOK_SECONDS
    while not _is_kept(runtime, request_id):
        if not runtime.is_running(request_id) and not _is_kept(runtime, request_id):
            raise RuntimeFailure(f"the request {request_id} could not be written to the journal, and has not begun")
        if time.monotonic() > until:
            runtime.cancel(request_id, "it could not be written to the journal in time")
            raise RuntimeFailure(f"the request {request_id} could not be written to the journal in time")
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK_SECONDS)


def _is_kept(runtime: Runtime, request_id: str) -> bool:
    try:
        runtime.journal.request(request_id)
    except UsageError:
        return False
    return True

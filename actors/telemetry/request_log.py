"""Which request user code works for: ids and metadata for the log records of any host's own loggers.

    handler.addFilter(callboard.RequestLogFilter())
    handler.setFormatter(logging.Formatter("%(levelname)s %(request_id)s %(tool)s %(message)s"))

The ids are in a context variable, which is set where tools, approval callbacks, providers and subscribers run, and which
their tasks and the threads of `asyncio.to_thread` inherit. Small, since child processes import it too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple

from callboard.protocol.ids import Tag


class LogIds(NamedTuple):
    """What log records are given as attributes."""

    request_id: str = ""
    step: int = 0
    """Of the model call; 0 for the request as a whole, and outside of requests."""
    call_id: str = ""
    tool: str = ""
    metadata: Mapping[str, str] = {}  # noqa: RUF012 - never changed, and a proxy of it could not be pickled
    """What the host said of the request when it asked."""


#: Whose code runs.
RUNNING: Final[ContextVar[LogIds]] = ContextVar("callboard_log_ids", default=LogIds())


def log_ids(tag: Tag, tool: str = "", metadata: Mapping[str, str] | None = None) -> LogIds:
    """Of code that works for this request, step or call."""
    return LogIds(tag.request_id, tag.step, tag.call_id, tool, metadata or {})


class RequestLogFilter(logging.Filter):
    """Adds `request_id`, `step`, `call_id`, `tool` and `metadata` to log records; lets all of them pass.

    For a handler, so that it sees the records of all loggers; with a QueueHandler for that one, which runs where the
    record is made. What a record has already stays: callboard's own records have ids. Outside of a request they are
    empty (`step` is 0), so that a format with them never fails. `name` restricts to a logger and those below it, as with
    every `logging.Filter`.
    """

    def filter(self, record: logging.LogRecord) -> bool | logging.LogRecord:
        """Add what is missing."""
        ids = RUNNING.get()
        present = record.__dict__
        for name, value in zip(LogIds._fields, ids, strict=True):
            if name not in present:
                present[name] = dict(ids.metadata) if name == "metadata" else value
        return super().filter(record)

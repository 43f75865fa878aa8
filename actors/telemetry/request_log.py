"""Which request user code works for: ids and metadata for the log records of any host's own loggers.

    handler.addFilter(callboard.RequestLogFilter())
    handler.setFormatter(logging.Formatter("%(levelname)s %(request_id)s %(tool)s %(message)s"))

The ids are in a context variable. It is set where tools, approval callbacks, providers and subscribers run; their tasks
and the threads of `asyncio.to_thread` inherit it. Small, since child processes import it too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import Context, ContextVar
from typing import Final, NamedTuple

from callboard.protocol.ids import Tag


class LogIds(NamedTuple):
    """What log records are given as attributes."""

    request_id: str = ""
    step: int = 0
    """Of the model call; 0 for the request as a whole, and outside of requests."""
    call_id: str = ""
    tool: str = ""
    metadata: Mapping[str, str] = {}
    """What the host said of the request when it asked."""


_OUTSIDE: Final = LogIds()
_RUNNING: Final[ContextVar[LogIds | None]] = ContextVar("callboard_log_ids", default=None)
_TRACE_HEADERS: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("callboard_trace_headers", default=None)


def work_for(tag: Tag, tool: str, metadata: Mapping[str, str]) -> None:
    """From here on, this context runs user code for this request, step or call."""
    _RUNNING.set(LogIds(tag.request_id, tag.step, tag.call_id, tool, metadata))


def trace_headers_are(headers: Mapping[str, str]) -> None:
    """What carries the trace of this context's work to another process."""
    _TRACE_HEADERS.set(headers)


def trace_headers_in(context: Context) -> Mapping[str, str]:
    """What `trace_headers_are` has set; {} where nothing is traced."""
    return context.get(_TRACE_HEADERS) or {}


def ids_in(context: Context) -> LogIds:
    """For whom code in this context works."""
    return context.get(_RUNNING) or _OUTSIDE


class RequestLogFilter(logging.Filter):
    """Adds `request_id`, `step`, `call_id`, `tool` and `metadata` to log records; lets all of them pass.

    For a handler, so that it sees the records of all loggers; with a QueueHandler for that one, which runs where the
    record is made. What a record has already stays: callboard's own records have ids. Outside of a request they are
    empty (`step` is 0), so that a format with them never fails. With a `name`, records of other loggers than that one
    and those below it are dropped, as by every `logging.Filter`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing."""
        ids = _RUNNING.get() or _OUTSIDE
        present = record.__dict__
        for name, value in zip(LogIds._fields, ids, strict=True):
            if name not in present:
                present[name] = dict(ids.metadata) if name == "metadata" else value
        return super().filter(record)

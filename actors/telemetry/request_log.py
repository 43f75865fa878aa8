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
from typing import Final

from callboard.protocol.ids import MessageId, RequestId, Tag

Work = tuple[Tag, str, Mapping[str, str]]
"""For what code runs: the request, step or call; the tool, "" where it is none; what the host said of the request."""
_NOTHING: Final[Work] = (Tag(RequestId(""), MessageId("")), "", {})
#: Set with `context.run(WORK.set, ...)` where user code is about to run.
WORK: Final[ContextVar[Work | None]] = ContextVar("callboard_work", default=None)
#: What carries the trace of this context's work to another process; None where nothing is traced.
TRACE_HEADERS: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("callboard_trace_headers", default=None)


def metadata_in(context: Context) -> Mapping[str, str]:
    """What the host said of the request for which code in this context runs; {} outside of one."""
    return (context.get(WORK) or _NOTHING)[2]


def trace_headers_in(context: Context) -> Mapping[str, str]:
    """What carries the trace of the work for which code in this context runs; {} where nothing is traced."""
    return context.get(TRACE_HEADERS) or {}


class RequestLogFilter(logging.Filter):
    """Adds `request_id`, `step`, `call_id`, `tool` and `metadata` to log records; lets all of them pass.

    For a handler, so that it sees the records of all loggers; with a QueueHandler for that one, which runs where the
    record is made. What a record has already stays: callboard's own records have ids. Outside of a request they are
    empty (`step` is 0), so that a format with them never fails. With a `name`, records of other loggers than that one
    and those below it are dropped, as by every `logging.Filter`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add what is missing."""
        tag, tool, metadata = WORK.get() or _NOTHING
        present = record.__dict__
        present.setdefault("request_id", tag.request_id)
        present.setdefault("step", tag.step)
        present.setdefault("call_id", tag.shown_call_id)
        present.setdefault("tool", tool)
        present.setdefault("metadata", dict(metadata))
        return super().filter(record)

"""OpenTelemetry spans, where opentelemetry-api is installed: request, model call and tool call, with their tags."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from callboard.protocol.ids import Tag


class Spans(Protocol):
    """Takes the begin and the end of each piece of work, by its tag; times are the runtime's clock, in seconds."""

    def begin(self, tag: Tag, name: str, at: float) -> None: ...

    def end(self, tag: Tag, at: float, ending: str, *, ok: bool) -> None: ...


class NoSpans:
    """Where there is no OpenTelemetry."""

    def begin(self, tag: Tag, name: str, at: float) -> None:
        """Nobody listens."""

    def end(self, tag: Tag, at: float, ending: str, *, ok: bool) -> None:
        """Nobody listens."""


class OpenTelemetrySpans:
    """Makes one span for each piece of work: the request's is the parent of its model calls and tool calls."""

    def __init__(self, trace: Any, now: Callable[[], float]) -> None:
        """`trace` is the module opentelemetry.trace; `now` the runtime's clock."""
        self._trace = trace
        self._tracer = trace.get_tracer("callboard")
        self._now = now
        self._open: dict[Tag, Any] = {}

    def begin(self, tag: Tag, name: str, at: float) -> None:
        parent = self._open.get(tag.request)
        context = self._trace.set_span_in_context(parent) if parent is not None else None
        attributes = {
            "callboard.request_id": tag.request_id,
            "callboard.parent_id": tag.parent_id,
            "callboard.step": tag.step,
            "callboard.call_id": tag.call_id,
        }
        self._open[tag] = self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=self._wall_nanoseconds(at)
        )

    def end(self, tag: Tag, at: float, ending: str, *, ok: bool) -> None:
        span = self._open.pop(tag, None)
        if span is None:
            return
        span.set_attribute("callboard.ending", ending)
        if not ok:
            span.set_status(self._trace.StatusCode.ERROR, ending)
        span.end(end_time=self._wall_nanoseconds(at))

    def _wall_nanoseconds(self, at: float) -> int:
        return time.time_ns() - int((self._now() - at) * 1e9)


def spans_where_installed(now: Callable[[], float]) -> Spans:
    """OpenTelemetry's, or none."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an optional extra
    except ImportError:
        return NoSpans()
    return OpenTelemetrySpans(trace, now)

"""Spans of OpenTelemetry, by its GenAI conventions (conventions.py). The extra `telemetry`.

invoke_agent                INTERNAL   the request: a child of the span that was current where it was asked
|- chat MODEL               CLIENT     one model call, with its retries as events
|- callboard.approval TOOL  INTERNAL   the wait for a person
'- execute_tool TOOL        INTERNAL   one tool call
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import Context

from opentelemetry import context as contexts
from opentelemetry import propagate, trace

from callboard.actors.requests.replies import Question
from callboard.actors.telemetry.conventions import (
    Attributes,
    begin_of,
    request_attributes,
    request_ids,
    server_attributes,
)
from callboard.actors.telemetry.spans import Work
from callboard.protocol.commands import AskApproval, CallModel
from callboard.protocol.ids import Tag

_NANOSECONDS = 1_000_000_000


class Tracing:
    """Begins the spans of requests, as soon as the host has set up a tracer provider: it may do so at any time."""

    def __init__(
        self,
        log_content: bool = False,
        provider: Callable[[], trace.TracerProvider] = trace.get_tracer_provider,
    ) -> None:
        self._log_content = log_content
        self._get_provider = provider
        self._provider: trace.TracerProvider | None = None
        self._tracer: trace.Tracer = trace.NoOpTracer()

    def begin(self, question: Question, now: float) -> OpenTelemetrySpans | None:
        """The span of a request, which was asked at `question.asked_at`. None without a provider."""
        provider = self._get_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            return None
        if provider is not self._provider:
            self._provider, self._tracer = provider, provider.get_tracer("callboard")
        return OpenTelemetrySpans(self._tracer, question, now, self._log_content)


class OpenTelemetrySpans:
    """See `spans.RequestSpans`."""

    def __init__(self, tracer: trace.Tracer, question: Question, now: float, log_content: bool) -> None:
        self._log_content = log_content
        self._tracer = tracer
        self._asked = question
        self._ids = request_ids(question.tag, question.metadata)
        # Taken once, so that the spans of one request fit together also where the wall clock is set meanwhile.
        self._clock_ns = time.time_ns() - int(now * _NANOSECONDS)
        self._context = question.asker.copy()
        attributes = request_attributes(question.options.model) | self._ids
        self._request = self._context.run(
            tracer.start_span,
            "invoke_agent",
            kind=trace.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=self._ns(question.asked_at),
        )
        # With the baggage of the asker, and what else its OpenTelemetry context holds.
        self._parent = self._context.run(trace.set_span_in_context, self._request)
        self._context.run(contexts.attach, self._parent)
        self._open: dict[Tag, trace.Span] = {question.tag: self._request}
        self._approvals: dict[Tag, trace.Span] = {}

    @property
    def is_recording(self) -> bool:
        """Is the request sampled? If not, no content is made for it."""
        return self._request.is_recording()

    @property
    def context(self) -> Context:
        """A new copy of the asker's context, in which the request's span is the current one."""
        return self._context.copy()

    def begin_in(self, context: Context, work: Work, at: float) -> None:
        """A piece of work begins, and its span is the current one in `context`."""
        kind = trace.SpanKind.CLIENT if isinstance(work, CallModel) else trace.SpanKind.INTERNAL
        name, attributes = begin_of(work, self._log_content and self.is_recording)
        if isinstance(work, CallModel):
            attributes |= server_attributes(self._address(work.request.model))
        span = self._tracer.start_span(
            name,
            context=self._parent,
            kind=kind,
            attributes={
                **attributes,
                **self._ids,
                "callboard.step": work.tag.step,
                "callboard.call_id": work.tag.shown_call_id,
            },
            start_time=self._ns(at),
        )
        (self._approvals if isinstance(work, AskApproval) else self._open)[work.tag] = span
        context.run(contexts.attach, trace.set_span_in_context(span, self._parent))

    def headers(self, tag: Tag) -> Mapping[str, str]:
        """What carries the span of this work to another process."""
        headers: dict[str, str] = {}
        propagate.inject(headers, trace.set_span_in_context(self._open.get(tag, self._request), self._parent))
        return headers

    def decided(self, tag: Tag, how: str, at: float) -> None:
        """The wait for approval of this call ends; its own span may have begun by then."""
        span = self._approvals.pop(tag, None)
        if span is not None:
            span.set_attribute("callboard.ending", how)
            span.end(self._ns(at))

    def note(self, tag: Tag, event: str, attributes: Attributes, at: float) -> None:
        """Something happens to it, or to the request of it where it has no span."""
        self._open.get(tag, self._request).add_event(event, attributes, self._ns(at))

    def end(self, tag: Tag, ending: str, attributes: Attributes, at: float, *, ok: bool) -> None:
        """It ends."""
        span = self._open.pop(tag, None)
        if span is None:
            return
        if not ok:
            attributes = {**attributes, "error.type": ending}
        span.set_attributes({**attributes, "callboard.ending": ending})
        if not ok:
            span.set_status(trace.StatusCode.ERROR, ending)
        span.end(self._ns(at))

    def _address(self, model: str) -> str:
        """Where it is asked; "" for a provider that does not say."""
        route = next((route for route in self._asked.routes if route.name == model), None)
        # Not isinstance(..., HasAddress): Python 3.11 takes 10 us for that.
        address: object = getattr(route.provider, "address", "") if route is not None else ""
        return address if isinstance(address, str) else ""

    def _ns(self, at: float) -> int:
        return self._clock_ns + int(at * _NANOSECONDS)

"""The spans of one request, as its session and telemetry see them; OpenTelemetry's are in opentelemetry_spans.py.

The session begins the span of a piece of work before it hands the work on, so that what the work itself does (a tool's
own spans, an instrumented HTTP client) goes below it. Telemetry ends it, with the time at which it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Protocol

from callboard.actors.requests.replies import Question
from callboard.actors.telemetry.conventions import Attributes
from callboard.protocol.commands import AskApproval, CallModel, RunTool
from callboard.protocol.ids import Tag

Work = CallModel | RunTool | AskApproval
"""What has a span of its own."""


class RequestSpans(Protocol):
    """All times are seconds of the runtime's clock. Used on the loop thread only.

    Each method may raise what the host's sampler, span processor or propagator raises.
    """

    @property
    def is_recording(self) -> bool:
        """Is the request sampled? If not, no content is made for it."""

    @property
    def context(self) -> Context:
        """A new copy of the asker's context, in which the request's span is the current one."""

    def begin_in(self, context: Context, work: Work, at: float) -> None:
        """A piece of work begins, and its span is the current one in `context`."""

    def headers(self, tag: Tag) -> Mapping[str, str]:
        """What carries the span of this work to another process."""

    def decided(self, tag: Tag, how: str, at: float) -> None:
        """The wait for approval of this call ends; its own span may have begun by then."""

    def note(self, tag: Tag, event: str, attributes: Attributes, at: float) -> None:
        """Something happens to it, or to the request of it where it has no span."""

    def end(self, tag: Tag, ending: str, attributes: Attributes, at: float, *, ok: bool) -> None:
        """It ends; the request's own span has the tag of the request."""


BeginSpans = Callable[[Question, float], RequestSpans | None]
"""Begins the span of a request, at this time by the clock; None where the host has set up no tracing. May raise
what the host's sampler or span processor raises."""

"""Telemetry in a simulated system, told what a session would tell it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context
from itertools import zip_longest
from typing import Any, get_args

from callboard.actors.kernel import ActorSystem, Ref
from callboard.actors.requests.replies import Question
from callboard.actors.telemetry.metrics import Metrics
from callboard.actors.telemetry.spans import BeginSpans, RequestSpans, Work
from callboard.actors.telemetry.telemetry import Heard, Observed, ReadMetrics, Telemetry
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.protocol.content import UserMessage
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import ToolDefinition

REQUEST = Tag(RequestId("r"), MessageId("m"))
STEP = REQUEST.at_step(1)
CALL = STEP._replace(call_id=CallId("c"))
LOOK = ToolName("look")
OFFERS = (ToolOffer(ToolDefinition(LOOK, "looks")),)


def asked(text: str = "?", tag: Tag = REQUEST, asker: Context | None = None, **more: Any) -> Question:
    """A question to p/m, asked when time began."""
    return Question(tag, (), UserMessage.of(text), RequestOptions("p/m"), 0.0, asker or Context(), **more)


class TelemetryStand:
    """What is about a request comes as its session tells it, one message at a time; all else as it is."""

    def __init__(self, system: ActorSystem, begin_spans: BeginSpans | None = None, **options: Any) -> None:
        assert isinstance(system.scheduler, SimulatedScheduler)
        self.scheduler = system.scheduler
        self.ref: Ref = system.spawn(lambda: Telemetry(**options), "telemetry")
        self._begin_spans = begin_spans
        self._told: dict[RequestId, tuple[Question, Context, RequestSpans | None]] = {}

    def tell(self, *messages: Any, at: Sequence[float] = ()) -> Metrics:
        """One after the other, at these times."""
        for message, when in zip_longest(messages, at, fillvalue=0.0):
            self.scheduler.run_until_idle(max(when, self.scheduler.now()))
            self.ref.tell(self._as_told(message))
        metrics = self.ref.ask(ReadMetrics(), 1.0)
        assert isinstance(metrics, Metrics)
        return metrics

    def _as_told(self, message: Any) -> Any:
        if not isinstance(message, get_args(Heard)):
            return message
        now = self.scheduler.now()
        if isinstance(message, Question):
            spans = self._begin_spans(message, now) if self._begin_spans is not None else None
            context = spans.context if spans is not None else message.asker.copy()
            self._told[message.tag.request_id] = message, context, spans
        unheard: tuple[Question, Context, RequestSpans | None] = (asked(tag=message.tag.request), Context(), None)
        question, context, spans = self._told.get(message.tag.request_id, unheard)
        if spans is not None and isinstance(message, Work):
            spans.begin_in(Context(), message, now)
        return Observed(question, context, spans, OFFERS, now, (message,))

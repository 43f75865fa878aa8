"""Telemetry: counts, times, logs and spans. It listens and never steers; when it fails, nothing else does.

It hears the protocol's own events and commands, some microseconds after they happened. Content (what people, models and
tools said) stays out unless asked for; keys never come near it. Log records and spans of a request are made in its
asker's context, so that the host's logging filters and its own spans apply.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeGuard, get_args

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.kernel import Actor, Asks, MailboxFull, handles
from callboard.actors.requests.conversation import Question
from callboard.protocol import events
from callboard.protocol.commands import CallModel, Finish, Note, NoteKind, Outcome, RunTool
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.tools import FailureCode

logger = logging.getLogger("callboard")
P = ParamSpec("P")

#: Upper bounds in seconds: 1-2-5 steps from 0.1 ms (a warm call takes 0.15 ms) to 10 min (the longest deadline).
BUCKETS_SECONDS = tuple(
    round(digit * 10.0**power, 6) for power in range(-4, 3) for digit in (1, 2, 5) if digit * 10.0**power <= 600
)


@dataclass(slots=True)
class Histogram:
    """How long something took."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SECONDS) + 1))
    total_seconds: float = 0.0
    max_seconds: float = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BUCKETS_SECONDS, seconds)] += 1
        self.total_seconds += seconds
        self.max_seconds = max(self.max_seconds, seconds)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper bound of the bucket in which this share of the records is reached, in seconds; 0 when empty."""
        rank, seen = share * self.count, 0
        for bound, count in zip((*BUCKETS_SECONDS, self.max_seconds), self.counts, strict=True):
            seen += count
            if count and seen >= rank:
                return min(bound, self.max_seconds)
        return 0.0


@dataclass(slots=True)
class Metrics:
    """What a runtime has counted since it started.

    `counters` by name: request.<outcome>, model.<model>.<ok or the error kind>, tool.<tool>.<ok or the failure code>,
    note.<kind> (retry, fallback, rate_limit, cut and the other kinds of NoteKind), tools.withdrawn, tools.restored,
    tokens.input, tokens.output, cost.unknown (requests of which no cost is known), telemetry.failed (what could not be
    logged or traced).
    `seconds` by name: request, model.<model>, tool.<tool>.
    """

    counters: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, Histogram] = field(default_factory=dict)
    known_cost: float = 0.0
    """US dollars of the requests whose cost is known; cost.unknown counts the others."""

    @property
    def cost(self) -> float | None:
        """US dollars of all requests; None once that of one was not known."""
        return None if self.counters["cost.unknown"] else self.known_cost

    def observe(self, name: str, seconds: float) -> None:
        if name not in self.seconds:
            self.seconds[name] = Histogram()
        self.seconds[name].record(seconds)

    def copy(self) -> Metrics:
        """A snapshot that goes on unchanged."""
        seconds = {name: replace(each, counts=list(each.counts)) for name, each in self.seconds.items()}
        return Metrics(Counter(self.counters), seconds, self.known_cost)


class Spans:
    """Takes the begin and the end of each piece of work, by its tag, in its asker's context; this one does nothing."""

    def begin(self, tag: Tag, name: str) -> None:
        """A piece of work begins."""

    def end(self, tag: Tag, ending: str, *, ok: bool) -> None:
        """It ends."""


class OpenTelemetrySpans(Spans):
    """Makes one span for each piece of work: the request's is the parent of its model calls and tool calls."""

    def __init__(self, trace: Any) -> None:
        """`trace` is the module opentelemetry.trace."""
        self._trace = trace
        self._tracer = trace.get_tracer("callboard")
        self._open: dict[Tag, Any] = {}

    def begin(self, tag: Tag, name: str) -> None:
        parent = self._open.get(Tag(tag.request_id, tag.parent_id))
        if parent is None and isinstance(self._trace.get_tracer_provider(), self._trace.ProxyTracerProvider):
            return  # the host has set up no provider: a span would go nowhere
        context = self._trace.set_span_in_context(parent) if parent is not None else None
        attributes = {f"callboard.{field}": value for field, value in tag._asdict().items()}
        self._open[tag] = self._tracer.start_span(name, context=context, attributes=attributes)

    def end(self, tag: Tag, ending: str, *, ok: bool) -> None:
        span = self._open.pop(tag, None)
        if span is None:
            return
        span.set_attribute("callboard.ending", ending)
        if not ok:
            span.set_status(self._trace.StatusCode.ERROR, ending)
        span.end()


def spans_where_installed() -> Callable[[], Spans]:
    """Makes OpenTelemetry's spans, or none. Imports: not for the loop."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - an optional extra
    except ImportError:
        return Spans
    return lambda: OpenTelemetrySpans(trace)


class ReadMetrics(Asks[Metrics]):
    """Ask for a snapshot of the metrics."""


@dataclass(frozen=True, slots=True)
class RequestLost:
    """The request's session ended before the request did: no Finish will come."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class BacklogHeard:
    """Everything sent to telemetry before it was asked to stop has been counted."""


WorkEnd = events.ModelResponded | events.ModelFailed | events.ModelLost | events.ToolCallEnd
"""The end of a model call or a tool call."""
Heard = Question | CallModel | RunTool | WorkEnd | Note | Finish
"""What a session tells of its request."""
#: Notes of what happens every day, and costs an answer nothing but time; and what was warned of before, once.
_HARMLESS = frozenset({NoteKind.RATE_LIMIT, NoteKind.RETRY, NoteKind.LEFT_OUT, NoteKind.ASSUMED})
_WORK_ENDS = frozenset(get_args(WorkEnd))
TelemetryMessage = Heard | RequestLost | ToolWithdrawn | ToolRestored | ReadMetrics | BacklogHeard


@dataclass(slots=True)
class _OpenRequest:
    """What runs now of a request: its name and since when."""

    context: Context
    works: dict[Tag, tuple[str, float]] = field(default_factory=dict)


class Telemetry(Actor[TelemetryMessage]):
    """See the module."""

    def __init__(self, spans: Spans, log_content: bool = False, metrics: Metrics | None = None) -> None:
        """`metrics` is what former incarnations have counted."""
        self._spans = spans
        self._log_content = log_content
        self._metrics = Metrics() if metrics is None else metrics
        self._open: dict[RequestId, _OpenRequest] = {}

    def on_stopping(self) -> bool:
        try:
            self.ref.tell(BacklogHeard())
        except MailboxFull:
            return True
        return False

    @handles(BacklogHeard)
    def _heard_all(self, message: BacklogHeard) -> None:
        self.stopped()

    @handles(ReadMetrics)
    def _read(self, message: ReadMetrics) -> Metrics:
        return self._metrics.copy()

    @handles(Question)
    def _asked(self, question: Question) -> None:
        self._open[question.tag.request_id] = opened = _OpenRequest(question.asker.copy())
        self._begin(question.tag, "request")
        if self._log_content:
            self._outside(opened, _log, question.tag, logging.INFO, "asked: %s", question.user.text)

    @handles(CallModel, RunTool)
    def _work_begun(self, command: CallModel | RunTool) -> None:
        name = f"tool.{command.name}" if isinstance(command, RunTool) else f"model.{command.request.model}"
        self._begin(command.tag, name)

    @handles(*get_args(WorkEnd))
    def _work_ended(self, event: WorkEnd) -> None:
        self._end(event.tag, _ending(event))

    @handles(Note)
    def _noted(self, note: Note) -> None:
        self._metrics.counters[f"note.{note.kind}"] += 1
        opened = self._open.get(note.tag.request_id)
        level = logging.INFO if note.kind in _HARMLESS else logging.WARNING
        if opened is not None and logger.isEnabledFor(level):
            self._outside(opened, _log, note.tag, level, "%s: %s", note.kind.value, note.text)

    @handles(Finish)
    def _finished(self, command: Finish) -> None:
        self._close(command.tag, command.outcome.value, ok=command.outcome is Outcome.ANSWERED)
        self._metrics.counters["tokens.input"] += command.usage.input_tokens
        self._metrics.counters["tokens.output"] += command.usage.output_tokens
        if command.cost is None:
            self._metrics.counters["cost.unknown"] += 1
        else:
            self._metrics.known_cost += command.cost

    @handles(RequestLost)
    def _request_lost(self, message: RequestLost) -> None:
        self._close(message.tag, "lost", ok=False)

    @handles(ToolWithdrawn, ToolRestored)
    def _health_changed(self, event: ToolWithdrawn | ToolRestored) -> None:
        change = "withdrawn" if isinstance(event, ToolWithdrawn) else "restored"
        self._metrics.counters[f"tools.{change}"] += 1
        self._metrics.counters[f"tool.{event.name}.{change}"] += 1

    # -- one request's work

    def _begin(self, tag: Tag, name: str) -> None:
        opened = self._open.get(tag.request_id)
        if opened is None:
            opened = self._open[tag.request_id] = _OpenRequest(Context())
        opened.works[tag] = (name, self.now())
        self._outside(opened, self._spans.begin, tag, name)

    def _end(self, tag: Tag, ending: str, *, ok: bool | None = None) -> None:
        """`ending` is the last part of the counter: "ok", or what went wrong."""
        opened = self._open.get(tag.request_id)
        if opened is None or tag not in opened.works:
            return
        ok = ending == "ok" if ok is None else ok
        name, since = opened.works.pop(tag)
        seconds = self.now() - since
        self._metrics.observe(name, seconds)
        self._metrics.counters[f"{name}.{ending}"] += 1
        self._outside(opened, self._spans.end, tag, ending, ok=ok)
        level = logging.INFO if ok else logging.WARNING
        if logger.isEnabledFor(level):
            self._outside(opened, _log, tag, level, "%s %s after %.3f s", name, ending, seconds)

    def _close(self, request: Tag, ending: str, *, ok: bool) -> None:
        """End the request, and what it leaves open."""
        opened = self._open.get(request.request_id)
        for tag in tuple(opened.works) if opened is not None else ():
            if tag != request:
                self._end(tag, FailureCode.CANCELLED.value)
        self._end(request, ending, ok=ok)
        self._open.pop(request.request_id, None)

    def _outside(self, opened: _OpenRequest, work: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Log and trace in the asker's context. A log handler or a span processor that fails is the host's: it is
        counted, for a log record might fail again."""
        try:
            opened.context.run(work, *arguments, **options)
        except BaseException:  # noqa: BLE001
            self._metrics.counters["telemetry.failed"] += 1


def _log(tag: Tag, level: int, text: str, *values: object) -> None:
    logger.log(level, text, *values, extra=tag._asdict())


def ends_work(event: Event) -> TypeGuard[WorkEnd]:
    """Whether a model call or a tool call has ended with it."""
    return type(event) in _WORK_ENDS


def _ending(event: WorkEnd) -> str:
    match event:
        case events.ModelResponded() | events.ToolCallCompleted():
            return "ok"
        case events.ModelFailed():
            return event.error.kind.value
        case events.ModelLost():
            return "lost"
        case events.ToolCallFailed():
            return event.failure.code.value
        case events.ToolCallTimedOut():
            return FailureCode.TIMED_OUT.value
        case events.ToolCallCancelled():
            return FailureCode.CANCELLED.value

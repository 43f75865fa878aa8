"""Telemetry: counts, times, logs and spans. It listens and never steers; when it fails, nothing else does.

It hears the protocol's own events and commands, some microseconds after they happened. Content (what people, models and
tools said) stays out unless asked for, and then values that look like keys are masked. Log records and spans of a
request are made in its asker's context, so that the host's logging filters and its own spans apply. docs/failures.md
lists what there is to be found.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeGuard, get_args

from callboard.actors.kernel import Actor, Asks, MailboxFull, handles
from callboard.actors.requests.conversation import Question
from callboard.actors.telemetry.notices import NOTICES, Fields, InRequest, InRuntime, ToolPrinted
from callboard.protocol import events
from callboard.protocol.commands import CallModel, Finish, Outcome, ReportFailure, RunTool
from callboard.protocol.events import Event
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.masking import LONGEST_KEY_BYTES, mask
from callboard.protocol.tools import FailureCode, ToolFailure

logger = logging.getLogger("callboard")
#: What tools print, a record a line.
output_logger = logging.getLogger("callboard.tools.output")
P = ParamSpec("P")
#: All but ASCII's printable characters, line ends and tabs.
_NOT_PLAIN = re.compile(r"[^\n\t\x20-\x7e]")

#: Upper bounds in seconds: 1-2-5 steps from 0.1 ms (a warm call takes 0.15 ms) to 10 min (the longest deadline).
BUCKETS_SECONDS = tuple(
    round(digit * 10.0**power, 6) for power in range(-4, 3) for digit in (1, 2, 5) if digit * 10.0**power <= 600
)


#: Of what one call has printed, as log records: the end of it, as everywhere, since errors come last.
MAX_PRINTED_LINES = 200
MAX_PRINTED_BYTES = 16_384
#: Of what a person, a model or an exception said, in one log record.
MAX_CONTENT_CHARS = 4_000


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
    tool.<tool>.printed_bytes, note.<kind> (retry, fallback, rate_limit, cut and the other kinds of NoteKind),
    tokens.input, tokens.output, cost.unknown (requests of which no cost is known), telemetry.failed (what could not be
    logged or traced), actors.restarted, and those of the table in notices.py.
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

    def note(self, tag: Tag, event: str, attributes: Mapping[str, str | int]) -> None:
        """Something happens to it, or to the request of it where it is no piece of work of its own."""

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

    def note(self, tag: Tag, event: str, attributes: Mapping[str, str | int]) -> None:
        span = self._open.get(tag) or self._open.get(Tag(tag.request_id, tag.parent_id))
        if span is not None:
            span.add_event(event, dict(attributes))

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
Heard = Question | CallModel | RunTool | WorkEnd | InRequest | Finish
"""What a session tells of its request."""
_WORK_ENDS = frozenset(get_args(WorkEnd))
TelemetryMessage = Heard | RequestLost | InRuntime | ToolPrinted | ReadMetrics | BacklogHeard


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
            asked = _with_content("asked", question.user.text)
            self._outside(opened.context, _log, question.tag, logging.INFO, asked, {"event": "request.asked"})

    @handles(CallModel, RunTool)
    def _work_begun(self, command: CallModel | RunTool) -> None:
        name = f"tool.{command.name}" if isinstance(command, RunTool) else f"model.{command.request.model}"
        self._begin(command.tag, name)

    @handles(*get_args(WorkEnd))
    def _work_ended(self, event: WorkEnd) -> None:
        failure = event.failure if isinstance(event, events.ToolCallFailed) else None
        content = event.error.message if isinstance(event, events.ModelFailed) else ""
        self._end(event.tag, _ending(event), failure=failure, content=content)

    @handles(Finish)
    def _finished(self, command: Finish) -> None:
        self._close(command.tag, command.outcome.value, ok=command.outcome is Outcome.ANSWERED)
        if command.usage is None:
            self._metrics.counters["tokens.unknown"] += 1
        else:
            self._metrics.counters["tokens.input"] += command.usage.input_tokens
            self._metrics.counters["tokens.output"] += command.usage.output_tokens
        if command.cost is None:
            self._metrics.counters["cost.unknown"] += 1
        else:
            self._metrics.known_cost += command.cost

    @handles(RequestLost)
    def _request_lost(self, message: RequestLost) -> None:
        self._close(message.tag, "lost", ok=False)

    @handles(*get_args(InRuntime))
    def _happened(self, message: InRuntime) -> None:
        rule = NOTICES[type(message)]
        self._count(rule.counters, rule.fields(message))

    @handles(*get_args(InRequest))
    def _noticed(self, message: InRequest) -> None:
        tag, opened = message.tag, self._open.get(message.tag.request_id)
        if opened is not None and isinstance(message, ReportFailure) and tag in opened.works:
            self._end(tag, message.failure.code.value, failure=message.failure)  # it runs, and is given up
            return
        rule = NOTICES[type(message)]
        fields = rule.fields(message)
        self._count(rule.counters, fields)
        context = opened.context if opened is not None else Context()  # a former incarnation had heard of the request
        self._outside(context, self._spans.note, tag, rule.event, _attributes(tag, fields))
        level = rule.level_of(fields)
        if level is not None and logger.isEnabledFor(level):
            text = _with_content(rule.text.format_map(fields), rule.content(message) if self._log_content else "")
            self._outside(context, _log, tag, level, text, {"event": rule.event, **fields})

    def _count(self, counters: Iterable[str], fields: Fields) -> None:
        self._metrics.counters.update(name.format_map(fields) for name in counters)

    @handles(ToolPrinted)
    def _printed(self, printed: ToolPrinted) -> None:
        self._metrics.counters[f"tool.{printed.tool}.printed_bytes"] += printed.total_bytes
        if not output_logger.isEnabledFor(logging.INFO):
            return
        context = Context() if printed.asker is None else printed.asker.copy()
        extra = {"event": "tool.printed", "tool": printed.tool, "printed_bytes": printed.total_bytes}
        for line in _shown_lines(printed) if self._log_content else [f"{printed.total_bytes:,} bytes were printed"]:
            text = f"{printed.tool}: {line}"
            self._outside(context, _log, printed.tag, logging.INFO, text, extra, output_logger)

    # -- one request's work

    def _begin(self, tag: Tag, name: str) -> None:
        opened = self._open.get(tag.request_id)
        if opened is None:
            opened = self._open[tag.request_id] = _OpenRequest(Context())
        opened.works[tag] = (name, self.now())
        self._outside(opened.context, self._spans.begin, tag, name)

    def _end(
        self, tag: Tag, ending: str, *, ok: bool | None = None, failure: ToolFailure | None = None, content: str = ""
    ) -> None:
        """`ending` is the last part of the counter: "ok", or what went wrong; `content` says more of it."""
        opened = self._open.get(tag.request_id)
        if opened is None or tag not in opened.works:
            return
        ok = ending == "ok" if ok is None else ok
        name, since = opened.works.pop(tag)
        seconds = self.now() - since
        self._metrics.observe(name, seconds)
        self._metrics.counters[f"{name}.{ending}"] += 1
        told = ""
        if failure is not None:
            told = _printable(failure.traceback) if self._log_content else failure.frames
            content = failure.message
            self._outside(opened.context, self._spans.note, tag, "exception", _exception(failure, told))
        self._outside(opened.context, self._spans.end, tag, ending, ok=ok)
        level = logging.INFO if ok else logging.WARNING
        if logger.isEnabledFor(level):
            text = _with_content(f"{name} {ending} after {seconds:.3f} s", content if self._log_content else "")
            extra = {"event": "work.ended", "work": name, "ending": ending, "seconds": seconds}
            self._outside(opened.context, _log, tag, level, f"{text}\n{told.rstrip()}" if told else text, extra)

    def _close(self, request: Tag, ending: str, *, ok: bool) -> None:
        """End the request, and what it leaves open."""
        opened = self._open.get(request.request_id)
        for tag in tuple(opened.works) if opened is not None else ():
            if tag != request:
                self._end(tag, FailureCode.CANCELLED.value)
        self._end(request, ending, ok=ok)
        self._open.pop(request.request_id, None)

    def _outside(self, context: Context, work: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Log and trace in the asker's context. A log handler or a span processor that fails is the host's: it is
        counted, for a log record might fail again."""
        try:
            context.run(work, *arguments, **options)
        except BaseException:  # noqa: BLE001
            self._metrics.counters["telemetry.failed"] += 1


def _log(tag: Tag, level: int, text: str, extra: Mapping[str, object], into: logging.Logger = logger) -> None:
    into.log(level, "%s", text, extra={**tag._asdict(), **extra})


def _with_content(text: str, content: str) -> str:
    if not content:
        return text
    shown = _printable(mask(content[: MAX_CONTENT_CHARS + LONGEST_KEY_BYTES])[:MAX_CONTENT_CHARS])
    more = len(content) - MAX_CONTENT_CHARS
    return f"{text}: {shown}... ({more:,} characters more)" if more > 0 else f"{text}: {shown}"


def _attributes(tag: Tag, fields: Fields) -> dict[str, str | int]:
    """Of a span event: the span may be that of the whole request."""
    return {f"callboard.{name}": value for name, value in (*tag._asdict().items(), *fields.items())}


def _exception(failure: ToolFailure, told: str) -> dict[str, str | int]:
    """As OpenTelemetry's conventions for exceptions have it, and the code."""
    attributes: dict[str, str | int] = {"callboard.code": failure.code.value}
    if told:
        attributes |= {"exception.type": failure.frames.partition("\n")[0], "exception.stacktrace": told}
    return attributes


def _shown_lines(printed: ToolPrinted) -> list[str]:
    """The last of what was printed, with its control characters escaped; and first, how much there was before."""
    kept = mask(printed.text[-MAX_PRINTED_BYTES - LONGEST_KEY_BYTES :]).encode()[-MAX_PRINTED_BYTES:]
    is_cut = len(kept) < len(printed.text.encode())
    if is_cut:
        kept = kept[kept.find(b"\n") + 1 :]  # the first of these lines is not whole
    lines = kept.decode(errors="replace").removesuffix("\n").split("\n")
    shown = lines[-MAX_PRINTED_LINES:]
    dropped = printed.total_bytes - sum(len(line.encode()) + 1 for line in shown)
    head = [f"... and {dropped:,} bytes before this were dropped"] if is_cut or shown != lines else []
    return head + [_printable(line.rstrip("\r")) for line in shown]


def _printable(text: str) -> str:
    """With control characters escaped, that would act on the terminal in which a log is read; lines stay lines."""
    return _NOT_PLAIN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode()


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

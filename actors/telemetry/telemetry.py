"""Telemetry: counts, times, log records, ends of spans. It listens and never steers; when it fails, nothing else does.

It hears the protocol's own events and commands, some microseconds after they happened, with the time at which they did.
Content (what people, models and tools said) stays out unless asked for, and then values that look like keys are masked.
Log records and spans of a request are made in its asker's context, so that the host's logging filters and its own spans
apply. docs/telemetry.md tells what there is, docs/failures.md where to look.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context
from functools import partial
from typing import Final, NamedTuple, ParamSpec, TypeGuard, get_args

from msgspec import Struct, field

from callboard.actors.kernel import Actor, Asks, MailboxFull, Ref, handles
from callboard.actors.requests.replies import SUSPENDED, Question
from callboard.actors.telemetry import metrics
from callboard.actors.telemetry.conventions import Attributes, end_attributes, finish_attributes
from callboard.actors.telemetry.message_json import shown_text
from callboard.actors.telemetry.metrics import (
    ASKERS_TOOL,
    OK,
    UNKNOWN,
    Export,
    Labels,
    Metric,
    Metrics,
    Sample,
)
from callboard.actors.telemetry.notices import (
    NOTICES,
    Fields,
    InRequest,
    InRuntime,
    JournalCommitted,
    NoticeRule,
    ToolPrinted,
    ToolStopped,
    TracingFailed,
)
from callboard.actors.telemetry.request_log import TRACE_HEADERS, WORK, metadata_in
from callboard.actors.telemetry.spans import BeginSpans, RequestSpans, Work
from callboard.actors.telemetry.timelines import RequestTimelines
from callboard.protocol import events
from callboard.protocol.commands import WENT_WELL, AskApproval, CallModel, Finish, ReportFailure, RunTool
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, Event, ToolCallDeferred
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.masking import LONGEST_KEY_BYTES, for_log
from callboard.protocol.options import ToolOffer
from callboard.protocol.tools import FailureCode, Isolation, ToolFailure

logger = logging.getLogger("callboard")
#: What tools print, a record a line.
output_logger = logging.getLogger("callboard.tools.output")
P = ParamSpec("P")
#: All but ASCII's printable characters, line ends and tabs.
_NOT_PLAIN = re.compile(r"[^\n\t\x20-\x7e]")

#: Of what one call has printed, as log records: the end of it, as everywhere, since errors come last.
MAX_PRINTED_LINES = 200
MAX_PRINTED_BYTES = 16_384
#: Host code that has nothing to do with a request runs here.
_EMPTY: Final = Context()


def _no_export() -> None:
    """The host has no metrics of its own."""


class Observed(Struct, frozen=True):
    """What one event of a request has led to, in order. One message for all of it: each costs 2 us."""

    question: Question
    context: Context
    """Of the asker, with the request's span as the current one where there is one."""
    spans: RequestSpans | None
    offers: tuple[ToolOffer, ...]
    """The tools that the request may use; () before it knows them."""
    at: float
    """When the session gave its commands; events know better when they happened."""
    happened: tuple[Heard, ...]
    begun: Mapping[Tag, float] = {}
    """When work began that the commands are for: the same moments as in its spans."""


class RequestLost(Struct, frozen=True):
    """The request's session ended before the request did: no Finish will come."""

    question: Question


class ReadMetrics(Asks[Metrics], Struct, frozen=True):
    """Ask for a snapshot of the metrics."""

    asked_at: float | None = None
    """By the runtime's clock: how long the loop took to come to it is one of them."""


class BacklogHeard(Struct, frozen=True):
    """Everything sent to telemetry before it was asked to stop has been counted."""


WorkEnd = events.ModelResponded | events.ModelFailed | events.ModelLost | events.ToolCallEnd
"""The end of a model call or a tool call."""
Heard = Question | CallModel | RunTool | WorkEnd | InRequest | events.ModelNoted | TracingFailed | Finish
"""What a session tells of its request."""
_WORK_ENDS = frozenset(get_args(WorkEnd))
TelemetryMessage = (
    Observed | RequestLost | InRuntime | JournalCommitted | ToolPrinted | ToolStopped | ReadMetrics | BacklogHeard
)


# -- the session's side


class SessionTrace:
    """Of one request. It fails silently: telemetry must not steer."""

    def __init__(self, question: Question, telemetry: Ref[TelemetryMessage], begin_spans: BeginSpans | None) -> None:
        self._question = question
        self._telemetry = telemetry
        self._begin_spans = begin_spans
        self._spans: RequestSpans | None = None
        self.context = question.asker.copy()  # of our own: a context can be entered only once at a time
        self.heard: list[Heard] = [question]
        """What telemetry has not been told yet."""
        self._begun: dict[Tag, float] = {}

    def begin(self, now: float) -> None:
        """The request's span, below the one that is current in the asker's context; and the ids for log records."""
        question = self._question
        if self._begin_spans is not None:
            try:
                self._spans = self._begin_spans(question, now)
            except BaseException:  # noqa: BLE001 - the host's tracing; counted
                self.observe(TracingFailed(question.tag))
        if self._spans is not None:
            self.context = self._spans.context
        self.context.run(WORK.set, (question.tag, "", question.metadata))

    def observe(self, what: Heard) -> None:
        """Telemetry hears of it with what comes next."""
        self.heard.append(what)

    def tell(self, offers: tuple[ToolOffer, ...], now: float) -> None:
        """Tell telemetry all that was observed."""
        if not self.heard:
            return
        heard, self.heard = self.heard, []
        begun, self._begun = self._begun, {}
        try:
            self._telemetry.tell(Observed(self._question, self.context, self._spans, offers, now, tuple(heard), begun))
        except Exception:  # noqa: BLE001 - telemetry that cannot keep up must not steer; the kernel counts it
            return

    def context_for(self, work: Work, tool: str, offers: tuple[ToolOffer, ...], now: float) -> Context:
        """In which user code does this work: the asker's, with the ids for its log records and with its span."""
        self.observe(work)
        self._begun[work.tag] = now
        context = self.context.copy()
        context.run(WORK.set, (work.tag, tool, self._question.metadata))
        if self._spans is not None:
            try:
                self._spans.begin_in(context, work, now)
                if isinstance(work, RunTool) and _runs_in_process(work, offers):
                    context.run(TRACE_HEADERS.set, self._spans.headers(work.tag))
            except BaseException:  # noqa: BLE001 - the host's tracing; counted
                self.observe(TracingFailed(work.tag))
        return context


def _runs_in_process(work: RunTool, offers: tuple[ToolOffer, ...]) -> bool:
    return any(each.contract.isolation is Isolation.PROCESS for each in offers if each.definition.name == work.name)


# -- the actor


class _Begun(NamedTuple):
    """A piece of work that has begun."""

    work: str
    """`request`, `model.NAME` or `tool.NAME`."""
    name: str
    """Of the model or the tool."""
    at: float
    rule: str = ""
    """By which a call may run."""


class _OpenRequest(Struct):
    """What runs now of a request."""

    question: Question
    context: Context
    spans: RequestSpans | None = None
    offers: tuple[ToolOffer, ...] = ()
    works: dict[Tag, _Begun] = field(default_factory=dict)
    approvals: dict[Tag, _Begun] = field(default_factory=dict)
    """Those that wait for an answer."""

    def named(self, tool: str) -> str:
        """As it may be shown: the name of a tool that there is not was made up by the model."""
        return tool if any(offer.definition.name == tool for offer in self.offers) else UNKNOWN

    def counted(self, fields: Fields) -> Fields:
        """With one name for all of the asker's own tools: each question may bring others."""
        askers = {offer.definition.name for offer in self.offers if offer.contract.is_outside}
        return {**fields, "tool": ASKERS_TOOL} if fields.get("tool") in askers else fields


class Telemetry(Actor[TelemetryMessage]):
    """See the module."""

    def __init__(
        self,
        log_content: bool = False,
        counted: Metrics | None = None,
        sample: Callable[[], Iterable[Sample]] = tuple,
        find_export: Callable[[], Export | None] = _no_export,
        timelines: RequestTimelines | None = None,
    ) -> None:
        """`counted` is by former incarnations, `sample` gives what is looked up when they are read, and
        `find_export` what takes each number for the host's own metrics, if there is such a thing now. `timelines`:
        where what each request does is written, where that is wanted."""
        self._log_content = log_content
        self._metrics = Metrics() if counted is None else counted
        self._sample = sample
        self._find_export = find_export
        self._timelines = timelines
        self._export: Export | None = None
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
        snapshot = self._metrics.copy(self._sample())
        snapshot.add(metrics.REQUESTS_OPEN, (), len(self._open))
        if message.asked_at is not None:
            snapshot.add(metrics.LOOP_LAG, (), self.now() - message.asked_at)
        return snapshot

    # -- what a session tells

    @handles(Observed)
    def _observed(self, message: Observed) -> None:
        tag = message.question.tag
        opened = self._open.get(tag.request_id)
        if opened is None:  # it begins, or a former incarnation has heard of that
            opened = self._open[tag.request_id] = _OpenRequest(message.question, message.context)
        opened.spans, opened.offers = message.spans, message.offers
        for what in message.happened:
            at = getattr(what, "at", message.begun.get(what.tag, message.at))
            _HEARD[type(what)](self, opened, what, at)
            if self._timelines is not None:
                self._timelines.heard(tag.request_id, what, at)

    def _asked(self, opened: _OpenRequest, question: Question, _: float) -> None:
        opened.works[question.tag] = _Begun("request", "", question.asked_at)
        self._export = self._find_export()
        if self._log_content:
            asked = _with_content("asked", question.user.text)
            self._log(opened.context, question.tag, logging.INFO, asked, {"event": "request.asked"})

    def _model_called(self, opened: _OpenRequest, command: CallModel, at: float) -> None:
        name = command.request.model
        opened.works[command.tag] = _Begun(f"model.{name}", name, at)

    def _tool_called(self, opened: _OpenRequest, command: RunTool, at: float) -> None:
        opened.works[command.tag] = _Begun(f"tool.{command.name}", command.name, at, command.rule)

    def _work_ended(self, opened: _OpenRequest, event: WorkEnd, at: float) -> None:
        begun = opened.works.get(event.tag)
        if begun is None:
            return
        attributes: Attributes = {}
        if isinstance(event, events.ModelResponded) and event.first_event_at is not None:
            seconds = event.first_event_at - begun.at
            self._record(metrics.FIRST_CHUNK_SECONDS, (event.model or begun.name,), seconds)
            attributes["gen_ai.response.time_to_first_chunk"] = seconds
        if opened.spans is not None:
            attributes |= end_attributes(event, self._log_content and opened.spans.is_recording)
        failure = event.failure if isinstance(event, events.ToolCallFailed) else None
        content = event.error.message if isinstance(event, events.ModelFailed) else ""
        self._end(opened, event.tag, _ending(event), at, attributes, failure=failure, content=content, of=_model(event))

    def _finished(self, opened: _OpenRequest, command: Finish, at: float) -> None:
        if command.reason == SUSPENDED:  # what it used is counted by the process that goes on with it
            self._close(opened, "suspended", at, {}, True)
            return
        for step in command.steps:
            if step.usage is not None:
                self._record(metrics.TOKENS, (step.model, "input"), step.usage.input_tokens)
                self._record(metrics.TOKENS, (step.model, "output"), step.usage.output_tokens)
            if step.cost is not None:
                self._add(metrics.COST, (step.model,), step.cost)
        if command.usage is None:
            self._add(metrics.TOKENS_UNKNOWN)
        if command.cost is None:
            self._add(metrics.COST_UNKNOWN)
        attributes = finish_attributes(command) if opened.spans is not None else {}
        self._close(opened, command.outcome.value, at, attributes, command.outcome in WENT_WELL)

    @handles(RequestLost)
    def _request_lost(self, message: RequestLost) -> None:
        question = message.question
        opened = self._open.get(question.tag.request_id)
        if opened is None:
            opened = _OpenRequest(question, question.asker.copy())
        self._close(opened, "lost", self.now(), {}, False)
        if self._timelines is not None:
            self._timelines.lost(question.tag.request_id, self.now())

    def _tracing_failed(self, opened: _OpenRequest, _: TracingFailed, __: float) -> None:
        self._add(metrics.TELEMETRY_FAILED)

    # -- notices

    @handles(*get_args(InRuntime))
    def _happened(self, message: InRuntime) -> None:
        rule = NOTICES[type(message)]
        self._count(rule, rule.fields(message))

    @handles(ToolStopped)
    def _stopped(self, message: ToolStopped) -> None:
        """From the dispatcher: the request may have ended before."""
        self._notice(self._open.get(message.tag.request_id), message, NOTICES[ToolStopped].fields(message), self.now())

    def _noticed(self, opened: _OpenRequest, message: InRequest, at: float) -> None:
        tag, fields = message.tag, NOTICES[type(message)].fields(message)
        if isinstance(message, ReportFailure):
            if tag in opened.works:  # it runs, and is given up
                self._end(opened, tag, message.failure.code.value, at, failure=message.failure)
                return
            fields = {**fields, "tool": opened.named(fields["tool"])}
            self._approval_over(opened, tag, "withdrawn", at)
        elif isinstance(message, ToolCallDeferred):
            begun = opened.works.get(tag)
            fields = {"tool": UNKNOWN if begun is None else begun.name, **fields}
        elif isinstance(message, AskApproval):
            opened.approvals[tag] = _Begun(f"approval.{message.name}", message.name, at)
        elif isinstance(message, ApprovalGranted | ApprovalDenied):
            begun = opened.approvals.get(tag)
            fields = {"tool": UNKNOWN if begun is None else begun.name, **fields}
            self._notice(opened, message, fields, at)
            if begun is not None:
                self._record(metrics.APPROVAL_SECONDS, (begun.name,), at - begun.at)
            self._approval_over(opened, tag, "granted" if isinstance(message, ApprovalGranted) else "denied", at)
            return
        self._notice(opened, message, fields, at)

    def _notice(self, opened: _OpenRequest | None, message: InRequest, fields: Fields, at: float) -> None:
        rule, tag = NOTICES[type(message)], message.tag
        self._count(rule, fields if opened is None else opened.counted(fields))
        if opened is not None and opened.spans is not None:
            attributes = _attributes(tag, fields)
            self._outside(opened.context, opened.spans.note, tag, rule.event, attributes, at)
        level = rule.level_of(fields)
        if level is not None and logger.isEnabledFor(level):
            text = _with_content(rule.text.format_map(fields), rule.content(message) if self._log_content else "")
            context = Context() if opened is None else opened.context
            self._log(context, tag, level, text, {"event": rule.event, **fields})

    def _count(self, rule: NoticeRule, fields: Fields) -> None:
        for metric, labels in rule.counts:
            self._add(metric, tuple(label.format_map(fields) for label in labels))

    def _approval_over(self, opened: _OpenRequest, tag: Tag, how: str, at: float) -> None:
        if opened.approvals.pop(tag, None) is not None and opened.spans is not None:
            self._outside(opened.context, opened.spans.decided, tag, how, at)

    @handles(JournalCommitted)
    def _committed(self, done: JournalCommitted) -> None:
        self._add(metrics.JOURNAL_WRITES, (), done.writes)
        self._record(metrics.JOURNAL_BATCH, (), done.writes)
        self._record(metrics.JOURNAL_SECONDS, (), done.seconds)

    @handles(ToolPrinted)
    def _printed(self, printed: ToolPrinted) -> None:
        self._add(metrics.PRINTED, (printed.tool,), printed.total_bytes)
        if not output_logger.isEnabledFor(logging.INFO):
            return
        context = Context() if printed.asker is None else printed.asker.copy()
        extra = {"event": "tool.printed", "tool": printed.tool, "printed_bytes": printed.total_bytes}
        for line in _shown_lines(printed) if self._log_content else [f"{printed.total_bytes:,} bytes were printed"]:
            self._log(context, printed.tag, logging.INFO, f"{printed.tool}: {line}", extra, output_logger)

    # -- the end of work

    def _end(
        self,
        opened: _OpenRequest,
        tag: Tag,
        ending: str,
        at: float,
        attributes: Attributes | None = None,
        *,
        failure: ToolFailure | None = None,
        content: str = "",
        of: str = "",
    ) -> None:
        """`ending` is "ok", or what went wrong; `content` says more of it; `of` is the model whose end it is."""
        work, name, since, rule = opened.works.pop(tag)
        seconds, ok = at - since, ending == OK
        calls, durations = _MEASURES[bool(tag.call_id)]
        name = of or name
        self._add(calls, (name, ending))
        self._record(durations, (name, "" if ok else ending), seconds)
        told = ""
        if failure is not None:
            told = _printable(failure.traceback) if self._log_content else failure.frames
            content = failure.message
        if opened.spans is not None:
            if failure is not None and told:  # not of a call that was cancelled, denied or lost: nothing was raised
                exception = _exception(failure, told)
                self._outside(opened.context, opened.spans.note, tag, "exception", exception, at)
            self._outside(opened.context, partial(opened.spans.end, ok=ok), tag, ending, attributes or {}, at)
        self._log_end(opened, tag, (work, ending, seconds), ok, content, told, rule)

    def _log_end(
        self,
        opened: _OpenRequest,
        tag: Tag,
        end: tuple[str, str, float],
        ok: bool,
        content: str = "",
        told: str = "",
        rule: str = "",
    ) -> None:
        level = logging.INFO if ok else logging.WARNING
        if not logger.isEnabledFor(level):
            return
        work, ending, seconds = end
        text = _with_content(f"{work} {ending} after {seconds:.3f} s", content if self._log_content else "")
        extra: Mapping[str, object] = {"event": "work.ended", "work": work, "ending": ending, "seconds": seconds}
        if tag.call_id:
            extra = {**extra, "tool": work.removeprefix("tool."), "rule": rule}
        self._log(opened.context, tag, level, f"{text}\n{told.rstrip()}" if told else text, extra)

    def _close(self, opened: _OpenRequest, ending: str, at: float, attributes: Attributes, went_well: bool) -> None:
        """End the request, and what it leaves open."""
        request = opened.question.tag
        opened.works.pop(request, None)
        for tag in tuple(opened.works):
            self._end(opened, tag, FailureCode.CANCELLED.value, at)
        for tag in tuple(opened.approvals):
            self._approval_over(opened, tag, "withdrawn", at)
        seconds = at - opened.question.asked_at
        self._add(metrics.REQUESTS, (ending,))
        self._record(metrics.REQUEST_SECONDS, ("" if went_well else ending,), seconds)
        if opened.spans is not None:
            self._outside(opened.context, partial(opened.spans.end, ok=went_well), request, ending, attributes, at)
        self._log_end(opened, request, ("request", ending, seconds), went_well)
        self._open.pop(request.request_id, None)

    # -- where the numbers, spans and log records go

    def _add(self, metric: Metric, labels: Labels = (), amount: float = 1) -> None:
        self._metrics.add(metric, labels, amount)
        if self._export is not None:
            self._outside(_EMPTY, self._export, metric, labels, amount)

    def _record(self, metric: Metric, labels: Labels, value: float) -> None:
        self._metrics.record(metric, labels, value)
        if self._export is not None:
            self._outside(_EMPTY, self._export, metric, labels, value)

    def _log(
        self,
        context: Context,
        tag: Tag,
        level: int,
        text: str,
        extra: Mapping[str, object],
        into: logging.Logger = logger,
    ) -> None:
        fields = {**tag.shown(), "metadata": dict(metadata_in(context)), **extra}
        self._outside(context, partial(into.log, extra=fields), level, "%s", text)

    def _outside(self, context: Context, work: Callable[P, None], *arguments: P.args, **options: P.kwargs) -> None:
        """Log and trace in the asker's context. A log handler or a span processor that fails is the host's: it is
        counted, for a log record might fail again."""
        try:
            context.run(work, *arguments, **options)
        except BaseException:  # noqa: BLE001
            self._metrics.add(metrics.TELEMETRY_FAILED)


#: How each message of a session is taken: with the request, and the time at which it happened.
_HEARD: Final[Mapping[type[Heard], Callable[..., None]]] = {
    Question: Telemetry._asked,
    CallModel: Telemetry._model_called,
    RunTool: Telemetry._tool_called,
    Finish: Telemetry._finished,
    TracingFailed: Telemetry._tracing_failed,
    **dict.fromkeys(get_args(WorkEnd), Telemetry._work_ended),
    **dict.fromkeys(get_args(InRequest), Telemetry._noticed),
    events.ModelNoted: lambda *_: None,  # for the timelines; what is counted and logged of it is its Note
}
#: What a call is counted and measured by: a model call, a tool call.
_MEASURES: Final = (
    (metrics.MODEL_CALLS, metrics.MODEL_SECONDS),
    (metrics.TOOL_CALLS, metrics.TOOL_SECONDS),
)


def _with_content(text: str, content: str) -> str:
    return f"{text}: {_printable(shown_text(content))}" if content else text


def _attributes(tag: Tag, fields: Fields) -> Attributes:
    """Of a span event: the span may be that of the whole request."""
    return {f"callboard.{name}": value for name, value in (*tag.shown().items(), *fields.items())}


def _exception(failure: ToolFailure, told: str) -> Attributes:
    """As OpenTelemetry's conventions for exceptions have it, and the code."""
    return {
        "callboard.code": failure.code.value,
        "exception.type": failure.frames.partition("\n")[0],
        "exception.stacktrace": told,
    }


def _shown_lines(printed: ToolPrinted) -> list[str]:
    """The last of what was printed, with its control characters escaped; and first, how much there was before."""
    kept = for_log(printed.text[-MAX_PRINTED_BYTES - LONGEST_KEY_BYTES :]).encode()[-MAX_PRINTED_BYTES:]
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


def _model(event: WorkEnd) -> str:
    """Which one it was in the end; "" where that is not known."""
    return event.model if isinstance(event, events.ModelResponded | events.ModelFailed) else ""


def _ending(event: WorkEnd) -> str:
    match event:
        case events.ModelResponded() | events.ToolCallCompleted():
            return OK
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

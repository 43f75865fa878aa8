"""What each request has done, in time: its model calls, tool calls, approvals and notes, and how each of them ended.

Telemetry writes it where `Runtime.record_timelines` was called, the daemon's board shows it. It holds names, codes and
numbers, who asked, and of content the beginning of the question. All requests that run are in it, and the last of those
that have ended.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from callboard.actors.requests.replies import Question
from callboard.protocol import events
from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CallOutside,
    Finish,
    Note,
    NoteKind,
    ReportFailure,
    RunTool,
)
from callboard.protocol.ids import RequestId, Tag
from callboard.protocol.tools import FailureCode

#: Requests that have ended and are still shown.
ENDED_KEPT: Final = 200
#: Of one request; the oldest that have ended are dropped.
MAX_MARKS: Final = 64
#: Of a question.
MAX_ASKED_CHARS: Final = 6_000
#: Of a note or a reason.
MAX_TEXT_CHARS: Final = 300
#: What was used is added up by minute, for a day.
MINUTES_KEPT: Final = 24 * 60
OK: Final = "ok"
#: Who asks, by a name for people: of a daemon's client, that of its token.
ASKED_BY: Final[ContextVar[str]] = ContextVar("callboard_asked_by", default="")


class MarkKind(StrEnum):
    """What a mark is about."""

    MODEL = "model"
    TOOL = "tool"
    APPROVAL = "approval"
    DEFERRED = "deferred"
    """A call whose code has ended, and whose result comes from outside."""
    NOTE = "note"
    """An instant: a retry, a wait for a rate limit, another model, a failure before a tool ran."""


class ModelWait(Struct, frozen=True):
    """A model call that is not sent before a time. Times are wall-clock seconds."""

    kind: NoteKind
    """`rate_limit` or `retry`."""
    why: str
    since: float
    until: float


class Mark(Struct, frozen=True):
    """One piece of a request's work. Times are wall-clock seconds."""

    number: int
    """In its request, from 1 on."""
    kind: MarkKind
    name: str
    """Of the model or tool; of a note, its kind."""
    step: int
    call_id: str
    begun_at: float
    ended_at: float | None = None
    """None: it goes on."""
    ending: str = ""
    """"ok", or the code of what went wrong; "" while it goes on."""
    deadline_at: float | None = None
    text: str = ""
    wait: ModelWait | None = None
    """The latest one of a model call; it may be over."""


class RequestTimeline(Struct, frozen=True):
    """One request."""

    request_id: str
    model: str
    begun_at: float
    """Wall-clock seconds, as all times here."""
    version: int
    """Another one whenever something has changed."""
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    marks: tuple[Mark, ...] = ()
    dropped: int = 0
    """Marks that are no longer here."""
    asked: str = ""
    """The question's first characters, as they were sent: what looks like a key is not masked."""
    asked_by: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Of the question, not masked either."""

    @property
    def open_marks(self) -> tuple[Mark, ...]:
        return tuple(each for each in self.marks if each.ended_at is None)


class MinuteUsage(Struct, frozen=True):
    """What the requests that ended within one minute have used of one model."""

    minute_at: float
    """Wall-clock seconds at which the minute begins."""
    model: str
    requests: int = 0
    model_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """US dollars, of the model calls whose cost is known."""
    unknown_cost: int = 0
    """Model calls whose cost is not."""


class _Growing(Struct):
    """A request as it is written."""

    request_id: str
    model: str
    begun_at: float
    version: int
    asked: str
    asked_by: str
    metadata: Mapping[str, str]
    ended_at: float | None = None
    outcome: str = ""
    reason: str = ""
    marks: dict[int, Mark] = field(default_factory=dict)
    open: dict[tuple[MarkKind, Tag], int] = field(default_factory=dict)
    made: int = 0

    def begin(self, kind: MarkKind, tag: Tag, name: str, at: float, **more: float | str | ModelWait | None) -> None:
        self.made += 1
        mark = Mark(self.made, kind, name, tag.step, str(tag.call_id or ""), at)
        self.marks[self.made] = replace(mark, **more)
        if mark.ended_at is None and kind is not MarkKind.NOTE:
            self.open[kind, tag] = self.made
        if len(self.marks) > MAX_MARKS:
            oldest = next((number for number, each in self.marks.items() if each.ended_at is not None), None)
            if oldest is not None:
                del self.marks[oldest]

    def end(self, kind: MarkKind, tag: Tag, at: float, ending: str, text: str = "") -> bool:
        number = self.open.pop((kind, tag), None)
        mark = self.marks.get(number) if number is not None else None
        if number is None or mark is None:
            return False
        self.marks[number] = replace(mark, ended_at=at, ending=ending, text=text or mark.text)
        return True

    def read(self) -> RequestTimeline:
        marks = tuple(self.marks.values())
        return RequestTimeline(
            self.request_id,
            self.model,
            self.begun_at,
            self.version,
            self.ended_at,
            self.outcome,
            self.reason,
            marks,
            self.made - len(marks),
            self.asked,
            self.asked_by,
            self.metadata,
        )


def _begun(request_id: RequestId, question: Question, at: float, version: int) -> _Growing:
    asked, by = question.user.text[:MAX_ASKED_CHARS], question.asker.get(ASKED_BY, "")
    return _Growing(str(request_id), question.options.model, at, version, asked, by, question.metadata)


class RequestTimelines:
    """The timelines of a runtime. Written on its loop, read on any thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: the runtime's clock."""
        self._lock = threading.Lock()
        self._open: dict[RequestId, _Growing] = {}
        self._ended: deque[RequestTimeline] = deque(maxlen=ENDED_KEPT)
        self._read: dict[RequestId, RequestTimeline] = {}
        """Those that were read and have not changed since."""
        self._usage: deque[dict[str, MinuteUsage]] = deque(maxlen=MINUTES_KEPT)
        self._changes = 0
        self._offset = time.time() - now()

    def running(self) -> tuple[RequestTimeline, ...]:
        """The requests that run, the oldest first."""
        with self._lock:
            for request_id, each in self._open.items():
                if request_id not in self._read:
                    self._read[request_id] = each.read()
            return tuple(self._read[request_id] for request_id in self._open)

    def ended(self) -> tuple[RequestTimeline, ...]:
        """The last that have ended, the latest first."""
        with self._lock:
            return tuple(reversed(self._ended))

    def usage(self) -> tuple[MinuteUsage, ...]:
        """By minute and model, of the requests that have ended since the start, a day at most; the oldest first."""
        with self._lock:
            return tuple(each for minute in self._usage for each in minute.values())

    # -- telemetry's side

    def heard(self, request_id: RequestId, what: object, at: float) -> None:
        """Something happened in a request; a Question begins one. Times by the runtime's clock."""
        with self._lock:
            if isinstance(what, Question):
                self._open[request_id] = _begun(request_id, what, what.asked_at + self._offset, self._changes)
            growing = self._open.get(request_id)
            if growing is None:
                return  # a late event of a request that has ended
            self._changes += 1
            growing.version = self._changes
            self._read.pop(request_id, None)
            write = _WRITES.get(type(what))
            if write is not None:
                write(growing, what, at + self._offset, self._offset)
            if isinstance(what, Finish):
                self._add_usage(what, at + self._offset)
                self._close(request_id, growing, at + self._offset, what.outcome.value, what.reason)

    def lost(self, request_id: RequestId, at: float) -> None:
        """The session ended without a Finish."""
        with self._lock:
            self._changes += 1
            growing = self._open.get(request_id)
            if growing is not None:
                growing.version = self._changes
                self._close(request_id, growing, at + self._offset, "lost", "its session was lost")

    def _close(self, request_id: RequestId, growing: _Growing, at: float, outcome: str, reason: str) -> None:
        for kind, tag in tuple(growing.open):
            growing.end(kind, tag, at, FailureCode.CANCELLED.value)
        growing.ended_at, growing.outcome, growing.reason = at, outcome, reason[:MAX_TEXT_CHARS]
        del self._open[request_id]
        self._read.pop(request_id, None)
        self._ended.append(growing.read())

    def _add_usage(self, finish: Finish, at: float) -> None:
        minute = at // 60 * 60
        if not self._usage or minute > next(iter(self._usage[-1].values())).minute_at:
            self._usage.append({})
        models = {step.model or "(unknown)" for step in finish.steps} or {"(unknown)"}
        last = self._usage[-1]
        for model in models:
            found = last.get(model) or MinuteUsage(minute, model)
            last[model] = replace(found, requests=found.requests + 1)
        for step in finish.steps:
            found = last[step.model or "(unknown)"]
            used = step.usage
            last[found.model] = replace(
                found,
                model_calls=found.model_calls + 1,
                input_tokens=found.input_tokens + (used.input_tokens if used else 0),
                output_tokens=found.output_tokens + (used.output_tokens if used else 0),
                cost=found.cost + (step.cost or 0.0),
                unknown_cost=found.unknown_cost + (step.cost is None),
            )


# -- how each message of a session is written: its wall-clock time, and what makes such a time of the runtime's


def _called_model(growing: _Growing, command: CallModel, at: float, offset: float) -> None:
    wait = None
    if command.not_before_at:
        why = "the model call before it was lost; it is sent again"
        wait = ModelWait(NoteKind.RETRY, why, at, command.not_before_at + offset)
    model = command.request.model
    growing.begin(MarkKind.MODEL, command.tag, model, at, deadline_at=command.deadline_at + offset, wait=wait)


def _model_waits(growing: _Growing, noted: events.ModelNoted, at: float, offset: float) -> None:
    """A note without a time says that the wait before it is over."""
    number = growing.open.get((MarkKind.MODEL, noted.tag), 0)
    if number in growing.marks:
        text = noted.text[:MAX_TEXT_CHARS]
        wait = ModelWait(noted.kind, text, at, noted.until_at + offset) if noted.until_at else None
        growing.marks[number] = replace(growing.marks[number], wait=wait)


def _ran_tool(growing: _Growing, command: RunTool, at: float, offset: float) -> None:
    growing.begin(MarkKind.TOOL, command.tag, command.name, at, deadline_at=command.deadline_at + offset)


def _asked_approval(growing: _Growing, command: AskApproval, at: float, _: float) -> None:
    growing.begin(MarkKind.APPROVAL, command.tag, command.name, at, text=command.rule[:MAX_TEXT_CHARS])


def _noted(growing: _Growing, command: Note, at: float, _: float) -> None:
    text = command.text[:MAX_TEXT_CHARS]
    growing.begin(MarkKind.NOTE, command.tag, command.kind.value, at, ended_at=at, text=text)


def _failed_before(growing: _Growing, report: ReportFailure, at: float, _: float) -> None:
    code = report.failure.code.value
    ended = [growing.end(kind, report.tag, at, code) for kind in (MarkKind.TOOL, MarkKind.DEFERRED, MarkKind.APPROVAL)]
    if not any(ended):
        growing.begin(MarkKind.NOTE, report.tag, code, at, ended_at=at, ending=code)


def _handed_out(growing: _Growing, handed: CallOutside, at: float, _: float) -> None:
    text = f"{handed.call.name} is the asker's to run"[:MAX_TEXT_CHARS]
    growing.begin(MarkKind.NOTE, handed.tag, "handed_out", at, ended_at=at, text=text)


def _granted(growing: _Growing, verdict: events.ApprovalGranted, at: float, _: float) -> None:
    growing.end(MarkKind.APPROVAL, verdict.tag, at, OK, f"approved by {verdict.by}" if verdict.by else "")


def _denied(growing: _Growing, verdict: events.ApprovalDenied, at: float, _: float) -> None:
    growing.end(MarkKind.APPROVAL, verdict.tag, at, "denied", f"denied by {verdict.by}" if verdict.by else "")


def _deferred(growing: _Growing, deferred: events.ToolCallDeferred, at: float, _: float) -> None:
    number = growing.open.get((MarkKind.TOOL, deferred.tag), 0)
    name = growing.marks[number].name if number in growing.marks else ""
    growing.end(MarkKind.TOOL, deferred.tag, at, MarkKind.DEFERRED.value)
    growing.begin(MarkKind.DEFERRED, deferred.tag, name, at, deadline_at=at + deferred.timeout_seconds)


def _model_ended(growing: _Growing, event: object, at: float, _: float) -> None:
    match event:
        case events.ModelResponded():
            growing.end(MarkKind.MODEL, event.tag, at, OK)
        case events.ModelFailed():
            growing.end(MarkKind.MODEL, event.tag, at, event.error.kind.value)
        case events.ModelLost():
            growing.end(MarkKind.MODEL, event.tag, at, "lost")


_TOOL_ENDS: Final[Mapping[type, str]] = {
    events.ToolCallCompleted: OK,
    events.ToolCallTimedOut: FailureCode.TIMED_OUT.value,
    events.ToolCallCancelled: FailureCode.CANCELLED.value,
}


def _tool_ended(growing: _Growing, event: events.ToolCallEnd, at: float, _: float) -> None:
    ending = event.failure.code.value if isinstance(event, events.ToolCallFailed) else _TOOL_ENDS[type(event)]
    for kind in (MarkKind.TOOL, MarkKind.DEFERRED):
        growing.end(kind, event.tag, at, ending)


_WRITES: Final[Mapping[type, Callable[..., None]]] = {
    CallModel: _called_model,
    RunTool: _ran_tool,
    AskApproval: _asked_approval,
    Note: _noted,
    ReportFailure: _failed_before,
    CallOutside: _handed_out,
    events.ModelNoted: _model_waits,
    events.ApprovalGranted: _granted,
    events.ApprovalDenied: _denied,
    events.ToolCallDeferred: _deferred,
    events.ModelResponded: _model_ended,
    events.ModelFailed: _model_ended,
    events.ModelLost: _model_ended,
    events.ToolCallCompleted: _tool_ended,
    events.ToolCallFailed: _tool_ended,
    events.ToolCallTimedOut: _tool_ended,
    events.ToolCallCancelled: _tool_ended,
}

"""What requests have used: model calls, tokens, cost and tool calls by day, model, tool and conversation.

Of a request that has ended its end says so, of one that has not, its events. Of one whose conversation was deleted the
numbers are left. What is not known is counted apart and never as 0.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import orjson
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from callboard.actors.journal.encoding import DamagedRecord, column, from_column, read_end, read_usage
from callboard.actors.journal.journal_records import RequestLog
from callboard.actors.journal.sql_reader import SqlReader
from callboard.actors.journal.tables import ENDS, OPEN_REQUESTS, REQUESTS, USAGE
from callboard.protocol.content import ToolCall
from callboard.protocol.errors import UsageError
from callboard.protocol.events import (
    ModelFailed,
    ModelResponded,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.ids import CallId, RequestId, ToolName
from callboard.protocol.model import Usage
from callboard.protocol.reports import CallReport, StepReport
from callboard.protocol.tools import FailureCode

UsageKey = Literal["day", "model", "tool", "conversation"]
KEYS: Final = get_args(UsageKey)
#: In place of a model, or of a conversation that was deleted.
UNKNOWN: Final = "(unknown)"
DELETED: Final = "(deleted)"
_CODES: Final[dict[type, FailureCode | None]] = {
    ToolCallCompleted: None,
    ToolCallTimedOut: FailureCode.TIMED_OUT,
    ToolCallCancelled: FailureCode.CANCELLED,
}


class UsageLine(Struct, frozen=True):
    """One line of a report. A key by which it is not grouped is ""."""

    day: str = ""
    """Of the request's end, as 2026-11-23, in UTC; of one that runs, of its latest event."""
    model: str = ""
    """"provider/model"."""
    tool: str = ""
    conversation: str = ""
    requests: int = 0
    """Those that are on this line; one with two models is on the lines of both."""
    model_calls: int = 0
    tool_calls: int = 0
    failed_tool_calls: int = 0
    usage: Usage | None = None
    """Tokens of the model calls that said so; None where none of them did, and in lines by tool."""
    cost: float | None = None
    """US dollars of those whose cost is known; None where it is of none of them, and in lines by tool."""
    unknown_usage: int = 0
    """Model calls whose tokens are not known: they are not in `usage`."""
    unknown_cost: int = 0
    """Model calls whose cost is not known: it is not in `cost`."""
    seconds: float = 0.0
    """Of the model calls; in lines by tool, of the calls since their code began to run."""


class UsageReport(Struct, frozen=True):
    """Lines by the keys that were asked for, in their order, and what they do not hold."""

    by: tuple[UsageKey, ...]
    lines: tuple[UsageLine, ...]
    total: UsageLine
    running: int = 0
    """Requests that have not ended: what they have used so far is in the lines."""
    unreadable: int = 0
    """Requests of whose record nothing can be read: they are not in the lines."""

    def as_json(self) -> str:
        """One JSON object: `by`, `lines`, `total`, `running`, `unreadable`."""
        return orjson.dumps(self, asdict, orjson.OPT_INDENT_2).decode()

    def as_csv(self) -> str:
        """A header and a row for each line, as RFC 4180 has it; what is not known is an empty field."""
        counts = list(Usage.__struct_fields__)
        rest = [name for name in UsageLine.__struct_fields__ if name not in ("usage", *KEYS)]
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([*self.by, *rest, *counts])
        for line in self.lines:
            used = ["" if line.usage is None else getattr(line.usage, name) for name in counts]
            values = [getattr(line, name) for name in rest]
            keys = [_harmless(getattr(line, name)) for name in self.by]
            writer.writerow([*keys, *("" if value is None else value for value in values), *used])
        return out.getvalue()


def _harmless(text: str) -> str:
    """Names of tools come from models, and spreadsheets run a field that begins so as a formula (OWASP, "CSV
    Injection")."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


class UsageFilter(Struct, frozen=True):
    """What is counted. Times are wall-clock seconds."""

    since: float | None = None
    """Requests that ended at this time or later."""
    until: float | None = None
    """Requests that ended before."""
    model: str = ""
    tool: str = ""
    conversation: str = ""


class _Requests(Struct):
    """Requests as they are read."""

    running: int = 0
    unreadable: int = 0


class _Sum(Struct):
    """A line as it is added up."""

    line: UsageLine
    costs: list[float] = field(default_factory=list)
    requests: set[str] = field(default_factory=set)

    def add(self, request: str, step: StepReport | None, calls: Sequence[CallReport], *, by_tool: bool) -> None:
        self.requests.add(request)
        line = self.line
        failed = sum(call.code is not None for call in calls)
        line = replace(line, tool_calls=line.tool_calls + len(calls), failed_tool_calls=line.failed_tool_calls + failed)
        if by_tool:
            line = replace(line, seconds=line.seconds + sum(call.run_seconds for call in calls))
        elif step is not None:
            used = line.usage
            if step.usage is not None:
                used = step.usage if used is None else used + step.usage
            if step.cost is not None:
                self.costs.append(step.cost)
            line = replace(
                line,
                model_calls=line.model_calls + 1,
                usage=used,
                unknown_usage=line.unknown_usage + (step.usage is None),
                unknown_cost=line.unknown_cost + (step.cost is None),
                seconds=line.seconds + step.seconds,
            )
        self.line = line

    def result(self) -> UsageLine:
        # Of thousands of small numbers: added up from the smallest one on, no cent is lost.
        cost = sum(sorted(self.costs)) if self.costs else None
        return replace(self.line, requests=len(self.requests), cost=cost)


def usage_report(reader: SqlReader, by: Sequence[str], which: UsageFilter) -> UsageReport:
    """Raises UsageError for keys that there are not."""
    keys = _checked(by)
    by_tool = "tool" in keys or bool(which.tool)
    sums: dict[tuple[str, str, str, str], _Sum] = {}
    total = _Sum(UsageLine())
    seen = _Requests()
    with reader.one_moment():
        for request, conversation, at, steps in _requests(reader, which, seen):
            day = datetime.fromtimestamp(at, UTC).date().isoformat()
            for step in steps:
                model = step.model or UNKNOWN
                if which.model and model != which.model:
                    continue
                for tool, calls in _pieces(step, which.tool, split="tool" in keys, by_tool=by_tool):
                    place = (
                        day if "day" in keys else "",
                        model if "model" in keys else "",
                        tool if "tool" in keys else "",
                        conversation if "conversation" in keys else "",
                    )
                    line = sums.setdefault(place, _Sum(UsageLine(*place)))
                    for each in (line, total):
                        each.add(request, step, calls, by_tool=by_tool)
    lines = tuple(sums[place].result() for place in sorted(sums))
    return UsageReport(keys, lines, total.result(), seen.running, seen.unreadable)


def _checked(by: Sequence[str]) -> tuple[UsageKey, ...]:
    given = (by,) if isinstance(by, str) else tuple(by)
    if unknown := [each for each in given if each not in KEYS]:
        raise UsageError(f"usage can be grouped by {', '.join(KEYS)}; not by {unknown[0]!r}")
    return tuple(key for key in KEYS if key in given)


def _pieces(step: StepReport, tool: str, *, split: bool, by_tool: bool) -> Iterator[tuple[str, Sequence[CallReport]]]:
    """A step once; where it is about tools, once for each tool that it called."""
    if not by_tool:
        yield "", step.calls
        return
    calls: dict[str, list[CallReport]] = {}
    for call in step.calls:
        if not tool or call.name == tool:
            calls.setdefault(call.name if split else "", []).append(call)
    yield from calls.items()


def _requests(
    reader: SqlReader, which: UsageFilter, seen: _Requests
) -> Iterator[tuple[str, str, float, Iterable[StepReport]]]:
    """Each request that counts: a name, its conversation, when it ended, and its steps."""
    database = reader.database
    since = -1e18 if which.since is None else which.since
    until = 1e18 if which.until is None else which.until
    named, values = "", [since, until, *([column(which.conversation)] if which.conversation else [])]
    if which.conversation:
        named = " AND r.conversation_id = ?"
    ended = (
        f"SELECT e.request_id, r.conversation_id FROM {ENDS.name} e LEFT JOIN {REQUESTS.name} r"
        f" ON r.request_id = e.request_id WHERE e.ended_at >= ? AND e.ended_at < ?{named} ORDER BY e.ended_at"
    )
    for own, conversation in database.query(ended, values):
        known = _shown(conversation)
        try:
            (row,) = database.query(f"{ENDS.select} WHERE request_id = ?", (own,))
            end = read_end(row)
            steps = end.finish.steps if end.finish is not None else _steps_of(_log(reader, own))
            yield str(own), known, end.ended_at, steps
        except (DamagedRecord, ValueError):
            seen.unreadable += 1
    for (own,) in database.query(OPEN_REQUESTS):
        log = _log(reader, own)
        if log is None or not log.records:
            seen.unreadable += 1
            continue
        at = log.records[-1].written_at
        if since <= at < until and which.conversation in ("", log.begins.conversation_id):
            seen.running += 1
            yield str(own), log.begins.conversation_id, at, _steps_of(log)
    if not which.conversation:
        deleted = database.query(f"{USAGE.select} WHERE ended_at >= ? AND ended_at < ?", (since, until))
        for row in deleted:
            try:
                at, steps = read_usage(row)
            except DamagedRecord:
                seen.unreadable += 1
                continue
            yield str(row[0]), DELETED, at, steps


def _log(reader: SqlReader, own: object) -> RequestLog | None:
    return reader.read_request(RequestId(from_column(own)))


def _steps_of(log: RequestLog | None) -> list[StepReport]:
    """Of a request that has no Finish: the model calls and tool calls that have ended."""
    steps: dict[int, StepReport] = {}
    for record in log.records if log is not None else ():
        event = record.event
        match event:
            case ModelResponded():
                response = event.response
                steps[event.tag.step] = StepReport(
                    event.tag.step, 0.0, True, event.model or response.model, response.usage, event.cost
                )
            case ModelFailed():
                spent = (None, None) if event.is_free else (event.usage, event.cost)
                failed = StepReport(event.tag.step, 0.0, False, event.model, *spent, error=event.error.kind)
                steps[event.tag.step] = failed
            case ToolCallCompleted() | ToolCallFailed() | ToolCallTimedOut() | ToolCallCancelled():
                code = event.failure.code if isinstance(event, ToolCallFailed) else _CODES[type(event)]
                step = steps.get(event.tag.step) or StepReport(event.tag.step, 0.0)
                name = _tool_of(log, event.tag.step, event.tag.call_id)
                call = CallReport(event.tag.call_id, name, code, 0.0, 0.0)
                steps[event.tag.step] = replace(step, calls=(*step.calls, call))
    return list(steps.values())


def _tool_of(log: RequestLog | None, step: int, call_id: CallId) -> ToolName:
    for record in log.records if log is not None else ():
        event = record.event
        if isinstance(event, ModelResponded) and event.tag.step == step:
            for part in event.response.parts:
                if isinstance(part, ToolCall) and part.call_id == call_id:
                    return part.name
    return ToolName(UNKNOWN)


def _shown(conversation: object) -> str:
    if conversation is None:
        return UNKNOWN
    try:
        return from_column(conversation)
    except DamagedRecord:
        return UNKNOWN

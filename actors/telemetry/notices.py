"""What telemetry makes of all that happens besides the beginnings and ends of work: a table, a row a kind of message.

Each is counted, logged with the tag of what it is about, and an event in that work's span. Fields are names, codes and
numbers. Content (what people, models and tools said) is apart, and leaves telemetry only with `log_content`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import Context
from types import MappingProxyType
from typing import Final, NamedTuple, get_args

from msgspec import Struct

from callboard.actors.calls.registry import ToolRestored, ToolWithdrawn
from callboard.actors.telemetry import metrics
from callboard.actors.telemetry.metrics import UNKNOWN, Metric
from callboard.protocol.commands import AskApproval, CallOutside, Note, NoteKind, ReportFailure
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, ToolCallDeferred
from callboard.protocol.ids import Tag, ToolName

# -- messages that only telemetry takes


class PeerLost(Struct, frozen=True):
    """An actor that works for the request was lost while the request ran; its supervisor starts it again."""

    tag: Tag
    actor: str
    reason: str


class ToolPrinted(Struct, frozen=True):
    """What a process tool has printed in a call, with all that it started."""

    tag: Tag
    tool: ToolName
    text: str
    """The end of it."""
    total_bytes: int
    asker: Context | None
    """The asker's context: the request may have ended before the call did."""


class ToolStopped(Struct, frozen=True):
    """A call was stopped, at its deadline or because it was cancelled, and its tool could still say where it was."""

    tag: Tag
    tool: ToolName
    frames: str


class EmbedderFailed(Struct, frozen=True):
    """A question about code was ranked by words alone, since its embeddings could not be had."""

    model: str


class JournalCommitted(Struct, frozen=True):
    """So many writes of requests were made durable together, in this time."""

    writes: int
    seconds: float


class JournalUnwritten(Struct, frozen=True):
    """The journal could not be written, and the requests of that batch have ended."""


class JournalDamageFound(Struct, frozen=True):
    """The journal was damaged when it was opened: what is sound was saved, and the rest set aside."""


class TracingFailed(Struct, frozen=True):
    """The host's tracing raised when a span was to begin: the work goes on without."""

    tag: Tag


InRequest = (
    AskApproval
    | ApprovalGranted
    | ApprovalDenied
    | ToolCallDeferred
    | ReportFailure
    | CallOutside
    | Note
    | PeerLost
    | ToolStopped
)
"""What is about a request, or a piece of its work."""
InRuntime = ToolWithdrawn | ToolRestored | EmbedderFailed | JournalUnwritten | JournalDamageFound
"""What is about no request."""
Noticed = InRequest | InRuntime

# -- the table

Fields = Mapping[str, str]
Count = tuple[Metric, tuple[str, ...]]
"""What is counted up by one, with its labels; in braces: a field."""


def _nothing(_: object) -> str:
    return ""


class NoticeRule(NamedTuple):
    """How one kind of message is counted, logged and traced."""

    event: str
    """The span event, and the attribute `event` of the log record."""
    counts: tuple[Count, ...]
    level: int | None
    """Of the log record; None: what sends it has logged it."""
    text: str
    """Of the log record."""
    fields: Callable[..., Fields]
    content: Callable[..., str] = _nothing
    info_kinds: frozenset[str] = frozenset()
    """Values of the field `kind` with which it is logged at INFO instead."""

    def level_of(self, fields: Fields) -> int | None:
        """Of the log record about a message with these fields."""
        return logging.INFO if fields.get("kind") in self.info_kinds else self.level


def _of_question(asked: AskApproval) -> Fields:
    return {"tool": asked.name, "risk": asked.risk.value}


def _of_verdict(verdict: ApprovalGranted | ApprovalDenied) -> Fields:
    return {"by": verdict.by or UNKNOWN, **({"rule": verdict.rule} if verdict.rule else {})}


def _of_deferred(deferred: ToolCallDeferred) -> Fields:
    return {"timeout": f"{deferred.timeout_seconds:g}"}


def _of_failure(report: ReportFailure) -> Fields:
    return {"tool": report.failure.tool, "code": report.failure.code.value}


def _of_call_outside(handed: CallOutside) -> Fields:
    return {"tool": handed.call.name}


#: Notes in our own words. The others quote what a provider or a model said.
_OWN_WORDS: Final = frozenset(NoteKind) - {NoteKind.ASKED_AGAIN, NoteKind.OTHER}
#: Notes of what happens every day, and costs an answer nothing but time.
_HARMLESS: Final = frozenset({NoteKind.RATE_LIMIT, NoteKind.RETRY, NoteKind.LEFT_OUT, NoteKind.ASSUMED})


def _of_note(note: Note) -> Fields:
    return {"kind": note.kind.value, "told": note.text if note.kind in _OWN_WORDS else "..."}


def _of_peer(lost: PeerLost) -> Fields:
    return {"actor": lost.actor, "reason": lost.reason}


def _of_stop(stopped: ToolStopped) -> Fields:
    return {"tool": stopped.tool, "frames": stopped.frames}


def _of_tool(change: ToolWithdrawn | ToolRestored) -> Fields:
    return {"tool": change.name}


def _of_embedder(failed: EmbedderFailed) -> Fields:
    return {"model": failed.model}


def _no_fields(_: object) -> Fields:
    return {}


def _arguments(asked: AskApproval) -> str:
    return asked.arguments


def _reason(denied: ApprovalDenied) -> str:
    return denied.reason


def _arguments_outside(handed: CallOutside) -> str:
    return handed.call.arguments


def _noted(deferred: ToolCallDeferred) -> str:
    return deferred.note


def _quoted(note: Note) -> str:
    return "" if note.kind in _OWN_WORDS else note.text


def _message(report: ReportFailure) -> str:
    return report.failure.message


NOTICES: Final[Mapping[type, NoticeRule]] = MappingProxyType(
    {
        AskApproval: NoticeRule(
            "approval.asked",
            ((metrics.APPROVALS, ("{tool}", "asked")),),
            logging.INFO,
            "{tool} needs approval, its risk is {risk}",
            _of_question,
            _arguments,
        ),
        ApprovalGranted: NoticeRule(
            "approval.granted",
            ((metrics.APPROVALS, ("{tool}", "granted")),),
            logging.INFO,
            "{tool} was approved by {by}",
            _of_verdict,
        ),
        ApprovalDenied: NoticeRule(
            "approval.denied",
            ((metrics.APPROVALS, ("{tool}", "denied")),),
            logging.WARNING,
            "{tool} was not approved by {by}",
            _of_verdict,
            _reason,
        ),
        ToolCallDeferred: NoticeRule(
            "call.deferred",
            ((metrics.TOOL_DEFERRED, ("{tool}",)),),
            logging.INFO,
            "{tool} waits up to {timeout} s for its result from outside",
            _of_deferred,
            _noted,
        ),
        ReportFailure: NoticeRule(
            "call.failed",
            ((metrics.TOOL_CALLS, ("{tool}", "{code}")),),
            logging.WARNING,
            "tool.{tool} {code}",
            _of_failure,
            _message,
        ),
        CallOutside: NoticeRule(
            "call.handed_out",
            ((metrics.TOOL_CALLS, (metrics.ASKERS_TOOL, "handed_out")),),
            logging.INFO,
            "{tool} is the asker's to run",
            _of_call_outside,
            _arguments_outside,
        ),
        Note: NoticeRule(
            "note",
            ((metrics.NOTES, ("{kind}",)),),
            logging.WARNING,
            "{kind}: {told}",
            _of_note,
            _quoted,
            info_kinds=_HARMLESS,
        ),
        PeerLost: NoticeRule(
            "peer.lost",
            ((metrics.PEERS_LOST, ()),),
            logging.WARNING,
            "{actor} was lost ({reason}) while the request ran",
            _of_peer,
        ),
        ToolStopped: NoticeRule(
            "tool.stopped",
            ((metrics.TOOL_STOPPED, ("{tool}",)),),
            logging.WARNING,
            "tool.{tool} was stopped in {frames}",
            _of_stop,
        ),
        ToolWithdrawn: NoticeRule(
            "tool.withdrawn", ((metrics.TOOL_HEALTH, ("{tool}", "withdrawn")),), None, "{tool} is withdrawn", _of_tool
        ),
        ToolRestored: NoticeRule(
            "tool.restored", ((metrics.TOOL_HEALTH, ("{tool}", "restored")),), None, "{tool} is restored", _of_tool
        ),
        EmbedderFailed: NoticeRule(
            "embedder.failed", ((metrics.EMBEDDER_FAILED, ()),), None, "{model} gave no embeddings", _of_embedder
        ),
        JournalUnwritten: NoticeRule(
            "journal.failed", ((metrics.JOURNAL_FAILED, ()),), None, "the journal is not written", _no_fields
        ),
        JournalDamageFound: NoticeRule(
            "journal.opened", ((metrics.JOURNAL_DAMAGED, ()),), None, "the journal was damaged", _no_fields
        ),
    }
)
assert set(NOTICES) == set(get_args(Noticed))

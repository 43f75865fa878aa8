"""What the native API answers, and how it is made of what a runtime tells. Times are wall-clock seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

import orjson
from pydantic import JsonValue

from callboard.actors import kernel
from callboard.actors.calls.approvals import ApprovalKind
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.native_io import NativeAnswer
from callboard.actors.edits.proposals import Proposal
from callboard.actors.journal.journal_handle import RequestInfo
from callboard.actors.journal.saved_conversations import ConversationInfo, FoundMessage
from callboard.actors.journal.usage_report import UsageLine, UsageReport
from callboard.actors.requests.open_requests import OpenRequest
from callboard.actors.requests.replies import Reply
from callboard.protocol.content import AssistantMessage, Message, ToolMessage
from callboard.protocol.ids import Tag
from callboard.protocol.masking import mask
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Decision

ENDED: Final = "ended"


class Started(NativeAnswer):
    """The request that was begun."""

    request_id: str


class Done(NativeAnswer):
    """Was it done?"""

    done: bool


class PendingCallShown(NativeAnswer):
    call_id: str
    name: str
    state: str


class RequestShown(NativeAnswer):
    """Where a request is."""

    request_id: str
    conversation_id: str
    model: str
    state: str
    """starting, calling_model, running_tools, waiting, ending, left_open or ended."""
    begun_at: float
    ended_at: float | None
    outcome: str
    """Of one that has ended."""
    step: int
    calls: list[PendingCallShown]
    waits_for: str
    was_taken_up: bool
    metadata: dict[str, str]

    @classmethod
    def of_open(cls, found: OpenRequest) -> RequestShown:
        """One that has not ended."""
        return cls(
            request_id=found.request_id,
            conversation_id=found.conversation_id,
            model=found.model,
            state=found.state.value,
            begun_at=found.begun_at,
            ended_at=None,
            outcome="",
            step=found.step,
            calls=[PendingCallShown(call_id=c.call_id, name=c.name, state=c.state.value) for c in found.calls],
            waits_for=found.waits_for,
            was_taken_up=found.was_taken_up,
            metadata={},
        )

    @classmethod
    def of_ended(cls, found: RequestInfo) -> RequestShown:
        """One of the journal."""
        return cls(
            request_id=found.request_id,
            conversation_id=found.conversation_id,
            model=found.model,
            state=ENDED,
            begun_at=found.begun_at,
            ended_at=found.ended_at,
            outcome=found.outcome,
            step=0,
            calls=[],
            waits_for="",
            was_taken_up=False,
            metadata=dict(found.metadata),
        )


class RequestsShown(NativeAnswer):
    open: list[RequestShown]
    """The oldest first."""
    recent: list[RequestShown]
    """Those of the journal that have ended, the latest first."""


class FailureShown(NativeAnswer):
    tool: str
    code: str
    message: str


class ReplyShown(NativeAnswer):
    """What came of a request."""

    request_id: str
    text: str
    outcome: str
    reason: str
    finish_reason: str
    model: str
    steps: int
    usage: dict[str, int] | None
    """Tokens, as the providers reported them."""
    cost: float | None
    """US dollars; null where it is not known."""
    notes: list[str]
    failures: list[FailureShown]

    @classmethod
    def of(cls, reply: Reply[object]) -> ReplyShown:
        """Of any reply, also that of an error."""
        return cls(
            request_id=reply.request_id,
            text=reply.text,
            outcome=reply.outcome.value,
            reason=mask(reply.reason),
            finish_reason=reply.finish_reason.value,
            model=reply.model,
            steps=len(reply.steps),
            usage=asdict(reply.usage) if reply.usage is not None else None,
            cost=reply.cost,
            notes=[mask(note) for note in reply.notes],
            failures=[FailureShown(tool=f.tool, code=f.code.value, message=mask(f.message)) for f in reply.failures],
        )


class RequestDetail(NativeAnswer):
    """One request, and its reply once it has ended."""

    request: RequestShown
    reply: ReplyShown | None
    error: str
    """Why there is no whole answer; "" where there is, or it has not ended."""


class StackShown(NativeAnswer):
    call_id: str
    name: str
    step: int
    stack: str
    error: str
    """Why there is none."""


class StacksShown(NativeAnswer):
    """Where the code of each running call of a request is."""

    calls: list[StackShown]


class ApprovalShown(NativeAnswer):
    """A call that waits for a person."""

    request_id: str
    step: int
    call_id: str
    tool: str
    arguments: str
    """JSON text of an object; what looks like a key is masked."""
    risk: str
    why: str
    touches: list[str]
    diff: str
    """Of an edit."""
    confinement: str
    is_after_untrusted: bool
    """Has the request read text that may try to steer the model?"""
    since: float
    until: float
    """It is denied then."""
    answers: list[str]
    url: str
    """Where to POST the answer."""

    @classmethod
    def of(cls, found: OpenApproval, timeout_seconds: float) -> ApprovalShown:
        """One that is open."""
        (request_id, step, call_id), question = found.key, found.question
        return cls(
            request_id=request_id,
            step=step,
            call_id=call_id,
            tool=question.name,
            arguments=mask(question.arguments),
            risk=question.risk.value,
            why=question.rule,
            touches=[f"{each.kind.value} {mask(each.value)}" for each in question.accesses],
            diff=question.preview,
            confinement=question.confinement,
            is_after_untrusted=question.is_after_untrusted,
            since=found.since,
            until=found.since + timeout_seconds,
            answers=[each.value for each in ApprovalKind],
            url=f"/api/approvals/{request_id}/{step}/{call_id}",
        )


class ApprovalsShown(NativeAnswer):
    approvals: list[ApprovalShown]
    """The oldest first."""


class EditShown(NativeAnswer):
    id: str
    state: str
    tool: str
    files: list[str]
    diff: str
    request_id: str
    call_id: str
    staged_at: float
    by: str
    reason: str

    @classmethod
    def of(cls, found: Proposal) -> EditShown:
        """One proposal."""
        return cls(
            id=found.id,
            state=found.state.value,
            tool=found.tool,
            files=[each.path for each in found.files],
            diff=found.diff,
            request_id=found.request_id,
            call_id=found.call_id,
            staged_at=found.staged_at,
            by=found.by,
            reason=found.reason,
        )


class EditsShown(NativeAnswer):
    edits: list[EditShown]
    """The oldest first."""


class ConversationShown(NativeAnswer):
    id: str
    title: str
    begun_at: float
    last_at: float
    messages: int
    requests: int
    metadata: dict[str, str]
    open_request: str | None
    damage: str

    @classmethod
    def of(cls, found: ConversationInfo) -> ConversationShown:
        """One of the journal."""
        return cls(**asdict(found))


class ConversationsShown(NativeAnswer):
    conversations: list[ConversationShown]


class CallShown(NativeAnswer):
    call_id: str
    name: str
    arguments: str


class MessageShown(NativeAnswer):
    id: str
    role: str
    """user, assistant, tool or system."""
    text: str
    calls: list[CallShown]
    """Of an assistant: the calls that it asked for."""
    call_id: str
    """Of a tool: which call this is the result of."""
    is_error: bool

    @classmethod
    def of(cls, message_id: str, message: Message) -> MessageShown:
        """One of a conversation."""
        is_result = isinstance(message, ToolMessage)
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        return cls(
            id=message_id,
            role=type(message).__name__.removesuffix("Message").lower(),
            text=message.content if isinstance(message, ToolMessage) else message.text,
            calls=[CallShown(call_id=each.id, name=each.name, arguments=each.arguments) for each in calls],
            call_id=message.call_id if isinstance(message, ToolMessage) else "",
            is_error=is_result and message.is_error,
        )


class ConversationRead(NativeAnswer):
    id: str
    messages: list[MessageShown]


class Forked(NativeAnswer):
    conversation_id: str


class FoundShown(NativeAnswer):
    conversation_id: str
    message_id: str
    role: str
    snippet: str
    added_at: float

    @classmethod
    def of(cls, found: FoundMessage) -> FoundShown:
        """One that a search has found."""
        return cls(**asdict(found))


class SearchShown(NativeAnswer):
    found: list[FoundShown]


class Deleted(NativeAnswer):
    remark: str
    """What could not be seen to; "" where nothing is left."""


class ToolShown(NativeAnswer):
    name: str
    description: str
    parameters: dict[str, JsonValue]
    risk: str
    isolation: str
    timeout_seconds: float
    decision: str
    rule: str
    confinement: str
    is_offered: bool
    """False: the policy denies it, or it has failed too often and is withdrawn for a while."""

    @classmethod
    def of(cls, offer: ToolOffer, offered: frozenset[str]) -> ToolShown:
        """One of a runtime, of which these are offered now."""
        definition, contract = offer.definition, offer.contract
        return cls(
            name=definition.name,
            description=definition.description,
            parameters=orjson.loads(orjson.dumps(definition.parameters, default=dict)),
            risk=contract.risk.value,
            isolation=contract.isolation.value,
            timeout_seconds=contract.timeout_seconds,
            decision=offer.decision.value,
            rule=offer.rule,
            confinement=offer.confinement,
            is_offered=offer.decision is not Decision.DENY and definition.name in offered,
        )


class ToolsShown(NativeAnswer):
    tools: list[ToolShown]


class ActorShown(NativeAnswer):
    path: str
    state: str
    mailbox_depth: int
    restarts: int
    handled: int
    handling: str | None
    """The kind of message it works on."""
    handling_seconds: float
    children: list[ActorShown]

    @classmethod
    def of(cls, info: kernel.ActorInfo) -> ActorShown:
        """One, with those below it."""
        return cls(
            path=info.name,
            state=info.state,
            mailbox_depth=info.mailbox_depth,
            restarts=info.restarts,
            handled=info.handled,
            handling=info.handling,
            handling_seconds=info.handling_seconds,
            children=[cls.of(child) for child in info.children],
        )


class ActorsShown(NativeAnswer):
    actors: list[ActorShown]


class DeadLetterShown(NativeAnswer):
    number: int
    kind: str
    """The type of the message. Its content is not shown: it may hold anything."""
    reason: str
    recipient: str
    age_seconds: float
    note: str
    may_replay: bool
    request_id: str
    step: int
    call_id: str

    @classmethod
    def of(cls, letter: kernel.DeadLetter, now: float, *, may_replay: bool) -> DeadLetterShown:
        """`now`: by the scheduler's clock."""
        tag = getattr(letter.message, "tag", None)
        known = tag if isinstance(tag, Tag) else None
        return cls(
            number=letter.serial,
            kind=type(letter.message).__name__,
            reason=letter.reason.value,
            recipient=letter.recipient,
            age_seconds=max(0.0, now - letter.at_seconds),
            note=mask(letter.note),
            may_replay=may_replay,
            request_id=known.request_id if known is not None else "",
            step=known.step if known is not None else 0,
            call_id=known.shown_call_id if known is not None else "",
        )


class DeadLettersShown(NativeAnswer):
    dead_letters: list[DeadLetterShown]
    """The oldest first."""


class UsageLineShown(NativeAnswer):
    day: str
    model: str
    tool: str
    conversation: str
    requests: int
    model_calls: int
    tool_calls: int
    failed_tool_calls: int
    usage: dict[str, int] | None
    cost: float | None
    unknown_usage: int
    unknown_cost: int
    seconds: float

    @classmethod
    def of(cls, line: UsageLine) -> UsageLineShown:
        """One line of a report."""
        return cls(**asdict(line))


class UsageShown(NativeAnswer):
    by: list[str]
    lines: list[UsageLineShown]
    total: UsageLineShown
    running: int
    unreadable: int

    @classmethod
    def of(cls, report: UsageReport) -> UsageShown:
        """A report of the journal."""
        return cls(
            by=list(report.by),
            lines=[UsageLineShown.of(line) for line in report.lines],
            total=UsageLineShown.of(report.total),
            running=report.running,
            unreadable=report.unreadable,
        )

"""What the native API answers, and how it is made of what a runtime tells. Times are wall-clock seconds."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote

from msgspec.structs import asdict

from callboard.actors.calls.approvals import ApprovalKind
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.native_io import NativeAnswer
from callboard.actors.edits.proposals import Proposal
from callboard.actors.journal.journal_handle import RequestInfo
from callboard.actors.journal.saved_conversations import ConversationInfo, FoundMessage
from callboard.actors.requests.open_requests import OpenRequest
from callboard.actors.requests.replies import Reply
from callboard.protocol.content import AssistantMessage, Message, ToolMessage
from callboard.protocol.masking import for_log

ENDED: Final = "ended"


class Started(NativeAnswer):
    """The request that was begun; `state` "unknown": it may have begun, or begin later. Sent again with this id, it is
    not begun twice."""

    request_id: str
    state: Literal["started", "unknown"]
    message: str
    """Why that is not known; else ""."""


class WasDone(NativeAnswer):
    """Was it done?"""

    done: bool


class PendingCallShown(NativeAnswer):
    """A call that has no result yet."""

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
    """Requests of a tenant."""

    open: list[RequestShown]
    """The oldest first."""
    recent: list[RequestShown]
    """Those of the journal that have ended, the latest first."""


class FailureShown(NativeAnswer):
    """A call that failed."""

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
            reason=for_log(reply.reason),
            finish_reason=reply.finish_reason.value,
            model=reply.model,
            steps=len(reply.steps),
            usage=asdict(reply.usage) if reply.usage is not None else None,
            cost=reply.cost,
            notes=[for_log(note) for note in reply.notes],
            failures=[FailureShown(tool=f.tool, code=f.code.value, message=for_log(f.message)) for f in reply.failures],
        )


class RequestDetail(NativeAnswer):
    """One request, and its reply once it has ended."""

    request: RequestShown
    reply: ReplyShown | None
    error: str
    """Why there is no whole answer; "" where there is, or it has not ended."""


class StackShown(NativeAnswer):
    """Where the code of one call is."""

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
            arguments=question.arguments,
            risk=question.risk.value,
            why=question.rule,
            touches=[f"{each.kind.value} {each.value}" for each in question.accesses],
            diff=question.preview,
            confinement=question.confinement,
            is_after_untrusted=question.is_after_untrusted,
            since=found.since,
            until=found.since + timeout_seconds,
            answers=[each.value for each in ApprovalKind],
            url=f"/api/approvals/{quote(request_id)}/{step}/{quote(call_id)}",
        )


class ApprovalsShown(NativeAnswer):
    """All that wait for a person."""

    approvals: list[ApprovalShown]
    """The oldest first."""


class EditShown(NativeAnswer):
    """A staged edit."""

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
    """Staged edits."""

    edits: list[EditShown]
    """The oldest first."""


class ConversationShown(NativeAnswer):
    """A saved conversation, without its messages."""

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
    """Saved conversations, the newest question first."""

    conversations: list[ConversationShown]


class CallShown(NativeAnswer):
    """A call that a model has asked for."""

    call_id: str
    name: str
    arguments: str


class MessageShown(NativeAnswer):
    """One message."""

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
        calls = message.tool_calls if isinstance(message, AssistantMessage) else ()
        return cls(
            id=message_id,
            role=type(message).__name__.removesuffix("Message").lower(),
            text=message.content if isinstance(message, ToolMessage) else message.text,
            calls=[CallShown(call_id=each.call_id, name=each.name, arguments=each.arguments) for each in calls],
            call_id=message.call_id if isinstance(message, ToolMessage) else "",
            is_error=isinstance(message, ToolMessage) and message.is_error,
        )


class ConversationRead(NativeAnswer):
    """A conversation with its messages."""

    id: str
    messages: list[MessageShown]


class Forked(NativeAnswer):
    """The new conversation."""

    conversation_id: str


class FoundShown(NativeAnswer):
    """A message that a search has found."""

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
    """What a search has found."""

    found: list[FoundShown]


class Deleted(NativeAnswer):
    """It is deleted."""

    remark: str
    """What could not be seen to; "" where nothing is left."""

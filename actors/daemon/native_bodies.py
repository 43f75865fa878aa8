"""What clients of the native API send."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from callboard.actors.calls.approvals import MAX_REASON_CHARS, ApprovalKind
from callboard.actors.daemon.native_io import NativeBody, NativeQuery
from callboard.protocol.policy import Mode

Name = Annotated[str, Field(min_length=1, max_length=200)]


class StartRequest(NativeBody):
    """What to ask. What is left out is as in the daemon's settings."""

    prompt: Annotated[str, Field(min_length=1)]
    model: Name | None = None
    """ "provider/model", or a name of `models` in [daemon]."""
    instructions: str | None = None
    tools: list[Name] | None = None
    """Names of tools; ["*"]: all, []: none."""
    conversation: Name | None = None
    """The id of one to go on with, or its first characters, eight at least."""
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")] | None = None
    """A name of the client's own: sent a second time it is refused, so that no question is asked twice."""
    timeout: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Seconds to the end of the request."""
    mode: Mode | None = None
    """What it is for; one that is stricter than the daemon's, or the same."""
    max_steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    token_budget: Annotated[int, Field(ge=1, le=10**12)] | None = None
    cost_budget: Annotated[float, Field(gt=0, le=10**9)] | None = None
    """US dollars."""
    metadata: dict[str, str] | None = None


class CancelRequest(NativeBody):
    """Why, for the record."""

    reason: Annotated[str, Field(max_length=1_000)] = ""


class AnswerApproval(NativeBody):
    """A person's answer."""

    answer: ApprovalKind
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""
    """Of a denial: the model reads it."""
    arguments: dict[str, JsonValue] | None = None
    """In place of the model's; only with "once"."""


class ApproveEdits(NativeBody):
    """Which staged edits to apply."""

    ids: list[Name] | None = None
    """None: all that are pending."""
    contents: dict[str, str] = Field(default_factory=dict)
    """New whole texts of files by their paths, in place of what was proposed."""


class DenyEdits(NativeBody):
    """Which staged edits to give up."""

    ids: list[Name] | None = None
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""
    """The model reads it."""


class CompleteCall(NativeBody):
    """The result of a deferred call."""

    result: JsonValue


class FailCall(NativeBody):
    """Why a deferred call has no result; the model reads it."""

    message: Annotated[str, Field(min_length=1, max_length=MAX_REASON_CHARS)]


class ProgressOfCall(NativeBody):
    """How far a deferred call is."""

    message: Annotated[str, Field(max_length=MAX_REASON_CHARS)] = ""
    fraction: Annotated[float, Field(ge=0, le=1)] | None = None


class ForkConversation(NativeBody):
    """Where the fork begins."""

    at: Name
    """The id of a message, the last of the fork."""


class ActorPath(NativeBody):
    """Which actor: "root/rag"."""

    path: Name


class Nothing(NativeBody):
    """No field: the body may be left out."""


class FollowQuery(NativeQuery):
    """Where to go on."""

    after: Annotated[str, Field(max_length=200)] = ""
    """The id of the last event that was seen. The header Last-Event-ID says the same, and counts where both are."""


class RequestsQuery(NativeQuery):
    """How many."""

    limit: Annotated[int, Field(ge=1, le=1_000)] = 50


class ConversationsQuery(RequestsQuery):
    """Which conversations."""

    text: Annotated[str, Field(max_length=1_000)] = ""
    """All words of it are in one message."""


class SearchQuery(RequestsQuery):
    """Which messages."""

    text: Annotated[str, Field(min_length=1, max_length=1_000)]


class UsageQuery(NativeQuery):
    """How it is grouped, and of when."""

    by: Annotated[str, Field(pattern="^(day|model|tool|conversation)(,(day|model|tool|conversation)){0,3}$")] = (
        "day,model"
    )
    since: Annotated[float, Field(ge=0, le=10**11)] | None = None
    """Wall-clock seconds."""
    until: Annotated[float, Field(ge=0, le=10**11)] | None = None


class EditsQuery(NativeQuery):
    """Which edits."""

    all: bool = False
    """Also those that are decided."""

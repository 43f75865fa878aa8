"""What happened: everything that can go into a session, in the past tense.

Each event carries the `tag` of what it is about (a request, a step of it, a call of that step) and `at`, when it
happened by the runtime's clock, in seconds. A session has no clock of its own, so the same events give the same state.
"""

from __future__ import annotations

from dataclasses import dataclass

from callboard.protocol.content import Message, UserMessage
from callboard.protocol.ids import Tag
from callboard.protocol.model import Error, ModelResponse, StreamEvent
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.tools import ToolFailure


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """The first event: what is asked, of which conversation, with which tools and limits."""

    tag: Tag
    at: float
    history: tuple[Message, ...]
    """The conversation so far, legal for every provider (I2)."""
    user: UserMessage
    options: RequestOptions
    tools: tuple[ToolOffer, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelStreamed:
    """One socket read's worth of the model's answer."""

    tag: Tag
    at: float
    events: tuple[StreamEvent, ...]


@dataclass(frozen=True, slots=True)
class ModelResponded:
    """The turn is whole."""

    tag: Tag
    at: float
    response: ModelResponse
    cost: float = 0.0
    """US dollars; 0 where no price is known."""


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The model call failed for good: whoever made it has done its own retries."""

    tag: Tag
    at: float
    error: Error


@dataclass(frozen=True, slots=True)
class ModelLost:
    """Whoever held the model call is gone; nobody will answer it."""

    tag: Tag
    at: float


@dataclass(frozen=True, slots=True)
class ApprovalGranted:
    """A person, or the owner's callback, allowed this call."""

    tag: Tag
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalDenied:
    """A person, or the owner's callback, did not allow this call."""

    tag: Tag
    at: float
    by: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The tool's code has begun to run; from here on the outcome matters."""

    tag: Tag
    at: float


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """The tool returned."""

    tag: Tag
    at: float
    content: str
    """The result as JSON text."""
    output: str = ""
    """What the tool printed, for people: the end of it. Not shown to the model. So in the three events below."""


@dataclass(frozen=True, slots=True)
class ToolCallFailed:
    """The call has no result, and why: the tool raised, crashed, was not to be had."""

    tag: Tag
    at: float
    failure: ToolFailure
    output: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallTimedOut:
    """Its deadline passed, and whatever ran it was ended."""

    tag: Tag
    at: float
    output: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallCancelled:
    """The call was stopped before its end, by whoever held it."""

    tag: Tag
    at: float
    output: str = ""


@dataclass(frozen=True, slots=True)
class ToolsLost:
    """Whoever held the open calls of this step is gone; no outcome of theirs will come."""

    tag: Tag
    at: float


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """Nobody waits for the answer any more. Its tag may be of any step of the request."""

    tag: Tag
    at: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """A timer the session set has fired: for the request as a whole, or for one call."""

    tag: Tag
    at: float


ToolCallEnd = ToolCallCompleted | ToolCallFailed | ToolCallTimedOut | ToolCallCancelled
"""The last event of a call that was sent: exactly one of these (I1)."""

Event = (
    RequestStarted
    | ModelStreamed
    | ModelResponded
    | ModelFailed
    | ModelLost
    | ApprovalGranted
    | ApprovalDenied
    | ToolCallStarted
    | ToolCallCompleted
    | ToolCallFailed
    | ToolCallTimedOut
    | ToolCallCancelled
    | ToolsLost
    | CancelRequested
    | DeadlinePassed
)

"""What to do: everything that can come out of a session, as imperatives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from callboard.protocol.content import Message
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.model import ModelRequest, Usage
from callboard.protocol.tools import Risk


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model; its answer is any number of ModelStreamed, then one ModelResponded or ModelFailed.

    `request.model` is "provider/model".
    """

    tag: Tag
    request: ModelRequest
    deadline_at: float
    not_before_at: float = 0.0
    """Absolute, by the runtime's clock: begin no sooner. A call asked again after a loss waits a little first."""


@dataclass(frozen=True, slots=True)
class StopModel:
    """The model call is no longer needed: end its stream."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class RunTool:
    """Run this call, once."""

    tag: Tag
    name: ToolName
    arguments: str
    """JSON text of an object."""
    deadline_at: float
    """Absolute, by the runtime's clock. A call that is sent again gets its tool's whole time, in a new command."""
    effect_id: str
    """The same each time this very call is run again, so that a tool can recognise its own earlier effect."""


@dataclass(frozen=True, slots=True)
class CancelTool:
    """The call is no longer needed: end it."""

    tag: Tag
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Ask whether this call may run; the answer is ApprovalGranted or ApprovalDenied."""

    tag: Tag
    name: ToolName
    arguments: str
    risk: Risk


@dataclass(frozen=True, slots=True)
class WithdrawApproval:
    """The question is moot: the request ended, or the deadline passed."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send DeadlinePassed with this tag at `at`; it replaces an earlier timer of the same tag."""

    tag: Tag
    at: float


@dataclass(frozen=True, slots=True)
class ClearTimer:
    """Forget the timer of this tag, if there is one."""

    tag: Tag


@dataclass(frozen=True, slots=True)
class Note:
    """Something the person should see; not part of the conversation."""

    tag: Tag
    text: str


@dataclass(frozen=True, slots=True)
class RecordStep:
    """A step is finished: these messages now belong to the conversation, all of them or none.

    The user's message is not among them: it is the conversation's already. Given again after a crash, a step is
    recognised by its tag.
    """

    tag: Tag
    messages: tuple[Message, ...]


class Outcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    COST_LIMIT = "cost_limit"
    REPEATED_CALLS = "repeated_calls"


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is over; no command follows."""

    tag: Tag
    outcome: Outcome
    text: str
    """The answer, or the part of it that came before the request ended."""
    usage: Usage
    cost: float
    steps: int
    """Model calls made, those that were asked again included."""
    reason: str = ""
    """Why, in one sentence, where it was not answered."""


Command = (
    CallModel
    | StopModel
    | RunTool
    | CancelTool
    | AskApproval
    | WithdrawApproval
    | SetTimer
    | ClearTimer
    | Note
    | RecordStep
    | Finish
)

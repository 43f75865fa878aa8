"""What to do: everything that can come out of a session, as imperatives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from callboard.protocol.content import Message
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.model import ModelRequest, Usage
from callboard.protocol.tools import Risk


@dataclass(frozen=True, slots=True)
class _Command:
    tag: Tag


@dataclass(frozen=True, slots=True)
class CallModel(_Command):
    """Ask the model; its answer is any number of ModelStreamed, then one ModelResponded or ModelFailed.

    `request.model` is "provider/model".
    """

    request: ModelRequest
    deadline_at: float
    not_before_at: float = 0.0
    """Absolute, by the runtime's clock: begin no sooner. A call asked again after a loss waits a little first."""
    prompt_tokens: int = 0
    """Of the request, by our own count: without what providers said of other prompts; 0: not counted."""


@dataclass(frozen=True, slots=True)
class StopModel(_Command):
    """The model call is no longer needed: end its stream."""


@dataclass(frozen=True, slots=True)
class RunTool(_Command):
    """Run this call, once."""

    name: ToolName
    arguments: str
    """JSON text of an object."""
    deadline_at: float
    """Absolute, by the runtime's clock. A call that is sent again gets its tool's whole time, in a new command."""
    effect_id: str
    """The same each time this very call is run again, so that a tool can recognise its own earlier effect."""


@dataclass(frozen=True, slots=True)
class CancelTool(_Command):
    """The call is no longer needed: end it."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class AskApproval(_Command):
    """Ask whether this call may run; the answer is ApprovalGranted or ApprovalDenied."""

    name: ToolName
    arguments: str
    risk: Risk


@dataclass(frozen=True, slots=True)
class WithdrawApproval(_Command):
    """The question is moot: the request ended, or the deadline passed."""


@dataclass(frozen=True, slots=True)
class SetTimer(_Command):
    """Send DeadlinePassed with this tag at `at`; it replaces an earlier timer of the same tag."""

    at: float


@dataclass(frozen=True, slots=True)
class ClearTimer(_Command):
    """Forget the timer of this tag, if there is one."""


@dataclass(frozen=True, slots=True)
class Note(_Command):
    """Something the person should see; not part of the conversation."""

    text: str


@dataclass(frozen=True, slots=True)
class RecordStep(_Command):
    """A step is finished: these messages now belong to the conversation, all of them or none.

    The user's message is not among them: it is the conversation's already. Given again after a crash, a step is
    recognised by its tag.
    """

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
class Finish(_Command):
    """The request is over; no command follows."""

    outcome: Outcome
    text: str
    """The answer, or the part of it that came before the request ended."""
    usage: Usage
    """As the providers reported it; estimates count against the budget only."""
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

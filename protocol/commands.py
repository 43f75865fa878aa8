"""What to do: everything that can come out of a session, as imperatives."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from callboard.protocol.compaction import Compacted
from callboard.protocol.content import AssistantMessage, Message, ToolCall, ToolMessage
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import MAX_ATTEMPTS
from callboard.protocol.model import CallPurpose, FinishReason, ModelRequest, Usage
from callboard.protocol.policy import Access, Mode
from callboard.protocol.reports import StepReport
from callboard.protocol.tools import Hold, Risk, ToolFailure
from callboard.protocol.values import Value


class _Command(Value, frozen=True):
    tag: Tag


class CallModel(_Command, frozen=True):
    """Ask the model; its answer is any number of ModelStreamed, then one ModelResponded or ModelFailed.

    `request.model` is "provider/model".
    """

    request: ModelRequest
    deadline_at: float
    not_before_at: float = 0.0
    """Absolute, by the runtime's clock: begin no sooner. A call asked again after a loss waits a little first."""
    attempts: int = MAX_ATTEMPTS
    """Requests that may be sent for it, over all models that are asked: what is left of the step's `max_attempts`."""
    prompt_tokens: int = 0
    """Of the request, by our own count: without what providers said of other prompts; 0: not counted."""
    purpose: CallPurpose = CallPurpose.TURN

    @property
    def is_turn(self) -> bool:
        """Does it ask for a turn of the conversation?"""
        return self.purpose is CallPurpose.TURN


class StopModel(_Command, frozen=True):
    """The model call is no longer needed: end its stream."""


class RunTool(_Command, frozen=True):
    """Run this call, once."""

    name: ToolName
    arguments: str
    """JSON text of an object."""
    deadline_at: float
    """Absolute, by the runtime's clock. A call that is sent again gets its tool's whole time, in a new command."""
    effect_id: str
    """The same each time this very call is run again, so that a tool can recognise its own earlier effect."""
    rule: str = ""
    """By what it may run, in words, for logs and spans."""
    search_words: tuple[str, ...] = ()
    """Further queries for a call that searches, which the model was asked for (search_words.py)."""
    hold: Hold = Hold.NONE
    """What the kernel is to keep it to."""
    mode: Mode | None = None
    """That of its question; None: the runtime's. What hands the call on fills it in."""


class CancelTool(_Command, frozen=True):
    """The call is no longer needed: end it."""

    reason: str = ""


class AskApproval(_Command, frozen=True):
    """Ask whether this call may run; the answer is ApprovalGranted or ApprovalDenied.

    A session fills it down to `is_after_untrusted`; what puts the question to a person adds the rest.
    """

    name: ToolName
    arguments: str
    """JSON text of an object."""
    risk: Risk
    is_after_untrusted: bool = False
    """Has the request read text that is not its owner's, and does it want to be asked then (`ask_after_untrusted`)?"""
    rule: str = ""
    """Why it is asked, in words."""
    accesses: tuple[Access, ...] = ()
    """What the call would touch, as far as its tool says so."""
    preview: str = ""
    """Of an edit: its unified diff, whole."""
    confinement: str = ""
    """What the call is kept from, in words; "" where nothing holds it."""
    mode: Mode | None = None
    """That of its question; None: the runtime's."""


class WithdrawApproval(_Command, frozen=True):
    """The question is moot: the request ended, or the deadline passed."""


class SetTimer(_Command, frozen=True):
    """Send DeadlinePassed with this tag at `at`; it replaces an earlier timer of the same tag."""

    at: float


class ClearTimer(_Command, frozen=True):
    """Forget the timer of this tag, if there is one."""


class NoteKind(StrEnum):
    """What a note is about; telemetry counts by it."""

    RETRY = "retry"
    """A request failed, and the same model is asked once more."""
    FALLBACK = "fallback"
    """The next model is asked."""
    RATE_LIMIT = "rate_limit"
    """A model call waits for the rate limit of its credential."""
    ASKED_AGAIN = "asked_again"
    """A turn was of no use, or its model call was lost: the step is asked again."""
    TOOL_FALLBACK = "tool_fallback"
    """The model takes no tools, and is asked without them."""
    SCHEMA_FALLBACK = "schema_fallback"
    """The model takes no schema of the answer, or not this one, and is asked for it in another way."""
    MISFIT = "misfit"
    """An answer does not fit the form asked for; the model reads what is wrong with it."""
    TRIMMED = "trimmed"
    """Older messages were shortened or left out, so that the prompt fits into the context."""
    COMPACTED = "compacted"
    """Old tool results were cleared, or older messages were replaced by a summary."""
    SUMMARY_FAILED = "summary_failed"
    """Older messages could not be summarised."""
    WORDS_FAILED = "words_failed"
    """The model gave no further words for a search."""
    CUT = "cut"
    """The turn is not whole: cut off, refused, or ended for an unknown reason."""
    LEFT_OUT = "left_out"
    """What the provider's API cannot express, and what was sent in its place."""
    ASSUMED = "assumed"
    """What neither table nor server tells, such as how many tokens the model takes."""
    ESTIMATED = "estimated"
    """A number of the provider's cannot be true."""
    OTHER = "other"


class ReportFailure(_Command, frozen=True):
    """Show and count this failure: the session itself has ended the call by it, and no event of the call says so.

    It was not run (an unknown tool, a denied, incomplete or repeated call), it was given up (its deadline, a cancelled
    request, a lost dispatcher), or what it returned may not be handed on. The model reads it with the step.
    """

    failure: ToolFailure


class Note(_Command, frozen=True):
    """Something the person should see; not part of the conversation."""

    text: str
    kind: NoteKind = NoteKind.OTHER


class CallOutside(_Command, frozen=True):
    """Show this call of a tool that the asker runs: the request ends by it, and the next one brings its result."""

    call: ToolCall


class RecordStep(_Command, frozen=True):
    """A step is finished: these messages now belong to the conversation, all of them or none.

    The user's message is not among them: it is the conversation's already. Given again after a crash, a step is
    recognised by its tag.
    """

    messages: tuple[Message, ...]


class RecordCompaction(_Command, frozen=True):
    """Keep this beside the conversation, in place of what was kept before: the next question begins with it."""

    compacted: Compacted


class OpenTurn(Value, frozen=True):
    """A turn whose calls have not all been answered: it belongs to the conversation when they are."""

    message: AssistantMessage
    results: tuple[ToolMessage, ...] = ()
    """Of the calls that have ended, in the turn's order."""
    notes: tuple[str, ...] = ()
    """What the model reads behind the results."""

    @property
    def outside(self) -> tuple[ToolCall, ...]:
        """The calls that wait for their results, in the turn's order."""
        known = {result.call_id for result in self.results}
        return tuple(call for call in self.message.tool_calls if call.call_id not in known)


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
    CALLS_OUTSIDE = "calls_outside"
    """The model has called tools of the one who asks: the results come with the next request."""


#: Of requests that went well: the model has said all it had to say, or waits for results of the one who asks.
WENT_WELL: Final = frozenset({Outcome.ANSWERED, Outcome.CALLS_OUTSIDE})


class Finish(_Command, frozen=True):
    """The request is over; no command follows."""

    outcome: Outcome
    text: str
    """The answer, or the part of it that came before the request ended."""
    usage: Usage | None
    """As the providers reported it; estimates count against the budget only. None once a model call did not say."""
    cost: float | None
    """US dollars; None where that of a model call is not known."""
    steps: tuple[StepReport, ...]
    """The model calls made, those that were asked again included, each with its tool calls."""
    reason: str = ""
    """Why, in one sentence, where it was not answered, or not to the end."""
    finish_reason: FinishReason = FinishReason.OTHER
    """Why the model's last turn ended: `length` for an answer that was cut. `other` where the last model call had no
    turn, since it failed or the request ended before."""
    open_turn: OpenTurn | None = None
    """With Outcome.CALLS_OUTSIDE."""


Command = (
    CallModel
    | StopModel
    | RunTool
    | CancelTool
    | AskApproval
    | WithdrawApproval
    | SetTimer
    | ClearTimer
    | ReportFailure
    | CallOutside
    | Note
    | RecordStep
    | RecordCompaction
    | Finish
)

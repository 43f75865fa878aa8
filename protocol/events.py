"""What happened: everything that can go into a session, in the past tense.

Each event carries the `tag` of what it is about (a request, a step of it, a call of that step) and `at`, when it
happened by the runtime's clock, in seconds. A session has no clock of its own, so the same events give the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from msgspec.structs import replace

from callboard.protocol.commands import NoteKind
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import Message, UserMessage
from callboard.protocol.ids import Tag
from callboard.protocol.model import Error, ModelResponse, StreamEvent, Usage
from callboard.protocol.options import RequestOptions, ToolOffer
from callboard.protocol.output import Checked
from callboard.protocol.tools import Hold, ToolFailure
from callboard.protocol.values import Value


class _Event(Value, frozen=True):
    tag: Tag
    at: float


class RequestStarted(_Event, frozen=True):
    """The first event: what is asked, of which conversation, with which tools and limits."""

    history: tuple[Message, ...]
    """The conversation so far, legal for every provider (I2): `start_check.check_start` tells before."""
    user: UserMessage
    options: RequestOptions
    tools: tuple[ToolOffer, ...] = ()
    notes: tuple[str, ...] = ()
    """What the person should know of how the request is set up, such as a limit that is only assumed."""
    compacted: Compacted = Compacted()
    """What earlier requests have done to this history; it counts where the options have a compaction."""


class ModelStreamed(_Event, frozen=True):
    """One socket read's worth of the model's answer."""

    events: tuple[StreamEvent, ...]


class ModelNoted(_Event, frozen=True):
    """Something happened to the model call on its way to an answer: a retry, a fallback, a wait for a rate limit.

    A retry is said before its request is sent, so that none goes uncounted when the model call is lost.
    """

    kind: NoteKind
    text: str
    """What a person is shown: one sentence, without anything that people, models or providers wrote."""
    requests: int
    """Those of this call that have been sent so far."""
    until_at: float = 0.0
    """The call waits until then, for a rate limit or because a provider asked for it; 0: it waits for nothing. A model
    call that is lost meanwhile is not asked again before."""


class ModelResponded(_Event, frozen=True):
    """The turn is whole. A usage or cost that cannot be true is estimated, and a note says so."""

    response: ModelResponse
    cost: float | None = None
    """US dollars; None where it is not known."""
    requests: int = 1
    """Those sent for this call, over all models that were asked."""
    model: str = ""
    """"provider/model" that answered, in the words of the settings: a fallback, perhaps."""
    first_event_at: float | None = None
    """When the first piece of the answer came; None where that is not known."""
    checked: tuple[Checked, ...] = ()
    """Of a request with an output: whether each answer of the turn fits, in the order of `output.answers_in`."""


class ModelFailed(_Event, frozen=True):
    """The model call failed for good: the LLM manager has done its own retries.

    With the kind `internal_error` it is our own fault, and this very call's: it made what held it crash, or would have.
    It ends its request at once and is never asked again, so that no request takes an actor down twice.
    """

    error: Error
    requests: int = 1
    """Those sent for this call, over all models that were asked."""
    model: str = ""
    """"provider/model" of the one whose error it is, where that is known: a fallback may have been asked last."""
    usage: Usage | None = Usage()
    """Of its requests that had begun to answer, together; None where one of them did not say."""
    cost: float | None = 0.0
    """US dollars for these; None where it is not known."""

    @property
    def is_free(self) -> bool:
        """Whether none of its requests has cost anything, as far as is said."""
        return self.usage == Usage() and self.cost == 0


class ModelLost(_Event, frozen=True):
    """What held the model call is gone, and no answer will come. It is asked again after a pause.

    For calls that were merely there: of the one that made its holder crash, where that is known, say ModelFailed.
    """

    with_process: bool = False
    """The whole process has ended: that says nothing of the call, and is no request of the step's `max_attempts`."""


class ApprovalGranted(_Event, frozen=True):
    """A person, or the owner's callback, or a rule of theirs allowed this call."""

    by: str = ""
    rule: str = ""
    """The rule that decided, or for which calls a person has decided, in words."""
    arguments: str = ""
    """Those to run it with, where a person has changed them: the JSON text of an object. The model is told of it."""
    hold: Hold = Hold.NONE
    """What the kernel is to keep it to."""


class ApprovalDenied(_Event, frozen=True):
    """A person, or the owner's callback, or a rule of theirs did not allow this call."""

    by: str = ""
    reason: str = ""
    """The model reads it."""
    rule: str = ""
    """As in ApprovalGranted."""


class ToolCallStarted(_Event, frozen=True):
    """The tool's code has begun to run; from here on the outcome matters."""


class ToolCallDeferred(_Event, frozen=True):
    """The tool's code has ended, and the call stays open: its result comes from outside, or its time passes."""

    timeout_seconds: float
    """From `at`."""
    note: str = ""
    """For people; the model does not see it."""
    output: str = ""


class ToolCallCompleted(_Event, frozen=True):
    """The tool returned, or what it had left to someone outside came to this result."""

    content: str
    """The result as the model reads it: any text, JSON where the tool returned more than a text. Too long, it becomes a
    failure (`step.result_fault`)."""
    output: str = ""
    """What the tool printed, for people: the end of it. Not shown to the model. So in the three events below."""


class ToolCallFailed(_Event, frozen=True):
    """The call has no result, and why: the tool raised, crashed, or could not be had."""

    failure: ToolFailure
    output: str = ""


class ToolCallTimedOut(_Event, frozen=True):
    """Its deadline passed, and what ran it was ended."""

    output: str = ""
    failure: ToolFailure | None = None
    """As the model reads it, for those who see only how calls end; None in journals of before. So below."""


class ToolCallCancelled(_Event, frozen=True):
    """The call was stopped before its end, by what held it."""

    output: str = ""
    failure: ToolFailure | None = None


class ToolsLost(_Event, frozen=True):
    """What held the open calls of this step is gone; no outcome of theirs will come."""


class NoticeCame(_Event, frozen=True):
    """Something has happened outside that the model should read, such as what became of an edit that a call has staged.

    It becomes a system message at the end of the next step that is recorded: behind the results, never between them.
    Its tag may be of any step of the request.
    """

    text: str


class CancelRequested(_Event, frozen=True):
    """The caller no longer waits for the answer. Its tag may be of any step of the request."""

    reason: str = ""


class DeadlinePassed(_Event, frozen=True):
    """A timer the session set has fired: the request's, or that of a step, which has one for all its calls.

    The request has none while its time does not run (clock.py)."""


ToolCallEnd = ToolCallCompleted | ToolCallFailed | ToolCallTimedOut | ToolCallCancelled
"""The last event of a call that was sent: exactly one of these (I1)."""

Event = (
    RequestStarted
    | ModelStreamed
    | ModelNoted
    | ModelResponded
    | ModelFailed
    | ModelLost
    | ApprovalGranted
    | ApprovalDenied
    | ToolCallStarted
    | ToolCallDeferred
    | ToolCallEnd
    | ToolsLost
    | NoticeCame
    | CancelRequested
    | DeadlinePassed
)

#: Those by which a tool's call ends without a result.
CALL_FAILS: Final = (ToolCallFailed, ToolCallTimedOut, ToolCallCancelled)

#: The fields that hold a time by the runtime's clock, besides `at`, by class of event.
_TIMES: Final[Mapping[type[Event], tuple[str, ...]]] = {
    kind: tuple(name for name in kind.__struct_fields__ if name.endswith("_at")) for kind in get_args(Event)
}


def shifted(event: Event, seconds: float) -> Event:
    """The same event by a clock that is so many seconds ahead: a journal holds wall-clock times. A time that is 0 or
    None, but for `at`, is none, and stays so."""
    names = _TIMES[type(event)]
    if not names:
        return replace(event, at=event.at + seconds)
    times = {name: at + seconds for name in names if (at := getattr(event, name))}
    return replace(event, at=event.at + seconds, **times)

"""What is known of a request's model calls and tool calls once they have ended: for a person, a test or a bill."""

from __future__ import annotations

from callboard.protocol.errors import ErrorKind
from callboard.protocol.ids import CallId, ToolName
from callboard.protocol.model import CallPurpose, FinishReason, Usage
from callboard.protocol.tools import FailureCode
from callboard.protocol.values import Value


class CallReport(Value, frozen=True):
    """One call of a tool."""

    call_id: CallId
    name: ToolName
    code: FailureCode | None
    """Why it has no result of its tool (`timed_out`, `denied`, ...); None where it has one."""
    seconds: float
    """From the turn that asked for it to its result, so with the time that it waited for a person or for its turn."""
    run_seconds: float
    """Of that, since its code began to run for the last time; 0 where it never began."""
    rule: str = ""
    """What it was decided by whether it may run, in words; "" of a call that came to no decision."""


class StepReport(Value, frozen=True):
    """One model call, and the tool calls that its turn asked for."""

    step: int
    """Its number in the request, from 1 on; one that was asked again has another."""
    seconds: float
    """From the model call to its end, with all its retries and fallbacks."""
    is_whole: bool = False
    """Did a turn come? If not, it failed, was lost, or the request ended before."""
    model: str = ""
    """"provider/model" that answered or failed last; "" where that is not known."""
    usage: Usage | None = None
    """As the provider reported it; None where it did not, or where that cannot be true."""
    cost: float | None = None
    """US dollars; None where it is not known."""
    finish_reason: FinishReason = FinishReason.OTHER
    error: ErrorKind | None = None
    """Why no turn came, or only a part of one."""
    requests: int = 0
    """Requests that were sent for it: the first one, retries, fallback models."""
    calls: tuple[CallReport, ...] = ()
    """In the order of the turn."""
    first_event_seconds: float | None = None
    """To the first piece of the answer; None where that is not known."""
    response_model: str = ""
    """The model that answered, in the provider's own words."""
    response_id: str = ""
    """The provider's id of the answer."""
    provider_request_id: str = ""
    """The provider's id of the HTTP request, for its support."""
    service_tier: str = ""
    """In which of its tiers the provider served the request, in its own word."""
    purpose: CallPurpose = CallPurpose.TURN
    """What it was for: the answer to anything but a turn is no part of the conversation."""

    @property
    def is_turn(self) -> bool:
        """Whether the answer is a turn of the conversation."""
        return self.purpose is CallPurpose.TURN

"""What a request ends with."""

from __future__ import annotations

from dataclasses import dataclass

from callboard.protocol.commands import Finish, Outcome
from callboard.protocol.content import Message
from callboard.protocol.errors import CallboardError, ProviderError, RuntimeFailure
from callboard.protocol.ids import RequestId
from callboard.protocol.model import Error, Usage


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one request."""

    text: str
    usage: Usage
    request_id: RequestId
    outcome: Outcome
    steps: int
    """Model calls made."""
    cost: float
    """US dollars; 0 where no price is known."""
    messages: tuple[Message, ...]
    """What this request added to the conversation: the question, the calls, their results and the answer."""
    reason: str = ""
    """Why it was not answered, in one sentence."""


class RequestEnded(RuntimeFailure):
    """The request ended without an answer: cancelled, out of time, over a limit. `reply` holds what there was."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(reply.reason or f"the request ended: {reply.outcome}")


class ModelCallFailed(ProviderError):
    """The model could not be asked. `reply` holds what there was before."""

    def __init__(self, reply: Reply, error: Error) -> None:
        self.reply = reply
        super().__init__(error.kind, error.message, status=error.status, retry_after_seconds=error.retry_after)


def failure_of(reply: Reply, model_error: Error | None) -> CallboardError | None:
    """The exception that tells a caller of an outcome, or None for an answer."""
    if reply.outcome is Outcome.ANSWERED:
        return None
    if reply.outcome is Outcome.FAILED and model_error is not None:
        return ModelCallFailed(reply, model_error)
    return RequestEnded(reply)


def reply_of(finish: Finish, messages: tuple[Message, ...]) -> Reply:
    """The reply that a finished request stands for."""
    return Reply(
        finish.text,
        finish.usage,
        finish.tag.request_id,
        finish.outcome,
        finish.steps,
        finish.cost,
        messages,
        finish.reason,
    )

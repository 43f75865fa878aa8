"""The failures that the session itself reports to the model: each says what was wrong and what to do."""

from __future__ import annotations

import json

import orjson

from callboard.protocol.content import ToolCall, ToolMessage
from callboard.protocol.events import ApprovalDenied, ToolCallCancelled, ToolCallFailed, ToolCallTimedOut
from callboard.protocol.ids import ToolName
from callboard.protocol.limits import ERROR_SNIPPET_CHARS
from callboard.protocol.states import CallState
from callboard.protocol.tools import FailureCode, ToolFailure

CallFailure = ApprovalDenied | ToolCallFailed | ToolCallTimedOut | ToolCallCancelled
"""The events by which a call ends without a result of its tool."""


def failed_result(call: ToolCall, failure: ToolFailure) -> ToolMessage:
    """The failure as the model reads it, in the place of the call's result."""
    return ToolMessage(call.call_id, call.name, _json(failure.to_wire()), is_error=True)


def of_event(event: CallFailure, name: ToolName) -> tuple[CallState, ToolFailure]:
    """How a call ends by this event, and what the model is told."""
    match event:
        case ApprovalDenied():
            return CallState.DENIED, denied(name, event.reason or "it was not approved.")
        case ToolCallFailed():
            return CallState.FAILED, event.failure
        case ToolCallTimedOut():
            return CallState.TIMED_OUT, timed_out(name, "the deadline passed.")
        case ToolCallCancelled():
            return CallState.CANCELLED, cancelled(name, "it was stopped.")


def _json(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        # A model can write a lone surrogate, which UTF-8 cannot hold: the stdlib escapes it.
        return json.dumps(value)


def unknown_tool(name: ToolName, offered: list[ToolName]) -> ToolFailure:
    """The model called a tool that it was not offered."""
    known = ", ".join(sorted(offered)) or "none"
    return ToolFailure(
        name,
        FailureCode.UNKNOWN_TOOL,
        f"There is no tool named {name!r}.",
        expected=f"one of: {known}",
        received=name[:ERROR_SNIPPET_CHARS],
        retry_hint="Call one of the tools you were given.",
    )


def incomplete_call(name: ToolName, received: str) -> ToolFailure:
    """Half a call, which is never run (I12)."""
    return ToolFailure(
        name,
        FailureCode.INCOMPLETE_CALL,
        "The arguments were cut off or are not a JSON object; the call was not run.",
        expected="a JSON object",
        received=received[:ERROR_SNIPPET_CHARS],
        retry_hint="Send the call again, with all its arguments; make them shorter if they were cut off.",
    )


def repeated_call(name: ToolName, limit: int) -> ToolFailure:
    """The same call once too often."""
    return ToolFailure(
        name,
        FailureCode.REPEATED,
        f"The same call with the same arguments came {limit} times in a row; it was not run again.",
        retry_hint="Use the results you have, change the arguments, or answer. The next repetition ends the run.",
    )


def denied(name: ToolName, reason: str) -> ToolFailure:
    """Policy or a person said no."""
    return ToolFailure(
        name,
        FailureCode.DENIED,
        f"The call was not allowed: {reason}",
        retry_hint="Do not send this call again; go on without it or say that you cannot.",
    )


def timed_out(name: ToolName, what: str) -> ToolFailure:
    """Its deadline, or that of the request, passed."""
    return ToolFailure(
        name,
        FailureCode.TIMED_OUT,
        f"No result: {what}",
        retry_hint="It may have had an effect. Ask for less at a time, or go on without it.",
    )


def cancelled(name: ToolName, why: str) -> ToolFailure:
    """It was stopped, or never sent."""
    return ToolFailure(name, FailureCode.CANCELLED, f"The call was cancelled: {why}")


def outcome_unknown(name: ToolName) -> ToolFailure:
    """It had begun, and nobody knows how it ended."""
    return ToolFailure(
        name,
        FailureCode.OUTCOME_UNKNOWN,
        "The call had begun when whoever ran it was lost; nobody knows whether it had its effect.",
        retry_hint="Look at what it would have changed before you send it again.",
    )


def never_started(name: ToolName) -> ToolFailure:
    """It was sent again and again, and never begun."""
    return ToolFailure(
        name,
        FailureCode.CRASHED,
        "The call was not run: whoever was to run it was lost each time it was sent.",
        retry_hint="Do not send this call again; change its arguments, or go on without it.",
    )

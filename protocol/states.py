"""The machine: which event is legal in which state, and what it can lead to. Nothing else changes a state.

Two rules of this file. An absent key is an illegal event: `ProtocolError`, and the state stays as it was. Where one
event can lead to several states, the row lists all of them; `session.py` picks one and is checked against the row.
docs/protocol.md draws its diagrams from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    ModelFailed,
    ModelLost,
    ModelResponded,
    ModelStreamed,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)


class RequestState(StrEnum):
    """Where a request stands."""

    NEW = "new"
    CALLING_MODEL = "calling_model"
    """One model call is open, and no tool call."""
    RUNNING_TOOLS = "running_tools"
    """At least one call of the step is open, and no model call (I4)."""
    FINISHED = "finished"


class CallState(StrEnum):
    """Where a call stands."""

    REQUESTED = "requested"
    """The model asked; nothing has been decided yet. No call rests in this state."""
    AWAITING_APPROVAL = "awaiting_approval"
    SENT = "sent"
    """The dispatcher has it; its code has not begun to run."""
    RUNNING = "running"
    """From here on the outcome matters."""
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DENIED = "denied"


#: A call in one of these has its one result (I1).
TERMINAL_CALL_STATES = frozenset(
    {CallState.COMPLETED, CallState.FAILED, CallState.TIMED_OUT, CallState.CANCELLED, CallState.DENIED}
)

_ASKING = RequestState.CALLING_MODEL
_TOOLS = RequestState.RUNNING_TOOLS
_OVER = RequestState.FINISHED
#: Some calls are still open | the step is complete and the next one begins | no further step is allowed.
_CALL_ENDED = (_TOOLS, _ASKING, _OVER)

REQUEST_TRANSITIONS: Mapping[RequestState, Mapping[type[Any], tuple[RequestState, ...]]] = MappingProxyType(
    {
        RequestState.NEW: {
            RequestStarted: (_ASKING, _OVER),
        },
        RequestState.CALLING_MODEL: {
            ModelStreamed: (_ASKING,),
            ModelResponded: (_TOOLS, _ASKING, _OVER),
            ModelFailed: (_ASKING, _OVER),
            ModelLost: (_ASKING, _OVER),
            CancelRequested: (_OVER,),
            # The timer fired early: it is set again.
            DeadlinePassed: (_OVER, _ASKING),
        },
        RequestState.RUNNING_TOOLS: {
            ApprovalGranted: (_TOOLS,),
            ApprovalDenied: _CALL_ENDED,
            ToolCallStarted: (_TOOLS,),
            ToolCallCompleted: _CALL_ENDED,
            ToolCallFailed: _CALL_ENDED,
            ToolCallTimedOut: _CALL_ENDED,
            ToolCallCancelled: _CALL_ENDED,
            ToolsLost: _CALL_ENDED,
            CancelRequested: (_OVER,),
            DeadlinePassed: _CALL_ENDED,
        },
        RequestState.FINISHED: {},
    }
)

#: What ends any open call, whoever holds it: the request is cancelled, or its own or the request's deadline passed.
_ENDS_ANY_CALL = {
    CancelRequested: (CallState.CANCELLED,),
    DeadlinePassed: (CallState.TIMED_OUT,),
}
#: What the dispatcher says of a call it holds.
_OUTCOMES = {
    ToolCallCompleted: (CallState.COMPLETED,),
    ToolCallFailed: (CallState.FAILED,),
    ToolCallTimedOut: (CallState.TIMED_OUT,),
    ToolCallCancelled: (CallState.CANCELLED,),
}

CALL_TRANSITIONS: Mapping[CallState, Mapping[type[Any], tuple[CallState, ...]]] = MappingProxyType(
    {
        CallState.REQUESTED: {
            # FAILED: unknown tool, incomplete arguments, repeated call. CANCELLED: the turn ended the run.
            ModelResponded: (
                CallState.SENT,
                CallState.AWAITING_APPROVAL,
                CallState.DENIED,
                CallState.FAILED,
                CallState.CANCELLED,
            ),
        },
        CallState.AWAITING_APPROVAL: {
            ApprovalGranted: (CallState.SENT,),
            ApprovalDenied: (CallState.DENIED,),
            ToolsLost: (CallState.AWAITING_APPROVAL,),
            **_ENDS_ANY_CALL,
        },
        CallState.SENT: {
            ToolCallStarted: (CallState.RUNNING,),
            # Sent again; FAILED when each of several dispatchers that had it was lost.
            ToolsLost: (CallState.SENT, CallState.FAILED),
            **_OUTCOMES,
            **_ENDS_ANY_CALL,
        },
        CallState.RUNNING: {
            # Run again where the tool is idempotent, else the outcome is unknown.
            ToolsLost: (CallState.SENT, CallState.FAILED),
            **_OUTCOMES,
            **_ENDS_ANY_CALL,
        },
        CallState.COMPLETED: {},
        CallState.FAILED: {},
        CallState.TIMED_OUT: {},
        CallState.CANCELLED: {},
        CallState.DENIED: {},
    }
)

"""Where the requests of a runtime are that have not ended: what `Runtime.open_requests` lists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from callboard.protocol.content import ToolCall
from callboard.protocol.ids import CallId, RequestId, Tag, ToolName
from callboard.protocol.states import TERMINAL_CALL_STATES, CallState


class OpenState(StrEnum):
    """What a request is at."""

    STARTING = "starting"
    """It asks which tools there are, and how much the model takes."""
    CALLING_MODEL = "calling_model"
    RUNNING_TOOLS = "running_tools"
    WAITING = "waiting"
    """For approvals, or for results of deferred calls: its time stands still."""
    ENDING = "ending"
    LEFT_OPEN = "left_open"
    """An earlier process began it, and this one cannot go on with it; `waits_for` says why."""


class PendingCall(Struct, frozen=True):
    """A call that has no result yet."""

    call_id: CallId
    name: ToolName
    state: CallState


class OpenWork(Struct, frozen=True):
    """What a session says of its request."""

    state: OpenState
    step: int
    calls: tuple[PendingCall, ...] = ()


class OpenRequest(Struct, frozen=True):
    """A request that has not ended."""

    request_id: RequestId
    conversation_id: str
    model: str
    begun_at: float
    """Wall-clock time, as time.time() gives it."""
    state: OpenState
    step: int = 0
    """The number of its current model call, from 1 on; 0 before the first."""
    calls: tuple[PendingCall, ...] = ()
    waits_for: str = ""
    """In words: which approvals, results, or what is missing to go on with it."""
    was_taken_up: bool = False
    """An earlier process has begun it."""


#: What a request waits for whose calls are all in these states.
_WAITS: Final[Mapping[CallState, str]] = {
    CallState.AWAITING_APPROVAL: "the approval of",
    CallState.DEFERRED: "the result of",
}


def pending(calls: Iterable[tuple[Tag, ToolCall, CallState]]) -> tuple[PendingCall, ...]:
    """Those of these calls that have no result yet."""
    return tuple(
        PendingCall(tag.call_id, call.name, state) for tag, call, state in calls if state not in TERMINAL_CALL_STATES
    )


def state_of(calls: tuple[PendingCall, ...], *, has_started: bool, has_finished: bool) -> OpenState:
    """What a request is at that has these calls open."""
    if not has_started:
        return OpenState.STARTING
    if has_finished:
        return OpenState.ENDING
    if not calls:
        return OpenState.CALLING_MODEL
    return OpenState.WAITING if all(call.state in _WAITS for call in calls) else OpenState.RUNNING_TOOLS


def waits_for(calls: tuple[PendingCall, ...]) -> str:
    """In words, what the calls wait for; "" where none waits for someone outside."""
    found = [f"{_WAITS[call.state]} {call.name} ({call.call_id})" for call in calls if call.state in _WAITS]
    return ", ".join(found)

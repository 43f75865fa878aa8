"""The machine: which event is legal in which state, and which guard leads from there to which next state.

Three rules of this file. An absent key is an illegal event: `ProtocolError`, and the state stays as it was. A row names
its guards, plain functions over what is known of the request or call once the event was taken in; exactly one of them
holds. Nothing but these tables changes a state: `machine.py` and `step.py` take an event in, ask the row which guard
holds, and then do what belongs to it. docs/protocol.md draws its diagrams from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from callboard.protocol import events
from callboard.protocol.commands import Outcome
from callboard.protocol.events import Event
from callboard.protocol.limits import MAX_CALL_SENDS
from callboard.protocol.output import AnswerCall
from callboard.protocol.tools import Decision


class RequestState(StrEnum):
    """Where a request is."""

    NEW = "new"
    CALLING_MODEL = "calling_model"
    """One model call is open, and no tool call."""
    RUNNING_TOOLS = "running_tools"
    """At least one call of the step is open, and no model call (I4)."""
    FINISHED = "finished"


class CallState(StrEnum):
    """Where a call is."""

    REQUESTED = "requested"
    """The model asked; nothing has been decided yet. No call rests in this state."""
    AWAITING_APPROVAL = "awaiting_approval"
    SENT = "sent"
    """The dispatcher has it; its code has not begun to run."""
    RUNNING = "running"
    """From here on the outcome matters."""
    DEFERRED = "deferred"
    """Its code has ended; its result comes from outside."""
    OUTSIDE = "outside"
    """It is for the one who has asked, and waits for the other calls of its step: then it is handed out."""
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DENIED = "denied"
    HANDED_OUT = "handed_out"
    """The request has ended by it: the one who has asked answers it, with the next request."""


#: A call in one of these has its one result (I1).
TERMINAL_CALL_STATES = frozenset(
    {
        CallState.COMPLETED,
        CallState.FAILED,
        CallState.TIMED_OUT,
        CallState.CANCELLED,
        CallState.DENIED,
        CallState.HANDED_OUT,
    }
)

#: A call in one of these waits for someone outside. While all open calls of a step do, the request's time stands still.
WAITING_CALL_STATES = frozenset({CallState.AWAITING_APPROVAL, CallState.DEFERRED, CallState.OUTSIDE})


class RequestFacts(Struct):
    """What is known of a request when an event has been taken in."""

    open_calls: int = 0
    """Calls of the current step without a result."""
    outcome: Outcome | None = None
    """How the request ends; None while it does not."""


class CallFacts(Struct, eq=False):
    """What is known of a call when an event has been taken in."""

    decision: Decision | None
    """The policy's decision on its tool; None: no such tool is offered."""
    is_whole: bool
    """Its arguments are a JSON object, and the model finished them (I12)."""
    repeats: bool
    """The same call came to the same result as often in a row as is allowed."""
    ends_run: bool
    """A call of its turn came once more after that, which ends the request."""
    may_repeat: bool
    """Its tool's effect allows a second run of a call that had begun."""
    max_runs: int
    is_outside: bool = False
    """Its tool is one of the asker's own, which is never run here."""
    sends: int = 0
    """How often it was handed to a dispatcher."""
    runs: int = 0
    """How often its code has begun to run."""
    result_is_sound: bool = True
    """Its result is within the limit on its size."""
    is_overdue: bool = False
    """The time that it may wait for someone outside is over."""
    answer: AnswerCall | None = None
    """It is a call of the output tool, or about deferred tools, and what becomes of it; its tool is not on offer."""
    writes_mask: bool = False
    """Its tool does more than read, and its arguments hold a mask (masking.py)."""


def always(facts: object) -> bool:
    """The event alone decides."""
    return True


# Guards of a request.


def goes_on(request: RequestFacts) -> bool:
    """Nothing ends the request."""
    return request.outcome is None


def calls_open(request: RequestFacts) -> bool:
    """A call of the step has no result yet."""
    return request.outcome is None and request.open_calls > 0


def model_due(request: RequestFacts) -> bool:
    """No call is open, and the limits allow the next model call (or the same one again)."""
    return request.outcome is None and not request.open_calls


def limit_reached(request: RequestFacts) -> bool:
    """The next model call would pass the limit on steps, tokens or cost."""
    return request.outcome in _LIMITS


def answered(request: RequestFacts) -> bool:
    """The turn holds the answer, and no call of it is open."""
    return request.outcome is Outcome.ANSWERED


def handed_out(request: RequestFacts) -> bool:
    """The calls of the step that are still open are for the one who has asked."""
    return request.outcome is Outcome.CALLS_OUTSIDE


def failed(request: RequestFacts) -> bool:
    """The turn is of no use, or its answer does not fit, and it may not be asked for again."""
    return request.outcome is Outcome.FAILED


def repeats_itself(request: RequestFacts) -> bool:
    """The model sent the same call once more after it was told to stop that."""
    return request.outcome is Outcome.REPEATED_CALLS


def out_of_time(request: RequestFacts) -> bool:
    """The request's own deadline has passed."""
    return request.outcome is Outcome.TIMED_OUT


_LIMITS: Final = frozenset({Outcome.STEP_LIMIT, Outcome.TOKEN_LIMIT, Outcome.COST_LIMIT})


# Guards of a call.


def repeated(call: CallFacts) -> bool:
    """The same call came to the same result too often in a row: it is not run."""
    return call.repeats


def run_ended(call: CallFacts) -> bool:
    """Another call of the turn repeated itself, which ends the request: this one is not run either."""
    return call.ends_run and not call.repeats and call.answer is None


def unknown_tool(call: CallFacts) -> bool:
    """No tool of this name is offered."""
    return call.decision is None and call.answer is None and not (call.repeats or call.ends_run)


def answers(call: CallFacts) -> bool:
    """It is the output tool's, and holds the answer, or one that is not needed; or it has searched for tools."""
    return call.answer in _ANSWERS


def answers_wrongly(call: CallFacts) -> bool:
    """It is the output tool's or the search tool's, and its arguments do not fit; or its tool is not shown yet."""
    return call.answer is AnswerCall.UNFIT


def not_whole(call: CallFacts) -> bool:
    """Its arguments were cut off, or are not a JSON object."""
    return call.decision is not None and not (call.is_whole or call.repeats or call.ends_run)


def holds_mask(call: CallFacts) -> bool:
    """Its tool does more than read, and its arguments hold a mask in place of a key: it would lose the key."""
    return call.writes_mask and not call.is_outside and call.decision in _MAY_RUN and _is_sound(call)


def is_outside(call: CallFacts) -> bool:
    """It is for the one who has asked."""
    return call.is_outside and call.decision is Decision.ALLOW and _is_sound(call)


def allowed(call: CallFacts) -> bool:
    """The policy lets it run."""
    return call.decision is Decision.ALLOW and not (call.writes_mask or call.is_outside) and _is_sound(call)


def must_ask(call: CallFacts) -> bool:
    """The policy lets a person decide."""
    return call.decision is Decision.ASK and not call.writes_mask and _is_sound(call)


def denied(call: CallFacts) -> bool:
    """The policy denies it."""
    return call.decision is Decision.DENY and _is_sound(call)


def _is_sound(call: CallFacts) -> bool:
    return call.is_whole and not (call.repeats or call.ends_run)


_ANSWERS: Final = frozenset({AnswerCall.TAKEN, AnswerCall.SPARE, AnswerCall.FOUND})
_MAY_RUN: Final = frozenset({Decision.ALLOW, Decision.ASK})


def may_be_sent(call: CallFacts) -> bool:
    """It has not begun, and was not yet sent as often as a call may be."""
    return call.sends < MAX_CALL_SENDS


def sent_too_often(call: CallFacts) -> bool:
    """It was lost each time that it was sent, before it began."""
    return not may_be_sent(call)


def may_run_again(call: CallFacts) -> bool:
    """It had begun; its tool's effect allows that it is run again, and it has not run as often as it may."""
    return call.may_repeat and call.runs < call.max_runs and may_be_sent(call)


def outcome_unknown(call: CallFacts) -> bool:
    """It had begun, and must not be run again."""
    return not may_run_again(call)


def sound_result(call: CallFacts) -> bool:
    """Its result is within the limit on its size."""
    return call.result_is_sound


def unsound_result(call: CallFacts) -> bool:
    """Its result is too large."""
    return not call.result_is_sound


def waited_in_vain(call: CallFacts) -> bool:
    """Its own time to wait for a person is over."""
    return call.is_overdue


def given_up(call: CallFacts) -> bool:
    """The request's time is over, and the call's own is not."""
    return not call.is_overdue


# The tables.

#: A row: each guard and where it leads.
RequestGuard = Callable[[RequestFacts], bool]
CallGuard = Callable[[CallFacts], bool]
CallRow = tuple[tuple[CallGuard, CallState], ...]
RequestTable = Mapping[RequestState, Mapping[type[Event], tuple[tuple[RequestGuard, RequestState], ...]]]
CallTable = Mapping[CallState, Mapping[type[Event], CallRow]]

_TO_MODEL = (model_due, RequestState.CALLING_MODEL)
_TO_TOOLS = (calls_open, RequestState.RUNNING_TOOLS)
_AT_LIMIT = (limit_reached, RequestState.FINISHED)
_FAILED = (failed, RequestState.FINISHED)
_OUT_OF_TIME = (out_of_time, RequestState.FINISHED)
_STAYS = (goes_on, RequestState.CALLING_MODEL)
_CANCELLED = ((always, RequestState.FINISHED),)
_ANSWERED = (answered, RequestState.FINISHED)
_HANDED_OUT = (handed_out, RequestState.FINISHED)
#: The last two: the turn had an answer beside its calls, which fits, or does not and is the last that may be given.
_CALL_ENDED = (_TO_TOOLS, _TO_MODEL, _AT_LIMIT, _ANSWERED, _FAILED, _HANDED_OUT)
#: To tools: the model was asked for further words to search by, and the calls that waited for them begin without.
_MODEL_ENDED = (_TO_MODEL, _TO_TOOLS, _FAILED, _AT_LIMIT)

REQUEST_TRANSITIONS: RequestTable = MappingProxyType(
    {
        RequestState.NEW: {
            events.RequestStarted: (_TO_MODEL, _AT_LIMIT),
        },
        RequestState.CALLING_MODEL: {
            # FAILED: the answer is longer than any answer may be.
            events.ModelStreamed: (_STAYS, _FAILED),
            events.ModelNoted: (_STAYS,),
            events.ModelResponded: (
                _TO_TOOLS,
                _TO_MODEL,
                _ANSWERED,
                _FAILED,
                _HANDED_OUT,
                (repeats_itself, RequestState.FINISHED),
                _AT_LIMIT,
            ),
            events.ModelFailed: _MODEL_ENDED,
            events.ModelLost: _MODEL_ENDED,
            events.NoticeCame: (_STAYS,),
            events.CancelRequested: _CANCELLED,
            # The timer fired early: it is set again.
            events.DeadlinePassed: (_OUT_OF_TIME, _STAYS),
        },
        RequestState.RUNNING_TOOLS: {
            events.ApprovalGranted: (_TO_TOOLS,),
            events.ApprovalDenied: _CALL_ENDED,
            events.ToolCallStarted: (_TO_TOOLS,),
            events.ToolCallDeferred: (_TO_TOOLS,),
            events.ToolCallCompleted: _CALL_ENDED,
            events.ToolCallFailed: _CALL_ENDED,
            events.ToolCallTimedOut: _CALL_ENDED,
            events.ToolCallCancelled: _CALL_ENDED,
            events.ToolsLost: _CALL_ENDED,
            events.NoticeCame: (_TO_TOOLS,),
            events.CancelRequested: _CANCELLED,
            events.DeadlinePassed: (_OUT_OF_TIME, *_CALL_ENDED),
        },
        RequestState.FINISHED: {},
    }
)


def _leads_to(state: CallState) -> CallRow:
    return ((always, state),)


#: What ends any open call: the request is cancelled, or the call's own or the request's deadline has passed.
_ENDS_ANY_CALL: Mapping[type[Event], CallRow] = {
    events.CancelRequested: _leads_to(CallState.CANCELLED),
    events.DeadlinePassed: _leads_to(CallState.TIMED_OUT),
}
#: The result of a call, or why it has none: from what holds it, or, where it is deferred, from outside.
_RESULTS: Mapping[type[Event], CallRow] = {
    events.ToolCallCompleted: ((sound_result, CallState.COMPLETED), (unsound_result, CallState.FAILED)),
    events.ToolCallFailed: _leads_to(CallState.FAILED),
}
#: What the dispatcher says of a call it holds.
_OUTCOMES: Mapping[type[Event], CallRow] = {
    **_RESULTS,
    events.ToolCallDeferred: _leads_to(CallState.DEFERRED),
    events.ToolCallTimedOut: _leads_to(CallState.TIMED_OUT),
    events.ToolCallCancelled: _leads_to(CallState.CANCELLED),
}

CALL_TRANSITIONS: CallTable = MappingProxyType(
    {
        CallState.REQUESTED: {
            events.ModelResponded: (
                (allowed, CallState.SENT),
                (must_ask, CallState.AWAITING_APPROVAL),
                (is_outside, CallState.OUTSIDE),
                (denied, CallState.DENIED),
                (answers, CallState.COMPLETED),
                (answers_wrongly, CallState.FAILED),
                (unknown_tool, CallState.FAILED),
                (not_whole, CallState.FAILED),
                (holds_mask, CallState.FAILED),
                (repeated, CallState.FAILED),
                (run_ended, CallState.CANCELLED),
            ),
        },
        CallState.AWAITING_APPROVAL: {
            events.ApprovalGranted: _leads_to(CallState.SENT),
            events.ApprovalDenied: _leads_to(CallState.DENIED),
            events.ToolsLost: _leads_to(CallState.AWAITING_APPROVAL),
            events.CancelRequested: _leads_to(CallState.CANCELLED),
            events.DeadlinePassed: ((waited_in_vain, CallState.DENIED), (given_up, CallState.TIMED_OUT)),
        },
        CallState.SENT: {
            events.ToolCallStarted: _leads_to(CallState.RUNNING),
            events.ToolsLost: ((may_be_sent, CallState.SENT), (sent_too_often, CallState.FAILED)),
            **_OUTCOMES,
            **_ENDS_ANY_CALL,
        },
        CallState.RUNNING: {
            events.ToolsLost: ((may_run_again, CallState.SENT), (outcome_unknown, CallState.FAILED)),
            **_OUTCOMES,
            **_ENDS_ANY_CALL,
        },
        CallState.DEFERRED: {
            # Nothing that was lost held it.
            events.ToolsLost: _leads_to(CallState.DEFERRED),
            **_RESULTS,
            **_ENDS_ANY_CALL,
        },
        # Handed out by what ends the last other call of the step.
        CallState.OUTSIDE: {events.ToolsLost: _leads_to(CallState.OUTSIDE), **_ENDS_ANY_CALL},
        **{state: {} for state in CallState if state in TERMINAL_CALL_STATES},
    }
)

"""The calls of one step: each begins and ends once (I1), and their results keep the order of the turn (I3)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Final

import orjson

from callboard.protocol.commands import (
    AskApproval,
    CancelTool,
    ClearTimer,
    Command,
    RunTool,
    SetTimer,
    WithdrawApproval,
)
from callboard.protocol.content import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage
from callboard.protocol.events import (
    ApprovalDenied,
    CancelRequested,
    DeadlinePassed,
    ModelResponded,
    ToolCallCancelled,
    ToolCallFailed,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import (
    CALL_BACKSTOP_SECONDS,
    CLOCK_TOLERANCE_SECONDS,
    ERROR_SNIPPET_CHARS,
    MAX_CALL_SENDS,
)
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CALL_TRANSITIONS, TERMINAL_CALL_STATES, CallState
from callboard.protocol.tools import Decision, FailureCode, ToolFailure
from callboard.protocol.turn import AskedCall, Turn

CallFailure = ApprovalDenied | ToolCallFailed | ToolCallTimedOut | ToolCallCancelled
"""The events by which a call ends without a result of its tool."""


def failed_result(call: ToolCall, failure: ToolFailure) -> ToolMessage:
    """The failure as the model reads it, in the place of the call's result."""
    return ToolMessage(call.call_id, call.name, _json(failure.to_wire()), is_error=True)


def call_end(event: CallFailure, name: ToolName) -> tuple[CallState, ToolFailure]:
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
    wrong = "were cut off or are not a JSON object"
    if numbers := _numbers_not_finite(received):
        wrong = f"contain {numbers[0][:ERROR_SNIPPET_CHARS]}, which is not a finite number"
    return ToolFailure(
        name,
        FailureCode.INCOMPLETE_CALL,
        f"The arguments {wrong}; the call was not run.",
        expected="a JSON object",
        received=received[:ERROR_SNIPPET_CHARS],
        retry_hint="Send the call again, with all its arguments; make them shorter if they were cut off.",
    )


def _numbers_not_finite(text: str) -> list[str]:
    """NaN, infinities and numbers too large for a double in a text that is JSON but for them."""
    found: list[str] = []
    try:
        json.loads(text, parse_constant=found.append, parse_float=lambda number: _note_infinite(number, found))
    except (ValueError, RecursionError):
        return []
    return found


def _note_infinite(number: str, found: list[str]) -> None:
    if math.isinf(float(number)):
        found.append(number)


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


Signature = tuple[ToolName, str]
"""A tool and its arguments, in canonical JSON."""


class Repetition(Enum):
    """What to do about a call that came before."""

    NONE = auto()
    TELL = auto()
    """The call is not run; the model is told that it repeats itself."""
    STOP = auto()
    """It was told, and asked again: the run ends."""


class Repeats:
    """Counts in how many steps in a row each call was asked; a step without it begins anew.

    Asked twice in one step, it is two calls and no repetition, since neither could know of the other.
    """

    __slots__ = ("_counts", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[Signature, int] = {}

    def next_step(self, signatures: list[Signature]) -> list[Repetition]:
        """What to do about each call of the next step."""
        self._counts = {signature: self._counts.get(signature, 0) + 1 for signature in signatures}
        return [self._judge(self._counts[signature]) for signature in signatures]

    def _judge(self, steps_in_a_row: int) -> Repetition:
        if not self._limit or steps_in_a_row < self._limit:
            return Repetition.NONE
        return Repetition.TELL if steps_in_a_row == self._limit else Repetition.STOP


class OpenCall:
    """One call and where it stands."""

    __slots__ = ("call", "deadline_at", "offer", "result", "runs", "sends", "state", "tag")

    def __init__(self, tag: Tag, call: ToolCall, offer: ToolOffer | None) -> None:
        self.tag = tag
        self.call = call
        self.offer = offer
        self.state = CallState.REQUESTED
        self.deadline_at: float | None = None
        """None before it is sent: waiting for a person has no deadline but the request's."""
        self.runs = 0
        self.sends = 0
        self.result: ToolMessage | None = None

    def enter(self, event: type[Any], state: CallState) -> None:
        """Change state, as the table allows and no other way."""
        if state not in CALL_TRANSITIONS[self.state].get(event, ()):
            raise AssertionError(f"{event.__name__} cannot lead a call from {self.state} to {state}")
        self.state = state

    @property
    def effect_id(self) -> str:
        """The same for each run of this very call."""
        return f"{self.tag.request_id}/{self.tag.step}/{self.tag.call_id}"


class Batch:
    """The calls of one step. Commands come back as lists; the batch is closed when `open` is 0."""

    __slots__ = ("_message", "_notes", "_request_deadline_at", "_tag", "_timer_at", "calls", "open")

    def __init__(self, tag: Tag, message: AssistantMessage, request_deadline_at: float, notes: tuple[str, ...]) -> None:
        self._tag = tag
        self._message = message
        self._request_deadline_at = request_deadline_at
        self._notes = notes
        self._timer_at: float | None = None
        self.calls: dict[Tag, OpenCall] = {}
        self.open = 0

    def add(self, call: ToolCall, offer: ToolOffer | None) -> OpenCall:
        """A call of the turn, in the turn's order; it counts as open until it has its result."""
        opened = OpenCall(self._tag.for_call(call.call_id), call, offer)
        self.calls[opened.tag] = opened
        self.open += 1
        return opened

    def send(self, call: OpenCall, event: type[Any], at: float) -> RunTool:
        """Hand a call to the dispatcher; its time begins now."""
        assert call.offer is not None
        call.enter(event, CallState.SENT)
        call.sends += 1
        deadline_at = min(at + call.offer.contract.timeout_seconds, self._request_deadline_at)
        call.deadline_at = deadline_at
        return RunTool(call.tag, call.call.name, call.call.arguments, deadline_at, call.effect_id)

    def ask(self, call: OpenCall, event: type[Any]) -> AskApproval:
        """Ask a person; the call has no deadline of its own while it waits."""
        assert call.offer is not None
        call.enter(event, CallState.AWAITING_APPROVAL)
        return AskApproval(call.tag, call.call.name, call.call.arguments, call.offer.contract.risk)

    def complete(self, call: OpenCall, event: type[Any], content: str) -> None:
        """The call has its result."""
        self._end(call, event, CallState.COMPLETED, ToolMessage(call.call.call_id, call.call.name, content))

    def fail(self, call: OpenCall, event: type[Any], state: CallState, failure: ToolFailure) -> None:
        """The call has a failure for its result; `state` says which kind of end it was."""
        self._end(call, event, state, failed_result(call.call, failure))

    def watch(self) -> list[Command]:
        """Set the step's one timer where the next call to run late has none yet.

        One timer a step, not one a call: it fires at the earliest deadline, and is set anew for the next.
        """
        deadlines = [call.deadline_at for call in self.open_calls() if call.deadline_at is not None]
        if not deadlines:
            return []
        due = min(deadlines) + CALL_BACKSTOP_SECONDS
        if self._timer_at is not None and self._timer_at <= due:
            return []
        self._timer_at = due
        return [SetTimer(self._tag, due)]

    def expire(self, at: float) -> list[Command]:
        """The step's timer fired: end the calls that nobody ended at their deadline. Fired early, it is set again."""
        now = at + CLOCK_TOLERANCE_SECONDS
        self._timer_at = None
        commands: list[Command] = []
        for call in self.open_calls():
            if call.deadline_at is not None and call.deadline_at + CALL_BACKSTOP_SECONDS <= now:
                failure = timed_out(call.call.name, "the deadline passed.")
                self.fail(call, DeadlinePassed, CallState.TIMED_OUT, failure)
                commands.append(CancelTool(call.tag, "timed out"))
        return commands + self.watch()

    def resend(self, at: float, max_runs: int) -> list[Command]:
        """Whoever held the calls is gone: what has not begun is sent again, what has follows the tool's word."""
        commands: list[Command] = []
        for call in self.open_calls():
            assert call.offer is not None
            if call.state is CallState.AWAITING_APPROVAL:
                commands.append(self.ask(call, ToolsLost))
                continue
            unstarted = call.state is CallState.SENT
            may_run = unstarted or (call.offer.contract.idempotent and call.runs < max_runs)
            if may_run and call.sends < MAX_CALL_SENDS:
                commands.append(self.send(call, ToolsLost, at))
            else:
                failure = (never_started if unstarted else outcome_unknown)(call.call.name)
                self.fail(call, ToolsLost, CallState.FAILED, failure)
        # After a crash the timer is gone: set it again, or clear it where no call is left to watch.
        cleared = self.clear()
        return commands + (self.watch() or cleared)

    def abandon(self, event: type[CancelRequested] | type[DeadlinePassed], why: str) -> list[Command]:
        """The request ends: each open call gets its result, and whoever holds it is told to stop."""
        commands: list[Command] = []
        for call in self.open_calls():
            waiting = call.state is CallState.AWAITING_APPROVAL
            commands.append(WithdrawApproval(call.tag) if waiting else CancelTool(call.tag, why))
            if event is CancelRequested:
                self.fail(call, event, CallState.CANCELLED, cancelled(call.call.name, why))
            else:
                self.fail(call, event, CallState.TIMED_OUT, timed_out(call.call.name, why))
        return commands + self.clear()

    def refuse_rest(self, why: str) -> None:
        """The turn itself ends the run: calls not yet decided get their result without ever being sent."""
        for call in self.open_calls():
            self.fail(call, ModelResponded, CallState.CANCELLED, cancelled(call.call.name, why))

    def clear(self) -> list[Command]:
        """Take the step's timer away."""
        if self._timer_at is None:
            return []
        self._timer_at = None
        return [ClearTimer(self._tag)]

    def open_calls(self) -> list[OpenCall]:
        return [call for call in self.calls.values() if call.result is None]

    def messages(self) -> tuple[Message, ...]:
        """The finished step: the turn, its results in the turn's order, then the notes."""
        results = [call.result for call in self.calls.values() if call.result is not None]
        return (self._message, *results, *(SystemMessage(note) for note in self._notes))

    def _end(self, call: OpenCall, event: type[Any], state: CallState, result: ToolMessage) -> None:
        call.enter(event, state)
        if state not in TERMINAL_CALL_STATES:
            raise AssertionError(f"{state} is not the end of a call")
        call.result = result
        self.open -= 1


#: The tag of a session before it knows whose it is.
NOBODY: Final = Tag(RequestId(""), MessageId(""))
#: The batch of a session that runs no tools: nothing is ever added to it.
NO_CALLS: Final = Batch(NOBODY, AssistantMessage(()), 0.0, ())


def open_calls(
    batch: Batch, turn: Turn, offers: Mapping[ToolName, ToolOffer], repeats: Repeats, limit: int, at: float
) -> tuple[list[Command], bool]:
    """Begin every call of the turn, in its order; True when a repetition must end the run, and then nothing is sent."""
    opened = [(asked, batch.add(asked.call, offers.get(asked.call.name))) for asked in turn.calls]
    found = repeats.next_step([_signature(asked) for asked in turn.calls])
    if Repetition.STOP in found:
        for (asked, call), repetition in zip(opened, found, strict=True):
            if repetition is not Repetition.NONE:
                _fail(batch, call, CallState.FAILED, repeated_call(asked.call.name, limit))
        batch.refuse_rest("another call of the turn repeated itself, which ended the run.")
        return [], True
    commands: list[Command] = []
    for (asked, call), repetition in zip(opened, found, strict=True):
        if repetition is Repetition.TELL:
            _fail(batch, call, CallState.FAILED, repeated_call(asked.call.name, limit))
        else:
            commands += _begin(batch, asked, call, offers, at)
    return commands + batch.watch(), False


def _signature(asked: AskedCall) -> tuple[ToolName, str]:
    return asked.call.name, asked.received if asked.arguments is None else asked.arguments


def _begin(
    batch: Batch, asked: AskedCall, call: OpenCall, offers: Mapping[ToolName, ToolOffer], at: float
) -> list[Command]:
    name = asked.call.name
    if call.offer is None:
        _fail(batch, call, CallState.FAILED, unknown_tool(name, list(offers)))
    elif asked.arguments is None:
        _fail(batch, call, CallState.FAILED, incomplete_call(name, asked.received))
    elif call.offer.decision is Decision.ALLOW:
        return [batch.send(call, ModelResponded, at)]
    elif call.offer.decision is Decision.ASK:
        return [batch.ask(call, ModelResponded)]
    else:
        _fail(batch, call, CallState.DENIED, denied(name, "the owner of this runtime denies such calls."))
    return []


def _fail(batch: Batch, call: OpenCall, state: CallState, failure: ToolFailure) -> None:
    batch.fail(call, ModelResponded, state, failure)

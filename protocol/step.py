"""The calls of one step: each begins and ends once (I1), and their results keep the order of the turn (I3).

First how each call of a turn begins and ends, then the loop detection, then the failures that the session itself
reports to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from callboard.protocol import events, states
from callboard.protocol.commands import (
    AskApproval,
    CancelTool,
    ClearTimer,
    Command,
    RunTool,
    SetTimer,
    WithdrawApproval,
)
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    bad_number,
    byte_size,
    json_text,
)
from callboard.protocol.events import Event
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.limits import (
    CALL_BACKSTOP_SECONDS,
    CLOCK_TOLERANCE_SECONDS,
    ERROR_SNIPPET_CHARS,
    MAX_RESULT_BYTES,
)
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CALL_TRANSITIONS, CallFacts, CallGuard, CallState
from callboard.protocol.tools import FailureCode, ToolFailure
from callboard.protocol.turn import AskedCall, Turn

CallFailure = events.ApprovalDenied | events.ToolCallFailed | events.ToolCallTimedOut | events.ToolCallCancelled
"""The events by which a call ends without a result of its tool."""


@dataclass(slots=True, eq=False)
class OpenCall(CallFacts):
    """One call, what is known of it, and where it is."""

    tag: Tag
    call: ToolCall
    asked: AskedCall
    offer: ToolOffer | None
    state: CallState = field(default=CallState.REQUESTED, init=False)
    deadline_at: float | None = field(default=None, init=False)
    """None before it is sent: waiting for a person has no deadline but the request's."""
    result: ToolMessage | None = field(default=None, init=False)

    def enter(self, event: type[Event]) -> CallGuard:
        """Change state as the table says, and tell which guard led there."""
        for guard, state in CALL_TRANSITIONS[self.state][event]:
            if guard(self):
                self.state = state
                return guard
        raise AssertionError(f"{event.__name__} leads nowhere: {self}")

    def begin_running(self) -> None:
        """Its code has begun to run."""
        self.enter(events.ToolCallStarted)
        self.runs += 1

    @property
    def effect_id(self) -> str:
        """The same for each run of this very call."""
        return f"{self.tag.request_id}/{self.tag.step}/{self.tag.call_id}"


@dataclass(slots=True, eq=False)
class Batch:
    """The calls of one step. Commands come back as lists; the batch is closed when `open` is 0."""

    _tag: Tag
    _message: AssistantMessage
    _request_deadline_at: float
    _notes: tuple[str, ...]
    _max_runs: int
    _timer_at: float | None = field(default=None, init=False)
    calls: dict[Tag, OpenCall] = field(default_factory=dict, init=False)
    open: int = field(default=0, init=False)
    ends_run: bool = field(default=False, init=False)
    """A call repeated itself once too often: none of the turn was sent, and the request ends."""

    @property
    def has_timer(self) -> bool:
        """Whether the step's timer is set."""
        return self._timer_at is not None

    # How calls begin.

    def begin(self, turn: Turn, offers: Mapping[ToolName, ToolOffer], repeats: Repeats, at: float) -> list[Command]:
        """Begin every call of the turn, in its order: sent, asked about, or ended at once with the reason."""
        counts = repeats.next_step([_signature(asked) for asked in turn.calls])
        self.ends_run = repeats.ends_run(counts)
        for asked, count in zip(turn.calls, counts, strict=True):
            self._add(asked, offers.get(asked.call.name), repeats.is_repeated(count))
        commands: list[Command] = []
        for call in list(self.calls.values()):
            guard = call.enter(events.ModelResponded)
            if guard is states.allowed:
                commands.append(self._send(call, at))
            elif guard is states.must_ask:
                commands.append(self._ask(call))
            else:
                self._close(call, _REFUSALS[guard](call, offers, repeats))
        return commands + self._watch()

    def _add(self, asked: AskedCall, offer: ToolOffer | None, repeats: bool) -> None:
        idempotent = offer is not None and offer.contract.idempotent
        call = OpenCall(
            offer.decision if offer is not None else None,
            asked.arguments is not None,
            repeats,
            self.ends_run,
            idempotent,
            self._max_runs,
            self._tag.for_call(asked.call.call_id),
            asked.call,
            asked,
            offer,
        )
        self.calls[call.tag] = call
        self.open += 1

    def granted(self, call: OpenCall, at: float) -> list[Command]:
        """A person allowed the call: it is sent."""
        call.enter(events.ApprovalGranted)
        return [self._send(call, at), *self._watch()]

    def _send(self, call: OpenCall, at: float) -> RunTool:
        """Hand a call to the dispatcher; its time begins now."""
        assert call.offer is not None
        call.sends += 1
        deadline_at = min(at + call.offer.contract.timeout_seconds, self._request_deadline_at)
        call.deadline_at = deadline_at
        return RunTool(call.tag, call.call.name, call.call.arguments, deadline_at, call.effect_id)

    @staticmethod
    def _ask(call: OpenCall) -> AskApproval:
        assert call.offer is not None
        return AskApproval(call.tag, call.call.name, call.call.arguments, call.offer.contract.risk)

    # How calls end.

    def complete(self, call: OpenCall, event: events.ToolCallCompleted) -> None:
        """The call has its result; one that may not be handed to a model becomes a failure that says why."""
        failure = result_fault(call.call.name, event.content)
        call.result_is_sound = failure is None
        call.enter(events.ToolCallCompleted)
        self._close(call, failure or event.content)

    def end(self, call: OpenCall, event: CallFailure) -> None:
        """The call has a failure for its result."""
        call.enter(type(event))
        self._close(call, _failure_of(event, call.call.name))

    def _close(self, call: OpenCall, result: ToolFailure | str) -> None:
        if isinstance(result, str):
            call.result = ToolMessage(call.call.call_id, call.call.name, result)
        else:
            call.result = failed_result(call.call, result)
        self.open -= 1

    def _watch(self) -> list[Command]:
        """Set the step's one timer where the next call to run late has none yet.

        One timer a step, not one a call: it fires at the earliest deadline, and is then set for the next.
        """
        deadlines = [call.deadline_at for call in self._open_calls() if call.deadline_at is not None]
        if not deadlines:
            return []
        due = min(deadlines) + CALL_BACKSTOP_SECONDS
        if self._timer_at is not None and self._timer_at <= due:
            return []
        self._timer_at = due
        return [SetTimer(self._tag, due)]

    def expire(self, at: float) -> list[Command]:
        """The step's timer fired: end the calls that should have ended. Fired early, it is set again."""
        now = at + CLOCK_TOLERANCE_SECONDS
        self._timer_at = None
        commands: list[Command] = []
        for call in self._open_calls():
            if call.deadline_at is not None and call.deadline_at + CALL_BACKSTOP_SECONDS <= now:
                call.enter(events.DeadlinePassed)
                self._close(call, timed_out(call.call.name, "the deadline passed."))
                commands.append(CancelTool(call.tag, "timed out"))
        return commands + self._watch()

    def resend(self, at: float) -> list[Command]:
        """What held the calls is gone: send again what has not begun, and what has where its tool allows that."""
        commands: list[Command] = []
        for call in self._open_calls():
            guard = call.enter(events.ToolsLost)
            if call.state is CallState.AWAITING_APPROVAL:
                commands.append(self._ask(call))
            elif call.state is CallState.SENT:
                commands.append(self._send(call, at))
            else:
                failure = never_started if guard is states.sent_too_often else outcome_unknown
                self._close(call, failure(call.call.name))
        # After a crash the timer is gone: set it again, or clear it where no call is left to watch.
        cleared = self.clear()
        return commands + (self._watch() or cleared)

    def abandon(self, event: type[events.CancelRequested] | type[events.DeadlinePassed], why: str) -> list[Command]:
        """The request ends: give each open call its result, and stop it."""
        commands: list[Command] = []
        failure = cancelled if event is events.CancelRequested else timed_out
        for call in self._open_calls():
            waiting = call.state is CallState.AWAITING_APPROVAL
            commands.append(WithdrawApproval(call.tag) if waiting else CancelTool(call.tag, why))
            call.enter(event)
            self._close(call, failure(call.call.name, why))
        return commands + self.clear()

    def clear(self) -> list[Command]:
        """Take the step's timer away."""
        if self._timer_at is None:
            return []
        self._timer_at = None
        return [ClearTimer(self._tag)]

    def _open_calls(self) -> list[OpenCall]:
        return [call for call in self.calls.values() if call.result is None]

    def messages(self) -> tuple[Message, ...]:
        """The finished step: the turn, its results in the turn's order, then the notes."""
        results = [call.result for call in self.calls.values() if call.result is not None]
        return (self._message, *results, *(SystemMessage(note) for note in self._notes))


#: The tag of a session before it knows whose it is.
NO_REQUEST: Final = Tag(RequestId(""), MessageId(""))
#: The batch of a session that runs no tools: nothing is ever added to it.
NO_CALLS: Final = Batch(NO_REQUEST, AssistantMessage(()), 0.0, (), 0)


# Loop detection: the same call with the same arguments, step after step.

Signature = tuple[ToolName, str]
"""A tool and its arguments, in canonical JSON."""


def _signature(asked: AskedCall) -> Signature:
    return asked.call.name, asked.received if asked.arguments is None else asked.arguments


class Repeats:
    """Counts in how many steps in a row each call was asked; after a step without it, it is counted from 1 again.

    Asked twice in one step, it is two calls and no repetition, since neither could know of the other. A first call
    repeats nothing, so a limit of 1 is the same as 2; 0 is no limit.
    """

    __slots__ = ("_counts", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 2) if limit else 0
        self._counts: dict[Signature, int] = {}

    def next_step(self, signatures: list[Signature]) -> list[int]:
        """In how many steps in a row each call of the next step has been asked."""
        self._counts = {signature: self._counts.get(signature, 0) + 1 for signature in signatures}
        return [self._counts[signature] for signature in signatures]

    def is_repeated(self, count: int) -> bool:
        """The call is not run, and its failure says that it repeats itself."""
        return bool(self.limit) and count >= self.limit

    def ends_run(self, counts: list[int]) -> bool:
        """The model was told, and asked again: the request ends."""
        return bool(self.limit) and max(counts, default=0) > self.limit


# Failures: what the session itself reports to the model; each says what was wrong and what to do.


def failed_result(call: ToolCall, failure: ToolFailure) -> ToolMessage:
    """The failure as the model reads it, in the place of the call's result."""
    return ToolMessage(call.call_id, call.name, json_text(failure.to_wire()), is_error=True)


def _failure_of(event: CallFailure, name: ToolName) -> ToolFailure:
    match event:
        case events.ApprovalDenied():
            return denied(name, event.reason or "it was not approved.")
        case events.ToolCallFailed():
            return event.failure
        case events.ToolCallTimedOut():
            return timed_out(name, "the deadline passed.")
        case events.ToolCallCancelled():
            return cancelled(name, "it was stopped.")


def result_fault(name: ToolName, content: str) -> ToolFailure | None:
    """Why this result may not be handed to a model; None when it may."""
    if len(content) * 4 > MAX_RESULT_BYTES and (size := byte_size(content)) > MAX_RESULT_BYTES:
        told = f"The result has {size:,} bytes; {MAX_RESULT_BYTES:,} may be handed on."
        return ToolFailure(name, FailureCode.RESULT_TOO_LARGE, told, retry_hint="Ask for less at a time.")
    if ("NaN" in content or "Infinity" in content) and (found := bad_number(content)):
        told = f"The result contains {found}, which is not a finite number."
        return ToolFailure(name, FailureCode.INVALID_RESULT, told, received=content[:ERROR_SNIPPET_CHARS])
    return None


def unknown_tool(name: ToolName, offered: Iterable[ToolName]) -> ToolFailure:
    """The model called a tool that it was not offered."""
    known, told = ", ".join(sorted(offered)) or "none", f"There is no tool named {name!r}."
    hint = "Call one of the tools you were given."
    received = name[:ERROR_SNIPPET_CHARS]
    return ToolFailure(name, FailureCode.UNKNOWN_TOOL, told, "", f"one of: {known}", received, hint)


def incomplete_call(name: ToolName, received: str, wrong_number: str = "") -> ToolFailure:
    """Half a call, or one with a number that is not JSON: it is never run (I12)."""
    code = FailureCode.INCOMPLETE_CALL
    told = "The arguments were cut off or are not a JSON object; the call was not run."
    hint = "Send the call again, with all its arguments; make them shorter if they were cut off."
    if wrong_number:
        code = FailureCode.INVALID_ARGUMENTS
        told = f"The arguments contain {wrong_number}, which is not a finite number; the call was not run."
        hint = "Send the call again with a number in its place, or null where the tool allows it."
    return ToolFailure(name, code, told, "", "a JSON object", received[:ERROR_SNIPPET_CHARS], hint)


def repeated_call(name: ToolName, limit: int) -> ToolFailure:
    """The same call once too often."""
    told = f"The same call with the same arguments came {limit} times in a row; it was not run again."
    hint = "Use the results you have, change the arguments, or answer. The next repetition ends the run."
    return ToolFailure(name, FailureCode.REPEATED, told, retry_hint=hint)


def denied(name: ToolName, reason: str) -> ToolFailure:
    """Policy or a person said no."""
    hint = "Do not send this call again; go on without it or say that you cannot."
    return ToolFailure(name, FailureCode.DENIED, f"The call was not allowed: {reason}", retry_hint=hint)


def timed_out(name: ToolName, what: str) -> ToolFailure:
    """Its deadline, or that of the request, passed."""
    hint = "It may have had an effect. Ask for less at a time, or go on without it."
    return ToolFailure(name, FailureCode.TIMED_OUT, f"No result: {what}", retry_hint=hint)


def cancelled(name: ToolName, why: str) -> ToolFailure:
    """It was stopped, or never sent."""
    return ToolFailure(name, FailureCode.CANCELLED, f"The call was cancelled: {why}")


def outcome_unknown(name: ToolName) -> ToolFailure:
    """It had begun, and how it ended is not known."""
    told = "The call had begun when the process that ran it was lost; whether it had its effect is not known."
    hint = "Look at what it would have changed before you send it again."
    return ToolFailure(name, FailureCode.OUTCOME_UNKNOWN, told, retry_hint=hint)


def never_started(name: ToolName) -> ToolFailure:
    """It was sent again and again, and never begun."""
    told = "The call was not run: what was to run it was lost each time it was sent."
    hint = "Do not send this call again; change its arguments, or go on without it."
    return ToolFailure(name, FailureCode.CRASHED, told, retry_hint=hint)


_Refusal = Callable[[OpenCall, Mapping[ToolName, ToolOffer], Repeats], ToolFailure]

#: The failure of a call that is ended at once, by the guard that led there.
_REFUSALS: Final[Mapping[CallGuard, _Refusal]] = {
    states.denied: lambda call, _, __: denied(call.call.name, "the owner of this runtime denies such calls."),
    states.unknown_tool: lambda call, offers, _: unknown_tool(call.call.name, offers),
    states.not_whole: lambda call, _, __: incomplete_call(call.call.name, call.asked.received, call.asked.bad_number),
    states.repeated: lambda call, _, repeats: repeated_call(call.call.name, repeats.limit),
    states.run_ended: lambda call, _, __: cancelled(
        call.call.name, "another call of the turn repeated itself, which ended the run."
    ),
}

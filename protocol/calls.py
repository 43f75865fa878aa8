"""The calls of one step: opened together, each ended once (I1), their results in the order of the turn (I3)."""

from __future__ import annotations

from typing import Any, Final

from callboard.protocol import failures
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
from callboard.protocol.events import CancelRequested, DeadlinePassed, ModelResponded, ToolsLost
from callboard.protocol.ids import MessageId, RequestId, Tag
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, CLOCK_TOLERANCE_SECONDS, MAX_CALL_SENDS
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CALL_TRANSITIONS, TERMINAL_CALL_STATES, CallState
from callboard.protocol.tools import ToolFailure


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
        self._end(call, event, state, failures.failed_result(call.call, failure))

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
                failure = failures.timed_out(call.call.name, "the deadline passed.")
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
                failure = (failures.never_started if unstarted else failures.outcome_unknown)(call.call.name)
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
                self.fail(call, event, CallState.CANCELLED, failures.cancelled(call.call.name, why))
            else:
                self.fail(call, event, CallState.TIMED_OUT, failures.timed_out(call.call.name, why))
        return commands + self.clear()

    def refuse_rest(self, why: str) -> None:
        """The turn itself ends the run: calls not yet decided get their result without ever being sent."""
        for call in self.open_calls():
            self.fail(call, ModelResponded, CallState.CANCELLED, failures.cancelled(call.call.name, why))

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

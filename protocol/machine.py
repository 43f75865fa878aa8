"""One request's whole logic, without I/O: events in, commands out. The tables in `states.py` say what is legal.

    session = Session()
    commands = session.apply(RequestStarted(...))      # SetTimer, CallModel
    commands = session.apply(ModelResponded(...))      # RunTool, RunTool, SetTimer
    ...                                                # until a Finish comes out

A session has no clock, no randomness and no memory outside itself: the same events give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from callboard.protocol import events
from callboard.protocol.budgets import Stop
from callboard.protocol.commands import (
    CallModel,
    ClearTimer,
    Command,
    Finish,
    Note,
    Outcome,
    RecordStep,
    SetTimer,
    StopModel,
)
from callboard.protocol.content import AssistantMessage, Message, Text, history_faults
from callboard.protocol.errors import ErrorKind, ProtocolError
from callboard.protocol.events import Event
from callboard.protocol.ids import Tag
from callboard.protocol.limits import CLOCK_TOLERANCE_SECONDS, STREAM_TOTAL_TIMEOUT_SECONDS
from callboard.protocol.model import Error, ModelResponse, Restarted, TextDelta, Usage
from callboard.protocol.options import RequestOptions, ToolFallback
from callboard.protocol.prompt import PromptBuilder, TokenCounter, estimate_tokens
from callboard.protocol.states import CALL_TRANSITIONS, REQUEST_TRANSITIONS, CallState, RequestState
from callboard.protocol.step import NO_CALLS, NOBODY, Batch, CallFailure, OpenCall, Repeats, call_end, open_calls
from callboard.protocol.turn import ASK_AGAIN_KINDS, Turn, Verdict, cut_notes, judge, tidy

_Step = tuple[RequestState, list[Command]]
"""What a handler answers: the next state, and what to do."""


class Session:
    """The protocol of one request. Give a `tag` to fix whose it is; otherwise RequestStarted does."""

    def __init__(self, tag: Tag | None = None, *, count_tokens: TokenCounter = estimate_tokens) -> None:
        self.count_tokens = count_tokens
        self._tag = tag.request if tag is not None else NOBODY
        self._state = RequestState.NEW
        self._step = self._tag
        self._retries = 0
        self._deadline_at = 0.0
        self._options: RequestOptions
        self._prompt: PromptBuilder
        self._repeats: Repeats
        self._batch = NO_CALLS
        self._partial: list[str] = []
        self._has_streamed = False
        self._text = ""
        self._recorded: list[RecordStep] = []
        self._final: tuple[Command, ...] = ()

    @property
    def state(self) -> RequestState:
        return self._state

    @property
    def tag(self) -> Tag:
        """The request's tag; empty until it started."""
        return self._tag

    @property
    def step(self) -> Tag:
        """The tag of the current model call; each model call has a number of its own, repeated ones too."""
        return self._step

    @property
    def deadline_at(self) -> float:
        """When the request ends at the latest, by the runtime's clock."""
        return self._deadline_at

    @property
    def usage(self) -> Usage:
        return self._prompt.spent.usage if self._state is not RequestState.NEW else Usage()

    @property
    def cost(self) -> float:
        """US dollars so far."""
        return self._prompt.spent.cost if self._state is not RequestState.NEW else 0.0

    @property
    def calls(self) -> dict[Tag, CallState]:
        """The calls of the current step, and where each stands."""
        return {tag: call.state for tag, call in self._batch.calls.items()}

    @property
    def recorded(self) -> tuple[Message, ...]:
        """What this request has added to the conversation so far: whole steps only."""
        return tuple(message for step in self._recorded for message in step.messages)

    # Applying events.

    def apply(self, event: Event) -> tuple[Command, ...]:
        """Take one event in; the commands that follow from it come out, in the order in which to carry them out.

        Raises ProtocolError, and leaves everything as it was, for an event that is illegal now: of another request or
        step, for a call that already ended, after the end.
        """
        kind = type(event)
        outcomes = REQUEST_TRANSITIONS[self._state].get(kind)
        if outcomes is None:
            raise ProtocolError(self._state, kind.__name__)
        state, commands = _HANDLERS[kind](self, event)
        if state not in outcomes:
            raise AssertionError(f"{kind.__name__} cannot lead from {self._state} to {state}")
        self._state = state
        return tuple(commands)

    def to_journal(self, event: Event) -> tuple[Event, ...]:
        """What a journal must hold of this event; ask before it is applied, write when it was not refused.

        Deltas need not be written one by one: what was streamed of a turn that is cut short by this event comes as one
        ModelStreamed before it, and is nothing to write when the turn arrives whole.
        """
        if type(event) is events.ModelStreamed:
            return ()
        if not self._has_streamed or type(event) is events.ModelResponded:
            return (event,)
        # Restarted: an earlier line may hold some of it already, or text that is void by now.
        so_far = (Restarted("journal"), TextDelta("".join(self._partial)))
        return (events.ModelStreamed(self._step, event.at, so_far), event)

    @classmethod
    def replay(cls, journal: Iterable[Event], *, count_tokens: TokenCounter = estimate_tokens) -> Session:
        """The session that these events lead to: what a journal, or any prefix of one, rebuilds (I8).

        Give the `count_tokens` that it had: what was cut from a history depends on it.
        """
        session = cls(count_tokens=count_tokens)
        for event in journal:
            session.apply(event)
        return session

    def resume_commands(self) -> tuple[Command, ...]:
        """What to do first with a replayed session; then apply (and journal) its `loss_event`, if there is one.

        Records and timers are given out anew: a RecordStep is recognised by its tag, a timer replaces its like. A
        session that had finished gives its last commands once more.
        """
        if self._state is RequestState.NEW:
            return ()
        if self._state is RequestState.FINISHED:
            return (*self._recorded, *self._final)
        return (*self._recorded, SetTimer(self._tag, self._deadline_at))

    def loss_event(self, at: float) -> Event | None:
        """After a crash, nobody holds this session's open work any more: the event that says so, None without any."""
        if self._state is RequestState.CALLING_MODEL:
            return events.ModelLost(self._step, at)
        if self._state is RequestState.RUNNING_TOOLS:
            return events.ToolsLost(self._step, at)
        return None

    # Whose event is it?

    def _refuse(self, event: Event, reason: str) -> ProtocolError:
        return ProtocolError(self._state, type(event).__name__, reason)

    def _check_request(self, event: Event) -> None:
        if event.tag[:2] != self._tag[:2]:
            raise self._refuse(event, f"it is of request {event.tag.request_id!r}, this is {self._tag.request_id!r}")

    def _check_step(self, event: Event) -> None:
        if event.tag != self._step:
            self._check_request(event)
            raise self._refuse(event, f"it is of step {event.tag.step}, the open one is {self._step.step}")

    def _call_of(self, event: Event) -> OpenCall:
        """The open call that the event is about, in a state in which it may come."""
        call = self._batch.calls.get(event.tag)
        if call is None:
            self._check_request(event)
            raise self._refuse(
                event, f"step {self._step.step} has no call {event.tag.call_id!r} of step {event.tag.step}"
            )
        if type(event) not in CALL_TRANSITIONS[call.state]:
            raise self._refuse(event, f"call {event.tag.call_id!r} is {call.state}")
        return call

    # The request.

    def _request_started(self, event: events.RequestStarted) -> _Step:
        if self._tag is not NOBODY:
            self._check_request(event)
        faults = history_faults(event.history)
        if faults:
            raise self._refuse(event, f"the history is not legal: {'; '.join(faults[:3])}")
        if len({offer.definition.name for offer in event.tools}) < len(event.tools):
            raise self._refuse(event, "two of the tools offered share a name")
        options = event.options
        if not options.timeout_seconds > 0:
            raise self._refuse(event, f"timeout_seconds must be above 0, got {options.timeout_seconds}")
        self._prompt = PromptBuilder(options, event.history, event.user, event.tools, self.count_tokens)
        self._tag = self._step = event.tag.request
        self._options = options
        self._repeats = Repeats(options.repeated_call_limit)
        self._deadline_at = event.at + options.timeout_seconds
        return self._next_step(event.at, [SetTimer(self._tag, self._deadline_at)])

    def _cancel_requested(self, event: events.CancelRequested) -> _Step:
        self._check_request(event)
        why = event.reason or "the request was cancelled."
        return self._finish(self._let_go(events.CancelRequested, why), Outcome.CANCELLED, why)

    def _deadline_passed(self, event: events.DeadlinePassed) -> _Step:
        if event.tag != self._tag:
            self._check_step(event)
            if self._batch is NO_CALLS:
                raise self._refuse(event, "this step has no timer")
            return self._after_calls(event.at, self._batch.expire(event.at))
        if event.at < self._deadline_at - CLOCK_TOLERANCE_SECONDS:
            return self._state, [SetTimer(self._tag, self._deadline_at)]
        why = f"the request's deadline of {self._options.timeout_seconds:g} s passed."
        return self._finish(self._let_go(events.DeadlinePassed, why), Outcome.TIMED_OUT, why)

    # The model.

    def _next_step(self, at: float, commands: list[Command], *, again: bool = False) -> _Step:
        """Ask the model, if the limits allow one more call; `again` when the last one came to nothing."""
        request = self._prompt.next_request(again=again)
        if isinstance(request, Stop):
            return self._finish(commands, request.outcome, request.reason)
        self._step = self._tag.at_step(self._step.step + 1)
        self._partial, self._has_streamed = [], False
        deadline_at = min(at + STREAM_TOTAL_TIMEOUT_SECONDS, self._deadline_at)
        commands.append(CallModel(self._step, request, deadline_at))
        return RequestState.CALLING_MODEL, commands

    def _model_streamed(self, event: events.ModelStreamed) -> _Step:
        self._check_step(event)
        self._has_streamed = True
        for delta in event.events:
            if type(delta) is TextDelta:
                self._partial.append(delta.text)
            elif type(delta) is Restarted:
                self._partial.clear()
        return RequestState.CALLING_MODEL, []

    def _model_responded(self, event: events.ModelResponded) -> _Step:
        self._check_step(event)
        response = event.response
        turn = tidy(response)
        self._partial, self._has_streamed = [response.text], False
        self._prompt.charge(response, event.cost, turn)
        if response.error is not None:
            return self._model_error(event.at, response.error)
        verdict, reason = judge(response, turn, self._retries < self._options.max_step_retries)
        if verdict is Verdict.ASK_AGAIN:
            return self._ask_again(event.at, reason)
        if verdict is Verdict.FAIL:
            return self._finish([], Outcome.FAILED, reason)
        self._retries = 0
        self._partial = []
        self._text = response.text
        if verdict is Verdict.RUN_CALLS:
            return self._run_calls(event, response, turn)
        recorded = self._record((turn.message,))
        if verdict is Verdict.GO_ON:
            return self._next_step(event.at, [recorded])
        return self._finish([recorded], Outcome.ANSWERED, reason)

    def _model_failed(self, event: events.ModelFailed) -> _Step:
        self._check_step(event)
        return self._model_error(event.at, event.error)

    def _model_lost(self, event: events.ModelLost) -> _Step:
        self._check_step(event)
        return self._ask_again_or_fail(event.at, "whoever held the model call was lost")

    def _model_error(self, at: float, error: Error) -> _Step:
        fallback = self._options.tool_fallback is ToolFallback.RETRY_WITHOUT_TOOLS
        if error.kind is ErrorKind.TOOLS_UNSUPPORTED and self._prompt.offers and fallback:
            self._prompt.give_up_tools()
            note = Note(self._step, f"{self._options.model} takes no tools; it is asked again without them.")
            return self._next_step(at, [note], again=True)
        if error.kind in ASK_AGAIN_KINDS:
            return self._ask_again_or_fail(at, error.message)
        return self._finish([], Outcome.FAILED, f"{error.kind}: {error.message}")

    def _ask_again_or_fail(self, at: float, reason: str) -> _Step:
        if self._retries < self._options.max_step_retries:
            return self._ask_again(at, reason)
        return self._finish([], Outcome.FAILED, f"after {self._retries + 1} tries: {reason}")

    def _ask_again(self, at: float, reason: str) -> _Step:
        self._retries += 1
        told = f"Step asked again ({self._retries} of {self._options.max_step_retries}): {reason}"
        return self._next_step(at, [Note(self._step, told)], again=True)

    # The calls of a step.

    def _run_calls(self, event: events.ModelResponded, response: ModelResponse, turn: Turn) -> _Step:
        limit = self._options.repeated_call_limit
        self._batch = Batch(self._step, turn.message, self._deadline_at, cut_notes(response, turn))
        commands, looped = open_calls(self._batch, turn, self._prompt.offers, self._repeats, limit, event.at)
        if looped:
            told = f"The model repeated a call more than {limit} times in a row."
            return self._finish([self._close_batch()], Outcome.REPEATED_CALLS, told)
        return self._after_calls(event.at, commands)

    def _approval_granted(self, event: events.ApprovalGranted) -> _Step:
        run = self._batch.send(self._call_of(event), type(event), event.at)
        return RequestState.RUNNING_TOOLS, [run, *self._batch.watch()]

    def _tool_call_started(self, event: events.ToolCallStarted) -> _Step:
        call = self._call_of(event)
        call.enter(events.ToolCallStarted, CallState.RUNNING)
        call.runs += 1
        return RequestState.RUNNING_TOOLS, []

    def _tool_call_completed(self, event: events.ToolCallCompleted) -> _Step:
        call = self._call_of(event)
        self._batch.complete(call, events.ToolCallCompleted, event.content)
        return self._after_calls(event.at, [])

    def _call_failed(self, event: CallFailure) -> _Step:
        """Denied, failed, timed out or cancelled: each is the call's one result, and reads so to the model."""
        call = self._call_of(event)
        state, failure = call_end(event, call.call.name)
        self._batch.fail(call, type(event), state, failure)
        return self._after_calls(event.at, [])

    def _tools_lost(self, event: events.ToolsLost) -> _Step:
        self._check_step(event)
        return self._after_calls(event.at, self._batch.resend(event.at, self._options.max_step_retries + 1))

    def _after_calls(self, at: float, commands: list[Command]) -> _Step:
        """Wait for the calls still open; with none, the step is finished and the next one begins (I4)."""
        if self._batch.open:
            return RequestState.RUNNING_TOOLS, commands
        commands += self._batch.clear()
        commands.append(self._close_batch())
        return self._next_step(at, commands)

    def _close_batch(self) -> RecordStep:
        messages = self._batch.messages()
        self._batch = NO_CALLS
        return self._record(messages)

    def _record(self, messages: tuple[Message, ...]) -> RecordStep:
        self._prompt.add_step(messages)
        record = RecordStep(self._step, messages)
        self._recorded.append(record)
        return record

    # The end.

    def _let_go(self, event: type[events.CancelRequested] | type[events.DeadlinePassed], why: str) -> list[Command]:
        """Stop whatever is open; an open step is closed with a result for each of its calls (I2)."""
        if self._batch is NO_CALLS:
            return [StopModel(self._step)]
        commands = self._batch.abandon(event, why)
        return [*commands, self._close_batch()]

    def _finish(self, commands: list[Command], outcome: Outcome, reason: str) -> _Step:
        """The last commands. What was streamed of a cut turn stays in the history: the person has read it."""
        partial = "".join(self._partial)
        if partial:
            commands.append(self._record((AssistantMessage((Text(partial),)),)))
            self._text = partial
        self._partial, self._has_streamed = [], False
        finish = Finish(self._tag, outcome, self._text, self.usage, self.cost, self._step.step, reason)
        self._final = (ClearTimer(self._tag), finish)
        return RequestState.FINISHED, [*commands, *self._final]


_HANDLERS: Final[Mapping[type[Any], Callable[[Session, Any], _Step]]] = {
    events.RequestStarted: Session._request_started,
    events.ModelStreamed: Session._model_streamed,
    events.ModelResponded: Session._model_responded,
    events.ModelFailed: Session._model_failed,
    events.ModelLost: Session._model_lost,
    events.ApprovalGranted: Session._approval_granted,
    events.ApprovalDenied: Session._call_failed,
    events.ToolCallStarted: Session._tool_call_started,
    events.ToolCallCompleted: Session._tool_call_completed,
    events.ToolCallFailed: Session._call_failed,
    events.ToolCallTimedOut: Session._call_failed,
    events.ToolCallCancelled: Session._call_failed,
    events.ToolsLost: Session._tools_lost,
    events.CancelRequested: Session._cancel_requested,
    events.DeadlinePassed: Session._deadline_passed,
}

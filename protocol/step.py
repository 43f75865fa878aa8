"""One step: a turn of the model, judged and made fit for the history, and its calls.

Each call begins and ends once (I1), and their results keep the order of the turn (I3). First the turn, then how each of
its calls begins and ends, then the loop detection, then the failures that the session itself reports to the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

import orjson

from callboard.protocol import commands, content, events, limits, states
from callboard.protocol.commands import Command
from callboard.protocol.content import ToolCall
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.model import FinishReason, ModelResponse
from callboard.protocol.options import ToolOffer
from callboard.protocol.states import CALL_TRANSITIONS, CallFacts, CallGuard, CallState
from callboard.protocol.tools import FailureCode, ToolFailure

# The turn.


class TurnVerdict(Enum):
    """What to do about a turn of the model."""

    ANSWER = auto()
    RUN_CALLS = auto()
    GO_ON = auto()
    """The provider paused: the turn is sent back as it is."""
    ASK_AGAIN = auto()
    """The turn is unusable or cut: ask the step again, as often as that is allowed."""
    FAIL = auto()


#: An answer that ended so is not all that the model had to say.
_SHORT_ANSWERS: Final = {
    FinishReason.LENGTH: "The answer was cut off at the limit of output tokens.",
    FinishReason.REFUSAL: "The model refused.",
}
#: A turn that was stopped by its provider asks for nothing: its calls are not run.
_STOPPED: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL})
#: A turn that ended so may have been cut in the middle of a call.
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.ERROR})
#: A model call that failed so can be asked again as it is; the LLM manager has already retried all other kinds.
ASK_AGAIN_KINDS: Final = frozenset({ErrorKind.TRUNCATED, ErrorKind.MALFORMED_TOOL_CALL})
#: Why a request ends whose model does not stop writing. Such an answer is not asked for again, and not recorded: no one
#: could read it, and no later request could send it.
TOO_LONG: Final = f"{ErrorKind.MALFORMED}: the answer went over {limits.MAX_ANSWER_BYTES:,} bytes, and was stopped."

Signature = tuple[ToolName, str]
"""A tool and its arguments: in canonical JSON, or as they were received where the call is not complete."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn as it is in the history: legal for every provider once its calls have results."""

    message: content.AssistantMessage
    calls: tuple[ToolCall, ...]
    """One that is not `complete` is never run (I12)."""
    signatures: tuple[Signature, ...]
    """Of each call."""


def is_too_long(response: ModelResponse) -> bool:
    """Whether text, thinking and arguments are over the limit of an answer together."""
    texts = [
        part.arguments if isinstance(part, ToolCall) else part.text
        for part in response.parts
        if not isinstance(part, content.ServerTool)
    ]
    limit = limits.MAX_ANSWER_BYTES
    # A character takes at most four bytes: most answers need not be measured in bytes.
    return sum(map(len, texts)) * 4 > limit and sum(map(content.byte_size, texts)) > limit


def judge(response: ModelResponse, turn: Turn, may_retry: bool) -> tuple[TurnVerdict, str]:
    """What to do about a turn, and why where it is not simply done; with RUN_CALLS, what to tell the model."""
    reason = response.finish_reason
    unusable = TurnVerdict.ASK_AGAIN if may_retry else TurnVerdict.FAIL
    if turn.calls:
        if len(turn.calls) > (limit := limits.MAX_CALLS_PER_STEP):
            return unusable, f"The model asked for {len(turn.calls)} calls in one turn; the limit is {limit}."
        if reason not in _CUT or all(call.complete for call in turn.calls):
            return TurnVerdict.RUN_CALLS, ""
        if may_retry:
            return unusable, f"The model's turn was cut off in the middle of a call ({reason})."
        told = f"Your turn was cut off ({reason}). Ask for fewer calls at a time, or shorter ones."
        return TurnVerdict.RUN_CALLS, told
    if reason is FinishReason.PAUSE and turn.message.parts:
        return TurnVerdict.GO_ON, ""
    if reason is FinishReason.CONTENT_FILTER:
        return TurnVerdict.FAIL, "The provider's content filter stopped the answer."
    text = turn.message.text
    if reason is FinishReason.ERROR or (not text and reason is not FinishReason.REFUSAL):
        return unusable, f"The model answered nothing ({response.raw_finish_reason or reason})."
    return (TurnVerdict.ANSWER if text else TurnVerdict.FAIL), _SHORT_ANSWERS.get(reason, "")


def tidy(response: ModelResponse) -> Turn:
    """The turn as the history takes it.

    Ids are made unique within the turn; arguments that are not a JSON object become "{}"; empty texts and the calls
    of a turn that its provider stopped are left out.
    """
    parts: list[content.AssistantPart] = []
    calls: list[ToolCall] = []
    signatures: list[Signature] = []
    taken: set[CallId] = set()
    for part in response.parts:
        if isinstance(part, ToolCall):
            if response.finish_reason not in _STOPPED:
                call, signature = _tidy_call(part, taken, len(calls))
                taken.add(call.call_id)
                calls.append(call)
                signatures.append(signature)
                parts.append(call)
        elif not (isinstance(part, content.Text) and not part.text and part.replay is None):
            parts.append(part)
    return Turn(content.AssistantMessage(tuple(parts)), tuple(calls), tuple(signatures))


def _tidy_call(call: ToolCall, taken: set[CallId], index: int) -> tuple[ToolCall, Signature]:
    call_id = call.call_id
    suffix = index + 1
    while not call_id or call_id in taken:
        # Letters, digits and _ only: what Anthropic takes as an id.
        call_id = CallId(f"{call.call_id or 'call'}_{suffix}")
        suffix += 1
    arguments = canonical_arguments(call.arguments) if call.complete else None
    if arguments is None:
        return replace(call, call_id=call_id, complete=False, arguments="{}"), (call.name, call.arguments)
    clean = call if call_id == call.call_id else replace(call, call_id=call_id)
    return clean, (call.name, arguments)


def canonical_arguments(text: str) -> str | None:
    """The same text for the same arguments, however they were written; None for anything but a JSON object."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    try:
        # A str: the bytes that orjson makes take 4 kB each, however short they are, and these are kept for a while.
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return text  # objects in each other more than 254 deep


# Its calls.

CallFailure = events.ApprovalDenied | events.ToolCallFailed | events.ToolCallTimedOut | events.ToolCallCancelled
"""The events by which a call ends without a result of its tool."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """One call, what is known of it, and where it is."""

    call: ToolCall
    facts: CallFacts
    offer: ToolOffer | None
    state: CallState = field(default=CallState.REQUESTED, init=False)
    deadline_at: float | None = field(default=None, init=False)
    """None before it is sent: waiting for a person has no deadline but the request's."""
    result: content.ToolMessage | None = field(default=None, init=False)

    def enter(self, event: type[Event]) -> CallGuard:
        """Change state as the table says, and tell which guard led there."""
        for guard, state in CALL_TRANSITIONS[self.state][event]:
            if guard(self.facts):
                self.state = state
                return guard
        raise AssertionError(f"{event.__name__} leads nowhere: {self}")


@dataclass(slots=True, eq=False)
class Batch:
    """The calls of one step. Commands come back as lists; the batch is closed when `open` is 0."""

    _tag: Tag
    _message: content.AssistantMessage
    _request_deadline_at: float
    _notes: tuple[str, ...]
    _max_runs: int
    timer_at: float | None = field(default=None, init=False)
    """When the step's one timer fires; None while it is not set."""
    calls: dict[Tag, OpenCall] = field(default_factory=dict, init=False)
    open: int = field(default=0, init=False)
    ends_run: bool = field(default=False, init=False)
    """A call repeated itself once too often: none of the turn was sent, and the request ends."""

    # How calls begin.

    def begin(self, turn: Turn, offers: Mapping[ToolName, ToolOffer], repeats: Repeats, at: float) -> list[Command]:
        """Begin every call of the turn, in its order: sent, asked about, or ended at once with the reason."""
        repeated, self.ends_run = repeats.next_step(turn.signatures)
        todo: list[Command] = []
        request_id, parent_id, step, _ = self._tag
        for asked, (name, received), repeats_itself in zip(turn.calls, turn.signatures, repeated, strict=True):
            tag = Tag(request_id, parent_id, step, asked.call_id)
            call = self.calls[tag] = self._opened(asked, offers.get(name), repeats_itself)
            self.open += 1
            guard = call.enter(events.ModelResponded)
            if guard is states.allowed:
                todo.append(self._send(tag, call, at))
            elif guard is states.must_ask:
                todo.append(self._ask(tag, call))
            elif guard is states.unknown_tool:
                self._close(call, unknown_tool(name, offers))
            elif guard is states.not_whole:
                self._close(call, incomplete_call(name, received))
            elif guard is states.repeated:
                self._close(call, failure(FailureCode.REPEATED, name, str(repeats.limit)))
            else:
                code, why = _REFUSALS[guard]
                self._close(call, failure(code, name, why))
        return todo + self._watch()

    def _opened(self, call: ToolCall, offer: ToolOffer | None, repeats: bool) -> OpenCall:
        decision = offer.decision if offer is not None else None
        idempotent = offer is not None and offer.contract.idempotent
        facts = CallFacts(decision, call.complete, repeats, self.ends_run, idempotent, self._max_runs)
        return OpenCall(call, facts, offer)

    def granted(self, call: OpenCall, event: events.ApprovalGranted) -> list[Command]:
        """A person allowed the call: it is sent."""
        call.enter(events.ApprovalGranted)
        return [self._send(event.tag, call, event.at), *self._watch()]

    def _send(self, tag: Tag, call: OpenCall, at: float) -> commands.RunTool:
        """Hand a call to the dispatcher; its time begins now."""
        assert call.offer is not None
        call.facts.sends += 1
        call.deadline_at = min(at + call.offer.contract.timeout_seconds, self._request_deadline_at)
        effect_id = f"{tag.request_id}/{tag.step}/{tag.call_id}"
        return commands.RunTool(tag, call.call.name, call.call.arguments, call.deadline_at, effect_id)

    @staticmethod
    def _ask(tag: Tag, call: OpenCall) -> commands.AskApproval:
        assert call.offer is not None
        return commands.AskApproval(tag, call.call.name, call.call.arguments, call.offer.contract.risk)

    # How calls end.

    def end(self, call: OpenCall, event: CallFailure | events.ToolCallCompleted) -> None:
        """The call has its one result, or the failure that the model reads in its place."""
        if isinstance(event, events.ToolCallCompleted):
            failed, result = result_fault(call.call.name, event.content), event.content
            call.facts.result_is_sound = failed is None
        else:
            failed, result = _failure_of(event, call.call.name), ""
        call.enter(type(event))
        self._close(call, failed, result)

    def _close(self, call: OpenCall, failed: ToolFailure | None, result: str = "") -> None:
        if failed is not None:
            result = content.json_text(failed.to_wire())
        call.result = content.ToolMessage(call.call.call_id, call.call.name, result, failed is not None)
        self.open -= 1

    def _watch(self) -> list[Command]:
        """Set the step's one timer where the next call to run late has none yet.

        One timer a step, not one a call: it fires at the earliest deadline, and is then set for the next.
        """
        deadlines = [call.deadline_at for _, call in self._open_calls() if call.deadline_at is not None]
        if not deadlines:
            return []
        due = min(deadlines) + limits.CALL_BACKSTOP_SECONDS
        if self.timer_at is not None and self.timer_at <= due:
            return []
        self.timer_at = due
        return [commands.SetTimer(self._tag, due)]

    def expire(self, at: float) -> list[Command]:
        """The step's timer fired: end the calls that should have ended. Fired early, it is set again."""
        now = at + limits.CLOCK_TOLERANCE_SECONDS
        self.timer_at = None
        todo: list[Command] = []
        for tag, call in self._open_calls():
            if call.deadline_at is not None and call.deadline_at + limits.CALL_BACKSTOP_SECONDS <= now:
                call.enter(events.DeadlinePassed)
                self._close(call, failure(FailureCode.TIMED_OUT, call.call.name, "the deadline passed."))
                todo.append(commands.CancelTool(tag, "timed out"))
        return todo + self._watch()

    def resend(self, at: float) -> list[Command]:
        """What held the calls is gone: send again what has not begun, and what has where its tool allows that."""
        todo: list[Command] = []
        for tag, call in self._open_calls():
            guard = call.enter(events.ToolsLost)
            if call.state is CallState.AWAITING_APPROVAL:
                todo.append(self._ask(tag, call))
            elif call.state is CallState.SENT:
                todo.append(self._send(tag, call, at))
            else:
                never_began = guard is states.sent_too_often
                code = FailureCode.CRASHED if never_began else FailureCode.OUTCOME_UNKNOWN
                self._close(call, failure(code, call.call.name))
        # After a crash the timer is gone: set it again, or clear it where no call is left to watch.
        cleared = self.clear()
        return todo + (self._watch() or cleared)

    def abandon(self, event: type[events.CancelRequested] | type[events.DeadlinePassed], why: str) -> list[Command]:
        """The request ends: give each open call its result, and stop it."""
        todo: list[Command] = []
        code = FailureCode.CANCELLED if event is events.CancelRequested else FailureCode.TIMED_OUT
        for tag, call in self._open_calls():
            waiting = call.state is CallState.AWAITING_APPROVAL
            todo.append(commands.WithdrawApproval(tag) if waiting else commands.CancelTool(tag, why))
            call.enter(event)
            self._close(call, failure(code, call.call.name, why))
        return todo + self.clear()

    def clear(self) -> list[Command]:
        """Take the step's timer away."""
        if self.timer_at is None:
            return []
        self.timer_at = None
        return [commands.ClearTimer(self._tag)]

    def _open_calls(self) -> list[tuple[Tag, OpenCall]]:
        return [(tag, call) for tag, call in self.calls.items() if call.result is None]

    def messages(self) -> tuple[content.Message, ...]:
        """The finished step: the turn, its results in the turn's order, then the notes."""
        results = [call.result for call in self.calls.values() if call.result is not None]
        return (self._message, *results, *map(content.SystemMessage, self._notes))


#: The tag of a session before it knows whose it is.
NO_REQUEST: Final = Tag(RequestId(""), MessageId(""))
#: The batch of a session that runs no tools: nothing is ever added to it.
NO_CALLS: Final = Batch(NO_REQUEST, content.AssistantMessage(()), 0.0, (), 0)


# Loop detection: the same call with the same arguments, step after step.


class Repeats:
    """Counts in how many steps in a row each call was asked; after a step without it, it is counted from 1 again.

    Asked twice in one step, it is two calls and no repetition, since neither could know of the other. A first call
    repeats nothing, so a limit of 1 is the same as 2; 0 means none.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 2) if limit else 0
        self._counts: dict[Signature, int] = {}

    def next_step(self, signatures: Sequence[Signature]) -> tuple[list[bool], bool]:
        """Which calls come too often to be run; and whether one came even once more, which ends the request."""
        self._counts = {signature: self._counts.get(signature, 0) + 1 for signature in signatures}
        limit = self.limit or math.inf
        return [self._counts[each] >= limit for each in signatures], max(self._counts.values(), default=0) > limit


# Failures: what the session itself reports to the model; each says what was wrong and what to do.

#: What happened ({} is why), and what the model can do.
_TOLD: Final[Mapping[FailureCode, tuple[str, str]]] = {
    FailureCode.REPEATED: (
        "The same call with the same arguments came {} times in a row; it was not run again.",
        "Use the results you have, change the arguments, or answer. The next repetition ends the run.",
    ),
    FailureCode.DENIED: (
        "The call was not allowed: {}",
        "Do not send this call again; go on without it or say that you cannot.",
    ),
    FailureCode.TIMED_OUT: (
        "No result: {}",
        "It may have had an effect. Ask for less at a time, or go on without it.",
    ),
    FailureCode.CANCELLED: ("The call was cancelled: {}", ""),
    FailureCode.OUTCOME_UNKNOWN: (
        "The call had begun when the process that ran it was lost; whether it had its effect is not known.",
        "Look at what it would have changed before you send it again.",
    ),
    FailureCode.CRASHED: (
        "The call was not run: what was to run it was lost each time it was sent.",
        "Do not send this call again; change its arguments, or go on without it.",
    ),
}
#: The failure of a call that is not run, and why, by the guard that led there; the other guards have one of their own.
_REFUSALS: Final[Mapping[CallGuard, tuple[FailureCode, str]]] = {
    states.denied: (FailureCode.DENIED, "the owner of this runtime denies such calls."),
    states.run_ended: (FailureCode.CANCELLED, "another call of the turn repeated itself, which ended the run."),
}


def failure(code: FailureCode, name: ToolName, why: str = "") -> ToolFailure:
    """One of the failures above."""
    told, hint = _TOLD[code]
    return ToolFailure(name, code, told.format(why), retry_hint=hint)


def _failure_of(event: CallFailure, name: ToolName) -> ToolFailure:
    match event:
        case events.ApprovalDenied():
            return failure(FailureCode.DENIED, name, event.reason or "it was not approved.")
        case events.ToolCallFailed():
            return event.failure
        case events.ToolCallTimedOut():
            return failure(FailureCode.TIMED_OUT, name, "the deadline passed.")
        case events.ToolCallCancelled():
            return failure(FailureCode.CANCELLED, name, "it was stopped.")


def result_fault(name: ToolName, result: str) -> ToolFailure | None:
    """Why this result may not be handed to a model; None when it may."""
    limit = limits.MAX_RESULT_BYTES
    if len(result) * 4 > limit and (size := content.byte_size(result)) > limit:
        told = f"The result has {size:,} bytes; {limit:,} may be handed on."
        return ToolFailure(name, FailureCode.RESULT_TOO_LARGE, told, retry_hint="Ask for less at a time.")
    return None


def unknown_tool(name: ToolName, offered: Iterable[ToolName]) -> ToolFailure:
    """The model called a tool that it was not offered."""
    known, told = ", ".join(sorted(offered)) or "none", f"There is no tool named {name!r}."
    hint = "Call one of the tools you were given."
    received = name[: limits.ERROR_SNIPPET_CHARS]
    return ToolFailure(name, FailureCode.UNKNOWN_TOOL, told, "", f"one of: {known}", received, hint)


def incomplete_call(name: ToolName, received: str) -> ToolFailure:
    """Half a call, or one with a number that is not JSON: it is never run (I12)."""
    code = FailureCode.INCOMPLETE_CALL
    told = "The arguments were cut off or are not a JSON object; the call was not run."
    hint = "Send the call again, with all its arguments; make them shorter if they were cut off."
    if wrong_number := content.bad_number(received):
        code = FailureCode.INVALID_ARGUMENTS
        told = f"The arguments contain {wrong_number}, which is not a finite number; the call was not run."
        hint = "Send the call again with a number in its place, or null where the tool allows it."
    return ToolFailure(name, code, told, "", "a JSON object", received[: limits.ERROR_SNIPPET_CHARS], hint)

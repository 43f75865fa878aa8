"""One step: a turn of the model, judged and made fit for the history, and its calls.

Each call begins and ends once (I1), and their results keep the order of the turn (I3). First the turn, then how each of
its calls begins and ends, then the loop detection, then the failures that the session itself reports to the model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from callboard.protocol import commands, content, events, limits, states
from callboard.protocol.clock import RequestClock
from callboard.protocol.commands import Command
from callboard.protocol.content import ToolCall
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import Event
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag, ToolName
from callboard.protocol.masking import MARK
from callboard.protocol.model import STOPPED_REASONS, FinishReason, ModelResponse
from callboard.protocol.options import ToolOffer
from callboard.protocol.output import NO_ANSWERS, AnsweredCall
from callboard.protocol.reports import CallReport
from callboard.protocol.states import CALL_TRANSITIONS, CallFacts, CallGuard, CallState
from callboard.protocol.tools import (
    Decision,
    Effect,
    FailureCode,
    Hold,
    Risk,
    ToolFailure,
    after_effect,
    incomplete_call,
)

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
    FinishReason.LENGTH: "The answer was cut off at the limit of output tokens; raise it, or ask for a shorter answer.",
    FinishReason.REFUSAL: "The model refused.",
    FinishReason.OTHER: "The answer may be cut off: it ended for a reason that is not known here ({}).",
}
#: Of a model that thinks, for example, until nothing is left for an answer.
NO_ROOM: Final = "The limit of output tokens was reached before the model had answered; raise it."
#: Of a call in a model's own markup: none is run from text: the author of what the model read may have put it there.
WRITTEN_CALL_TOLD: Final = "The model wrote a call of {} as text, in its own markup, which is not run."
#: A turn that ended so may have been cut in the middle of a call.
_CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.ERROR})
#: What the model reads about such a turn whose whole calls are run.
CUT_TOLD: Final = "Your turn was cut off ({}). Ask for fewer calls at a time, or shorter ones."
#: What it reads of a call that a person let run with other arguments: its own turn, which has the old ones, is signed.
CHANGED_TOLD: Final = "The call {} of {} was run with other arguments than yours, which a person has changed: {}"
#: Of a call for the one who asks, in a turn that holds the answer, too.
ANSWERED_TOO: Final = "the answer was given in the same turn."
#: Why a request ends whose model does not stop writing. Such an answer is not asked for again, and not recorded: no one
#: could read it, and no later request could send it.
TOO_LONG: Final = f"{ErrorKind.MALFORMED}: the answer went over {limits.MAX_ANSWER_BYTES:,} bytes, and was stopped."

SearchWords = Mapping[int, tuple[str, ...]]
"""Further words to search by (search_words.py), by the place of the call in the turn."""
NO_WORDS: Final[SearchWords] = MappingProxyType({})
Signature = tuple[ToolName, str]
"""A tool and its arguments: in canonical JSON, or as they were received where the call is not complete."""


class Turn(Struct, frozen=True):
    """A turn as it is in the history: legal for every provider once its calls have results."""

    message: content.AssistantMessage
    calls: tuple[ToolCall, ...]
    """One that is not `complete` is never run (I12)."""
    signatures: tuple[Signature, ...]
    """Of each call."""


def is_too_long(response: ModelResponse) -> bool:
    """Whether text, thinking and arguments are over the limit of an answer together."""
    texts = [_written(part) for part in response.parts]
    limit = limits.MAX_ANSWER_BYTES
    # A character takes at most four bytes: most answers need not be measured in bytes.
    return sum(map(len, texts)) * 4 > limit and sum(map(content.byte_size, texts)) > limit


def _written(part: content.AssistantPart) -> str:
    """What a model wrote of a part, character by character."""
    match part:
        case ToolCall():
            return part.arguments
        case content.Text() | content.Thinking():
            return part.text
    return ""


def judge(response: ModelResponse, turn: Turn, may_retry: bool, written: str | None = None) -> tuple[TurnVerdict, str]:
    """What to do about a turn, and why where it is not simply done. `written`: its text is only a call of this tool."""
    reason = response.finish_reason
    unusable = TurnVerdict.ASK_AGAIN if may_retry else TurnVerdict.FAIL
    if turn.calls:
        if len(turn.calls) > (limit := limits.MAX_CALLS_PER_STEP):
            return unusable, f"The model asked for {len(turn.calls)} calls in one turn; the limit is {limit}."
        if reason not in _CUT or all(call.complete for call in turn.calls):
            return TurnVerdict.RUN_CALLS, ""
        told = f"The model's turn was cut off in the middle of a call ({reason})."
        return (unusable if may_retry else TurnVerdict.RUN_CALLS), told
    if reason is FinishReason.PAUSE and turn.message.parts:
        return TurnVerdict.GO_ON, ""
    if reason is FinishReason.CONTENT_FILTER:
        return TurnVerdict.FAIL, "The provider's content filter stopped the answer."
    text = turn.message.text or any(isinstance(part, content.Media) for part in turn.message.parts)  # pictures too
    if reason is FinishReason.LENGTH and not text:
        return unusable, NO_ROOM
    if reason is FinishReason.ERROR or (not text and reason is not FinishReason.REFUSAL):
        return unusable, f"The model answered nothing ({response.raw_finish_reason or reason})."
    if written is not None and reason is FinishReason.STOP:
        return (TurnVerdict.ASK_AGAIN if may_retry else TurnVerdict.ANSWER), WRITTEN_CALL_TOLD.format(written)
    told = _SHORT_ANSWERS.get(reason, "").format(response.raw_finish_reason or reason)
    return (TurnVerdict.ANSWER if text else TurnVerdict.FAIL), told


def tidy(response: ModelResponse) -> Turn:
    """The turn as the history takes it.

    Ids are made unique; arguments that are not a JSON object become one that shows them; empty texts and the calls of a
    turn that its provider stopped are left out.
    """
    parts: list[content.AssistantPart] = []
    calls: list[ToolCall] = []
    signatures: list[Signature] = []
    taken: set[CallId] = set()
    for part in response.parts:
        if isinstance(part, ToolCall):
            if response.finish_reason not in STOPPED_REASONS:
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
        shown = replace(call, call_id=call_id, complete=False, arguments=content.half_arguments(call.arguments))
        return shown, (call.name, call.arguments)
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
#: An open call in one of these waits, and nothing of ours holds it.
_HELD_BY_NONE: Final = frozenset({CallState.DEFERRED, CallState.OUTSIDE})
#: Events that do not say themselves which failure the call ends with.
_REPORTED: Final = (events.ApprovalDenied, events.ToolCallCompleted)


class OpenCall(Struct, eq=False):
    """One call, what is known of it, and where it is."""

    call: ToolCall
    key: bytes
    """Digest of its signature."""
    facts: CallFacts
    offer: ToolOffer | None
    state: CallState = CallState.REQUESTED
    due_at: float = math.inf
    """When the session ends it, if nothing else has: a while after its tool's deadline, or when its wait is over."""
    result: content.ToolMessage | None = None
    code: FailureCode | None = None
    """Why it has no result of its tool."""
    rule: str = ""
    hold: Hold = Hold.NONE
    """What it was decided by whether it may run."""
    search_words: tuple[str, ...] = ()
    begun_at: float | None = None
    ended_at: float = 0.0

    def enter(self, event: type[Event]) -> CallGuard:
        """Change state as the table says, and tell which guard led there."""
        for guard, state in CALL_TRANSITIONS[self.state][event]:
            if guard(self.facts):
                self.state = state
                return guard
        raise AssertionError(f"{event.__name__} leads nowhere: {self}")


class Batch(Struct, eq=False):
    """The calls of one step. Commands come back as lists; the batch is closed when `open` is 0."""

    _tag: Tag
    _message: content.AssistantMessage
    _clock: RequestClock
    """The request's."""
    _notes: tuple[str, ...]
    _max_runs: int
    _approval_seconds: float
    """How long the step's calls may wait for a person."""
    _is_after_untrusted: bool = False
    """The request has read text from outside, and a call that does more than read is to be asked about then."""
    _words: SearchWords = field(default_factory=dict)
    _asked_at: float = 0.0
    _now: float = 0.0
    """When that happened which is taken in."""
    timer_at: float | None = None
    """When the step's one timer fires; None while it is not set."""
    calls: dict[Tag, OpenCall] = field(default_factory=dict)
    open: int = 0
    waiting: int = 0
    """Of the open calls, those that wait for someone outside."""
    _outside: int = 0
    """Of those, how many are for the one who has asked."""
    ends_run: bool = False
    """A call repeated itself once too often: none of the turn was sent, and the request ends."""

    # How calls begin.

    def begin(
        self,
        turn: Turn,
        offers: Mapping[ToolName, ToolOffer],
        repeats: Repeats,
        at: float,
        answers: Mapping[int, AnsweredCall] = NO_ANSWERS,
    ) -> list[Command]:
        """Begin every call of the turn, in its order: sent, asked about, or ended at once with the reason.

        `answers`: the calls of the output tool, by their places in the turn. They are not run, and no loop.
        """
        self._asked_at = self._now = at
        keys = [digest(*signature) for signature in turn.signatures]
        # No digest is empty: a call of the output tool was never made before.
        counted = [b"" if place in answers else key for place, key in enumerate(keys)]
        repeated, self.ends_run = repeats.next_step(counted)
        shown = [name for name, offer in offers.items() if offer.is_shown]
        todo: list[Command] = []
        request_id, parent_id, step, _ = self._tag
        asked_for = zip(turn.calls, turn.signatures, keys, repeated, strict=True)
        for place, (asked, received, key, repeats_itself) in enumerate(asked_for):
            name = asked.name
            tag = Tag(request_id, parent_id, step, asked.call_id)
            call = self.calls[tag] = self._opened(asked, key, offers.get(name), repeats_itself)
            call.facts.writes_mask = _writes_mask(call.offer, received[1])
            call.search_words = self._words.get(place, ())
            if (answer := answers.get(place)) is not None:
                todo += self._answered(tag, call, answer, received)
                continue
            self.open += 1
            guard = self._enter(call, events.ModelResponded)
            if guard is states.allowed:
                todo.append(self._send(tag, call, at))
            elif guard is states.is_outside:
                self._outside += 1
            elif guard is states.must_ask:
                call.due_at = at + self._approval_seconds
                todo.append(self._ask(tag, call))
            else:
                failed = _REFUSED[guard](received, shown, repeats.limit)
                if guard is states.denied and call.rule:
                    failed = replace(failed, message=f"{failed.message.rstrip('.')} ({call.rule}).")
                todo.append(self._fail(tag, call, failed))
        return todo + self._watch()

    def _answered(self, tag: Tag, call: OpenCall, answer: AnsweredCall, received: Signature) -> list[Command]:
        """A call of the output tool ends at once."""
        call.facts.answer = answer.becomes
        self.open += 1
        if call.enter(events.ModelResponded) is states.answers_wrongly:
            return [self._fail(tag, call, answer.failure or incomplete_call(*received))]
        self._close(call, None, answer.result)
        return []

    def _opened(self, call: ToolCall, key: bytes, offer: ToolOffer | None, repeats: bool) -> OpenCall:
        decision = self._decision(offer) if offer is not None else None
        # Of a transaction that was lost nothing is left: the database has taken it back.
        may_repeat = offer is not None and offer.contract.effect is not Effect.ONCE
        is_outside = offer is not None and offer.contract.is_outside
        facts = CallFacts(decision, call.complete, repeats, self.ends_run, may_repeat, self._max_runs, is_outside)
        opened = OpenCall(call, key, facts, offer)
        if offer is not None:
            opened.rule = offer.rule
        return opened

    def _decision(self, offer: ToolOffer) -> Decision:
        """The policy's, but what would run unasked is asked about where text from outside may have led to it."""
        contract = offer.contract
        may_change = contract.risk is not Risk.READ and not contract.is_outside
        if self._is_after_untrusted and offer.decision is Decision.ALLOW and may_change:
            return Decision.ASK
        return offer.decision

    def granted(self, call: OpenCall, event: events.ApprovalGranted) -> list[Command]:
        """The call was allowed: it is sent, with other arguments where a person has changed them."""
        self._enter(call, events.ApprovalGranted)
        call.rule = event.rule or call.rule
        call.hold = event.hold
        if event.arguments:
            call.call = replace(call.call, arguments=event.arguments)
            self._notes = (*self._notes, CHANGED_TOLD.format(call.call.call_id, call.call.name, event.arguments))
        return [self._send(event.tag, call, event.at), *self._watch()]

    def _send(self, tag: Tag, call: OpenCall, at: float) -> commands.RunTool:
        """Hand a call to the dispatcher; its time begins now."""
        assert call.offer is not None
        call.facts.sends += 1
        deadline_at = min(at + call.offer.contract.timeout_seconds, self._clock.deadline_at(at))
        call.due_at = deadline_at + limits.CALL_BACKSTOP_SECONDS
        if call.offer.contract.effect is Effect.TRANSACTION:
            call.due_at += limits.COMMIT_SECONDS  # what comes of a commit counts, also after the deadline
        effect_id = f"{tag.request_id}/{tag.step}/{tag.call_id}"
        asked, words = call.call, call.search_words
        return commands.RunTool(tag, asked.name, asked.arguments, deadline_at, effect_id, call.rule, words, call.hold)

    def _ask(self, tag: Tag, call: OpenCall) -> commands.AskApproval:
        assert call.offer is not None
        risk = call.offer.contract.risk
        return commands.AskApproval(tag, call.call.name, call.call.arguments, risk, self._is_after_untrusted)

    def _enter(self, call: OpenCall, event: type[Event]) -> CallGuard:
        """Change the state of a call, and count those that wait."""
        waited = call.state in states.WAITING_CALL_STATES
        guard = call.enter(event)
        self.waiting += (call.state in states.WAITING_CALL_STATES) - waited
        return guard

    def defer(self, call: OpenCall, event: events.ToolCallDeferred) -> list[Command]:
        """The call's code has ended; from now on it waits for its result."""
        self._enter(call, events.ToolCallDeferred)
        call.due_at = event.at + event.timeout_seconds
        return self._watch()

    @property
    def only_waits(self) -> bool:
        """Each open call waits for someone outside."""
        return 0 < self.open == self.waiting

    @property
    def is_to_hand_out(self) -> bool:
        """Each open call is for the one who has asked."""
        return 0 < self.open == self._outside

    def hand_out(self, at: float) -> commands.OpenTurn:
        """The calls that are open are for the one who has asked."""
        for _, call in self._open_calls():
            call.state, call.ended_at = CallState.HANDED_OUT, at
        self.open = self.waiting = self._outside = 0
        results = tuple(call.result for call in self.calls.values() if call.result is not None)
        return commands.OpenTurn(self._message, results, self._notes)

    def give_up_outside(self, at: float) -> list[Command]:
        """The turn that has them holds the answer, too: no one is asked."""
        self._now = at
        todo: list[Command] = []
        for tag, call in self._open_calls():
            self._enter(call, events.CancelRequested)
            todo.append(self._fail(tag, call, failure(FailureCode.CANCELLED, call.call.name, ANSWERED_TOO)))
        self._outside = 0
        return todo

    # How calls end.

    def end(self, call: OpenCall, event: CallFailure | events.ToolCallCompleted) -> list[Command]:
        """The call has its one result, or the failure that the model reads in its place."""
        self._now = event.at
        if isinstance(event, events.ToolCallCompleted):
            failed, result = result_fault(call.call.name, event.content), event.content
            call.facts.result_is_sound = failed is None
            failed = failed and after_effect(failed, call.offer.contract if call.offer else None)
        else:
            failed, result = _failure_of(event, call), ""
            if isinstance(event, events.ApprovalDenied):
                call.rule = event.rule or call.rule
        self._enter(call, type(event))
        self._close(call, failed, result)
        if failed is None or not isinstance(event, _REPORTED):
            return []
        return [commands.ReportFailure(event.tag, failed)]

    def _fail(self, tag: Tag, call: OpenCall, failed: ToolFailure) -> commands.ReportFailure:
        """The session itself ends the call."""
        self._close(call, failed)
        return commands.ReportFailure(tag, failed)

    def _close(self, call: OpenCall, failed: ToolFailure | None, result: str = "") -> None:
        if failed is not None:
            result, call.code = content.json_text(failed.to_wire()), failed.code
        call.ended_at = self._now
        # What no tool was asked for are callboard's own words.
        is_trusted = not call.facts.sends or (call.offer is not None and call.offer.contract.is_trusted)
        name = call.call.name
        call.result = content.ToolMessage(call.call.call_id, name, result, failed is not None, is_trusted=is_trusted)
        self.open -= 1

    def _watch(self) -> list[Command]:
        """Set the step's one timer where the next call to run late has none yet.

        One timer a step, not one a call: it fires at the earliest deadline, and is then set for the next.
        """
        due = min((call.due_at for call in self.calls.values() if call.result is None), default=math.inf)
        if due == math.inf or (self.timer_at is not None and self.timer_at <= due):
            return []
        self.timer_at = due
        return [commands.SetTimer(self._tag, due)]

    def expire(self, at: float) -> list[Command]:
        """The step's timer fired: end the calls that should have ended. Fired early, it is set again."""
        now, self._now = at + limits.CLOCK_TOLERANCE_SECONDS, at
        self.timer_at = None
        todo: list[Command] = []
        for tag, call in self._open_calls():
            if call.due_at <= now:
                todo += self._expire(tag, call)
        return todo + self._watch()

    def _expire(self, tag: Tag, call: OpenCall) -> list[Command]:
        code, why = FailureCode.TIMED_OUT, "the deadline passed."
        stopped = _stop(tag, call, "timed out")
        if call.state is CallState.AWAITING_APPROVAL:
            code, why = FailureCode.DENIED, f"it was not approved within {self._approval_seconds:g} s."
        elif call.state is CallState.DEFERRED:
            why = "its result was to come from outside, and did not come in its time."
        call.facts.is_overdue = True
        self._enter(call, events.DeadlinePassed)
        failed = after_effect(failure(code, call.call.name, why), call.offer.contract if call.offer else None)
        return [*stopped, self._fail(tag, call, failed)]

    def resend(self, at: float) -> list[Command]:
        """What held the calls is gone: send again what has not begun, and what has where its tool allows that.

        Nothing held a deferred call. A question is asked again, and its time goes on.
        """
        self._now = at
        todo: list[Command] = []
        for tag, call in self._open_calls():
            guard = self._enter(call, events.ToolsLost)
            if call.state in _HELD_BY_NONE:
                continue
            if call.state is CallState.AWAITING_APPROVAL:
                todo.append(self._ask(tag, call))
            elif call.state is CallState.SENT:
                todo.append(self._send(tag, call, at))
            else:
                never_began = guard is states.sent_too_often
                todo.append(self._fail(tag, call, _lost(call, never_began=never_began)))
        # After a crash the timer is gone: set it again, or clear it where no call is left to watch.
        cleared = self.clear()
        return todo + (self._watch() or cleared)

    def abandon(self, event: events.CancelRequested | events.DeadlinePassed, why: str) -> list[Command]:
        """The request ends: give each open call its result, and stop it."""
        self._now = event.at
        todo: list[Command] = []
        code = FailureCode.CANCELLED if isinstance(event, events.CancelRequested) else FailureCode.TIMED_OUT
        for tag, call in self._open_calls():
            todo += _stop(tag, call, why)
            self._enter(call, type(event))
            todo.append(self._fail(tag, call, failure(code, call.call.name, why)))
        return todo + self.clear()

    def clear(self) -> list[Command]:
        """Take the step's timer away."""
        if self.timer_at is None:
            return []
        self.timer_at = None
        return [commands.ClearTimer(self._tag)]

    def _open_calls(self) -> list[tuple[Tag, OpenCall]]:
        return [(tag, call) for tag, call in self.calls.items() if call.result is None]

    def outcomes(self) -> list[tuple[bytes, str | None]]:
        """What each call gave, as the model reads it; None of one that was refused as a repetition."""
        return [
            (call.key, call.result.content if call.result is not None and not call.facts.repeats else None)
            for call in self.calls.values()
            if call.facts.answer is None
        ]

    def reports(self) -> tuple[CallReport, ...]:
        """What became of each call, in the turn's order."""
        return tuple(
            CallReport(
                call.call.call_id,
                call.call.name,
                call.code,
                call.ended_at - self._asked_at,
                0.0 if call.begun_at is None else call.ended_at - call.begun_at,
                call.rule,
            )
            for call in self.calls.values()
        )

    def messages(self) -> tuple[content.Message, ...]:
        """The finished step: the turn, its results in the turn's order, then the notes."""
        results = [call.result for call in self.calls.values() if call.result is not None]
        return (self._message, *results, *map(content.SystemMessage, self._notes))


def _stop(tag: Tag, call: OpenCall, why: str) -> list[Command]:
    """What ends an open call where it is. Of a deferred one nothing is left that could be stopped."""
    if call.state in _HELD_BY_NONE:
        return []
    waits = call.state is CallState.AWAITING_APPROVAL
    return [commands.WithdrawApproval(tag) if waits else commands.CancelTool(tag, why)]


#: The tag of a session before it knows whose it is.
NO_REQUEST: Final = Tag(RequestId(""), MessageId(""))
#: The batch of a session that runs no tools: nothing is ever added to it.
NO_CALLS: Final = Batch(NO_REQUEST, content.AssistantMessage(()), RequestClock(0.0), (), 0, 0.0)


# Loop detection: the same call, with the same result each time.


class _Asked(Struct):
    """A call that was made before."""

    results: bytes = b""
    """Digests of what it gave when it was last run, in order; several where a step asked for it more than once."""
    times: int = 0
    """How often in a row it came to that, or was refused because it had."""
    news: int = 0
    """How many steps had brought news by then."""


class Repeats:
    """Counts how often in a row each call came to the same result.

    What interrupts a row is a step that brought news, in that call or in others: a call that was not made before, or
    another result. So a loop over several calls is found too, and a call made beside or after a change is no loop.
    Asked twice in one step, a call counts once, since neither could know of the other. A first result repeats nothing,
    so a limit of 1 is the same as 2; 0 means none. Holds digests, not texts, of at most MAX_REMEMBERED_CALLS calls.
    """

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 2) if limit else 0
        self._asked: dict[bytes, _Asked] = {}
        self._news = 0

    def next_step(self, keys: Sequence[bytes]) -> tuple[list[bool], bool]:
        """Which calls came to the same result too often to be run; and whether one was refused for that before."""
        known = [self._asked.get(key) for key in keys]
        times = [asked.times if asked is not None and asked.news == self._news else 0 for asked in known]
        return [0 < self.limit <= count for count in times], 0 < self.limit < max(times, default=0)

    def learn(self, outcomes: Iterable[tuple[bytes, str | None]]) -> None:
        """The calls of a step have ended, in any order: what each gave, or None where it was refused by `next_step`."""
        each: dict[bytes, set[bytes]] = {}
        for key, result in outcomes:
            each.setdefault(key, set()).update(() if result is None else (digest(result),))
        found = {key: b"".join(sorted(results)) for key, results in each.items()}
        known = {key: self._asked.pop(key, _Asked()) for key in found}
        self._news += any(results and results != known[key].results for key, results in found.items())
        for key, asked in known.items():
            asked.times = asked.times + 1 if asked.news == self._news else 1
            asked.results, asked.news = found[key] or asked.results, self._news
            self._asked[key] = asked  # at the end: what comes first was not asked for longest
        while len(self._asked) > limits.MAX_REMEMBERED_CALLS:
            del self._asked[next(iter(self._asked))]


def digest(*texts: str) -> bytes:
    """Of a call or a result: the same in every process, and for no other texts."""
    return hashlib.blake2b(content.json_text(texts).encode(), digest_size=16).digest()


# Failures: what the session itself reports to the model; each says what was wrong and what to do.

#: What happened; {} is why. What the model can do about it: `tools.RETRY_HINTS`.
_TOLD: Final[Mapping[FailureCode, str]] = {
    FailureCode.REPEATED: "The same call gave the same result {} times in a row; it was not run again.",
    FailureCode.DENIED: "The call was not allowed: {}",
    FailureCode.TIMED_OUT: "No result: {}",
    FailureCode.CANCELLED: "The call was cancelled: {}",
    FailureCode.OUTCOME_UNKNOWN: (
        "The call had begun when the process that ran it was lost; whether it had its effect is not known."
    ),
    FailureCode.CRASHED: "The call was not run: what was to run it was lost each time it was sent.",
}
#: Of a transaction whose outcome is not in the database: what it wrote is not there either.
_ROLLED_BACK: Final = (
    "What ran the call was lost each time, before the call was committed: nothing that it wrote was kept."
)


def failure(code: FailureCode, name: ToolName, why: str = "") -> ToolFailure:
    """One of the failures above."""
    return ToolFailure(name, code, _TOLD[code].format(why))


def _lost(call: OpenCall, *, never_began: bool) -> ToolFailure:
    """Of a call that is not sent again."""
    name = call.call.name
    if never_began:
        return failure(FailureCode.CRASHED, name)
    if call.offer is not None and call.offer.contract.effect is Effect.TRANSACTION:
        return ToolFailure(name, FailureCode.CRASHED, _ROLLED_BACK)
    return failure(FailureCode.OUTCOME_UNKNOWN, name)


def _failure_of(event: CallFailure, call: OpenCall) -> ToolFailure:
    name, contract = call.call.name, call.offer.contract if call.offer else None
    match event:
        case events.ApprovalDenied():
            return failure(FailureCode.DENIED, name, event.reason or "it was not approved.")
        case events.ToolCallFailed():
            return event.failure
        case events.ToolCallTimedOut():
            return after_effect(failure(FailureCode.TIMED_OUT, name, "the deadline passed."), contract)
        case events.ToolCallCancelled():
            return failure(FailureCode.CANCELLED, name, "it was stopped.")


def result_fault(name: ToolName, result: str) -> ToolFailure | None:
    """Why this result may not be handed to a model; None when it may."""
    limit = limits.MAX_RESULT_BYTES
    if len(result) * 4 > limit and (size := content.byte_size(result)) > limit:
        told = f"The result has {size:,} bytes; {limit:,} may be handed on."
        return ToolFailure(name, FailureCode.RESULT_TOO_LARGE, told)
    return None


def unknown_tool(name: ToolName, offered: Iterable[ToolName]) -> ToolFailure:
    """The model called a tool that it was not offered."""
    known, told = ", ".join(sorted(offered)) or "none", f"There is no tool named {name!r}."
    received = name[: limits.ERROR_SNIPPET_CHARS]
    return ToolFailure(name, FailureCode.UNKNOWN_TOOL, told, "", f"one of: {known}", received)


def _writes_mask(offer: ToolOffer | None, arguments: str) -> bool:
    return offer is not None and offer.contract.risk is not Risk.READ and MARK in arguments


def masked_call(name: ToolName) -> ToolFailure:
    """What the model wrote would replace a key by the mask that it was shown in its place."""
    told = f"The arguments hold a mask ({MARK}***{MARK}), which covers a secret that you are not shown; it was not run."
    hint = "Leave the masked text as it is in the file: change other lines, or name the place by its span or lines."
    return ToolFailure(name, FailureCode.INVALID_ARGUMENTS, told, "", "no masked text", MARK, hint)


#: Why a call is not run, by the guard that led there. Each takes its signature, the tools shown and the loop limit.
_REFUSED: Final[Mapping[CallGuard, Callable[[Signature, Sequence[ToolName], int], ToolFailure]]] = {
    states.denied: lambda received, _shown, _limit: failure(
        FailureCode.DENIED, received[0], "the owner of this runtime denies such calls."
    ),
    states.run_ended: lambda received, _shown, _limit: failure(
        FailureCode.CANCELLED, received[0], "another call of the turn repeated itself, which ended the run."
    ),
    states.unknown_tool: lambda received, shown, _limit: unknown_tool(received[0], shown),
    states.not_whole: lambda received, _shown, _limit: incomplete_call(*received),
    states.holds_mask: lambda received, _shown, _limit: masked_call(received[0]),
    states.repeated: lambda received, _shown, limit: failure(FailureCode.REPEATED, received[0], str(limit)),
}

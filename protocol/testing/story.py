"""A trace, read once: what the session was told and did, each model call, and the life of each tool call.

Independent of the session's own bookkeeping on purpose: the rules are checked against this reading.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    Command,
    Finish,
    OpenTurn,
    RecordCompaction,
    RecordStep,
    ReportFailure,
    RunTool,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.compaction import Compacted
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    is_json_object,
)
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelLost,
    ModelNoted,
    ModelResponded,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import CALL_BACKSTOP_SECONDS, COMMIT_SECONDS, MAX_ANSWER_BYTES, MAX_RESULT_BYTES
from callboard.protocol.model import CallPurpose, FinishReason, ModelResponse
from callboard.protocol.options import ToolOffer
from callboard.protocol.testing.trace import Entry, Trace, Verb
from callboard.protocol.tools import Effect

#: Float sums of virtual times, in seconds.
EPSILON: Final = 0.01
#: The events that end a call.
CALL_ENDINGS: Final = (ToolCallCompleted, ToolCallFailed, ToolCallTimedOut, ToolCallCancelled, ApprovalDenied)
#: States of a call that waits for someone outside.
WAITING: Final = ("awaiting_approval", "deferred")
_OPEN: Final = frozenset({"sent", "running", *WAITING})
MODEL_ENDINGS: Final = (ModelResponded, ModelFailed, ModelLost)
_OF_MODEL: Final = frozenset({*MODEL_ENDINGS, ModelNoted})
#: A turn that its provider stopped asks for nothing.
STOPPED: Final = frozenset({FinishReason.CONTENT_FILTER, FinishReason.REFUSAL})
#: An answer that ended so is not whole, or may not be.
SHORT: Final = frozenset({FinishReason.LENGTH, FinishReason.REFUSAL, FinishReason.OTHER})
#: A turn that ended so may have been cut in the middle of a call.
CUT: Final = frozenset({FinishReason.LENGTH, FinishReason.ERROR})


#: A model that is known to refuse these is not asked.
_SAID_UNASKED: Final = frozenset({ErrorKind.TOOLS_UNSUPPORTED, ErrorKind.SCHEMA_UNSUPPORTED})


_NONE: Final[list[Any]] = []


class OpenWork(Struct, frozen=True):
    """Who holds what, by commands and answers alone."""

    model: Tag | None = None
    running: frozenset[Tag] = frozenset()
    waiting: frozenset[Tag] = frozenset()
    deferred: frozenset[Tag] = frozenset()
    """Nothing holds these: their results come from outside."""

    def after(self, told: Event | Command | None) -> OpenWork:
        """What is open behind it: an answer closes something, a command opens or closes something."""
        change = _CHANGES.get(type(told))
        return self if change is None or told is None else change(self, told.tag)

    @property
    def calls(self) -> frozenset[Tag]:
        return self.running | self.waiting | self.deferred


def _call_ends(work: OpenWork, tag: Tag) -> OpenWork:
    return OpenWork(work.model, work.running - {tag}, work.waiting - {tag}, work.deferred - {tag})


def _model_call_ends(work: OpenWork, tag: Tag) -> OpenWork:
    return replace(work, model=None) if tag == work.model else work


_CHANGES: Final[Mapping[type[Any], Callable[[OpenWork, Tag], OpenWork]]] = {
    **dict.fromkeys(CALL_ENDINGS, _call_ends),
    **dict.fromkeys(MODEL_ENDINGS, _model_call_ends),
    ToolCallDeferred: lambda work, tag: replace(work, running=work.running - {tag}, deferred=work.deferred | {tag}),
    ApprovalGranted: lambda work, tag: replace(work, waiting=work.waiting - {tag}),
    ToolsLost: lambda work, tag: replace(work, running=frozenset(), waiting=frozenset()),
    RunTool: lambda work, tag: replace(work, running=work.running | {tag}),
    AskApproval: lambda work, tag: replace(work, waiting=work.waiting | {tag}),
    CancelTool: lambda work, tag: replace(work, running=work.running - {tag}),
    WithdrawApproval: lambda work, tag: replace(work, waiting=work.waiting - {tag}),
    ReportFailure: lambda work, tag: replace(work, deferred=work.deferred - {tag}),
    CallModel: lambda work, tag: replace(work, model=tag),
    StopModel: lambda work, tag: replace(work, model=None),
}


class Reaction(Struct):
    """One event that the session took (None: it was resumed), and the commands it gave."""

    at: float
    event: Event | None
    commands: list[Command] = msgspec.field(default_factory=list)
    deadline: float = 0.0
    """When the request must end, with the waits until now."""
    only_waited: bool = False
    """Before it: each open call waited for someone outside."""
    only_waits: bool = False
    """After it."""
    work: OpenWork = OpenWork()
    """What is open when its event was heard, and its commands are not given yet."""
    left: OpenWork = OpenWork()
    """What is open behind its commands."""
    by_kind: dict[type[Any], list[Any]] = msgspec.field(default_factory=dict)
    """Its commands, by their kinds."""

    def add(self, command: Command) -> None:
        """It gave this one too."""
        self.commands.append(command)
        self.by_kind.setdefault(type(command), []).append(command)

    def given(self, kind: type[Any]) -> Sequence[Any]:
        """Its commands of this kind."""
        found: Sequence[Any] = self.by_kind.get(kind, _NONE)
        return found


@dataclass(slots=True)
class ModelRun:
    """One CallModel: why it was given, how it ended, what was recorded of it."""

    command: CallModel
    reaction: Reaction
    records_before: int
    """Steps recorded before it was given."""
    compacted: Compacted
    """What was done to the conversation by then."""
    end: Reaction | None = None
    """The reaction to its ModelResponded, ModelFailed or ModelLost."""
    record: RecordStep | None = None
    open_turn: OpenTurn | None = None
    """Where the request ended with calls for the asker: its turn, which is not recorded."""
    noted: int = 0
    """Requests that it was said to have taken, before it ended."""
    waits_until_at: float = field(init=False)
    """What it waits for is over then: at first as the command says, then as it was last told."""
    asked_at: float | None = None
    """When it was first carried out; None when it was not."""
    words: ModelRun | None = None
    """The model call for further words to search by, before the calls of its turn."""

    def __post_init__(self) -> None:
        self.waits_until_at = self.command.not_before_at

    def hear(self, reaction: Reaction, event: Event) -> None:
        """What becomes of it."""
        if isinstance(event, ModelNoted):
            self.noted = max(self.noted, event.requests)
            self.waits_until_at = event.until_at
        else:
            self.end = reaction

    @property
    def recorded(self) -> tuple[Message, ...]:
        """The turn, and what stands behind it as far as it is known; () where the turn was not kept."""
        if self.open_turn is not None:
            return (self.open_turn.message, *self.open_turn.results, *map(SystemMessage, self.open_turn.notes))
        return self.record.messages if self.record is not None else ()

    @property
    def is_summary(self) -> bool:
        return self.command.purpose is CallPurpose.SUMMARY

    @property
    def calls_begin(self) -> Reaction | None:
        """Where the calls of its turn begin: with the turn, or when further words to search by have come or have not.
        None where that has not happened."""
        return self.end if self.words is None else self.words.end

    @property
    def requests(self) -> int:
        """Those that it took, as far as the session can know; of a lost call one more than was said, but for one that
        was lost with its process. A model that is known to take no tools, or no schema, may not have been asked."""
        assert self.end is not None
        event = self.end.event
        assert isinstance(event, ModelResponded | ModelFailed | ModelLost)
        if isinstance(event, ModelLost):
            return self.noted + (not event.with_process)
        unasked = isinstance(event, ModelFailed) and event.error.kind in _SAID_UNASKED
        return max(0 if unasked else 1, event.requests, self.noted)

    @property
    def response(self) -> ModelResponse | None:
        if self.end is None or not isinstance(self.end.event, ModelResponded) or self.end.event.response.error:
            return None
        return self.end.event.response


class Wait(Struct):
    """A call waits for someone outside."""

    since: float
    seconds: float
    """For so long at the most."""
    until: float | None = None

    @property
    def due(self) -> float:
        """When it must be over."""
        return self.since + self.seconds


class CallRun(Struct):
    """One tool call that was handed out: to the dispatcher, or to a person first."""

    tag: Tag
    name: ToolName
    offer: ToolOffer | None
    runs: list[tuple[float, RunTool]] = msgspec.field(default_factory=list)
    """Each RunTool and the `at` of the event it followed from."""
    request_deadlines: list[float] = msgspec.field(default_factory=list)
    """What the request's deadline was, at each of them."""
    waits: list[Wait] = msgspec.field(default_factory=list)
    """For an approval, or for a result from outside."""
    questions: int = 0
    granted: bool = False
    changed: str = ""
    """The arguments that a person has put in place of the model's."""
    starts: int = 0
    states: list[tuple[str, str, str]] = msgspec.field(default_factory=list)
    """The rows of the call table that it went through: state, event, next state."""
    state: str = "requested"
    ending: Event | None = None
    """The event that ended it."""
    closed_by: Reaction | None = None
    """The reaction in which the session itself ended it."""

    def enter(self, event: Event, state: str) -> None:
        self.states.append((self.state, type(event).__name__, state))
        self.state = state

    @property
    def open(self) -> bool:
        return self.state in _OPEN

    @property
    def is_transaction(self) -> bool:
        return self.offer is not None and self.offer.contract.effect is Effect.TRANSACTION

    @property
    def backstop_seconds(self) -> float:
        """From its deadline to when the session ends it."""
        return CALL_BACKSTOP_SECONDS + (COMMIT_SECONDS if self.is_transaction else 0.0)

    def wait(self, since: float, seconds: float) -> None:
        """A wait begins; a question that is asked again has no more time than it had."""
        if not self.waits or self.waits[-1].until is not None:
            self.waits.append(Wait(since, seconds))

    def wait_no_more(self, until: float) -> None:
        """It is over."""
        if self.waits and self.waits[-1].until is None:
            self.waits[-1].until = until


_END_STATES: Final[Mapping[type[Event], str]] = {
    ToolCallCompleted: "completed",
    ToolCallFailed: "failed",
    ToolCallTimedOut: "timed_out",
    ToolCallCancelled: "cancelled",
    ApprovalDenied: "denied",
}


class Story:
    """A trace by reactions; `start` is None when the request never began."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._slack = trace.scenario.latency_seconds + trace.lag_seconds
        self._jumps = sorted((*trace.scenario.jumps, *trace.jumps))
        self._entries = list(trace.entries)
        self._events: dict[type[Any], list[Any]] = {}
        self._commands: dict[type[Any], list[Any]] = {}
        self._results: list[tuple[Tag, ToolMessage]] | None = None
        self._blocks: list[Block] | None = None
        self.reactions: list[Reaction] = []
        self.dead: list[Entry] = []
        """Dead letters: what was refused, or lost with its process."""
        self._asked_at: dict[Tag, float] = {}
        self.start: RequestStarted | None = None
        self.compacted = Compacted()
        """What was done to the conversation, as far as it was read."""
        self.models: list[ModelRun] = []
        """The model calls that ask for a turn."""
        self.asked: list[ModelRun] = []
        """All model calls: with those that ask for a summary."""
        self.calls: dict[Tag, CallRun] = {}
        self.records: list[RecordStep] = []
        self.offers: dict[ToolName, ToolOffer] = {}
        self.pairs: Counter[tuple[str, str]] = Counter()
        """States of calls that were open side by side, sorted."""
        self._current: list[CallRun] = []
        self._finish: tuple[float, Finish] | None = None
        self._deadline = 0.0
        """Of the request, with the waits that are over."""
        self._waits_since: float | None = None
        """Since then each open call waits for someone outside."""
        self._read()

    @classmethod
    def of(cls, trace: Trace) -> Story:
        """Its story: that of a trace that was read a moment ago, and has not changed since, is not read again."""
        for story in _RECENT:
            if story.trace is trace and story._entries == trace.entries:
                return story
        _RECENT.append(story := cls(trace))
        return story

    # Reading.

    def _read(self) -> None:
        for entry in self._entries:
            verb, value = entry.verb, entry.value
            if verb is Verb.GAVE:
                self.reactions[-1].add(value)  # type: ignore[arg-type]
            elif verb is Verb.APPLIED or verb is Verb.RESUMED:
                self.reactions.append(Reaction(entry.at, value))  # type: ignore[arg-type]
            elif verb is Verb.REFUSED or verb is Verb.LOST:
                self.dead.append(entry)
            elif type(value) is CallModel:
                self._asked_at.setdefault(value.tag, entry.at)
        work = OpenWork()
        for reaction in self.reactions:
            event = reaction.event
            reaction.only_waited = self._waits_since is not None
            if isinstance(event, RequestStarted):
                self._deadline = event.at + event.options.timeout_seconds
            reaction.deadline = self.deadline_at(event.at if event is not None else reaction.at)
            reaction.work = reaction.left = work
            if event is not None:
                reaction.work = work = work.after(event)
                self._events.setdefault(type(event), []).append(event)
                self._hear(reaction, event)
                for command in reaction.commands:
                    kind = type(command)
                    self._commands.setdefault(kind, []).append(command)
                    work = work.after(command)
                    if (see := _SEE.get(kind)) is not None:
                        see(self, reaction, event, command)
                reaction.left = work
                self._close_unanswered(reaction, event)
                self._keep_time(reaction, event.at)
            elif reaction.given(Finish) and self._finish is None:
                self._finish = reaction.at, reaction.given(Finish)[0]

    def _keep_time(self, reaction: Reaction, at: float) -> None:
        """The request's time stands still while each of its open calls waits for someone outside."""
        if not self._current and self._waits_since is None:
            return
        states = [call.state for call in self._current if call.state in _OPEN]
        if len(states) > 1:
            self.pairs.update(set(combinations(sorted(states), 2)))
        is_over = self._waits_since is None and at >= reaction.deadline
        reaction.only_waits = bool(states) and all(state in WAITING for state in states) and not is_over
        if reaction.only_waits and self._waits_since is None:
            self._waits_since = at
        elif not reaction.only_waits:
            self._deadline, self._waits_since = reaction.deadline, None

    def _hear(self, reaction: Reaction, event: Event) -> None:
        kind, call = type(event), self.calls.get(event.tag)
        if isinstance(event, RequestStarted):
            self.start = event
            if event.options.compaction is not None:
                self.compacted = event.compacted
            self.offers = {offer.definition.name: offer for offer in event.tools}
        elif kind in _OF_MODEL:
            if self.asked and self.asked[-1].command.tag == event.tag:
                self.asked[-1].hear(reaction, event)
        elif call is None:
            return
        elif kind is ToolCallStarted:
            call.starts += 1
            call.enter(event, "running")
        elif kind in _END_STATES:
            if call.open:
                is_unsound = isinstance(event, ToolCallCompleted) and is_too_large(event)
                call.enter(event, "failed" if is_unsound else _END_STATES[kind])
                call.wait_no_more(event.at)
            call.ending = call.ending or event
        elif isinstance(event, ToolCallDeferred):
            call.enter(event, "deferred")
            call.wait(event.at, event.timeout_seconds)
        elif isinstance(event, ApprovalGranted):
            call.granted, call.changed = True, call.changed or event.arguments
            call.wait_no_more(event.at)

    def _see_model_call(self, reaction: Reaction, event: Event, command: CallModel) -> None:
        asked_at = self._asked_at.get(command.tag)
        self.asked.append(ModelRun(command, reaction, len(self.records), self.compacted, asked_at=asked_at))
        if command.is_turn:
            self.models.append(self.asked[-1])
        elif command.purpose is CallPurpose.SEARCH_WORDS:
            self.models[-1].words = self.asked[-1]
        self._current = []

    def _see_run(self, reaction: Reaction, event: Event, command: RunTool) -> None:
        call = self._call(command)
        call.runs.append((event.at, command))
        call.request_deadlines.append(reaction.deadline)
        call.enter(event, "sent")

    def _see_question(self, reaction: Reaction, event: Event, command: AskApproval) -> None:
        call = self._call(command)
        call.questions += 1
        call.enter(event, "awaiting_approval")
        if self.start is not None:
            call.wait(event.at, self.start.options.approval_timeout_seconds)

    def _see_record(self, reaction: Reaction, event: Event, record: RecordStep) -> None:
        self.records.append(record)
        for model in self.models[-1:]:
            # With the question of a turn that is handed out, there may be none but notices.
            has_turn = any(isinstance(message, AssistantMessage) for message in record.messages)
            if model.command.tag == record.tag and (has_turn or model.record is None):
                model.record = record

    def _see_compaction(self, reaction: Reaction, event: Event, command: RecordCompaction) -> None:
        self.compacted = command.compacted

    def _see_finish(self, reaction: Reaction, event: Event, command: Finish) -> None:
        if self._finish is None:
            self._finish = reaction.at, command
            for model in self.models[-1:]:
                model.open_turn = command.open_turn

    def _see_stop(self, reaction: Reaction, event: Event, command: CancelTool | WithdrawApproval) -> None:
        self._close(self.calls.get(command.tag), reaction, event)

    def _see_failure(self, reaction: Reaction, event: Event, command: ReportFailure) -> None:
        """Of a deferred call, nothing else says that the session has ended it."""
        deferred = self.calls.get(command.tag)
        if deferred is not None and deferred.state == "deferred":
            self._close(deferred, reaction, event)

    def _call(self, command: RunTool | AskApproval) -> CallRun:
        if command.tag not in self.calls:
            self.calls[command.tag] = CallRun(command.tag, command.name, self.offers.get(command.name))
            self._current.append(self.calls[command.tag])
        return self.calls[command.tag]

    def _close_unanswered(self, reaction: Reaction, event: Event) -> None:
        """Calls that were not handed out again after their holder was lost have been ended by the session."""
        if type(event) is ToolsLost:
            again = {command.tag for kind in (RunTool, AskApproval) for command in reaction.given(kind)}
            for call in self.calls.values():
                if call.state == "deferred":
                    call.enter(event, "deferred")
                elif call.open and call.tag not in again and call.tag.step == event.tag.step:
                    self._close(call, reaction, event)

    @staticmethod
    def _close(call: CallRun | None, reaction: Reaction, event: Event) -> None:
        if call is not None and call.open:
            states = {CancelRequested: "cancelled", DeadlinePassed: "timed_out"}
            in_vain = call.state == "awaiting_approval" and isinstance(event, DeadlinePassed) and event.tag.step
            call.enter(event, "denied" if in_vain else states.get(type(event), "failed"))
            call.wait_no_more(event.at)
            call.closed_by = reaction

    # What was read.

    @property
    def question(self) -> UserMessage:
        """What the request answers. One that goes on from results has none of its own: it is in the history."""
        assert self.start is not None
        return self.start.user if self.start.user.parts else self.start.history[self._question_at]  # type: ignore[return-value]

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The history before the question."""
        assert self.start is not None
        return self.start.history if self.start.user.parts else self.start.history[: self._question_at]

    @property
    def begun(self) -> tuple[Message, ...]:
        """What earlier requests have done about the question."""
        assert self.start is not None
        return () if self.start.user.parts else self.start.history[self._question_at + 1 :]

    @property
    def _question_at(self) -> int:
        assert self.start is not None
        return max(at for at, message in enumerate(self.start.history) if isinstance(message, UserMessage))

    def events(self, *kinds: type[Any]) -> Iterator[Any]:
        """The events of these kinds that the session took."""
        found = [self._events[kind] for kind in kinds if kind in self._events]
        if len(found) <= 1:
            return iter(found[0] if found else _NONE)
        return (reaction.event for reaction in self.reactions if type(reaction.event) in kinds)

    def given(self, kind: type[Any]) -> Sequence[Any]:
        """All commands of a kind; those that a resumed session gives out again are left out."""
        found: Sequence[Any] = self._commands.get(kind, _NONE)
        return found

    def finish(self) -> tuple[float, Finish] | None:
        """When and how the request ended."""
        return self._finish

    def deadline_at(self, at: float) -> float:
        """When the request must end, if all that is read of it was so far, and its time runs from then on."""
        return self._deadline + (max(0.0, at - self._waits_since) if self._waits_since is not None else 0.0)

    def latest(self, due: float) -> float:
        """When something due then is noticed at the latest: session or journal are slow, or the clock has jumped."""
        due += self._slack
        for at, seconds in self._jumps:
            due = at + seconds + self._slack if at <= due < at + seconds else due
        return due + EPSILON

    def blocks(self) -> Sequence[Block]:
        """The turns, with their results, of every history that somebody gets to see: each model call's, and the
        conversation after each step. What a history has in common with the one before it is read once."""
        if self._blocks is None:
            self._blocks = list(self._read_blocks())
        return self._blocks

    def _read_blocks(self) -> Iterator[Block]:
        if self.start is None:
            return
        shown: tuple[Message, ...] = ()
        for model in self.models:
            before, shown = shown, model.command.request.messages
            yield from _blocks(f"the messages of model call {model.command.tag.step}", shown, _in_common(before, shown))
        kept: tuple[Message, ...] = (*self.earlier, self.question, *self.begun)
        yield from _blocks("the conversation before it", kept, 0)
        for record in self.records:
            read, kept = len(kept), kept + record.messages
            yield from _blocks(f"the conversation after step {record.tag.step}", kept, read)

    def results(self) -> Sequence[tuple[Tag, ToolMessage]]:
        """Every result that was recorded or given back in an open turn, by its call's tag."""
        if self._results is None:
            kept = [(record.tag, record.messages) for record in self.records]
            kept += [(model.command.tag, model.recorded) for model in self.models if model.open_turn is not None]
            self._results = [
                (tag.at_call(message.call_id), message)
                for tag, messages in kept
                for message in messages
                if isinstance(message, ToolMessage)
            ]
        return self._results


_SEE: Final[Mapping[type[Any], Callable[[Story, Reaction, Event, Any], None]]] = {
    CallModel: Story._see_model_call,
    RunTool: Story._see_run,
    AskApproval: Story._see_question,
    RecordStep: Story._see_record,
    RecordCompaction: Story._see_compaction,
    Finish: Story._see_finish,
    CancelTool: Story._see_stop,
    WithdrawApproval: Story._see_stop,
    ReportFailure: Story._see_failure,
}
#: Of the traces that were read last: one run under the real actors has a few.
_RECENT: Final[deque[Story]] = deque(maxlen=2)
Block = tuple[str, AssistantMessage, list[ToolMessage]]
"""Where it stands, a turn, and the results directly after it."""


_NO_TURN: Final = AssistantMessage(())


def _in_common(before: Sequence[Message], now: Sequence[Message]) -> int:
    """How many messages both begin with."""
    places = range(min(len(before), len(now)))
    return next((place for place in places if before[place] is not now[place]), len(places))


def _blocks(where: str, messages: Sequence[Message], read: int) -> Iterator[Block]:
    """Each assistant turn with the results directly after it; results that follow no turn come with an empty turn.
    Those among the first `read` messages were read before, but for what the further ones may belong to."""
    turn = _NO_TURN
    block: list[ToolMessage] = []
    begun = False
    read = max(read - 1, 0)
    while read and isinstance(messages[read], ToolMessage):
        read -= 1
    for message in messages[read:]:
        if type(message) is ToolMessage:
            block.append(message)
            continue
        if begun or block:
            yield where, turn, block
        begun, block = type(message) is AssistantMessage, []
        turn = message if type(message) is AssistantMessage else _NO_TURN
    if begun or block:
        yield where, turn, block


def responses(story: Story) -> dict[int, ModelResponded]:
    """The model's answers, by step."""
    return {event.tag.step: event for event in story.events(ModelResponded)}


def is_whole(call: ToolCall) -> bool:
    """Whether a call may be run: the provider finished it, and its arguments are a JSON object."""
    return call.complete and is_json_object(call.arguments)


def answer_texts(response: ModelResponse) -> list[str]:
    """All that the model wrote in one turn."""
    return [part.arguments if isinstance(part, ToolCall) else getattr(part, "text", "") for part in response.parts]


def is_too_long(*said: str) -> bool:
    """Whether this is more than one turn of a model may hold."""
    return _are_over(said, MAX_ANSWER_BYTES)


def is_too_large(event: ToolCallCompleted) -> bool:
    """Whether this is more than one result may hold."""
    return _are_over((event.content,), MAX_RESULT_BYTES)


def _are_over(texts: Sequence[str], limit: int) -> bool:
    """Whether they have more bytes than this together. A character has one to four, so few need be encoded."""
    chars = sum(map(len, texts))
    is_near = limit // 4 < chars <= limit
    return chars > limit or (is_near and sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) > limit)


def holds_nan(text: str) -> bool:
    """Whether a text would be JSON, were NaN and Infinity numbers of JSON."""
    try:
        return isinstance(json.loads(text), dict) and not is_json_object(text)
    except ValueError:
        return False


def signature(call: ToolCall) -> tuple[str, str]:
    """What makes two calls the same: the tool and its arguments, however they were written."""
    if not is_whole(call):
        return call.name, call.arguments
    return call.name, orjson.dumps(orjson.loads(call.arguments), option=orjson.OPT_SORT_KEYS).decode()


def without_notices(messages: Sequence[Message]) -> list[Message]:
    """What the step itself comes to."""
    return [message for message in messages if not is_notice(message)]


def is_notice(message: Message) -> bool:
    """Is it one of those that a scenario sends (`outside.notice`)?"""
    return type(message) is SystemMessage and message.text.startswith("notice ")

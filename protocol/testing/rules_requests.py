"""The rules about the request as a whole: what may happen when, how it ends, and that it never stands still."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, Final

import orjson

from callboard.protocol.commands import (
    WENT_WELL,
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    Outcome,
    ReportFailure,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import is_json_object
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    Event,
    ModelFailed,
    ModelNoted,
    ModelResponded,
    ModelStreamed,
    NoticeCame,
    RequestStarted,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallTimedOut,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.limits import CLOCK_TOLERANCE_SECONDS, MAX_CALL_SENDS
from callboard.protocol.model import FinishReason, Usage
from callboard.protocol.testing.expected import Follows, expected_turns
from callboard.protocol.testing.rules_limits import LIMITS, spending
from callboard.protocol.testing.story import (
    CALL_ENDINGS,
    MODEL_ENDINGS,
    SHORT,
    OpenWork,
    Reaction,
    Story,
    answer_texts,
    is_too_long,
)
from callboard.protocol.testing.trace import Entry, Verb

_CARRIED_OUT: Final = frozenset({RunTool, CallModel, AskApproval})
_STOPS: Final = frozenset({CancelTool, WithdrawApproval, StopModel})
_NEEDS_CARRYING_OUT: Final = frozenset({ToolCallCompleted, ModelResponded, ApprovalGranted})
_MODEL_EVENTS: Final = (ModelStreamed, ModelNoted, *MODEL_ENDINGS)


# I4, I7.


def no_early_step(story: Story) -> Iterator[str]:
    """I4: the model is not called while a call, or another model call, is open."""
    for reaction in story.reactions:
        if reaction.event is None or CallModel not in reaction.by_kind:
            continue
        work = reaction.work
        for command in reaction.commands:
            if isinstance(command, CallModel) and work.calls:
                yield f"model call {command.tag.step} while {len(work.calls)} calls are open"
            if isinstance(command, CallModel) and work.model is not None:
                yield f"model call {command.tag.step} while {work.model.step} is open"
            work = work.after(command)


def cancel_ends(story: Story) -> Iterator[str]:
    """I7: a cancel ends the request at once; its end stops all that is open; only what is open is stopped."""
    for reaction in story.reactions:
        if reaction.event is None:
            continue
        work = reaction.work
        cancelled = type(reaction.event) is CancelRequested
        if cancelled or Finish in reaction.by_kind:
            yield from _left_behind(work, reaction.commands)
        if cancelled:
            if [command.outcome for command in reaction.given(Finish)] != [Outcome.CANCELLED]:
                yield "a cancelled request did not finish as cancelled"
            if reaction.given(CallModel) or reaction.given(RunTool) or reaction.given(AskApproval):
                yield "a cancelled request began new work"
        if not _STOPS.isdisjoint(reaction.by_kind):
            for command in reaction.commands:
                yield from _stopped_wrongly(work, command)
                work = work.after(command)


def _stopped_wrongly(work: OpenWork, command: Command) -> Iterator[str]:
    match command:
        case CancelTool() if command.tag not in work.running:
            yield f"call {command.tag} was cancelled, and does not run"
        case WithdrawApproval() if command.tag not in work.waiting:
            yield f"the question about {command.tag} was withdrawn, and is not open"
        case StopModel() if command.tag != work.model:
            yield f"model call {command.tag.step} was stopped, and is not open"


def _left_behind(work: OpenWork, commands: Sequence[Any]) -> Iterator[str]:
    told: dict[type[Any], set[Tag]] = {}
    for command in commands:
        told.setdefault(type(command), set()).add(command.tag)
    if work.model is not None and work.model not in told.get(StopModel, ()):
        yield f"model call {work.model.step} was left running"
    yield from (f"call {tag} was left running" for tag in work.running - told.get(CancelTool, set()))
    yield from (f"the question about {tag} was left open" for tag in work.waiting - told.get(WithdrawApproval, set()))


# I9, I11.


def conserved(story: Story) -> Iterator[str]:
    """I9: every message sent was handled, is a dead letter with a reason, or is still queued."""
    handled = sum(reaction.event is not None for reaction in story.reactions)
    dead = story.dead
    if story.trace.sent != handled + len(dead) + story.trace.queued:
        yield f"{story.trace.sent} sent, {handled} handled, {len(dead)} dead, {story.trace.queued} queued"
    yield from (f"a dead {type(entry.value).__name__} without a reason" for entry in dead if not entry.note)


def isolated(story: Story) -> Iterator[str]:
    """I11: nothing of another request goes in or comes out."""
    if story.start is None:
        return
    own, ours = story.start.tag.request, story.start.tag[:2]
    for reaction in story.reactions:
        for value in (reaction.event, *reaction.commands):
            if value is not None and value.tag[:2] != ours:
                yield f"{type(value).__name__} is of request {value.tag.request_id!r}, not {own.request_id!r}"


# I21.


def true_finish(story: Story) -> Iterator[str]:
    """I21: a request ends once, as what happened says; usage and cost are of its model calls, each once."""
    ends = [each for each in story.reactions if each.event is not None and Finish in each.by_kind]
    finishes = [(reaction, command) for reaction in ends for command in reaction.given(Finish)]
    if len(finishes) > 1:
        yield "the request finished more than once"
    for reaction, finish in finishes[:1]:
        yield from _wrong_outcome(story, reaction, finish)
        yield from _wrong_sums(story, finish)
        if bool(finish.reason) != _needs_reason(story, finish):
            yield f"it ended as {finish.outcome} with the reason {finish.reason!r}"
        if finish.finish_reason is not (stopped := _finish_reason(story)):
            yield f"its last turn ended as {stopped}, and it says {finish.finish_reason}"
        if finish.outcome is Outcome.ANSWERED and _is_short(story) and not reaction.given(Note):
            yield f"its answer ended as {stopped} without a note"
        if story.start is not None and finish.tag != story.start.tag:
            yield f"the end has the tag {finish.tag}"


def _needs_reason(story: Story, finish: Finish) -> bool:
    """Every end but a whole answer, and calls for the asker, is explained."""
    return finish.outcome not in WENT_WELL or _is_short(story)


def _is_short(story: Story) -> bool:
    """The last turn is a text that was cut, or may be, or a call that its model wrote as text. Calls that are whole are
    not."""
    turns = expected_turns(story)
    is_text = not turns or turns[-1].follows is not Follows.CALLS
    is_written_call = bool(turns) and turns[-1].is_written_call and turns[-1].follows is Follows.ANSWER
    return is_text and (_finish_reason(story) in SHORT or is_written_call)


def _finish_reason(story: Story) -> FinishReason:
    """Why the turn of the last model call ended; OTHER where it had none."""
    last = story.asked[-1] if story.asked else None
    if story.models and story.models[-1].words is last and last is not None and last.end is not None:
        last = story.models[-1]  # its calls have begun
    response = last.response if last is not None and last.command.is_turn else None
    if response is None or is_too_long(*answer_texts(response)):
        return FinishReason.OTHER
    return response.finish_reason


def _wrong_outcome(story: Story, reaction: Reaction, finish: Finish) -> Iterator[str]:
    event, outcome = reaction.event, finish.outcome
    if isinstance(event, CancelRequested):
        expected: frozenset[Outcome] = frozenset({Outcome.CANCELLED})
    elif isinstance(event, DeadlinePassed) and story.start is not None and event.tag == story.start.tag:
        expected = frozenset({Outcome.TIMED_OUT})
        if event.at < reaction.deadline - CLOCK_TOLERANCE_SECONDS:
            yield f"it timed out at {event.at:g}, its deadline is {reaction.deadline:g}"
    elif isinstance(event, ModelStreamed):
        expected = frozenset({Outcome.FAILED})  # an answer longer than any may be
    elif isinstance(event, MODEL_ENDINGS):
        expected = _outcomes_of_summary(event) if story.asked[-1].is_summary else _outcomes_of_turn(story)
    else:
        # A step is complete, or none was begun: only a limit ends it here, or the answer that its turn held.
        turns = expected_turns(story)
        ends_as = turns[-1].ends_as if turns else None
        expected = LIMITS if ends_as is None else frozenset({ends_as})
    if outcome not in expected:
        yield f"it ended as {outcome} after {type(event).__name__}, which is one of {sorted(expected)}"


def _outcomes_of_summary(event: Event) -> frozenset[Outcome]:
    """One that fails ends nothing, but for a fault of callboard's own (docs/providers.md, "What goes wrong")."""
    is_ours = isinstance(event, ModelFailed) and event.error.kind is ErrorKind.INTERNAL
    return frozenset({Outcome.FAILED}) if is_ours else LIMITS


def _outcomes_of_turn(story: Story) -> frozenset[Outcome]:
    turn = expected_turns(story)[-1]
    by_calls = frozenset({Outcome.REPEATED_CALLS}) if turn.loops else LIMITS
    return {
        Follows.ANSWER: frozenset({Outcome.ANSWERED}),
        Follows.FAIL: frozenset({Outcome.FAILED}),
        Follows.GIVEN_UP: frozenset({Outcome.FAILED}),
        Follows.MISFIT: LIMITS,
        Follows.CUT_ON: LIMITS,
        Follows.CALLS: by_calls if turn.ends_as is None else frozenset({turn.ends_as}),
        Follows.GO_ON: LIMITS,
        Follows.OTHER_WAY: LIMITS,
        Follows.AGAIN: LIMITS,
        Follows.WITHOUT_TOOLS: LIMITS,
        Follows.CUT_HARDER: LIMITS,
    }[turn.follows]


def _is_same_cost(said: float | None, spent: float | None) -> bool:
    return said is spent if said is None or spent is None else abs(said - spent) <= 1e-9


def _dollars(cost: float | None) -> str:
    return "a cost that is not known" if cost is None else f"${cost:g}"


def _wrong_sums(story: Story, finish: Finish) -> Iterator[str]:
    assert story.start is not None
    spent = spending(story)[None]
    if finish.usage != spent.reported_usage:
        yield f"it says {finish.usage}, the providers reported {spent.reported_usage}"
    if spent.exact and not _is_same_cost(finish.cost, spent.cost):
        yield f"it says {_dollars(finish.cost)}, spent were {_dollars(spent.cost)}"
    yield from _wrong_steps(story, finish)


def _wrong_steps(story: Story, finish: Finish) -> Iterator[str]:
    if [step.purpose for step in finish.steps] != [model.command.purpose for model in story.asked]:
        yield f"it says {len(finish.steps)} model calls, made were {len(story.asked)}, or what they were for"
    used = sum((step.usage for step in finish.steps if step.usage is not None), Usage())
    if finish.usage not in (None, used):
        yield f"its steps used {used}, it says {finish.usage}"
    begun = [call.call.name for turn in expected_turns(story) for call in turn.calls]
    if (told := [call.name for step in finish.steps for call in step.calls]) != begun:
        yield f"its steps tell of the calls {told}, begun were {begun}"


# I24, I25.


def goes_on(story: Story) -> Iterator[str]:
    """I24: until its end a request waits for something: a model call, a tool call, or someone outside."""
    for reaction in story.reactions:
        if reaction.event is None:
            continue
        if Finish in reaction.by_kind:
            return
        if reaction.left.model is None and not reaction.left.calls:
            yield f"after {type(reaction.event).__name__} it waits for nothing"
            return


class ExpectedEvents:
    """Which events a session must take now, by the commands that it gave: all others it must refuse."""

    def __init__(self, request: Tag) -> None:
        self.request = request
        self.started = self.over = False
        self.model: Tag | None = None
        self.step = request
        self.calls: dict[Tag, str] = {}
        """What each open call waits for: "person", "start", "end" or "outside"."""
        self.timer = False
        """Whether the step has a timer, and it has not fired."""

    def allows(self, event: Event) -> bool:
        """Whether a session must take this event now."""
        if type(event) is RequestStarted:
            return not self.started and event.tag == self.request
        if not self.started or self.over or event.tag[:2] != self.request[:2]:
            return False
        return _ALLOWS[type(event)](self, event)

    def took(self, event: Event, commands: Sequence[Command]) -> None:
        """Learn from what was taken, and from the commands it led to."""
        self.started = True
        for told in (event, *commands):
            if (learns := _LEARNS.get(type(told))) is not None:
                learns(self, told)

    def _begins(self, command: RunTool | AskApproval) -> None:
        self.calls[command.tag] = "start" if isinstance(command, RunTool) else "person"
        self.step = command.tag.at_step(command.tag.step)

    def _call_ends(self, told: Event | Command) -> None:
        self.calls.pop(told.tag, None)

    def _call_begins(self, event: ToolCallStarted) -> None:
        self.calls[event.tag] = "end"

    def _call_is_deferred(self, event: ToolCallDeferred) -> None:
        self.calls[event.tag] = "outside"

    def _calls_are_lost(self, event: ToolsLost) -> None:
        self.calls = {tag: waits_for for tag, waits_for in self.calls.items() if waits_for == "outside"}

    def _model_ends(self, event: Event) -> None:
        self.model = None

    def _timer(self, told: SetTimer | ClearTimer | DeadlinePassed) -> None:
        if told.tag == self.step:
            self.timer = isinstance(told, SetTimer)

    def _step_begins(self, command: CallModel) -> None:
        self.model = self.step = command.tag
        self.calls, self.timer = {}, False

    def _ends(self, command: Finish) -> None:
        self.over = True


def _while_call_waits(*states: str) -> Callable[[ExpectedEvents, Event], bool]:
    return lambda expected, event: expected.calls.get(event.tag) in states


def _allows_grant(expected: ExpectedEvents, event: Any) -> bool:
    return expected.calls.get(event.tag) == "person" and (not event.arguments or is_json_object(event.arguments))


#: When each kind of event is due in a request that has begun.
_ALLOWS: Final[Mapping[type[Any], Callable[[ExpectedEvents, Any], bool]]] = {
    CancelRequested: lambda expected, event: True,
    NoticeCame: lambda expected, event: True,
    **dict.fromkeys(_MODEL_EVENTS, lambda expected, event: event.tag == expected.model),
    DeadlinePassed: lambda expected, event: (
        event.tag == expected.request or (expected.timer and event.tag == expected.step)
    ),
    ToolsLost: lambda expected, event: expected.model is None and event.tag == expected.step,
    ApprovalGranted: _allows_grant,
    ApprovalDenied: _while_call_waits("person"),
    ToolCallStarted: _while_call_waits("start"),
    ToolCallCompleted: _while_call_waits("start", "end", "outside"),
    ToolCallFailed: _while_call_waits("start", "end", "outside"),
    ToolCallDeferred: _while_call_waits("start", "end"),
    ToolCallTimedOut: _while_call_waits("start", "end"),
    ToolCallCancelled: _while_call_waits("start", "end"),
}
#: What follows from what was taken, and from what was given; of all else, nothing.
_LEARNS: Final[Mapping[type[Any], Callable[[ExpectedEvents, Any], None]]] = {
    **dict.fromkeys(CALL_ENDINGS, ExpectedEvents._call_ends),
    **dict.fromkeys(MODEL_ENDINGS, ExpectedEvents._model_ends),
    ToolCallStarted: ExpectedEvents._call_begins,
    ToolCallDeferred: ExpectedEvents._call_is_deferred,
    ToolsLost: ExpectedEvents._calls_are_lost,
    CallModel: ExpectedEvents._step_begins,
    **dict.fromkeys((RunTool, AskApproval), ExpectedEvents._begins),
    **dict.fromkeys((SetTimer, ClearTimer, DeadlinePassed), ExpectedEvents._timer),
    **dict.fromkeys((CancelTool, WithdrawApproval, ReportFailure), ExpectedEvents._call_ends),
    Finish: ExpectedEvents._ends,
}


def taken_or_refused(story: Story) -> Iterator[str]:
    """I25: exactly those events are taken that are due: of this request, of what is open, before the end."""
    if story.start is None:
        starts = [entry for entry in story.trace.entries if isinstance(entry.value, RequestStarted)]
        yield from (f"the request was not begun: {entry.note}" for entry in starts if entry.verb is Verb.REFUSED)
        return
    expected = ExpectedEvents(story.start.tag)
    reactions = iter(story.reactions)
    for entry in story.trace.entries:
        event: Any = entry.value
        if entry.verb is Verb.REFUSED and expected.allows(event):
            yield f"{type(event).__name__} {event.tag} was refused, and it was due: {entry.note}"
        elif entry.verb in (Verb.APPLIED, Verb.RESUMED):
            reaction = next(reactions)
            if reaction.event is None:
                continue
            if not expected.allows(event):
                yield f"{type(event).__name__} {event.tag} was taken, and it was not due"
            expected.took(event, reaction.commands)


# I27.

#: What a session says itself of a call that it denies: it has sent the question so often.
_NOBODY_IS_LEFT: Final = f"each of {MAX_CALL_SENDS} dispatchers that were to ask about "


def _is_for_request(granted: ApprovalGranted) -> bool:
    return granted.rule.endswith(("for this request", "for always"))


def _stands(story: Story, granted: ApprovalGranted, told: Sequence[Entry], begun: Set[Tag]) -> bool:
    """Was an equal question answered for the rest of the request by then? One that was put, and where the answer came
    too late for its own call, too."""
    answers = (each.value for each in told if each.verb in (Verb.APPLIED, Verb.REFUSED))
    for_request = {each.tag for each in answers if isinstance(each, ApprovalGranted) and _is_for_request(each)}
    tags = {granted.tag, *(for_request & begun)}
    questions = [each for each in story.given(AskApproval) if each.tag in tags]
    equal = {each.tag: (each.name, orjson.loads(each.arguments)) for each in questions}
    return equal.pop(granted.tag, None) in equal.values()


def carried_out(story: Story) -> Iterator[str]:
    """I27: what is carried out is what the session asked for: the same calls, as often as it gave them, no others.

    A person may be asked again as long as the session waits for the answer: whoever asked may have been lost. So it may
    behind a no of the session's own, since each dispatcher was lost: the next one puts the question, then reads that it
    is withdrawn. An answer that says it is for the request counts for equal questions too, which are not put any more.
    """
    waiting: dict[tuple[type[Any], Tag], list[Any]] = {}
    begun: set[Tag] = set()
    asked: dict[Tag, AskApproval] = {}
    for number, entry in enumerate(story.trace.entries):
        value: Any = entry.value
        if entry.verb is Verb.GAVE:
            if type(value) in _CARRIED_OUT:
                waiting.setdefault((type(value), value.tag), []).append(value)
        elif entry.verb is Verb.RAN or entry.verb is Verb.ASKED:
            begun.add(value.tag)
            given = waiting.get((type(value), value.tag), [])
            if value in given:
                given.remove(value)
                if isinstance(value, AskApproval):
                    asked[value.tag] = value
            elif asked.get(value.tag) != value:
                yield f"{type(value).__name__} {value.tag} was carried out, and the session did not give it so (again)"
        elif entry.verb is Verb.APPLIED:
            if not (isinstance(value, ApprovalDenied) and value.reason.startswith(_NOBODY_IS_LEFT)):
                asked.pop(value.tag, None)
            is_unfounded = type(value) in _NEEDS_CARRYING_OUT and value.tag not in begun
            counts_too = isinstance(value, ApprovalGranted) and _is_for_request(value)
            if is_unfounded and not (counts_too and _stands(story, value, story.trace.entries[:number], begun)):
                yield f"{type(value).__name__} {value.tag} came, and nothing was carried out that could lead to it"

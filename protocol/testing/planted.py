"""Faults planted on purpose, at least one for each rule: what the kit must find, and so the proof that it looks.

Each is a mutation of what a session hears and says. `hunting.find` hunts one and shrinks it to a short story;
`independent_faults` holds more, by an author who did not know the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import orjson
from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Command,
    Finish,
    Note,
    Outcome,
    RecordStep,
    ReportFailure,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import (
    AssistantMessage,
    Message,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    DeadlinePassed,
    Event,
    ModelLost,
    ModelResponded,
    RequestStarted,
    ToolCallCompleted,
    ToolCallDeferred,
    ToolCallFailed,
    ToolCallStarted,
    ToolsLost,
)
from callboard.protocol.ids import Tag, ToolName
from callboard.protocol.limits import MAX_WAIT_SECONDS
from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.planted_compaction import COMPACTION_FAULTS
from callboard.protocol.testing.planted_outputs import OUTPUT_FAULTS
from callboard.protocol.testing.planted_outside import OUTSIDE_FAULTS
from callboard.protocol.testing.planted_told import CARRIED_FAULTS, TOLD_FAULTS
from callboard.protocol.testing.planted_words import SEARCH_FAULTS, WORDS_FAULTS
from callboard.protocol.testing.planting import (
    FAULTS,
    Fault,
    changing,
    dropping,
    fault,
    hearing,
    plant,
    recording,
    saying,
    showing,
    with_contracts,
    with_offers,
    with_options,
)
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.story import is_notice, without_notices
from callboard.protocol.testing.trace import Entry, Trace, Verb
from callboard.protocol.tools import Decision, Effect, FailureCode, Hold, Risk

# I1 to I3: results and their places.


@fault("I1 terminal once")
class LateAnswerCounts(Mutation):
    """A late answer is taken as a second end."""

    def __init__(self) -> None:
        self.ended: set[Tag] = set()

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if isinstance(event, ToolCallCompleted) and event.tag in self.ended:
            return ()
        raise error

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self.ended.update({event.tag} if isinstance(event, ToolCallCompleted) else ())
        return commands


plant("I1 terminal once", "a call that is not run is not reported", dropping(ReportFailure))


def _results_by_success(messages: tuple[Message, ...]) -> Iterable[Message]:
    results = [message for message in messages if isinstance(message, ToolMessage)]
    return (*messages[:1], *sorted(results, key=lambda result: result.is_error), *messages[1 + len(results) :])


def _note_between(messages: tuple[Message, ...]) -> Iterable[Message]:
    failed = any(isinstance(message, ToolMessage) and message.is_error for message in messages)
    return (messages[0], SystemMessage("a call failed"), *messages[1:]) if failed else messages


def _all_well(messages: tuple[Message, ...]) -> Iterable[Message]:
    return [replace(message, is_error=False) if isinstance(message, ToolMessage) else message for message in messages]


plant("I1 terminal once", "a failed result is not marked as an error", recording(_all_well))


def _all_trusted(messages: tuple[Message, ...]) -> Iterable[Message]:
    return [replace(each, is_trusted=True) if isinstance(each, ToolMessage) else each for each in messages]


def _untold_changes(messages: tuple[Message, ...]) -> Iterable[Message]:
    return [each for each in messages if not (isinstance(each, SystemMessage) and "a person" in each.text)]


plant("I1 terminal once", "what a tool says counts as the owner's words", recording(_all_trusted))
plant("I17 recorded truly", "the model does not read that a person has changed a call", recording(_untold_changes))
plant("I2 valid history", "a cancelled step is recorded without results", recording(lambda messages: messages[:1]))
plant("I2 valid history", "a note stands between turn and results", recording(_note_between))
plant("I3 order", "results stand by success, not by call", recording(_results_by_success))


@fault("I1 terminal once")
class CrashedMeansTimedOut(Mutation):
    """A crash reads as a timeout to the model."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallFailed) and event.failure.code is FailureCode.CRASHED:
            return replace(event, failure=replace(event.failure, code=FailureCode.TIMED_OUT))
        return event


# I4 to I7: steps, limits, cancels.


@fault("I4 no early step")
class StartsEarly(Mutation):
    """The next step starts when the first call has ended."""

    asked: CallModel | None = None

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self.asked = next((c for c in commands if isinstance(c, CallModel)), self.asked)
        early = isinstance(event, ToolCallCompleted) and self.session.calls and not commands
        if not early or self.asked is None:
            return commands
        return [replace(self.asked, tag=self.asked.tag.at_step(self.asked.tag.step + 1))]


@fault("I5 bounded")
class DeadlineWaitsForPeople(Mutation):
    """The deadline waits for people, also while tools run."""

    def hears(self, event: Event) -> Event | None:
        waiting = "awaiting_approval" in self.session.calls.values()
        own = isinstance(event, DeadlinePassed) and event.tag == self.session.tag
        return None if own and waiting else event


@fault("I22 timers")
class TheClockIsNeverHalted(Mutation):
    """The request's time runs on while it only waits."""

    deadline_at = 0.0

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, RequestStarted):
            self.deadline_at = event.at + event.options.timeout_seconds
        return [self._in_time(command) for command in commands]

    def _in_time(self, command: Command) -> Command:
        if isinstance(command, SetTimer) and command.tag == self.session.tag:
            return replace(command, at=self.deadline_at)
        if isinstance(command, RunTool | CallModel):
            return replace(command, deadline_at=min(command.deadline_at, self.deadline_at))
        return command


@fault("I22 timers")
class TheClockIsNeverStartedAgain(Mutation):
    """Once a request has only waited, its time does not run any more."""

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        begins = isinstance(event, RequestStarted | DeadlinePassed)
        own = self.session.tag
        return [c for c in commands if begins or not (isinstance(c, SetTimer) and c.tag == own)]


@fault("I22 timers")
class CountsEachWait(Mutation):
    """The deadline moves by the sum of the waits, also where they overlap or a tool ran beside them."""

    def __init__(self) -> None:
        self._since: dict[Tag, float] = {}
        self._waited = self._deadline_at = 0.0

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        if isinstance(event, RequestStarted):
            self._deadline_at = event.at + event.options.timeout_seconds
        if isinstance(event, ToolCallDeferred):
            self._since.setdefault(event.tag, event.at)
        elif event.tag in self._since:
            self._waited += event.at - self._since.pop(event.tag)
        self._since |= {c.tag: event.at for c in commands if isinstance(c, AskApproval) and c.tag not in self._since}
        moved = self._deadline_at + self._waited
        return [replace(c, at=moved) if isinstance(c, SetTimer) and c.tag == self.session.tag else c for c in commands]


@fault("I5 bounded")
class WaitsForOutsideWithoutEnd(Mutation):
    """A deferred call stays open until its result comes."""

    def hears(self, event: Event) -> Event | None:
        return replace(event, timeout_seconds=MAX_WAIT_SECONDS) if isinstance(event, ToolCallDeferred) else event


@fault("I1 terminal once")
class TwoResultsFromOutside(Mutation):
    """A second result of a deferred call is taken too."""

    def __init__(self) -> None:
        self._deferred: set[Tag] = set()

    def hears(self, event: Event) -> Event | None:
        self._deferred |= {event.tag} if isinstance(event, ToolCallDeferred) else set()
        return event

    def refuses(self, event: Event, error: ProtocolError) -> Sequence[Command]:
        if event.tag in self._deferred and isinstance(event, ToolCallCompleted):
            return []
        raise error


@fault("I16 sent again")
class DeferredCallsRunAgain(Mutation):
    """A deferred call is sent again when the holder of the others is lost."""

    def __init__(self) -> None:
        self._runs: dict[Tag, RunTool] = {}

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self._runs |= {c.tag: c for c in commands if isinstance(c, RunTool)}
        waiting = [tag for tag, state in self.session.calls.items() if state == "deferred"]
        again = [self._runs[tag] for tag in waiting if isinstance(event, ToolsLost)]
        return [*commands, *again]


plant(
    "I6 budgets hold",
    "one step more than allowed",
    with_options(lambda options: replace(options, max_steps=options.max_steps + 1)),
)
plant(
    "I6 budgets hold",
    "the token budget is not looked at",
    with_options(lambda options: replace(options, token_budget=None)),
)
plant(
    "I6 budgets hold",
    "the cost budget is not looked at",
    with_options(lambda options: replace(options, cost_budget=None)),
)
plant(
    "I6 budgets hold",
    "the limit of output tokens is forgotten",
    changing(
        CallModel,
        lambda call: replace(
            call, request=replace(call.request, sampling=replace(call.request.sampling, max_output_tokens=None))
        ),
    ),
)
plant("I7 cancel", "a cancel leaves the stream running", dropping(StopModel))
plant("I7 cancel", "a cancel leaves the tools running", dropping(CancelTool))
plant("I7 cancel", "a cancel leaves the question open", dropping(WithdrawApproval))


# I8 to I12: journal, letters, neighbours, half calls.


@fault("I8 replay")
class ReplaySkipsDenials(Mutation):
    """A denial is not in the journal."""

    def journals(self, event: Event, lines: tuple[Event, ...]) -> tuple[Event, ...]:
        return tuple(line for line in lines if not isinstance(line, ApprovalDenied))


@fault("I8 replay")
class ReadsOnlyTheEnd(Mutation):
    """A replay stops at the first failure of a tool."""

    def reads(self, journal: list[Event]) -> Iterable[Event]:
        failed = next((i for i, event in enumerate(journal) if isinstance(event, ToolCallFailed)), len(journal))
        return journal[:failed]


@fault("I10 blast radius")
class CrashTakesSiblings(Mutation):
    """A crash is reported of the call's siblings too."""

    def __init__(self) -> None:
        self.crashed: ToolMessage | None = None

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallFailed) and event.failure.code is FailureCode.CRASHED:
            content = orjson.dumps(event.failure.to_wire()).decode()
            self.crashed = ToolMessage(event.tag.call_id, event.failure.tool, content, is_error=True)
        return event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        crashed = self.crashed
        if crashed is None:
            return commands
        return [self._spread(crashed, c) if isinstance(c, RecordStep) else c for c in commands]

    def _spread(self, crashed: ToolMessage, record: RecordStep) -> RecordStep:
        self.crashed = None
        spread = [
            replace(message, content=crashed.content, is_error=True) if isinstance(message, ToolMessage) else message
            for message in record.messages
        ]
        return replace(record, messages=tuple(spread))


@fault("I11 isolation")
class StepNumberIsEnough(Mutation):
    """Another request's answer is taken."""

    def hears(self, event: Event) -> Event | None:
        own = self.session.tag.request_id
        return replace(event, tag=event.tag._replace(request_id=own)) if own else event


@fault("I12 no half calls")
class RunsHalfCalls(Mutation):
    """Half a call is run."""

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ModelResponded):
            return event
        parts = [
            replace(part, arguments="{}", complete=True) if isinstance(part, ToolCall) and not part.complete else part
            for part in event.response.parts
        ]
        return replace(event, response=replace(event.response, parts=tuple(parts)))


@fault("I18 shown as recorded")
class ShowsDeniedTools(Mutation):
    """A tool that policy denies is shown to the model."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, RequestStarted):
            self._tools = tuple(offer.definition for offer in event.tools)
        return event

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [self._showing_all(c) if isinstance(c, CallModel) else c for c in commands]

    def _showing_all(self, command: CallModel) -> CallModel:
        request = command.request
        return replace(command, request=replace(request, tools=self._tools)) if request.tools else command


# I13 to I16: leave, deadlines, effect ids, losses.


def _without_hints(messages: tuple[Message, ...]) -> Iterable[Message]:
    for message in messages:
        if isinstance(message, ToolMessage) and message.is_error:
            told = {**orjson.loads(message.content), "retry_hint": None}
            message = replace(message, content=orjson.dumps(told).decode())
        yield message


plant("I1 terminal once", "a failure does not say what to do next", recording(_without_hints))
plant(
    "I13 leave to run",
    "what policy denies is run",
    with_offers(lambda offer: replace(offer, decision=Decision.ALLOW) if offer.decision is Decision.DENY else offer),
)
plant(
    "I13 leave to run",
    "what must be asked about is run",
    with_offers(lambda offer: replace(offer, decision=Decision.ALLOW) if offer.decision is Decision.ASK else offer),
)
plant("I13 leave to run", "a question understates the risk", with_contracts(risk=Risk.READ))
plant(
    "I13 leave to run",
    "text from outside does not count",
    with_options(lambda options: replace(options, ask_after_untrusted=False)),
)
plant(
    "I13 leave to run",
    "a question does not say that text from outside was read",
    changing(AskApproval, lambda question: replace(question, is_after_untrusted=False)),
)
plant(
    "I13 leave to run",
    "a call that a person has changed runs as the model wrote it",
    hearing(lambda event: replace(event, arguments="") if isinstance(event, ApprovalGranted) else event),
)
plant(
    "I13 leave to run",
    "a call that was granted to be held runs free",
    hearing(lambda event: replace(event, hold=Hold.NONE) if isinstance(event, ApprovalGranted) else event),
)


@fault("I13 leave to run")
class DeniedRunsAfterLoss(Mutation):
    """A call that was denied runs when its siblings' holder is lost."""

    def __init__(self) -> None:
        self.denied: list[Tag] = []

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        self.denied += [event.tag] if isinstance(event, ApprovalDenied) else []
        again = [tag for tag in self.denied if isinstance(event, ToolsLost) and tag.step == event.tag.step]
        return [*commands, *(RunTool(tag, ToolName("write"), "{}", event.at + 5.0, str(tag)) for tag in again)]


plant("I14 call deadlines", "every call has the longest deadline", with_contracts(timeout_seconds=600.0))
plant(
    "I15 effect ids",
    "an effect id is shared by calls of one id",
    changing(RunTool, lambda run: replace(run, effect_id=f"{run.tag.request_id}/{run.tag.call_id}")),
)
plant("I16 sent again", "what had begun is run again", with_contracts(effect=Effect.REPEAT))


plant("I16 sent again", "lost calls are not sent again", dropping(RunTool, after=ToolsLost))


# I17 to I19: records.


def _without_thinking(messages: tuple[Message, ...]) -> Iterable[Message]:
    first = messages[0]
    if not isinstance(first, AssistantMessage):
        return messages
    kept = tuple(part for part in first.parts if type(part).__name__ != "Thinking")
    return (replace(first, parts=kept or (Text("x"),)), *messages[1:])


plant("I17 recorded truly", "thinking is not recorded", recording(_without_thinking))
plant("I17 recorded truly", "the final answer is not recorded", dropping(RecordStep, after=ModelResponded))


plant(
    "I18 shown as recorded",
    "the instructions are not shown",
    showing(lambda messages: messages[1:] if isinstance(messages[0], SystemMessage) else messages),
)
plant(
    "I18 shown as recorded",
    "the question is shown twice",
    showing(lambda messages: [m for message in messages for m in [message] * (1 + isinstance(message, UserMessage))]),
)
plant(
    "I18 shown as recorded",
    "only the last exchange is shown",
    showing(lambda messages: messages[-7:] if not isinstance(messages[-7:][0], ToolMessage) else messages),
)
plant(
    "I19 recorded in place",
    "the step is recorded after the next call",
    saying(lambda event, commands: sorted(commands, key=lambda command: isinstance(command, RecordStep))),
)


# I20 to I23: turns, ends, timers, model calls.

plant(
    "I20 turns decide",
    "a step is asked again once more",
    with_options(lambda options: replace(options, max_attempts=options.max_attempts + 1)),
)
plant(
    "I13 leave to run",
    "a repetition is noticed one step late",
    with_options(lambda options: replace(options, repeated_call_limit=options.repeated_call_limit + 1)),
)


@fault("I13 leave to run")
class TakesPollingForALoop(Mutation):
    """A poll is taken for a loop."""

    def __init__(self) -> None:
        self._came: dict[Tag, str] = {}

    def hears(self, event: Event) -> Event | None:
        if not isinstance(event, ToolCallCompleted):
            return event
        self._came.setdefault(event.tag, event.content)
        return replace(event, content="1")

    def says(self, event: Event, commands: list[Command]) -> Sequence[Command]:
        return [self._restored(c) if isinstance(c, RecordStep) else c for c in commands]

    def _restored(self, record: RecordStep) -> RecordStep:
        came = {tag.call_id: result for tag, result in self._came.items() if tag.step == record.tag.step}
        restored = (
            replace(m, content=came[m.call_id]) if isinstance(m, ToolMessage) and m.content == "1" else m
            for m in record.messages
        )
        return replace(record, messages=tuple(restored))


plant("I20 turns decide", "a step is asked again without a note", dropping(Note))
plant(
    "I21 true finish",
    "the cost of the last call is forgotten",
    saying(
        lambda event, commands: [
            replace(c, cost=c.cost - event.cost)
            if isinstance(c, Finish) and isinstance(event, ModelResponded) and c.cost and event.cost
            else c
            for c in commands
        ]
    ),
)
plant(
    "I21 true finish",
    "every end is an answer",
    changing(Finish, lambda finish: replace(finish, outcome=Outcome.ANSWERED)),
)
plant(
    "I21 true finish",
    "a report forgets the calls of its step",
    changing(Finish, lambda finish: replace(finish, steps=tuple(replace(step, calls=()) for step in finish.steps))),
)
plant(
    "I21 true finish",
    "a report says of each model call that it used nothing",
    changing(Finish, lambda finish: replace(finish, steps=tuple(replace(each, usage=None) for each in finish.steps))),
)
plant("I22 timers", "the request has no timer", dropping(SetTimer, after=RequestStarted))
plant("I22 timers", "calls have no timer", dropping(SetTimer, after=ModelResponded))
plant("I22 timers", "timers are never cleared", dropping(ClearTimer))
plant(
    "I23 model calls",
    "a lost model call is asked again at once",
    changing(CallModel, lambda call: replace(call, not_before_at=0.0)),
)
plant(
    "I23 model calls",
    "a model call has no deadline of its own",
    changing(CallModel, lambda call: replace(call, deadline_at=call.deadline_at + 1_200.0)),
)


plant(
    "I23 model calls",
    "a model call keeps the number of the one before",
    changing(CallModel, lambda call: replace(call, tag=call.tag.at_step(max(1, call.tag.step - 1)))),
)


# I28, I30, I32 to I35: each with its docstring as its name, or a name of its own.

for _invariant, _name, _mutation in (*OUTPUT_FAULTS, *WORDS_FAULTS, *SEARCH_FAULTS, *TOLD_FAULTS):
    plant(_invariant, _name, _mutation)
FAULTS.extend(Fault(_name, "I35 in time", _play) for _name, _play in CARRIED_FAULTS)
for _invariant, _mutation in COMPACTION_FAULTS:
    fault(_invariant)(_mutation)


# I29: what the model should read of what happened outside.


def _with_notices(change: Callable[[tuple[Message, ...], tuple[Message, ...]], tuple[Message, ...]]) -> type[Mutation]:
    """Change the records that hold notices: made of what the step comes to, and of its notices."""

    def changed(record: RecordStep) -> RecordStep:
        notices = tuple(filter(is_notice, record.messages))
        return replace(record, messages=change(tuple(without_notices(record.messages)), notices)) if notices else record

    return changing(RecordStep, changed)


plant("I29 notices", "a notice is told nowhere", _with_notices(lambda step, notices: step))
plant("I29 notices", "a notice is told twice", _with_notices(lambda step, notices: (*step, *notices, *notices)))
plant(
    "I29 notices",
    "a notice comes before the last message",
    _with_notices(lambda step, notices: (*step[:-1], *notices, *step[-1:])),
)


# I24 to I26: progress, due events, resume.


plant("I24 goes on", "after a denial no step follows", dropping(CallModel, after=ApprovalDenied))


@fault("I25 taken or refused")
class StartedIsRefused(Mutation):
    """That a call has begun is refused."""

    def hears(self, event: Event) -> Event | None:
        if isinstance(event, ToolCallStarted):
            raise ProtocolError(self.session.state, event, "not now")
        return event


@fault("I26 resume")
class ForgetsRecords(Mutation):
    """A resumed session forgets its records."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return [command for command in commands if not isinstance(command, RecordStep)]


@fault("I26 resume")
class ForgetsTimer(Mutation):
    """A resumed session forgets its timer."""

    def resumes(self, commands: list[Command]) -> Sequence[Command]:
        return [command for command in commands if not isinstance(command, SetTimer)]


@fault("I26 resume")
class ForgetsTheModel(Mutation):
    """A model call that a crash has cut off is not told."""

    def loses(self, loss: Event | None) -> Event | None:
        return None if isinstance(loss, ModelLost) else loss


@fault("I20 turns decide")
class CountsTheEndOfTheProcess(Mutation):
    """A model call that ended with its process is a request of the step's `max_attempts`."""

    def hears(self, event: Event) -> Event | None:
        return replace(event, with_process=False) if isinstance(event, ModelLost) else event


# Faults of the runtime that carries a session, rather than of the session.


def _fault_of_the_runtime(invariant: str, name: str, change: Callable[[Entry], Entry | None]) -> None:
    def play(scenario: Scenario, seed: int) -> Trace:
        trace = drive(scenario, seed)
        trace.entries = [entry for entry in map(change, trace.entries) if entry is not None]
        return trace

    FAULTS.append(Fault(name, invariant, play))


_fault_of_the_runtime(
    "I9 conservation", "dead letters vanish", lambda entry: None if entry.verb is Verb.REFUSED else entry
)
_fault_of_the_runtime(
    "I27 carried out",
    "cancelled calls are begun",
    lambda entry: replace(entry, verb=Verb.RAN) if isinstance(entry.value, CancelTool) else entry,
)
_fault_of_the_runtime(
    "I27 carried out",
    "tools get other arguments",
    lambda entry: (
        replace(entry, value=replace(entry.value, arguments='{"x":0}'))
        if entry.verb is Verb.RAN and isinstance(entry.value, RunTool)
        else entry
    ),
)


for _invariant, _name, _mutation in OUTSIDE_FAULTS:
    plant(_invariant, _name, _mutation)

"""What there is to be reached besides the rows of the tables: commands, rules, effects, ends, errors, plans, crashes.

Of each trace is told what it has reached, as often as it did. A rule is reached as often as it had something to judge:
read from the trace here, not by the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, get_args

import orjson

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CallOutside,
    Command,
    Finish,
    Note,
    Outcome,
    RunTool,
    SetTimer,
)
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ErrorKind
from callboard.protocol.events import (
    CancelRequested,
    Event,
    ModelFailed,
    ModelLost,
    ModelResponded,
    NoticeCame,
    ToolCallDeferred,
    ToolCallStarted,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose
from callboard.protocol.testing.expected import ASKED_AGAIN, expected_turns
from callboard.protocol.testing.invariants import INVARIANTS
from callboard.protocol.testing.outside import Plans
from callboard.protocol.testing.scenario import ModelDoes, OutsideDoes, PersonDoes, ToolDoes
from callboard.protocol.testing.story import OpenWork, Story, is_whole, responses
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import Effect, FailureCode

EVENTS: Final[tuple[type[Any], ...]] = get_args(Event)
_DIES_WHILE: Final = {
    CallPurpose.TURN: "a turn is asked for",
    CallPurpose.SUMMARY: "a summary is asked for",
    CallPurpose.SEARCH_WORDS: "words are asked for",
}
#: What may be open when the process dies.
CRASH_WHILE: Final = (
    *_DIES_WHILE.values(),
    "a model call waits to begin",
    "a call waits for a person",
    "a call is sent",
    "a call runs",
    "a call is deferred",
    "the request is over",
    "an event is not written",
)

#: What there is, by kind.
MEMBERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "command": tuple(kind.__name__ for kind in get_args(Command)),
        "rule": tuple(name.partition(" ")[0] for name in INVARIANTS),
        "effect": tuple(Effect),
        "end": tuple(Outcome),
        "error": tuple(ErrorKind),
        "failure": tuple(FailureCode),
        "tool": tuple(ToolDoes),
        "model": tuple(ModelDoes),
        "person": tuple(PersonDoes),
        "outside": tuple(OutsideDoes),
        "dies while": CRASH_WHILE,
        "dies after": tuple(kind.__name__ for kind in EVENTS),
    }
)


def reached(trace: Trace, story: Story) -> Iterator[tuple[str, str]]:
    """Each member that this trace has reached, with its kind, as often as it did."""
    for entry in trace.entries:
        if entry.verb is Verb.GAVE:
            yield "command", type(entry.value).__name__
    for name, judged in JUDGED.items():
        yield from [("rule", name)] * judged(story)
    for call in story.calls.values():
        if call.runs and call.offer is not None:
            yield "effect", call.offer.contract.effect
    if (end := story.finish()) is not None:
        yield "end", end[1].outcome
    for event in story.events(ModelFailed, ModelResponded):
        error = event.error if isinstance(event, ModelFailed) else event.response.error
        if error is not None:
            yield "error", error.kind
    for _, result in story.results():
        if result.is_error:
            yield "failure", orjson.loads(result.content).get("code", "")
    yield from _plans(trace, story)
    yield from _crashes(trace)


def _plans(trace: Trace, story: Story) -> Iterator[tuple[str, str]]:
    """What the scenario held for those who were asked."""
    plans, deferred = Plans(trace.scenario), {event.tag for event in story.events(ToolCallDeferred)}
    for entry in trace.entries:
        match entry.value:
            case CallModel() as command if entry.verb is Verb.ASKED:
                yield "model", plans.next_turn(command).does
            case AskApproval() as question if entry.verb is Verb.ASKED:
                yield "person", plans.of(question).person
            case RunTool() as run if entry.verb is Verb.RAN:
                yield "tool", plans.of(run).does
                if run.tag in deferred:
                    yield "outside", plans.of(run).outside


class _Open:
    """What is open in a run that may die, as its events and commands say."""

    def __init__(self) -> None:
        self.work = OpenWork()
        self.begun: set[Tag] = set()
        self.call: CallModel | None = None
        self.is_over = False
        self.last = ""

    def read(self, verb: Verb, value: Any) -> None:
        """One entry of the trace."""
        if verb is Verb.APPLIED:
            self.last = type(value).__name__
            self.work = self.work.after(value)
            if isinstance(value, ToolCallStarted):
                self.begun.add(value.tag)
        elif verb is Verb.GAVE:
            self.work = self.work.after(value)
            self.is_over = self.is_over or isinstance(value, Finish)
            self.call = value if isinstance(value, CallModel) else self.call

    def told(self, at: float) -> Iterator[str]:
        """What is open at that time, each once."""
        if self.work.model is not None and self.call is not None:
            waits = self.call.not_before_at > at
            yield "a model call waits to begin" if waits else _DIES_WHILE[self.call.purpose]
        states = {
            "a call waits for a person": self.work.waiting,
            "a call is sent": self.work.running - self.begun,
            "a call runs": self.work.running & self.begun,
            "a call is deferred": self.work.deferred,
        }
        yield from (name for name, calls in states.items() if calls)
        if self.is_over:
            yield "the request is over"


def _crashes(trace: Trace) -> Iterator[tuple[str, str]]:
    """Behind which event the process died, and what was open then."""
    seen, unwritten = _Open(), False
    for entry in trace.entries:
        if entry.verb is Verb.LOST:
            unwritten = True
        elif entry.verb is Verb.RESUMED:
            if seen.last:
                yield "dies after", seen.last
            yield from (("dies while", what) for what in seen.told(entry.at))
            if unwritten:
                yield "dies while", "an event is not written"
            unwritten = False
        else:
            seen.read(entry.verb, entry.value)


def _results(at_least: int) -> Callable[[Story], int]:
    """Steps that were recorded with so many results."""

    def count(story: Story) -> int:
        held = [[each for each in record.messages if isinstance(each, ToolMessage)] for record in story.records]
        return sum(len(results) >= at_least for results in held)

    return count


def _events(*kinds: type[Any]) -> Callable[[Story], int]:
    return lambda story: sum(1 for _ in story.events(*kinds))


def _given(*kinds: type[Any]) -> Callable[[Story], int]:
    return lambda story: sum(len(story.given(kind)) for kind in kinds)


def _entries(*verbs: Verb) -> Callable[[Story], int]:
    return lambda story: sum(entry.verb in verbs for entry in story.trace.entries)


def _strangers(story: Story) -> int:
    own = story.trace.scenario.tag.request
    return sum(entry.verb is Verb.REFUSED and entry.value.tag.request != own for entry in story.trace.entries)  # type: ignore[union-attr]


def _asked_for(purpose: CallPurpose) -> Callable[[Story], int]:
    return lambda story: sum(model.command.purpose is purpose for model in story.asked)


def _with_limits(story: Story) -> int:
    options = story.start.options if story.start is not None else None
    limits = (options.token_budget, options.cost_budget, options.context_tokens) if options is not None else ()
    return len(story.models) if any(limit is not None for limit in limits) else 0


def _half_calls(story: Story) -> int:
    return sum(not is_whole(call) for event in responses(story).values() for call in event.response.tool_calls)


#: How often a rule had something to judge, by its number.
JUDGED: Final[Mapping[str, Callable[[Story], int]]] = MappingProxyType(
    {
        "I1": lambda story: len(story.results()),
        "I2": _results(1),
        "I3": _results(2),
        "I4": lambda story: max(0, len(story.asked) - 1),
        "I5": _given(Finish),
        "I6": _with_limits,
        "I7": _events(CancelRequested),
        "I8": lambda story: len(story.reactions),
        "I9": lambda story: story.trace.sent,
        "I10": lambda story: sum(
            each.is_error and orjson.loads(each.content).get("code") == FailureCode.CRASHED
            for _, each in story.results()
        ),
        "I11": _strangers,
        "I12": _half_calls,
        "I13": _given(AskApproval),
        "I14": _given(RunTool),
        "I15": lambda story: sum(len(call.runs) > 1 for call in story.calls.values()),
        "I16": _events(ToolsLost),
        "I17": lambda story: len(story.records),
        "I18": lambda story: max(0, len(story.models) - 1),
        "I19": lambda story: len(story.records),
        "I20": lambda story: sum(turn.follows in ASKED_AGAIN for turn in expected_turns(story)),
        "I21": _given(Finish),
        "I22": _given(SetTimer),
        "I23": _events(ModelLost),
        "I24": lambda story: len(story.reactions),
        "I25": _entries(Verb.REFUSED),
        "I26": _entries(Verb.RESUMED),
        "I27": _entries(Verb.RAN, Verb.ASKED),
        "I28": _asked_for(CallPurpose.SUMMARY),
        "I29": _events(NoticeCame),
        "I30": lambda story: sum(bool(event.checked) for event in story.events(ModelResponded)),
        "I31": _given(CallOutside),
        "I32": _asked_for(CallPurpose.SEARCH_WORDS),
        "I33": lambda story: sum(len(finish.steps) for finish in story.given(Finish)),
        "I34": _given(Note),
        "I35": _entries(Verb.RAN, Verb.ASKED),
    }
)

"""Was a scenario played as it is? Each of its accidents, and over many scenarios each kind of thing that they hold.

The rules judge what a trace shows; this asks what it should have shown. It holds a runtime, not a session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any, Final

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    CancelTool,
    ClearTimer,
    Finish,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    DeadlinePassed,
    ModelNoted,
    ModelStreamed,
    NoticeCame,
    ToolCallDeferred,
    ToolsLost,
)
from callboard.protocol.ids import Tag
from callboard.protocol.model import CallPurpose
from callboard.protocol.testing.scenario import PersonDoes, PlannedCall, Scenario, Store, ToolDoes
from callboard.protocol.testing.story import CALL_ENDINGS, OpenWork
from callboard.protocol.testing.trace import Entry, Trace, Verb
from callboard.protocol.tools import Decision

#: Sums of virtual times, in seconds.
_EXACT: Final = 1e-6
_CAME: Final = (Verb.APPLIED, Verb.REFUSED, Verb.LOST)
_CARRIED_OUT: Final = (RunTool, AskApproval, CallModel)


class _Clock:
    """Virtual time, which jumps."""

    def __init__(self, jumps: Iterable[tuple[float, float]]) -> None:
        self.jumps: list[tuple[float, float]] = []
        """From when until when; what was due in between came at the end."""
        for when, seconds in sorted(jumps):
            begins = max(when, self.jumps[-1][1] if self.jumps else 0.0)
            self.jumps.append((begins, begins + seconds))

    def latest(self, at: float) -> float:
        """When at the latest comes what was due at `at`?"""
        for begins, ends in self.jumps:
            if begins <= at < ends:
                at = ends
        return at


def differences(trace: Trace) -> Iterator[str]:
    """What is in the trace and not in its scenario, and the other way round; one sentence each.

    What a `World` was asked for came in its time (the rule I35), and its accidents are looked for here. Another trace
    has times and words of its own: of that only what no runtime may do otherwise.
    """
    yield from (f"{_told(event)} came at {event.at:g}, and nobody had sent it" for event in trace.made_up)
    yield from (f"{_told(command)} was given, and never carried out" for command in trace.undone)
    yield from _not_carried_out(trace)
    yield from _accidents(trace) if trace.in_world else _other_verdicts(trace)


def _accidents(trace: Trace) -> Iterator[str]:
    """What happens to a runtime from outside, at the times that the scenario says, while its request is open."""
    scenario, clock, end = trace.scenario, _Clock(trace.scenario.jumps), _end(trace)
    own, others = set[float](), set[float]()
    for entry in trace.entries:
        if entry.verb in _CAME and entry.value is not None:
            (own if entry.value.tag.request == scenario.tag else others).add(entry.at)
    for what, planned, seen in (
        ("an event that is not due", scenario.strays, own | others),
        ("an event of another request", scenario.foreign, others),
    ):
        for begins, ends in ((at, clock.latest(at)) for at, _ in planned):
            if ends < end - _EXACT and not any(begins - _EXACT <= at <= ends + _EXACT for at in seen):
                yield f"{what} was due at {ends:g}, and nothing came then"
    yield from _deaths(trace, clock, end)
    yield from _losses_not_told(trace, clock, end)
    for begins, ends in clock.jumps:
        if any(begins + _EXACT < entry.at < ends - _EXACT for entry in trace.entries):
            yield f"the clock jumped from {begins:g} to {ends:g}, and something happened in between"


def _other_verdicts(trace: Trace) -> Iterator[str]:
    """Answers of persons that say otherwise than the scenario does."""
    calls = [call for turn in trace.scenario.turns for call in turn.calls]
    asked = {entry.value.tag: entry.value for entry in trace.entries if isinstance(entry.value, AskApproval)}
    for entry in trace.entries if not trace.scenario.strays else ():
        event: Any = entry.value
        command = asked.get(event.tag) if isinstance(event, ApprovalGranted | ApprovalDenied) else None
        if command is not None:
            said = PersonDoes.GRANT if isinstance(event, ApprovalGranted) else PersonDoes.DENY
            planned = {
                call.person for call in calls if (call.tool, call.arguments) == (command.name, command.arguments)
            }
            if planned and said not in planned:
                yield f"{_told(event)} came at {entry.at:g}, and the scenario's person does not say so"


def _told(value: Any) -> str:
    place = "/".join(str(part) for part in (value.tag.step, value.tag.call_id) if part)
    return f"{type(value).__name__} {place}".rstrip()


def _end(trace: Trace) -> float:
    """When the request was over."""
    ends = (entry.at for entry in trace.entries if entry.verb is Verb.GAVE and isinstance(entry.value, Finish))
    return next(ends, trace.entries[-1].at if trace.entries else 0.0)


def _not_carried_out(trace: Trace) -> Iterator[str]:
    """Commands that were given, and neither begun nor taken back; in a `World` `undone` says so too."""
    waiting: dict[tuple[type[Any], Tag], Entry] = {}
    for entry in trace.entries:
        command: Any = entry.value
        if entry.verb is Verb.RESUMED or isinstance(command, ToolsLost):
            waiting.clear()
        elif entry.verb is Verb.APPLIED and isinstance(command, CALL_ENDINGS):
            waiting.pop((RunTool, command.tag), None)  # it waited for room, and was given up; in a World it runs
        elif entry.verb is Verb.GAVE and isinstance(command, _CARRIED_OUT if trace.in_world else CallModel):
            waiting[type(command), command.tag] = entry
        elif entry.verb in (Verb.RAN, Verb.ASKED):
            waiting.pop((type(command), command.tag), None)
        elif entry.verb is Verb.GAVE and isinstance(command, StopModel | CancelTool | WithdrawApproval):
            waiting = {key: other for key, other in waiting.items() if key[1] != command.tag}
    last = trace.entries[-1].at if trace.entries else 0.0
    for entry in waiting.values():
        begins = max(entry.at, getattr(entry.value, "not_before_at", 0.0)) + trace.lag_seconds
        if _Clock(trace.scenario.jumps).latest(begins) < last - _EXACT:
            yield f"{_told(entry.value)} was given at {entry.at:g}, and never carried out"


def _deaths(trace: Trace, clock: _Clock, end: float) -> Iterator[str]:
    began = next((entry.at for entry in trace.entries if entry.verb is Verb.APPLIED), inf)
    came = sum(entry.verb is Verb.RESUMED for entry in trace.entries)
    due = sum(began < at and clock.latest(at) < end - _EXACT for at in trace.scenario.restart_at)
    if came < due:
        yield f"the process died {due} times before {end:g}, and came back from its journal {came} times"


def _losses_not_told(trace: Trace, clock: _Clock, end: float) -> Iterator[str]:
    told = [entry.at for entry in trace.entries if isinstance(entry.value, ToolsLost) and entry.verb in _CAME]
    dies_unwritten = trace.scenario.restart_at and trace.scenario.store != Store()
    for begins, ends in ((at, clock.latest(at)) for at in trace.scenario.tools_lost_at if not dies_unwritten):
        heard = any(begins - _EXACT <= at <= ends + _EXACT for at in told)
        if not heard and ends < end - _EXACT and _had_calls(trace, begins, ends):
            yield f"the tools were lost at {ends:g}, calls were open, and the session heard of no ToolsLost"


def _had_calls(trace: Trace, begins: float, ends: float) -> bool:
    """Were calls open all the time?"""
    work = OpenWork()
    seen: list[bool] = []
    for entry in trace.entries:
        if entry.at > ends:
            break
        if entry.at >= begins and not seen:
            seen.append(bool(work.running or work.waiting))
        if entry.verb is Verb.RESUMED:
            work = OpenWork()
        elif entry.verb is Verb.APPLIED or entry.verb is Verb.GAVE:
            work = work.after(entry.value)
        if entry.at >= begins:
            seen.append(bool(work.running or work.waiting))
    return all(seen) and bool(seen or work.running or work.waiting)


# Over many scenarios.

Holds = Callable[[Scenario], bool]
Shows = Callable[[Entry, Tag], bool]
"""Does this line of a trace show it, in the request of this tag?"""


def _calls(fits: Callable[[PlannedCall], bool]) -> Holds:
    return lambda scenario: any(fits(call) for turn in scenario.turns for call in turn.calls)


def _asked(*persons: PersonDoes) -> Holds:
    """A call that a person is asked about, and answers so."""

    def holds(scenario: Scenario) -> bool:
        asked = {offer.definition.name for offer in scenario.tools if offer.decision is Decision.ASK}
        return any(call.tool in asked and call.person in persons for turn in scenario.turns for call in turn.calls)

    return holds


def _is(verb: Verb | None, *kinds: type[Any]) -> Shows:
    return lambda entry, _: (verb is None or entry.verb is verb) and isinstance(entry.value, kinds)


#: What scenarios hold, and how a trace shows that it was played.
PLAYED: Final[dict[str, tuple[Holds, Shows]]] = {
    "a question that is put": (_asked(*PersonDoes), _is(Verb.ASKED, AskApproval)),
    "a person who says yes": (_asked(PersonDoes.GRANT), _is(None, ApprovalGranted)),
    "a person who says no": (_asked(PersonDoes.DENY), _is(None, ApprovalDenied)),
    "a tool that runs": (_calls(lambda call: call.does is ToolDoes.COMPLETE), _is(Verb.RAN, RunTool)),
    "a call that is deferred": (_calls(lambda call: call.does is ToolDoes.DEFER), _is(None, ToolCallDeferred)),
    "a model that streams": (lambda scenario: any(turn.text for turn in scenario.turns), _is(None, ModelStreamed)),
    "a request that failed": (
        lambda scenario: any(turn.requests > 1 for turn in scenario.turns),
        _is(None, ModelNoted),
    ),
    "a model that is stopped": (lambda scenario: scenario.cancel_at is not None, _is(Verb.GAVE, StopModel)),
    "a tool that is cancelled": (_calls(lambda call: call.does is ToolDoes.HANG), _is(Verb.GAVE, CancelTool)),
    "a timer that is set": (_calls(lambda call: True), _is(Verb.GAVE, SetTimer)),
    "a timer that is cleared": (_calls(lambda call: True), _is(Verb.GAVE, ClearTimer)),
    "a timer that fires": (_calls(lambda call: call.does is ToolDoes.VANISH), _is(None, DeadlinePassed)),
    "a user who leaves": (lambda scenario: scenario.cancel_at is not None, _is(None, CancelRequested)),
    "a process that dies": (lambda scenario: bool(scenario.restart_at), lambda entry, _: entry.verb is Verb.RESUMED),
    "tools that are lost": (lambda scenario: bool(scenario.tools_lost_at), _is(None, ToolsLost)),
    "an event that is not due": (lambda scenario: bool(scenario.strays), lambda entry, _: entry.verb is Verb.REFUSED),
    "an event of another request": (
        lambda scenario: bool(scenario.foreign),
        lambda entry, tag: entry.value is not None and entry.value.tag.request != tag,
    ),
    "a notice": (lambda scenario: bool(scenario.notices_at), _is(None, NoticeCame)),
    "a summary": (
        lambda scenario: bool(scenario.summaries),
        lambda entry, _: getattr(entry.value, "purpose", None) is CallPurpose.SUMMARY,
    ),
}
#: Of so many scenarios that hold something, one shows it.
_ENOUGH: Final = 20


class Tally:
    """What the scenarios so far held, and their traces never showed."""

    def __init__(self) -> None:
        self._held: dict[str, int] = dict.fromkeys(PLAYED, 0)
        self._shown: set[str] = set()

    def add(self, trace: Trace) -> None:
        """One more conversation."""
        for name, (holds, shows) in PLAYED.items():
            if name not in self._shown and holds(trace.scenario):
                self._held[name] += 1
                if any(shows(entry, trace.scenario.tag) for entry in trace.entries):
                    self._shown.add(name)

    def never(self) -> list[tuple[str, str]]:
        """What was never played, although many scenarios hold it: its name, and a sentence's part."""
        return [
            (name, f"{name} (in {held} scenarios)") for name, held in self._held.items() if self._is_missing(name, held)
        ]

    def _is_missing(self, name: str, held: int) -> bool:
        return held >= _ENOUGH and name not in self._shown

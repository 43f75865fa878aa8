"""What must hold after crashes, however a process was killed: checked from outside.

Effects are counted where they were left, what was shown is what the killed process had written into its pipe, and the
journal is read by the rules of the testing kit, which read it independently of the code that wrote it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from crash_load import ANSWER, KINDS, STEPS, key, keys

from callboard.actors.journal.journal_records import RequestLog
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import ProtocolError
from callboard.protocol.events import (
    ModelStreamed,
    ToolCallCancelled,
    ToolCallCompleted,
    ToolCallFailed,
    ToolCallTimedOut,
)
from callboard.protocol.machine import Session
from callboard.protocol.testing.invariants import broken
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.story import Story
from callboard.protocol.testing.trace import Trace, Verb

RULES: Final = ("I1 terminal once", "I2 valid history", "I3 order", "I4 no early step", "I8 replay")
#: What need not be durable before it is shown: pieces of an answer that is still being written.
NOT_WRITTEN: Final = frozenset({ModelStreamed.__name__, "ToolProgressed"})


@dataclass
class Told:
    """What the processes of one round have said before they were killed."""

    accepted: set[str] = field(default_factory=set)
    shown: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    """(request, event, step, call): how often."""
    ended: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    points: list[tuple[str, int, int]] = field(default_factory=list)
    left_behind: int = 0
    """Processes after whose end something of theirs was still running."""
    starts: int = 0
    kills: int = 0
    has_all: bool = False
    """The last of them said that every request has ended."""

    def hear(self, line: Mapping[str, Any]) -> None:
        match line:
            case {"accepted": request}:
                self.accepted.add(request)
            case {"shown": request, "event": event, "step": step, "call": call}:
                self.shown[request, event, step, call] += 1
            case {"ended": request, "text": text}:
                self.ended[request].add(text)
            case {"failed": request, "error": error}:
                self.failed[request].add(error)
            case {"point": [file, number, times]}:
                self.points.append((file, number, times))
            case {"all": True}:
                self.has_all = True


@dataclass
class Verdict:
    """Of one round, or of many."""

    requests: int = 0
    starts: int = 0
    kills: int = 0
    calls: int = 0
    told: Counter[str] = field(default_factory=Counter)
    """Calls by what became of them: done, or a failure that the model was told of."""
    doubled: Counter[str] = field(default_factory=Counter)
    """Calls with more than one effect, by kind."""
    missing: Counter[str] = field(default_factory=Counter)
    """Calls that are told as done and had no effect, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """With which requests ended."""
    faults: list[str] = field(default_factory=list)

    def add(self, other: Verdict) -> None:
        self.requests += other.requests
        self.starts += other.starts
        self.kills += other.kills
        self.calls += other.calls
        self.told += other.told
        self.doubled += other.doubled
        self.missing += other.missing
        self.errors += other.errors
        self.faults += other.faults


def judged(ids: Iterable[str], told: Told, effects: Counter[str], done: Mapping[str, bool] | None = None) -> Verdict:
    """What can be seen without looking into a journal: ends, answers, effects. `done`: of each call whether it was told
    as done; None where all were."""
    ids = list(ids)
    verdict = Verdict(len(ids), told.starts, told.kills)
    if not told.has_all:
        verdict.faults.append("the last process did not end")
    for request in ids:
        verdict.errors.update(error.replace(request, "...")[:200] for error in told.failed.get(request, ()))
        if request not in told.ended and request not in told.failed:
            verdict.faults.append(f"{request} never ended")
        if len(told.ended.get(request, ())) > 1 or (request in told.ended and request in told.failed):
            verdict.faults.append(f"{request} ended in different ways: {told.ended[request]}, {told.failed[request]}")
        for text in told.ended.get(request, set()) - {ANSWER}:
            verdict.faults.append(f"{request} ended with {text!r}")
        for call_key in keys(request):
            count = effects[call_key]
            kind = call_key.rpartition("/")[2]
            is_done = request in told.ended if done is None else done.get(call_key, False)
            verdict.calls += 1
            verdict.doubled[kind] += count > 1
            verdict.missing[kind] += is_done and count == 0
    unknown = effects.keys() - {call_key for request in ids for call_key in keys(request)}
    verdict.faults += [f"an effect of {call_key}, which nobody asked for" for call_key in sorted(unknown)]
    return verdict


def judged_with_journal(
    ids: Iterable[str], told: Told, effects: Counter[str], logs: Mapping[str, RequestLog]
) -> Verdict:
    """Of callboard: also what its journal says."""
    ids = list(ids)
    done: dict[str, bool] = {}
    outcomes = Counter[str]()
    faults: list[str] = []
    for request in ids:
        log = logs.get(request)
        if log is None:
            faults.append(f"{request} is not in the journal")
            continue
        faults += [f"{request}: {fault}" for fault in log_faults(log, told)]
        for step in range(1, STEPS + 1):
            for kind in KINDS:
                outcome = outcome_of(log, f"{step}-{kind}")
                done[key(request, step, kind)] = outcome == "done"
                outcomes[f"{kind} {outcome}"] += 1
                # Exactly once: with its effect it is never told as failed.
                if kind == "transaction" and outcome != "done" and effects[key(request, step, kind)]:
                    faults.append(f"{key(request, step, kind)} had its effect and was told as {outcome}")
    verdict = judged(ids, told, effects, done)
    verdict.told = outcomes
    verdict.faults += faults
    # Of `repeat`, an effect more is what its author has allowed; the others are promises.
    for kind in ("once", "blocking", "transaction"):
        if verdict.doubled[kind]:
            verdict.faults.append(f"{verdict.doubled[kind]} calls of `{kind}` had more than one effect")
    for kind, count in verdict.missing.items():
        if count:
            verdict.faults.append(f"{count} calls of `{kind}` were told as done and had no effect")
    return verdict


def outcome_of(log: RequestLog, call: str) -> str:
    """ "done", the code of its failure as the model reads it, or how it ended otherwise; "open" without an end. The ids
    of calls are each there once: the number of a step is another one when its model call was lost."""
    for record in log.records:
        event = record.event
        if event.tag.call_id == call and isinstance(event, ToolCallCompleted):
            return "done"
        if event.tag.call_id == call and isinstance(event, ToolCallFailed):
            return event.failure.code.value
        if event.tag.call_id == call and isinstance(event, ToolCallTimedOut | ToolCallCancelled):
            return type(event).__name__
    for _, message in log.messages:  # the session itself has ended it
        if isinstance(message, ToolMessage) and message.call_id == call:
            try:
                return str(orjson.loads(message.content)["code"])
            except (ValueError, TypeError, KeyError):  # a result, whose event is lost
                return "told without an event"
    # Committed with its effect; its event could not be written any more, and so its request ended without a Finish.
    is_cut_off = log.end is not None and log.end.finish is None
    committed = (each for each in log.outcomes if each.tag.call_id == call)
    if is_cut_off and any(isinstance(each.outcome, ToolCallCompleted) for each in committed):
        return "done"
    return "open"


def log_faults(log: RequestLog, told: Told) -> Iterator[str]:
    """Numbers without gaps, an end, everything that was shown, and the rules."""
    request = str(log.request_id)
    if log.damage:
        yield f"damaged: {log.damage}"
    if log.end is None:
        yield "has no end in the journal"
    numbers = [record.number for record in log.records]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its events are numbered {numbers}"
    try:
        story = story_of(log)
    except ProtocolError as error:
        yield f"I8 replay: {error}"
        return
    happened = [*(record.event for record in log.records), *(each for one in story.reactions for each in one.commands)]
    written = Counter((request, type(each).__name__, each.tag.step, str(each.tag.call_id)) for each in happened)
    for shown, times in told.shown.items():
        if shown[0] == request and shown[1] not in NOT_WRITTEN and written[shown] < times:
            yield f"was shown {shown[1]} of step {shown[2]} {shown[3]}, and the journal does not have it"
    for rule in RULES:
        yield from (f"{rule}: {fault}" for fault in broken(rule, story))


def story_of(log: RequestLog) -> Story:
    """The journal as the testing kit reads it: its events, and the commands that they lead to by the rules of today."""
    trace = Trace(Scenario())
    session = Session()
    for record in log.records:
        trace.add(record.event.at, Verb.APPLIED, record.event)
        for command in session.apply(record.event):
            trace.add(record.event.at, Verb.GAVE, command)
    trace.session = session
    return Story.of(trace)

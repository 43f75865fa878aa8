"""`simulate` finds runtimes that break a rule, that hide what they did, and that play something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from callboard.protocol.commands import RunTool, SetTimer
from callboard.protocol.content import UserMessage
from callboard.protocol.events import CancelRequested, ToolCallCompleted
from callboard.protocol.testing import Scenario, Trace, drive, simulate
from callboard.protocol.testing.generator import VERSION
from callboard.protocol.testing.trace import Entry, Verb

Runtime = Callable[[Scenario, int], Trace]


def entry_by_entry(change: Callable[[Entry], list[Entry]]) -> Runtime:
    """A runtime that writes down something else than what happened."""

    def play(scenario: Scenario, seed: int) -> Trace:
        trace = drive(scenario, seed)
        trace.entries = [changed for entry in trace.entries for changed in change(entry)]
        return trace

    return play


def is_run(entry: Entry) -> bool:
    return entry.verb is Verb.RAN and isinstance(entry.value, RunTool)


def raises(scenario: Scenario, seed: int) -> Trace:
    raise KeyError(scenario.request_id)


def stops_half_way(scenario: Scenario, seed: int) -> Trace:
    trace = drive(scenario, seed)
    trace.entries = trace.entries[: len(trace.entries) // 2]
    trace.queued, trace.session = 0, None
    trace.sent = sum(entry.verb in (Verb.APPLIED, Verb.REFUSED, Verb.LOST) for entry in trace.entries)
    return trace


def asks_another_question(scenario: Scenario, seed: int) -> Trace:
    return drive(replace(scenario, user=UserMessage.of("something else")), seed)


BROKEN: dict[str, tuple[Runtime, str]] = {
    "empty": (lambda scenario, seed: Trace(scenario, seed), "the scenario was not played"),
    "asks another question": (asks_another_question, "another history, user message or options"),
    "ignores the user who leaves": (
        lambda scenario, seed: drive(replace(scenario, cancel_at=None), seed),
        "the user left at",
    ),
    "plays one scenario for all": (
        lambda scenario, seed: drive(replace(Scenario(), turns=scenario.turns, user=scenario.user), seed),
        "another history, user message or options|with other tools",
    ),
    "runs every tool twice": (entry_by_entry(lambda entry: [entry] * (1 + is_run(entry))), "I27 carried out"),
    "runs what was not asked for": (
        entry_by_entry(lambda e: [replace(e, value=replace(e.value, arguments="[]"))] if is_run(e) else [e]),  # type: ignore[type-var]
        "I27 carried out",
    ),
    "hides what it ran": (
        entry_by_entry(lambda entry: [] if entry.verb in (Verb.RAN, Verb.ASKED) else [entry]),
        "I27 carried out",
    ),
    "loses dead letters": (entry_by_entry(lambda e: [] if e.verb is Verb.REFUSED else [e]), "I9 conservation"),
    "gives tools more time": (
        entry_by_entry(
            lambda e: [replace(e, value=replace(e.value, deadline_at=1e6))] if isinstance(e.value, RunTool) else [e]
        ),
        "I5 bounded",
    ),
    "sets no timers": (entry_by_entry(lambda e: [] if isinstance(e.value, SetTimer) else [e]), "I22 timers"),
    "hears of no cancel": (
        entry_by_entry(lambda e: [] if isinstance(e.value, CancelRequested) else [e]),
        "I9 conservation|the user left at",
    ),
    "mixes up requests": (
        entry_by_entry(
            lambda e: (
                [replace(e, value=replace(e.value, tag=e.value.tag._replace(request_id="x")))]  # type: ignore[arg-type]
                if isinstance(e.value, ToolCallCompleted)
                else [e]
            )
        ),
        "I11 isolation|I25 taken or refused",
    ),
    "raises": (raises, "the runtime raised KeyError"),
    "stops half way": (stops_half_way, "it waits for nothing, and has not finished|cannot be read|has no result"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_runtime_is_found_with_a_line_to_replay(name: str) -> None:
    play, told = BROKEN[name]
    with pytest.raises(AssertionError, match=told) as caught:
        simulate(play, conversations=60)
    assert f"play it again: python -m callboard.actors.testing replay {VERSION}." in str(caught.value)


def test_a_sound_runtime_passes() -> None:
    simulate(conversations=60)


def test_a_faulty_runtime_is_told_as_a_short_story() -> None:
    def sloppy(scenario: Scenario, seed: int) -> Trace:
        """Runs every tool for longer than the session allowed."""
        trace = drive(scenario, seed)
        for index, entry in enumerate(trace.entries):
            if isinstance(entry.value, RunTool) and entry.verb is Verb.GAVE:
                late = replace(entry.value, deadline_at=entry.value.deadline_at + 100)
                trace.entries[index] = replace(entry, value=late)
        return trace

    with pytest.raises(AssertionError) as caught:
        simulate(sloppy)
    story = str(caught.value)
    assert "its tool's deadline is" in story
    assert "play it again: python -m callboard.actors.testing replay" in story
    assert len([line for line in story.splitlines() if "->" in line and "[" in line]) <= 10


def test_a_runtime_of_moods_is_found() -> None:
    moods = iter(range(1_000))

    def moody(scenario: Scenario, seed: int) -> Trace:
        return drive(replace(scenario, latency_seconds=0.5), next(moods))

    with pytest.raises(AssertionError, match="another trace when played again"):
        simulate(moody)

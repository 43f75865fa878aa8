"""`simulate` finds runtimes that break a rule, that hide what they did, and that play something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from callboard.protocol.codec import decode_event, encode_event
from callboard.protocol.commands import (
    AskApproval,
    CancelTool,
    ClearTimer,
    Command,
    RunTool,
    SetTimer,
    StopModel,
    WithdrawApproval,
)
from callboard.protocol.content import UserMessage
from callboard.protocol.errors import ProtocolError, UsageError
from callboard.protocol.events import (
    ApprovalDenied,
    ApprovalGranted,
    CancelRequested,
    Event,
    ModelResponded,
    NoticeCame,
    ToolCallCompleted,
    ToolsLost,
)
from callboard.protocol.machine import Session
from callboard.protocol.states import RequestState
from callboard.protocol.testing import Crashed, Scenario, ToolsDied, Trace, World, drive, simulate
from callboard.protocol.testing.generator import VERSION
from callboard.protocol.testing.played import PLAYED
from callboard.protocol.testing.trace import Entry, Verb

Runtime = Callable[[Scenario, int], Trace]


def entry_by_entry(change: Callable[[Entry], list[Entry]]) -> Runtime:
    """A runtime that writes down something else than what happened."""

    def play(scenario: Scenario, seed: int) -> Trace:
        trace = drive(scenario, seed)
        trace.entries = [changed for entry in trace.entries for changed in change(entry)]
        return trace

    return play


class Small:
    """A runtime as one writes it who tries the kit out: callboard's session in a loop of its own."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.world, self.session = World(scenario, seed), Session()

    def play(self) -> Trace:
        for happening in self.world:
            if isinstance(happening, Crashed):
                self.come_back(happening)
            elif isinstance(happening, ToolsDied):
                self.lose_tools()
            else:
                self.hear(happening)
        return self.world.trace

    def hear(self, event: Event) -> None:
        lines = [encode_event(line) for line in self.session.to_journal(event)]
        try:
            commands = self.session.apply(event)
        except ProtocolError as error:
            self.world.refused(event, str(error))
            return
        self.world.took(event, commands)
        self.world.write(lines, partial(self.do, commands))

    def do(self, commands: Iterable[Command]) -> None:
        for command in commands:
            self.carry_out(command)

    def carry_out(self, command: Command) -> None:
        self.world.carry_out(command)

    def come_back(self, crash: Crashed) -> None:
        self.session = Session.replay(map(decode_event, crash.lines))
        commands = self.session.resume_commands()
        self.world.resumed(commands)
        self.do(commands)
        if (loss := self.session.loss_event(self.world.now)) is not None:
            self.hear(loss)

    def lose_tools(self) -> None:
        if self.session.state is RequestState.RUNNING_TOOLS:
            self.hear(ToolsLost(self.session.step, self.world.now))


def never(*kinds: type[Any]) -> type[Small]:
    """One that does not carry out commands of these kinds."""

    class Never(Small):
        def carry_out(self, command: Command) -> None:
            if not isinstance(command, kinds):
                super().carry_out(command)

    return Never


class GrantsWhatWasDenied(Small):
    def hear(self, event: Event) -> None:
        granted = isinstance(event, ApprovalDenied)
        super().hear(ApprovalGranted(event.tag, event.at, "someone") if granted else event)


class RunsToolsTwice(Small):
    def carry_out(self, command: Command) -> None:
        super().carry_out(command)
        if isinstance(command, RunTool):
            super().carry_out(command)


class GoesOnAfterACrash(Small):
    """What it held in memory is there still."""

    def come_back(self, crash: Crashed) -> None:
        pass


class ForgetsAtACrash(Small):
    """It comes back, and does not ask again for what was under way."""

    def come_back(self, crash: Crashed) -> None:
        self.session = Session.replay(map(decode_event, crash.lines))
        self.world.resumed(())


class HearsOfNoLoss(Small):
    def lose_tools(self) -> None:
        pass


def deaf(*kinds: type[Any]) -> type[Small]:
    """One that drops events of these kinds."""

    class Deaf(Small):
        def hear(self, event: Event) -> None:
            if not isinstance(event, kinds):
                super().hear(event)

    return Deaf


class TakesAnothersResult(Small):
    """A result of another request with the same ids is one of its own."""

    def hear(self, event: Event) -> None:
        tag = self.world.trace.scenario.tag
        own = event.tag._replace(request_id=tag.request_id, parent_id=tag.parent_id)
        super().hear(replace(event, tag=own) if isinstance(event, ToolCallCompleted) else event)


class ReportsLessUsage(Small):
    def hear(self, event: Event) -> None:
        if isinstance(event, ModelResponded) and event.response.usage is not None:
            response = replace(event.response, usage=replace(event.response.usage, output_tokens=1))
            event = replace(event, response=response)
        super().hear(event)


class HidesDeadLetters(Small):
    def hear(self, event: Event) -> None:
        if event.tag.request == self.world.trace.scenario.tag.request:
            super().hear(event)


class StopsAtTheEnd(Small):
    """Sound: it does not wait for what comes after the end."""

    def play(self) -> Trace:
        for happening in self.world:
            if isinstance(happening, Crashed):
                self.come_back(happening)
            elif isinstance(happening, ToolsDied):
                self.lose_tools()
            else:
                self.hear(happening)
            if self.session.state is RequestState.FINISHED and not self.world.trace.undone:
                break
        return self.world.trace


#: Runtimes that are wrong in one thing, and what is told of them.
BROKEN_IN_THE_WORLD: dict[str, tuple[type[Small], str]] = {
    "grants what a person denied": (GrantsWhatWasDenied, "ApprovalGranted .* nobody had sent it"),
    "never runs a tool": (never(RunTool), "RunTool .* never carried out|RunTool .* had not come"),
    "never puts a question": (never(AskApproval), "AskApproval .* never carried out|AskApproval .* had not come"),
    "never clears a timer": (never(ClearTimer), "ClearTimer .* never carried out"),
    "never sets a timer": (never(SetTimer), "SetTimer .* never carried out"),
    "never stops a model": (never(StopModel), "StopModel .* never carried out"),
    "never cancels a tool": (never(CancelTool), "CancelTool .* never carried out"),
    "never takes a question back": (never(WithdrawApproval), "WithdrawApproval .* never carried out"),
    "runs tools twice": (RunsToolsTwice, "RunTool .* did not give it so"),
    "goes on after a crash": (
        GoesOnAfterACrash,
        "it waits for nothing, and has not finished|came back from its journal 0 times",
    ),
    "forgets at a crash": (ForgetsAtACrash, "I26 resume|I22 timers"),
    "hears of no lost tools": (HearsOfNoLoss, "heard of no ToolsLost"),
    "drops notices": (deaf(NoticeCame), "NoticeCame .* had not come|I9 conservation"),
    "ignores the user who leaves": (deaf(CancelRequested), "CancelRequested .* had not come|the user left at"),
    "takes another request's result": (TakesAnothersResult, "ToolCallCompleted .* nobody had sent it"),
    "reports less usage": (ReportsLessUsage, "ModelResponded .* nobody had sent it"),
    "hides dead letters": (HidesDeadLetters, "an event of another request was due"),
}


@pytest.mark.parametrize("name", BROKEN_IN_THE_WORLD)
def test_a_runtime_in_a_world_that_is_wrong_in_one_thing_is_found(name: str) -> None:
    kind, told = BROKEN_IN_THE_WORLD[name]
    with pytest.raises(AssertionError, match=told):
        simulate(lambda scenario, seed: kind(scenario, seed).play())


@pytest.mark.parametrize("kind", [Small, StopsAtTheEnd])
def test_a_sound_runtime_in_a_world_passes(kind: type[Small]) -> None:
    simulate(lambda scenario, seed: kind(scenario, seed).play(), conversations=100)


def test_a_runtime_that_plays_half_of_it_does_not_pass_in_silence() -> None:
    """It leaves out of each scenario what is hard, and says so of none."""

    def easy(scenario: Scenario) -> Scenario:
        return replace(scenario, restart_at=(), tools_lost_at=(), strays=(), foreign=(), notices_at=(), jumps=())

    def play(scenario: Scenario, seed: int) -> Trace:
        trace = drive(easy(scenario), seed)
        trace.scenario, trace.in_world = scenario, False
        return trace

    left_out = ("a process that dies", "tools that are lost", "an event of another request", "a notice")
    with pytest.raises(AssertionError, match="never played: ") as caught:
        simulate(play)
    assert [name for name in PLAYED if f"{name} (in " in str(caught.value)] == list(left_out)
    simulate(play, without=left_out)
    with pytest.raises(UsageError, match="without="):
        simulate(play, without=("all that is hard",))


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

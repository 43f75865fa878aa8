"""Planted faults in what is told of a request, and in what carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from callboard.protocol.commands import (
    AskApproval,
    CallModel,
    ClearTimer,
    Command,
    Finish,
    Note,
    NoteKind,
    RunTool,
    SetTimer,
    StopModel,
)
from callboard.protocol.events import ApprovalDenied, ApprovalGranted, Event, ModelResponded, ToolCallCompleted
from callboard.protocol.reports import CallReport, StepReport
from callboard.protocol.testing.driver import Driver
from callboard.protocol.testing.mutation import Mutation
from callboard.protocol.testing.planting import changing, hearing, saying
from callboard.protocol.testing.runtimes import Runtime
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace


def _reporting(change: Callable[[StepReport], StepReport]) -> type[Mutation]:
    """Change what is reported of each model call."""
    return changing(Finish, lambda finish: replace(finish, steps=tuple(map(change, finish.steps))))


def _reporting_calls(change: Callable[[CallReport], CallReport]) -> type[Mutation]:
    """Change what is reported of each tool call."""
    return _reporting(lambda step: replace(step, calls=tuple(map(change, step.calls))))


def _noting(kind: NoteKind, becomes: Callable[[Note], Sequence[Command]]) -> type[Mutation]:
    """Change the notes of a kind."""

    def changed(_: Event, said: list[Command]) -> Sequence[Command]:
        found = [becomes(each) if isinstance(each, Note) and each.kind is kind else (each,) for each in said]
        return [each for some in found for each in some]

    return saying(changed)


def _carrying(change: Callable[[Command], Iterable[Command]]) -> Runtime:
    """A runtime that carries out something else than the session gives."""

    class Carries(Driver):
        """The driver with that fault."""

        def carry_out(self, commands: Iterable[Command]) -> None:
            super().carry_out([other for command in commands for other in change(command)])

    def play(scenario: Scenario, seed: int) -> Trace:
        return Carries(scenario, seed).run()

    return play


def _forgetting(kind: type[Any]) -> Runtime:
    return _carrying(lambda command: () if isinstance(command, kind) else (command,))


def _telling(change: Callable[[Any], Event]) -> Runtime:
    """A runtime that tells its session something else than happens."""

    class Tells(Driver):
        """The driver with that fault."""

        def deliver(self, event: Event) -> None:
            super().deliver(change(event))

    def play(scenario: Scenario, seed: int) -> Trace:
        return Tells(scenario, seed).run()

    return play


def _as_another_thing(note: Note) -> Sequence[Command]:
    return (replace(note, kind=NoteKind.OTHER),)


def _always_granted(event: Any) -> Event:
    return ApprovalGranted(event.tag, event.at, "me") if isinstance(event, ApprovalDenied) else event


def _for_nothing(event: Any) -> Event:
    return replace(event, cost=0.0) if isinstance(event, ModelResponded) and event.cost else event


def _shouted(event: Any) -> Event:
    return replace(event, content=event.content.upper()) if isinstance(event, ToolCallCompleted) else event


_REPORTS, _NOTES = "I33 true reports", "I34 notes"
#: With the rule that must notice each.
TOLD_FAULTS: Final[tuple[tuple[str, str, type[Mutation]], ...]] = (
    (_REPORTS, "A step is reported without its cost", _reporting(lambda step: replace(step, cost=None))),
    (_REPORTS, "A step is reported as whole", _reporting(lambda step: replace(step, is_whole=True))),
    (_REPORTS, "A call is reported as one that ran well", _reporting_calls(lambda call: replace(call, code=None))),
    (_REPORTS, "A call is reported with no time", _reporting_calls(lambda call: replace(call, run_seconds=0.0))),
    (_REPORTS, "An end gives no reason of its own", changing(Finish, lambda end: replace(end, reason="it ended"))),
    (_REPORTS, "A session believes that no answer costs anything", hearing(_for_nothing)),
    (_NOTES, "A retry is not shown", _noting(NoteKind.RETRY, lambda note: ())),
    (_NOTES, "A step that is asked again is shown twice", _noting(NoteKind.ASKED_AGAIN, lambda note: (note, note))),
    (_NOTES, "A cut answer is shown as another thing", _noting(NoteKind.CUT, _as_another_thing)),
)
#: Of runtimes: all are seen by the times.
CARRIED_FAULTS: Final[tuple[tuple[str, Runtime], ...]] = (
    ("A tool is never run", _forgetting(RunTool)),
    ("A question is never put", _forgetting(AskApproval)),
    ("A model is never asked", _forgetting(CallModel)),
    ("A timer is never set", _forgetting(SetTimer)),
    ("A timer is never cleared", _forgetting(ClearTimer)),
    ("A model is never stopped", _forgetting(StopModel)),
    ("What a person denies is granted", _telling(_always_granted)),
    ("What an answer cost is not told", _telling(_for_nothing)),
    ("A result is told in other words", _telling(_shouted)),
)

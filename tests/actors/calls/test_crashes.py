"""The dispatcher crashes on every message it takes, once or several times in a row: no call is lost, or run twice."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from msgspec.structs import replace

from callboard.actors.calls.dispatcher import ConfirmStops, ReadOffers, ReplaceTools, ToolDispatcher
from callboard.actors.journal.outbox import EffectCommitted
from callboard.actors.testing.faults import Faults, WorkerFate, WorkerFaults
from callboard.actors.testing.simulated_run import CrashableDispatcher, SimulatedRun
from callboard.actors.testing.simulated_world import PlannedFailure
from callboard.actors.workers.call_stacks import ReadStack
from callboard.protocol.ids import MessageId, RequestId, Tag, ToolName
from callboard.protocol.testing.scenario import STANDARD_TOOLS, PersonDoes, PlannedCall, PlannedTurn, Scenario, ToolDoes
from callboard.protocol.tools import Effect, Isolation

#: A thousand by `--hypothesis-profile=deep`.
SEEDS = 1_000 if settings().max_examples > 1_000 else 300
TOOLS = ("look", "again", "write", "quick", "patient")
DEEDS = (ToolDoes.COMPLETE,) * 6 + (ToolDoes.FAIL, ToolDoes.CRASH, ToolDoes.HANG, ToolDoes.STOPPED, ToolDoes.REFUSE)
HARMLESS = {offer.definition.name for offer in STANDARD_TOOLS if offer.contract.effect is Effect.REPEAT}


@dataclass
class Crashes:
    """When dispatchers crash: on which messages of each kind, counted over all incarnations."""

    on: dict[str, tuple[int, int]]
    """By kind: the number of the first message on which it crashes, and on how many in a row."""
    after: bool
    """It crashes when the message has been handled; else before."""
    seen: Counter[str] = field(default_factory=Counter)
    happened: list[str] = field(default_factory=list)

    def is_due(self, message: object) -> bool:
        kind = type(message).__name__
        self.seen[kind] += 1
        first, count = self.on.get(kind, (0, 0))
        is_due = first <= self.seen[kind] < first + count
        if is_due:
            self.happened.append(kind)
        return is_due


class CrashingRun(SimulatedRun):
    """A run whose dispatchers crash as planned, or by an order."""

    def __init__(self, scenarios: list[Scenario], crashes: Crashes, faults: Faults, seed: int) -> None:
        self.crashes = crashes
        super().__init__(scenarios, faults, seed)

    def _dispatcher(self, *given: Any) -> ToolDispatcher:
        crashes, world = self.crashes, self.world

        class Crashing(CrashableDispatcher):  # type: ignore[misc, valid-type]  # it is made by a function
            def on_receive(self, message: object) -> object:
                if not crashes.is_due(message):
                    return super().on_receive(message)
                if crashes.after:
                    super().on_receive(message)
                world.crashes.crashes_unplanned("root/dispatcher")
                raise PlannedFailure

        world.calls.dispatcher_starts()
        world.questions.dispatcher_starts()
        return Crashing(*given, reads=world.dispatcher_reads)

    def _arrange(self) -> None:
        """Questions that every dispatcher answers, and a server without tools, besides what the scenarios hold."""
        super()._arrange()
        for number in range(4):
            self._at(0.0, number + 0.75, "a question", self._ask_for_stops)
            self._at(0.0, number + 0.8, "a server's tools", self._replace_tools)

    def _replace_tools(self) -> None:
        self.system.ref("root/dispatcher").tell_control(ReplaceTools("a server", ()))

    def _ask_for_stops(self) -> None:
        nobody = self.system.ref("root/telemetry")
        self.system.ref("root/dispatcher").tell_control(ReadOffers())
        ended = Tag(RequestId("?"), MessageId("?"))
        self.system.ref("root/dispatcher").tell_control(ConfirmStops(ended, nobody))
        self.system.ref("root/dispatcher").tell_control(EffectCommitted(ended))
        self.system.ref("root/dispatcher").tell_control(ReadStack(ended, Future()))


def planned(rng: random.Random, number: int) -> PlannedCall:
    return PlannedCall(
        ToolName(rng.choice(TOOLS)),
        f'{{"x":{number}}}',
        f"c{number}",
        does=rng.choice(DEEDS),
        seconds=rng.choice((0.5, 2.0)),
        person=rng.choice((PersonDoes.GRANT, PersonDoes.GRANT, PersonDoes.IGNORE)),
    )


def play(seed: int, kind: str, count: int) -> CrashingRun:
    rng = random.Random(f"crashes {seed} {kind} {count}")
    turn = PlannedTurn(calls=tuple(planned(rng, number) for number in range(rng.randint(2, 5))))
    places = list(Isolation)
    tools = tuple(
        replace(offer, contract=replace(offer.contract, isolation=rng.choice(places))) for offer in STANDARD_TOOLS
    )
    scenarios = [
        Scenario(turns=(turn,), tools=tools, request_id=RequestId(f"r{n}"), cancel_at=rng.choice((None, 2.5)))
        for n in range(rng.randint(1, 3))
    ]
    fates = rng.choice(((WorkerFate.FINE,), tuple(WorkerFate)))
    faults = Faults(workers=WorkerFaults(workers=rng.choice((1, 2, 8)), fates=fates))
    crashes = Crashes({kind: (rng.randint(1, 2), count)}, after=rng.random() < 0.5)
    run = CrashingRun(scenarios, crashes, faults, seed)
    run.play()
    return run


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", [kind.__name__ for kind in ToolDispatcher.messages()])
def test_no_call_is_lost_or_run_twice_when_dispatchers_crash(kind: str, count: int) -> None:
    crashed: Counter[str] = Counter()
    runs: Counter[int] = Counter()
    for seed in range(SEEDS // 30):
        run = play(seed, kind, count)
        problems = run.problems()
        assert not problems, (seed, problems, run.crashes)
        crashed.update(run.crashes.happened)
        for tag, times in run.world.runs.items():
            if run.world.plans[tag.request_id].of_call[tag].tool not in HARMLESS:
                runs[times] += 1
    assert crashed[kind], "it crashed in some of the runs"
    assert set(runs) == {1}, "a call may have its effect once"

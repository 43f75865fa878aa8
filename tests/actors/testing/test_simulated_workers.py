"""The real ToolPool over simulated workers, alone: what it tells of a call for each thing that its worker may do."""

from __future__ import annotations

import pytest
from support.probes import Probed

from callboard.actors.kernel import ActorSystem, SimulatedScheduler
from callboard.actors.testing.faults import Faults, WorkerFate, WorkerFaults
from callboard.actors.testing.simulated_world import World, simulated_tool
from callboard.actors.tools import Tool, ToolContext
from callboard.actors.workers.pool import StartCall, StopCall, ThreadsHeld, ToolPool
from callboard.protocol.commands import RunTool
from callboard.protocol.errors import UsageError
from callboard.protocol.events import ToolCallEnd, ToolCallFailed
from callboard.protocol.ids import CallId
from callboard.protocol.testing.scenario import PlannedCall, PlannedTurn, Scenario, ToolDoes, offer
from callboard.protocol.tools import FailureCode, Isolation, Latency

LOOK, AGAIN = simulated_tool(offer("look")), simulated_tool(offer("again", idempotent=True))


class OnePool:
    """One pool of this isolation, with the plan for its only call."""

    def __init__(self, isolation: Isolation, does: ToolDoes = ToolDoes.COMPLETE, **faults: object) -> None:
        turn = PlannedTurn(calls=(PlannedCall(LOOK.name, does=does), PlannedCall(AGAIN.name, does=does)))
        workers = WorkerFaults(**faults)  # type: ignore[arg-type]
        self.scenario = Scenario((turn,))
        self.scheduler = SimulatedScheduler()
        self.world = World([self.scenario], Faults(workers=workers), self.scheduler)
        self.world.plans[self.scenario.request_id].next_turn(1)
        self.system: ActorSystem = self.world.system
        self.dispatcher = Probed(self.system, "dispatcher")
        make = self.world.make_workers(isolation, Latency.SHORT)
        self.pool = self.system.spawn(lambda: ToolPool(isolation, make=make), "pool")

    def start(self, tool: Tool = LOOK, *, has_begun: bool = False) -> None:
        tag = self.scenario.tag._replace(step=1, call_id=CallId("c"))
        run = RunTool(tag, tool.name, "{}", 5.0, "effect")
        context = ToolContext(tag, "effect", 5.0, "go")
        self.pool.tell_control(StartCall(run, tool, context, self.dispatcher.ref, has_begun))

    def ends(self) -> list[str]:
        self.scheduler.run_until_idle()
        return [type(event).__name__ for event in self.dispatcher.heard if isinstance(event, ToolCallEnd)]


#: What only a dispatcher does, or only a whole run ends.
NEEDS_A_DISPATCHER = (ToolDoes.VANISH, ToolDoes.STOPPED, ToolDoes.WITHDRAWN)


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("fate", list(WorkerFate))
@pytest.mark.parametrize("does", [does for does in ToolDoes if does not in NEEDS_A_DISPATCHER])
def test_every_call_has_one_end(isolation: Isolation, fate: WorkerFate, does: ToolDoes) -> None:
    one = OnePool(isolation, does, fates=(fate,), workers=1)
    one.start()
    assert len(one.ends()) == 1
    assert one.scheduler.now() < 20.0
    assert one.world.runs.total() <= 1


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_stopped_call_is_cancelled_also_where_its_worker_ignores_the_interrupt(isolation: Isolation) -> None:
    one = OnePool(isolation, ToolDoes.HANG, fates=(WorkerFate.IGNORES_INTERRUPT,))
    one.start()
    one.scheduler.run_until_idle(1.0)
    one.pool.tell_control(StopCall(one.scenario.tag._replace(step=1, call_id=CallId("c"))))
    assert one.ends() == ["ToolCallCancelled"]
    held = [message.count for message in one.dispatcher.of(ThreadsHeld)]
    assert held == ([] if isolation is Isolation.PROCESS else [1, 0]), "an abandoned thread is counted until it returns"


def test_a_call_that_began_in_a_lost_pool_is_not_begun_again() -> None:
    one = OnePool(Isolation.PROCESS)
    one.start(has_begun=True)
    assert one.ends() == ["ToolCallFailed"]
    (failed,) = one.dispatcher.of(ToolCallFailed)
    assert failed.failure.code is FailureCode.OUTCOME_UNKNOWN
    assert not one.world.runs


def test_an_idempotent_call_that_began_in_a_lost_pool_is_begun_again() -> None:
    one = OnePool(Isolation.PROCESS)
    one.start(AGAIN, has_begun=True)
    assert one.ends() == ["ToolCallCompleted"]


def test_a_call_that_began_and_is_still_here_goes_on() -> None:
    one = OnePool(Isolation.PROCESS)
    one.start()
    one.start(has_begun=True)
    assert one.ends() == ["ToolCallCompleted"]
    assert one.world.runs.total() == 1


def test_a_pool_without_workers_of_its_own_needs_a_real_loop() -> None:
    system = ActorSystem(SimulatedScheduler())
    pool = system.spawn(lambda: ToolPool(Isolation.TASK), "pool")
    ended: list[object] = []
    system.watch(pool, ended.append)
    assert isinstance(system.scheduler, SimulatedScheduler)
    system.scheduler.run_until_idle()
    (down,) = ended
    assert isinstance(down.error, UsageError)  # type: ignore[attr-defined]

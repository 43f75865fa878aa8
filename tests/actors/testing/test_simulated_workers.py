"""The real dispatcher over simulated workers, alone: what it tells of a call for each thing that its worker may do."""

from __future__ import annotations

import pytest
from support.probes import Probed

from callboard.actors.calls.approvals import NobodyToAsk
from callboard.actors.calls.dispatcher import DispatchCall, Workers
from callboard.actors.calls.ledger import LastEvent, Ledger
from callboard.actors.calls.registry import Registry
from callboard.actors.kernel import Supervisor
from callboard.actors.testing.faults import Faults, WorkerFate, WorkerFaults
from callboard.actors.testing.simulated_run import CrashableDispatcher
from callboard.actors.testing.simulated_world import World, simulated_tool
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.testing.whole_run import left_open
from callboard.actors.tools import Tool
from callboard.protocol.commands import CallModel, CancelTool, RunTool
from callboard.protocol.ids import CallId
from callboard.protocol.model import ModelRequest
from callboard.protocol.testing.scenario import PlannedCall, PlannedTurn, Scenario, ToolDoes, offer
from callboard.protocol.tools import Isolation


class OnePool:
    """One pool of this isolation, with the plan for its only call."""

    def __init__(self, isolation: Isolation, does: ToolDoes = ToolDoes.COMPLETE, **faults: object) -> None:
        offered = offer("look", isolation=isolation)
        self.tool: Tool = simulated_tool(offered)
        workers = WorkerFaults(**faults)  # type: ignore[arg-type]
        turn = PlannedTurn(calls=(PlannedCall(self.tool.name, does=does),))
        self.scenario = Scenario((turn,), tools=(offered,))
        self.scheduler = SimulatedScheduler()
        self.world = World([self.scenario], Faults(workers=workers), self.scheduler)
        asked = CallModel(self.scenario.tag.at_step(1), ModelRequest("sim/model", ()), 60.0)
        self.world.plans[self.scenario.request_id].next_turn(asked)
        self.system = self.world.system
        self.session = Probed(self.system, "session")
        self.registry = Registry((self.tool,))
        self.ledger = Ledger()
        pools = Workers(self.system.spawn(Supervisor, "tools"), self.world.kind, lambda: 0.0)
        observer = Probed(self.system, "telemetry").ref
        given = self.registry, self.ledger, pools, NobodyToAsk(), observer
        self.dispatcher = self.system.spawn(
            lambda: CrashableDispatcher(*given, reads=self.world.dispatcher_reads), "dispatcher"
        )
        self.tag = self.scenario.tag._replace(step=1, call_id=CallId("c"))
        run = RunTool(self.tag, self.tool.name, "{}", 5.0, "effect")
        self.dispatcher.tell_control(DispatchCall(run, "go", self.session.ref))

    def ends(self) -> list[str]:
        self.scheduler.run_until_idle()
        return [type(event).__name__ for event in self.session.heard if isinstance(event, LastEvent)]


@pytest.mark.parametrize("isolation", list(Isolation))
@pytest.mark.parametrize("fate", list(WorkerFate))
@pytest.mark.parametrize("does", [does for does in ToolDoes if does is not ToolDoes.VANISH])
def test_every_call_has_one_end(isolation: Isolation, fate: WorkerFate, does: ToolDoes) -> None:
    one = OnePool(isolation, does, fates=(fate,), workers=1)
    assert len(one.ends()) == 1
    assert one.scheduler.now() < 20.0
    assert one.world.runs.total() <= 1
    assert not left_open(one.ledger)
    assert not one.world.problems


def test_a_worker_that_says_nothing_is_not_waited_for() -> None:
    one = OnePool(Isolation.PROCESS, ToolDoes.VANISH)
    assert one.ends() == ["ToolCallTimedOut"]
    assert not left_open(one.ledger)


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_stopped_call_is_cancelled_also_where_its_worker_ignores_the_interrupt(isolation: Isolation) -> None:
    one = OnePool(isolation, ToolDoes.HANG, fates=(WorkerFate.IGNORES_INTERRUPT,))
    one.scheduler.run_until_idle(1.0)
    one.dispatcher.tell_control(CancelTool(one.tag))
    one.scheduler.run_until_idle(2.0)
    health = one.registry.entries[one.tool.name].health
    expected = 0 if isolation is Isolation.PROCESS else 1
    assert health.held_threads == expected, "an abandoned thread is counted until it returns"
    assert one.ends() == ["ToolCallCancelled"]
    assert health.held_threads == 0


@pytest.mark.parametrize("fate", [WorkerFate.GIVES_BACK, WorkerFate.DIES_BEFORE])
def test_a_call_that_no_worker_begins_ends_without_having_run(fate: WorkerFate) -> None:
    one = OnePool(Isolation.PROCESS, fates=(fate,))
    assert one.ends() == ["ToolCallFailed"]
    assert not one.world.runs

"""The tree as it is drawn: who is there, in which order, and that the root gives up only when its budget is spent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from support.listed_store import ListedStore
from support.probes import Probed

from callboard.actors.calls.approvals import NobodyToAsk
from callboard.actors.calls.dispatcher import DispatchCall
from callboard.actors.journal.outbox import Outbox
from callboard.actors.kernel import ActorInfo, ActorSystem
from callboard.actors.models.llm_manager import LlmManager
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.telemetry.telemetry import Telemetry
from callboard.actors.testing.faults import Faults
from callboard.actors.testing.simulated_run import CrashableDispatcher
from callboard.actors.testing.simulated_world import PlayedModel, World
from callboard.actors.testing.simulation import SimulatedScheduler
from callboard.actors.tools import tool
from callboard.actors.topology import ROOT_INTENSITY, JournalPlan, Plan, addresses_of, build
from callboard.protocol.commands import RunTool
from callboard.protocol.ids import CallId, MessageId, RequestId, Tag
from callboard.protocol.options import ToolOffer
from callboard.protocol.policy import Policy
from callboard.protocol.testing.scenario import Scenario
from callboard.providers.rate_limit import RateLimiter
from callboard.providers.retry import RetryPolicy


@tool(isolation="thread")
def look() -> str:
    return "seen"


def plan() -> Plan:
    offered = ToolOffer(look.definition, look.contract)
    world = World([Scenario(tools=(offered,))], Faults(), SimulatedScheduler())
    played = PlayedModel(world, RateLimiter(world.scheduler.now))
    return Plan(
        telemetry=lambda: Telemetry(),
        llm_manager=lambda: LlmManager(lambda _: (), played.start, RetryPolicy(), lambda *_: 0.0),
        workers=world.kind,
        dispatcher=lambda *given: CrashableDispatcher(*given, reads=world.dispatcher_reads),
        tools=(look,),
        approver=NobodyToAsk(),
        policy=Policy(),
        chance=lambda: 0.0,
    )


def children(info: ActorInfo) -> list[str]:
    return [child.name.rpartition("/")[2] for child in info.children]


def test_the_tree_is_as_it_is_drawn(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    build(simulated, plan())
    simulated.scheduler.run_until_idle()
    (root,) = simulated.tree()
    assert children(root) == ["telemetry", "llm_manager", "tools", "dispatcher", "sessions"]
    assert root.children[2].children == (), "a pool is made when a tool needs it"
    sessions, peers = addresses_of(simulated, 1.0)
    refs = (sessions, peers.llm_manager, peers.dispatcher, peers.telemetry)
    assert [ref.name for ref in refs] == [
        f"root/{name}" for name in ("sessions", "llm_manager", "dispatcher", "telemetry")
    ]


def test_a_pool_is_made_when_a_tool_first_needs_it(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    build(simulated, plan())
    session = Probed(simulated, "session")
    tag = Tag(RequestId("r"), MessageId("m"), 1, CallId("c"))
    run = RunTool(tag, look.name, "{}", 30.0, "effect")
    simulated.scheduler.run_until_idle()
    simulated.ref("root/dispatcher").tell_control(DispatchCall(run, "the user's words", session.ref))
    simulated.scheduler.run_until_idle(1.0)
    tools = simulated.tree()[0].children[2]
    assert children(tools) == ["thread-short"]
    assert children(tools.children[0]) == ["1"]


def with_journal(store: ListedStore) -> Plan:
    return replace(plan(), journal=JournalPlan(store.make, Outbox("listed")))


def test_a_journal_stops_behind_all_that_write_to_it(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    store = ListedStore()
    build(simulated, with_journal(store))
    simulated.scheduler.run_until_idle()
    (root,) = simulated.tree()
    assert children(root) == ["telemetry", "journal", "llm_manager", "tools", "dispatcher", "sessions"]
    assert (store.opened, store.closed) == (1, 0)
    assert simulated.shutdown(5.0)
    assert store.closed == 1


def test_a_journal_that_is_killed_comes_back_and_opens_its_store_again(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    store = ListedStore()
    build(simulated, with_journal(store))
    simulated.scheduler.run_until_idle()
    cell = simulated.ref("root/journal")._cell
    simulated.scheduler.call_soon(cell.kill)
    simulated.scheduler.run_until_idle()
    (root,) = simulated.tree()
    assert {child.state for child in root.children} == {"running"}
    assert (store.opened, store.closed) == (2, 1)


@pytest.mark.parametrize("name", ["telemetry", "llm_manager", "tools", "dispatcher", "sessions"])
def test_each_of_them_comes_back_and_takes_nobody_with_it(simulated: ActorSystem, name: str) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    build(simulated, plan())
    simulated.scheduler.run_until_idle()
    cell = simulated.ref(f"root/{name}")._cell
    cell.executor.call_soon(cell.kill)
    simulated.scheduler.run_until_idle()
    (root,) = simulated.tree()
    restarts = {child.name.rpartition("/")[2]: child.restarts for child in root.children}
    assert restarts == {each: int(each == name) for each in restarts}
    assert {child.state for child in root.children} == {"running"}


def test_the_root_gives_up_when_its_budget_is_spent(simulated: ActorSystem) -> None:
    assert isinstance(simulated.scheduler, SimulatedScheduler)
    build(simulated, plan())
    simulated.scheduler.run_until_idle()
    for count in range(ROOT_INTENSITY + 1):
        assert simulated.tree(), f"gone after {count} failures"
        name = ("dispatcher", "llm_manager", "telemetry")[count % 3]
        cell = simulated.ref(f"root/{name}")._cell
        cell.executor.call_soon(cell.kill)
        simulated.scheduler.run_until_idle(simulated.scheduler.now() + 0.9)
    assert simulated.tree() == ()
    assert simulated.statistics().actors == 0


def test_a_real_tree_soon_has_every_actor_running(until: Callable[[Callable[[], bool]], None]) -> None:
    with Runtime(Settings(model="scripted/model")) as runtime:
        until(lambda: {child.state for root in runtime.tree() for child in root.children} == {"running"})

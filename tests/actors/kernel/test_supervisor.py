"""Supervision, in virtual time: beside the model of OTP's rules that the kit plays, and by examples."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    Backoff,
    ChildSpec,
    Down,
    ExitReason,
    IntensityExceeded,
    NameTaken,
    Ref,
    Restart,
    Strategy,
    Supervisor,
    children_of,
    start_child,
    stop_child,
)
from callboard.actors.kernel.supervisor import _Adopt
from callboard.actors.testing import played_families
from callboard.actors.testing.chaos.crashing import Target, crashing
from callboard.actors.testing.simulation import SimulatedScheduler

AT_ONCE = Backoff(initial_seconds=0, maximum_seconds=0)
Log = list[tuple[str, str]]


class Logged(Actor):
    """Writes down when it starts and stops; does what it is told."""

    def __init__(self, log: Log, label: str) -> None:
        self.log, self.label = log, label

    def on_start(self) -> None:
        self.log.append(("start", self.label))

    def on_receive(self, message: Any) -> Any:
        if message == "crash":
            self.log.append(("crash", self.label))
            raise ValueError("told to")
        if message == "leave":
            self.stop()
        return message

    def on_stop(self) -> None:
        self.log.append(("stop", self.label))


class Stubborn(Logged):
    """Never agrees to stop."""

    def on_stopping(self) -> bool:
        return False


@dataclass
class World:
    """A supervised family in virtual time."""

    simulation: SimulatedScheduler
    system: ActorSystem
    log: Log
    root: Ref

    @classmethod
    def of(cls, specs: Callable[[Log], list[ChildSpec]], *, seed: int = 0, **supervisor: Any) -> "World":
        simulation = SimulatedScheduler(seed)
        system, log = ActorSystem(simulation), Log()
        root = system.spawn(lambda: Supervisor(specs(log), **supervisor), "root")
        simulation.run_until_idle()
        return cls(simulation, system, log, root)

    def run(self) -> Log:
        """Until idle; what happened since the last time."""
        self.simulation.run_until_idle()
        happened = self.log[:]
        self.log.clear()
        return happened

    def child(self, child_id: str) -> Ref:
        return self.system.ref(f"root/{child_id}")


def spec(log: Log, child_id: str, kind: type[Logged] = Logged, **options: Any) -> ChildSpec:
    options.setdefault("backoff", AT_ONCE)
    return ChildSpec(child_id, lambda: kind(log, child_id), **options)


# -- against a model, and in any order ---------------------------------------------------------------------------------


def test_families_do_what_the_model_says() -> None:
    assert [found for seed in range(100) for found in played_families.play(seed)] == []


@given(
    strategy=st.sampled_from(Strategy),
    doomed=st.lists(st.integers(0, 3), max_size=6),
    slow=st.sets(st.integers(0, 3)),
    runs_on=st.sampled_from(["loop", "thread"]),
    choices=st.data(),
)
def test_whoever_fails_whenever_all_are_up_again_in_the_end(
    strategy: Strategy, doomed: list[int], slow: set[int], runs_on: Any, choices: st.DataObject
) -> None:
    simulation = SimulatedScheduler(lambda _, options: choices.draw(st.integers(0, len(options) - 1)))
    system, log = ActorSystem(simulation), Log()
    specs = [
        spec(log, str(at), Stubborn if at in slow else Logged, shutdown_seconds=1.0, runs_on=runs_on) for at in range(4)
    ]
    system.spawn(lambda: Supervisor(specs, strategy, intensity=100), "root")
    while simulation.step() and len(log) < 2:
        pass
    for at in doomed:  # in the middle of starts, stops and kills
        system.ref(f"root/{at}").tell("crash")
        simulation.step()
    simulation.run_until_idle()
    replies = [system.ref(f"root/{at}").ask(at, block=False) for at in range(4)]
    simulation.run_until_idle()
    assert [reply.get(timeout=0) for reply in replies] == [0, 1, 2, 3]
    assert system.statistics().unaccounted == 0
    simulation.close()


# -- examples ----------------------------------------------------------------------------------------------------------


def three(log: Log) -> list[ChildSpec]:
    return [spec(log, child_id) for child_id in "abc"]


def test_a_ref_survives_the_restart_and_what_was_sent_meanwhile_is_handled() -> None:
    world = World.of(lambda log: [spec(log, "a", backoff=Backoff(1, 1, 0), capacity=3)], intensity=5)
    child = world.child("a")
    child.tell("crash")
    child.tell("crash")
    world.simulation.run_until_idle(until_seconds=0.5)
    assert world.system.tree()[0].children[0].state == "waiting"
    reply = child.ask("meanwhile", block=False)
    assert child.is_alive()
    world.simulation.run_until_idle()
    assert reply.get(timeout=0) == "meanwhile"
    assert world.simulation.now() == 1.0
    assert world.system.tree()[0].children[0].restarts == 2


def test_children_stop_in_reverse_order() -> None:
    world = World.of(three)
    world.run()
    assert world.system.shutdown(5)
    assert world.run() == [("stop", "c"), ("stop", "b"), ("stop", "a")]
    assert world.system.statistics().actors == 0


def test_a_child_that_does_not_stop_is_killed_at_its_own_deadline() -> None:
    world = World.of(lambda log: [spec(log, "a"), spec(log, "b", Stubborn, shutdown_seconds=2.0), spec(log, "c")])
    downs: list[tuple[float, Down]] = []
    stubborn = world.child("b")
    world.system.watch(stubborn, lambda down: downs.append((world.simulation.now(), down)))
    world.run()
    assert world.system.shutdown(10)
    assert world.run() == [("stop", "c"), ("stop", "a")]
    assert downs == [(2.0, Down(stubborn, ExitReason.KILLED))]


def test_children_started_later_stop_first_and_at_the_same_time() -> None:
    world = World.of(three)
    for at in range(10):
        start_child(
            world.root, spec(world.log, f"s{at}", Stubborn, shutdown_seconds=2.0, restart=Restart.TEMPORARY)
        ).tell("hello")
    world.run()
    assert world.system.shutdown(10)
    assert world.simulation.now() == 2.0
    assert world.run() == [("stop", "c"), ("stop", "b"), ("stop", "a")]


def test_the_listed_ones_are_asked_to_stop_only_when_the_late_ones_have_ended() -> None:
    class Slow(Logged):
        def on_stopping(self) -> bool:
            self.tell_after(1.0, lambda: self.stopped())
            return False

        def on_receive(self, message: Any) -> Any:
            return message() if callable(message) else super().on_receive(message)

    world = World.of(three)
    start_child(world.root, spec(world.log, "quick"))
    start_child(world.root, spec(world.log, "slow", Slow))
    world.run()
    world.root.stop()
    assert world.run() == [("stop", each) for each in ("quick", "slow", "c", "b", "a")]
    assert world.simulation.now() == 1.0


def test_a_child_is_killed_once() -> None:
    world = World.of(lambda log: [spec(log, "a", Stubborn, shutdown_seconds=1.0), spec(log, "b")])
    child, kills = world.child("a"), 0
    kill = type(child._cell).kill

    def counted(cell: Any) -> None:
        nonlocal kills
        kills += cell is child._cell and cell.state.value == "stopping"
        kill(cell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(child._cell), "kill", counted)
        for _ in range(3):
            stop_child(world.root, "a")
        world.simulation.run_until_idle()
        assert world.system.shutdown(10)
        world.run()
    assert kills == 1
    assert not child.is_alive()


def test_too_many_failures_in_the_period_are_told_to_the_next_supervisor_which_starts_all_anew() -> None:
    log = Log()
    simulation = SimulatedScheduler(3)
    system = ActorSystem(simulation)
    inner = ChildSpec("inner", lambda: Supervisor(three(log), intensity=1, period_seconds=5), backoff=AT_ONCE)
    root = system.spawn(lambda: Supervisor([inner], intensity=1), "root")
    downs: list[Down] = []
    simulation.run_until_idle()
    child = system.ref("root/inner/b")
    system.watch(system.ref("root/inner"), downs.append)
    child.tell("crash")
    simulation.run_until_idle()
    log.clear()
    child.tell("crash")
    simulation.run_until_idle()
    assert log == [("crash", "b"), ("stop", "c"), ("stop", "a"), ("start", "a"), ("start", "b"), ("start", "c")]
    assert isinstance(downs[0].error, IntensityExceeded)
    assert "2 failures within 5 s, allowed are 1; the last was b" in str(downs[0].error)
    reply = child.ask("same ref", block=False)
    simulation.run_until_idle()
    assert reply.get(timeout=0) == "same ref"
    assert root.is_alive()


def test_failures_far_apart_do_not_add_up() -> None:
    world = World.of(three, intensity=1, period_seconds=5)
    for at in range(5):
        world.simulation.run_until_idle(until_seconds=at * 5.0)
        world.child("a").tell("crash")
    world.simulation.run_until_idle()
    assert world.root.is_alive()


def test_a_child_with_a_budget_of_its_own_is_judged_by_it() -> None:
    world = World.of(lambda log: [spec(log, "a", intensity=4), spec(log, "b")], intensity=1)
    for _ in range(4):
        world.child("a").tell("crash")
        world.simulation.run_until_idle()
    world.child("b").tell("crash")
    world.simulation.run_until_idle()
    assert world.root.is_alive()
    world.child("a").tell("crash")
    world.simulation.run_until_idle()
    assert not world.root.is_alive()


def test_a_late_child_with_a_budget_of_its_own_is_given_up_alone() -> None:
    world = World.of(lambda log: [spec(log, "a")], intensity=9)
    late = start_child(world.root, spec(world.log, "late", intensity=1))
    other = start_child(world.root, spec(world.log, "other"))
    world.run()
    for _ in range(2):
        late.tell("crash")
        world.simulation.run_until_idle()
    assert world.log == [("crash", "late"), ("start", "late"), ("crash", "late")]
    assert not late.is_alive()
    assert list(children_of(world.root, 1)) == ["a", "other"]
    assert other.is_alive()
    assert start_child(world.root, spec(world.log, "late")).name == late.name


def test_a_start_that_fails_counts_as_a_crash_and_holds_up_those_after_it() -> None:
    log, attempts = Log(), list[int]()

    class Later(Logged):
        def on_start(self) -> None:
            attempts.append(1)
            if len(attempts) < 3:
                raise OSError("not yet")
            super().on_start()

    world = World.of(
        lambda _: [spec(log, "a"), spec(log, "b", Later, backoff=Backoff(1, 8, 0)), spec(log, "c")], intensity=5
    )
    assert log == [("start", "a"), ("start", "b"), ("start", "c")]
    assert world.simulation.now() == 1.0  # at once, then after one second


def test_a_group_is_restarted_after_the_backoff_of_who_failed() -> None:
    world = World.of(
        lambda log: [spec(log, child_id, backoff=Backoff(1, 8, 0)) for child_id in "abc"],
        strategy=Strategy.ONE_FOR_ALL,
        intensity=5,
    )
    world.run()
    for begun, ended in ((0.0, 0.0), (0.0, 1.0), (1.0, 3.0)):
        assert world.simulation.now() == begun
        world.child("b").tell("crash")
        happened = world.run()
        assert happened == [
            ("crash", "b"),
            *[("stop", each) for each in "ca"],
            *[("start", each) for each in "abc"],
        ]
        assert world.simulation.now() == ended


def test_the_backoff_of_a_group_is_not_cut_short_by_what_else_happens() -> None:
    world = World.of(
        lambda log: [spec(log, child_id, backoff=Backoff(1, 8, 0)) for child_id in "ab"],
        strategy=Strategy.REST_FOR_ONE,
        intensity=9,
    )
    visitor = start_child(world.root, spec(world.log, "visitor", restart=Restart.TEMPORARY))
    world.child("b").tell("crash")
    world.run()
    world.child("b").tell("crash")
    world.simulation.run_until_idle(until_seconds=0.5)
    visitor.tell("leave")
    world.child("a").tell("crash")  # its own first failure: it would start at once, but b's second is in its way
    world.simulation.run_until_idle(until_seconds=0.99)
    assert ("start", "b") not in world.log
    assert world.run()[-2:] == [("start", "a"), ("start", "b")]
    assert world.simulation.now() == 1.0


def test_the_backoff_of_a_group_is_not_cut_short_by_a_shorter_one() -> None:
    short, long = Backoff(0.1, 0.1, 0), Backoff(1, 1, 0)
    world = World.of(
        lambda log: [spec(log, "a", backoff=short), spec(log, "b", backoff=long)],
        strategy=Strategy.REST_FOR_ONE,
        intensity=9,
    )
    for each in "aabb":
        world.child(each).tell("crash")
        world.simulation.run_until_idle(until_seconds=world.simulation.now() + 0.2)
    begun = world.simulation.now() - 0.2
    world.child("a").tell("crash")
    assert world.run()[-2:] == [("start", "a"), ("start", "b")]
    assert world.simulation.now() == begun + 1.0


def test_a_temporary_child_whose_turn_has_not_come_still_gets_it() -> None:
    attempts = list[int]()

    class Later(Logged):
        def on_start(self) -> None:
            attempts.append(1)
            if len(attempts) < 2:
                raise OSError("not yet")
            super().on_start()

    world = World.of(
        lambda log: [spec(log, "a", Later), spec(log, "b", restart=Restart.TEMPORARY)], strategy=Strategy.REST_FOR_ONE
    )
    assert world.run() == [("start", "a"), ("start", "b")]


def test_a_child_stopped_for_good_while_it_waits_holds_up_nobody() -> None:
    class Never(Logged):
        def on_start(self) -> None:
            raise OSError("never")

    world = World.of(lambda _: [])
    inner = start_child(
        world.root,
        ChildSpec(
            "inner",
            lambda: Supervisor(
                [spec(world.log, "a", Never, backoff=Backoff(1, 1, 0)), spec(world.log, "b")], intensity=9
            ),
        ),
    )
    world.simulation.run_until_idle(until_seconds=0.5)
    world.child("inner/a").stop()
    assert world.run() == [("start", "b")]
    assert inner.is_alive()


def test_an_id_may_be_used_again_while_the_one_that_had_it_waits() -> None:
    world = World.of(lambda _: [], intensity=9)
    first = start_child(world.root, spec(world.log, "a", backoff=Backoff(1, 1, 0)))
    for _ in range(2):
        first.tell("crash")
        world.simulation.run_until_idle(until_seconds=world.simulation.now() + 0.1)
    first.stop()
    second = start_child(world.root, spec(world.log, "a"))
    world.run()
    second.tell("crash")
    assert world.run() == [("crash", "a"), ("start", "a")]


def test_children_come_and_go_while_the_supervisor_runs() -> None:
    world = World.of(lambda _: [])
    ref = start_child(world.root, spec(world.log, "a", restart=Restart.TEMPORARY))
    ref.tell("sent before it runs")
    with pytest.raises(NameTaken):
        start_child(world.root, spec(world.log, "a"))
    assert dict(children_of(world.root, 1)) == {"a": ref}
    ref.tell("crash")
    assert world.run() == [("start", "a"), ("crash", "a")]
    assert not ref.is_alive()
    kept = start_child(world.root, spec(world.log, "a"))
    kept.tell("crash")
    assert world.run() == [("start", "a"), ("crash", "a"), ("start", "a")]
    stop_child(world.root, "a")
    stop_child(world.root, "nobody")
    assert world.run() == [("stop", "a")]
    assert not kept.is_alive()
    assert dict(children_of(world.root, 1)) == {}


def test_a_child_that_waits_for_its_restart_can_be_stopped() -> None:
    world = World.of(lambda log: [spec(log, "a", backoff=Backoff(5, 5, 0)), spec(log, "b")], intensity=9)
    child = world.child("a")
    child.tell("crash")
    world.run()
    child.tell("crash")
    world.simulation.run_until_idle(until_seconds=1.0)
    waiting = child.ask("waits", block=False)
    stop_child(world.root, "a")
    world.simulation.run_until_idle()
    with pytest.raises(ActorDeadError):
        waiting.get(timeout=0)
    assert list(children_of(world.root, 1)) == ["b"]
    assert world.simulation.now() < 5.0


def test_a_child_for_a_dead_or_dying_supervisor_is_not_left_waiting() -> None:
    world = World.of(lambda _: [])
    world.root.stop()
    dying = start_child(world.root, spec(world.log, "a"))
    reply = dying.ask("hello", block=False)
    world.simulation.run_until_idle()
    with pytest.raises(ActorDeadError):
        reply.get(timeout=0)
    with pytest.raises(ActorDeadError, match="supervisor is dead"):
        start_child(world.root, spec(world.log, "b"))
    assert world.system.statistics().actors == 0


def test_a_supervisor_that_crashes_leaves_no_child_behind() -> None:
    class Careless(Supervisor):
        def on_receive(self, message: Any) -> Any:
            if message == "crash":
                raise ValueError("told to")
            return super().on_receive(message)

    log = Log()
    simulation = SimulatedScheduler(1)
    system = ActorSystem(simulation)
    root = system.spawn(lambda: Careless(three(log)), "root")
    start_child(root, spec(log, "later", restart=Restart.TEMPORARY))
    simulation.run_until_idle()
    assert system.statistics().actors == 5
    root.tell("crash")
    simulation.run_until_idle()
    assert system.statistics().actors == 0
    assert system.statistics().unaccounted == 0


def test_a_thread_that_does_not_come_back_is_replaced(system: ActorSystem, until: Any) -> None:
    gate, log = threading.Event(), Log()

    class Hanging(Logged):
        def on_receive(self, message: Any) -> Any:
            return gate.wait(10) if message == "hang" else super().on_receive(message)

    specs = [spec(log, "a", Hanging, runs_on="thread", shutdown_seconds=0.01), spec(log, "b")]
    children = children_of(system.spawn(lambda: Supervisor(specs, Strategy.ONE_FOR_ALL), "root"), 5)
    hung = children["a"].ask("hang", block=False)
    waiting = children["a"].ask("waits", block=False)
    until(lambda: system.tree()[0].children[0].handling == "str")
    children["b"].tell("crash")
    with pytest.raises(ActorDeadError, match="killed"):
        hung.get(timeout=5)
    assert waiting.get(timeout=5) == "waits"
    assert system.abandoned == 1  # what the abandoned thread still holds
    gate.set()


def test_a_thread_that_comes_back_with_an_exception_does_not_end_its_replacement(
    system: ActorSystem, until: Any
) -> None:
    gate, raised, log = threading.Event(), threading.Event(), Log()
    ran_on: list[int] = []
    let_go: list[int] = []

    class Hanging(Logged):
        def on_receive(self, message: Any) -> Any:
            if message != "hang":
                return super().on_receive(message)
            ran_on.append(threading.get_ident())
            gate.wait(10)
            raised.set()
            raise ValueError("too late")

        def on_abandoned(self) -> None:
            let_go.append(threading.get_ident())
            raise ValueError("and again")

    specs = [spec(log, "a", Hanging, runs_on="thread", shutdown_seconds=0.01), spec(log, "b")]
    children = children_of(system.spawn(lambda: Supervisor(specs, Strategy.ONE_FOR_ALL), "root"), 5)
    children["a"].tell("hang")
    until(lambda: system.tree()[0].children[0].handling == "str")
    children["b"].tell("crash")
    assert children["a"].ask("of the second", 5) == "of the second"
    gate.set()
    assert raised.wait(5)
    until(lambda: system.abandoned == 0)
    assert children["a"].ask("still there", 5) == "still there"
    assert log.count(("start", "a")) == 2
    until(lambda: let_go == ran_on)
    assert len(let_go) == 1, "once, by its own thread"


def test_bad_specs_are_refused() -> None:
    for options, message in (
        ({"id": "a/b"}, "without '/'"),
        ({"id": ""}, "without '/'"),
        ({"id": "a", "shutdown_seconds": -1}, "cannot be negative"),
        ({"id": "a", "intensity": -1}, "intensity >= 0"),
        ({"id": "a", "intensity": 0, "period_seconds": 0}, "period"),
    ):
        with pytest.raises(ValueError, match=message):
            ChildSpec(start=Actor, **options)
    with pytest.raises(ValueError, match="different ids"):
        Supervisor([ChildSpec("a", Actor), ChildSpec("a", Actor)])


# -- a child that is started later, beside a group that shares its fate ------------------------------------------------


def test_a_child_that_its_supervisor_crashed_on_is_dead_and_can_be_started_again() -> None:
    world = World.of(lambda _: [ChildSpec("inner", Supervisor, backoff=AT_ONCE)])
    with crashing(Target(Supervisor, _Adopt), 1):
        lost = start_child(world.child("inner"), spec(world.log, "late"))
        assert world.run() == []
    assert not lost.is_alive()
    start_child(world.child("inner"), spec(world.log, "late"))
    assert world.run() == [("start", "late")]


@pytest.fixture(params=[Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
def with_a_late_one(request: pytest.FixtureRequest) -> World:
    """Three listed children, and one that was started later."""
    world = World.of(three, strategy=request.param, intensity=3)
    start_child(world.root, spec(world.log, "late"))
    assert world.run() == [("start", each) for each in ("a", "b", "c", "late")]
    return world


def test_a_group_that_starts_again_leaves_a_late_child_alone(with_a_late_one: World) -> None:
    world = with_a_late_one
    world.child("a").tell("crash")
    happened = world.run()
    assert [who for what, who in happened if what == "start"] == ["a", "b", "c"]
    assert "late" not in {who for _, who in happened}
    assert world.child("late").is_alive()


def test_a_late_child_that_fails_starts_again_alone(with_a_late_one: World) -> None:
    world = with_a_late_one
    world.child("late").tell("crash")
    assert world.run() == [("crash", "late"), ("start", "late")]
    world.child("a").tell("crash")
    assert ("crash", "late") not in world.run()
    reply = world.child("late").ask("well?", block=False)
    world.run()
    assert reply.get(timeout=0) == "well?"


def test_the_failures_of_a_late_child_count_for_all(with_a_late_one: World) -> None:
    world = with_a_late_one
    for _ in range(3):
        world.child("late").tell("crash")
        assert world.run() == [("crash", "late"), ("start", "late")]
    world.child("late").tell("crash")
    assert world.run() == [("crash", "late"), ("stop", "c"), ("stop", "b"), ("stop", "a")]
    assert not world.root.is_alive()


def test_a_late_child_stops_with_its_supervisor_and_the_listed_ones_in_reverse(with_a_late_one: World) -> None:
    world = with_a_late_one
    world.root.stop(block=False)
    happened = world.run()
    assert [who for _, who in happened if who != "late"] == ["c", "b", "a"]
    assert ("stop", "late") in happened
    assert len(happened) == 4


def test_a_late_child_stops_with_a_supervisor_that_is_starting_its_group_again(with_a_late_one: World) -> None:
    world = with_a_late_one
    refs = [world.child(each) for each in ("a", "b", "c", "late")]
    refs[0].tell("crash")
    world.root.stop(block=False)
    assert [what for what, who in world.run() if who == "late"] == ["stop"]
    assert not any(ref.is_alive() for ref in refs)


def test_a_late_child_taken_out_does_not_come_back_with_the_group(with_a_late_one: World) -> None:
    world = with_a_late_one
    stop_child(world.root, "late")
    assert world.run() == [("stop", "late")]
    world.child("b").tell("crash")
    assert "late" not in {who for _, who in world.run()}
    start_child(world.root, spec(world.log, "late"))
    assert world.run() == [("start", "late")]


def test_a_child_that_is_killed_before_it_has_started_is_told_of_as_killed() -> None:
    world = World.of(lambda log: [spec(log, "a")])
    child = start_child(world.root, spec(world.log, "late", restart=Restart.TEMPORARY))
    downs: list[Down] = []
    world.system.watch(child, downs.append)
    child._cell.kill()
    world.run()
    assert downs == [Down(child, ExitReason.KILLED)]
    assert not child.is_alive()

"""`wait_until_started`: every permanent actor of a tree runs, or the caller learns which could not start and why."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from callboard.actors.kernel import (
    Actor,
    ActorDeadError,
    ActorSystem,
    AskOnLoopError,
    AskTimeout,
    ChildSpec,
    Restart,
    StartFailed,
    Supervisor,
)
from callboard.actors.testing.simulation import SimulatedScheduler


class Starter(Actor):
    """Runs what it is given when it starts."""

    def __init__(self, when_started: Callable[[], object] = lambda: None) -> None:
        self._when_started = when_started

    def on_start(self) -> None:
        self._when_started()


def tree(*leaves: ChildSpec) -> Supervisor:
    inner = ChildSpec("inner", lambda: Supervisor(leaves, intensity=0))
    return Supervisor([ChildSpec("first", Starter), inner, ChildSpec("last", Starter)], intensity=0)


def fail() -> None:
    raise OSError("no room")


def test_it_returns_when_every_permanent_child_has_started(system: ActorSystem) -> None:
    started: list[str] = []
    specs = [ChildSpec(name, partial(Starter, partial(started.append, name)), runs_on="thread") for name in ("a", "b")]
    root = system.spawn(lambda: tree(*specs), "root")
    system.wait_until_started(root, 5)
    assert started == ["a", "b"]
    (info,) = system.tree()
    assert {child.state for child in info.children} == {"running"}
    system.wait_until_started(root, 5)


def test_it_raises_what_the_first_start_failed_with(system: ActorSystem) -> None:
    root = system.spawn(lambda: tree(ChildSpec("a", Starter), ChildSpec("b", lambda: Starter(fail))), "root")
    with pytest.raises(StartFailed, match="root/inner/b could not start: no room") as raised:
        system.wait_until_started(root, 5)
    assert raised.value.name == "root/inner/b"
    assert isinstance(raised.value.cause, OSError)
    with pytest.raises(StartFailed, match="root/inner/b could not start: no room"):
        system.wait_until_started(root, 5)


def test_it_raises_also_where_the_supervisor_starts_it_again() -> None:
    """As in OTP: a tree starts as a whole or not at all, and no answer depends on who was faster."""
    simulation = SimulatedScheduler()
    system = ActorSystem(simulation)
    failures = [fail]
    specs = [ChildSpec("a", lambda: Starter(failures.pop() if failures else lambda: None))]
    root = system.spawn(lambda: Supervisor(specs), "root")
    simulation.run_until_idle()
    with pytest.raises(StartFailed, match="root/a could not start: no room"):
        system.wait_until_started(root, 5)


def test_it_raises_in_time_and_says_who_is_late(system: ActorSystem) -> None:
    gate = threading.Event()
    root = system.spawn(lambda: tree(ChildSpec("slow", lambda: Starter(gate.wait), runs_on="thread")), "root")
    with pytest.raises(StartFailed, match=r"inner/slow could not start: it has not started within 0\.1 s") as raised:
        system.wait_until_started(root, 0.1)
    assert isinstance(raised.value.cause, AskTimeout)
    gate.set()


def test_children_that_are_not_permanent_may_fail(system: ActorSystem) -> None:
    spec = ChildSpec("odd", lambda: Starter(fail), restart=Restart.TEMPORARY)
    system.wait_until_started(system.spawn(lambda: tree(spec), "root"), 5)


def test_it_raises_for_an_actor_that_has_ended(system: ActorSystem) -> None:
    root = system.spawn(lambda: tree(), "root")
    root.stop(block=True, timeout=5)
    with pytest.raises(StartFailed, match="root could not start: root has ended") as raised:
        system.wait_until_started(root, 5)
    assert isinstance(raised.value.cause, ActorDeadError)


def test_it_refuses_on_the_loop_thread_which_would_have_to_do_the_starting(system: ActorSystem) -> None:
    root = system.spawn(lambda: tree(), "root")

    class Waiter(Actor):
        def on_receive(self, _message: object) -> None:
            self.system.wait_until_started(root, 5)

    with pytest.raises(AskOnLoopError):
        system.spawn(Waiter, "waiter").ask("wait", 5)

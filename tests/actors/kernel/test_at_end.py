"""`at_end`: what an incarnation has opened is closed once, however it ends."""

from __future__ import annotations

import threading

import pytest

from callboard.actors.kernel import Actor, ActorSystem, ChildSpec, NotSpawned, Supervisor
from callboard.actors.testing.simulation import SimulatedScheduler


class Opener(Actor):
    """Opens something at its start and something more with each message."""

    def __init__(self, closed: list[str]) -> None:
        self.closed = closed

    def on_start(self) -> None:
        self.at_end(lambda: self.closed.append(f"first at {self.now()}"))

    def on_receive(self, message: str) -> None:
        if message == "crash":
            raise ValueError(message)
        if message == "stop":
            self.stop()
        if message == "fail":
            self.at_end(self._fail)
        if message == "more":
            self.at_end(lambda: self.closed.append("second"))

    def _fail(self) -> None:
        raise SystemExit("cannot close")


@pytest.mark.parametrize("ends", ["crash", "stop", "kill"])
def test_it_is_called_once_last_set_first_and_the_next_incarnation_starts_clean(ends: str) -> None:
    simulation = SimulatedScheduler()
    system = ActorSystem(simulation)
    closed: list[str] = []
    root = system.spawn(lambda: Supervisor([ChildSpec("opener", lambda: Opener(closed))]), "root")
    simulation.run_until_idle()
    opener = system.ref("root/opener")
    for message in ("more", "fail"):
        opener.tell(message)
    simulation.run_until_idle()
    assert closed == []
    for expected in (["second", "first at 0.0"], ["second", "first at 0.0", "first at 0.0"]):
        if ends == "kill":
            opener._cell.executor.call_soon(opener._cell.kill)
        else:
            opener.tell(ends)
        simulation.run_until_idle(simulation.now())
        assert closed == expected
    assert root.is_alive()


def test_a_start_that_fails_closes_what_it_had_opened() -> None:
    simulation = SimulatedScheduler()
    closed: list[str] = []

    class Failing(Actor):
        def on_start(self) -> None:
            self.at_end(lambda: closed.append("closed"))
            raise OSError("no room")

    ActorSystem(simulation).spawn(Failing, "failing")
    simulation.run_until_idle()
    assert closed == ["closed"]


def test_a_killed_handler_that_goes_on_has_what_it_opens_closed_at_once(system: ActorSystem) -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()
    closed: list[str] = []

    class Late(Actor):
        def on_receive(self, _message: object) -> None:
            begun.set()
            go_on.wait(5)
            self.at_end(lambda: closed.append("late"))
            done.set()

    late = system.spawn(Late, "late", runs_on="thread")
    late.tell("go")
    assert begun.wait(5)
    system.scheduler.call_soon(late._cell.kill)
    gone = threading.Event()
    system.watch(late, lambda _down: gone.set())
    assert gone.wait(5)
    assert closed == []
    go_on.set()
    assert done.wait(5)
    assert closed == ["late"]


def test_before_it_has_started_there_is_no_end_to_wait_for() -> None:
    with pytest.raises(NotSpawned, match="not running"):
        Opener([]).at_end(print)

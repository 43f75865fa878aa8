"""A real system on a real loop thread, and the same in virtual time."""

import threading
from collections.abc import Callable, Iterator

import pytest

from callboard.actors.kernel import ActorSystem, LoopScheduler, SimulatedScheduler


@pytest.fixture
def scheduler() -> Iterator[LoopScheduler]:
    scheduler = LoopScheduler("test").start()
    yield scheduler
    assert scheduler.stop(timeout_seconds=5)


@pytest.fixture
def system(scheduler: LoopScheduler) -> Iterator[ActorSystem]:
    system = ActorSystem(scheduler)
    yield system
    system.shutdown(timeout_seconds=5)
    statistics = system.statistics()
    assert statistics.unaccounted == 0, statistics


@pytest.fixture
def simulation() -> Iterator[SimulatedScheduler]:
    simulation = SimulatedScheduler(seed=1)
    yield simulation
    simulation.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition of another thread, at most ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(10_000):
            if condition():
                return
            pause.wait(0.001)
        raise AssertionError(f"not within ten seconds: {condition}")

    return wait

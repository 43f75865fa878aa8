"""Puts tests/ on the path for `support`, runs `async def` tests; a simulated system; a wait with a condition."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator

import pytest

from callboard.actors.kernel import ActorSystem
from callboard.actors.testing.simulation import SimulatedScheduler


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An `async def` test runs on a loop of its own, as a host's program would."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def simulation() -> Iterator[SimulatedScheduler]:
    simulation = SimulatedScheduler(1)
    yield simulation
    simulation.close()


@pytest.fixture
def simulated(simulation: SimulatedScheduler) -> Iterator[ActorSystem]:
    system = ActorSystem(simulation)
    yield system
    statistics = system.statistics()
    assert statistics.unaccounted == 0, statistics


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for a condition of another thread, at most ten seconds."""

    def wait(condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(10_000):
            if condition():
                return
            pause.wait(0.001)
        raise AssertionError("not within ten seconds")

    return wait

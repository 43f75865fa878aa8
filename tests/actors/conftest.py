"""Puts tests/ on the path for `support`; a simulated system; a wait with a condition for what runs on real threads."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from callboard.actors.kernel import ActorSystem, SimulatedScheduler

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

settings.register_profile("deep", max_examples=5_000, deadline=None)
if os.environ.get("CALLBOARD_DEEP"):
    settings.load_profile("deep")


@pytest.fixture
def simulation() -> Iterator[SimulatedScheduler]:
    simulation = SimulatedScheduler(seed=1)
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

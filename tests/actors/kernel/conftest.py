"""A real system on a real loop thread. (The same in virtual time is in the folder above.)"""

from collections.abc import Iterator

import pytest

from callboard.actors.kernel import ActorSystem, LoopScheduler


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

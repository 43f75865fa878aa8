"""What is looked up when the metrics are read, on the runtime's loop, and costs nothing until then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from callboard.actors.calls.ledger import Ledger
from callboard.actors.calls.registry import name_of
from callboard.actors.kernel import ActorSystem
from callboard.actors.telemetry import metrics
from callboard.actors.telemetry.metrics import Sample

if TYPE_CHECKING:
    from callboard.actors.index.vector_making import VectorState


def samples(
    system: ActorSystem,
    calls: Ledger,
    held: Callable[[], int],
    vectors: Callable[[], VectorState | None],
) -> Iterator[Sample]:
    """`held` tells how many handlers have held the loop, `vectors` how far those of the code index are."""
    statistics = system.statistics()
    yield Sample(metrics.ACTORS, (), statistics.actors)
    yield Sample(metrics.RESTARTS, (), statistics.restarts)
    yield Sample(metrics.LOOP_HELD, (), held())
    for reason, count in system.dead_letters.counts().items():
        yield Sample(metrics.DEAD_LETTERS, (reason.value,), count)
    waiting, running = Counter[str](), Counter[str]()
    for key, lane in calls.lanes.items():  # tools that questions have brought with them may share a name
        waiting[name_of(key)] += len(lane.waiting)
        running[name_of(key)] += lane.running
    for tool, count in waiting.items():
        yield Sample(metrics.CALLS_WAITING, (tool,), count)
        yield Sample(metrics.CALLS_RUNNING, (tool,), running[tool])
    for pool in calls.pools.values():
        yield Sample(metrics.WORKERS, (pool.name,), pool.workers)
    for root in system.tree():
        for actor in (root, *root.children):
            yield Sample(metrics.MAILBOX, (actor.name,), actor.mailbox_depth)
    if (state := vectors()) is not None:
        counts = {"made": state.made, "missing": state.missing, "first": state.first, "left": state.left}
        for vector, count in counts.items():
            yield Sample(metrics.SEARCH_TILES, (vector,), count)

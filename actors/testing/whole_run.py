"""What no single request of a simulated run can see: rules on all actors together, asked when nothing more happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from msgspec import json

from callboard.actors.calls.dispatcher import ToolDispatcher
from callboard.actors.calls.ledger import Ledger
from callboard.actors.kernel import DeadLetterReason
from callboard.actors.kernel.cell import State
from callboard.actors.testing.simulated_request import SimulatedRequest
from callboard.actors.testing.simulated_world import World
from callboard.protocol.commands import CancelTool
from callboard.protocol.events import DeadlinePassed, Event, ToolCallCompleted, ToolCallFailed
from callboard.protocol.ids import RequestId
from callboard.protocol.options import ToolOffer
from callboard.protocol.testing.trace import Trace, Verb
from callboard.protocol.tools import Effect, FailureCode

#: Crashes that are no faults: of the plan, by which a session ends its request on purpose (a store that refuses, and
#: failures that callboard names), and of a worker whose process has died. Whether a session may end so is asked for
#: each request.
_PLANNED: Final = (
    "PlannedFailure(", "OSError(28,", "RuntimeFailure(", "WorkerLost(", "Unwritten(", "PlannedCommitCrash(",
    "ProcessDied(",
)  # fmt: skip

#: Between the crash of an actor and the next incarnation: the longest backoff (kernel/restart.py), and its jitter.
_LONGEST_BACKOFF_SECONDS: Final = 7.5

#: Failures with which a call may have had its effect.
_UNSURE: Final = (FailureCode.OUTCOME_UNKNOWN, FailureCode.TIMED_OUT, FailureCode.CANCELLED)

Requests = Mapping[RequestId, SimulatedRequest]


def problems_of_the_whole(world: World, requests: Requests, tools: Iterable[ToolOffer]) -> Iterator[str]:
    """Every rule on the whole that was broken, one sentence each; the words before the colon name the rule."""
    statistics = world.system.statistics()
    if statistics.unaccounted or statistics.queued:
        yield f"conservation: at rest {statistics}"
    harmless = {offer.definition.name for offer in tools if offer.contract.effect is not Effect.ONCE}
    for tag, runs in world.runs.items():
        if runs > 1 and world.plans[tag.request_id].of_call[tag].tool not in harmless:
            yield f"run twice: {tag} ran {runs} times"
    yield from _unplanned_crashes(world)
    yield from _seen_of_others(requests)
    yield from _left_open(world)
    yield from _committed(world, requests)
    if not world.jumps:
        for request in requests.values():
            if not request.trace.lag_seconds and not world.earlier:  # else a call reaches the dispatcher late
                yield from _ended_by_session(world, request.trace)


def _committed(world: World, requests: Requests) -> Iterator[str]:
    """What is committed with the outcome of its call is there once if that has a result, and never if it failed."""
    if world.ahead is None:
        return
    written = Counter(tag for tag, _ in world.ahead.disk.effects)
    yield from (f"transaction: what {tag} wrote is there {count} times" for tag, count in written.items() if count > 1)
    for request in requests.values():
        for event in (each.value for each in request.trace.entries if each.verb is Verb.APPLIED):
            if isinstance(event, ToolCallCompleted) and world.is_transaction(event.tag) and not written[event.tag]:
                yield f"transaction: {event.tag} has a result, and what it wrote is not there"
            if isinstance(event, ToolCallFailed) and written[event.tag] and event.failure.code not in _UNSURE:
                yield f"transaction: {event.tag} failed ({event.failure.code}), and what it wrote is there"


def _unplanned_crashes(world: World) -> Iterator[str]:
    planned = (*_PLANNED, "IntensityExceeded(") if world.faults.escalates else _PLANNED
    for letter in chain.from_iterable(each.dead_letters.list() for each in (*world.earlier, world.system)):
        if letter.reason is DeadLetterReason.CRASHED and not letter.note.startswith(planned):
            yield f"crash: {letter.recipient} crashed on {type(letter.message).__name__}: {letter.note}"


def _seen_of_others(requests: Requests) -> Iterator[str]:
    """A request that sees the result of another's call."""
    if len(requests) < 2:
        return
    for request_id, request in requests.items():
        text = json.encode(request.trace.entries, enc_hook=repr)  # a tenth of the time that repr takes
        for other in requests:
            if other != request_id and rf"\"of\":\"{other}/".encode() in text:
                yield f"isolation: {request_id} has seen a result of {other}"


def _left_open(world: World) -> Iterator[str]:
    """At rest, a place that is still taken will never be free again, unless the tree has ended by itself."""
    if world.why_ended:
        alive = [name for name, cell in world.system._cells.items() if cell.state is State.RUNNING]
        yield from (f"left open: the tree has ended by itself, and {name} runs" for name in alive)
        return
    dispatcher = world.system.ref("root/dispatcher")._cell.actor
    if isinstance(dispatcher, ToolDispatcher):
        for problem in left_open(dispatcher.ledger):
            yield f"left open: {problem} at rest"


def left_open(ledger: Ledger) -> list[str]:
    """Places that are taken, and calls that have not ended: at rest there are none."""
    counts = [(f"calls at {seat.worker}", len(seat.calls)) for seat in ledger.seats.values()]
    for name, lane in ledger.lanes.items():
        counts += [(f"running calls of {name}", lane.running), (f"waiting calls of {name}", len(lane.waiting))]
    open_calls = [f"{tag} is {call.state}" for tag, call in ledger.calls.items()]
    return [*(f"{count} {what}" for what, count in counts if count), *open_calls]


def _ended_by_session(world: World, trace: Trace) -> Iterator[str]:
    """The session ends a call itself only where dispatcher and pool say nothing.

    That is not planned here, but for the time in which a dispatcher that has crashed often is not started again yet.
    """
    event: Event | None = None
    crashes = [at for at, what in world.happened if what == "root/dispatcher crashes"]
    for entry in trace.entries:
        if entry.verb is Verb.APPLIED:
            event = entry.value  # type: ignore[assignment]
        elif any(0 <= entry.at - at < _LONGEST_BACKOFF_SECONDS for at in crashes):
            continue
        elif isinstance(entry.value, CancelTool) and isinstance(event, DeadlinePassed) and event.tag.step:
            yield f"backstop: call {entry.value.tag} was ended by its session, at {entry.at:g}"

"""Runs the cases of tools: several at once on one runtime, and each alone where a neighbour was harmed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final

from msgspec import Struct

from callboard.actors.testing.chaos.beside import Host, Victim
from callboard.actors.testing.chaos.judging import (
    Result,
    failed_requests,
    judged,
    namespaces_are_possible,
    neighbour_faults,
    result_faults,
    skipped,
    why_skipped,
)
from callboard.actors.testing.ways.case import Case, Level, Way
from callboard.actors.testing.ways.exhaust import shared_memory_is_left
from callboard.actors.testing.ways.following import Change, change_or_see
from callboard.actors.testing.ways.healthy import HEALTHY
from callboard.actors.tools import Tool, tool
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.protocol.tools import Isolation
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

#: Cases on one runtime at the same time.
BATCH: Final = 40
#: Changes that take turns in one child process.
CHANGES_AT_A_TIME: Final = 14
#: The healthy calls that a victim makes in the same turn.
X: Final = 1000
HEALTHY_RESULTS: Final = ["2000", "3000", "5000"]
#: The names of tools are at most so long.
NAME_CHARS: Final = 60


class Prepared(Struct, frozen=True):
    """A case, its tool and its request."""

    case: Case
    way: Way
    tool: Tool
    victim: Victim


def prepared(case: Case, way: Way) -> Prepared:
    """The tool of a way, at the case's level, and the request whose model calls it between three healthy calls."""
    name = case.name.replace("/", "-").replace(".", "_")[:NAME_CHARS]
    isolation = Isolation(case.level.value)
    decorate = tool(name=name, description=way.what, isolation=isolation, timeout=way.timeout, concurrency=1)
    own: Tool = decorate(function_of(case.level, way))
    arguments: Any = way.arguments if isinstance(way.arguments, str) else dict(way.arguments)

    def turn(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
        if results:
            return ScriptedTurn(", ".join(each.content for each in results if each.name != name))
        process, *others = (ScriptedCall(each.name, {"x": X}) for each in HEALTHY)
        return ScriptedTurn(calls=(process, ScriptedCall(name, arguments), *others), chunk_chars=4_096)

    return Prepared(case, way, own, Victim(case.name, turn, way.is_read_along))


def function_of(level: Level, way: Way) -> Callable[..., object]:
    """What the tool runs there."""
    if level is Level.THREAD and way.in_thread is not None:
        return way.in_thread
    if level is not Level.TASK:
        return plain(way.function)
    if way.in_task is not None:
        return way.in_task
    function = way.function

    @wraps(function)
    async def called_in_a_task(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return called_in_a_task


def plain(function: Callable[..., object]) -> Callable[..., object]:
    """A function of Python's own: os.abort is none, and has no signature."""
    if hasattr(function, "__code__"):
        return function

    def calls() -> Any:
        return function()

    return calls


async def run_ways(cases: Sequence[Case], host: Host) -> list[Result]:
    """All of them; a batch whose neighbours were harmed is run again one by one, to find out by whom."""
    results: list[Result] = []
    for batch in batches(cases):
        found = await _run_batch(batch, host)
        if len(batch) > 1 and any("other requests" in fault for each in found for fault in each.faults):
            found = [result for case in batch for result in await _run_batch([case], host)]
        results += found
    return results


def batches(cases: Sequence[Case]) -> list[list[Case]]:
    """Those that may cost others more than nothing run alone; those that take long run together."""
    alone = [case for case in cases if case.alone]
    others = sorted((case for case in cases if not case.alone), key=lambda case: case.seconds)
    together = [others[start : start + BATCH] for start in range(0, len(others), BATCH)]
    return [*together, *([case] for case in alone)]


async def _run_batch(batch: Sequence[Case], host: Host) -> list[Result]:
    began = time.monotonic()
    ready = [prepared(case, case.way) for case in batch if isinstance(case.way, Way)]
    victims = [each.victim for each in ready]
    seen = await host.play(victims, [each.tool for each in ready], seconds=max(case.seconds for case in batch))
    changed = await host.changed(seen)
    seconds = (time.monotonic() - began) / len(batch)
    results = []
    for each in ready:
        case, ended = each.case, seen.victims[each.victim.question]
        own = ended.results_of(each.tool.name)
        if why := why_skipped(own):
            results.append(_not_dared(case, why))
            continue
        faults = [*failed_requests(ended), *neighbour_faults(case, seen, changed), *seen.faults]
        if ended.error is None:
            faults += result_faults(case, own, each.way.mentions)
            others = [content for name in HEALTHY for content in ended.results_of(name.name)]
            if others != HEALTHY_RESULTS and case.blast.value == "nothing":
                faults.append(f"other calls of its own request were told {others}")
        if case.name.startswith("exhaust/shared-memory/") and shared_memory_is_left():
            faults.append("the shared memory is still there after the runtime has stopped")
        results.append(judged(case, faults, seconds))
    return results


def _not_dared(case: Case, why: str) -> Result:
    """Not run where the kernel has no namespaces for us; a fault where it has, and they were not used."""
    if namespaces_are_possible():
        return judged(case, [f"{why}, although this machine allows namespaces"], 0.0)
    return skipped(case, f"{why}, and this machine allows no namespaces")


# -- what the next call finds


def see_and_change(change: Change) -> Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]:
    """A look, the change, and another look; one call a step."""
    steps = [{"change": change.name, "see": see} for see in (True, False, True)]

    def turn(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
        if len(results) < len(steps):
            return ScriptedTurn(calls=(ScriptedCall(changing.name, steps[len(results)]),))
        return ScriptedTurn("seen")

    return turn


changing: Final = tool(name="change_or_see", concurrency=1)(change_or_see)


async def run_changes(cases: Sequence[Case], host: Host) -> list[Result]:
    """With one child process at a time, so that the next call is the next in the same place.

    Several requests take turns in that place; where a change has reached anybody, each is run again on its own.
    """
    results: list[Result] = []
    for start in range(0, len(cases), CHANGES_AT_A_TIME):
        batch = cases[start : start + CHANGES_AT_A_TIME]
        found = await _run_changes(batch, host)
        if len(batch) > 1 and any(each.faults for each in found):
            found = [result for case in batch for result in await _run_changes([case], host)]
        results += found
    return results


async def _run_changes(batch: Sequence[Case], host: Host) -> list[Result]:
    began = time.monotonic()
    victims = [Victim(case.name, see_and_change(case.way)) for case in batch if isinstance(case.way, Change)]
    seen = await host.play(victims, [changing], changed={"process_workers": 1})
    strange = await host.changed(seen)
    seconds = (time.monotonic() - began) / len(batch)
    results = []
    for case in batch:
        ended = seen.victims[case.name]
        faults = [*failed_requests(ended), *neighbour_faults(case, seen, strange), *seen.faults]
        told = ended.results_of(changing.name)
        if ended.error is None and told[0] != told[2]:
            faults.append(f"the call before saw {told[0]}, the call after {told[2]}")
        elif ended.error is None and told[1] != "done":
            faults.append(f"the change could not be made: {told[1][:200]}")
        results.append(judged(case, faults, seconds))
    return results

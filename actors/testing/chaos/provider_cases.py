"""Runs the cases of providers: poisoned answers of the scripted one, and faults of a server over HTTP."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from callboard.actors.testing.chaos.beside import Ended, Host, Seen, Victim
from callboard.actors.testing.chaos.judging import Result, judged, kind_of, neighbour_faults
from callboard.actors.testing.ways.answers import DEADLINE_SECONDS, Poison, Poisoned, WireFault
from callboard.actors.testing.ways.case import OK, Case
from callboard.actors.testing.ways.healthy import HEALTHY
from callboard.actors.testing.wire_double import Call, Script, Turn, WireDouble
from callboard.protocol.content import ToolMessage
from callboard.protocol.model import ModelRequest
from callboard.providers.local.scripted import ScriptedTurn

#: Poisons on one runtime at the same time.
BATCH: Final = 30
#: For a server that has fallen silent.
IDLE_SECONDS: Final = 1.5
#: What the runtime may hold of answers that do not end, all of a batch together.
ATTEMPTS: Final = 2


def poisoned(poison: Poison) -> Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]:
    """The poison first, and a plain answer once there are results."""

    def turn(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
        return ScriptedTurn("It went on.") if results else Poisoned(play=poison.play)

    return turn


async def run_poisons(cases: Sequence[Case], host: Host) -> list[Result]:
    """Several at once; alone where a neighbour was harmed."""
    results: list[Result] = []
    ordered = sorted(cases, key=lambda case: _is_bounded_by_deadline(case))
    for start in range(0, len(ordered), BATCH):
        results += await _retried(ordered[start : start + BATCH], host, _run_poisons)
    return results


def _is_bounded_by_deadline(case: Case) -> bool:
    return "RequestEnded" in case.expected


async def _run_poisons(batch: Sequence[Case], host: Host) -> list[Result]:
    began = time.monotonic()
    victims = [Victim(case.name, poisoned(case.way)) for case in batch if isinstance(case.way, Poison)]
    seconds = max(case.seconds for case in batch)
    seen = await host.play(
        victims, (), seconds=seconds, changed={"request_timeout_seconds": DEADLINE_SECONDS, "max_attempts": ATTEMPTS}
    )
    return judged_requests(batch, seen, await host.changed(seen), (time.monotonic() - began) / len(batch))


async def run_wire(cases: Sequence[Case], host: Host) -> list[Result]:
    """All at once, against the wire double in a process of its own."""
    scripts = [
        Script((case.way.answer, Turn("It went on.")), by_turn=True, name=_script_name(case))
        for case in cases
        if isinstance(case.way, WireFault)
    ]
    calls = tuple(Call(each.name, {"x": 7}) for each in HEALTHY)
    with WireDouble([Turn(calls=calls), Turn("All three have answered.")], by_turn=True) as double:
        changed = {
            "model": "openai-compatible/m",
            "base_url": double.base_url(),
            "api_key": "k",
            "request_timeout_seconds": DEADLINE_SECONDS * 2,
            "max_attempts": ATTEMPTS,
            "stream_idle_timeout_seconds": IDLE_SECONDS,
        }
        plain = await host.play((), (), changed=changed)
        alone = [each.as_bytes() for each in plain.neighbours]

        async def run_batch(batch: Sequence[Case], host: Host) -> list[Result]:
            double.play_scripts(*(script for script in scripts if script.name in map(_script_name, batch)))
            began = time.monotonic()
            victims = [Victim(_script_name(case), _never) for case in batch]
            seen = await host.play(victims, (), changed=changed)
            strange = [n for n, each in enumerate(seen.neighbours) if each.as_bytes() != alone[n]]
            seen.victims = {case.name: seen.victims[_script_name(case)] for case in batch}
            return judged_requests(batch, seen, strange, (time.monotonic() - began) / len(batch))

        results: list[Result] = []
        for start in range(0, len(cases), BATCH):
            results += await _retried(cases[start : start + BATCH], host, run_batch)
        return results


def _script_name(case: Case) -> str:
    return case.name.replace("/", "-")


def _never(_request: ModelRequest, _results: Sequence[ToolMessage]) -> ScriptedTurn:
    raise AssertionError("the model of these requests is a server")


async def _retried(
    batch: Sequence[Case], host: Host, run: Callable[[Sequence[Case], Host], Awaitable[list[Result]]]
) -> list[Result]:
    found = await run(batch, host)
    if len(batch) > 1 and any("other requests" in fault for each in found for fault in each.faults):
        found = [result for case in batch for result in await run([case], host)]
    return found


def judged_requests(batch: Sequence[Case], seen: Seen, changed: list[int], seconds: float) -> list[Result]:
    """Each by how its request ended."""
    results = []
    for case in batch:
        ended = seen.victims[case.name]
        faults = [*neighbour_faults(case, seen, changed), *seen.faults, *request_faults(case, ended)]
        results.append(judged(case, faults, seconds))
    return results


def request_faults(case: Case, ended: Ended) -> list[str]:
    """What is wrong with the end of the case's own request."""
    if not ended.in_time:
        return ["its request did not end by its deadline"]
    kind = OK if ended.error is None else kind_of(ended.error)
    if kind not in case.expected:
        return [f"its request ended with {kind} and not {' or '.join(case.expected)}: {str(ended.error)[:200]}"]
    return []

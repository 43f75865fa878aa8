"""Crashes every actor on every message that it takes: once, twice and three times in a row, for real and simulated.

Beside it run the healthy requests, each with two more calls that may run once only, and others that reach the rest: a
tool that hangs, an ask that is cancelled, an approval, a model call that is tried again, a stream, the metrics. The
editor has a workspace, in which edits are staged, approved and told to the model.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from callboard.actors.index.token_count import count_tokens
from callboard.actors.requests.conversation import Conversation
from callboard.actors.runtime import Runtime
from callboard.actors.testing.chaos.beside import Host, Seen, Victim
from callboard.actors.testing.chaos.crashing import ChaosCrash, Target, crashing, targets
from callboard.actors.testing.chaos.judging import Result, judged, skipped
from callboard.actors.testing.chaos.stirring import STIRRING, stir_approval
from callboard.actors.testing.faults import Faults
from callboard.actors.testing.simulated_run import SimulatedRun
from callboard.actors.testing.ways.case import OK, Blast, Case, Group, Level
from callboard.actors.tools import ToolContext, tool
from callboard.protocol.commands import AskApproval
from callboard.protocol.content import ToolMessage
from callboard.protocol.errors import CallboardError, ErrorKind
from callboard.protocol.ids import RequestId
from callboard.protocol.model import Error, ModelRequest
from callboard.protocol.testing.generator import scenario
from callboard.protocol.testing.scenario import Scenario, Store
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

IN_A_ROW: Final = (1, 2, 3)
#: Requests under way in one run.
SECONDS: Final = 0.4
#: Until a request that is given up waits for its tool, or its model.
GIVE_UP_SECONDS: Final = 0.2
_SIMULATED: Final = "simulated"
_REAL: Final = "real"
_NONE_CAME: Final = "no such message came in this run"


class Crash(Struct, frozen=True):
    """What a case does."""

    target: Target
    times: int
    where: str


def actor_cases() -> tuple[Case, ...]:
    """One for each actor, each message, each number of crashes in a row, simulated and for real."""
    return tuple(
        Case(
            f"{Group.ACTOR}/{target.name}/{times}/{where}",
            Group.ACTOR,
            Level.ACTOR,
            f"{target.actor.__name__} crashes on {target.message.__name__}, {_ROW[times]}, {where}",
            (OK,),
            Crash(target, times, where),
            Blast.RUNNING_CALLS if _room_of(target) in _ROOMS_OF_CALLS else Blast.NOTHING,
        )
        for where in (_SIMULATED, _REAL)
        for target in targets()
        for times in IN_A_ROW
        if where == _REAL or not _is_played(target)
    )


def _is_played(target: Target) -> bool:
    """Workers and what is outside of the process have no real actors in a simulated run."""
    return _room_of(target) in _PLAYED_ROOMS


def _is_editor(target: Target) -> bool:
    return _room_of(target) == "edits"


def _room_of(target: Target) -> str:
    return target.actor.__module__.split(".")[2]


#: A worker holds calls, and what it holds ends with it; where it gets its processes from holds those of a pool.
_ROOMS_OF_CALLS: Final = ("workers", "processes")
_PLAYED_ROOMS: Final = ("workers", "processes", "index", "edits")
_ROW: Final = {1: "once", 2: "twice in a row", 3: "three times in a row"}


async def run_crashes(cases: Sequence[Case], host: Host) -> list[Result]:
    """The simulated ones in virtual time, the others on a runtime each."""
    results = []
    for case in cases:
        crash = case.way
        assert isinstance(crash, Crash)
        run = _run_simulated if crash.where == _SIMULATED else None
        results.append(run(case, crash, host) if run is not None else await _run_real(case, crash, host))
    return results


# -- for real

_runs: Counter[tuple[str, int, str]] = Counter()


def _count(context: ToolContext, name: str) -> None:
    _runs[str(context.tag.request_id), context.tag.step, f"{name} {context.tag.call_id}"] += 1


@tool(name="once_task", concurrency=256)
async def once_task(context: ToolContext) -> str:
    """Counts its runs; it may not run twice."""
    _count(context, "task")
    await asyncio.sleep(0.01)
    return "once"


@tool(name="once_thread", isolation="thread", concurrency=64)
def once_thread(context: ToolContext) -> str:
    """Counts its runs; it may not run twice."""
    _count(context, "thread")
    return "once"


ONCE: Final = (once_task, once_thread)
_TRY_AGAIN: Final = Error(ErrorKind.OVERLOADED, "once", retryable=True, retry_after=0.01)
_REFUSED: Final = Error(ErrorKind.PERMISSION, "stirred")


def _calls(name: str) -> Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]:
    def turn(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
        return ScriptedTurn("stirred") if results else ScriptedTurn(calls=(ScriptedCall(name),))

    return turn


def _tried_again() -> Callable[[ModelRequest, Sequence[ToolMessage]], ScriptedTurn]:
    tries = iter((ScriptedTurn(error=_TRY_AGAIN),))

    def turn(_request: ModelRequest, _results: Sequence[ToolMessage]) -> ScriptedTurn:
        return next(tries, ScriptedTurn("stirred"))

    return turn


def _fails(_request: ModelRequest, _results: Sequence[ToolMessage]) -> ScriptedTurn:
    return ScriptedTurn(error=_REFUSED)


def _is_slow(_request: ModelRequest, _results: Sequence[ToolMessage]) -> ScriptedTurn:
    return ScriptedTurn("stirred", first_delay_seconds=2 * GIVE_UP_SECONDS)


async def _stir(runtime: Runtime) -> None:
    """What no plain ask does: look, read along, give up."""
    with suppress(CallboardError, TimeoutError, ChaosCrash):
        await asyncio.to_thread(runtime.metrics)
    given_up = [asyncio.ensure_future(runtime.ask(question)) for question in ("stir_task", "stir_slow")]
    await asyncio.sleep(GIVE_UP_SECONDS)
    for ask in given_up:
        ask.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    with suppress(CallboardError):
        async for _ in runtime.stream("stir_again"):
            continue


def _approve(question: AskApproval) -> bool:
    return question.name == stir_approval.name


_EDITS: Final = "stir_edits"
_edited = count()


def _stages_an_edit(_request: ModelRequest, results: Sequence[ToolMessage]) -> ScriptedTurn:
    new_file = {"path": f"stirred-{next(_edited)}.txt", "content": "stirred"}
    return ScriptedTurn("stirred") if results else ScriptedTurn(calls=(ScriptedCall("create_file", new_file),))


async def _edit(runtime: Runtime) -> None:
    """Stage edits, look at them, approve them, and ask on, which tells the model."""
    conversation = Conversation()
    with suppress(CallboardError, ChaosCrash):
        await runtime.ask(_EDITS, conversation=conversation)
    with suppress(CallboardError, ChaosCrash):
        await asyncio.to_thread(runtime.proposals)
    with suppress(CallboardError, ChaosCrash):
        await runtime.approve_edits()
    with suppress(CallboardError, ChaosCrash):
        await runtime.ask(_EDITS, conversation=conversation)


async def _run_real(case: Case, crash: Crash, host: Host) -> Result:
    if not _is_editor(crash.target):
        return await _run_among_requests(case, crash, host)
    count_tokens([""])  # the process that counts tokens is this process's, and outlives the runtime
    with TemporaryDirectory() as folder:
        places = {name: Path(folder, name) for name in ("workspace", "state_dir", "index_dir")}
        places["workspace"].mkdir()
        return await _run_among_requests(case, crash, host, places)


async def _run_among_requests(case: Case, crash: Crash, host: Host, places: Mapping[str, Path] | None = None) -> Result:
    """`places`: with a workspace, and edits of it in place of approvals."""
    began = time.monotonic()
    stirring = [Victim(each.name, _calls(each.name)) for each in STIRRING]
    models = {"stir_again": _tried_again(), "stir_fails": _fails, "stir_slow": _is_slow}
    victims = [*stirring, *(Victim(name, turn) for name, turn in models.items())]
    if places is not None:
        victims.append(Victim(_EDITS, _stages_an_edit))
    careful = replace(host, user_tools=(*host.user_tools, *ONCE))
    careful.known = host.known
    await careful.plain()
    _runs.clear()
    with crashing(crash.target, crash.times) as crashes:
        seen = await careful.play(
            victims,
            STIRRING,
            seconds=SECONDS,
            disturb=_stir if places is None else _edit,
            approve=_approve if places is None else None,  # without an approver, edits wait for their owner
            changed={"tool_failure_budget": None, **(places or {})},
        )
    if not crashes.actors:
        return skipped(case, _NONE_CAME)
    harmed = set(await careful.changed(seen)) - _numbers(crashes.requests)
    if case.blast is Blast.RUNNING_CALLS:
        harmed = {number for number in harmed if seen.neighbours[number].error is not None}
    faults = [*seen.faults, *_harmed(seen, harmed, crashes.requests), *_late(seen)]
    twice = [key for key, count in _runs.items() if count > 1]
    if twice:
        faults.append(f"{len(twice)} calls ran twice that may run once only, the first: {twice[0]}")
    return judged(case, faults, time.monotonic() - began)


def _numbers(requests: set[str]) -> set[int]:
    return {int(request.partition("-")[2]) for request in requests if request.startswith("live-")}


def _harmed(seen: Seen, harmed: set[int], about: set[str]) -> list[str]:
    if not harmed:
        return []
    first = seen.neighbours[min(harmed)]
    said = first.as_bytes()[:300].decode(errors="replace")
    return [f"the messages were about {sorted(about) or 'no request'}, and {len(harmed)} others were harmed: {said}"]


def _late(seen: Seen) -> list[str]:
    late = [name for name, ended in seen.victims.items() if not ended.in_time]
    return [f"{len(late)} requests did not end by their deadline, the first: {late[0]}"] if late else []


# -- in virtual time


def _scenarios(count: int) -> Iterator[Scenario]:
    """Seeded conversations with the tools of the first; what a simulated run cannot do is left out."""
    tools = scenario(0).tools
    for number in range(count):
        plain = replace(scenario(number), restart_at=(), tools_lost_at=(), strays=(), jumps=(), store=Store())
        yield replace(plain, request_id=RequestId(f"r{number}"), tools=tools)


def _met(scenarios: Sequence[Scenario]) -> list[bytes]:
    """What comes where nothing crashes. Each other run is the same up to its first crash: nothing else comes there."""
    played = [each for each in targets() if not _is_played(each)]
    with ExitStack() as watched:
        crashes = [watched.enter_context(crashing(target, 0)) for target in played]
        SimulatedRun(scenarios, Faults()).play()
    return [target.name.encode() for target, each in zip(played, crashes, strict=True) if each.came]


def _run_simulated(case: Case, crash: Crash, host: Host) -> Result:
    began = time.monotonic()
    scenarios = list(_scenarios(host.neighbours + 1))
    if "simulated" not in host.known:
        host.known["simulated"] = _met(scenarios)
    if crash.target.name.encode() not in host.known["simulated"]:
        return skipped(case, _NONE_CAME)
    run = SimulatedRun(scenarios, Faults())
    with crashing(crash.target, crash.times) as crashes:
        crashes.tells = run.world.crashes.crashes_unplanned
        run.play()
    assert crashes.actors, f"{crash.target.name} came where nothing crashed, and not in the same run with crashes"
    problems = [each for each in run.problems() if ChaosCrash.__name__ not in each]
    about = {request for request in crashes.requests}
    faults = [each for each in problems if each.partition(" ")[0] not in about]
    return judged(case, faults[:3], time.monotonic() - began)

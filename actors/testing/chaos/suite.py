"""The chaos suite as a function: all cases, those that a pattern names, and how they are run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Final

from callboard.actors.settings import Settings
from callboard.actors.testing.chaos.actor_cases import actor_cases, run_crashes
from callboard.actors.testing.chaos.beside import NEIGHBOURS, Host
from callboard.actors.testing.chaos.host_cases import run_hosts
from callboard.actors.testing.chaos.hosts import HOST
from callboard.actors.testing.chaos.infrastructure import INFRASTRUCTURE, run_harms
from callboard.actors.testing.chaos.judging import Report, Result, skipped
from callboard.actors.testing.chaos.provider_cases import run_poisons, run_wire
from callboard.actors.testing.chaos.tool_cases import run_changes, run_ways
from callboard.actors.testing.ways.answers import PROVIDER, WIRE
from callboard.actors.testing.ways.case import Case, Group, cases_of
from callboard.actors.testing.ways.die import DIE, RAISE
from callboard.actors.testing.ways.escape import ESCAPE
from callboard.actors.testing.ways.exhaust import EXHAUST
from callboard.actors.testing.ways.following import NEXT
from callboard.actors.testing.ways.hang import HANG
from callboard.actors.testing.ways.values import RETURN
from callboard.actors.tools import Tool
from callboard.protocol.errors import UsageError

Runner = Callable[[Sequence[Case], Host], Awaitable[list[Result]]]

TOOL_CASES: Final[tuple[Case, ...]] = (
    *cases_of(Group.DIE, DIE),
    *cases_of(Group.HANG, HANG),
    *cases_of(Group.RETURN, RETURN),
    *cases_of(Group.RAISE, RAISE),
    *cases_of(Group.EXHAUST, EXHAUST),
    *cases_of(Group.ESCAPE, ESCAPE),
    *NEXT,
)
RUNNERS: Final[dict[Group, Runner]] = {
    Group.PROVIDER: run_poisons,
    Group.WIRE: run_wire,
    Group.HOST: run_hosts,
    Group.ACTOR: run_crashes,
    Group.INFRASTRUCTURE: run_harms,
    **dict.fromkeys((Group.DIE, Group.HANG, Group.RETURN, Group.RAISE, Group.EXHAUST, Group.ESCAPE), run_ways),
    Group.NEXT: run_changes,
}
#: Groups whose cases have a runtime each: what became of one is told before the next begins.
ONE_BY_ONE: Final = frozenset({Group.ACTOR, Group.INFRASTRUCTURE})


def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the tables."""
    return (*TOOL_CASES, *INFRASTRUCTURE, *PROVIDER, *WIRE, *HOST, *actor_cases())


def chosen(patterns: Iterable[str]) -> tuple[Case, ...]:
    """The cases whose name a pattern matches (`die/*`, `*/task`, `hang/gil/process`). Raises UsageError for none."""
    cases = all_cases()
    wanted = tuple(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(case.name, pattern) for case in cases):
            raise UsageError(f"no case is called {pattern!r}; see `python -m callboard.actors.testing chaos --list`")
    return tuple(case for case in cases if any(fnmatchcase(case.name, pattern) for pattern in wanted or ("*",)))


def run(
    cases: str | Iterable[str | Case] = "*",
    *,
    settings: Settings | None = None,
    tools: Iterable[Tool] = (),
    neighbours: int = NEIGHBOURS,
    told: Callable[[Result], object] | None = None,
) -> Report:
    """Run cases, each beside `neighbours` healthy requests, and report what became of them.

    `cases` are names, patterns of names, or cases. `settings` are the host's own, of which the model is replaced by a
    scripted one. `tools` are the host's own: every neighbour calls each of them once, with plain arguments. `told`
    hears each result as it comes. Raises UsageError for an unknown case, and where an event loop is running.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError("chaos.run() runs an event loop of its own; call it where none is running")
    named = [cases] if isinstance(cases, str) else list(cases)
    given = [case for case in named if isinstance(case, Case)]
    patterns = [pattern for pattern in named if isinstance(pattern, str)]
    wanted = (*given, *(chosen(patterns) if patterns else ()))
    host = Host(settings, tuple(tools), neighbours)
    began = time.monotonic()
    with _quiet():
        results = asyncio.run(_run(wanted, host, told or _ignore))
    return Report.of(results, time.monotonic() - began)


async def _run(cases: Sequence[Case], host: Host, told: Callable[[Result], object]) -> list[Result]:
    results: list[Result] = []
    for group in dict.fromkeys(case.group for case in cases):
        own = [case for case in cases if case.group is group]
        reasons = {case.name: case.why_not() if case.why_not is not None else "" for case in own}
        found = [skipped(case, reasons[case.name]) for case in own if reasons[case.name]]
        left = [case for case in own if not reasons[case.name]]
        size = 1 if group in ONE_BY_ONE else max(len(left), 1)
        for result in found:
            told(result)
        for start in range(0, len(left), size):
            ended = await RUNNERS[group](left[start : start + size], host)
            for result in ended:
                told(result)
            found += ended
        results += found
    order = {case.name: number for number, case in enumerate(cases)}
    return sorted(results, key=lambda result: order[result.case.name])


def _ignore(_result: Result) -> None:
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Hundreds of failures are logged here, and all of them are meant."""
    logger = logging.getLogger("callboard")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)

"""Tenants: each has a runtime of its own, and with it its own requests, conversations, tools, budgets and approvals.

So what a token can reach is decided once, by which runtime it is led to: an id of another tenant is unknown there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from itertools import combinations, count
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from callboard.actors.daemon.approval_desk import ApprovalDesk
from callboard.actors.daemon.daemon_settings import TenantPlan
from callboard.actors.daemon.recorded_turns import RecordedTurns
from callboard.actors.daemon.response_records import ResponseRecords
from callboard.actors.runtime import Runtime
from callboard.actors.telemetry.timelines import RequestTimelines
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.tool_file import tools_of_files
from callboard.protocol.errors import UsageError

logger = logging.getLogger("callboard.daemon")

#: Two tenants may have one file of tools, and a reload runs it again: the modules have names of their own.
_LOADED: Final = count(1)


class Tenant(Struct):
    """One tenant that runs."""

    plan: TenantPlan
    tools: tuple[Tool, ...]
    """Of the files that its plan names."""
    runtime: Runtime
    desk: ApprovalDesk
    timelines: RequestTimelines
    """What its requests do, for the board."""
    responses: ResponseRecords
    """Of the Responses API."""
    turns: RecordedTurns = field(default_factory=RecordedTurns)
    """Turns that wait for results of the client, of the stateless APIs."""

    @property
    def name(self) -> str:
        return self.plan.name

    def has_open(self, request_id: str) -> bool:
        """Has this request not ended? It waits for nothing."""
        is_left = any(each.request_id == request_id for each in self.runtime.left_open())
        return is_left or self.runtime.is_running(request_id)


def made(plan: TenantPlan) -> Tenant:
    """Its runtime, which is not started yet. Raises UsageError."""
    desk, tools = ApprovalDesk(), tools_of(plan)
    runtime = Runtime(plan.settings, tools, approve=desk.approve)
    return Tenant(plan, tools, runtime, desk, runtime.record_timelines(), ResponseRecords(_responses_file(plan)))


def tools_of(plan: TenantPlan) -> tuple[Tool, ...]:
    """The tools of its files, which are run again each time. Raises UsageError."""
    return tools_of_files(plan.own.tools, f"callboard_{plan.name.replace('-', '_')}_{next(_LOADED)}_")


def _responses_file(plan: TenantPlan) -> Path | None:
    """Where its responses are found again: nowhere without a journal. No tenant's name has a dot, so the file is never
    another tenant's journal."""
    settings = plan.settings
    return None if settings.journal is None else settings.state_dir / "daemon" / f"{plan.name}.responses.db"


def _share_files(one: TenantPlan, other: TenantPlan) -> bool:
    """Is a folder of one a folder of the other, or inside one? What both only read, they do not share."""
    first, second = (Path(each.settings.workspace or Path.cwd()).resolve() for each in (one, other))
    pairs = [(first, second), *((first, each) for each in other.settings.more_workspaces)]
    pairs += [(second, each) for each in one.settings.more_workspaces]
    return any(here.is_relative_to(there) or there.is_relative_to(here) for here, there in pairs)


class Tenants:
    """All tenants of a daemon."""

    def __init__(self, plans: Iterable[TenantPlan]) -> None:
        """Raises UsageError for a plan that cannot be carried out."""
        self._by_name = {plan.name: made(plan) for plan in plans}

    def __getitem__(self, name: str) -> Tenant:
        """Raises KeyError."""
        return self._by_name[name]

    def __iter__(self) -> Iterator[Tenant]:
        return iter(tuple(self._by_name.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    async def start(self) -> None:
        """All or none. Raises what starting a Runtime does, with the tenant's name in front."""
        for one, other in combinations(self._by_name.values(), 2):
            if _share_files(one.plan, other.plan):
                logger.warning(
                    "the tenants %s and %s have a workspace in common: the tools of each reach the files of the other",
                    one.name,
                    other.name,
                )
        async with contextlib.AsyncExitStack() as begun:
            for each in self._by_name.values():
                try:
                    await begun.enter_async_context(each.runtime)
                except UsageError as error:
                    raise UsageError(f"tenant {each.name}: {error}") from None
            begun.pop_all()

    async def stop(self) -> None:
        """All, side by side; open requests stay in their journals."""
        await asyncio.gather(*(asyncio.to_thread(each.runtime.stop) for each in self._by_name.values()))
        for each in self._by_name.values():
            await asyncio.gather(*each.responses.attending.values(), return_exceptions=True)
            each.responses.close()

"""Tenants: each has a runtime of its own, and with it its own requests, conversations, tools, budgets and approvals.

So what a token can reach is decided once, by which runtime it is led to: an id of another tenant is unknown there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from callboard.actors.daemon.approval_desk import ApprovalDesk
from callboard.actors.daemon.daemon_settings import TenantPlan
from callboard.actors.runtime import Runtime
from callboard.actors.tools.tool_file import tools_of_files
from callboard.protocol.errors import UsageError


@dataclass(slots=True)
class Tenant:
    """One tenant that runs."""

    plan: TenantPlan
    runtime: Runtime
    desk: ApprovalDesk

    @property
    def name(self) -> str:
        return self.plan.name


def made(plan: TenantPlan) -> Tenant:
    """Its runtime, which is not started yet. Raises UsageError."""
    desk = ApprovalDesk()
    tools = tools_of_files(list(plan.own.tools))
    return Tenant(plan, Runtime(plan.settings, tools, approve=desk.approve), desk)


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
        async with contextlib.AsyncExitStack() as begun:
            for each in self._by_name.values():
                try:
                    await begun.enter_async_context(each.runtime)
                except UsageError as error:
                    raise UsageError(f"tenant {each.name}: {error}") from None
            begun.pop_all()

    def reload(self, plans: Iterable[TenantPlan]) -> None:
        """Change settings and tools of all while requests run; blocks while the files of tools are read.

        Raises UsageError, and nothing has changed, for a plan that one of them cannot take.
        """
        found = tuple(plans)
        if {each.name for each in found} != set(self._by_name):
            raise UsageError("tenants cannot come or go while the daemon runs: restart it")
        tools = {plan.name: tools_of_files(list(plan.own.tools)) for plan in found}
        for plan in found:
            try:
                self._by_name[plan.name].runtime.check_reload(plan.settings, tools[plan.name])
            except UsageError as error:
                raise UsageError(f"tenant {plan.name}: {error}") from None
        for plan in found:
            tenant = self._by_name[plan.name]
            tenant.runtime.reload_sync(plan.settings, tools=tools[plan.name])
            tenant.plan = plan

    async def drain(self, deadline_seconds: float) -> bool:
        """No new requests. True when all that ran have ended by the deadline."""
        return all(await asyncio.gather(*(each.runtime.drain(deadline_seconds) for each in self)))

    async def stop(self) -> None:
        """All, side by side; open requests stay in their journals."""
        await asyncio.gather(*(asyncio.to_thread(each.runtime.stop) for each in self._by_name.values()))

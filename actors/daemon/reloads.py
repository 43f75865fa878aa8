"""A daemon's configuration, read again while it serves: all of it counts, or, where something is wrong, none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from starlette.responses import Response

from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import json_response
from callboard.actors.daemon.daemon import Daemon
from callboard.actors.daemon.daemon_settings import DaemonPlan
from callboard.actors.daemon.endpoint import Endpoint, HttpCall
from callboard.actors.daemon.tenants import tools_of
from callboard.actors.reloading import check_reload
from callboard.actors.tools.decorator import Tool
from callboard.actors.tools.tool_file import forget_modules
from callboard.actors.wiring import Wiring
from callboard.protocol.errors import RuntimeFailure, UsageError

logger = logging.getLogger("callboard.daemon")

#: Of [daemon]: what the listening socket is made with.
_FIXED: Final = ("host", "port", "log_format")


async def reload_daemon(daemon: Daemon) -> None:
    """Read the configuration and the tokens again. Requests that run go on. Raises UsageError, and changes nothing;
    RuntimeFailure where the daemon ends, since the actors of a tenant have."""
    async with daemon.reloading:
        if daemon.failure:
            raise RuntimeFailure(daemon.failure)
        plan = await asyncio.to_thread(daemon.read_plan)
        _check(daemon, plan)
        async with contextlib.AsyncExitStack() as undo:
            # All of them first: tools that cannot be loaded and settings that no runtime takes are found here.
            tools = await asyncio.to_thread(_loaded, plan, undo)
            for new, given in zip(plan.tenants, tools, strict=True):
                await asyncio.to_thread(Wiring, new.settings, given)
            for new, given in zip(plan.tenants, tools, strict=True):
                tenant = daemon.tenants[new.name]
                await tenant.runtime.reload(new.settings, given)
                undo.push_async_callback(tenant.runtime.reload, tenant.plan.settings, tenant.tools)
            daemon.tokens.reload()
            undo.pop_all()
        for new, given in zip(plan.tenants, tools, strict=True):
            tenant = daemon.tenants[new.name]
            forget_modules(tenant.tools)
            tenant.plan, tenant.tools = new, given
        daemon.take(plan)
    logger.info("the configuration was read again: %s tenants", len(tools))


def _loaded(plan: DaemonPlan, undo: contextlib.AsyncExitStack) -> list[tuple[Tool, ...]]:
    """The tools of each tenant; `undo` forgets them. Raises UsageError."""
    loaded = []
    for each in plan.tenants:
        loaded.append(tools_of(each))
        undo.callback(forget_modules, loaded[-1])
    return loaded


def _check(daemon: Daemon, plan: DaemonPlan) -> None:
    if plan.is_empty and not daemon.plan.is_empty:  # many programs empty a file before they write it
        raise UsageError(f"{plan.file} is empty or gone; reload when it is written")
    changed = [name for name in _FIXED if getattr(plan.daemon, name) != getattr(daemon.settings, name)]
    if changed:
        raise UsageError(f"{', '.join(changed)} in [daemon] cannot change while it serves; restart it for that")
    names, before = {each.name for each in plan.tenants}, {each.name for each in daemon.tenants}
    if names != before:
        raise UsageError(f"tenants come and go with a restart: {', '.join(sorted(names ^ before))}")
    for each in plan.tenants:
        try:
            check_reload(daemon.tenants[each.name].runtime.settings, each.settings)
        except UsageError as error:
            raise UsageError(f"tenant {each.name}: {error}") from None


async def reload_now(call: HttpCall) -> Response:
    """`POST /reload`."""
    await reload_daemon(call.daemon)
    return json_response({"status": "reloaded"})


ENDPOINTS: Final = (
    Endpoint(
        "POST", "/reload", reload_now, scope=Scope.ADMIN, summary="Read the configuration again", may_be_large=False
    ),
)

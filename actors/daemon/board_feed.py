"""What the board is told: snapshots of a tenant, at most four a second, made once for all who look, and what changed.

While no one looks nothing is made. A viewer that has missed a change is given the whole next one, so that a slow one
costs no more than a fast one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import orjson

from callboard.actors import kernel
from callboard.actors.daemon import board_rows
from callboard.actors.daemon.access_tokens import Scope
from callboard.actors.daemon.api_errors import overloaded
from callboard.actors.daemon.approval_desk import OpenApproval
from callboard.actors.daemon.board_rows import SECTION_SCOPES, Row, Rows
from callboard.actors.daemon.server_events import server_event
from callboard.actors.daemon.tenants import Tenant

logger = logging.getLogger("callboard.daemon")

#: Between two snapshots.
TICK_SECONDS: Final = 0.25
#: Policies are asked about each tool for this, so it is looked up less often.
WITHDRAWN_SECONDS: Final = 2.0
MAX_VIEWERS: Final = 100


@dataclass(frozen=True)
class Snapshot:
    """A tenant at one moment."""

    number: int
    """1 for the first."""
    at: float
    """Wall-clock seconds."""
    sections: Mapping[str, Rows]
    changes: Mapping[str, Mapping[str, object]]
    """By section: the rows that differ from the snapshot before, the keys that are gone, and the order where it has
    changed."""

    def whole(self, scope: Scope) -> dict[str, object]:
        """All that this scope may see."""
        seen = {name: list(rows.values()) for name, rows in self.sections.items() if scope >= SECTION_SCOPES[name]}
        return {"number": self.number, "at": self.at, "scope": scope.name.lower(), "sections": seen}

    def changed(self, scope: Scope) -> bytes:
        """What is new in it, as one event; made once for each scope."""
        return self._events[scope]

    @cached_property
    def _events(self) -> dict[Scope, bytes]:
        made = {}
        for scope in Scope:
            seen = {name: change for name, change in self.changes.items() if scope >= SECTION_SCOPES[name]}
            data = orjson.dumps({"number": self.number, "at": self.at, "changes": seen})
            made[scope] = server_event(data, name="changes")
        return made


def changes_of(before: Mapping[str, Rows], after: Mapping[str, Rows]) -> dict[str, dict[str, object]]:
    """Section by section, where something has changed."""
    made: dict[str, dict[str, object]] = {}
    for name, rows in after.items():
        old = before.get(name, {})
        set_rows = [row for key, row in rows.items() if old.get(key) is not row and old.get(key) != row]
        gone = [key for key in old if key not in rows]
        change: dict[str, object] = {}
        if set_rows:
            change["set"] = set_rows
        if gone:
            change["gone"] = gone
        kept = [key for key in old if key in rows]
        if [*kept, *(key for key in rows if key not in old)] != list(rows):
            change["order"] = list(rows)
        if change:
            made[name] = change
    return made


class BoardFeed:
    """Of one tenant."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self._snapshot = Snapshot(0, 0.0, {}, {})
        self._viewers = 0
        self._next: asyncio.Future[None] | None = None
        self._making: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._request_rows: dict[str, tuple[int, Row]] = {}
        self._approval_rows: dict[str, tuple[OpenApproval, Row]] = {}
        self._offset = time.time() - kernel.LoopScheduler.now()
        self._withdrawn: tuple[float, tuple[str, ...]] = (0.0, ())

    async def snapshot(self) -> Snapshot:
        """As it is now, a quarter of a second old at most."""
        async with self._lock:
            if time.time() - self._snapshot.at >= TICK_SECONDS:
                made = await asyncio.to_thread(self._make)
                if made.changes or not self._snapshot.number:
                    self._snapshot = made
                else:  # of no interest: keep the number
                    self._snapshot = Snapshot(self._snapshot.number, made.at, made.sections, self._snapshot.changes)
            return self._snapshot

    async def follow(self, scope: Scope) -> AsyncIterator[bytes]:
        """The whole board as a first event, then what changes. Raises ApiError where too many look."""
        if self._viewers >= MAX_VIEWERS:
            raise overloaded(f"{MAX_VIEWERS} pages look at this board already")
        self._viewers += 1
        try:
            seen = 0
            while True:
                found = await self.snapshot()
                if found.number == seen + 1 and seen:
                    yield found.changed(scope)
                elif found.number != seen:
                    whole = {"tenant": self.tenant.name, **found.whole(scope)}
                    yield server_event(orjson.dumps(whole), name="board")
                seen = found.number
                await self._tick()
        finally:
            self._viewers -= 1

    async def _tick(self) -> None:
        """To the end of the quarter of a second that all viewers share."""
        if self._next is None or self._next.done():
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(TICK_SECONDS, _settle, self._next)
        await asyncio.shield(self._next)

    def _make(self) -> Snapshot:
        tenant, before = self.tenant, self._snapshot
        tree = tenant.runtime.tree()
        sections: dict[str, Rows] = {
            "stuck": board_rows.stuck(tenant, self._withdrawn_tools(), tree),
            "approvals": board_rows.approvals(tenant, self._approval_rows),
            "requests": board_rows.requests(tenant, self._request_rows),
            "actors": board_rows.actors(tree),
            "usage": board_rows.usage(tenant),
            "dead_letters": board_rows.dead_letters(tenant, self._offset),
        }
        return Snapshot(before.number + 1, time.time(), sections, changes_of(before.sections, sections))

    def _withdrawn_tools(self) -> tuple[str, ...]:
        at, names = self._withdrawn
        now = time.monotonic()
        if not at or now - at > WITHDRAWN_SECONDS:
            runtime = self.tenant.runtime
            offered = {each.definition.name for each in runtime.offered()}
            names = tuple(
                each.definition.name
                for each in runtime.tools()
                if each.is_shown and each.definition.name not in offered
            )
            self._withdrawn = (now, names)
        return names


class BoardFeeds:
    """Of all tenants that someone has looked at."""

    def __init__(self) -> None:
        self._by_tenant: dict[str, BoardFeed] = {}

    def of(self, tenant: Tenant) -> BoardFeed:
        found = self._by_tenant.get(tenant.name)
        if found is None or found.tenant is not tenant:  # it was taken out and came back by a reload
            found = self._by_tenant[tenant.name] = BoardFeed(tenant)
        return found


def _settle(tick: asyncio.Future[None]) -> None:
    if not tick.done():
        tick.set_result(None)

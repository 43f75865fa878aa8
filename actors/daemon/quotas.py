"""What a tenant may use: tokens a day, US dollars a month, by what its journal says."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from callboard.actors.daemon.api_errors import ApiError
from callboard.actors.daemon.tenants import Tenant

#: What asks models: only this is refused when a quota is used up.
ASKS_MODELS: Final = frozenset(
    (
        "/api/requests",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/messages",
        "/v1/embeddings",
    )
)
#: What was used is read from the journal at most this often; as much may be used beyond a quota meanwhile.
READ_AGAIN_SECONDS: Final = 5.0


class Used(Struct, frozen=True):
    """What a tenant has used, when that was read."""

    tokens_today: int
    dollars_this_month: float
    at: float


class Quotas:
    """Of all tenants."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """`now`: wall-clock seconds."""
        self._now = now
        self._used: dict[str, Used] = {}
        self._reading: dict[str, asyncio.Task[Used]] = {}

    async def check(self, method: str, path: str, tenant: Tenant) -> None:
        """Raise ApiError (429, with Retry-After) where this would ask a model, and the tenant may not."""
        if method != "POST" or path not in ASKS_MODELS:
            return
        own = tenant.plan.own
        if own.tokens_per_day is None and own.dollars_per_month is None:
            return
        used, now = await self._read(tenant), self._now()
        if own.tokens_per_day is not None and used.tokens_today >= own.tokens_per_day:
            raise _used_up(f"the {own.tokens_per_day:,} tokens a day of this tenant are used up", next_day(now) - now)
        if own.dollars_per_month is not None and used.dollars_this_month >= own.dollars_per_month:
            what = f"the {own.dollars_per_month:g} US dollars a month of this tenant are used up"
            raise _used_up(what, next_month(now) - now)

    async def _read(self, tenant: Tenant) -> Used:
        """Once for all that ask at the same time."""
        found, now = self._used.get(tenant.name), self._now()
        if found is not None and 0 <= now - found.at < READ_AGAIN_SECONDS:
            return found
        reading = self._reading.get(tenant.name)
        if reading is None:
            reading = self._reading[tenant.name] = asyncio.create_task(asyncio.to_thread(used_by, tenant, now))
            reading.add_done_callback(lambda _: self._reading.pop(tenant.name, None))
        used = self._used[tenant.name] = await asyncio.shield(reading)
        return used


def used_by(tenant: Tenant, now: float) -> Used:
    """By its journal; nothing where it has none. It waits for the disk."""
    if tenant.runtime.settings.journal is None:
        return Used(0, 0.0, now)
    journal = tenant.runtime.journal
    usage = journal.usage(("day",), since=next_day(now) - _DAY).total.usage
    dollars = journal.usage(("day",), since=this_month(now)).total.cost
    return Used(usage.input_tokens + usage.output_tokens if usage is not None else 0, dollars or 0.0, now)


_DAY: Final = timedelta(days=1).total_seconds()


def next_day(now: float) -> float:
    """When the next day of UTC begins."""
    return math.floor(now / _DAY + 1) * _DAY


def this_month(now: float) -> float:
    """When this month of UTC began."""
    return datetime.fromtimestamp(now, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()


def next_month(now: float) -> float:
    """When the next month of UTC begins."""
    return this_month(this_month(now) + 32 * _DAY)


def _used_up(message: str, wait_seconds: float) -> ApiError:
    headers = {"Retry-After": str(max(1, math.ceil(wait_seconds)))}
    return ApiError(429, "quota_exceeded", message, headers=headers)

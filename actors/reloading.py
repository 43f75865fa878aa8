"""New settings for a runtime that runs: which it can change, and what becomes of earlier connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError, said
from callboard.protocol.limits import STREAM_TOTAL_TIMEOUT_SECONDS

logger = logging.getLogger("callboard")

#: A stream that began before its settings were replaced has ended by then.
RETIRE_SECONDS: Final = STREAM_TOTAL_TIMEOUT_SECONDS + 60.0

#: Of providers and of requests. The rest is of the tree, its workers and its files, which are made at the start.
CHANGEABLE: Final = frozenset(
    (
        "model", "fallback_models", "base_url", "api_key", "headers", "connections", "proxy", "verify", "transport",
        "rate_limits",
        "max_attempts", "script", "stream_idle_timeout_seconds", "stream_total_timeout_seconds", "tool_fallback",
        "instructions", "request_timeout_seconds", "approval_timeout_seconds", "max_steps", "token_budget",
        "cost_budget", "context_tokens", "history_share", "result_share", "sampling", "parallel_tool_calls",
        "server_tools", "storage", "service_tier", "provider_options", "prompt_cache", "max_concurrent_requests",
        "expand_search", "tools_budget_tokens",
    )
)  # fmt: skip


def check_reload(before: Settings, after: Settings) -> None:
    """Raise UsageError for a setting that has changed and that only a start can change."""
    fields = [name for name in Settings.model_fields if name not in CHANGEABLE]
    changed = [name for name in fields if getattr(before, name) != getattr(after, name)]
    if changed:
        raise UsageError(f"{', '.join(changed)} cannot change while the runtime runs; restart it for that")


class Closes(Protocol):
    """What holds connections."""

    async def aclose(self) -> None: ...


class EarlierProviders:
    """Providers of settings that were replaced: a stream of one may be open, so it is closed a while later."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        """Of the runtime that was started last."""
        self.were_replaced = False
        """Once, at least."""
        self._open: dict[int, Closes] = {}
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def open(self) -> tuple[Closes, ...]:
        """Those that are not closed yet."""
        return tuple(self._open.values())

    def add(self, providers: Iterable[Closes], kept: Mapping[str, object]) -> None:
        """They are replaced now, but for those of the user's own that are `kept`."""
        self.were_replaced = True
        still = {id(each) for each in kept.values()}
        for each in providers:
            if id(each) not in still:
                self._open[id(each)] = each
                if self.loop is not None:
                    self.loop.call_soon_threadsafe(self.loop.call_later, RETIRE_SECONDS, self._retire, each)

    def _retire(self, provider: Closes) -> None:
        if self._open.pop(id(provider), None) is not None:
            closing = asyncio.ensure_future(close_provider(provider))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def close_provider(held: Closes) -> None:
    """Its connections. What its own code raises is logged."""
    try:
        await held.aclose()
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - of a provider written by a user, which may raise SystemExit
        logger.warning("a provider's connections could not be closed: %s", said(error))

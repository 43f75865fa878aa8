"""What of a runtime can be changed while it runs, and what becomes of providers that it no longer uses."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from contextvars import Context
from typing import Final

from callboard.actors.models.llm_manager import Attempt, Emit, End, StartAttempt
from callboard.actors.settings import Settings
from callboard.protocol.errors import UsageError, said
from callboard.protocol.model import ModelRequest
from callboard.providers.adapter import Provider

logger = logging.getLogger("callboard")

#: Settings that count from the next request or the next model call on. All others need a new start: what was built by
#: them at the start (the journal, the index, the policy of calls, worker processes, MCP servers) lives as long as the
#: runtime.
RELOADABLE: Final = frozenset(
    {
        "model",
        "fallback_models",
        "base_url",
        "api_key",
        "headers",
        "connections",
        "proxy",
        "verify",
        "instructions",
        "request_timeout_seconds",
        "max_steps",
        "token_budget",
        "cost_budget",
        "context_tokens",
        "history_share",
        "result_share",
        "sampling",
        "parallel_tool_calls",
        "server_tools",
        "storage",
        "service_tier",
        "provider_options",
        "prompt_cache",
        "rate_limits",
        "stream_idle_timeout_seconds",
        "stream_total_timeout_seconds",
        "max_attempts",
        "max_concurrent_requests",
    }
)


def check_reloadable(before: Settings, after: Settings) -> None:
    """Raise UsageError where a setting differs that cannot be changed while the runtime runs."""
    names = [name for name in Settings.model_fields if name not in RELOADABLE]
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    if changed:
        what = ", ".join(changed)
        raise UsageError(f"{what} cannot be changed while the runtime runs: restart it, or leave it as it was")


class ProvidersInUse:
    """Counts the model calls under way at each provider: one that is retired is closed when its last call has ended.

    It is used on the loop alone.
    """

    def __init__(self, start: StartAttempt) -> None:
        self._start = start
        self._running: Counter[int] = Counter()
        self._retired: dict[int, Provider] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def retired(self) -> tuple[Provider, ...]:
        """Those that still have calls under way."""
        return tuple(self._retired.values())

    def start(self, provider: Provider, request: ModelRequest, emit: Emit, end: End, asker: Context | None) -> Attempt:
        """See `StartAttempt`."""
        attempt, key = self._start(provider, request, emit, end, asker), id(provider)
        self._running[key] += 1
        if isinstance(attempt, asyncio.Future):
            attempt.add_done_callback(lambda _: self._ended(key))
        return attempt

    def retire(self, providers: Iterable[Provider]) -> None:
        """No new call will use them."""
        for each in providers:
            self._retired[id(each)] = each
            self._close_unused(id(each))

    def _ended(self, key: int) -> None:
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
            self._close_unused(key)

    def _close_unused(self, key: int) -> None:
        if key in self._retired and key not in self._running:
            task = asyncio.get_running_loop().create_task(_close(self._retired.pop(key)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close(provider: Provider) -> None:
    try:
        await provider.aclose()
    except Exception as error:  # noqa: BLE001 - of a provider written by a user
        logger.warning("a provider's connections could not be closed: %s", said(error))
